"""Which images of a data set are shown: by part, class and name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jitdnn.studio.csv_text import csv_text
from jitdnn.studio.data import index


def find(
    folder: Path, part: str, label: int | None = None, text: str = "", start: int = 0, count: int = 200
) -> dict[str, Any]:
    """`total` and, from `start` on, `items` (part, place, name, label): those of a class (-1: not labelled), and
    with `text` in their names.
    """
    where, values = _where(part, label, text)
    with index.opened(folder) as db:
        total = int(db.execute(f"SELECT count(*) FROM item WHERE {where}", values).fetchone()[0])
        sql = f"SELECT part, place, name, label FROM item WHERE {where} ORDER BY place LIMIT ? OFFSET ?"
        return {"total": total, "items": index.rows(db, sql, (*values, count, start))}


def one(folder: Path, part: str, place: int) -> dict[str, Any] | None:
    """What is known of an image, and of its copies, None if there is no such."""
    with index.opened(folder) as db:
        found = index.rows(
            db, "SELECT part, place, name, label, grp FROM item WHERE part = ? AND place = ?", (part, place)
        )
        return found[0] if found else None


def skipped(folder: Path, count: int = 1000) -> list[dict[str, Any]]:
    """Files that were left out: `name`, `reason`."""
    with index.opened(folder) as db:
        return index.rows(db, "SELECT name, reason FROM skipped ORDER BY name LIMIT ?", (count,))


def split_list(folder: Path, classes: list[str]) -> Iterator[str]:
    """The division as a table of comma-separated values: part, place, file, label, group."""
    yield csv_text([["part", "place", "file", "label", "group"]])
    with index.opened(folder) as db:
        for row in db.execute("SELECT * FROM item ORDER BY part, place"):
            label = row["label"]
            name = classes[label] if label is not None and 0 <= label < len(classes) else ""
            yield csv_text([[row["part"], row["place"], row["name"], name, row["grp"]]])


def _where(part: str, label: int | None, text: str) -> tuple[str, tuple[Any, ...]]:
    where, values = ["part = ?"], list[Any]([part])
    if label is not None:
        where.append("label = ?")
        values.append(label)
    if text:
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        where.append("name LIKE ? ESCAPE '\\'")
        values.append(f"%{escaped}%")
    return " AND ".join(where), tuple(values)
