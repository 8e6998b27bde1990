"""The code of a correlation vectorized over pixels: a tile of sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.code import (
    interleave,
    pointer_count,
    results_of,
    store_from,
    tile_function,
)
from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import OverPixels
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.nontemporal import is_aligned, store_new
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import group_offset, scale, view_offset
from jitdnn.kernels.cpu.schedule.row_vectors import Masks
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

_LATENCY = 600  # cycles from a prefetch until the line is there from memory
_DISTANCE = 4096  # bytes between a small plane and the one that is prefetched meanwhile

Pairs = Sequence[tuple[int, "int | Value"]]


def trace(module: Module, prefix: str, plan: OverPixels, extra: int, epilogue: Epilogue | None) -> None:
    """Trace the task ``<prefix>tiles``; the kernel's ``extra`` holds the units of a task."""
    c, tile, pointers = plan.c, plan.tile, pointer_count(plan.c)
    width, tiles, (first, last) = plan.tile_pixels, plan.row_tiles, plan.inner_tiles()
    full, rest = divmod(c.width, tile.channels)
    versions: list[tuple[bool, range, Function]] = []
    for is_whole in (True, False):
        for number, numbers in enumerate(plan.version_runs()):
            if full if is_whole else rest:
                name = f"{prefix}{'tile' if is_whole else 'rest'}{number}"
                is_boundary = numbers.start < first or numbers.stop > last
                part = plan if is_whole else plan.narrowed(rest)
                function = _trace_tile(module, name, part, numbers, is_boundary, epilogue)
                versions.append((is_whole, numbers, function))
    with module.task(f"{prefix}tiles") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        tensors = results_of(arguments, c)
        for unit in plan.units.each(k, task, arguments.extra(extra)):
            n, group, d, h = unit["image"], unit["group"], unit["slice"], unit["rows"] * tile.rows
            channel = unit["channels"] * tile.channels
            x = arguments.pointer(0, c.x.dtype) + view_offset(c, c.x, group, 0, (n, 0, 0, 0))
            w = arguments.pointer(1, c.w.dtype) + (
                group_offset(group, c.groups, c.w.groups) + channel * c.w.results
            )
            begin = unit["run"] * plan.run_tiles
            for tile_number in k.range(begin, (begin + plan.run_tiles).min(tiles)):
                p = tile_number * width
                y, *operands = (t + view_offset(c, v, group, channel, (n, d, h, p)) for t, v in tensors)
                fits = unit["channels"] < full
                for is_whole, numbers, function in versions:
                    condition = (tile_number >= numbers.start) & (tile_number < numbers.stop)
                    with k.when(condition & (fits if is_whole else ~fits)):
                        k.call(function, x, w, y, scale(k, args, pointers), *operands, d, h, p)


def _trace_tile(
    module: Module, name: str, plan: OverPixels, numbers: range, is_boundary: bool, epilogue: Epilogue | None
) -> Function:
    """Trace ``name(x, w, y, scale, operands..., d, h, p)``: the tile whose first result is (d, h, p).

    ``x`` and ``w`` point to the group's first channel (``w`` to the tile's first result channel), ``y`` and the
    operands to the tile's first result, ``scale`` to alpha and beta. It is a tile with one of the
    ``numbers`` of its row; a tile at a boundary may reach over the ends of the row.
    """
    tensors = {"x": plan.c.x.dtype, "w": plan.c.w.dtype}
    with tile_function(module, name, plan.c, tensors, ("d", "h", "p")) as (
        k, (x, w, y, scale, *operands), (d, h, p), function,
    ):  # fmt: skip
        code = _Tile(k, plan, numbers, is_boundary, (d, h, p))
        code.sum_up(x, w)
        code.store(Blend.of(k, scale, plan.c.dtype, y, epilogue), [y, *operands])
    return function


