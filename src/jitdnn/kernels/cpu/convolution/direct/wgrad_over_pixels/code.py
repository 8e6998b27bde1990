"""The code of a filter's gradient vectorized over pixels: passes over row blocks of dy, then the store to dw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.direct.code import gradient_blend, pass_over_slice
from jitdnn.kernels.cpu.convolution.direct.plan import reads_of
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels.plan import WgradOverPixels
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, filter_offset, row_blocks
from jitdnn.kernels.cpu.microkernel.add_lanes import add_lanes
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import scale, split_index, view_offset
from jitdnn.kernels.cpu.schedule.row_vectors import Masks, RowVector
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

_BOUNDARY_VECTORS = 4  # at the ends of a row, that may be versions of their own
_DISTANCE = 4096  # bytes between a small plane and the one that is prefetched meanwhile


def trace(module: Module, prefix: str, plan: WgradOverPixels, extra: int) -> None:
    """Trace the task ``<prefix>tiles``; the kernel's ``extra`` holds the units of a task."""
    c, tile, tap_tiles, filter_tiles = plan.c, plan.tile, plan.tap_tiles, plan.filter_tiles
    full, rest = divmod(c.width, tile.results)
    versions = []
    for is_whole, results in ((True, tile.results if full else 0), (False, rest)):
        for number, taps in enumerate(tap_tiles if results else ()):
            name = f"{prefix}{'pass' if is_whole else 'rest'}{number}"
            part = plan.narrowed(results)
            one_pass = _trace_pass(module, name, part, taps)
            versions.append((is_whole, number, one_pass, _trace_finish(module, f"{name}_finish", part, taps)))
    size = tile.sums * plan.lanes  # of the sums of a tile of taps
    count = len(tap_tiles)
    group_size = plan.unit_filter_tiles * count * size
    with module.task(f"{prefix}tiles") as (k, args, task, _):
        arguments = Arguments(k, args, POINTERS)
        sums = k.local(c.dtype, plan.unit_groups * group_size)
        zero = k.constant(0, c.dtype, plan.lanes)
        for unit in plan.units.each(k, task, arguments.extra(extra)):
            begin, fits = unit["groups"] * plan.unit_groups, unit["results"] < full
            end_group = (begin + plan.unit_groups).min(c.group_count)
            result, channel = unit["results"] * tile.results, unit["channels"] * tile.channels
            first = unit["filter_tiles"] * plan.unit_filter_tiles
            last = (first + plan.unit_filter_tiles).min(math.prod(filter_tiles))
            for at in k.range(0, plan.unit_groups * group_size, plan.lanes):
                sums.store(zero, at)
            for n, d, h, end, *next_block in row_blocks(k, c, plan.row_block):
                if plan.unit_groups > 1:  # a later group's plane
                    next_block = [
                        k.integer((_DISTANCE // (abs(v.groups[0]) * plan.item + 1) + 1) * v.groups[0])
                        for v in (c.x, c.y)
                    ]
                for group in k.range(begin, end_group):
                    x = arguments.pointer(0, c.x.dtype) + view_offset(c, c.x, group, channel, (n, 0, 0, 0))
                    dy = arguments.pointer(1, c.y.dtype) + view_offset(c, c.y, group, result, (n, 0, 0, 0))
                    for filter_tile in k.range(first, last):
                        i, r = split_index(filter_tile, filter_tiles)
                        for is_whole, j, one_pass, _ in versions:
                            own = sums + (
                                (group - begin) * group_size + ((filter_tile - first) * count + j) * size
                            )
                            with when(k, fits if is_whole else ~fits):
                                prefetches = k.select(filter_tile == first, k.integer(int(j == 0)), 0)
                                tap = i, r * tile.rows
                                k.call(one_pass, x, dy, own, d, h, end, *tap, prefetches, *next_block)
            dw = arguments.pointer(2, c.w.dtype)
            for group in k.range(begin, end_group):
                for filter_tile in k.range(first, last):
                    i, r = split_index(filter_tile, filter_tiles)
                    target = dw + filter_offset(c, group, result, channel, i, r * tile.rows)
                    for is_whole, j, _, finish in versions:
                        own = sums + (
                            (group - begin) * group_size + ((filter_tile - first) * count + j) * size
                        )
                        with when(k, fits if is_whole else ~fits):
                            k.call(finish, own, target, scale(k, args, POINTERS))


def _trace_pass(module: Module, name: str, plan: WgradOverPixels, taps: range) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, prefetches, next_x, next_dy)``: rows [h, end) of slice d of dy, for
    the taps from (i, r) on and in ``taps`` along a row.

    ``x`` and ``dy`` point to the first channel of the tile in an image; ``sums`` to [result][channel][row of the
    filter][tap][lanes], which are added to. The first pass over a row block prefetches the next one: it
    is ``next_x`` and ``next_dy`` elements ahead.
    """
    c = plan.c
    names = ("d", "h", "end", "i", "r", "prefetches", "next_x", "next_dy")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, prefetches, *next_block), function,
    ):  # fmt: skip
        code = _Pass(k, plan, taps, r, prefetches, next_block)
        with pass_over_slice(k, plan, x, dy, sums, d, i, code.sums.values()) as (plane, gradient):
            code.rows(plane, gradient, h, end)
    return function


class _Pass:
    """Tracing one version of a pass."""

    def __init__(
        self, k: Builder, plan: WgradOverPixels, taps: range, first_row: Value, prefetches: Value,
        next_block: Sequence[Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, plan.tile, plan.c, plan.lanes
        self.first_row = first_row if self.tile.rows < self.c.axes[1].taps.count else self.k.integer(0)
        self.prefetches, self.next_block = prefetches, next_block
        zero = self.k.constant(0, self.c.dtype, self.lanes)
        index = (self.tile.results, self.tile.channels, self.tile.rows, len(taps))
        self.sums = {at: self.k.register(zero) for at in itertools.product(*map(range, index))}
        axis = self.c.axes[2]
        self.offsets = [axis.taps.offset + tap * axis.taps.shift for tap in taps]
        self.spans = [plan.span(offset) for offset in self.offsets]
        self.gradient = RowVector(1, self.c.y.space[2], axis.results, self.lanes)
        # vectors [first, last) are inside of the row, for dy and for every tap
        width = self.lanes * axis.step
        ends = [span.positions - offset for span, offset in zip(self.spans, self.offsets, strict=True)]
        whole = [(end - 1 + axis.step) // width if end > 0 else 0 for end in ends]
        self.last = max(0, min(axis.results // self.lanes, *whole))
        self.first = min(max(-(-max(0, -min(self.offsets)) // width), 0), self.last)

    def rows(self, plane: Pointer, dy: Pointer, h: Value, end: Value) -> None:
        """Rows of dy, ``height`` at a time."""
        height = self.tile.height
        done = h
        if height > 1:
            done = h + (end - h) // height * height
            for row in self.k.range(h, done, height):
                self._row(plane, dy, row, height)
        for row in self.k.range(done, end):
            self._row(plane, dy, row, 1)

    def _row(self, plane: Pointer, dy: Pointer, h: Value, height: int) -> None:
        """Some rows of dy, vector by vector."""
        k, vectors = self.k, self.plan.vectors
        for v in k.range(self.first, self.last):
            self._step(plane, dy, h, height, v, (self.first, self.last - 1))
        ends = [*range(self.first), *range(self.last, vectors)]
        if len(ends) <= _BOUNDARY_VECTORS:
            for v in ends:
                self._step(plane, dy, h, height, k.integer(v), (v, v))
            return
        for run in (range(self.first), range(self.last, vectors)):
            for v in k.range(run.start, run.stop):
                self._step(plane, dy, h, height, v, (run.start, run.stop - 1))

    def _prefetch(self, plane: Pointer, dy: Pointer, h: Value, height: int, v: Value) -> None:
        """Prefetch what the same vector of the same rows of the next block is the first to read."""
        x, y, axis = self.c.x, self.c.y, self.c.axes[1]
        step = self.c.axes[2].step
        corner = plane + (
            h * (axis.step * x.space[1]) + self.next_block[0] + v * (step * self.lanes * x.space[2])
        )
        for channel, row in itertools.product(range(self.tile.channels), range(height * axis.step)):
            for line in range(step):
                corner.prefetch(channel * x.channels + row * x.space[1] + line * self.lanes * x.space[2])
        corner = dy + (h * y.space[1] + self.next_block[1] + v * (self.lanes * y.space[2]))
        for result, row in itertools.product(range(self.tile.results), range(height)):
            corner.prefetch(result * y.channels + row * y.space[1])

    def _step(
        self, plane: Pointer, dy: Pointer, h: Value, height: int, v: Value, known: tuple[int, int]
    ) -> None:
        """One vector of pixels of each row; ``known`` is the least and the greatest number that v can be."""
        k, c, tile, axis = self.k, self.c, self.tile, self.c.axes[1]
        with k.when(self.prefetches != 0):
            self._prefetch(plane, dy, h, height, v)
        p, bounds = v * self.lanes, [number * self.lanes for number in known]
        mask = self.gradient.masks(k, p, bounds[0], bounds[1])
        masks = [
            span.masks(
                k, p * span.step + offset, bounds[0] * span.step + offset, bounds[1] * span.step + offset
            )
            for span, offset in zip(self.spans, self.offsets, strict=True)
        ]
        gradients = {
            (result, row): self.gradient.load(
                dy + (result * c.y.channels + (h + row) * c.y.space[1]), p, mask
            )
            for result, row in itertools.product(range(tile.results), range(height))
        }
        first = h * axis.step + axis.taps.offset + self.first_row * axis.taps.shift
        for at, pairs in reads_of(axis, height, tile.rows).items():
            with when(k, inside(axis, first + at, 1)):
                row_of_x = plane + (first + at) * c.x.space[1]
                for channel in range(tile.channels):
                    image = row_of_x + channel * c.x.channels
                    self._multiply(image, p, channel, pairs, masks, gradients)

    def _multiply(
        self, image: Pointer, p: Value, channel: int, pairs: Sequence[tuple[int, int]],
        masks: Sequence[Masks], gradients: dict[tuple[int, int], Value],
    ) -> None:  # fmt: skip
        """One row of x, at every tap of the row, times the rows of dy that meet it."""
        for tap, (span, offset) in enumerate(zip(self.spans, self.offsets, strict=True)):
            vector = span.load(image, p * span.step + offset, masks[tap])
            for (row, r), result in itertools.product(pairs, range(self.tile.results)):
                register = self.sums[result, channel, r, tap]
                register.set(self.k.fma(vector, gradients[result, row], register.get()))


def _trace_finish(module: Module, name: str, plan: WgradOverPixels, taps: range) -> Function:
    """Trace ``name(sums, dw, scale)``: add up the lanes of the sums of a pass and store them.

    ``dw`` points to the first tap of the tile's first row of taps, ``scale`` to alpha and beta.
    """
    c, tile, lanes = plan.c, plan.tile, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64") as (k, (sums, dw, scale), function):
        blend = gradient_blend(k, scale, c.dtype)
        steps = [axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True)]
        wide = 1 << (len(taps) - 1).bit_length()
        mask = None if wide == len(taps) else k.mask(len(taps), wide)
        for result in k.range(tile.results):
            for channel in k.range(tile.channels):
                for row in k.range(tile.rows):
                    number = ((result * tile.channels + channel) * tile.rows + row) * len(taps)
                    total = add_lanes(k, [sums.load((number + i) * lanes, lanes) for i in range(len(taps))])
                    at = result * c.w.results + channel * c.w.channels + row * steps[1]
                    blend.store(dw + (at + taps.start * steps[2]), steps[2], total, [], mask)
    return function
