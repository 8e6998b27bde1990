"""Data layers over folders of .npy files, which are memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_nets import Array
from jitdnn.caffe import Net, load_net
from jitdnn.caffe.arrays import map_npy
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType

WAYS = [
    "",
    "crop_size: 2",
    "crop_size: 3 mirror: true",
    "mirror: true scale: 0.5 mean_value: 3 mean_value: 9",
]


def data_net(
    source: str | Path, transform: str = "", phase: str = "TRAIN", tops: str = 'top: "label"'
) -> Net:
    return load_net(
        f"""layer {{ name: "d" type: "Data" top: "data" {tops}
                     data_param {{ source: "{source}" batch_size: 4 }} transform_param {{ {transform} }} }}""",
        phase,
        seed=5,
    )


def take(net: Net, count: int) -> list[tuple[Array, Array]]:
    found = []
    for _ in range(count):
        for blob in net.nodes[0].top:
            blob.data.fill(np.nan)
        outputs = net.forward()
        found.append((outputs["data"].copy(), outputs["label"].copy()))
    return found


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Array, Array]:
    """Eleven images of 2 channels, 3 x 5, as files of a folder and as an .npz file."""
    data = np.random.default_rng(3).integers(0, 256, (11, 2, 3, 5), np.uint8)
    labels = np.arange(11)
    np.save(tmp_path / "train_data.npy", data)
    np.save(tmp_path / "train_label.npy", labels)
    np.savez(tmp_path / "n.npz", train_data=data, train_label=labels)
    return data, labels


@pytest.mark.parametrize("transform", WAYS)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_batches_are_those_of_an_npz_file(
    tmp_path: Path, arrays: tuple[Array, Array], transform: str, phase: str
) -> None:
    mapped = take(data_net(f"{tmp_path}#train", transform, phase), 7)
    plain = take(data_net(f"{tmp_path}/n.npz#train", transform, phase), 7)
    for (data, labels), (wanted, wanted_labels) in zip(mapped, plain, strict=True):
        np.testing.assert_array_equal(data, wanted)
        np.testing.assert_array_equal(labels, wanted_labels)


@pytest.mark.parametrize("transform", WAYS)
def test_images_of_a_block_are_those_one_by_one(
    tmp_path: Path, arrays: tuple[Array, Array], transform: str
) -> None:
    layer: Any = data_net(f"{tmp_path}#train", transform).layers[0]
    source, transformer = layer.source, layer.transformer
    for records in ([0], [2, 3, 4], [9, 10, 0, 1], [10, 0]):
        draws = transformer.draw(np.random.default_rng(len(records)), len(records))
        images, labels = source.block(records)
        found, wanted = (np.full((len(records), *transformer.shape), np.nan, np.float32) for _ in range(2))
        transformer.apply_drawn(images, found, draws)
        for place, (record, draw) in enumerate(zip(records, draws, strict=True)):
            image, label = source.decode(record)
            transformer.apply_one(image, wanted[place], draw)
            assert labels[place] == label
        np.testing.assert_array_equal(found, wanted)


def test_nothing_is_read_into_memory(tmp_path: Path, arrays: tuple[Array, Array]) -> None:
    net = data_net(f"{tmp_path}#train")
    source = net.layers[0].source  # type: ignore[attr-defined]
    assert isinstance(source.data.base, np.memmap) or isinstance(source.data, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        source.data[0] = 1


@pytest.mark.parametrize("transform", WAYS)
def test_a_resume_goes_on_behind_the_last_batch(
    tmp_path: Path, arrays: tuple[Array, Array], transform: str
) -> None:
    net = data_net(f"{tmp_path}#train", transform)
    take(net, 4)
    state = net.layers[0].state()
    wanted = take(net, 5)
    other = data_net(f"{tmp_path}#train", transform)
    take(other, 1)
    other.layers[0].restore(state)
    for (data, labels), (more, more_labels) in zip(take(other, 5), wanted, strict=True):
        np.testing.assert_array_equal(data, more)
        np.testing.assert_array_equal(labels, more_labels)
    for name, array in (("data", np.zeros((3, 2, 3, 5), np.uint8)), ("label", np.arange(3))):
        (tmp_path / f"train_{name}.npy").unlink()  # the nets above go on reading the old files
        np.save(tmp_path / f"train_{name}", array)
    with pytest.raises(InvalidArgument, match="3 images, and had 11"):
        data_net(f"{tmp_path}#train", transform).layers[0].restore(state)


def test_floats_without_a_channel_axis_and_columns_of_labels(tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((5, 1, 7), np.float32)
    labels = np.random.default_rng(2).standard_normal((5, 3), np.float32)
    np.save(tmp_path / "data.npy", data)
    np.save(tmp_path / "label.npy", labels)
    ((found, told),) = take(data_net(tmp_path), 1)
    np.testing.assert_array_equal(found, data[:4, np.newaxis])
    np.testing.assert_array_equal(told, labels[:4])


@pytest.mark.parametrize("transform", ["", "mirror: true", "crop_size: 4 mirror: true"])
def test_masks_move_with_their_images(tmp_path: Path, transform: str) -> None:
    masks = np.random.default_rng(1).integers(0, 256, (6, 5, 7), np.uint8)
    np.save(tmp_path / "train_data.npy", np.stack([masks, 255 - masks], 1))
    np.save(tmp_path / "train_label.npy", masks)
    for data, labels in take(data_net(f"{tmp_path}#train", transform), 5):
        assert labels.shape == (4, *data.shape[2:])
        np.testing.assert_array_equal(data[:, 0], labels)
        np.testing.assert_array_equal(data[:, 1], 255 - labels)


def test_boxes_do_not_move(tmp_path: Path) -> None:
    boxes = np.random.default_rng(1).random((4, 6, 5), np.float32)
    np.save(tmp_path / "data.npy", np.zeros((4, 1, 6, 5), np.uint8))
    np.save(tmp_path / "label.npy", boxes)
    ((_, labels),) = take(data_net(tmp_path), 1)
    np.testing.assert_array_equal(labels, boxes)
    for transform in ("mirror: true", "crop_size: 3"):
        with pytest.raises(InvalidArgument, match=r"\(6, 5\) do not move.*crop_size and mirror"):
            data_net(tmp_path, transform)


def test_folders_that_cannot_be(tmp_path: Path, arrays: tuple[Array, Array]) -> None:
    with pytest.raises(InvalidArgument, match=r'no val_data\.npy; name its source as "FOLDER#train"'):
        data_net(f"{tmp_path}#val")
    with pytest.raises(InvalidArgument, match="force_color and force_gray are for image files"):
        data_net(f"{tmp_path}#train", "force_gray: true")
    for name, array, error, message in [
        ("train_label", np.arange(10), InvalidShape, "11 rows are needed"),
        ("train_label", np.array(["a"] * 11), InvalidArgument, "only numbers are read"),
        ("train_label", np.ones(11, bool), InvalidType, "is bool; integers or floats"),
        ("train_data", np.zeros((11, 4)), InvalidShape, r"shape \(11, 4\)"),
        ("train_data", np.zeros((0, 1, 4, 4)), InvalidArgument, "empty array"),
    ]:
        kept = (tmp_path / f"{name}.npy").read_bytes()
        np.save(tmp_path / name, array)
        with pytest.raises(error, match=message):
            data_net(f"{tmp_path}#train")
        (tmp_path / f"{name}.npy").write_bytes(kept)
    (tmp_path / "train_label.npy").unlink()
    with pytest.raises(InvalidArgument, match="no labels for top 'label'"):
        data_net(f"{tmp_path}#train")
    assert data_net(f"{tmp_path}#train", tops="").forward()["data"].shape == (4, 2, 3, 5)


def test_a_map_is_as_long_as_its_header_says(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.arange(100))
    content = file.read_bytes()
    for broken in (content[:-1], content + b"x", content[:40], b"", np.lib.format.magic(1, 0) + b"\xff\xff"):
        file.write_bytes(broken)
        with pytest.raises(InvalidArgument, match=r"a\.npy cannot be mapped"):
            map_npy(file)
    np.save(file, np.array([{}]), allow_pickle=True)
    with pytest.raises(InvalidArgument, match="only numbers are read"):
        map_npy(file)
    np.save(file, np.asfortranarray(np.arange(12).reshape(3, 4)))
    np.testing.assert_array_equal(map_npy(file), np.arange(12).reshape(3, 4))
