"""Training within a limit on memory: which results are dropped and computed again, and how each step runs.

`plan` takes a `Chain` (recompute_chain.py) and asks an integer program (recompute_program.py) for the fastest choice
whose memory stays within the limit at every moment; `RecomputePlan` is its answer. Nothing here touches an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jitdnn.errors import InvalidArgument
from jitdnn.planner.fronts import Point
from jitdnn.planner.plan import format_seconds
from jitdnn.planner.recompute_chain import (
    Action,
    Buffer,
    Chain,
    Gradient,
    Moment,
    Segment,
    Step,
    actions,
    moments,
    seconds,
)
from jitdnn.planner.recompute_program import Program
from jitdnn.settings import format_bytes

__all__ = [
    "Action",
    "Buffer",
    "Chain",
    "Gradient",
    "Moment",
    "RecomputePlan",
    "Segment",
    "Step",
    "least",
    "plan",
    "without_recomputing",
]


@dataclass(frozen=True)
class RecomputePlan:
    """Segments that cover the chain, and the point by which each step runs, forward and in each part of its backward
    pass. `limit` is what was asked for, None for none."""

    chain: Chain
    segments: tuple[Segment, ...]
    forward: tuple[Point, ...]
    backward: tuple[tuple[Point, ...], ...]
    limit: int | None = None

    @cached_property
    def actions(self) -> list[Action]:
        """What an iteration does, in order."""
        return actions(self.chain, self.segments)

    @cached_property
    def moments(self) -> list[Moment]:
        """The memory of an iteration in its steady state, moment by moment."""
        return moments(self.chain, self.segments, self.forward, self.backward, self.limit)

    @property
    def peak(self) -> int:
        """The most bytes in use at any moment, those that are always there among them."""
        return self.worst.total

    @property
    def worst(self) -> Moment:
        """The moment of the peak."""
        return max(self.moments, key=lambda moment: moment.total)

    @cached_property
    def seconds(self) -> float:
        """The time of an iteration."""
        return seconds(self.chain, self.segments, self.forward, self.backward)

    @property
    def rerun(self) -> list[int]:
        """The steps that run twice."""
        return [step for segment in self.segments for step in self.chain.contents(segment).rerun]

    @property
    def seconds_lost(self) -> float:
        """By how much an iteration takes longer than with all the memory that it could use."""
        fastest = self.chain.fastest
        if fastest is None:
            fastest = sum(
                min(point.seconds for point in front)
                for step in self.chain.steps
                for front in (step.forward, *step.backward)
            )
        return self.seconds - fastest

    def explain(self) -> str:
        """A table of the steps: what is kept of each, which run again, by what, and where the peak is."""
        chain, worst = self.chain, self.worst
        limit = "no limit" if self.limit is None else f"limit {format_bytes(self.limit)}"
        lines = [
            f"{limit}: peak {format_bytes(self.peak)} in the {_DIRECTIONS[worst.direction]} of "
            f"{chain.steps[worst.step].name}, of which {format_bytes(chain.constant)} are always there and "
            f"{format_bytes(worst.held)} workspace",
            f"{format_seconds(self.seconds)} an iteration, {format_seconds(max(0.0, self.seconds_lost))} more than "
            f"with memory for everything; {len(self.rerun)} of {len(chain.steps)} steps run again",
            "",
        ]
        rows = [("segment", "step", "kept", "dropped", "runs again", "workspace", "its peak")]
        for number, segment in enumerate(self.segments):
            contents = chain.contents(segment)
            for step in range(segment.start, segment.stop):
                made = chain.made_by(step)
                kept = sum(chain.buffers[i].bytes for i in made if i in contents.kept)
                dropped = sum(
                    chain.buffers[i].bytes for i in made if chain.buffers[i].needed and i not in contents.kept
                )
                again = self.forward[step].seconds
                points = (self.forward[step], *self.backward[step])
                peak = max(moment.total for moment in self.moments if moment.step == step)
                rows.append(
                    (
                        str(number),
                        chain.steps[step].name,
                        format_bytes(kept) if kept else "-",
                        format_bytes(dropped) if dropped else "-",
                        format_seconds(again) if step in contents.rerun else "-",
                        " ".join(format_bytes(p.workspace) for p in points if p.workspace) or "-",
                        format_bytes(peak) + (" <" if step == worst.step else ""),
                    )
                )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


_DIRECTIONS = {"forward": "forward pass", "rerun": "second forward pass", "backward": "backward pass"}


def without_recomputing(chain: Chain) -> RecomputePlan:
    """The fastest points, and nothing computed twice."""
    segments = tuple(Segment(step, step + 1) for step in range(len(chain.steps)))
    return RecomputePlan(
        chain,
        segments,
        tuple(_fastest(step.forward) for step in chain.steps),
        tuple(tuple(_fastest(front) for front in step.backward) for step in chain.steps),
    )


def plan(chain: Chain, limit: int) -> RecomputePlan:
    """The fastest plan whose memory never exceeds `limit` bytes.

    Raises InvalidArgument, naming the least limit that can be kept to, if this one cannot; NotSupported without SciPy.
    """
    best = without_recomputing(chain)
    best = RecomputePlan(chain, best.segments, best.forward, best.backward, limit)
    if best.peak <= limit:
        return best
    program = Program(chain)
    result = _solved(chain, program, limit)
    if result is not None:
        return result
    smallest = _least(chain, program)
    if smallest.peak <= limit:
        return RecomputePlan(chain, smallest.segments, smallest.forward, smallest.backward, limit)
    worst = smallest.worst
    raise InvalidArgument(
        f"a limit of {format_bytes(limit)} ({limit} bytes) is too small: this net needs at least {smallest.peak} bytes "
        f"({format_bytes(smallest.peak)}) to be trained, with all recomputed that can be; {chain.constant} of them are "
        f"there all the time, and the {_DIRECTIONS[worst.direction]} of {chain.steps[worst.step].name} needs the rest. "
        "Raise the limit or make the batch smaller"
    )


def least(chain: Chain) -> RecomputePlan:
    """The fastest plan of those that need the least memory; its limit is its own peak."""
    program = Program(chain)
    smallest = _least(chain, program)
    return _solved(chain, program, smallest.peak) or smallest


def _solved(chain: Chain, program: Program, limit: int) -> RecomputePlan | None:
    target = limit
    for _ in range(4):
        found = program.solve(target)
        if found is None:
            return None
        result = _made(chain, found, limit)
        if result.peak <= limit:
            return result
        target -= result.peak - limit  # the solver keeps to its rows but for rounding
    return None


def _least(chain: Chain, program: Program) -> RecomputePlan:
    found = program.solve(None)
    assert found is not None, "without a limit there is always a plan"
    # what the program's sums say is reached by giving workspace back before every step that needs less
    peak = _made(chain, found, 0).peak
    return _made(chain, found, peak)


def _made(
    chain: Chain, found: tuple[Sequence[Segment], Sequence[Point], Sequence[Sequence[Point]]], limit: int
) -> RecomputePlan:
    segments, forward, backward = found
    return RecomputePlan(chain, tuple(segments), tuple(forward), tuple(map(tuple, backward)), limit)


def _fastest(front: Sequence[Point]) -> Point:
    return min(front, key=lambda point: point.seconds)
