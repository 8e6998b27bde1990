"""Labels are mended: each change is written down and can be undone; a new version of the data set has them in its
arrays.

The arrays of a data set never change, so that what was trained on it stays what it was. A version shares the
pictures of the one before on the disk, by a second name of the same file, unless some were left out.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import arrays, creation, index
from jitdnn.studio.data.dataset import MEAN, PARTS, Dataset, mean_image, open_dataset, read_about
from jitdnn.studio.data.make import Made, sealed, write_about
from jitdnn.studio.store import Row, Store, data_folder

#: labels that are no class
UNKNOWN: Final = -1
LEFT_OUT: Final = -2


def edit(dataset: Dataset, part: str, place: int, label: int) -> None:
    """Give an image another class, UNKNOWN, or LEFT_OUT. Raises InvalidArgument for what is not there."""
    if dataset.task != "classification":
        raise InvalidArgument(
            f"labels of {dataset.task} cannot be changed here: change them where they come from"
        )
    if not LEFT_OUT <= label < len(dataset.classes):
        raise InvalidArgument(f"there is no class {label}: there are {len(dataset.classes)}")
    with index.opened(dataset.folder, is_written=True) as db:
        row = db.execute("SELECT label FROM item WHERE part = ? AND place = ?", (part, place)).fetchone()
        if row is None:
            raise InvalidArgument(f"there is no image {place} in part {part!r}")
        if row["label"] == label:
            return
        _change(db, (part, place), row["label"], label)


def leave_out_copies(dataset: Dataset) -> int:
    """Leave out what is there twice: of two alike the one in train, if the other is not, else the second.
    Return how many.
    """
    with index.opened(dataset.folder, is_written=True) as db:
        gone: set[tuple[str, int]] = set()
        for row in db.execute("SELECT * FROM twin ORDER BY distance").fetchall():
            a, b = (row["part_a"], row["place_a"]), (row["part_b"], row["place_b"])
            if a in gone or b in gone:
                continue
            chosen = a if a[0] == "train" and b[0] != "train" else b
            label = db.execute("SELECT label FROM item WHERE part = ? AND place = ?", chosen).fetchone()[
                "label"
            ]
            if label != LEFT_OUT:
                _change(db, chosen, label, LEFT_OUT)
            gone.add(chosen)
        return len(gone)


def _change(db: sqlite3.Connection, image: tuple[str, int], before: int | None, after: int) -> None:
    """Write a change down, and make it in the index."""
    db.execute(
        "INSERT INTO edit (part, place, before, after, time) VALUES (?, ?, ?, ?, ?)",
        (*image, before, after, time.time()),
    )
    _set(db, *image, after)


def undo(dataset: Dataset, number: int | None = None) -> bool:
    """Take a change back: the last one, or the one of that number and all later ones of its image. False if
    there is none.
    """
    with index.opened(dataset.folder, is_written=True) as db:
        if number is None:
            row = db.execute("SELECT * FROM edit WHERE NOT undone ORDER BY id DESC LIMIT 1").fetchone()
        else:
            row = db.execute("SELECT * FROM edit WHERE NOT undone AND id = ?", (number,)).fetchone()
        if row is None:
            return False
        where = "part = ? AND place = ? AND id >= ?"
        db.execute(f"UPDATE edit SET undone = 1 WHERE {where}", (row["part"], row["place"], row["id"]))
        _set(db, row["part"], row["place"], row["before"])
        return True


def edits(dataset: Dataset, count: int = 200) -> dict[str, Any]:
    """`total` of images that are changed, and the last `changes`: id, part, place, name, before, after, time."""
    with index.opened(dataset.folder) as db:
        total = db.execute(
            "SELECT count(DISTINCT part || ' ' || place) FROM edit WHERE NOT undone"
        ).fetchone()[0]
        sql = """SELECT edit.*, item.name FROM edit JOIN item USING (part, place)
                 WHERE NOT undone ORDER BY edit.id DESC LIMIT ?"""
        return {"total": int(total), "changes": index.rows(db, sql, (count,))}


def unlabelled(dataset: Dataset, part: str = "", after: int = -1) -> tuple[str, int] | None:
    """The next image without a label: its part and place, None where all have one."""
    with index.opened(dataset.folder) as db:
        for name in (part, *PARTS) if part else PARTS:
            low = after if name == part else -1
            sql = "SELECT place FROM item WHERE part = ? AND label = -1 AND place > ? ORDER BY place LIMIT 1"
            row = db.execute(sql, (name, low)).fetchone()
            if row is not None:
                return name, int(row["place"])
    return None


def new_version(store: Store, number: int, name: str = "") -> int:
    """Make a data set with all changes in its arrays, without what was left out and what has no label; return
    its number.
    """
    row = store.one("dataset", number)
    if row is None:
        raise InvalidArgument(f"there is no data set {number}")
    old = open_dataset(store.home, row)
    if old.task != "classification":
        raise InvalidArgument(f"a data set of {old.task} has no labels that could have been changed here")
    made, lock = creation.claimed(store, lambda: creation.insert_version(store, row, name))
    folder = creation.unfinished_folder(store.home, made)
    try:
        inner = folder / "made"
        inner.mkdir()
        found = _apply(old, inner)
        os.rename(inner, data_folder(store.home, made))
        store.update("dataset", made, **creation.values_of(found, f"version of {number}", row))
    except BaseException:
        _forget(store, made)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    return made


def _forget(store: Store, number: int) -> None:
    store.rows("DELETE FROM dataset WHERE id = ?", number)


def _set(db: sqlite3.Connection, part: str, place: int, label: int) -> None:
    db.execute("UPDATE item SET label = ? WHERE part = ? AND place = ?", (label, part, place))


def _apply(old: Dataset, folder: Path) -> Made:
    """Write the new version into an empty folder."""
    index.copy(old.folder, folder)
    gone: dict[str, int] = {}
    with index.opened(folder, is_written=True) as db:
        for part in old.parts:
            labels = np.asarray(old.labels(part)).copy()
            for row in db.execute("SELECT place, label FROM item WHERE part = ?", (part,)):
                labels[row["place"]] = row["label"]
            kept = np.flatnonzero(labels >= 0)
            gone[part] = len(labels) - len(kept)
            if not len(kept):
                continue
            np.save(folder / f"{part}_label.npy", labels[kept])
            _share(old, part, kept, folder)
            if gone[part]:
                _renumber(db, part, kept)
        for part in old.parts:  # parts of which nothing is left
            if not (folder / f"{part}_label.npy").exists():
                db.execute("DELETE FROM item WHERE part = ?", (part,))
                db.execute("DELETE FROM twin WHERE part_a = ? OR part_b = ?", (part, part))
        db.execute("DELETE FROM edit")
    dataset = Dataset(folder, old.task, old.classes)
    if "train" not in dataset.parts:
        raise InvalidArgument("no image to train with is left: label some, or take changes back")
    np.save(folder / MEAN, mean_image(dataset))
    about = read_about(old.folder) | {"version_of": old.folder.name}
    write_about(folder, about)
    notes = [f"{sum(gone.values()):,} images were left out or had no label"] if any(gone.values()) else []
    digest, size = sealed(folder)
    counts = {part: dataset.count(part) for part in PARTS}
    histogram = {part: dataset.histogram(part) for part in dataset.parts}
    return Made(about, counts, histogram, notes, digest=digest, size=size)


def _share(old: Dataset, part: str, kept: Any, folder: Path) -> None:
    """The pictures of a part: the same file by another name, or a copy of those that are kept."""
    source, target = old.folder / f"{part}_data.npy", folder / f"{part}_data.npy"
    images = old.images(part)
    if len(kept) == len(images):
        try:
            os.link(source, target)
        except OSError:  # a file system without second names
            shutil.copyfile(source, target)
        return
    arrays.allocate(target, images.dtype.str, (len(kept), *images.shape[1:]))
    new = arrays.writable(target)
    for start in range(0, len(kept), 1024):
        new[start : start + 1024] = images[kept[start : start + 1024]]


def _renumber(db: sqlite3.Connection, part: str, kept: Any) -> None:
    """Places in the index as they are in the new arrays; rows of images that are gone go."""
    db.execute("CREATE TEMP TABLE place_map (old INTEGER PRIMARY KEY, new INTEGER)")
    db.executemany("INSERT INTO place_map VALUES (?, ?)", [(int(k), n) for n, k in enumerate(kept)])
    db.execute("DELETE FROM item WHERE part = ? AND place NOT IN (SELECT old FROM place_map)", (part,))
    for side in ("a", "b"):
        db.execute(
            f"DELETE FROM twin WHERE part_{side} = ? AND place_{side} NOT IN (SELECT old FROM place_map)",
            (part,),
        )
        db.execute(
            f"UPDATE twin SET place_{side} = (SELECT new FROM place_map WHERE old = place_{side}) "
            f"WHERE part_{side} = ?",
            (part,),
        )
    # new places are at most the old ones: by negative numbers, no two are equal on the way
    db.execute(
        "UPDATE item SET place = -1 - (SELECT new FROM place_map WHERE old = place) WHERE part = ?", (part,)
    )
    db.execute("UPDATE item SET place = -1 - place WHERE part = ?", (part,))
    db.execute("DROP TABLE place_map")


def version_rows(store: Store, number: int) -> list[Row]:
    """The data sets that were made from this one by changes."""
    return [
        row
        for row in store.rows("SELECT id, name, settings, state FROM dataset ORDER BY id")
        if row["settings"].get("version_of") == number
    ]
