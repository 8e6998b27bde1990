"""The code of `filter_channel_lanes`: one pass over some rows of dy for one tap, and the end of its sums."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import WgradOverChannels

_AHEAD = 32  # pixels


def trace_pass(module: Module, name: str, plan: WgradOverChannels, results: int, channels: int) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, s, channel)``: rows [h, end) of slice d of dy, for tap (i, r, s).

    ``x`` points to channel ``channel`` of an image, from which on there are ``channels``, ``dy`` to the first of
    ``results`` channels; ``sums`` to [result][vector of channels][lanes], which are added to.
    """
    c = plan.c
    names = ("d", "h", "end", "i", "r", "s", "channel")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, s, channel), function,
    ):  # fmt: skip
        code = _Pass(k, plan, results, channels, channel)
        slices, rows = c.axes[0], c.axes[1]
        at_d = d * slices.step + slices.taps.offset + i * slices.taps.shift
        with when(k, inside(slices, at_d, 1)):
            for number, register in enumerate(code.sums.values()):
                register.set(sums.load(number * plan.lanes, plan.lanes))
            plane, gradient = x + at_d * c.x.space[0], dy + d * c.y.space[0]
            for row in k.range(h, end):
                at_h = row * rows.step + rows.taps.offset + r * rows.taps.shift
                with when(k, inside(rows, at_h, 1)):
                    code.row(plane + at_h * c.x.space[1], gradient + row * c.y.space[1], s)
            for number, register in enumerate(code.sums.values()):
                sums.store(register.get(), number * plan.lanes)
    return function


class _Pass:
    def __init__(
        self, k: Builder, plan: WgradOverChannels, results: int, channels: int, channel: Value
    ) -> None:
        self.k, self.plan, self.c, self.lanes = k, plan, plan.c, plan.lanes
        self.channel = channel
        self.vectors, tail = ceil_div(channels, self.lanes), channels % self.lanes
        self.tail = k.mask(tail, self.lanes) if tail else None
        zero = k.constant(0, self.c.dtype, self.lanes)
        self.sums = {at: k.register(zero) for at in itertools.product(range(results), range(self.vectors))}
        self.results = results

    def row(self, row: Pointer, dy: Pointer, tap: Value) -> None:
        """One row of dy: the pixels whose tap is in the image, or of a joined row of taps at least one."""
        k, axis = self.k, self.c.axes[2]
        if not self.plan.is_joined:
            offset = tap * axis.taps.shift + axis.taps.offset
            first = ((-offset).max(0) + (axis.step - 1)) // axis.step
            last = ((axis.positions - offset) + (axis.step - 1)).max(0) // axis.step
            for p in k.range(first, last.min(axis.results)):
                self._step(row, dy, p, p * axis.step + offset, False)
            return
        lowest, reach = axis.taps.offset, axis.taps.count - 1
        begin = min(ceil_div(max(0, -lowest), axis.step), axis.results)
        end = (axis.positions - 1 - reach - lowest) // axis.step + 1
        end = max(begin, min(end, axis.results))
        for pixels, is_edge in (
            (range(begin), True),
            (range(begin, end), False),
            (range(end, axis.results), True),
        ):
            for p in k.range(pixels.start, pixels.stop):
                self._step(row, dy, p, p * axis.step + lowest, is_edge)

    def _step(self, row: Pointer, dy: Pointer, p: Value, position: Value, is_edge: bool) -> None:
        """One pixel; at an edge only some taps of a joined row are in the image."""
        k, c, lanes = self.k, self.c, self.lanes
        pixel = row + position * c.x.space[2]
        vectors = []
        for v in range(self.vectors):
            mask = self.tail if v == self.vectors - 1 else None
            if is_edge:
                first = (-position).max(0) * c.depth - self.channel - v * lanes
                end = (c.axes[2].positions - position).min(c.axes[2].taps.count) * c.depth
                mask = k.mask(end - self.channel - v * lanes, lanes) & ~k.mask(first, lanes)
            vectors.append(pixel.load_strided(v * lanes * c.x.channels, c.x.channels, lanes, mask))
        gradient = dy + p * c.y.space[2]
        # a part of the channels of every pixel is no run of addresses that the processor would follow
        for v in range(self.vectors):
            pixel.prefetch(_AHEAD * c.axes[2].step * c.x.space[2] + v * lanes * c.x.channels)
        for result in range(0, self.results, lanes):
            gradient.prefetch(_AHEAD * c.y.space[2] + result * c.y.channels)
        for result in range(self.results):
            value = gradient.splat(result * c.y.channels, lanes)
            for v, vector in enumerate(vectors):
                register = self.sums[result, v]
                register.set(k.fma(value, vector, register.get()))


def trace_finish(module: Module, name: str, plan: WgradOverChannels, results: int, channels: int) -> Function:
    """Trace ``name(sums, dw, scale)``: store the sums of a pass; ``dw`` points to its first result and channel,
    ``scale`` to alpha and beta."""
    c, lanes = plan.c, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64") as (k, (sums, dw, scale), function):
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        blend = Blend(k, alpha, beta, None)
        vectors = ceil_div(channels, lanes)
        for result in k.range(results):
            for v in range(vectors):
                left = channels - v * lanes
                vector = sums.load((result * vectors + v) * lanes, lanes)
                place = result * c.w.results + v * lanes * c.w.channels
                mask = None if left >= lanes else k.mask(left, lanes)
                blend.store(dw + place, c.w.channels, vector, [], mask)
    return function
