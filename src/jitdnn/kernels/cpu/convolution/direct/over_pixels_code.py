"""The code of one tile of `pixel_lanes`: sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.nontemporal import is_aligned, store_new
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.row_vectors import Masks
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.over_pixels import OverPixels, PixelTile

_LATENCY = 600  # cycles from asking for a line in memory until it is there
_AHEAD = 4096  # bytes between a small plane and the one that is asked for meanwhile

Pairs = Sequence[tuple[int, "int | Value"]]


def trace_tile(
    module: Module, name: str, plan: OverPixels, tile: PixelTile, numbers: range, edge: bool,
    epilogue: Epilogue | None,
) -> Function:  # fmt: skip
    """Trace ``name(x, w, y, scale, operands..., d, h, p)``: the tile whose first result is (d, h, p).

    ``x`` and ``w`` point to the group's first channel (``w`` to the tile's first result channel), ``y`` and the
    operands to the tile's first result, ``scale`` to alpha and beta. It is a tile with one of the
    ``numbers`` of its row; with ``edge`` it may reach over the ends of the row.
    """
    c, dtype = plan.c, plan.c.dtype
    operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
    with module.function(
        name, x=c.x.dtype, w=c.w.dtype, y=c.y.dtype, scale="f64", **operands, d=None, h=None, p=None
    ) as (k, (x, w, y, scale, *rest), function):  # fmt: skip
        *pointers, d, h, p = rest
        code = _Tile(k, plan, tile, numbers, edge, (d, h, p))
        code.sum_up(x, w)
        code.finish(Blend.of(k, scale, dtype, y, epilogue), [y, *pointers])
    return function


class _Tile:
    def __init__(
        self, k: Builder, plan: OverPixels, tile: PixelTile, numbers: range, edge: bool,
        place: tuple[Value, Value, Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.edge, self.c = k, plan, tile, edge, plan.c
        self.d, self.h, self.p = place
        self.lanes, self.span = plan.lanes, plan.span
        width = tile.vectors * self.lanes
        self.lowest, self.highest = numbers.start * width, (numbers.stop - 1) * width  # of what p can be
        if self.lowest == self.highest:
            self.p = k.integer(self.lowest)  # what is known is not tested
        if tile.rows >= self.c.axes[1].results:
            self.h = k.integer(0)
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (tile.channels, tile.rows, plan.strip.stride_phases, tile.vectors)
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        self.weights: dict[tuple[int, int, int, int], Value] = {}
        self.masks: dict[int, list[Masks]] = {}
        if plan.is_row_straight(tile):
            self.masks = {offset: self._masks(offset) for offset in plan.reads}

    def _first(self, vector: int, offset: int | Value) -> Value:
        """The position that lane 0 of a vector reads."""
        return self.p * self.span.step + (vector * self.lanes * self.span.step) + offset

    def _masks(self, offset: int | Value) -> list[Masks]:
        """The tests of the vectors at an offset."""
        if not self.edge:
            return [self.span.unmasked] * self.tile.vectors
        known = (offset,) if isinstance(offset, int) else (min(self.plan.reads), max(self.plan.reads))
        step, masks = self.span.step, []
        for v in range(self.tile.vectors):
            at = v * self.lanes * step
            lowest = at + min(known) + self.lowest * step
            highest = at + max(known) + self.highest * step
            masks.append(self.span.masks(self.k, self._first(v, offset), lowest, highest))
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
        if self.plan.is_straight(self.tile):
            self.weights = self._kept_weights(w)
            for place, pairs in self.plan.reach(rows).items():
                self._row(plane, w, self.h * axis.step + place, list(pairs))
        elif rows == 1:
            for tap in self.k.range(axis.taps.count):
                at = self.h * axis.step + axis.taps.offset + tap * axis.taps.shift
                self._row(plane, w, at, [(0, tap)])
        else:
            self._slide(plane, w)

    def _kept_weights(self, w: Pointer) -> dict[tuple[int, int, int, int], Value]:
        """The filter by (result channel, row tap, stride phase, tap) if registers are left for all of it."""
        tile, taps = self.tile, self.c.axes[1].taps
        if not self.plan.keeps_filter(tile):
            return {}
        index = [
            (channel, row, stride_phase, tap)
            for channel, row in itertools.product(range(tile.channels), range(taps.count))
            for stride_phase, axis in enumerate(self.plan.strip.last)
            for tap in range(axis.taps.count)
        ]
        stride = taps.increment * self.c.w.space[1]
        return {
            (channel, row, stride_phase, tap): (w + (channel * self.c.w.results + row * stride)).splat(
                self._place(stride_phase, tap), self.lanes
            )
            for channel, row, stride_phase, tap in index
        }

    def _prefetch(self, plane: Pointer) -> None:
        """Ask for the rows that the next tiles below are the first to read, for those of a plane to come, or for what
        the tile after the next one reads where there is but one row.

        A tile walks down the rows or the channels, and the next one down the same: the processor sees no run of
        addresses.
        """
        rows, step, x = self.c.axes[1], self.span.step, self.c.x
        if x.space[2] != 1 or not self.c.taps:  # a class of places that no tap meets
            return
        corner = plane + self._first(0, 0)
        if self.tile.rows < rows.results:
            lowest = rows.taps.lowest + rows.taps.span + (self.tile.rows - 1) * rows.step + 1
            corner = corner + (self.h * rows.step + lowest) * x.space[1]
            count = self.tile.rows * rows.step
        elif self.c.depth == 1:
            apart = max(1, abs(x.groups[0]))
            corner = corner + x.groups[0] * (_AHEAD // (apart * ITEM_BYTES[self.c.dtype]) + 1)
            count = rows.positions
        elif self.plan.is_foreseen:
            cycles = self.c.depth * self.c.taps * self.tile.channels * self.tile.vectors / 2
            ahead = min(max(2, math.ceil(_LATENCY / cycles)), 4)
            corner, count = corner + (ahead * self.tile.vectors * self.lanes + max(self.plan.reads)), 1
        else:
            return
        for row, line in itertools.product(range(count), range(self.tile.vectors * step)):
            corner.prefetch(row * x.space[1] + line * self.lanes)

    def _slide(self, plane: Pointer, w: Pointer) -> None:
        """Row u of the input, from the lowest one that the tile reads on, feeds row r of the tile by tap u - r.

        Most rows feed them all; some at both ends, which are written out, only a part.
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
            if self.plan.is_row_straight(self.tile):
                for offset, taps in self.plan.reads.items():
                    self._multiply(row, lines, offset, self.masks[offset], taps)
            else:
                for stride_phase, axis in enumerate(self.plan.strip.last):
                    for tap in self.k.range(axis.taps.count):
                        reads = tap * axis.taps.shift + axis.taps.offset
                        self._multiply(row, lines, reads, self._masks(reads), [(stride_phase, tap)])

    def _place(self, stride_phase: int, tap: int | Value) -> int | Value:
        """Where a tap of the last axis is in the filter's row."""
        taps, stride = self.plan.strip.last[stride_phase].taps, self.c.w.space[2]
        return tap * (taps.increment * stride) + taps.start * stride

    def _multiply(
        self, row: Pointer, lines: Sequence[tuple[int, int | Value, Pointer]], offset: int | Value,
        masks: list[Masks], uses: Sequence[tuple[int, int | Value]],
    ) -> None:  # fmt: skip
        """The vectors at one offset times every value of the filter that meets them."""
        k, c = self.k, self.c
        vectors = [self.span.load(row, self._first(v, offset), masks[v]) for v in range(self.tile.vectors)]
        for r, row_tap, line in lines:
            for channel in range(self.tile.channels):
                for stride_phase, tap in uses:
                    if isinstance(row_tap, int) and isinstance(tap, int) and self.weights:
                        weight = self.weights[channel, row_tap, stride_phase, tap]
                    else:
                        weight = (line + channel * c.w.results).splat(
                            self._place(stride_phase, tap), self.lanes
                        )
                    for v, vector in enumerate(vectors):
                        register = self.sums[channel, r, stride_phase, v]
                        register.set(k.fma(vector, weight, register.get()))

    # ---- results

    def finish(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to their places."""
        k, strip = self.k, self.plan.strip
        left = strip.results - self.p * strip.stride_phases
        room = self.highest * strip.stride_phases
        masks = []
        for j in range(strip.stride_phases * self.tile.vectors):
            fits = not self.edge or room + (j + 1) * self.lanes <= strip.results
            masks.append(None if fits else k.mask(left - j * self.lanes, self.lanes))
        straight = self._finish_new if blend.epilogue is None else self._finish_kept
        is_new = blend.overwrites
        if self.plan.streams:
            is_streamed = is_new & is_aligned(pointers[0], self.lanes)
            with k.when(is_streamed):
                straight(blend, pointers, masks, streams=True)
            with k.when(~is_streamed):
                self._finish_either(blend, pointers, masks)
        else:
            self._finish_either(blend, pointers, masks)

    def _finish_either(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None]
    ) -> None:
        """Through the caches, for any beta."""
        if blend.epilogue is not None:
            self._finish_kept(blend, pointers, masks)
            return
        is_new = blend.overwrites
        with self.k.when(is_new):
            self._finish_new(blend, pointers, masks)
        with self.k.when(~is_new):
            self._finish_kept(blend, pointers, masks)

    def _finish_new(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None], streams: bool = False
    ) -> None:
        """Straight from the registers to y, of which nothing is read; past the caches if it ``streams``."""
        y, step = pointers[0], self.plan.strip.pixel(self.c.y)
        for channel, row in itertools.product(range(self.tile.channels), range(self.tile.rows)):
            with when(self.k, self._is_row(row)):
                for j, vector in enumerate(self._woven(channel, row)):
                    at = channel * self.c.y.channels + row * self.c.y.space[1] + j * self.lanes * step
                    store_new(y + at, step, blend.scaled(vector, ()), masks[j], streams)

    def _is_row(self, row: int) -> Value | None:
        """Whether the result has this row of the tile; None if it surely has."""
        results = self.c.axes[1].results
        return None if row == 0 or results % self.tile.rows == 0 else self.h + row < results

    def _woven(self, channel: int, row: int) -> list[Value]:
        """The sums of one row of pixels, in the order of the pixels."""
        woven = []
        for v in range(self.tile.vectors):
            stride_phases = range(self.plan.strip.stride_phases)
            woven += interleave(
                self.k, [self.sums[channel, row, stride_phase, v].get() for stride_phase in stride_phases]
            )
        return woven

    def _finish_kept(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None], streams: bool = False
    ) -> None:
        """Through a little memory and a loop, so that an epilogue is in the code once for each vector of a row."""
        k, c, tile, strip, lanes = self.k, self.c, self.tile, self.plan.strip, self.lanes
        count = strip.stride_phases * tile.vectors
        kept = k.local(c.dtype, tile.channels * tile.rows * count * lanes)
        for channel, row in itertools.product(range(tile.channels), range(tile.rows)):
            for j, vector in enumerate(self._woven(channel, row)):
                kept.store(vector, ((channel * tile.rows + row) * count + j) * lanes)
        views = (c.y, *c.operands)
        rows = (k.integer(c.axes[1].results) - self.h).min(tile.rows) if tile.rows > 1 else 1
        steps = [strip.pixel(view) for view in views]
        for this_channel in k.range(tile.channels):
            for this_row in k.range(rows):
                own = kept + (this_channel * tile.rows + this_row) * (count * lanes)
                places = [
                    p + (this_channel * v.channels + this_row * v.space[1])
                    for p, v in zip(pointers, views, strict=True)
                ]
                for j in range(count):
                    at = [place + j * lanes * step for place, step in zip(places, steps, strict=True)]
                    others = [
                        o.load_strided(0, step, lanes, masks[j])
                        for o, step in zip(at[1:], steps[1:], strict=True)
                    ]
                    value = own.load(j * lanes, lanes)
                    if streams:
                        store_new(at[0], steps[0], blend.scaled(value, others), masks[j], streams)
                    else:
                        blend.store(at[0], steps[0], value, others, masks[j])


def interleave(k: Builder, parts: Sequence[Value]) -> list[Value]:
    """As many vectors as there are parts: lane 0 of each part, then lane 1 of each, and so on."""
    lanes, count = parts[0].lanes, len(parts)
    if count == 1:
        return list(parts)
    woven = []
    for number in range(count):
        places = [number * lanes + lane for lane in range(lanes)]
        vector = parts[0]
        for other in range(1, count):
            pattern = []
            for lane, place in enumerate(places):
                if place % count == other:
                    pattern.append(lanes + place // count)
                else:
                    pattern.append(place // count if other == 1 and place % count == 0 else lane)
            vector = k.shuffle(vector, parts[other], pattern)
        woven.append(vector)
    return woven
