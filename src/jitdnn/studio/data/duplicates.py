"""Pictures that are there twice: the same values, or the same look; and those of them that lie in two parts.

A net that is judged by what it has been trained on looks better than it is.
"""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.studio.data import index
from jitdnn.studio.data.dataset import Array, Dataset

#: bits in which the looks of two pictures may differ, and how alike their values must be then (correlation)
_BITS, _CORRELATION = 4, 0.985
#: pictures of one look that each is compared with, and pairs that are kept
_NEIGHBOURS, _MOST = 48, 20_000
_BANDS: Final = _BITS + 1


def find_twins(dataset: Dataset) -> int:
    """Fill the table `twin` of a data set's index with pairs of pictures; return how many."""
    with index.opened(dataset.folder, is_written=True) as db:
        items = db.execute("SELECT part, place, exact, alike FROM item ORDER BY part, place").fetchall()
        keys = [(row["part"], row["place"]) for row in items]
        exact = np.array([row["exact"] for row in items], np.int64)
        alike = np.array([row["alike"] for row in items], np.int64).view(np.uint64)
        pairs = dict.fromkeys(same_values(exact), 0.0)
        if dataset.images(dataset.parts[0]).dtype == np.uint8:
            for pair in near(alike):
                if len(pairs) >= _MOST:
                    break
                if pair not in pairs and exact[pair[0]] != exact[pair[1]]:
                    first, second = (dataset.images(part)[place] for part, place in (keys[k] for k in pair))
                    found = correlation(first, second)
                    if found >= _CORRELATION:
                        pairs[pair] = 1 - found
        db.execute("DELETE FROM twin")
        rows = [(*keys[a], *keys[b], distance) for (a, b), distance in sorted(pairs.items())]
        db.executemany("INSERT INTO twin VALUES (?, ?, ?, ?, ?)", rows)
        return len(rows)


def same_values(hashes: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Each number that was there before, with its first place: so many pairs as there are copies too many."""
    order = np.argsort(hashes, kind="stable")
    is_copy = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    starts = np.maximum.accumulate(
        np.where(np.isin(np.arange(len(order)), is_copy), 0, np.arange(len(order)))
    )
    return [(int(order[starts[k]]), int(order[k])) for k in is_copy[:_MOST]]


def near(looks: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Pairs (a < b) of numbers that differ in few bits; 0 has no look.

    Of five bands of bits one at least is equal where four bits differ: numbers are sorted by each band, and
    compared with those that follow.
    """
    places = np.flatnonzero(looks)
    looks = looks[places]
    found: set[tuple[int, int]] = set()
    edges = np.linspace(0, 64, _BANDS + 1).astype(int)
    for low, high in itertools.pairwise(edges):
        mask = np.uint64((1 << int(high)) - (1 << int(low)))
        order = np.lexsort((looks, looks & mask))
        ordered, bands = looks[order], (looks & mask)[order]
        for step in range(1, _NEIGHBOURS + 1):
            is_same = bands[step:] == bands[:-step]
            if not is_same.any():
                break
            bits = np.bitwise_count(ordered[step:] ^ ordered[:-step])
            for k in np.flatnonzero(is_same & (bits <= _BITS)):
                a, b = int(places[order[k]]), int(places[order[k + step]])
                found.add((min(a, b), max(a, b)))
            if len(found) > 10 * _MOST:
                return sorted(found)
    return sorted(found)


def correlation(first: Array, second: Array) -> float:
    """Of the values of two pictures, 0 where one of them has but one colour."""
    a, b = (np.asarray(image, np.float64).ravel() for image in (first, second))
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 1e-9 else 0.0


def twins(folder: Path, leaks_only: bool = False, start: int = 0, count: int = 100) -> dict[str, Any]:
    """`pairs` of pictures that are alike, exact ones and those between parts first; how many there are of each kind:
    `total`, `exact`, `leaks`.
    """
    with index.opened(folder) as db:
        where = "WHERE part_a <> part_b" if leaks_only else ""
        pairs = index.rows(
            db,
            f"""SELECT twin.*, a.name AS name_a, b.name AS name_b, a.label AS label_a, b.label AS label_b
            FROM twin JOIN item a ON a.part = part_a AND a.place = place_a
            JOIN item b ON b.part = part_b AND b.place = place_b {where}
            ORDER BY part_a = part_b, distance, part_a, place_a LIMIT ? OFFSET ?""",
            (count, start),
        )
        return {"pairs": pairs, **_totals(db)}


def _totals(db: sqlite3.Connection) -> dict[str, int]:
    row = db.execute(
        "SELECT count(*) AS total, total(distance = 0) AS exact, total(part_a <> part_b) AS leaks FROM twin"
    ).fetchone()
    return {name: int(row[name]) for name in ("total", "exact", "leaks")}
