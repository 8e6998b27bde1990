"""HDF5Data, HDF5Output, MemoryData and WindowData."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import Net, load_net
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.settings import settings

h5py = pytest.importorskip("h5py")


# ---- HDF5Data


def h5_files(folder: Path, counts: tuple[int, ...] = (3, 5, 1), dtype: str = "f4") -> Path:
    """Files with rows that are numbered on from one to the next."""
    start, names = 0, []
    for number, count in enumerate(counts):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            rows = np.arange(start, start + count)
            file["data"] = (rows[:, np.newaxis] * np.ones((1, 2))).astype(dtype)
            file["y/label"] = rows.astype("i8")
        names.append(f"{number}.h5\n")
        start += count
    (folder / "list.txt").write_text("".join(names))
    return folder / "list.txt"


def h5_net(source: Path, fields: str = "", tops: str = 'top: "data" top: "y/label"', seed: int = 1) -> Net:
    return load_net(
        f"""layer {{ name: "d" type: "HDF5Data" {tops}
                     hdf5_data_param {{ source: "{source}" batch_size: 4 {fields} }} }}""",
        seed=seed,
    )


def rows(net: Net, count: int) -> list[float]:
    found: list[float] = []
    for _ in range(count):
        for blob in net.nodes[0].top:
            blob.data.fill(np.nan)
        outputs = net.forward()
        np.testing.assert_array_equal(outputs["data"], outputs["y/label"][:, np.newaxis] * np.ones((1, 2)))
        found += outputs["y/label"].tolist()
    return found


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
def test_rows_go_on_from_file_to_file(tmp_path: Path, dtype: str) -> None:
    net = h5_net(h5_files(tmp_path, dtype=dtype))
    assert rows(net, 9) == [float(i % 9) for i in range(36)]


def test_shuffled_rows_are_all_there_in_each_round(tmp_path: Path) -> None:
    net = h5_net(h5_files(tmp_path), "shuffle: true")
    found = np.array(rows(net, 9)).reshape(4, 9)
    assert [sorted(part) for part in found.tolist()] == [[float(i) for i in range(9)]] * 4
    assert len({tuple(part) for part in found.tolist()}) == 4


@pytest.mark.parametrize("fields", ["", "shuffle: true"])
def test_hdf5_resume(tmp_path: Path, fields: str) -> None:
    net = h5_net(h5_files(tmp_path), fields)
    rows(net, 4)
    state = net.layers[0].state()
    wanted = rows(net, 5)
    other = h5_net(tmp_path / "list.txt", fields, seed=2)
    other.layers[0].restore(state)
    assert rows(other, 5) == wanted
    with pytest.raises(InvalidArgument, match="rows"):
        other.layers[0].restore({**state, "opened": 0, "row": 10_000})
    h5_files(tmp_path, (2, 2))
    with pytest.raises(InvalidArgument, match="another one"):
        h5_net(tmp_path / "list.txt", fields).layers[0].restore(state)


def test_hdf5_files_that_cannot_be(tmp_path: Path) -> None:
    source = h5_files(tmp_path)
    with pytest.raises(
        InvalidArgument, match=r"0\.h5 is an HDF5 file: a text file is needed that names such files"
    ):
        h5_net(tmp_path / "0.h5")
    for tops, error, message in [
        ('top: "none"', InvalidArgument, "no dataset 'none'; it has data, "),
        ('top: "data" top: "short"', InvalidShape, "data 3, short 2"),
        ('top: "text"', InvalidType, "integers or floats"),
        ('top: "one"', InvalidShape, "a single number"),
    ]:
        with h5py.File(tmp_path / "0.h5", "a") as file:
            for name, value in (("short", np.zeros(2)), ("text", np.array([b"a"] * 3)), ("one", 3.0)):
                if name not in file:
                    file[name] = value
        with pytest.raises(error, match=rf"'d' \(HDF5Data\).*0\.h5.*{message}"):
            h5_net(source, tops=tops)
    with settings(load_limit=20), pytest.raises(InvalidArgument, match="load_limit"):
        h5_net(source)
    with h5py.File(tmp_path / "1.h5", "w") as file:
        file["data"], file["y/label"] = np.zeros((4, 3)), np.zeros(4)
    net = h5_net(source)
    with pytest.raises(InvalidArgument, match=r"data has rows of shape \(3,\) in .*1\.h5, and of \(2,\)"):
        net.forward()
    (tmp_path / "1.h5").write_bytes(b"no HDF5")
    net = h5_net(source)
    with pytest.raises(InvalidArgument, match=r"'d' \(HDF5Data\).*1\.h5 cannot be read as an HDF5 file"):
        net.forward()
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(InvalidArgument, match="names no files"):
        h5_net(source)


def test_hdf5_output_appends(tmp_path: Path) -> None:
    source = h5_files(tmp_path)
    text = f"""
      layer {{ name: "d" type: "HDF5Data" top: "data" top: "y/label"
               hdf5_data_param {{ source: "{source}" batch_size: 4 }} }}
      layer {{ name: "o" type: "HDF5Output" bottom: "data" bottom: "y/label"
               hdf5_output_param {{ file_name: "{tmp_path}/out.h5" }} }}"""
    (tmp_path / "out.h5").write_bytes(b"what was there before")
    net = load_net(text)
    for _ in range(3):
        net.forward()
    with h5py.File(tmp_path / "out.h5") as file:
        order = [float(i % 9) for i in range(12)]
        assert file["label"][()].tolist() == order
        np.testing.assert_array_equal(file["data"], np.array(order)[:, np.newaxis] * np.ones((1, 2)))
    with pytest.raises(InvalidArgument, match="its folder is not there"):
        load_net(text.replace("out.h5", "none/out.h5"))


# ---- MemoryData


MEMORY = """layer { name: "d" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } transform_param { crop_size: 0 scale: 0.5 } }"""


def test_memory_data_gives_what_it_got() -> None:
    net = load_net(MEMORY)
    layer: Any = net.layers[0]
    with pytest.raises(InvalidArgument, match="it has no data yet"):
        net.forward()
    data = np.random.default_rng(0).random((6, 3, 4, 5), np.float32)
    layer.set_arrays(data, np.arange(6))
    for batch in (0, 1, 2, 0):
        outputs = net.forward()
        np.testing.assert_array_equal(outputs["data"], data[2 * batch : 2 * batch + 2])
        np.testing.assert_array_equal(outputs["label"], [2 * batch, 2 * batch + 1])
    images = (data[:2] * 255).astype(np.uint8)
    layer.set_images(list(images), [7, 8])
    outputs = net.forward()
    np.testing.assert_array_equal(outputs["data"], images * np.float32(0.5))
    for values, labels, message in [
        (data[:3], np.arange(3), "a multiple of 2"),
        (data[:2, :2], np.arange(2), "is needed"),
        (data[:2], np.arange(3), "3 labels for 2 images"),
        (np.full((2, 3, 4, 5), "x"), np.arange(2), "real numbers"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            layer.set_arrays(values, labels)
    with pytest.raises(InvalidArgument, match="all positive"):
        load_net(MEMORY.replace("height: 4", ""))


# ---- WindowData


def window_net(folder: Path, windows: str, fields: str = "", transform: str = "", batch: int = 8) -> Net:
    (folder / "windows.txt").write_text(windows)
    return load_net(
        f"""layer {{ name: "w" type: "WindowData" top: "data" top: "label"
                     window_data_param {{ source: "{folder}/windows.txt" batch_size: {batch} root_folder: "{folder}/"
                                          {fields} }}
                     transform_param {{ crop_size: 6 {transform} }} }}""",
        "TRAIN",
        seed=3,
    )


@pytest.fixture
def picture(tmp_path: Path) -> Any:
    cv2 = pytest.importorskip("cv2")
    pixels = np.random.default_rng(5).integers(0, 256, (20, 30, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), pixels)
    return pixels


def test_windows_are_warped_as_by_opencv(picture: Any, tmp_path: Path) -> None:
    import cv2

    text = "# 0\na.png\n3\n20\n30\n2\n4 0.9 3 2 14 12\n0 0.1 10 5 29 19\n"
    outputs = window_net(tmp_path, text, "fg_fraction: 0.25", "mean_value: 10 scale: 0.5").forward()
    assert outputs["label"].tolist() == [0.0] * 6 + [4.0] * 2
    for image, (x1, y1, x2, y2) in (
        (outputs["data"][0], (10, 5, 29, 19)),
        (outputs["data"][7], (3, 2, 14, 12)),
    ):
        wanted = cv2.resize(picture[y1 : y2 + 1, x1 : x2 + 1], (6, 6)).transpose(2, 0, 1).astype(float)
        assert np.abs(image - (wanted - 10) * 0.5).max() <= 0.5


@pytest.mark.parametrize("mode", ["warp", "square"])
@pytest.mark.parametrize("mirror", ["", "mirror: true"])
def test_context_beyond_the_image_is_zero(picture: Any, tmp_path: Path, mode: str, mirror: str) -> None:
    text = "# 0\na.png\n3\n20\n30\n1\n4 0.9 0 0 9 9\n"
    fields = f'fg_fraction: 1 context_pad: 1 crop_mode: "{mode}"'
    net = window_net(tmp_path, text, fields, mirror, batch=16)
    data = net.forward()["data"].copy()
    left = np.abs(data[..., 0]).max(axis=(1, 2)) == 0
    right = np.abs(data[..., 5]).max(axis=(1, 2)) == 0
    assert np.abs(data[:, :, 0]).max() == 0  # above the image
    assert (left ^ right).all()
    assert left.any()
    assert right.any() == bool(mirror)
    state = net.layers[0].state()
    wanted = net.forward()["data"].copy()
    other = window_net(tmp_path, text, fields, mirror, batch=16)
    other.layers[0].restore(state)
    np.testing.assert_array_equal(other.forward()["data"], wanted)


def test_window_files_that_cannot_be(picture: Any, tmp_path: Path) -> None:
    head = "# 0\na.png\n3\n20\n30\n"
    for text, fields, message in [
        ("a.png\n", "", "line 1 .*# index"),
        ("# 0\n", "", "name of an image is missing"),
        (head + "x\n", "", "line 6 .*whole number"),
        (head + "2\n1 0.9 0 0 5 5\n", "", "line 8 .*class, overlap"),
        (head + "1\n1 0.9 0 0 30 5\n", "", r"line 7 .*no window of an image of 20 x 30"),
        (head + "1\n0 0.9 0 0 5 5\n", "", "class 0 overlaps"),
        (head + "1\n1 0.9 0 0 5 5\n", "", "1 windows of objects and 0 of the background"),
        (head + "1\n1 0.9 0 0 5 5\n", "context_pad: 3", "leaves nothing"),
        (head + "1\n1 0.9 0 0 5 5\n", 'crop_mode: "round"', "warp and square"),
    ]:
        with pytest.raises(InvalidArgument, match=rf"'w' \(WindowData\).*{message}"):
            window_net(tmp_path, text, fields)
    net = window_net(tmp_path, "# 0\na.png\n3\n40\n30\n1\n4 0.9 0 0 9 39\n", "fg_fraction: 1")
    with pytest.raises(InvalidArgument, match=r"'w' \(WindowData\).*a\.png has 20 x 30 pixels"):
        net.forward()
