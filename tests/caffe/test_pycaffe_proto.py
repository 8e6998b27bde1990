"""BlobProto and Datum as scripts of pycaffe use them: the bytes are those of Google's protobuf, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn.caffe.pycaffe as caffe
from caffe_protobuf import classes
from jitdnn.caffe.blob_proto import write_binaryproto
from jitdnn.caffe.pycaffe.proto import caffe_pb2
from jitdnn.errors import InvalidArgument, InvalidShape

VALUES = np.random.default_rng(3).standard_normal((2, 3, 4))
PIXELS = np.random.default_rng(3).integers(0, 256, (3, 5, 4), np.uint8)


def test_a_mean_file_is_read_as_scripts_do(tmp_path: Path) -> None:
    mean = VALUES.astype(np.float32)[None]
    write_binaryproto(tmp_path / "mean.binaryproto", mean)
    blob = caffe.proto.caffe_pb2.BlobProto()
    blob.ParseFromString((tmp_path / "mean.binaryproto").read_bytes())
    assert (blob.num, blob.channels, blob.height, blob.width) == mean.shape
    np.testing.assert_array_equal(np.array(caffe.io.blobproto_to_array(blob)), mean)
    transformer = caffe.io.Transformer({"data": mean.shape})
    transformer.set_mean("data", caffe.io.blobproto_to_array(blob)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (1, 2, 3, 4), (0, 3)])
def test_blobs(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.resize(VALUES, shape) * 9).astype(dtype)
    blob = caffe.io.array_to_blobproto(array, -array)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob, return_diff=True), -array)
    content = blob.SerializeToString()
    theirs = classes()["BlobProto"].FromString(content)
    found = theirs.double_data if dtype == "float64" else theirs.data
    assert (list(found), list(theirs.shape.dim)) == (array.reshape(-1).tolist(), list(shape))
    again = caffe_pb2.BlobProto.FromString(theirs.SerializeToString())
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(again), array)


@pytest.mark.parametrize("image", [PIXELS, VALUES, VALUES.astype(np.float32), np.zeros((1, 0, 2), np.uint8)])
def test_records(image: Any) -> None:
    datum = caffe.io.array_to_datum(image, -7)
    theirs = classes()["Datum"].FromString(datum.SerializeToString())
    assert (theirs.channels, theirs.height, theirs.width, theirs.label) == (*image.shape, -7)
    is_bytes = image.dtype == np.uint8
    assert theirs.data == (image.tobytes() if is_bytes else b"")
    assert list(theirs.float_data) == ([] if is_bytes else image.astype(np.float32).reshape(-1).tolist())
    again = caffe_pb2.Datum.FromString(theirs.SerializeToString())
    assert (again.label, again.encoded) == (-7, False)
    np.testing.assert_array_equal(
        caffe.io.datum_to_array(again), image.astype(np.uint8 if is_bytes else np.float32)
    )


def test_encoded_records() -> None:
    theirs = classes()["Datum"](data=b"\x89PNG", label=3, encoded=True)
    datum = caffe_pb2.Datum.FromString(theirs.SerializeToString())
    assert (datum.data, datum.label, datum.encoded) == (b"\x89PNG", 3, True)
    assert classes()["Datum"].FromString(datum.SerializeToString()).encoded
    with pytest.raises(InvalidArgument, match="a file of an image"):
        caffe.io.datum_to_array(datum)


def test_what_they_refuse() -> None:
    blob = caffe_pb2.BlobProto()
    blob.num, blob.channels, blob.height, blob.width, blob.data = 1, 1, 2, 2, [1, 2, 3]
    with pytest.raises(InvalidShape, match=r"has 3 values, and its shape is \(1, 1, 2, 2\)"):
        caffe.io.blobproto_to_array(blob)
    blob.data = ["a"] * 4  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="real numbers"):
        blob.SerializeToString()
    with pytest.raises(InvalidShape, match="has 2 values"):
        caffe.io.array_to_blobproto(np.zeros(3), np.zeros(2))
    with pytest.raises(InvalidShape, match=r"\(C, H, W\)"):
        caffe.io.array_to_datum(np.zeros(3))
    datum = caffe_pb2.Datum()
    datum.channels, datum.data = 1, b"1"
    with pytest.raises(InvalidShape, match=r"says \(1, 0, 0\) and has 1 values"):
        caffe.io.datum_to_array(datum)
    for message in (caffe_pb2.BlobProto, caffe_pb2.Datum):
        with pytest.raises(InvalidArgument):
            message.FromString(b"\xff" * 9)  # type: ignore[attr-defined]
