"""The code of `filter_group_blocks`: one pass over a packed block of a unit, and the end of its sums."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import tap_offset
from jitdnn.kernels.cpu.convolution.grouped.packing import spread
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan


def trace_pass(
    module: Module, name: str, plan: GroupedWgradPlan, taps: int, channels: int, first: int
) -> Function:
    """Trace ``name(x, dy, sums, row, rows, columns)``: some taps of a row and some picked channels from the first on.

    ``x`` and ``dy`` point to the packed pixels of the block's first result, ``row`` is where x's is in its slice;
    ``sums`` points to [tap][picked channel][lanes], which are added to.
    """
    c, lanes = plan.c, plan.lanes
    names = ("row", "rows", "columns")
    with module.function(name, x=c.dtype, dy=c.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, row, rows, columns), function,
    ):  # fmt: skip
        _, down, along = c.axes
        index = list(itertools.product(range(taps), range(channels)))
        registers = {at: k.register(sums.load(i * lanes, lanes)) for i, at in enumerate(index)}
        (_, x_pixel, x_row), (_, y_pixel, y_row) = plan.x.pitches, plan.y.pitches
        for i in k.range(rows):
            with when(k, inside(down, row + i * down.step, 1)):
                for j in k.range(columns):
                    gradient = dy + (i * y_row + j * y_pixel)
                    places = [
                        x
                        + (
                            i * (down.step * x_row)
                            + j * (along.step * x_pixel)
                            + s * along.taps.shift * x_pixel
                        )
                        for s in range(taps)
                    ]
                    straight = [p.load(0, lanes) for p in (places if plan.x_is_straight else [gradient])]
                    picks = [
                        _Picks(k, plan, p, first) for p in ([gradient] if plan.x_is_straight else places)
                    ]
                    for channel, s in itertools.product(range(channels), range(taps)):
                        picked = picks[s if len(picks) > 1 else 0].pick(channel)
                        vector = straight[s if len(straight) > 1 else 0]
                        register = registers[s, channel]
                        register.set(k.fma(vector, picked, register.get()))
        for number, register in enumerate(registers.values()):
            sums.store(register.get(), number * lanes)
    return function


class _Picks:
    """The picked channels of one pixel, each spread over the lanes of its group."""

    def __init__(self, k: Builder, plan: GroupedWgradPlan, pixel: Pointer, first: int) -> None:
        self.k, self.plan, self.pixel, self.first = k, plan, pixel, first
        self.vector = pixel.load(0, plan.lanes) if plan.together > 1 else None
        self.known: dict[int, Value] = {}

    def pick(self, channel: int) -> Value:
        if channel not in self.known:
            self.known[channel] = self._pick(channel)
        return self.known[channel]

    def _pick(self, channel: int) -> Value:
        plan = self.plan
        if self.vector is None:
            return self.pixel.splat(channel, plan.lanes)
        return spread(self.k, self.vector, plan.together, plan.straight, plan.picked, self.first + channel)


def trace_finish(module: Module, name: str, plan: GroupedWgradPlan) -> Function:
    """Trace ``name(sums, dw, scale, unit)``: add up the shares of a unit's sums and store them."""
    c, lanes, (taps, channels) = plan.c, plan.lanes, plan.tile
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64", unit=None) as (
        k, (sums, dw, scale, unit), function,
    ):  # fmt: skip
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        blend = Blend(k, alpha, beta, None)
        straight = plan.straight
        strides = (c.w.channels, c.w.results) if plan.x_is_straight else (c.w.results, c.w.channels)
        along = c.axes[2].taps.increment * c.w.space[2]
        slices, rows, columns = (axis.taps.count for axis in c.axes)
        extents = (slices, rows, plan.tap_tiles, plan.channel_tiles, plan.parts)
        apart = plan.units * plan.unit_size
        first = unit * plan.together
        for number in k.range(plan.unit_size // plan.tile_size):
            d, h, i, j, part = split_index(number, extents)
            own_channels = (k.integer(plan.picked) - j * channels).min(channels)
            for s in k.range((k.integer(columns) - i * taps).min(taps)):
                for channel in k.range(own_channels):
                    at = sums + (number * plan.tile_size + (s * own_channels + channel) * lanes)
                    place = (
                        tap_offset(c, d, h) + (i * taps + s) * along + (j * channels + channel) * strides[1]
                    )
                    place = place + part * (lanes * strides[0])
                    count = (k.integer(straight) - part * lanes).min(lanes)
                    mask = None if straight % lanes == 0 else k.mask(count, lanes)
                    for group in k.range(k.integer(plan.together).min(k.integer(c.groups[0]) - first)):
                        total = k.register(k.constant(0, c.dtype, lanes))
                        for share in k.range(plan.splits):
                            total += at.load(group * straight + share * apart, lanes, mask)
                        target = dw + (place + (first + group) * c.w.groups[0])
                        blend.store(target, strides[0], total.get(), [], mask)
    return function
