"""Curves as CSV, every point as it was written, a stretch of iterations at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jitdnn.studio.csv_text import csv_text
from jitdnn.studio.store import Store

#: iterations that are read at once
STRETCH: Final = 20_000
_NEXT = "SELECT min(iteration) FROM point WHERE run = ? AND series = ? AND iteration >= ?"
_POINTS = "SELECT iteration, value FROM point WHERE run = ? AND series = ? AND iteration BETWEEN ? AND ?"


def lines(store: Store, columns: Sequence[tuple[int, str, str]]) -> Iterator[str]:
    """A header, then a line for each iteration at which any of the columns, (run, series, title), has a value."""
    yield csv_text([["iteration", *(title for _, _, title in columns)]])
    known = {row["name"]: row["id"] for row in store.rows("SELECT id, name FROM series")}
    keys = [(run, known.get(name, -1)) for run, name, _ in columns]
    low = 0
    while True:
        starts = [store.db.execute(_NEXT, (*key, low)).fetchone()[0] for key in keys]
        if all(start is None for start in starts):
            return
        low = min(start for start in starts if start is not None)
        found = [dict(store.db.execute(_POINTS, (*key, low, low + STRETCH - 1))) for key in keys]
        rows = [[at, *(_number(values.get(at)) for values in found)] for at in sorted(set().union(*found))]
        yield csv_text(rows)
        low += STRETCH


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
