"""The code of `group_blocks`: filters turned to vectors, and one tile of sums from a packed block."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import tap_offset
from jitdnn.kernels.cpu.convolution.grouped.packing import spread
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.grouped.plan import GroupedPlan


MOST_TAPS = 4  # of a row that are multiplied at once


def chunks_of(axis: Axis) -> list[tuple[int, int]]:
    """Taps of a row that are multiplied at once: (the first, how many)."""
    count = axis.taps.count
    each = ceil_div(count, ceil_div(count, MOST_TAPS))
    return [(at, min(each, count - at)) for at in range(0, count, each)]


def reach(axis: Axis, columns: int, taps: int) -> dict[int, list[tuple[int, int]]]:
    """(column, tap) by the position that they read, from that of the first tap for the first column on."""
    found: dict[int, list[tuple[int, int]]] = {}
    for column, tap in itertools.product(range(columns), range(taps)):
        found.setdefault(column * axis.step + tap * axis.taps.shift, []).append((column, tap))
    return dict(sorted(found.items()))


def trace_filter(module: Module, name: str, plan: GroupedPlan, c: Correlation) -> Function:
    """Trace ``name(w, target, unit)``: the filters of a unit for one of the correlations, as [slice, row of taps]
    [vector][channel][tap of a row][lanes]; lanes without a result are 0."""
    lanes = plan.lanes
    slices, rows, columns = (axis.taps.count for axis in c.axes)
    along = c.axes[2].taps.increment * c.w.space[2]
    with module.function(name, w=c.w.dtype, target=c.dtype, unit=None) as (k, (w, target, unit), function):
        first = unit * plan.together
        for number in k.range(slices * rows * plan.vectors):
            d, h, vector = split_index(number, (slices, rows, plan.vectors))
            for tap in k.range(columns):
                source = w + (tap_offset(c, d, h) + tap * along + first * c.w.groups[0])
                source = source + vector * (lanes * c.w.results)
                own = target + (number * (c.depth * columns) + tap) * lanes
                count = (k.integer(c.width) - vector * lanes).min(lanes)
                if plan.together == 1 and c.w.channels == 1:
                    copy_transposed(k, source, c.w.results, count, c.depth, own, columns * lanes, lanes)
                    continue
                for channel in k.range(c.depth):
                    place = own + channel * (columns * lanes)
                    place.store(k.constant(0, c.dtype, lanes))
                    for group in k.range(k.integer(plan.together).min(k.integer(c.groups[0]) - first)):
                        value = source + (group * c.w.groups[0] + channel * c.w.channels)
                        mask = k.mask(count, lanes)
                        place.store(value.load_strided(0, c.w.results, lanes, mask), group * c.width, mask)
    return function


def trace_tile(module: Module, name: str, plan: GroupedPlan, c: Correlation, vectors: int) -> Function:
    """Trace ``name(x, filters, sums, y, d, row)``: the sums of a tile of one of the correlations as [column][vector]
    [lanes].

    ``x`` points to the first packed pixel that any correlation reads for the tile, which is in ``row`` of its slice;
    ``filters`` to those of the first of ``vectors`` vectors of results. ``y`` is where the first result will be, and
    ``d`` the slice of the results.
    """
    tile, lanes = plan.tile, plan.lanes
    depth, down, along = c.axes
    lowest = [axis.taps.lowest for axis in plan.c.axes]
    with module.function(
        name, x=c.dtype, filters=c.dtype, sums=c.dtype, y=c.y.dtype, d=None, row=None
    ) as (k, (x, filters, sums, y, d, row), function):  # fmt: skip
        for column, vector in itertools.product(range(tile.columns), range(vectors)):
            y.prefetch(column * (plan.several.strides[2] * c.y.space[2]) + vector * lanes, write=True)
        zero = k.constant(0, c.dtype, lanes)
        registers = {at: k.register(zero) for at in itertools.product(range(tile.columns), range(vectors))}
        code = _Tile(k, plan, c, vectors)
        for i in k.range(depth.taps.count):
            slice_at = d * depth.step + depth.taps.offset + i * depth.taps.shift
            with when(k, inside(depth, slice_at, 1)):
                for h in k.range(down.taps.count):
                    below = h * down.taps.shift + (down.taps.offset - lowest[1])
                    with when(k, inside(down, row + below, 1)):
                        number = i * depth.taps.shift + (depth.taps.offset - lowest[0])
                        pixels = x + (number * plan.slice_elements + below * plan.pack.pitches[2])
                        size = plan.vectors * c.depth * along.taps.count * lanes
                        code.row(pixels, filters + (i * down.taps.count + h) * size, registers)
        for (column, vector), register in registers.items():
            sums.store(register.get(), (column * tile.vectors + vector) * lanes)
    return function


class _Tile:
    def __init__(self, k: Builder, plan: GroupedPlan, c: Correlation, vectors: int) -> None:
        self.k, self.plan, self.vectors, self.c, self.tile = k, plan, vectors, c, plan.tile

    def row(self, pixels: Pointer, filters: Pointer, registers: dict[tuple[int, int], Register]) -> None:
        """All channels, by a row of taps."""
        k, plan, taps = self.k, self.plan, self.c.axes[2].taps
        for first, count in chunks_of(self.c.axes[2]):
            beside = taps.offset + first * taps.shift - plan.c.axes[2].taps.lowest
            own = pixels + beside * plan.pack.pitches[1]
            if plan.together == 1:
                for channel in k.range(self.c.depth):
                    self._channel(own, filters, (first, count), channel, registers)
            else:
                for number in range(self.c.depth):
                    k.barrier()
                    self._channel(own, filters, (first, count), number, registers)

    def _channel(
        self, pixels: Pointer, filters: Pointer, taps: tuple[int, int], channel: int | Value,
        registers: dict[tuple[int, int], Register],
    ) -> None:  # fmt: skip
        k, plan, (first, count), lanes = self.k, self.plan, taps, self.plan.lanes
        columns = self.c.axes[2].taps.count
        weights = {
            (s, v): filters.load(
                (k.integer(channel) * columns + (first + s + v * self.c.depth * columns)) * lanes, lanes
            )
            for s, v in itertools.product(range(count), range(self.vectors))
        }
        for q, uses in reach(self.c.axes[2], self.tile.columns, count).items():
            picked = self._pick(pixels + q * plan.pack.pitches[1], channel)
            for (column, s), v in itertools.product(uses, range(self.vectors)):
                register = registers[column, v]
                register.set(k.fma(picked, weights[s, v], register.get()))

    def _pick(self, pixel: Pointer, channel: int | Value) -> Value:
        plan = self.plan
        if plan.together == 1:
            return pixel.splat(channel, plan.lanes)
        assert isinstance(channel, int)
        vector = pixel.load(0, plan.lanes)
        return spread(self.k, vector, plan.together, self.c.width, self.c.depth, channel)
