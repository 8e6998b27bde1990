"""The code of `filter_group_lanes`: one pass over some rows for one vector of groups, and the end of its sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.row_vectors import Masks, RowVector
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import WgradOverGroups


def trace_pass(module: Module, name: str, plan: WgradOverGroups, taps: range) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, group, channel, asks, ahead_x, ahead_dy)``: rows [h, end) of slice d
    of dy, for the taps from (i, r) on and in ``taps`` along a row, of one channel of the groups from ``group`` on.

    ``x`` and ``dy`` point to the first channel of an image; ``sums`` to [result][row of the filter][tap][lanes],
    which are added to. The first pass over some rows ``asks`` for the rows that come after them, which are as far
    ahead as the last two say.
    """
    c = plan.c
    names = ("d", "h", "end", "i", "r", "group", "channel", "asks", "ahead_x", "ahead_dy")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, group, channel, asks, *ahead), function,
    ):  # fmt: skip
        code = _Pass(k, plan, taps, r, group, channel, asks, ahead)
        at = d * c.axes[0].step + c.axes[0].taps.offset + i * c.axes[0].taps.shift
        with when(k, inside(c.axes[0], at, 1)):
            for number, register in enumerate(code.sums.values()):
                register.set(sums.load(number * plan.lanes, plan.lanes))
            plane, gradient = x + at * c.x.space[0], dy + d * c.y.space[0]
            for row in k.range(h, end):
                code.row(plane, gradient, row)
            for number, register in enumerate(code.sums.values()):
                sums.store(register.get(), number * plan.lanes)
    return function


class _Pass:
    def __init__(
        self, k: Builder, plan: WgradOverGroups, taps: range, first_row: Value, group: Value, channel: Value,
        asks: Value, ahead: Sequence[Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, plan.tile, plan.c, plan.lanes
        self.first_row, self.group = first_row, group
        self.asks, self.ahead = asks, ahead
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (self.c.width, self.tile.rows, len(taps))
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        axis = self.c.axes[2]
        self.offsets = [axis.taps.offset + tap * axis.taps.shift for tap in taps]
        # channels of a group that are neighbours are picked from a run of them; others are apart
        is_picked = plan.x_span.step > 1
        self.x_first = self.group * plan.x_span.step + (channel if is_picked else 0)
        self.x_channel = k.integer(0) if is_picked else channel * self.c.x.channels
        self.x_masks = self._masks(plan.x_span, self.x_first, 0, self.c.depth - 1 if is_picked else 0)
        is_picked = plan.y_span.step > 1
        self.y_firsts = [
            (result if is_picked else 0, 0 if is_picked else result) for result in range(self.c.width)
        ]
        self.y_masks = [
            self._masks(plan.y_span, self.group * plan.y_span.step + first, first, first)
            for first, _ in self.y_firsts
        ]

    def _masks(self, span: RowVector, first: Value, lowest: int, highest: int) -> Masks:
        end = (self.plan.vectors - 1) * self.lanes * span.step
        return span.masks(self.k, first, lowest, end + highest)

    def _ask(self, plane: Pointer, dy: Pointer, h: Value, p: Value, columns: int) -> None:
        """Prefetch what the same columns of the same row of the next block will read first."""
        x, y, (_, axis, along) = self.c.x, self.c.y, self.c.axes
        corner = plane + (h * (axis.step * x.space[1]) + self.ahead[0] + self.group * x.groups[0])
        corner = corner + p * (along.step * x.space[2])
        for row, column in itertools.product(range(axis.step), range(columns * along.step)):
            corner.prefetch(column * x.space[2] + row * x.space[1])
        corner = dy + (h * y.space[1] + self.ahead[1] + self.group * y.groups[0] + p * y.space[2])
        for column in range(columns):
            corner.prefetch(column * y.space[2])

    def row(self, plane: Pointer, dy: Pointer, h: Value) -> None:
        """One row of dy, some columns at a time; only those in the middle need no test of x's ends."""
        k, axis, columns = self.k, self.c.axes[2], self.tile.columns
        whole, rest = divmod(axis.results, columns)
        width = columns * axis.step
        first = min(-(-max(0, -min(self.offsets)) // width), whole)
        last = (axis.positions - 1 - max(self.offsets) + axis.step) // width
        last = max(first, min(last, whole))
        for tiles, is_inner in (
            (range(first), False),
            (range(first, last), True),
            (range(last, whole), False),
        ):
            for number in k.range(tiles.start, tiles.stop):
                self._step(plane, dy, h, number * columns, columns, is_inner)
        if rest:
            self._step(plane, dy, h, k.integer(whole * columns), rest, False)

    def _step(self, plane: Pointer, dy: Pointer, h: Value, p: Value, columns: int, is_inner: bool) -> None:
        """Some columns of dy from p on, by all taps of the tile."""
        k, c, (_, rows, axis) = self.k, self.c, self.c.axes
        with k.when(self.asks != 0):
            self._ask(plane, dy, h, p, columns)
        gradients = {}
        dy = dy + h * c.y.space[1]
        for column, result in itertools.product(range(columns), range(c.width)):
            first, channel = self.y_firsts[result]
            pixel = dy + ((p + column) * c.y.space[2] + channel * c.y.channels)
            span = self.plan.y_span
            gradients[result, column] = span.load(pixel, self.group * span.step + first, self.y_masks[result])
        reach: dict[int, list[tuple[int, int]]] = {}
        for column, (tap, offset) in itertools.product(range(columns), enumerate(self.offsets)):
            reach.setdefault(column * axis.step + offset, []).append((column, tap))
        for r in range(self.tile.rows):
            at = h * rows.step + rows.taps.offset + (self.first_row + r) * rows.taps.shift
            with when(k, inside(rows, at, 1)):
                row = plane + at * c.x.space[1]
                for q, uses in sorted(reach.items()):
                    place = p * axis.step + q
                    is_there = None if is_inner else (place >= 0) & (place < axis.positions)
                    with when(k, is_there):
                        pixel = row + (place * c.x.space[2] + self.x_channel)
                        vector = self.plan.x_span.load(pixel, self.x_first, self.x_masks)
                        for (column, tap), result in itertools.product(uses, range(c.width)):
                            register = self.sums[result, r, tap]
                            register.set(k.fma(vector, gradients[result, column], register.get()))


def trace_finish(module: Module, name: str, plan: WgradOverGroups, taps: range) -> Function:
    """Trace ``name(sums, dw, scale, group)``: add up the shares of the sums of a pass and store them.

    ``dw`` points to the first tap of the tile's first row of taps of the vector's first group, ``scale`` to alpha
    and beta.
    """
    c, lanes = plan.c, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64", group=None) as (
        k, (sums, dw, scale, group), function,
    ):  # fmt: skip
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        blend = Blend(k, alpha, beta, None)
        steps = [axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True)]
        mask = k.mask(k.integer(c.groups[0]) - group, lanes) if c.groups[0] % lanes else None
        apart = plan.vectors * plan.filter_size
        for result in k.range(c.width):
            for row in k.range(plan.tile.rows):
                for tap in k.range(len(taps)):
                    number = (result * plan.tile.rows + row) * len(taps) + tap
                    total = k.register(k.constant(0, c.dtype, lanes))
                    for share in k.range(plan.splits):
                        total += sums.load(number * lanes + share * apart, lanes)
                    place = result * c.w.results + row * steps[1] + (tap + taps.start) * steps[2]
                    blend.store(dw + place, c.w.groups[0], total.get(), [], mask)
    return function
