"""`jitdnn convert-imageset` and `jitdnn compute-mean`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffe_protobuf
from caffe_databases import read_database
from command_line import call
from jitdnn.caffe.blob_proto import read_binaryproto

cv2 = pytest.importorskip("cv2")
lmdb = pytest.importorskip("lmdb")

IMAGES = np.random.default_rng(2).integers(0, 256, (5, 8, 6, 3), np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for index, image in enumerate(IMAGES):
        cv2.imwrite(str(tmp_path / "sub" / f"{index}.png"), image)
    (tmp_path / "list.txt").write_text("".join(f"sub/{index}.png {index + 3}\n" for index in range(5)))
    return tmp_path


def records(folder: Path) -> list[tuple[str, Any]]:
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        kind = caffe_protobuf.classes()["Datum"]
        return [(key.decode(), kind.FromString(value)) for key, value in transaction.cursor()]


def convert(capsys: pytest.CaptureFixture[str], images: Path, *options: str) -> tuple[int, str, str]:
    return call(capsys, "convert-imageset", f"{images}/", images / "list.txt", images / "db", *options)


def test_pixels(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = convert(capsys, images, "--check-size")
    assert (code, "5 images in" in out) == (0, True)
    found = records(images / "db")
    assert [key for key, _ in found] == [f"{index:08d}_sub/{index}.png" for index in range(5)]
    for index, (_, datum) in enumerate(found):
        assert (datum.channels, datum.height, datum.width, datum.label) == (3, 8, 6, index + 3)
        pixels = np.frombuffer(datum.data, np.uint8).reshape(3, 8, 6)
        np.testing.assert_array_equal(pixels, IMAGES[index].transpose(2, 0, 1))
    code, out, _ = call(capsys, "compute-mean", images / "db", images / "mean.binaryproto")
    assert code == 0
    mean = IMAGES.astype(float).mean(axis=0).transpose(2, 0, 1)
    np.testing.assert_allclose(read_binaryproto(images / "mean.binaryproto")[0], mean, rtol=1e-6)
    assert f"[2]: {mean[2].mean():g}"[:9] in out


def test_resized_grey_shuffled(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gray", "--shuffle", "--resize-height", "4", "--resize-width", "9"]
    assert convert(capsys, images, *options)[0] == 0
    found = records(images / "db")
    assert sorted(datum.label for _, datum in found) == [3, 4, 5, 6, 7]
    for number, (key, datum) in enumerate(found):
        assert key == f"{number:08d}_sub/{datum.label - 3}.png"
        wanted = cv2.resize(cv2.cvtColor(IMAGES[datum.label - 3], cv2.COLOR_BGR2GRAY), (9, 4)).astype(float)
        assert np.abs(np.frombuffer(datum.data, np.uint8).reshape(4, 9) - wanted).max() <= 2


def test_keys_have_the_names_as_they_stand_in_the_list(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And both kinds of databases have the same records."""
    (images / "with blank").mkdir()
    cv2.imwrite(str(images / "with blank" / "5.png"), IMAGES[0])
    names = ["./sub/0.png", "sub//1.png", "sub/../sub/2.png", "with blank/5.png", "sub/./3.png"]
    (images / "list.txt").write_text("".join(f"{name} 1\n" for name in names))
    assert convert(capsys, images)[0] == 0
    found = read_database(images / "db")
    assert [key.decode() for key, _ in found] == [f"{index:08d}_{name}" for index, name in enumerate(names)]
    (images / "db").rename(images / "lmdb")
    assert convert(capsys, images, "--backend", "leveldb")[0] == 0
    assert (images / "db" / "CURRENT").exists()
    assert read_database(images / "db") == found


def test_encoded(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(capsys, images, "--encoded")[0] == 0
    for index, (_, datum) in enumerate(records(images / "db")):
        assert datum.encoded
        assert datum.data == (images / "sub" / f"{index}.png").read_bytes()
    (images / "db").rename(images / "png")
    assert convert(capsys, images, "--encode-type", "jpg")[0] == 0
    for _, datum in records(images / "db"):
        assert datum.data[:2] == b"\xff\xd8"
        assert cv2.imdecode(np.frombuffer(datum.data, np.uint8), 1).shape == (8, 6, 3)
    assert call(capsys, "compute-mean", images / "png")[0] == 0


def test_refusals_leave_nothing(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = convert(capsys, images, "--resize-width", "4")
    assert (code, "give both" in err) == (1, True)
    cv2.imwrite(str(images / "sub" / "3.png"), IMAGES[3][:5])
    code, _, err = convert(capsys, images, "--check-size")
    assert code == 1
    assert "3.png has shape (3, 5, 6), and the first image (3, 8, 6)" in err
    (images / "sub" / "4.png").unlink()
    code, _, err = convert(capsys, images)
    assert (code, "4.png cannot be read" in err) == (1, True)
    code, _, err = convert(capsys, images, "--encode-type", "gif")
    assert (code, "gif" in err) == (1, True)
    assert sorted(path.name for path in images.iterdir()) == ["list.txt", "sub"]
    (images / "db").mkdir()
    code, _, err = convert(capsys, images)
    assert (code, "exists already" in err) == (1, True)
