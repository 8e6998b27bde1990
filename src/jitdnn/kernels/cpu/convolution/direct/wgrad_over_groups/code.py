"""The code of a grouped filter's gradient vectorized over groups: passes over row blocks of dy, then stores to dw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.direct.code import gradient_blend, pass_over_slice
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups.plan import WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, block_count, row_blocks, tap_offset
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import scale, split_index
from jitdnn.kernels.cpu.schedule.row_vectors import Masks, RowVector
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace(module: Module, prefix: str, plan: WgradOverGroups, extra: int) -> None:
    """Trace the phases ``<prefix>tiles`` and, if there is a workspace, ``<prefix>finish``; there is no ``extra``."""
    c, tile, size = plan.c, plan.tile, plan.tile_size
    tap_tiles, filter_tiles = list(enumerate(plan.tap_tiles)), plan.filter_tiles
    passes = [_trace_pass(module, f"{prefix}pass{j}", plan, taps) for j, taps in tap_tiles]
    ends = [_trace_finish(module, f"{prefix}end{j}", plan, taps) for j, taps in tap_tiles]

    def finish(k: Builder, arguments: Arguments, own: Pointer, group: Value) -> None:
        """Store the sums of a vector of groups."""
        for number in k.range(math.prod(filter_tiles)):
            channel, i, r = split_index(number, filter_tiles)
            at = group * c.w.groups[0] + channel * c.w.channels + tap_offset(c, i, r * tile.rows)
            dw = arguments.pointer(2, c.w.dtype) + at
            for j, end in enumerate(ends):
                sums = own + (number * len(ends) + j) * size
                k.call(end, sums, dw, scale(k, arguments.args, POINTERS), group)

    with module.task(f"{prefix}tiles") as (k, args, task, _):
        arguments = Arguments(k, args, POINTERS)
        vector_block, split = split_index(task, (plan.vector_blocks, plan.splits))
        first = vector_block * plan.task_vectors
        last = (first + plan.task_vectors).min(plan.vectors)
        if plan.workspace():
            sums = arguments.workspace(c.dtype) + (split * plan.vectors + first) * plan.filter_size
        else:
            sums = k.local(c.dtype, plan.task_vectors * plan.filter_size)
        for at in k.range(0, (last - first) * plan.filter_size, plan.lanes):
            sums.store(k.constant(0, c.dtype, plan.lanes), at)
        blocks = block_count(c, plan.row_block)
        begin, stop = split * blocks // plan.splits, (split + 1) * blocks // plan.splits
        for n, d, h, end, *next_block in row_blocks(k, c, plan.row_block, begin, stop):
            x = arguments.pointer(0, c.x.dtype) + (n * c.x.batch + c.x.offset)
            dy = arguments.pointer(1, c.y.dtype) + (n * c.y.batch + c.y.offset)
            for vector in k.range(first, last):
                own = sums + (vector - first) * plan.filter_size
                for number in k.range(math.prod(filter_tiles)):
                    channel, i, r = split_index(number, filter_tiles)
                    for j, one_pass in enumerate(passes):
                        at = own + (number * len(passes) + j) * size
                        prefetches = k.select(number == 0, k.integer(int(j == 0)), 0)
                        tap = i, r * tile.rows
                        group = vector * plan.lanes
                        k.call(one_pass, x, dy, at, d, h, end, *tap, group, channel, prefetches, *next_block)
        if not plan.workspace():
            for vector in k.range(first, last):
                finish(k, arguments, sums + (vector - first) * plan.filter_size, vector * plan.lanes)
    if plan.workspace():
        with module.task(f"{prefix}finish") as (k, args, task, _):
            arguments = Arguments(k, args, POINTERS)
            sums = arguments.workspace(c.dtype) + task * plan.filter_size
            finish(k, arguments, sums, task * plan.lanes)


def _trace_pass(module: Module, name: str, plan: WgradOverGroups, taps: range) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, group, channel, prefetches, next_x, next_dy)``: rows [h, end) of slice
    d of dy, for the taps from (i, r) on and in ``taps`` along a row, of one channel of the groups from ``group`` on.

    ``x`` and ``dy`` point to the first channel of an image; ``sums`` to [result][row of the filter][tap][lanes],
    which are added to. The first pass over a row block prefetches the next one: it is ``next_x`` and ``next_dy``
    elements ahead.
    """
    c = plan.c
    names = ("d", "h", "end", "i", "r", "group", "channel", "prefetches", "next_x", "next_dy")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, group, channel, prefetches, *next_block), function,
    ):  # fmt: skip
        code = _Pass(k, plan, taps, r, group, channel, prefetches, next_block)
        with pass_over_slice(k, plan, x, dy, sums, d, i, code.sums.values()) as (plane, gradient):
            for row in k.range(h, end):
                code.row(plane, gradient, row)
    return function


