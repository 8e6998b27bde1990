"""The plan of pooling by one axis after the other, for channels-first tensors, forward.

The maximum of a rectangle is that of its rows' maxima, and a long window is made of shorter ones: with g elements
known for every place, a pass over ``x[i], x[i + g], x[i + 2 g]`` makes them 3 g. For a maximum the last pass may
overlap; sums need a whole factor of the window in each pass.

    for a unit: plane, block of rows of outputs
      rows: copy the rows that the block reads, with the identity around them; passes down the columns
            (with one pass only: straight from x, where rows outside of the image are a row of the identity)
      passes along all rows as one array, in place: what a pass reads lies at or behind what it writes
      the last pass along a row, at its stride, to y
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.pooling.geometry import Axis, Geometry
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.processor import Processor

_OVERLAP = 0.6  # of the cycles that are counted: what is independent overlaps
MOST_TERMS = 13  # of a pass: the largest prime factor of the window of a sum


def passes_of(window: int, mode: str) -> list[tuple[int, ...]] | None:
    """For each pass how far apart the elements are that it combines with the first; None if a factor is too large."""
    passes: list[tuple[int, ...]] = []
    reach = 1
    if mode == "max":
        while reach < window:
            wide = min(3 * reach, window)
            passes.append((wide - reach,) if wide <= 2 * reach else (reach, wide - reach))
            reach = wide
        return passes
    while reach < window:
        rest = window // reach
        factor = next((f for f in (4, 3, 2) if rest % f == 0), None)
        factor = factor or next((f for f in range(5, MOST_TERMS + 1, 2) if rest % f == 0), None)
        if factor is None:
            return None
        passes.append(tuple(n * reach for n in range(1, factor)))
        reach *= factor
    return passes


@dataclass(frozen=True, kw_only=True)
class SeparablePlan:
    """All is compiled in. Axes: (down the columns, along the rows); strides: (images, channels, rows, columns)."""

    mode: str
    counts_padding: bool
    dtype: str
    computing: str
    images: int
    channels: int
    axes: tuple[Axis, Axis]
    x: tuple[int, ...]
    y: tuple[int, ...]
    lanes: int
    block: int  # rows of outputs of a unit
    streams: bool

    @property
    def down(self) -> list[tuple[int, ...]]:
        return self._passes(0)

    @property
    def along(self) -> list[tuple[int, ...]]:
        return self._passes(1)

    def _passes(self, axis: int) -> list[tuple[int, ...]]:
        found = passes_of(self.axes[axis].window, self.mode) or []
        return [tuple(n * self.axes[axis].dilation for n in offsets) for offsets in found]

    @property
    def is_direct(self) -> bool:
        """Whether one pass down the columns reads x itself."""
        return len(self.down) <= 1

    @property
    def blocks(self) -> int:
        return ceil_div(self.axes[0].out, self.block) if self.block else 0

    @cached_property
    def pitch(self) -> int:
        """Elements of a row in the buffer."""
        axis = self.axes[1]
        return max((axis.out - 1) * axis.stride + axis.span, axis.before + axis.extent)

    @property
    def rows(self) -> int:
        """Rows in the buffer."""
        axis = self.axes[0]
        return self.block if self.is_direct else (self.block - 1) * axis.stride + axis.span

    @property
    def slack(self) -> int:
        """Elements behind the last row that passes read, and the last vector writes."""
        return max(1, self.axes[1].stride) * self.lanes + self.axes[1].span + self.lanes

    @property
    def buffer_elements(self) -> int:
        return self.rows * self.pitch + self.slack

    @property
    def row_elements(self) -> int:
        """Of the row of the identity, as far as vectors of a row of x reach."""
        return ceil_div(self.axes[1].extent, self.lanes) * self.lanes if self.is_direct else 0

    @property
    def count_elements(self) -> int:
        """Of the table with how many columns each window of a row counts."""
        return ceil_div(self.axes[1].out, self.lanes) * self.lanes if self.mode == "avg" else 0

    @property
    def thread_elements(self) -> int:
        line = 64 // ITEM_BYTES[self.computing]
        return ceil_div(self.buffer_elements + self.row_elements + self.count_elements, line) * line


def block_of(geometry: Geometry, mode: str, computing: str, processor: Processor) -> int:
    """Rows of outputs of a unit: all of them where their rows stay in the cache; 0 if not even one row does."""
    down, along = geometry.axes[0], geometry.axes[2]
    row = ITEM_BYTES[computing] * (along.extent + along.span)
    is_direct = len(passes_of(down.window, mode) or ()) <= 1
    room = processor.l2(cost.POOLING_PLANE_L2) // row
    most = room if is_direct else (room - down.span) // down.stride + 1
    if most >= down.out:
        return down.out
    # rows that neighbouring blocks both read are few beside those of a block
    return most if is_direct or most * down.stride >= 2 * down.span else 0


def cycles(plan: SeparablePlan) -> float:
    """Cycles of one thread."""
    along = plan.axes[1]
    combine = 1.6 if plan.mode == "max" else 0.6

    def vectors(elements: int) -> int:
        return ceil_div(elements, plan.lanes)

    def one_pass(offsets: tuple[int, ...], loads: float = 1.0) -> float:
        return 1.5 + loads * 0.7 * (1 + len(offsets)) + combine * len(offsets)

    rows = plan.rows * (4.0 + vectors(along.before + along.extent + along.span - 1 - along.extent))
    if plan.is_direct:
        taps = plan.down[0] if plan.down else ()
        rows += plan.block * (5.0 + 3.0 * len(taps) + vectors(along.extent) * one_pass(taps))
    else:
        rows += plan.rows * vectors(along.extent) * 1.7
        for number, offsets in enumerate(plan.down):
            last = number == len(plan.down) - 1
            rows += vectors((plan.block if last else plan.rows) * plan.pitch) * one_pass(offsets)
    for offsets in plan.along[:-1]:
        rows += vectors(plan.block * plan.pitch) * one_pass(offsets)
    stride = along.stride
    last_loads = 1.0 if stride == 1 else 1.5 * stride if stride <= 4 else 1.0 * plan.lanes
    final = one_pass(plan.along[-1] if plan.along else (), last_loads) + 3.0
    if plan.mode == "avg":
        final += 8.0
    if plan.y[3] != 1:
        final += plan.lanes
    rows += plan.block * (6.0 + vectors(along.out) * final)
    return plan.images * plan.channels * plan.blocks * (_OVERLAP * rows + 40.0)
