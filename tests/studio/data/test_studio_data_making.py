"""From folders, zip files and the digits that are shipped to arrays on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import load_net
from jitdnn.caffe.arrays import read_npz
from jitdnn.caffe.paths import find
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.studio.data import Dataset, Options, creation, index, open_dataset
from jitdnn.studio.data.built_in import DIGITS
from jitdnn.studio.data.containers import Folder
from jitdnn.studio.data.decode import CHUNK
from jitdnn.studio.data.entries import Entry
from jitdnn.studio.data.make import make
from jitdnn.studio.data.pictures import picture
from jitdnn.studio.data.readers import Pictures
from jitdnn.studio.data.sources import list_source
from jitdnn.studio.store import Store
from studio_pictures import classes, png, write_files, write_zip

SMALL = Options(height=6, width=8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def made(store: Store, path: str | Path, options: Options = SMALL) -> tuple[dict[str, object], Dataset]:
    number = creation.create(store, "a set", str(path), options)
    row = store.one("dataset", number)
    assert row is not None
    return row, open_dataset(store.home, row)


def names_of(dataset: Dataset) -> dict[tuple[str, int], str]:
    with index.opened(dataset.folder) as db:
        return {(row["part"], row["place"]): row["name"] for row in db.execute("SELECT * FROM item")}


def test_the_digits(store: Store) -> None:
    row, dataset = made(store, DIGITS)
    assert (row["state"], row["train"], row["val"], row["test"]) == ("ready", 4000, 500, 500)
    assert (row["shape"], row["task"], row["source"]) == ([1, 28, 28], "classification", "built in")
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == [str(digit) for digit in range(10)]
    arrays = read_npz(find(DIGITS))
    pixels = {
        part: np.sort(dataset.images(part).reshape(-1, 784).astype(int).sum(1)) for part in dataset.parts
    }
    np.testing.assert_array_equal(
        pixels["train"], np.sort(arrays["train_data"].reshape(-1, 784).astype(int).sum(1))
    )
    tested = np.sort(np.concatenate([pixels["val"], pixels["test"]]))
    np.testing.assert_array_equal(tested, np.sort(arrays["test_data"].reshape(-1, 784).astype(int).sum(1)))
    assert dataset.histogram("val") == [50] * 10 == dataset.histogram("test") == row["counts"]["val"]  # type: ignore[index]
    np.testing.assert_allclose(dataset.mean, arrays["train_data"].mean(0), rtol=1e-6)
    # neighbours are of many classes, not of one: the order was drawn
    assert len(set(dataset.labels("train")[:32].tolist())) >= 8
    assert isinstance(dataset.images("train"), np.memmap)
    assert dataset.evaluation_part == "test"
    net = load_net(
        f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
                     data_param {{ source: "{dataset.source("val")}" batch_size: 16 }} }}"""
    )
    outputs = net.forward()
    np.testing.assert_array_equal(outputs["data"], dataset.images("val")[:16])
    np.testing.assert_array_equal(outputs["label"], dataset.labels("val")[:16])


@pytest.mark.parametrize("form", ["folder", "zip", "wrapped zip"])
def test_each_picture_is_where_the_index_says(store: Store, tmp_path: Path, form: str) -> None:
    files = classes({"10 ducks": 20, "9 änten <b>": 10}, prefix="all/" if form == "wrapped zip" else "")
    source = write_files(tmp_path / "p", files) if form == "folder" else write_zip(tmp_path / "p.zip", files)
    row, dataset = made(store, source)
    assert dataset.classes == ["9 änten <b>", "10 ducks"]
    assert {part: dataset.count(part) for part in dataset.parts} == {"train": 24, "val": 3, "test": 3}
    assert dataset.histogram("test") == [1, 2]
    names = names_of(dataset)
    assert sorted(names.values()) == sorted(files)
    for (part, place), name in names.items():
        np.testing.assert_array_equal(dataset.images(part)[place], picture(files[name], SMALL))
        assert dataset.classes[dataset.labels(part)[place]] == name.split("/")[-2]
    about = json.loads((dataset.folder / "about.json").read_text())
    assert about["options"]["height"] == 6
    assert row["bytes"] == sum(file.stat().st_size for file in dataset.folder.iterdir())


