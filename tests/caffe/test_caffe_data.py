"""The Data layer: its sources, its order, and what transform_param does to an image."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from caffe_nets import Array
from jitdnn.caffe import Net, load_net
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported


def data_net(
    source: Path | str,
    fields: str = "",
    transform: str = "",
    phase: str = "TEST",
    seed: int = 1,
    batch: int = 4,
) -> Net:
    return load_net(
        f"""layer {{
          name: "d" type: "Data" top: "data" top: "label"
          data_param {{ source: "{source}" batch_size: {batch} {fields} }}
          transform_param {{ {transform} }}
        }}""",
        phase,
        seed=seed,
        dtype="f64",
    )


def batches(net: Net, count: int) -> tuple[Array, Array]:
    """Images and labels of so many batches."""
    images, labels = [], []
    for _ in range(count):
        for blob in net.nodes[0].top:
            blob.data.fill(np.nan)
        outputs = net.forward()
        images.append(outputs["data"].copy())
        labels.append(outputs["label"].copy())
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture
def numbers(tmp_path: Path) -> tuple[Path, Array]:
    """Ten images of 2 channels, 3 x 5, and labels 0 to 9."""
    data = np.random.default_rng(3).integers(0, 256, (10, 2, 3, 5), np.uint8)
    np.savez(
        tmp_path / "n.npz", data=data, label=np.arange(10), part_data=data[:3, 0], part_label=np.arange(3) + 5
    )
    return tmp_path / "n.npz", data


# ---- order


def test_sequential_with_wrap_around(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, labels = batches(data_net(path), 5)
    order = np.arange(20) % 10
    np.testing.assert_array_equal(labels, order)
    np.testing.assert_array_equal(images, data[order])


def test_a_batch_larger_than_the_source(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, labels = batches(data_net(path, batch=23), 2)
    np.testing.assert_array_equal(labels, np.arange(46) % 10)
    np.testing.assert_array_equal(images, data[np.arange(46) % 10])


def test_a_part_of_a_file_and_images_without_a_channel_axis(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, labels = batches(data_net(f"{path}#part"), 1)
    np.testing.assert_array_equal(labels, [5, 6, 7, 5])
    np.testing.assert_array_equal(images, data[[0, 1, 2, 0], :1])


def test_rand_skip_starts_below_it(numbers: tuple[Path, Array]) -> None:
    path, _ = numbers
    starts = [batches(data_net(path, "rand_skip: 4", seed=seed), 1)[1] for seed in range(40)]
    assert {int(labels[0]) for labels in starts} == {0, 1, 2, 3}
    assert all((np.diff(labels) == 1).all() for labels in starts)


def test_the_place_and_the_chance_are_a_state(numbers: tuple[Path, Array]) -> None:
    path, _ = numbers
    net = data_net(path, transform="crop_size: 2 mirror: true", phase="TRAIN")
    batches(net, 3)
    state = net.layers[0].state()
    images, labels = batches(net, 2)
    other = data_net(path, transform="crop_size: 2 mirror: true", phase="TRAIN", seed=99)
    other.layers[0].restore(state)
    again, again_labels = batches(other, 2)
    np.testing.assert_array_equal(labels, again_labels)
    np.testing.assert_array_equal(images, again)
    with pytest.raises(InvalidArgument, match="has 3 images, and had 10"):
        data_net(f"{path}#part").layers[0].restore(state)


def test_relative_sources(
    numbers: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the working directory first, then from the folder of the file that names them."""
    path, data = numbers
    text = 'layer { name: "d" type: "Data" top: "data" data_param { source: "n.npz" batch_size: 1 } }'
    (tmp_path / "net.prototxt").write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    np.testing.assert_array_equal(load_net("../net.prototxt").forward()["data"], data[:1])
    np.savez(elsewhere / "n.npz", data=data[5:])
    np.testing.assert_array_equal(load_net("../net.prototxt").forward()["data"], data[5:6])
    (elsewhere / "n.npz").unlink()
    path.unlink()
    with pytest.raises(
        InvalidArgument, match=f"{elsewhere}/n.npz and {elsewhere}/../n.npz|looked for .* and "
    ):
        load_net("../net.prototxt")


# ---- transformations


