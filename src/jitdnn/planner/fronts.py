"""Time against workspace: Pareto fronts of a problem's candidates and partitions, and of a batch that runs in parts.

Parts run one after another and share one workspace: their times add up, and of their workspaces the largest counts.
So a batch that may use `w` bytes takes the least sum of times of parts that need at most `w` each, T(w), and the
front consists of the `w` at which T drops. T is an unbounded knapsack, solved for all `w` that matter at once: one
column of an array each.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.errors import InvalidArgument

POLICIES = ("undivided", "power_of_two", "all")
"""Which sizes of parts are tried: the whole only, powers of two and the whole, or every one."""

# Each part is charged this much of the whole's time, so that of two divisions that take as long, but for rounding,
# the one with fewer parts wins. Far above the rounding of a sum, far below what any clock can tell.
_CHARGE = 1e-12


class Point(NamedTuple):
    """A candidate or a partition: how long it takes, the bytes of scratch memory that it needs, and what it is."""

    seconds: float
    workspace: int
    what: Any


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other beats: workspace ascends, seconds strictly descend. Of equal ones the first stays."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.workspace, p.seconds)):
        if not kept or point.seconds < kept[-1].seconds:
            kept.append(point)
    return tuple(kept)


def in_turn(fronts: Iterable[Sequence[Point]]) -> tuple[Point, ...]:
    """The front of running one point of each, one after another, with one workspace; `what` is the tuple of theirs.

    Empty if one of them is: what cannot be run cannot be run in turn.
    """
    members = [front(points) for points in fronts]
    if not members:
        return (Point(0.0, 0, ()),)
    if not all(members):
        return ()
    needs = [[point.workspace for point in member] for member in members]
    together = []
    for limit in sorted(set().union(*needs)):
        positions = [bisect_right(need, limit) - 1 for need in needs]
        if min(positions) >= 0:
            together.append(
                _together([member[position] for member, position in zip(members, positions, strict=True)])
            )
    return front(together)


def micro_batches(
    total: int, singles: Mapping[int, Sequence[Point]], limit: int | None = None
) -> tuple[Point, ...]:
    """The front of all divisions of `total` into parts, given the front of a part of each size.

    `what` of a result is a tuple of (size, what of the part), largest first. `limit` is the most bytes that any part
    may use. Sizes without points cannot be parts; the front is empty if no sum of sizes makes `total`.
    """
    parts = _usable(total, singles, limit)
    if not parts:
        return ()
    columns = np.unique([point.workspace for points in parts.values() for point in points])
    part_sizes = np.array(list(parts))
    seconds = np.empty(
        (len(parts), len(columns))
    )  # of a part of each size that may use as much as the column says
    for row, points in zip(seconds, parts.values(), strict=True):
        positions = np.searchsorted([p.workspace for p in points], columns, side="right")
        row[:] = np.array([math.inf, *(p.seconds for p in points)])[positions]
    charge = _charge(total, part_sizes, seconds[:, -1])

    table = np.full((total + 1, len(columns)), math.inf)
    smallest = np.full(
        (total + 1, len(columns)), -1, np.int32
    )  # row of the smallest part; with it the division ends
    for size in range(1, total + 1):
        # any division has a part of at most half its size: that one, and the best of what is left
        halves = int(np.searchsorted(part_sizes, size // 2, side="right"))
        if halves:
            sums = table[size - part_sizes[:halves]]
            sums += seconds[:halves]
            best = sums.argmin(axis=0)
            table[size] = np.take_along_axis(sums, best[None], axis=0)[0] + charge
            smallest[size] = best
        if size in parts:
            row_of_size = int(np.searchsorted(part_sizes, size))
            whole = seconds[row_of_size] + charge
            is_better = whole <= table[size]
            table[size][is_better] = whole[is_better]
            smallest[size][is_better] = row_of_size

    kept: list[Point] = []
    before = math.inf
    for column, cost in enumerate(table[total].tolist()):
        if cost >= before:
            continue
        before = cost
        chosen = _trace(total, parts, part_sizes.tolist(), smallest[:, column].tolist(), int(columns[column]))
        # a gain that is nothing but rounding, or fewer parts, is not worth more workspace
        if not kept or chosen.seconds < kept[-1].seconds - charge:
            kept.append(chosen)
    return tuple(kept)


def fastest(total: int, singles: Mapping[int, Sequence[Point]], limit: int | None) -> Point | None:
    """The fastest division of `total` into parts that need at most `limit` bytes, or None if there is none.

    As the last of `micro_batches`, for much less work; but of equally fast divisions that with the fewest parts is
    taken, and only then that with the least workspace.
    """
    parts = {size: points[-1] for size, points in _usable(total, singles, limit).items()}
    if not parts:
        return None
    part_sizes = np.array(list(parts))
    seconds = np.array([part.seconds for part in parts.values()])
    needs = np.array([part.workspace for part in parts.values()])
    charge = _charge(total, part_sizes, seconds)

    costs = np.full(total + 1, math.inf)
    largest = np.zeros(total + 1, needs.dtype)
    smallest = [-1] * (total + 1)
    for size in range(1, total + 1):
        halves = int(np.searchsorted(part_sizes, size // 2, side="right"))
        sums = costs[size - part_sizes[:halves]] + seconds[:halves]
        needed = np.maximum(largest[size - part_sizes[:halves]], needs[:halves])
        rows = np.arange(halves)
        if size in parts:
            row = int(np.searchsorted(part_sizes, size))
            # first, so that argmin prefers it
            sums = np.concatenate(([seconds[row]], sums))
            needed, rows = np.concatenate(([needs[row]], needed)), np.concatenate(([row], rows))
        least = sums.min(initial=math.inf)
        if least == math.inf:
            continue
        equal = np.flatnonzero(sums <= least + charge / 4)
        best = int(equal[needed[equal].argmin()])
        costs[size], largest[size], smallest[size] = sums[best] + charge, needed[best], int(rows[best])
    if costs[total] == math.inf:
        return None
    single = {size: (part,) for size, part in parts.items()}
    return _trace(total, single, list(parts), smallest, int(largest[total]))


def sizes(total: int, policy: str) -> tuple[int, ...]:
    """The sizes of parts that a policy tries for `total`, descending."""
    _check_total(total)
    if policy == "undivided":
        return (total,)
    if policy == "power_of_two":
        powers = {1 << exponent for exponent in range(total.bit_length())}
        return tuple(sorted(powers | {total}, reverse=True))
    if policy == "all":
        return tuple(range(total, 0, -1))
    raise InvalidArgument(f"the policy of division is {policy!r}: it must be one of {', '.join(POLICIES)}")


def even_sizes(extent: int, count: int) -> tuple[int, ...]:
    """`extent` as the sum of `count` parts that are as equal as can be, the larger ones first."""
    _check_total(extent)
    if not 1 <= count <= extent:
        raise InvalidArgument(
            f"{extent} cannot be divided into {count} parts: choose from 1 to {extent} parts"
        )
    size, larger = divmod(extent, count)
    return (size + 1,) * larger + (size,) * (count - larger)


def _check_total(total: int) -> None:
    if total < 1:
        raise InvalidArgument(f"{total} cannot be divided: it must be at least 1")


def _usable(
    total: int, singles: Mapping[int, Sequence[Point]], limit: int | None
) -> dict[int, tuple[Point, ...]]:
    """The fronts of the sizes, ascending, that can be parts under the limit."""
    _check_total(total)
    if singles and min(singles) < 1:
        raise InvalidArgument(f"a part has size {min(singles)}: it must be at least 1")
    found = {}
    for size in sorted(singles):
        if size <= total:
            points = front(p for p in singles[size] if limit is None or p.workspace <= limit)
            if points:
                found[size] = points
    return found


def _charge(total: int, part_sizes: np.ndarray, seconds: np.ndarray) -> float:
    """What each part is charged beyond its time, from a lower bound of the fastest whole's time."""
    return _CHARGE * total * float((seconds / part_sizes).min())


def _trace(
    total: int,
    parts: Mapping[int, Sequence[Point]],
    part_sizes: Sequence[int],
    smallest: Sequence[int],
    limit: int,
) -> Point:
    """The division that the table stands for: follow the smallest parts down to nothing."""
    counts: dict[int, int] = {}
    while total:
        size = part_sizes[smallest[total]]
        counts[size] = counts.get(size, 0) + 1
        total -= size
    chosen: list[Point] = []
    for size in sorted(counts, reverse=True):
        part = [p for p in parts[size] if p.workspace <= limit][-1]
        chosen += [part._replace(what=(size, part.what))] * counts[size]
    return _together(chosen)


def _together(points: Sequence[Point]) -> Point:
    return Point(
        math.fsum(p.seconds for p in points), max(p.workspace for p in points), tuple(p.what for p in points)
    )