def test_parts_of_their_own_are_kept(store: Store, tmp_path: Path) -> None:
    files = classes({"a": 8, "b": 8}, "x/Train/") | classes({"a": 2, "b": 3}, "x/validation/", 100)
    _, dataset = made(store, write_files(tmp_path / "p", files), Options(8, 8, test=25))
    counts = {part: dataset.count(part) for part in dataset.parts}
    assert counts == {"train": 12, "val": 5, "test": 4}  # what was not given is taken from train
    for (part, _), name in names_of(dataset).items():
        assert (part == "val") == ("validation" in name)


def test_files_that_cannot_be_read_are_named_and_left_out(store: Store, tmp_path: Path) -> None:
    files = classes({"a": 30, "b": 30})
    bad = ["a/3.png", "a/29.png", "b/0.png", "b/17.png"]
    files |= {"a/3.png": b"", "a/29.png": b"no picture", "b/0.png": files["b/0.png"][:90]}
    files["b/17.png"] = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    source = write_files(tmp_path / "p", {**files, "b/notes.txt": b"!", "b/drawing.svg": b"<svg/>"})
    row, dataset = made(store, source)
    assert sum(dataset.count(part) for part in dataset.parts) == 56
    names = names_of(dataset)
    assert sorted(names.values()) == sorted(set(files) - set(bad))
    for (part, place), name in names.items():
        np.testing.assert_array_equal(dataset.images(part)[place], picture(files[name], SMALL))
        assert dataset.classes[dataset.labels(part)[place]] == name[0]
    with index.opened(dataset.folder) as db:
        skipped = {entry["name"]: entry["reason"] for entry in db.execute("SELECT * FROM skipped")}
    assert sorted(skipped) == sorted(bad)
    assert all("cannot be read as a picture" in reason for reason in skipped.values())
    notes = " ".join(row["notes"])  # type: ignore[arg-type]
    assert "4 files cannot be read" in notes
    assert "b/17.png" in notes
    assert "1 with .txt" in notes
    assert "1 with .svg" in notes


def test_processes_make_what_one_makes(tmp_path: Path) -> None:
    files = classes({"a": CHUNK, "b": CHUNK + 5})
    files["b/2.png"] = b"broken"
    listing = list_source(str(write_zip(tmp_path / "p.zip", files)), SMALL)
    told: list[int] = []
    for name, processes in (("one", 0), ("two", 2)):
        (tmp_path / name).mkdir()
        make(tmp_path / name, listing, SMALL, lambda done, *_: told.append(done), processes=processes)
    assert told[-1] == len(files)
    for file in sorted((tmp_path / "one").iterdir()):
        if file.name != "items.sqlite":
            assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


class Deadly(Pictures):
    """A decoder that a file kills."""

    def read(self, entry: Entry) -> tuple[Any, Any]:
        if entry.name == "a/3.png":
            os._exit(11)
        return super().read(entry)


def test_a_file_that_kills_its_decoder_is_left_out(tmp_path: Path) -> None:
    files = classes({"a": 8, "b": 8})
    listing = list_source(str(write_files(tmp_path / "p", files)), SMALL)
    listing.reader = Deadly(Folder(tmp_path / "p"), SMALL)
    (tmp_path / "out").mkdir()
    found = make(tmp_path / "out", listing, SMALL, processes=1)
    assert found.skipped == [("a/3.png", "the process that decoded it died of it")]
    dataset = Dataset(tmp_path / "out", "classification", ["a", "b"])
    names = names_of(dataset)
    assert len(names) == 15
    for (part, place), name in names.items():
        np.testing.assert_array_equal(dataset.images(part)[place], picture(files[name], SMALL))


def test_processes_that_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_source(str(write_files(tmp_path / "p", classes({"a": 2, "b": 2}))), SMALL)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(
        "jitdnn.studio.data.decode._begin", os._exit
    )  # with a folder for its status: it raises
    with pytest.raises(DeviceError, match="die as they start"):
        make(tmp_path / "out", listing, SMALL, processes=1)


