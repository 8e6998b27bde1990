"""Data sets while others look, change and delete; names and archives that nobody would make on purpose."""

from __future__ import annotations

import os
import sqlite3
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import Options, creation, index
from jitdnn.studio.data.containers import Zip
from jitdnn.studio.store import Store
from studio_pictures import classes, png, write_files

SMALL = Options(height=6, width=8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_files(tmp_path / "source", classes({"cat": 6, "dog": 6}))
    return tmp_path / "source"


def test_nobody_takes_a_data_set_for_interrupted_before_it_has_begun(
    store: Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, seen = creation.lock_folder, list[str]()

    def lock_folder(home: Path, number: int) -> int:
        with Store(home) as other:  # another request, which lists data sets now
            creation.tidy(other)
            seen.extend(row["state"] for row in other.rows("SELECT state FROM dataset"))
        return begin(home, number)

    monkeypatch.setattr(creation, "lock_folder", lock_folder)
    number = creation.create(store, "a set", str(source), SMALL)
    assert seen == []
    assert store.one("dataset", number)["state"] == "ready"  # type: ignore[index]


def test_a_data_set_that_cannot_begin_leaves_nothing(
    store: Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(creation.fcntl, "flock", full)
        with pytest.raises(OSError, match="No space"):
            creation.create(store, "a set", str(source), SMALL)
    assert store.rows("SELECT * FROM dataset") == []
    assert list((store.home / "data").iterdir()) == []
    creation.create(store, "a set", str(source), SMALL)  # whose number may be the same


def test_deleting_keeps_the_arrays_where_a_training_was_queued_meanwhile(
    store: Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = creation.create(store, "a set", str(source), SMALL)
    store.insert("run", name="queued a moment ago", dataset=number)
    monkeypatch.setattr(creation, "dependents", lambda *_: [])  # looked before
    with pytest.raises(InvalidArgument, match="has runs"):
        creation.delete(store, number)
    assert (store.data_folder(number) / "train_data.npy").is_file()
    assert store.one("dataset", number) is not None


def test_an_index_is_copied_as_it_is_between_two_changes(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    index.make(tmp_path / "old", [("train", k, f"image {k}", 1, "", k, k) for k in range(20_000)], [])
    path = tmp_path / "old" / "items.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("PRAGMA cache_size = 10")
        db.execute("BEGIN")
        db.execute("UPDATE item SET label = 0")  # more than it keeps in memory: half of it is in the file now
        ending = threading.Timer(0.3, lambda: db.execute("ROLLBACK"))
        ending.start()
        index.copy(tmp_path / "old", tmp_path / "new")
        ending.join()
    with index.opened(tmp_path / "new") as copied:
        assert index.rows(copied, "SELECT label, count(*) AS n FROM item GROUP BY label") == [
            {"label": 1, "n": 20_000}
        ]


def test_names_of_files_that_are_no_utf8_are_shown_and_read(store: Store, source: Path) -> None:
    folder = os.fsencode(source)
    picture = png(np.zeros((6, 8, 3), np.uint8))
    for number, name in enumerate((b"caf\xe9", b"caf\xe8")):
        os.mkdir(folder + b"/" + name)
        for k in range(6):
            with open(folder + b"/" + name + b"/%d.png" % (k + number), "wb") as file:
                file.write(picture)
    number = creation.create(store, "a set", str(source), SMALL)
    row = store.one("dataset", number)
    assert row is not None
    assert {"caf\\xe9", "caf\\xe8"} <= set(row["classes"])
    assert sum(sum(counts) for counts in row["counts"].values()) == sum(
        len(files) for _, _, files in os.walk(source)
    )


def test_a_damaged_file_of_an_archive_with_lzma_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as made:
        made.writestr("a/1.png", np.random.default_rng(0).bytes(4000))
        start = made.infolist()[0].header_offset
    content = bytearray(path.read_bytes())
    content[start + 60 : start + 1000] = bytes(940)
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="cannot be unpacked"):
        Zip(path).read("a/1.png")


def test_seeds_that_the_store_cannot_keep_are_refused() -> None:
    assert Options(seed=(1 << 63) - 1).seed == (1 << 63) - 1
    with pytest.raises(InvalidArgument, match="the seed is"):
        Options(seed=1 << 63)
