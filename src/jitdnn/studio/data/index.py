"""What is known of each image beside its array: `items.sqlite` in a data set's folder.

A row is the name that it came with, its part and place there, its label as text is not: labels are in the arrays.
`exact` is a hash of the array, `alike` 64 bits of how the picture looks (duplicates.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

SCHEMA: Final = """
CREATE TABLE item (part TEXT, place INTEGER, name TEXT, label INTEGER, grp TEXT, exact INTEGER, alike INTEGER,
  PRIMARY KEY (part, place)) WITHOUT ROWID;
CREATE TABLE skipped (name TEXT, reason TEXT);
CREATE TABLE twin (part_a TEXT, place_a INTEGER, part_b TEXT, place_b INTEGER, distance REAL);
CREATE TABLE edit (id INTEGER PRIMARY KEY, part TEXT, place INTEGER, before INTEGER, after INTEGER, time REAL,
  undone INTEGER DEFAULT 0);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT);
"""
INDEXES: Final = """
CREATE INDEX item_label ON item (part, label, place);
CREATE INDEX edit_item ON edit (part, place);
"""
Values = tuple[str, int, str, int | None, str, int, int]


@contextmanager
def opened(folder: Path, is_written: bool = False) -> Iterator[sqlite3.Connection]:
    """The index of a data set; what the block writes is kept where it ends without an error."""
    path = folder / "items.sqlite"
    mode = "rw" if is_written else "ro"
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=10)
    try:
        db.row_factory = sqlite3.Row
        with db:
            yield db
    finally:
        db.close()


def make(folder: Path, items: Iterable[Values], skipped: Iterable[tuple[str, str]]) -> None:
    """Write a new index: rows of `item`, and what was left out."""
    db = sqlite3.connect(folder / "items.sqlite")
    try:
        with db:
            db.executescript(SCHEMA)
            db.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?)", items)
            db.executemany("INSERT INTO skipped VALUES (?, ?)", skipped)
            db.executescript(INDEXES)
    finally:
        db.close()


def copy(folder: Path, target: Path) -> None:
    """Copy the index of a data set into another folder, as it is between two changes of it."""
    with opened(folder) as db, closing(sqlite3.connect(target / "items.sqlite")) as copied:
        db.backup(copied)


def rows(db: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """What a query finds, as dictionaries."""
    return [dict(row) for row in db.execute(sql, values)]
