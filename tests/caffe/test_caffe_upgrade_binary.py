"""Binary nets in V1 and V0 become V2 with their weights: protobuf reads them, and the upgraded net answers alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffe_protobuf
from jitdnn.caffe import Net, load_net, to_text
from jitdnn.caffe.blob_proto import blob_parts, field_parts
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.schema import NetParameter
from jitdnn.caffe.upgrade_binary import is_binary, upgrade_binary, write_upgraded
from jitdnn.caffe.wire import encode, prefixed, varint
from jitdnn.errors import InvalidArgument

INPUT = 'name: "n" input: "data" input_dim: 2 input_dim: 3 input_dim: 6 input_dim: 6\n'
V1 = (
    INPUT
    + """
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2
         convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "ip" type: INNER_PRODUCT bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layers { name: "prob" type: SOFTMAX bottom: "ip" top: "prob" }
"""
)
V0 = (
    INPUT
    + """
layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "padded" }
layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 blobs_lr: 1 blobs_lr: 2 }
         bottom: "padded" top: "conv" }
layers { layer { name: "relu" type: "relu" } bottom: "conv" top: "conv" }
layers { layer { name: "ip" type: "innerproduct" num_output: 5 } bottom: "conv" top: "ip" }
layers { layer { name: "prob" type: "softmax" } bottom: "ip" top: "prob" }
"""
)
random = np.random.default_rng(3)
WEIGHTS = {
    "conv": [random.standard_normal((4, 3, 3, 3)), random.standard_normal((1, 1, 1, 4))],
    "ip": [random.standard_normal((1, 1, 5, 144)) / 12, random.standard_normal((1, 1, 1, 5))],
}
UNKNOWN = prefixed(777, b"of a fork")


def binary(text: str, dtype: str = "f4") -> bytes:
    """The net as a file of its time: weights with num, channels, height and width in the layers."""
    net = parse(text, NetParameter)
    plain = net.copy()
    plain.clear("layers")
    parts: list[Any] = [encode(plain), UNKNOWN]
    for layer in net.layers:
        is_v0 = layer.has("layer")
        name = layer.layer.name if is_v0 else layer.name
        blobs: list[Any] = []
        for values in WEIGHTS.get(name, ()):
            blobs += field_parts(50 if is_v0 else 6, blob_parts(values.astype(dtype), is_legacy=True))
        if is_v0:
            inner = encode(layer.layer) + b"".join(map(bytes, blobs))
            outer = layer.copy()
            outer.clear("layer")
            content = [prefixed(1, inner), encode(outer)]
        else:
            content = [encode(layer), *blobs]
        parts += field_parts(2, content)
    return b"".join(map(bytes, parts))


@pytest.mark.parametrize("text", [V1, V0], ids=["V1", "V0"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_definition_and_weights_are_upgraded(text: str, dtype: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.caffemodel", tmp_path / "new.caffemodel"
    old.write_bytes(binary(text, dtype))
    write_upgraded(old, new)
    theirs = caffe_protobuf.classes()["NetParameter"].FromString(new.read_bytes())
    assert [layer.type for layer in theirs.layer] == [
        "Input",
        "Convolution",
        "ReLU",
        "InnerProduct",
        "Softmax",
    ]
    assert not theirs.layers
    assert not theirs.input
    assert theirs.name == "n"
    assert [spec.lr_mult for spec in theirs.layer[1].param] == [1, 2]
    assert theirs.layer[1].convolution_param.pad == [1]
    for layer in theirs.layer:
        expected = WEIGHTS.get(layer.name, [])
        assert len(layer.blobs) == len(expected)
        for blob, values in zip(layer.blobs, expected, strict=True):
            assert (blob.num, blob.channels, blob.height, blob.width) == values.shape
            found = blob.double_data if dtype == "f8" else blob.data
            assert np.array_equal(np.array(found, dtype), values.astype(dtype).reshape(-1))
    assert UNKNOWN in new.read_bytes()  # a field that nobody here knows
    # and the net of it answers as that of the old text with the old file
    definition, _ = upgrade_binary(new)
    first, second = Net(definition, seed=1), load_net(text, seed=2)
    first.load_weights(new)
    second.load_weights(old)
    x = random.standard_normal((2, 3, 6, 6))
    assert np.array_equal(first.forward(data=x)["prob"], second.forward(data=x)["prob"])
    assert to_text(upgrade_binary(old)[0]) == to_text(definition)


def test_what_is_in_v2_stays_byte_for_byte(tmp_path: Path) -> None:
    net = load_net("package:models/lenet_deploy.prototxt", seed=1)
    net.save_weights(tmp_path / "net.caffemodel")
    before = (tmp_path / "net.caffemodel").read_bytes()
    # a layer with a field of a fork keeps it
    (tmp_path / "more.caffemodel").write_bytes(before + UNKNOWN)
    write_upgraded(tmp_path / "net.caffemodel", tmp_path / "again.caffemodel")
    assert (tmp_path / "again.caffemodel").read_bytes() == before
    write_upgraded(tmp_path / "more.caffemodel", tmp_path / "more2.caffemodel")
    assert UNKNOWN in (tmp_path / "more2.caffemodel").read_bytes()


def test_statistics_of_a_v2_net_are_frozen_and_kept(tmp_path: Path) -> None:
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 3 dim: 3 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" }
    """
    net = load_net(text)
    net.weights["bn"][0].data[...] = [3, 4]
    net.save_weights(tmp_path / "net.caffemodel")
    plain = parse(text, NetParameter)
    content = b"".join(
        map(bytes, field_parts(100, [encode(plain.layer[0])]))
    ) + b"".join(
        map(bytes, field_parts(100, [encode(plain.layer[1]), *field_parts(7, blob_parts(np.float32([3, 4])))]))
    )  # fmt: skip
    (tmp_path / "old.caffemodel").write_bytes(content)
    write_upgraded(tmp_path / "old.caffemodel", tmp_path / "new.caffemodel")
    theirs = caffe_protobuf.classes()["NetParameter"].FromString((tmp_path / "new.caffemodel").read_bytes())
    assert [spec.lr_mult for spec in theirs.layer[1].param] == [0, 0, 0]
    assert list(theirs.layer[1].blobs[0].data) == [3, 4]


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.prototxt").write_text(V1)
    assert not is_binary(tmp_path / "text.prototxt")
    for content in (b"", b"\0\1\2\3", binary(V1)[:-3], varint(1 << 40)):
        (tmp_path / "bad.caffemodel").write_bytes(content)
        assert is_binary(tmp_path / "bad.caffemodel")
        with pytest.raises(InvalidArgument, match=r"bad\.caffemodel"):
            write_upgraded(tmp_path / "bad.caffemodel", tmp_path / "out.caffemodel")
        assert not (tmp_path / "out.caffemodel").exists()
