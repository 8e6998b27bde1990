"""Curves: points in the order of their writing, and a pyramid over them, so that any zoom reads few rows.

Each stretch of 64, 512, 4,096 and 32,768 iterations has a row with its count, mean, least and greatest value, and for
some weights what its points alone come to in a running mean with exponential weights. Such means of neighbouring
stretches compose,

    total(both) = weight ** count(second) * total(first) + total(second)

so that the smoothed curve over all points from the first is exact from any point on, without reading those before.
Rows are made again from the points below them whenever one of these is written: writing a point twice changes nothing.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVELS: Final = (64, 512, 4096, 32768)
#: the weights that smoothing knows
WEIGHTS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_MOST_POINTS = 24_000  # that are read themselves; beyond, the rows of a level
_MOST_ROWS = 3_000
_LAST = (1 << 63) - 1
_W = np.array(WEIGHTS)
_INSERT = """
INSERT INTO point VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, value = excluded.value
"""
_STRETCH = (
    "SELECT iteration, value FROM point WHERE run = ? AND series = ? AND iteration BETWEEN ? AND ? "
    "ORDER BY iteration"
)
_ROWS = "SELECT {} FROM level WHERE run = ? AND series = ? AND level = ? AND bucket BETWEEN ? AND ? ORDER BY bucket"
_PARTS = "count, mean, low, low_at, high, high_at, last, smooth"

Array = NDArray[np.float64]


class Since(NamedTuple):
    """What was written after a place in the order: the new place, and [iterations, values] by the name of a series."""

    seq: int
    points: dict[str, list[list[Any]]]


def next_seq(db: sqlite3.Connection, count: int = 1) -> int:
    """Take so many numbers of the order of writing, inside of a transaction; return the last of them."""
    sql = "UPDATE clock SET seq = seq + ? RETURNING seq"
    return int(db.execute(sql, (count,)).fetchone()[0])


def add(db: sqlite3.Connection, run: int, points: Sequence[tuple[int, int, float]]) -> None:
    """Write points (series, iteration, value) and the rows above them, inside of a transaction."""
    if not points:
        return
    first = next_seq(db, len(points)) - len(points) + 1
    db.executemany(
        _INSERT, [(run, s, at, first + k, float(value)) for k, (s, at, value) in enumerate(points)]
    )
    touched = {(s, at // LEVELS[0]) for s, at, _ in points}
    rows: list[tuple[Any, ...]] = []
    for s, bucket in touched:
        low = bucket * LEVELS[0]
        found = db.execute(_STRETCH, (run, s, low, low + LEVELS[0] - 1)).fetchall()
        rows.append((run, s, LEVELS[0], bucket, *_of_points(found)))
    _write(db, rows)
    for below, level in pairwise(LEVELS):
        factor = level // below
        touched = {(s, bucket // factor) for s, bucket in touched}
        sql = _ROWS.format(_PARTS)
        rows = [
            (
                run,
                s,
                level,
                bucket,
                *_of_rows(db.execute(sql, (run, s, below, *_ends(bucket, factor))).fetchall()),
            )
            for s, bucket in touched
        ]
        _write(db, rows)


def _ends(bucket: int, factor: int) -> tuple[int, int]:
    return bucket * factor, bucket * factor + factor - 1


def _write(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    db.executemany("INSERT OR REPLACE INTO level VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _of_points(found: Sequence[Any]) -> tuple[Any, ...]:
    """The row of a stretch from its points; those that are no finite numbers are left out."""
    last = found[-1][0]
    kept = [(at, value) for at, value in found if value is not None and math.isfinite(value)]
    if not kept:
        return 0, None, None, None, None, None, last, np.zeros(len(WEIGHTS)).tobytes()
    values = np.array([value for _, value in kept])
    powers = _W[:, None] ** np.arange(len(kept) - 1, -1, -1)
    smooth = ((1 - _W)[:, None] * powers) @ values
    low, high = int(values.argmin()), int(values.argmax())
    return (
        *(len(kept), float(values.mean()), kept[low][1], kept[low][0], kept[high][1], kept[high][0], last),
        smooth.astype("<f8").tobytes(),
    )


def _of_rows(found: Sequence[Any]) -> tuple[Any, ...]:
    """The row of a stretch from those of its parts."""
    kept = [row for row in found if row["count"]]
    last = found[-1]["last"]
    total = np.zeros(len(WEIGHTS))
    if not kept:
        return 0, None, None, None, None, None, last, total.tobytes()
    for row in kept:
        total = _W ** row["count"] * total + np.frombuffer(row["smooth"], "<f8")
    count = sum(row["count"] for row in kept)
    mean = sum(row["count"] * row["mean"] for row in kept) / count
    low, high = min(kept, key=lambda row: row["low"]), max(kept, key=lambda row: row["high"])
    return count, mean, low["low"], low["low_at"], high["high"], high["high_at"], last, total.tobytes()


def since(db: sqlite3.Connection, run: int, seq: int, most: int) -> Since:
    """Points of a run after a place in the order of writing, at most so many, in that order within each series."""
    found: dict[str, list[list[Any]]] = {}
    sql = (
        "SELECT name, iteration, value, seq FROM point JOIN series ON series.id = series "
        "WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
    )
    for name, iteration, value, number in db.execute(sql, (run, seq, most)):
        iterations, values = found.setdefault(name, [[], []])
        iterations.append(iteration)
        values.append(_told(value))
        seq = number
    return Since(seq, found)


def curve(
    db: sqlite3.Connection, run: int, series: int, low: int, high: int | None, most: int, smooth: float
) -> list[list[Any]]:
    """[iterations, values] of a part of a curve, as `Store.series` says."""
    low, high = max(low, 0), _LAST if high is None else high
    top = db.execute(
        _ROWS.format("bucket, count, last"), (run, series, LEVELS[-1], low // LEVELS[-1], high // LEVELS[-1])
    ).fetchall()
    if not top or high < low:
        return [[], []]
    low, high = max(low, top[0]["bucket"] * LEVELS[-1]), min(high, top[-1]["last"])
    weight = int(np.abs(_W - smooth).argmin()) if smooth > 0 else None
    count = sum(row["count"] for row in top)
    if min(high - low, count) <= _MOST_POINTS:
        xs, ys = _points(db, run, series, low, high)
        if weight is not None:
            ys = _smoothed(ys, WEIGHTS[weight], *_state(db, run, series, low, weight))
    else:
        fitting = [level for level in LEVELS if min((high - low) // level + 1, count) <= _MOST_ROWS]
        level = fitting[0] if fitting else LEVELS[-1]
        xs, ys = _stretches(db, run, series, (level, low // level, high // level), weight)
        inside = (xs >= low) & (xs <= high)
        xs, ys = xs[inside], ys[inside]
    xs, ys = _reduced(xs, ys, most)
    return [xs.astype(int).tolist(), [_told(value) for value in ys.tolist()]]


def _points(db: sqlite3.Connection, run: int, series: int, low: int, high: int) -> tuple[Array, Array]:
    found = db.execute(_STRETCH, (run, series, low, high)).fetchall()
    values = [math.nan if value is None else value for _, value in found]
    return np.array([at for at, _ in found], float), np.array(values, float)


def _state(db: sqlite3.Connection, run: int, series: int, end: int, weight: int) -> tuple[float, int]:
    """The running mean's total, and the number of its points, over all points before `end`."""
    total, count, start = 0.0, 0, 0
    w = WEIGHTS[weight]
    for level in reversed(LEVELS):
        arguments = (run, series, level, start // level, end // level - 1)
        for row in db.execute(_ROWS.format("count, smooth"), arguments):
            total = w ** row["count"] * total + float(np.frombuffer(row["smooth"], "<f8")[weight])
            count += row["count"]
        start = end // level * level
    for value in _points(db, run, series, start, end - 1)[1]:
        if math.isfinite(value):
            total, count = w * total + (1 - w) * value, count + 1
    return total, count


def _smoothed(values: Array, weight: float, total: float, count: int) -> Array:
    """The running mean with exponential weights, free of the bias towards its start."""
    found = np.empty_like(values)
    for at, value in enumerate(values.tolist()):
        if math.isfinite(value):
            total, count = weight * total + (1 - weight) * value, count + 1
            found[at] = total / _norm(weight, count)
        else:
            found[at] = math.nan
    return found


def _norm(weight: float, count: int) -> float:
    return -math.expm1(count * math.log(weight))


def _stretches(
    db: sqlite3.Connection, run: int, series: int, part: tuple[int, int, int], weight: int | None
) -> tuple[Array, Array]:
    """Two values for each stretch, its least and its greatest; or one at its end, the running mean."""
    level, first, _ = part
    found = db.execute(_ROWS.format(_PARTS), (run, series, *part)).fetchall()
    xs: list[float] = []
    ys: list[float] = []
    if weight is None:
        for row in found:
            if not row["count"]:
                xs, ys = [*xs, row["last"]], [*ys, math.nan]
                continue
            pair = sorted({(row["low_at"], row["low"]), (row["high_at"], row["high"])})
            xs += [at for at, _ in pair]
            ys += [value for _, value in pair]
        return np.array(xs, float), np.array(ys, float)
    total, count = _state(db, run, series, first * level, weight)
    w = WEIGHTS[weight]
    for row in found:
        total = w ** row["count"] * total + float(np.frombuffer(row["smooth"], "<f8")[weight])
        count += row["count"]
        xs.append(row["last"])
        ys.append(total / _norm(w, count) if row["count"] else math.nan)
    return np.array(xs, float), np.array(ys, float)


def _reduced(xs: Array, ys: Array, most: int) -> tuple[Array, Array]:
    """About `most` points: the least and the greatest of each stretch, the first that is none, and the last of all."""
    if len(xs) <= most:
        return xs, ys
    cuts = np.linspace(0, len(xs), max(most // 2, 1) + 1).astype(int)
    kept = {len(xs) - 1}
    for a, b in pairwise(cuts.tolist()):
        part = ys[a:b]
        finite = np.flatnonzero(np.isfinite(part))
        if len(finite) < len(part):
            kept.add(int(a + np.flatnonzero(~np.isfinite(part))[0]))
        if len(finite):
            kept.add(int(a + finite[part[finite].argmin()]))
            kept.add(int(a + finite[part[finite].argmax()]))
    at = sorted(kept)
    return xs[at], ys[at]


def spark(db: sqlite3.Connection, run: int, series: int, most: int) -> list[float]:
    """Means of up to `most` stretches of a whole curve, from few rows."""
    sql = _ROWS.format("bucket, count, mean, last")
    found = db.execute(sql, (run, series, LEVELS[-1], 0, _LAST)).fetchall()
    if not found:
        return []
    last = found[-1]["last"]
    if last <= 8 * most:
        values = _points(db, run, series, 0, last)[1]
    else:
        level = next((level for level in LEVELS if last // level < 8 * most), LEVELS[-1])
        rows = db.execute(sql, (run, series, level, 0, _LAST))
        values = np.array([row["mean"] for row in rows if row["count"]], float)
    values = values[np.isfinite(values)]
    parts = np.array_split(values, min(most, len(values))) if len(values) else []
    return [float(part.mean()) for part in parts]


def _told(value: float | None) -> float | None:
    return round(value, 7) if value is not None and math.isfinite(value) else None
