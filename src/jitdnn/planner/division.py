"""Dividing a convolution into parts small enough for an algorithm that the workspace would not let run whole.

The batch is divided by dynamic programming over the sizes that a policy allows (μ-cuDNN: Oyama et al., CLUSTER 2018).
What shrinks with the batch is the transformed images; the transformed filter does not, and a batch of one cannot be
divided. So groups, channels and rows are divided as well, into parts as equal as can be, and each of these again by
images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, sqrt
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Epilogue
from jitdnn.planner import fronts
from jitdnn.planner.divided import epilogue_piece
from jitdnn.planner.fronts import Point
from jitdnn.planner.plan import Candidate, Request
from jitdnn.planner.survey import AlgorithmCandidate, Priced, allowed_error
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_parts import Piece, cut, extent, is_summed, whole, within
from jitdnn.problems.problem import Problem

# into how many parts channels, groups and rows are divided
COUNTS = (2, 4, 8, 16, 32)
# parts of channels are multiples of this where they can be: lanes of vectors, tiles of matrix units
_GRAIN = 16
# a division must gain as much: times are not known better, and one kernel is simpler than several
MARGIN = 0.97
# so many different parts are looked at, for one limit and for a whole front; the batch is divided in any case
MOST_PARTS = 64
MOST_PARTS_OF_FRONT = 160
# channels and rows are not divided further where even the fastest partition is so much slower than the fastest
HOPELESS = 2.0
# of parts of channels and rows, fewer images at a time than this share are not tried
_FEWEST = 32
# fewer images at a time may take as much less time as this, for what stays in a cache
_FASTER = 0.95
# to begin a part: a launch on a GPU, or waking the threads of the processor
LAUNCH_SECONDS = 5e-6
# this near to the fastest algorithm, whatever workspace it needs, no other division is looked for
NEAR = 1.03

#: the candidates for a part, with their times, those that do not fit the limit refused
SurveyPart = Callable[[Convolution, Epilogue | None], Sequence[AlgorithmCandidate]]


class Stopped(Exception):
    """There is no more time to ask about parts."""


class Step(NamedTuple):
    """One part of a divided problem, what runs it, and the bytes of workspace that this needs."""

    piece: Piece
    algorithm: Algorithm
    epilogue: Epilogue | None
    workspace: int


@dataclass(frozen=True)
class Partition(Priced):
    """A problem as parts that run one after another; of one part if it is not divided."""

    steps: tuple[Step, ...]
    summary: Candidate

    @property
    def is_divided(self) -> bool:
        return len(self.steps) > 1


def may_be_divided(problem: Problem, request: Request) -> bool:
    """Whether the request leaves anything to divide."""
    return (
        isinstance(problem, Convolution)
        and request.division != "undivided"
        and not request.keeps_filter
        and problem.n > 0
    )


class Divider:
    """The partitions of one convolution. `survey_part` is called once for each different part."""

    def __init__(
        self,
        problem: Convolution,
        request: Request,
        epilogue: Epilogue | None,
        survey_part: SurveyPart,
        floor: int = 0,
    ) -> None:
        """`floor`: bytes of workspace that nobody lacks, below which a front need not be known."""
        self._problem, self._request, self._epilogue = problem, request, epilogue
        self._survey_part, self._floor = survey_part, floor
        self._known: Sequence[Point] = ()
        # parts that some algorithm would take with more workspace than the limit
        self._too_large: set[tuple[Convolution, Epilogue | None]] = set()
        self._singles: dict[tuple[Convolution, Epilogue | None], tuple[Point, ...]] = {}
        self._whole_batches: dict[tuple[Convolution, Epilogue | None], tuple[Point, ...]] = {}

    def fastest(self, limit: int | None, unlimited: float) -> list[Partition]:
        """The fastest division of each kind under `limit` bytes, the fastest of all first; none that is whole.

        `unlimited`: seconds of the problem with any workspace; a division that comes near it ends the search.
        """
        found: list[Partition] = []
        for cuts in self._kinds():
            best: Partition | None = None
            for axis, count in cuts:
                if axis is not None and self._usable_parts() > MOST_PARTS:
                    break
                partition = self._fastest_of(axis, count, limit)
                if partition is not None and (best is None or partition.seconds < best.seconds):
                    best = partition
                elif best is not None:
                    break  # more parts are slower
                if best is not None and best.seconds <= NEAR * unlimited:
                    break
            if best is not None:
                found.append(best)
                if best.seconds <= NEAR * unlimited:
                    break
        return sorted(
            (partition for partition in found if partition.is_divided),
            key=lambda partition: partition.seconds,
        )

    def front(
        self, known: Sequence[Point] = (), stop: Callable[[], bool] = lambda: False
    ) -> tuple[Point, ...]:
        """The front of all partitions, by workspace: `what` of a point is a `Partition`. Undivided ones included.

        `known` is the front of what would run in the place of a partition: parts that would hardly come below it are
        not looked at. `stop` is asked before each cut, and `survey_part` may raise Stopped: what was found by then is
        returned.
        """
        points: list[Point] = []
        best = inf
        kinds = list(self._kinds())
        self._known = known
        while kinds and self._usable_parts() < MOST_PARTS_OF_FRONT and not stop():
            cuts = kinds.pop(0)
            axis, count = next(cuts, (None, 0))
            if not count:
                continue
            pieces = self._pieces(axis, count)
            try:
                partitions = (
                    fronts.in_turn(self._batches(*part) for part in self._parts(pieces)) if pieces else ()
                )
            except Stopped:
                break
            found = [Point(p.seconds, p.workspace, (axis, pieces, p.what)) for p in partitions]
            points += found
            before = self._known
            if known:
                self._known = fronts.front([*known, *points])
            fastest = min((p.seconds for p in partitions), default=inf)
            best = min(best, fastest)
            # what came below nothing that is known will hardly do so in more parts, which take longer
            gains = not known or any(
                p.seconds < MARGIN * _best(before, max(p.workspace, self._floor)) for p in found
            )
            if not partitions or (gains and fastest < HOPELESS * best):
                kinds.append(cuts)  # and so each axis in its turn into more parts
        kept = []
        for point in fronts.front(points):
            partition = self._partition(*point.what)
            if partition is not None:
                kept.append(Point(point.seconds, point.workspace, partition))
        return tuple(kept)

    def _usable_parts(self) -> int:
        """How many different parts were looked at that something runs."""
        return sum(1 for points in self._singles.values() if points)

    def _kinds(self) -> Iterator[Iterator[tuple[str | None, int]]]:
        """The cuts to try, kind by kind: images alone first, then each other axis into ever more parts."""
        yield iter([(None, 1)])
        if self._request.division_axes == "batch":
            return
        for axis in self._axes():
            most = extent(self._problem, axis)
            yield iter([(axis, count) for count in COUNTS if count <= most])

    def _axes(self) -> Iterator[str]:
        """What can be divided beside the batch: of space the slowest axis alone."""
        rows = {1: "w", 2: "h", 3: "d"}[len(self._problem.spatial)]
        for axis in ("g", "k", "c", rows):
            if extent(self._problem, axis) > 1 and not self._breaks_the_epilogue(self._problem, axis):
                yield axis

    def _breaks_the_epilogue(self, problem: Convolution, axis: str) -> bool:
        """A function of a sum is not the sum of the functions of its parts."""
        return self._epilogue is not None and is_summed(problem, axis)

    def _pieces(self, axis: str | None, count: int) -> tuple[Piece, ...]:
        if axis is None:
            return (whole(self._problem),)
        try:
            return cut(self._problem, axis, _sizes(extent(self._problem, axis), count))
        except NotSupported:
            return ()

    def _parts(self, pieces: Sequence[Piece]) -> list[tuple[Convolution, Epilogue | None]]:
        return [(piece.problem, epilogue_piece(self._epilogue, piece)) for piece in pieces]

    def _fastest_of(self, axis: str | None, count: int, limit: int | None) -> Partition | None:
        pieces = self._pieces(axis, count)
        chosen = []
        for problem, epilogue in self._parts(pieces):
            singles = self._by_size(problem, epilogue)
            point = fronts.fastest(problem.n, singles, limit)
            if point is None:
                return None
            chosen.append(point.what)
        return self._partition(axis, pieces, tuple(chosen)) if chosen else None

    def _batches(self, problem: Convolution, epilogue: Epilogue | None) -> tuple[Point, ...]:
        """The front of dividing a part's images."""
        key = (problem, epilogue)
        if key not in self._whole_batches:
            self._whole_batches[key] = fronts.micro_batches(problem.n, self._by_size(problem, epilogue))
        return self._whole_batches[key]

    def _by_size(self, problem: Convolution, epilogue: Epilogue | None) -> dict[int, tuple[Point, ...]]:
        """The front of single kernels for each number of images that the policy allows, the largest first."""
        may_divide = problem.n > 1 and not self._breaks_the_epilogue(problem, "n")
        sizes = fronts.sizes(problem.n, self._request.division) if may_divide else (problem.n,)
        if problem is not self._problem:
            sizes = tuple(size for size in sizes if size * _FEWEST >= problem.n or size == 1)
        found = {}
        for size in sizes:
            rest = (problem.n - size,) if size < problem.n else ()
            piece = cut(problem, "n", (size, *rest))[0] if rest else whole(problem)
            fused = epilogue_piece(epilogue, piece)
            found[size] = self._single(piece.problem, fused)
            if (piece.problem, fused) not in self._too_large and not self._may_gain(
                problem, size, found[size]
            ):
                break
        return found

    def _may_gain(self, problem: Convolution, size: int, points: Sequence[Point]) -> bool:
        """Whether fewer images at a time than `size` may come below what is known.

        They take no less time, and at best as much less workspace as there are fewer of them.
        """
        if not self._known:
            return True
        repeats = problem.n / size * self._problem.flops / max(1, problem.flops)
        return any(
            point.workspace > self._floor
            and _FASTER * repeats * point.seconds
            < MARGIN * _best(self._known, max(point.workspace * problem.n // (size * _FEWEST), self._floor))
            for point in points
        )

    def _single(self, problem: Convolution, epilogue: Epilogue | None) -> tuple[Point, ...]:
        """The front of running a part by one kernel; `what` is the candidate."""
        key = (problem, epilogue)
        if key not in self._singles:
            candidates = self._survey_part(problem, epilogue)
            if not candidates or any(o.is_too_large for o in candidates):
                self._too_large.add(key)
            # the reference is for those that nothing else takes
            usable = [o for o in candidates if o.is_open and o.algorithm.name != "reference"]
            if problem is not self._problem:
                usable = [_with_launch(candidate) for candidate in usable]
            self._singles[key] = fronts.front(Point(o.seconds, o.workspace, o) for o in usable)
        return self._singles[key]

    def _partition(
        self, axis: str | None, pieces: Sequence[Piece], choices: Sequence[Any]
    ) -> Partition | None:
        """The partition that a point of the fronts stands for; None if its sums would be less exact than is allowed."""
        steps: list[Step] = []
        candidates: list[AlgorithmCandidate] = []
        for piece, batches in zip(pieces, choices, strict=True):
            sizes = [size for size, _ in batches]
            inner = cut(piece.problem, "n", sizes) if len(sizes) > 1 else (whole(piece.problem),)
            for part, (_, candidate) in zip(inner, batches, strict=True):
                own = within(piece, part)
                fused = epilogue_piece(self._epilogue, own)
                steps.append(Step(own, candidate.algorithm, fused, candidate.workspace))
                candidates.append(candidate)
        summary = self._summary(axis, pieces, choices, steps, candidates)
        return None if summary is None else Partition(tuple(steps), summary)

    def _summary(
        self,
        axis: str | None,
        pieces: Sequence[Piece],
        choices: Sequence[Any],
        steps: Sequence[Step],
        candidates: Sequence[AlgorithmCandidate],
    ) -> Candidate | None:
        added = sum(step.piece.is_added for step in steps)
        bound = max(candidate.summary.error_bound or 0.0 for candidate in candidates)
        if added:  # what is added to was rounded before
            bound += UNIT_ROUNDOFF[self._problem.output.dtype] * sqrt(added)
            if bound > allowed_error(self._problem, self._request.accuracy, self._request.math):
                return None
        sources = {candidate.summary.source for candidate in candidates}
        names = list(dict.fromkeys(candidate.algorithm.name for candidate in candidates))
        words = []
        if axis is not None:
            words.append(_counted([extent(piece.problem, axis) for piece in pieces], axis))
        if len(choices[0]) > 1:
            words.append(_counted([size for size, _ in choices[0]], "n"))
        return Candidate(
            " + ".join(names) + (f" in {' of '.join(words)}" if words else ""),
            None,
            sum(candidate.seconds for candidate in candidates),
            next(source for source in ("estimate", "stored", "measured") if source in sources),
            max(candidate.workspace for candidate in candidates),
            bound,
            all(candidate.algorithm.deterministic for candidate in candidates),
            spreads=next((o.summary.spreads for o in candidates if o.summary.spreads is not None), None),
        )


def _with_launch(candidate: AlgorithmCandidate) -> AlgorithmCandidate:
    """What it costs to begin another part; a measured time has it already."""
    if candidate.summary.source != "estimate":
        return candidate
    return candidate.timed(candidate.seconds + LAUNCH_SECONDS, "estimate")


def _sizes(total: int, count: int) -> tuple[int, ...]:
    """`count` parts as equal as can be, of whole grains where there are enough."""
    grain = next(g for g in (_GRAIN, 8, 4, 1) if total % g == 0 and total // g >= count)
    return tuple(grain * size for size in fronts.even_sizes(total // grain, count))


def _counted(sizes: Sequence[int], axis: str) -> str:
    """Sizes in words: `7 x n32 + n16`."""
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    return " + ".join(f"{axis}{size}" if count == 1 else f"{count} x {axis}{size}" for size, count in runs)


def _best(points: Sequence[Point], workspace: int) -> float:
    """Seconds of the fastest of these in up to so many bytes, infinitely many if there is none."""
    return min((point.seconds for point in points if point.workspace <= workspace), default=inf)
