"""Files of strangers: damaged shapes, links, chunks and lists that take more than they say; 16-bit images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn import limits
from jitdnn.caffe import hdf5, load_net
from jitdnn.caffe.blob_proto import read_blob
from jitdnn.caffe.images import decode_image
from jitdnn.caffe.pipeline import Pipeline, Waited
from jitdnn.caffe.sources import Placed, Source, read_list
from jitdnn.caffe.totals import Totals
from jitdnn.caffe.wire import Reader


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("shape", [(0, 2**63 - 1), (0, 2**62, 2**62)])
def test_a_shape_that_no_array_has(shape: tuple[int, ...]) -> None:
    dims = b"".join(varint(1 << 3) + varint(extent) for extent in shape)
    content = varint(7 << 3 | 2) + varint(len(dims)) + dims
    with pytest.raises(jd.InvalidArgument):
        read_blob(memoryview(content), Reader("a file"), "its array")


def test_links_and_chunks_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    text = """layer { name: "i" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
              layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }"""
    net = load_net(text, seed=1)
    whole, link, chunk = (tmp_path / f"{name}.caffemodel.h5" for name in ("whole", "link", "chunk"))
    net.save_weights(whole)
    with h5py.File(link, "w") as file:
        file["data"] = h5py.ExternalLink(str(whole), "data")
    with pytest.raises(jd.InvalidArgument, match="no group data"):
        net.load_weights(link)
    with h5py.File(chunk, "w") as file:
        file.create_dataset("x", (1,), "f4", chunks=(1 << 22,), maxshape=(None,), compression="gzip")
    with jd.settings(load_limit="1 MiB"), h5py.File(chunk) as file, pytest.raises(jd.InvalidArgument):
        hdf5.checked(file["x"], chunk, "x")


def test_lines_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list"
    path.write_text("a\u2028b.png 1\r\n\nc.png 2\n", newline="")
    assert read_list(path, "a list") == ["a\u2028b.png 1", "c.png 2"]
    monkeypatch.setattr(limits, "LIST_LINES", 2)
    with pytest.raises(jd.InvalidArgument, match="more than 2 lines"):
        read_list(path, "a list")


@pytest.mark.parametrize("mode", ["L", "RGB", None])
def test_images_of_16_bits_keep_the_upper_8(mode: str | None) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(np.array([[0, 255, 256, 30000, 65535]], np.uint16)).save(stream, "PNG")
    pixels = decode_image(stream.getvalue(), "an image", mode)
    assert all(channel.tolist() == [[0, 0, 1, 117, 255]] for channel in pixels)


class _Endless(Source):
    """A source whose images are as large as they are asked for."""

    @property
    def size(self) -> int | None:
        return 1

    def records(self, place: int) -> Iterator[Placed]:
        while True:
            yield Placed(None, 0)

    def decode(self, record: Any) -> tuple[np.ndarray, int]:
        return np.zeros((1, 1, 1), np.float32), 0

    def name_of(self, record: Any) -> str:
        return "an image"


class _Vast:
    """A transformation to images that no memory holds."""

    shape = (1, 2**31, 2**31)

    def draw(self, random: np.random.Generator, count: int) -> list[None]:
        return [None] * count

    def apply_one(self, image: np.ndarray, out: np.ndarray, draw: None) -> None:
        raise AssertionError("there is no batch to fill")


def test_a_batch_that_no_memory_holds_is_an_error_and_not_a_wait() -> None:
    state = np.random.PCG64(1).state
    pipeline = Pipeline(_Endless(), _Vast(), 1 << 20, np.dtype("f4"), 2, 0, state, Waited(), workers=1)
    with pytest.raises((MemoryError, ValueError)):
        pipeline.take()
    pipeline.stop()


def test_an_output_with_other_rows_has_no_mean() -> None:
    totals = Totals()
    for rows in (2, 3, 2):
        totals.add({"loss": np.float32([rows]), "found": np.ones((rows, 7), np.float32)})
    means = totals.means()
    assert list(means) == ["loss"]
    assert np.allclose(means["loss"], 7 / 3)