class _Tile:
    """Tracing one version of a tile."""

    def __init__(
        self,
        k: Builder,
        plan: OverPixels,
        numbers: range,
        is_boundary: bool,
        first: tuple[Value, Value, Value],
    ) -> None:
        self.d, self.h, self.p = first
        self.k, self.plan, self.tile, self.c = k, plan, plan.tile, plan.c
        self.is_boundary = is_boundary
        self.lanes, self.span = plan.lanes, plan.span
        width = plan.tile_pixels
        self.lowest, self.highest = numbers.start * width, (numbers.stop - 1) * width  # of what p can be
        if self.lowest == self.highest:
            self.p = self.k.integer(self.lowest)  # a constant: tests of it fold away
        if self.tile.rows >= self.c.axes[1].results:
            self.h = self.k.integer(0)
        zero = self.k.constant(0, self.c.dtype, self.lanes)
        index = (self.tile.channels, self.tile.rows, plan.stride_phases, self.tile.vectors)
        self.sums = {at: self.k.register(zero) for at in itertools.product(*map(range, index))}
        self.weights: dict[tuple[int, int, int, int], Value] = {}
        self.masks: dict[int, list[Masks]] = {}
        if plan.is_row_unrolled:
            self.masks = {offset: self._masks(offset) for offset in plan.reads}

    def _position(self, vector: int, offset: int | Value) -> Value:
        """The position of x that lane 0 of a vector reads."""
        return self.p * self.span.step + (vector * self.lanes * self.span.step) + offset

    def _masks(self, offset: int | Value) -> list[Masks]:
        """The masks of the vectors at an offset."""
        if not self.is_boundary:
            return [self.span.unmasked] * self.tile.vectors
        known = (offset,) if isinstance(offset, int) else (min(self.plan.reads), max(self.plan.reads))
        step, masks = self.span.step, []
        for v in range(self.tile.vectors):
            at = v * self.lanes * step
            lowest = at + min(known) + self.lowest * step
            highest = at + max(known) + self.highest * step
            masks.append(self.span.masks(self.k, self._position(v, offset), lowest, highest))
        return masks

    # ---- sums

    def sum_up(self, x: Pointer, w: Pointer) -> None:
        """All channels and slices."""
        k, c = self.k, self.c
        slices, rows = c.axes[0], c.axes[1]
        w = w + (slices.taps.start * c.w.space[0] + rows.taps.start * c.w.space[1])
        for channel in k.range(c.depth):
            image, weights = x + channel * c.x.channels, w + channel * c.w.channels
            for tap in k.range(slices.taps.count):
                at = self.d * slices.step + slices.taps.offset + tap * slices.taps.shift
                with when(self.k, inside(slices, at, 1)):
                    plane = image + at * c.x.space[0]
                    self._plane(plane, weights + tap * (slices.taps.increment * c.w.space[0]))

    def _plane(self, plane: Pointer, w: Pointer) -> None:
        """All rows of one slice of one channel."""
        axis, rows = self.c.axes[1], self.tile.rows
        self._prefetch(plane)
        if self.plan.is_unrolled:
            self.weights = self._weights_in_registers(w)
            for offset, pairs in self.plan.row_reads.items():
                self._row(plane, w, self.h * axis.step + offset, list(pairs))
        elif rows == 1:
            for tap in self.k.range(axis.taps.count):
                at = self.h * axis.step + axis.taps.offset + tap * axis.taps.shift
                self._row(plane, w, at, [(0, tap)])
        else:
            self._slide(plane, w)

    def _weights_in_registers(self, w: Pointer) -> dict[tuple[int, int, int, int], Value]:
        """The filter by (result channel, row tap, stride phase, tap) if registers are left for all of it."""
        tile, taps = self.tile, self.c.axes[1].taps
        if not self.plan.filter_fits_registers:
            return {}
        index = [
            (channel, row, stride_phase, tap)
            for channel, row in itertools.product(range(tile.channels), range(taps.count))
            for stride_phase, axis in enumerate(self.plan.last_axes)
            for tap in range(axis.taps.count)
        ]
        stride = taps.increment * self.c.w.space[1]
        return {
            (channel, row, stride_phase, tap): (w + (channel * self.c.w.results + row * stride)).splat(
                self._tap_offset(stride_phase, tap), self.lanes
            )
            for channel, row, stride_phase, tap in index
        }

    def _prefetch(self, plane: Pointer) -> None:
        """Prefetch the rows that the next tiles below are the first to read, or those of a later plane, or what
        the tile after the next one reads where there is but one row.

        A tile goes down the rows or the channels, and the next one down the same: the hardware prefetcher sees no
        run of addresses.
        """
        rows, step, x = self.c.axes[1], self.span.step, self.c.x
        if x.space[2] != 1 or not self.c.taps:  # without taps nothing is read
            return
        corner = plane + self._position(0, 0)
        if self.tile.rows < rows.results:
            lowest = rows.taps.lowest + rows.taps.span + (self.tile.rows - 1) * rows.step + 1
            corner = corner + (self.h * rows.step + lowest) * x.space[1]
            count = self.tile.rows * rows.step
        elif self.c.depth == 1:
            apart = max(1, abs(x.groups[0]))
            corner = corner + x.groups[0] * (_DISTANCE // (apart * self.plan.item) + 1)
            count = rows.positions
        elif self.plan.prefetches_row:
            cycles = self.c.depth * self.c.taps * self.tile.channels * self.tile.vectors / 2
            tiles = min(max(2, math.ceil(_LATENCY / cycles)), 4)
            corner, count = corner + (tiles * self.tile.vectors * self.lanes + max(self.plan.reads)), 1
        else:
            return
        for row, line in itertools.product(range(count), range(self.tile.vectors * step)):
            corner.prefetch(row * x.space[1] + line * self.lanes)

    def _slide(self, plane: Pointer, w: Pointer) -> None:
        """Row u of the input, from the lowest one that the tile reads on, feeds row r of the tile by tap u - r.

        Most rows feed them all; some at both ends, which are unrolled, only a part.
        """
        axis, rows = self.c.axes[1], self.tile.rows
        taps, is_forward = axis.taps.count, axis.taps.shift > 0

        def row(u: int | Value, used: Sequence[int]) -> None:
            at = self.h + axis.taps.lowest + u
            self._row(plane, w, at, [(r, u - r if is_forward else r - u + (taps - 1)) for r in used])

        for u in range(rows - 1):
            row(u, range(u + 1))
        for middle in self.k.range(rows - 1, taps):
            row(middle, range(rows))
        for u in range(taps, taps + rows - 1):
            row(u, range(u - taps + 1, rows))

    def _row(self, plane: Pointer, w: Pointer, at: Value, pairs: Pairs) -> None:
        """One row of the input; ``pairs`` are the rows of the tile that it feeds, each by which tap."""
        c = self.c
        with when(self.k, inside(c.axes[1], at, self.tile.rows)):
            row = plane + at * c.x.space[1]
            stride = c.axes[1].taps.increment * c.w.space[1]
            lines = [(r, tap, w + tap * stride) for r, tap in pairs]
            if self.plan.is_row_unrolled:
                for offset, taps in self.plan.reads.items():
                    self._multiply(row, lines, offset, self.masks[offset], taps)
            else:
                for stride_phase, axis in enumerate(self.plan.last_axes):
                    for tap in self.k.range(axis.taps.count):
                        reads = tap * axis.taps.shift + axis.taps.offset
                        self._multiply(row, lines, reads, self._masks(reads), [(stride_phase, tap)])

    def _tap_offset(self, stride_phase: int, tap: int | Value) -> int | Value:
        """Offset of a tap of the last axis in the filter's row."""
        taps, stride = self.plan.last_axes[stride_phase].taps, self.c.w.space[2]
        return tap * (taps.increment * stride) + taps.start * stride

    def _multiply(
        self, row: Pointer, lines: Sequence[tuple[int, int | Value, Pointer]], offset: int | Value,
        masks: list[Masks], uses: Sequence[tuple[int, int | Value]],
    ) -> None:  # fmt: skip
        """The vectors at one offset times every value of the filter that meets them."""
        k, c = self.k, self.c
        vectors = [self.span.load(row, self._position(v, offset), masks[v]) for v in range(self.tile.vectors)]
        for r, row_tap, line in lines:
            for channel in range(self.tile.channels):
                for stride_phase, tap in uses:
                    if isinstance(row_tap, int) and isinstance(tap, int) and self.weights:
                        weight = self.weights[channel, row_tap, stride_phase, tap]
                    else:
                        weight = (line + channel * c.w.results).splat(
                            self._tap_offset(stride_phase, tap), self.lanes
                        )
                    for v, vector in enumerate(vectors):
                        register = self.sums[channel, r, stride_phase, v]
                        register.set(k.fma(vector, weight, register.get()))

    # ---- results

    def store(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to y, past the caches where the plan says so and y is aligned."""
        k, plan = self.k, self.plan
        left = plan.row_pixels - self.p * plan.stride_phases
        room = self.highest * plan.stride_phases
        masks = []
        for j in range(plan.stride_phases * self.tile.vectors):
            fits = not self.is_boundary or room + (j + 1) * self.lanes <= plan.row_pixels
            masks.append(None if fits else k.mask(left - j * self.lanes, self.lanes))
        overwrites = blend.overwrites
        if not plan.is_nontemporal:
            self._store_cached(blend, pointers, masks)
            return
        store = self._store_new if blend.epilogue is None else self._store_buffered
        is_nontemporal = overwrites & is_aligned(pointers[0], self.lanes)
        with k.when(is_nontemporal):
            store(blend, pointers, masks, nontemporal=True)
        with k.when(~is_nontemporal):
            self._store_cached(blend, pointers, masks)

    def _store_cached(self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> None:
        """Through the caches, for any beta."""
        if blend.epilogue is not None:
            self._store_buffered(blend, pointers, masks)
            return
        overwrites = blend.overwrites
        with self.k.when(overwrites):
            self._store_new(blend, pointers, masks)
        with self.k.when(~overwrites):
            self._store_buffered(blend, pointers, masks)

    def _store_new(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None],
        nontemporal: bool = False,
    ) -> None:  # fmt: skip
        """From the registers to y, of which nothing is read."""
        y, step = pointers[0], self.plan.pixel_step(self.c.y)
        for channel, row in itertools.product(range(self.tile.channels), range(self.tile.rows)):
            with when(self.k, self._has_row(row)):
                for j, vector in enumerate(self._row_vectors(channel, row)):
                    at = channel * self.c.y.channels + row * self.c.y.space[1] + j * self.lanes * step
                    store_new(y + at, step, blend.scaled(vector, ()), masks[j], nontemporal)

    def _has_row(self, row: int) -> Value | None:
        """Whether the result has this row of the tile; None if it always has."""
        results = self.c.axes[1].results
        return None if row == 0 or results % self.tile.rows == 0 else self.h + row < results

    def _row_vectors(self, channel: int, row: int) -> list[Value]:
        """The sums of one row of pixels, in the order of the pixels."""
        vectors = []
        for v in range(self.tile.vectors):
            stride_phases = range(self.plan.stride_phases)
            vectors += interleave(
                self.k, [self.sums[channel, row, stride_phase, v].get() for stride_phase in stride_phases]
            )
        return vectors

    def _store_buffered(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None],
        nontemporal: bool = False,
    ) -> None:  # fmt: skip
        """By way of a buffer and a loop, so that an epilogue is in the code once for each vector of a row."""
        k, c, tile, plan, lanes = self.k, self.c, self.tile, self.plan, self.lanes
        count = plan.stride_phases * tile.vectors
        buffer = k.local(c.dtype, tile.channels * tile.rows * count * lanes)
        for channel, row in itertools.product(range(tile.channels), range(tile.rows)):
            for j, vector in enumerate(self._row_vectors(channel, row)):
                buffer.store(vector, ((channel * tile.rows + row) * count + j) * lanes)
        views = (c.y, *c.operands)
        rows = (k.integer(c.axes[1].results) - self.h).min(tile.rows) if tile.rows > 1 else 1
        steps = [plan.pixel_step(view) for view in views]
        for this_channel in k.range(tile.channels):
            for this_row in k.range(rows):
                own = buffer + (this_channel * tile.rows + this_row) * (count * lanes)
                starts = [
                    p + (this_channel * v.channels + this_row * v.space[1])
                    for p, v in zip(pointers, views, strict=True)
                ]
                for j in range(count):
                    targets = [start + j * lanes * step for start, step in zip(starts, steps, strict=True)]
                    store_from(blend, own, j * lanes, targets, steps, lanes, masks[j], nontemporal)
