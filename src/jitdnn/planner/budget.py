"""One budget of workspace for many layers: which point of each layer's front, so that all together are fastest.

A 0-1 integer program, the multiple-choice knapsack: of each layer exactly one point, the bytes at most the budget, the
seconds least. A price on bytes, that of the relaxed program, gives a bound below for every choice, and a greedy choice
one above. What the bounds rule out is dropped, and that leaves so little that merging the layers one by one, with only
the unbeaten sums kept, is exact and takes milliseconds, where a general solver takes a tenth of a second. A program
whose sums become too many all the same goes to one: HiGHS, which ships in SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.planner.fronts import Point, front, in_turn
from jitdnn.settings import format_bytes

# Sums kept at once: few, for a choice that is nearly the best and so rules out most others, then as many as take
# seconds.
WIDTHS = (1 << 12, 1 << 16)
GAP = 1e-4
"""What a choice may be above the best, relative to the whole, where the best would take too long to prove."""
SOLVER_SECONDS = 30.0
# relative to the bounds: a sum of as many seconds as there are layers may be this much off, or may win by this much
_SLACK = 1e-9
_ROUNDING = 1e-12
# of the budget held back from the solver, which keeps it to within a tolerance, not to the byte
_HELD_BACK = (0.0, 3e-6, 1e-4)


def divide(
    fronts: Sequence[Sequence[Point]], total: int, streams: Sequence[Hashable] | None = None
) -> tuple[Point, ...]:
    """One point of each front, such that their seconds sum to the least that `total` bytes allow.

    `streams` names for each front the stream on which it runs: what runs on one stream runs one after another and
    shares a workspace, as large as the largest chosen; workspaces of different streams add up. None: nothing is
    shared, each front has a workspace of its own.

    Raises InvalidArgument if no choice fits, and NotSupported if only HiGHS could solve it and SciPy is not installed.
    """
    members = [front(points) for points in fronts]
    for number, member in enumerate(members):
        if not member:
            raise InvalidArgument(
                f"layer {number} cannot run in any way: its front must have at least one point"
            )
    if streams is None:
        return tuple(_choose(members, total))
    if len(streams) != len(members):
        raise InvalidArgument(
            f"{len(streams)} streams for {len(members)} fronts: there must be one for each front"
        )
    positions: dict[Hashable, list[int]] = {}
    for position, stream in enumerate(streams):
        positions.setdefault(stream, []).append(position)
    # given the bytes of a stream each of its layers takes the fastest point that fits, whatever the others do
    arenas = [
        in_turn([[point._replace(what=point) for point in members[position]] for position in group])
        for group in positions.values()
    ]
    answer: dict[int, Point] = {}
    for group, arena in zip(positions.values(), _choose(arenas, total), strict=True):
        answer.update(zip(group, arena.what, strict=True))
    return tuple(answer[position] for position in range(len(members)))


def _choose(fronts: Sequence[Sequence[Point]], total: int) -> list[Point]:
    """`divide` where every front has its own workspace."""
    least = sum(points[0].workspace for points in fronts)
    if least > total:
        raise InvalidArgument(
            f"a total workspace of {format_bytes(total)} is too little: the layers need {format_bytes(least)} "
            f"at the least: set total_workspace to at least {least}"
        )
    if sum(points[-1].workspace for points in fronts) <= total:
        return [points[-1] for points in fronts]
    if least == total:
        return [points[0] for points in fronts]
    if len(fronts) == 1:
        return [[point for point in fronts[0] if point.workspace <= total][-1]]
    program = _Program.of(fronts, total - least)
    whole = math.fsum(points[-1].seconds for points in fronts)
    if not any(program.merge(width) for width in WIDTHS) and program.gap() > GAP * whole:
        program.solve()
    return [points[pick] for points, pick in zip(fronts, program.best, strict=True)]


@dataclass
class _Program:
    """The knapsack, with seconds above each layer's fastest and bytes above its least, and the bounds of it."""

    seconds: list[list[float]]
    bytes: list[list[int]]
    budget: int
    price: float  # of a byte, in seconds: that at which the relaxed program would buy and sell
    best: list[int]  # the best choice found so far, at first the greedy one
    most: float  # its seconds

    @classmethod
    def of(cls, fronts: Sequence[Sequence[Point]], budget: int) -> _Program:
        """`budget` is what is left when each layer has its least."""
        seconds = [[point.seconds - points[-1].seconds for point in points] for points in fronts]
        needs = [[point.workspace - points[0].workspace for point in points] for points in fronts]
        steps = [
            (-(own[here] - own[there]) / (need[there] - need[here]), layer, there)
            for layer, (own, need) in enumerate(zip(seconds, needs, strict=True))
            for here, there in pairwise(_hull(own, need))
        ]
        greedy, left, price = [0] * len(fronts), budget, 0.0
        for slope, layer, there in sorted(steps):
            extra = needs[layer][there] - needs[layer][greedy[layer]]
            if extra <= left:
                greedy[layer] = there
                left -= extra
            else:
                price = price or -slope
        most = math.fsum(own[pick] for own, pick in zip(seconds, greedy, strict=True))
        return cls(seconds, needs, budget, price, greedy, most)

    def priced(self, layer: int) -> list[float]:
        """Seconds of a layer's points and what their bytes cost."""
        return [s + self.price * b for s, b in zip(self.seconds[layer], self.bytes[layer], strict=True)]

    def gap(self) -> float:
        """Seconds by which the best choice so far may be above the best there is."""
        return (
            self.most
            + self.price * self.budget
            - math.fsum(min(self.priced(n)) for n in range(len(self.best)))
        )

    def merge(self, width: int) -> bool:
        """Improve the choice; True if it now is the best there is, False if `width` sums at once were too few.

        A sum stands for choices of the layers so far; with what the layers to come need at the least, at this price, it
        has a bound below, and it is dropped if that is above the best choice so far.
        """
        priced = [self.priced(layer) for layer in range(len(self.best))]
        to_come = math.fsum(min(costs) for costs in priced)
        limit = self.most + self.price * self.budget
        rounding = _ROUNDING * limit
        limit += _SLACK * limit
        open_points = [
            [pick for pick, cost in enumerate(costs) if to_come - min(costs) + cost <= limit]
            for costs in priced
        ]
        answer = [picks[0] for picks in open_points]  # right where there is nothing left to choose
        decided = [layer for layer, picks in enumerate(open_points) if len(picks) == 1]
        used = np.array([sum(self.bytes[layer][answer[layer]] for layer in decided)], np.int64)
        spent = np.array([math.fsum(self.seconds[layer][answer[layer]] for layer in decided)])
        to_come -= math.fsum(min(priced[layer]) for layer in decided)
        # those first where the second best costs most: they leave the least open
        undecided = [layer for layer, picks in enumerate(open_points) if len(picks) > 1]
        undecided.sort(key=lambda layer: min(priced[layer]) - sorted(priced[layer])[1])
        stages: list[tuple[int, np.ndarray, np.ndarray]] = []
        is_exact = True
        for layer in undecided:
            to_come -= min(priced[layer])
            found: list[tuple[np.ndarray, ...]] = []
            for pick in open_points[layer]:
                all_bytes, all_seconds = used + self.bytes[layer][pick], spent + self.seconds[layer][pick]
                fits = all_bytes <= self.budget
                fits &= all_seconds + self.price * all_bytes + to_come <= limit
                before = np.flatnonzero(fits)
                found.append((all_bytes[before], all_seconds[before], before, np.full(len(before), pick)))
            used, spent, before, picks = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
            by_bytes = used.argsort(kind="stable")  # quick with runs, and each point's sums are one
            fastest_so_far = np.minimum.accumulate(spent[by_bytes])
            is_unbeaten = np.append(True, spent[by_bytes][1:] < fastest_so_far[:-1] - rounding)
            kept = by_bytes[is_unbeaten]
            # of those of equal bytes the last is the fastest
            kept = kept[np.append(used[kept][1:] != used[kept][:-1], True)]
            if len(kept) > width:
                is_exact = False
                kept = kept[_best_of_buckets(used[kept], spent[kept] + self.price * used[kept], width)]
            used, spent = used[kept], spent[kept]
            stages.append((layer, before[kept], picks[kept]))
        if not len(spent):  # none of those that were kept led anywhere
            return False
        position = int(spent.argmin())
        for layer, before, picks in reversed(stages):
            answer[layer] = int(picks[position])
            position = int(before[position])
        self._offer(answer)
        return is_exact

    def _offer(self, choice: list[int]) -> None:
        seconds = math.fsum(own[pick] for own, pick in zip(self.seconds, choice, strict=True))
        if seconds < self.most:
            self.best, self.most = choice, seconds

    def solve(self) -> None:
        """Improve the choice by HiGHS, to within its gap of 1e-4 or to what it finds in `SOLVER_SECONDS`."""
        try:
            from scipy import sparse
            from scipy.optimize import Bounds, LinearConstraint, milp
        except ImportError as error:
            raise NotSupported(
                f"{len(self.best)} layers have too many equally good ways to share {format_bytes(self.budget)} "
                "without an integer solver, and SciPy, which has one, is not installed: "
                'pip install "jitdnn[plan]"'
            ) from error
        layers, count = len(self.best), sum(map(len, self.seconds))
        ends = np.cumsum([len(own) for own in self.seconds])
        starts = ends - [len(own) for own in self.seconds]
        seconds, needs = np.concatenate(self.seconds), np.concatenate(self.bytes)
        # HiGHS knows absolute tolerances only: as much as 1e-6 of what it is asked for is nothing to it
        cost = seconds * (1e3 / self.most)
        columns = np.arange(count)
        rows = np.append(np.repeat(np.arange(layers), ends - starts), np.full(count, layers))
        for held_back in _HELD_BACK:
            weights = np.append(np.ones(count), needs / (self.budget * (1 - held_back)))
            matrix = sparse.csc_array((weights, (rows, np.tile(columns, 2))))
            limits = LinearConstraint(matrix, np.append(np.ones(layers), -np.inf), np.ones(layers + 1))
            result: Any = milp(
                cost,
                constraints=limits,
                bounds=Bounds(0, 1),
                integrality=np.ones(count),
                options={"time_limit": SOLVER_SECONDS},
            )
            if result.x is None:
                return
            picks = [int(result.x[s:e].argmax()) for s, e in zip(starts, ends, strict=True)]
            if sum(need[pick] for need, pick in zip(self.bytes, picks, strict=True)) <= self.budget:
                self._offer(picks)
                return


def _best_of_buckets(used: np.ndarray, bounds: np.ndarray, count: int) -> np.ndarray:
    """Of ascending bytes in `count` equal ranges the ones with the least bound: good sums, and none missed by far."""
    buckets = (used - used[0]) * (count / (used[-1] - used[0] + 1)) // 1
    order = np.lexsort((bounds, buckets))
    is_first = np.append(True, buckets[order][1:] != buckets[order][:-1])
    return np.asarray(order[is_first])


def _hull(seconds: Sequence[float], needs: Sequence[int]) -> list[int]:
    """The points on the lower convex hull."""
    hull: list[int] = []
    for point in range(len(seconds)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            gained, gains = seconds[a] - seconds[b], seconds[a] - seconds[point]
            if gained * (needs[point] - needs[a]) > gains * (needs[b] - needs[a]):
                break
            hull.pop()
        hull.append(point)
    return hull