def test_the_seed_alone_draws_the_split(store: Store, tmp_path: Path) -> None:
    source = write_files(tmp_path / "p", classes({"a": 30, "b": 30}))
    found = [names_of(made(store, source, Options(6, 8, seed=seed))[1]) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no pictures"),
        ({"a/1.txt": b"x"}, "has no pictures"),
        (classes({"a": 5}), "only one class, 'a'"),
        ({"1.png": png(1), "2.png": png(2)}, "no classes"),
        ({"a/1.png": png(1)}, "only one image"),
        (
            {"a/1.png": b"", "b/1.png": b"", "b/2.png": b""},
            "none of the images to train with can be read: a/1",
        ),
    ],
)
def test_what_makes_no_data_set_leaves_nothing(
    store: Store, tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    (tmp_path / "p").mkdir()
    with pytest.raises(InvalidArgument, match=message):
        creation.create(store, "x", str(write_files(tmp_path / "p", files)), SMALL)
    assert store.rows("SELECT * FROM dataset") == []
    assert list((store.home / "data").iterdir()) == []


def test_a_disk_that_is_too_small(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.studio.data.space.SPARE", 1 << 60)
    with pytest.raises(InvalidArgument, match="are free where the studio keeps its data"):
        made(store, write_files(tmp_path / "p", classes({"a": 3, "b": 3})))


def wait_for(store: Store, number: int, state: str) -> dict[str, object]:
    for _ in range(400):
        row = store.one("dataset", number)
        assert row is not None
        if row["state"] == state:
            return row
        time.sleep(0.05)
    raise AssertionError(f"it is {row['state']}: {row['message']}")


def test_a_process_of_its_own_makes_it(store: Store, tmp_path: Path) -> None:
    source = write_files(tmp_path / "p", classes({"a": 5, "b": 5}))
    number = creation.begin(store, "mine", str(source), SMALL)
    creation.tidy(store)  # does not take it for dead
    row = wait_for(store, number, "ready")
    assert open_dataset(store.home, row).count("train") == row["train"]
    deadline = time.monotonic() + 20  # the process tidies up when the row says that it is ready
    while creation.unfinished_folder(store.home, number).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    failing = creation.begin(store, "nothing", str(tmp_path / "none"), SMALL)
    assert "neither a folder nor a file" in str(wait_for(store, failing, "failed")["message"])
    assert {entry.name for entry in (store.home / "data").iterdir()} == {str(number)}


@pytest.mark.parametrize("way", ["kill", "cancel"])
def test_what_is_ended_in_the_middle_leaves_nothing(store: Store, tmp_path: Path, way: str) -> None:
    number = store.insert("dataset", name="x", state="making", settings={"path": str(tmp_path), "height": 8})
    lock = creation.lock_folder(store.home, number)
    # stands still in the middle, as one with a million pictures would
    script = """
import sys, time, jitdnn.studio.data.creation as c
from jitdnn.studio.store import Store
def make(folder, listing, options, tell, is_cancelled):
    (folder / "train_data.npy").write_bytes(b"half")
    print("go", flush=True)
    while not is_cancelled():
        time.sleep(0.01)
    raise c.Cancelled
c.make, c.list_source = make, lambda *_: None
c.run(Store(sys.argv[1]), int(sys.argv[2]))
"""
    command = [sys.executable, "-c", script, str(store.home), str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[lock])
    os.close(lock)
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    creation.tidy(store)
    assert store.one("dataset", number)["state"] == "making"  # type: ignore[index]
    if way == "kill":
        process.send_signal(signal.SIGKILL)
    else:
        creation.cancel(store, number)
    process.wait(20)
    process.stdout.close()
    creation.tidy(store)
    row = store.one("dataset", number)
    assert row is not None
    assert row["state"] == ("interrupted" if way == "kill" else "cancelled")
    assert list((store.home / "data").iterdir()) == []
    with pytest.raises(InvalidArgument, match="has no folder"):
        open_dataset(store.home, row)


def test_deleting_tells_who_needs_it(store: Store, tmp_path: Path) -> None:
    row, dataset = made(store, write_files(tmp_path / "p", classes({"a": 3, "b": 3})))
    number = int(str(row["id"]))
    run = store.insert("run", name="LeNet", dataset=number)
    with pytest.raises(InvalidArgument, match=rf"1 runs were trained on it.*{run} \(LeNet\)"):
        creation.delete(store, number)
    assert dataset.folder.is_dir()
    with store.transaction():
        store.rows("DELETE FROM run")
    creation.delete(store, number)
    assert not dataset.folder.exists()
    assert store.one("dataset", number) is None