class _Pass:
    """Tracing one version of a pass."""

    def __init__(
        self, k: Builder, plan: WgradOverGroups, taps: range, first_row: Value, group: Value, channel: Value,
        prefetches: Value, next_block: Sequence[Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, plan.tile, plan.c, plan.lanes
        self.first_row, self.group = first_row, group
        self.prefetches, self.next_block = prefetches, next_block
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (self.c.width, self.tile.rows, len(taps))
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        axis = self.c.axes[2]
        self.offsets = [axis.taps.offset + tap * axis.taps.shift for tap in taps]
        # channels of a group that are neighbours are shuffled out of a run of them; others are apart
        is_shuffled = plan.x_span.step > 1
        self.x_first = self.group * plan.x_span.step + (channel if is_shuffled else 0)
        self.x_channel = k.integer(0) if is_shuffled else channel * self.c.x.channels
        self.x_masks = self._masks(plan.x_span, self.x_first, 0, self.c.depth - 1 if is_shuffled else 0)
        is_shuffled = plan.y_span.step > 1
        self.y_firsts = [
            (result if is_shuffled else 0, 0 if is_shuffled else result) for result in range(self.c.width)
        ]
        self.y_masks = [
            self._masks(plan.y_span, self.group * plan.y_span.step + first, first, first)
            for first, _ in self.y_firsts
        ]

    def _masks(self, span: RowVector, first: Value, lowest: int, highest: int) -> Masks:
        end = (self.plan.vectors - 1) * self.lanes * span.step
        return span.masks(self.k, first, lowest, end + highest)

    def _prefetch(self, plane: Pointer, dy: Pointer, h: Value, p: Value, columns: int) -> None:
        """Prefetch what the same columns of the same row of the next block are the first to read."""
        x, y, (_, down, axis) = self.c.x, self.c.y, self.c.axes
        corner = plane + (h * (down.step * x.space[1]) + self.next_block[0] + self.group * x.groups[0])
        corner = corner + p * (axis.step * x.space[2])
        for row, column in itertools.product(range(down.step), range(columns * axis.step)):
            corner.prefetch(column * x.space[2] + row * x.space[1])
        corner = dy + (h * y.space[1] + self.next_block[1] + self.group * y.groups[0] + p * y.space[2])
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
        with k.when(self.prefetches != 0):
            self._prefetch(plane, dy, h, p, columns)
        gradients = {}
        dy = dy + h * c.y.space[1]
        for column, result in itertools.product(range(columns), range(c.width)):
            first, channel = self.y_firsts[result]
            pixel = dy + ((p + column) * c.y.space[2] + channel * c.y.channels)
            span = self.plan.y_span
            gradients[result, column] = span.load(pixel, self.group * span.step + first, self.y_masks[result])
        reads: dict[int, list[tuple[int, int]]] = {}
        for column, (tap, offset) in itertools.product(range(columns), enumerate(self.offsets)):
            reads.setdefault(column * axis.step + offset, []).append((column, tap))
        for r in range(self.tile.rows):
            at = h * rows.step + rows.taps.offset + (self.first_row + r) * rows.taps.shift
            with when(k, inside(rows, at, 1)):
                row = plane + at * c.x.space[1]
                for q, uses in sorted(reads.items()):
                    position = p * axis.step + q
                    is_inside = None if is_inner else (position >= 0) & (position < axis.positions)
                    with when(k, is_inside):
                        pixel = row + (position * c.x.space[2] + self.x_channel)
                        vector = self.plan.x_span.load(pixel, self.x_first, self.x_masks)
                        for (column, tap), result in itertools.product(uses, range(c.width)):
                            register = self.sums[result, r, tap]
                            register.set(k.fma(vector, gradients[result, column], register.get()))


def _trace_finish(module: Module, name: str, plan: WgradOverGroups, taps: range) -> Function:
    """Trace ``name(sums, dw, scale, group)``: add up the splits of the sums of a pass and store them.

    ``dw`` points to the first tap of the tile's first row of taps of the vector's first group, ``scale`` to alpha
    and beta.
    """
    c, lanes = plan.c, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64", group=None) as (
        k, (sums, dw, scale, group), function,
    ):  # fmt: skip
        blend = gradient_blend(k, scale, c.dtype)
        steps = [axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True)]
        mask = k.mask(k.integer(c.groups[0]) - group, lanes) if c.groups[0] % lanes else None
        apart = plan.vectors * plan.filter_size
        for result in k.range(c.width):
            for row in k.range(plan.tile.rows):
                for tap in k.range(len(taps)):
                    number = (result * plan.tile.rows + row) * len(taps) + tap
                    total = k.register(k.constant(0, c.dtype, lanes))
                    for split in k.range(plan.splits):
                        total += sums.load(number * lanes + split * apart, lanes)
                    at = result * c.w.results + row * steps[1] + (tap + taps.start) * steps[2]
                    blend.store(dw + at, c.w.groups[0], total.get(), [], mask)
    return function
