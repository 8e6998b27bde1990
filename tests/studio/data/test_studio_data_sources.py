"""Tables, arrays, databases, masks and boxes: what is found in them, and what is stored."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datum import encoded_datum, image_datum
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import Dataset, Options, index
from jitdnn.studio.data.make import make
from jitdnn.studio.data.pictures import picture
from jitdnn.studio.data.sources import list_source
from studio_pictures import classes, png, write_files, write_zip

SMALL = Options(height=6, width=8, val=25, test=25)


def made(path: Path, options: Options, folder: Path) -> Dataset:
    """The data set, and in it, by name, whatever the split."""
    listing = list_source(str(path), options)
    folder.mkdir()
    make(folder, listing, options)
    return Dataset(folder, listing.task, listing.classes)


def by_name(dataset: Dataset) -> dict[str, tuple[Any, Any]]:
    with index.opened(dataset.folder) as db:
        rows = db.execute("SELECT part, place, name FROM item").fetchall()
    return {
        r["name"]: (dataset.images(r["part"])[r["place"]], dataset.labels(r["part"])[r["place"]])
        for r in rows
    }


def table(rows: list[list[Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue().encode()


# ---- tables


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("has_names", [True, False])
def test_a_table_of_pictures_and_classes(tmp_path: Path, delimiter: str, has_names: bool) -> None:
    files = {f"pictures/{k}.png": png(k) for k in range(12)}
    rows = [[f"{k}.png", ["cat", "dog"][k % 2]] for k in range(12)] + [["gone.png", "cat"]]
    files["labels.csv"] = table([["file", "label"], *rows] if has_names else rows, delimiter)
    listing = list_source(str(write_files(tmp_path / "p", files)), SMALL)
    assert listing.task == "classification"
    assert listing.classes == ["cat", "dog"]
    assert [name for name, _ in listing.skipped] == ["gone.png"]
    found = by_name(made(tmp_path / "p", SMALL, tmp_path / "out"))
    assert len(found) == 12
    for name, (image, label) in found.items():
        np.testing.assert_array_equal(image, picture(files[f"pictures/{name}"], SMALL))
        assert label == int(name.split(".")[0]) % 2


def test_parts_and_groups_of_a_table(tmp_path: Path) -> None:
    rows = [[f"{k}.png", f"c{k % 3}", "train" if k < 30 else "test", f"person {k // 5}"] for k in range(40)]
    files = {f"{k}.png": png(k) for k in range(40)}
    files["t.csv"] = table([["path", "class", "split", "person"], *rows])
    source = write_zip(tmp_path / "p.zip", files)
    options = Options(6, 6, val=20, group="person")
    dataset = made(source, options, tmp_path / "out")
    with index.opened(dataset.folder) as db:
        items = db.execute("SELECT * FROM item").fetchall()
    parts: dict[str, set[str]] = {}
    for item in items:
        assert (item["part"] == "test") == (int(item["name"].split(".")[0]) >= 30)
        parts.setdefault(item["grp"], set()).add(item["part"])
    assert all(len(found) == 1 for found in parts.values())
    assert dataset.count("val") == 5


def test_several_labels_and_numbers(tmp_path: Path) -> None:
    files = {f"{k}.png": png(k) for k in range(8)}
    bits = [[f"{k}.png", k % 2, k // 4, 1] for k in range(8)]
    tags = [[f"{k}.png", ["sea; sky", "sky", "", "sea|land"][k % 4]] for k in range(8)]
    angles = [[f"{k}.png", k * 0.5, -k] for k in range(8)]
    for name, rows, task, columns, wanted in [
        ("bits", [["file", "red", "big", "old"], *bits], "multi-label", ["red", "big", "old"], bits[5][1:]),
        ("tags", [["file", "tags"], *tags], "multi-label", ["land", "sea", "sky"], [0, 0, 1]),
        ("angles", [["file", "x", "y"], *angles], "regression", ["x", "y"], [2.5, -5]),
        ("one", [["file", "age"], *[row[:2] for row in angles]], "regression", ["age"], [2.5]),
    ]:
        source = write_files(tmp_path / name, {**files, "t.csv": table(rows)})
        listing = list_source(str(source), SMALL)
        assert listing.task == task, name
        assert listing.classes == columns
        dataset = made(source, SMALL, tmp_path / f"{name}-out")
        label = by_name(dataset)["5.png"][1]
        assert label.dtype == np.float32
        assert label.tolist() == wanted
        if task == "multi-label":
            total = np.sum([dataset.histogram(part) for part in dataset.parts], axis=0)
            rows_of = [row[1:] for row in bits] if name == "bits" else None
            assert total.tolist() == (np.sum(rows_of, axis=0).tolist() if rows_of else [2, 4, 4])


def test_rows_of_numbers(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((30, 4)).round(3)
    rows = [[*row, "abc"[k % 3], "note"] for k, row in enumerate(values.tolist())]
    file = tmp_path / "iris.csv"
    file.write_bytes(table([["a", "b", "c", "d", "species", "comment"], *rows]))
    listing = list_source(str(file), SMALL)
    assert (listing.task, listing.classes, listing.columns) == (
        "classification",
        ["a", "b", "c"],
        ["a", "b", "c", "d"],
    )
    assert "comment" in listing.notes[0]
    dataset = made(file, SMALL, tmp_path / "out")
    assert dataset.shape == (1, 1, 4)
    for name, (row, label) in by_name(dataset).items():
        k = int(name.split()[1]) - 1
        np.testing.assert_allclose(row[0, 0], values[k], rtol=1e-6)
        assert label == k % 3
    listing = list_source(str(file), Options(task="regression", labels="d"))
    assert (listing.task, listing.columns) == ("regression", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "columns"),
        (b"a,b\n", {}, "has no rows"),
        (b"a,b\n1,2\n3\n", {}, "line 3: 1 cells, and the first line has 2"),
        (b'a,b\n"x', {}, "no table"),
        (b"name,kind\nx,y\nz,w\n", {}, "no columns of numbers"),
        (b"a,b\n1,2\n3,4\n", {"labels": "c"}, "no column 'c'"),
        (b"file,label\na.png,x\n", {}, "names pictures: pack it with them"),
        (b"a,b\n1,x\n2,y\n", {"labels": "b", "task": "regression"}, "'x' is none"),
        (b"a,b,c\n1,2,0\n2,1,1\n", {"labels": "b,c", "task": "multi-label"}, "0 and 1 only"),
    ],
)
def test_tables_that_cannot_be(tmp_path: Path, content: bytes, options: dict[str, Any], message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        list_source(str(tmp_path / "t.csv"), Options(**options))


def test_a_table_that_leads_out_finds_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"secret.png": png(1), "p/a.png": png(2), "p/b.png": png(3)})
    rows = [["file", "label"], ["../secret.png", "x"], [str(tmp_path / "secret.png"), "y"], ["a.png", "x"]]
    (tmp_path / "p" / "t.csv").write_bytes(table(rows))
    listing = list_source(str(tmp_path / "p"), SMALL)
    assert [entry.key for entry in listing.entries] == ["a.png"]


# ---- arrays


def test_arrays_by_their_names(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    colour = generator.integers(0, 256, (10, 5, 7, 3), np.uint8)
    labels = np.arange(7)[:, None] % 2
    np.savez(tmp_path / "keras.npz", x_train=colour[:7], y_train=labels, x_test=colour[7:], y_test=[0, 1, 1])
    dataset = made(tmp_path / "keras.npz", SMALL, tmp_path / "keras")
    assert dataset.shape == (3, 5, 7)
    assert dataset.count("test") == 3
    found = by_name(dataset)
    np.testing.assert_array_equal(found["image 8"][0], colour[8][..., ::-1].transpose(2, 0, 1))
    assert found["image 8"][1] == 1
    planar = generator.integers(0, 256, (9, 3, 4, 5), np.uint8)
    np.savez(tmp_path / "caffe.npz", data=planar, label=np.arange(9) % 3)
    dataset = made(tmp_path / "caffe.npz", SMALL, tmp_path / "caffe")
    np.testing.assert_array_equal(by_name(dataset)["image 4"][0], planar[4])
    assert dataset.classes == ["0", "1", "2"]


def test_signals_regression_and_masks_of_arrays(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    signals = generator.standard_normal((12, 2, 50)).astype(np.float32)
    masks = generator.integers(0, 4, (12, 6, 6))
    for name, data, labels, task, shape in [
        ("signals", signals, np.arange(12) % 2, "classification", (2, 1, 50)),
        ("rows", signals[:, 0], generator.standard_normal(12), "regression", (1, 1, 50)),
        ("several", signals[:, 0], generator.integers(0, 2, (12, 3)), "multi-label", (1, 1, 50)),
        ("masks", generator.integers(0, 256, (12, 6, 6), np.uint8), masks, "segmentation", (1, 6, 6)),
    ]:
        np.savez(tmp_path / f"{name}.npz", x=data, y=labels)
        dataset = made(tmp_path / f"{name}.npz", SMALL, tmp_path / name)
        assert (dataset.task, dataset.shape) == (task, shape)
        image, label = by_name(dataset)["image 5"]
        np.testing.assert_array_equal(image.ravel(), data[5].ravel())
        np.testing.assert_allclose(
            label, np.atleast_1d(labels[5]) if task == "regression" else labels[5], rtol=1e-6
        )
    total = np.sum([dataset.histogram(part) for part in dataset.parts], axis=0)
    assert total.tolist() == np.bincount(masks.ravel()).tolist()


def test_arrays_that_cannot_be(tmp_path: Path) -> None:
    names = ["x_train", "y_train", "x_test", "y_test"]
    for name, arrays, message in [
        ("names", {"foo": np.zeros(3)}, "has the arrays foo; needed are data and label"),
        ("rows", {"x": np.zeros((3, 4)), "y": np.zeros(2)}, "3 images and 2 labels"),
        ("text", {"x": np.array(["a"] * 3), "y": np.zeros(3)}, "only numbers are read"),
        ("flat", {"x": np.zeros(3), "y": np.zeros(3)}, r"shape \(3,\)"),
        ("complex", {"x": np.zeros((3, 4)), "y": np.array([0, 1, 1j])}, r"complex128 of shape \(3,\)"),
        ("scalar", {"x": np.zeros((3, 4)), "y": np.array(3)}, r"of shape \(\): one number an image"),
        ("none", {"x": np.zeros((3, 4)), "y": np.zeros((3, 0))}, r"of shape \(3, 0\)"),
        ("below", {"x": np.zeros((3, 4)), "y": np.array([0, 1, -1])}, "numbered from 0 on"),
        (
            "parts",
            dict(zip(names, [np.zeros((3, 4)), [0, 1, 1], np.zeros((3, 5)), [0, 1, 1]], strict=True)),
            "another",
        ),
    ]:
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(InvalidArgument, match=message):
            list_source(str(tmp_path / f"{name}.npz"), SMALL)
    labels = np.array([0.5, np.nan, 1.5, np.inf, 2.5])
    np.savez(tmp_path / "nan.npz", x=np.zeros((5, 4)), y=labels)
    kept = made(tmp_path / "nan.npz", SMALL, tmp_path / "nan")
    assert sorted(y for part in kept.parts for y in kept.labels(part).ravel().tolist()) == [0.5, 1.5, 2.5]
    np.savez(tmp_path / "objects.npz", data=np.array([{}]), label=np.zeros(1))
    with pytest.raises(InvalidArgument, match="no Python objects"):
        list_source(str(tmp_path / "objects.npz"), SMALL)


# ---- databases


def test_databases_of_caffe(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 6, 8), np.uint8)
    for part, chosen in (("train", range(14)), ("val", range(14, 20))):
        with new_database(tmp_path / "p" / f"x_{part}_lmdb", "LMDB") as writer:
            for k in chosen:
                content = encoded_datum(png(k), k % 3) if k == 5 else image_datum(images[k], k % 3)
                writer.put(f"{k:08d}_{k}.png".encode(), b"broken" if k == 7 else content)
    options = Options(6, 8, test=20)
    dataset = made(tmp_path / "p", options, tmp_path / "out")
    assert {part: dataset.count(part) for part in dataset.parts} == {"train": 10, "val": 6, "test": 3}
    for name, (image, label) in by_name(dataset).items():
        k = int(name.rsplit("_", 1)[1].split(".")[0])
        np.testing.assert_array_equal(image, picture(png(5), options) if k == 5 else images[k])
        assert label == k % 3
    one = list_source(str(tmp_path / "p" / "x_val_lmdb"), options)
    assert len(one.entries) == 6
    assert {entry.part for entry in one.entries} == {None}


# ---- masks


def mask_file(values: Any, mode: str = "L") -> bytes:
    file = io.BytesIO()
    if mode == "P":
        image = Image.fromarray(np.asarray(values, np.uint8), "P")
        image.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0] + [0] * 700)
    else:
        image = Image.fromarray(np.asarray(values, np.uint8))
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("form", ["values", "palette", "colours", "black and white"])
def test_masks(tmp_path: Path, form: str) -> None:
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 2 if form == "black and white" else 3, (8, 9, 12))
    colours = np.array([[0, 0, 0], [10, 20, 30], [200, 100, 0]])
    stored = {"values": masks, "palette": masks, "colours": colours[masks], "black and white": masks * 255}[
        form
    ]
    files: dict[str, bytes] = {}
    for k in range(8):
        part = "train" if k < 5 else "val"
        files[f"set/{part}/images/{k}.png"] = png(k)
        files[f"set/{part}/masks/{k}.png"] = mask_file(stored[k], "P" if form == "palette" else "L")
    files["set/train/images/alone.png"] = png(99)
    if form == "colours":
        files["set/label_colors.txt"] = b"0 0 0 void\n10 20 30 the road\n200 100 0 car\n"
    source = write_zip(tmp_path / "p.zip", files)
    options = Options(9, 12, test=0)
    listing = list_source(str(source), options)
    assert listing.task == "segmentation"
    assert any("have no mask" in note for note in listing.notes)
    if form == "colours":
        assert listing.classes == ["void", "the road", "car"]
    dataset = made(source, options, tmp_path / "out")
    assert (dataset.count("train"), dataset.count("val")) == (5, 3)
    for name, (image, label) in by_name(dataset).items():
        k = int(name.rsplit("/", 1)[1].split(".")[0])
        np.testing.assert_array_equal(image, picture(files[name], options))
        np.testing.assert_array_equal(label, masks[k])


@pytest.mark.parametrize("mode", ["squash", "crop", "fill", "half"])
def test_masks_and_boxes_go_where_the_picture_goes(tmp_path: Path, mode: str) -> None:
    # a white rectangle is what mask and box say, and is there in the picture that comes out
    image, mask = np.zeros((40, 80, 3), np.uint8), np.zeros((40, 80), np.uint8)
    image[8:32, 30:50], mask[8:32, 30:50] = 255, 1
    pictures = {f"images/{k}.png": mask_file(image) for k in range(2)}
    masks = pictures | {f"masks/{k}.png": mask_file(mask) for k in range(2)}
    boxes = pictures | {
        f"labels/{k}.txt": f"0 {40 / 80} {20 / 40} {20 / 80} {24 / 40}\n".encode() for k in range(2)
    }
    options = Options(32, 32, mode=mode, grey=True, val=0, test=0)
    dataset = made(write_files(tmp_path / "m", masks), options, tmp_path / "a")
    picture_, label = dataset.images("train")[0, 0], dataset.labels("train")[0]
    assert ((picture_ > 127) == (label == 1)).mean() > 0.97
    assert (label == 255).any() == (mode in ("fill", "half"))
    dataset = made(write_files(tmp_path / "b", boxes), options, tmp_path / "c")
    (kind, *corners), rows = (
        dataset.labels("train")[0, 0].tolist(),
        np.argwhere(dataset.images("train")[0, 0] > 127),
    )
    assert kind == 0
    found = [
        rows[:, 1].min() / 32,
        rows[:, 0].min() / 32,
        (rows[:, 1].max() + 1) / 32,
        (rows[:, 0].max() + 1) / 32,
    ]
    np.testing.assert_allclose(corners, found, atol=1 / 32)


def test_masks_that_cannot_be(tmp_path: Path) -> None:
    good = {f"images/{k}.png": png(k) for k in range(6)}
    good |= {f"masks/{k}.png": mask_file(np.eye(9, 12)) for k in range(6)}
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3))
    source = write_files(tmp_path / "a", {**good, "masks/1.png": mask_file(noise)})
    with pytest.raises(InvalidArgument, match="JPEG blurs them"):
        list_source(str(source), SMALL)
    source = write_files(tmp_path / "b", {**good, "masks/1.png": mask_file(np.eye(5))})
    dataset = made(source, Options(8, 8, val=0, test=0), tmp_path / "out")
    assert dataset.count("train") == 5
    with index.opened(dataset.folder) as db:
        reason = db.execute("SELECT reason FROM skipped").fetchone()[0]
    assert "has 5 x 5 pixels, and it has 12 x 9" in reason


# ---- boxes


KITTI = """Car 0.00 0 -1.57 3.0 2.0 9.0 7.0 1.5 1.6 3.9 1.0 1.7 20.0 -1.6
DontCare -1 -1 -10 0.0 0.0 5.0 5.0 -1 -1 -1 -1000 -1000 -1000 -10
Pedestrian 0.00 0 0.2 0.0 0.0 6.0 4.5 1.7 0.5 0.8 1.0 1.7 20.0 0.3
"""


def test_boxes_of_kitti_yolo_and_tables(tmp_path: Path) -> None:
    pictures = {f"image_2/{k}.png": png(k) for k in range(4)}
    kitti = {**pictures, "label_2/0.txt": KITTI.encode(), "label_2/1.txt": b"", "label_2/2.txt": b"Car 1 2\n"}
    yolo = {f"images/train/{k}.png": png(k) for k in range(4)} | {
        "labels/train/0.txt": b"1 0.5 0.5 0.5 0.5555555\n0 0.25 0.25 0.5 0.5\n",
        "data.yaml": b"train: x\nnames: ['walker', 'car']\nnc: 2\n",
    }
    rows = [["0.png", 3, 2, 9, 7, "Car"], ["0.png", 0, 0, 6, 4.5, "Pedestrian"], ["1.png", 0, 0, 0, 0, "Car"]]
    rows.append(["3.png", 1, 1, 5, 5, "Car"])
    of_table = {f"{k}.png": png(k) for k in range(4)}
    of_table["b.csv"] = table([["file", "xmin", "ymin", "xmax", "ymax", "class"], *rows])
    options = Options(9, 12, val=0, test=0)
    car, walker = [3 / 12, 2 / 9, 9 / 12, 7 / 9], [0, 0, 6 / 12, 4.5 / 9]
    for name, files, key, wanted in [
        ("kitti", kitti, "image_2/0.png", {"Car": car, "Pedestrian": walker}),
        ("yolo", yolo, "images/train/0.png", {"car": car, "walker": walker}),
        ("table", of_table, "0.png", {"Car": car, "Pedestrian": walker}),
    ]:
        source = write_files(tmp_path / name, files)
        dataset = made(source, options, tmp_path / f"{name}-out")
        assert dataset.task == "detection"
        assert sorted(dataset.classes) == sorted(wanted)
        found = by_name(dataset)
        boxes = {dataset.classes[int(box[0])]: box[1:].tolist() for box in found[key][1]}
        assert sorted(boxes) == sorted(wanted)
        for label, corners in wanted.items():
            np.testing.assert_allclose(boxes[label], corners, atol=1e-5)
        assert sum(sum(dataset.histogram(part)) for part in dataset.parts) == (3 if name == "table" else 2)
        if name == "kitti":
            assert "image_2/2.png" not in found  # its labels cannot be read
            assert (found["image_2/1.png"][1] == -1).all()


@pytest.mark.parametrize(
    "line", ["0 0.5 0.5 0 0.1", "0 nan 0.5 0.1 0.1", "x 0.5 0.5 0.1 0.1", "-1 0.5 0.5 0.1 0.1"]
)
def test_boxes_that_cannot_be(tmp_path: Path, line: str) -> None:
    files = {"images/0.png": png(0), "images/1.png": png(1), "labels/0.txt": b"0 0.5 0.5 0.1 0.1\n"}
    files["labels/1.txt"] = f"0 0.5 0.5 0.1 0.1\n{line}\n".encode()
    listing = list_source(str(write_files(tmp_path / "p", files)), SMALL)
    assert len(listing.entries) == 1
    assert "labels/1.txt, line 2" in listing.skipped[0][1]


def test_a_task_that_is_asked_for_and_not_there(tmp_path: Path) -> None:
    source = write_files(tmp_path / "p", classes({"a": 2, "b": 2}))
    tasks = {"segmentation": "folders images and masks", "detection": "YOLO", "regression": "needs a table"}
    for task, message in tasks.items():
        with pytest.raises(InvalidArgument, match=message):
            list_source(str(source), Options(task=task))
