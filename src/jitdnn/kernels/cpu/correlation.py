"""Every convolution, fprop or dgrad, as one form: a correlation over three axes of space.

    y[n, k, p] = sum over channels c and taps i of  w[k, c, tap i] * x[n, c, step * p + offset of tap i]

with zero where x is outside. A strided dgrad is several of these, one for each stride phase: the positions with the
same remainder modulo the stride. Each has only the taps that meet its positions, and none multiplies an inserted
zero. Neighbouring stride phases with equally many taps are one correlation, with the stride phase as one more group.
A matrix product is a correlation with a single tap. Nothing here depends on how it will be computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from jitdnn.rtcg.values import Value

_Count = TypeVar("_Count", int, Value)  # known now, or when the code runs


@dataclass(frozen=True)
class Taps:
    """Taps of an axis: i is at ``start + i * increment`` of the filter and reads ``offset + i * shift``."""

    count: int
    start: int = 0
    increment: int = 1
    offset: int = 0
    shift: int = 1

    @property
    def lowest(self) -> int:
        return min(self.offset, self.offset + (self.count - 1) * self.shift) if self.count else 0

    @property
    def span(self) -> int:
        """Distance from the lowest position read to the highest."""
        return (self.count - 1) * abs(self.shift) if self.count else 0


@dataclass(frozen=True)
class Axis:
    """One axis of space: how many results, how many positions to read from, and the step between results."""

    results: int
    positions: int
    step: int
    taps: Taps

    @property
    def is_plain(self) -> bool:
        """True if result p reads position p, by the filter's first element, and nothing else."""
        return self.taps == Taps(1) and self.step == 1

    @property
    def is_padded(self) -> bool:
        """True if some tap of some result reads outside."""
        highest = (self.results - 1) * self.step + self.taps.lowest + self.taps.span
        return self.taps.count > 0 and (self.taps.lowest < 0 or highest >= self.positions)

    def reached(self) -> tuple[int, int]:
        """The first and the last result for which some tap reads inside; (0, -1) if there is none."""
        first, last = self.results, -1
        for i in range(self.taps.count):
            offset = self.taps.offset + i * self.taps.shift  # result p reads p * step + offset
            low, high = max(0, -(offset // self.step)), (self.positions - 1 - offset) // self.step
            high = min(high, self.results - 1)
            if low <= high:
                first, last = min(first, low), max(last, high)
        return (first, last) if last >= 0 else (0, -1)

    def reads(self, results: _Count) -> _Count:
        """Positions from the lowest to the highest that so many results read."""
        return (results - 1) * self.step + (self.taps.span + 1)


@dataclass(frozen=True)
class View:
    """Strides of one tensor in elements: batch, groups, channels in a group, three axes; and an offset.

    ``dtype`` is the type in memory, as `stored_dtype` states it.
    """

    dtype: str
    batch: int
    groups: tuple[int, ...]
    channels: int
    space: tuple[int, int, int]
    offset: int = 0


@dataclass(frozen=True)
class FilterView:
    """Strides of a filter: groups, channels made (k), channels read (c), three axes of taps; its type in memory."""

    dtype: str
    groups: tuple[int, ...]
    results: int
    channels: int
    space: tuple[int, int, int]


@dataclass(frozen=True)
class Correlation:
    """``depth`` channels are read and ``width`` made in each group; ``dtype`` is that of the arithmetic."""

    dtype: str
    batch: int
    groups: tuple[int, ...]
    depth: int
    width: int
    axes: tuple[Axis, Axis, Axis]
    x: View
    w: FilterView
    y: View
    operands: tuple[View, ...] = ()

    @property
    def group_count(self) -> int:
        return math.prod(self.groups)

    @property
    def taps(self) -> int:
        return math.prod(axis.taps.count for axis in self.axes)

    def cropped(self) -> Correlation:
        """The same for only the results that read something other than padding.

        On each axis they are contiguous, and there may be none. All axes must have taps.
        """
        axes, firsts = [], []
        for axis in self.axes:
            first, last = axis.reached()
            taps = replace(axis.taps, offset=axis.taps.offset + first * axis.step)
            axes.append(replace(axis, results=last - first + 1, taps=taps))
            firsts.append(first)

        def moved(view: View) -> View:
            return replace(
                view, offset=view.offset + sum(f * s for f, s in zip(firsts, view.space, strict=True))
            )

        operands = tuple(moved(view) for view in self.operands)
        return replace(self, axes=(axes[0], axes[1], axes[2]), y=moved(self.y), operands=operands)

    def merged(self) -> Correlation:
        """The same with axes joined where strides in all tensors allow it, so that the last axis is longer."""
        axes, views = list(self.axes), [self.x, self.y, *self.operands]
        for last in (2, 1):  # h is joined to w, then d
            first = last - 1
            inner, outer = axes[2], axes[first]
            joins = all(v.space[first] == inner.results * v.space[2] for v in views)
            same = inner.is_plain and outer.is_plain and inner.positions == inner.results
            if outer.results == outer.positions == 1 or not same or not joins:
                continue
            axes[2] = Axis(inner.results * outer.results, inner.positions * outer.positions, 1, Taps(1))
            axes[first] = Axis(1, 1, 1, Taps(1))
            views = [replace(v, space=_without(v.space, first)) for v in views]
        merged = replace(
            self, axes=(axes[0], axes[1], axes[2]), x=views[0], y=views[1], operands=tuple(views[2:])
        )
        return merged._with_batch_merged()

    def regrouped(self) -> Iterator[Correlation]:
        """The same with other axes of the result as the channels that are made, of those that read the same x.

        Where a filter fits into its stride, every tap makes results of its own from all of x, as every channel does.
        Of channels, taps along w and taps along h, those that are one run in every tensor are joined, and each such
        run is the width in its turn; the others count as groups.
        """
        many = [i for i, stride in enumerate(self.x.groups) if stride == 0 and self.groups[i] > 1]
        if not many or self.taps != 1:
            yield self
            return

        def strides(channels: Sequence[int], groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
            return [tuple(channels), *(tuple(of[i] for of in groups) for i in many)]

        results = (self.y, *self.operands)
        steps = strides(
            (self.w.results, *(view.channels for view in results)),
            (self.w.groups, *(view.groups for view in results)),
        )
        runs = _joined_runs(
            [(self.width, steps[0]), *zip((self.groups[i] for i in many), steps[1:], strict=True)]
        )
        fixed = [i for i in range(len(self.groups)) if i not in many]

        def groups_of(view_groups: Sequence[int], number: int, others: Sequence[_Run]) -> tuple[int, ...]:
            return (*(view_groups[i] for i in fixed), *(run[1][number] for run in others))

        for run in runs:
            others = [other for other in runs if other is not run]
            views = [
                replace(view, channels=run[1][number], groups=groups_of(view.groups, number, others))
                for number, view in enumerate(results, 1)
            ]
            yield replace(
                self,
                width=run[0],
                groups=(*(self.groups[i] for i in fixed), *(other[0] for other in others)),
                x=replace(self.x, groups=(*(self.x.groups[i] for i in fixed), *(0 for _ in others))),
                w=replace(self.w, results=run[1][0], groups=groups_of(self.w.groups, 0, others)),
                y=views[0],
                operands=tuple(views[1:]),
            )

    def _with_batch_merged(self) -> Correlation:
        """The batch joined to the last axis, if that is plain and the other axes have one position."""
        inner, views = self.axes[2], [self.x, self.y, *self.operands]
        joins = inner.is_plain and inner.positions == inner.results
        joins = joins and all(a.results == 1 and a.is_plain and a.positions == 1 for a in self.axes[:2])
        if not joins or self.batch == 1 or any(v.batch != inner.results * v.space[2] for v in views):
            return self
        axis = Axis(self.batch * inner.results, self.batch * inner.positions, 1, Taps(1))
        views = [replace(v, batch=0) for v in views]
        return replace(
            self, batch=1, axes=(self.axes[0], self.axes[1], axis), x=views[0], y=views[1],
            operands=tuple(views[2:]),
        )  # fmt: skip


_Run = tuple[int, tuple[int, ...]]
"""Elements one after the other: how many, and how far apart in each tensor."""


def _joined_runs(axes: Sequence[_Run]) -> list[_Run]:
    """The axes with those joined that go on, in every tensor, where another one ends."""
    runs = sorted((run for run in axes if run[0] > 1), key=lambda run: [abs(step) for step in run[1]])
    joined: list[_Run] = []
    for count, steps in runs or list(axes[:1]):
        if joined and all(
            step == joined[-1][0] * inner for step, inner in zip(steps, joined[-1][1], strict=True)
        ):
            joined[-1] = joined[-1][0] * count, joined[-1][1]
        else:
            joined.append((count, steps))
    return joined


def _without(space: tuple[int, int, int], axis: int) -> tuple[int, int, int]:
    a, b, c = (0 if i == axis else s for i, s in enumerate(space))
    return a, b, c


@dataclass(frozen=True)
class StridePhase:
    """A correlation whose results are at the positions with one ``remainder`` modulo the stride."""

    remainder: tuple[int, int, int]
    c: Correlation


@dataclass(frozen=True)
class InterleavedPhases:
    """The stride phases of a strided dgrad, whose results interleave as in sub-pixel convolution.

    Result p of the stride phase with remainder (a, b, c) is at position ``strides * p + (a, b, c)`` of ``extents``.
    ``whole`` has the most results of any stride phase, its taps span what all of them read, and its y and operands are
    those of all positions.
    """

    whole: Correlation
    strides: tuple[int, int, int]
    extents: tuple[int, int, int]
    stride_phases: tuple[StridePhase, ...]

    @staticmethod
    def single(c: Correlation) -> InterleavedPhases:
        """One correlation as the only stride phase of stride 1."""
        a, b, last = (axis.results for axis in c.axes)
        return InterleavedPhases(c, (1, 1, 1), (a, b, last), (StridePhase((0, 0, 0), c),))

    @property
    def phase_strides(self) -> tuple[int, int, int, int]:
        """Distance in y from one result of a stride phase to the next: batch and the three axes."""
        return 1, *self.strides

    @property
    def is_single(self) -> bool:
        """True if the only stride phase is all of ``whole``.

        Of a strided dgrad whose results have one stride phase it need not be: that may have no tap, or others than
        those that cover what it reads.
        """
        return self == InterleavedPhases.single(self.whole)

    @property
    def has_phases_without_taps(self) -> bool:
        """True if there are results without a tap."""
        return len(self.stride_phases) < math.prod(self.strides)