def test_scale_and_mean_values(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, _ = batches(data_net(path, transform="scale: 0.5"), 1)
    np.testing.assert_array_equal(images, data[:4] * 0.5)
    images, _ = batches(data_net(path, transform="scale: 0.5 mean_value: 7"), 1)
    np.testing.assert_array_equal(images, (data[:4] - 7.0) * 0.5)
    images, _ = batches(data_net(path, transform="mean_value: 7 mean_value: 300"), 1)
    np.testing.assert_array_equal(images, data[:4] - np.array([7.0, 300]).reshape(2, 1, 1))


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_mean_image_is_read_where_the_crop_is(
    numbers: tuple[Path, Array], tmp_path: Path, suffix: str
) -> None:
    path, data = numbers
    mean = np.random.default_rng(5).uniform(0, 255, (1, 2, 3, 5))
    if suffix == "npy":
        np.save(tmp_path / "mean.npy", mean)
    else:
        np.savez(tmp_path / "mean.npz", mean=mean)
    transform = f'mean_file: "{tmp_path}/mean.{suffix}" scale: 2'
    images, _ = batches(data_net(path, transform=transform), 1)
    np.testing.assert_allclose(images, 2 * (data[:4] - mean), rtol=1e-12)
    images, _ = batches(data_net(path, transform=transform + " crop_size: 3"), 1)
    np.testing.assert_allclose(images, 2 * (data[:4] - mean)[:, :, :, 1:4], rtol=1e-12)


def test_crop_is_central_in_testing(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, _ = batches(data_net(path, transform="crop_size: 2"), 1)
    np.testing.assert_array_equal(images, data[:4, :, 0:2, 1:3])


def test_crop_is_random_in_training(numbers: tuple[Path, Array]) -> None:
    path, data = numbers
    images, labels = batches(data_net(path, transform="crop_size: 2", phase="TRAIN"), 100)
    places = [_place(image, data[int(label)]) for image, label in zip(images, labels, strict=True)]
    counts = {place: places.count(place) for place in places}
    assert set(counts) == {(top, left) for top in range(2) for left in range(4)}
    # 400 draws among 8 places: 50 expected, five standard deviations are 33
    assert max(abs(count - 50) for count in counts.values()) < 33


def _place(crop: Array, image: Array) -> tuple[int, int]:
    found = [
        (top, left)
        for top in range(image.shape[1] - 1)
        for left in range(image.shape[2] - 1)
        if (image[:, top : top + 2, left : left + 2] == crop).all()
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_mirror_in_both_phases_after_the_mean(
    numbers: tuple[Path, Array], tmp_path: Path, phase: str
) -> None:
    path, data = numbers
    mean = np.random.default_rng(5).uniform(0, 255, (2, 3, 5))
    np.save(tmp_path / "mean.npy", mean)
    net = data_net(path, transform=f'mirror: true mean_file: "{tmp_path}/mean.npy"', phase=phase)
    images, labels = batches(net, 50)
    mirrored = 0
    for image, label in zip(images, labels, strict=True):
        straight = data[int(label)] - mean
        is_mirrored = not np.allclose(image, straight)
        np.testing.assert_allclose(image, straight[..., ::-1] if is_mirrored else straight, rtol=1e-12)
        mirrored += is_mirrored
    # 200 fair coins: 100 expected, five standard deviations are 35
    assert abs(mirrored - 100) < 36


# ---- folders of images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "animals"
    for name, count in (("cat", 4), ("dog", 2), ("ant", 1)):
        for index in range(count):
            place = root / name / ("deep" if index % 2 else ".")
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.full((4, 6, 3), [10 * index, 100, 200], np.uint8)
            pixels[0, 0] = 1, 2, 3
            image.fromarray(pixels).save(place / f"{index}.{'PNG' if index else 'bmp'}")
    (root / "cat" / "notes.txt").write_text("no image")
    (root / ".hidden").mkdir()
    return root


def test_a_folder_has_a_class_in_each_sub_folder(folder: Path) -> None:
    net = data_net(folder, batch=7)
    images, labels = batches(net, 1)
    assert net.layers[0].source.classes == ["ant", "cat", "dog"]
    assert sorted(labels) == [0, 1, 1, 1, 1, 2, 2]
    # blue, green, red; the corner tells which is which
    np.testing.assert_array_equal(images[:, :, 0, 0], [[3, 2, 1]] * 7)
    assert sorted(images[labels == 1, 2, 1, 1]) == [0, 10, 20, 30]


def test_classes_are_interleaved(folder: Path) -> None:
    """Image j of n stands at (j + ½) / n: cats at ⅛ ⅜ ⅝ ⅞, dogs at ¼ ¾, the ant at ½."""
    _, labels = batches(data_net(folder, batch=7), 1)
    assert labels.tolist() == [1, 2, 1, 0, 1, 2, 1]


def test_grey_and_colour(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    grey, _ = batches(data_net(folder, transform="force_gray: true", batch=7), 1)
    assert grey.shape == (7, 1, 4, 6)
    image.new("L", (6, 4), 77).save(folder / "ant" / "0.bmp")
    with pytest.raises(InvalidShape, match="force_color"):
        batches(data_net(folder, batch=7), 1)
    colour, _ = batches(data_net(folder, transform="force_color: true", batch=7), 1)
    np.testing.assert_array_equal(colour[3], 77)


def test_sizes_differ(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (9, 8)).save(folder / "dog" / "big.png")
    with pytest.raises(InvalidShape, match=r"\(3, 8, 9\), the first one \(3, 4, 6\)"):
        batches(data_net(folder, batch=8), 1)
    images, _ = batches(data_net(folder, transform="crop_size: 3", batch=8), 1)
    assert images.shape == (8, 3, 3, 3)


def test_an_image_that_is_none(folder: Path) -> None:
    (folder / "ant" / "0.bmp").write_bytes(b"BM nothing")
    with pytest.raises(InvalidArgument, match=r"0.bmp cannot be read as an image"):
        batches(data_net(folder, batch=7), 1)


def test_pillow_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(NotSupported, match=r"pip install 'jitdnn\[caffe\]'"):
        data_net(folder)


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "transform", "kind", "reason"),
    [
        ("backend: LMDB", "", InvalidArgument, r"'d' \(Data\).*: backend is LMDB, and .* is no database"),
        ("backend: LEVELDB", "", InvalidArgument, "take the backend line out"),
        ("scale: 2", "", InvalidArgument, "belongs in transform_param"),
        ("", "crop_size: 4", InvalidShape, r"'d' \(Data\).*crop_size 4 is larger than an image of 3 x 5"),
        ("", "mean_value: 1 mean_value: 2 mean_value: 3", InvalidArgument, "3 mean_value"),
        ("", 'mean_value: 1 mean_file: "x"', InvalidArgument, "keep one"),
        ("", 'mean_file: "none.npy"', InvalidArgument, "does not exist"),
        ("", "force_color: true", InvalidArgument, "for image files"),
        ("", "force_color: true force_gray: true", InvalidArgument, "exclude each other"),
    ],
)
def test_data_layers_that_cannot_be(
    numbers: tuple[Path, Array], fields: str, transform: str, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        data_net(numbers[0], fields, transform)


@pytest.mark.parametrize(
    ("arrays", "kind", "reason"),
    [
        ({"x": np.zeros((2, 3, 3))}, InvalidArgument, "no array data; it has x"),
        ({"data": np.zeros((2, 3))}, InvalidShape, r"shape \(2, 3\)"),
        ({"data": np.zeros((0, 1, 3, 3))}, InvalidShape, "N > 0"),
        ({"data": np.zeros((2, 1, 3, 3), complex)}, InvalidType, "complex128"),
        ({"data": np.zeros((2, 1, 3, 3))}, InvalidArgument, "no labels for top 'label'"),
        ({"data": np.zeros((2, 1, 3, 3)), "label": np.zeros(3, int)}, InvalidShape, "2 integers are needed"),
        ({"data": np.zeros((2, 1, 3, 3)), "label": np.zeros(2)}, InvalidShape, "float64"),
        ({"data": np.array([{}] * 2), "label": np.zeros(2)}, InvalidArgument, "cannot be read"),
    ],
)
def test_files_that_cannot_be(
    tmp_path: Path, arrays: dict[str, Array], kind: type[Exception], reason: str
) -> None:
    np.savez(tmp_path / "n.npz", **arrays)
    with pytest.raises(kind, match=reason):
        data_net(tmp_path / "n.npz")


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "lmdb").mkdir()
    (tmp_path / "lmdb" / "data.mdb").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.h5").touch()
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    for source, kind, reason in [
        ("lmdb", InvalidArgument, r"data\.mdb is no database of LMDB: it has 0 bytes"),
        ("empty", InvalidArgument, "has no images"),
        ("empty#train", InvalidArgument, "no part #train"),
        ("data.h5", NotSupported, r"neither an \.npz file nor a folder"),
        ("broken.npz", InvalidArgument, r"cannot be read as an \.npz file"),
        ("nowhere.npz", InvalidArgument, "does not exist"),
    ]:
        with pytest.raises(kind, match=reason):
            data_net(tmp_path / source)
    with pytest.raises(InvalidArgument, match="source is missing"):
        data_net("")
    with pytest.raises(InvalidArgument, match="batch_size is missing"):
        data_net("x", batch=0)


def test_a_mean_file_of_the_wrong_kind(numbers: tuple[Path, Array], tmp_path: Path) -> None:
    (tmp_path / "mean.binaryproto").touch()
    np.save(tmp_path / "small.npy", np.zeros((2, 3, 4)))
    np.savez(tmp_path / "other.npz", middle=np.zeros((2, 3, 5)))
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    for name, kind, reason in [
        (
            "mean.binaryproto",
            InvalidArgument,
            r"mean\.binaryproto: its array has the shape \(\) and 0 values",
        ),
        ("small.npy", InvalidShape, r"\(2, 3, 4\), the images have \(2, 3, 5\)"),
        ("other.npz", InvalidArgument, "no array mean; it has middle"),
        ("broken.npy", InvalidArgument, "cannot be read"),
    ]:
        with pytest.raises(kind, match=reason):
            data_net(numbers[0], transform=f'mean_file: "{tmp_path}/{name}"')


# ---- what is shipped


def test_the_shipped_digits() -> None:
    net = load_net("package:models/lenet.prototxt", "TRAIN")
    source = net.layers[0].source
    assert source.data.shape == (4000, 1, 28, 28)
    assert source.data.dtype == np.uint8
    assert np.bincount(source.labels).tolist() == [400] * 10
    # all digits are among any 200 in a row, so the order is a shuffled one
    assert all(len(set(part.tolist())) == 10 for part in source.labels.reshape(20, 200))
    test = load_net("package:models/lenet.prototxt", "TEST").layers[0].source
    assert np.bincount(test.labels).tolist() == [100] * 10
    train_images = {image.tobytes() for image in source.data}
    assert not any(image.tobytes() in train_images for image in test.data)
