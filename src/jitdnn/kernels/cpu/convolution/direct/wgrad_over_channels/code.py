"""The code of a filter's gradient vectorized over channels: passes over row blocks of dy, then the store to dw."""

from __future__ import annotations

import itertools
import math

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.direct.code import gradient_blend, pass_over_slice
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels.plan import WgradOverChannels
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, filter_offset, row_blocks
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index, view_offset
from jitdnn.rtcg.builder import Function, Module, Pointer, Value

_DISTANCE = 32  # pixels from one that is read to the one that is prefetched meanwhile


def trace(module: Module, prefix: str, plan: WgradOverChannels, extra: int) -> None:
    """Trace the task ``<prefix>tiles``; the kernel's ``extra`` holds the units of a task."""
    c, tile, size = plan.c, plan.tile, plan.pass_sums
    full, rest = divmod(c.width, tile.results)
    width = plan.tile_channels
    blocks, tail = divmod(plan.tap_channels, width)
    versions = []
    for is_whole, results in ((True, tile.results if full else 0), (False, rest)):
        for is_full, channels in ((True, width if blocks else 0), (False, tail)):
            if results and channels:
                name = f"{prefix}{'all' if is_whole else 'rest'}{channels}"
                part = plan.narrowed(results)
                one_pass = _trace_pass(module, name, part, channels)
                finish = _trace_finish(module, f"{name}_finish", part, channels)
                versions.append((is_whole, is_full, one_pass, finish))
    with module.task(f"{prefix}tiles") as (k, args, task, _):
        arguments = Arguments(k, args, POINTERS)
        sums = k.local(c.dtype, plan.unit_taps * size)
        for unit in plan.units.each(k, task, arguments.extra(extra)):
            group, result = unit["group"], unit["results"] * tile.results
            channel = unit["channels"] * width
            first = unit["taps"] * plan.unit_taps
            last = (first + plan.unit_taps).min(math.prod(plan.taps))
            x = arguments.pointer(0, c.x.dtype) + view_offset(c, c.x, group, channel, (0, 0, 0, 0))
            dy = arguments.pointer(1, c.y.dtype) + view_offset(c, c.y, group, result, (0, 0, 0, 0))
            dw = arguments.pointer(2, c.w.dtype)
            for at in k.range(0, plan.unit_taps * size, plan.lanes):
                sums.store(k.constant(0, c.dtype, plan.lanes), at)
            for is_whole, is_full, one_pass, finish in versions:
                results_fit, channels_fit = unit["results"] < full, unit["channels"] < blocks
                is_this = (results_fit if is_whole else ~results_fit) & (
                    channels_fit if is_full else ~channels_fit
                )
                with when(k, None if len(versions) == 1 else is_this):
                    for n, d, h, end, *_ in row_blocks(k, c, plan.row_block):
                        for number in k.range(first, last):
                            own = sums + (number - first) * size
                            tap = split_index(number, plan.taps)
                            images = x + n * c.x.batch, dy + n * c.y.batch
                            k.call(one_pass, *images, own, d, h, end, *tap, channel)
                    for number in k.range(first, last):
                        i, r, s = split_index(number, plan.taps)
                        at = filter_offset(c, group, result, channel, i, r)
                        at = at + s * (c.axes[2].taps.increment * c.w.space[2])
                        own = sums + (number - first) * size
                        k.call(finish, own, dw + at, scale(k, args, POINTERS))


def _trace_pass(module: Module, name: str, plan: WgradOverChannels, channels: int) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, s, channel)``: rows [h, end) of slice d of dy, for tap (i, r, s).

    ``x`` points to channel ``channel`` of an image, from which on there are ``channels``, ``dy`` to the first of
    the tile's result channels; ``sums`` to [result][vector of channels][lanes], which are added to.
    """
    c, rows = plan.c, plan.c.axes[1]
    names = ("d", "h", "end", "i", "r", "s", "channel")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, s, channel), function,
    ):  # fmt: skip
        code = _Pass(plan, channels, channel)
        with pass_over_slice(k, plan, x, dy, sums, d, i, code.sums.values()) as (plane, gradient):
            for row in k.range(h, end):
                at = row * rows.step + rows.taps.offset + r * rows.taps.shift
                with when(k, inside(rows, at, 1)):
                    code.row(plane + at * c.x.space[1], gradient + row * c.y.space[1], s)
    return function


class _Pass:
    """Tracing one version of a pass."""

    def __init__(self, plan: WgradOverChannels, channels: int, channel: Value) -> None:
        self.k, self.plan, self.c, self.lanes = channel.k, plan, plan.c, plan.lanes
        self.channel = channel
        self.vectors, tail = ceil_div(channels, self.lanes), channels % self.lanes
        self.tail = self.k.mask(tail, self.lanes) if tail else None
        zero = self.k.constant(0, self.c.dtype, self.lanes)
        index = itertools.product(range(plan.tile.results), range(self.vectors))
        self.sums = {at: self.k.register(zero) for at in index}

    def row(self, row: Pointer, dy: Pointer, tap: Value) -> None:
        """One row of dy: the pixels whose tap is in the image, or of a merged row of taps at least one."""
        k, axis = self.k, self.c.axes[2]
        if not self.plan.merges_taps:
            offset = tap * axis.taps.shift + axis.taps.offset
            first = ((-offset).max(0) + (axis.step - 1)) // axis.step
            last = ((axis.positions - offset) + (axis.step - 1)).max(0) // axis.step
            for p in k.range(first, last.min(axis.results)):
                self._pixel(row, dy, p, p * axis.step + offset, is_boundary=False)
            return
        lowest, reach = axis.taps.offset, axis.taps.count - 1
        begin = min(ceil_div(max(0, -lowest), axis.step), axis.results)
        end = (axis.positions - 1 - reach - lowest) // axis.step + 1
        end = max(begin, min(end, axis.results))
        for pixels, is_boundary in (
            (range(begin), True),
            (range(begin, end), False),
            (range(end, axis.results), True),
        ):
            for p in k.range(pixels.start, pixels.stop):
                self._pixel(row, dy, p, p * axis.step + lowest, is_boundary)

    def _pixel(self, row: Pointer, dy: Pointer, p: Value, position: Value, is_boundary: bool) -> None:
        """One pixel; at a boundary only some taps of a merged row are in the image."""
        k, c, lanes = self.k, self.c, self.lanes
        pixel = row + position * c.x.space[2]
        vectors = []
        for v in range(self.vectors):
            mask = self.tail if v == self.vectors - 1 else None
            if is_boundary:
                first = (-position).max(0) * c.depth - self.channel - v * lanes
                end = (c.axes[2].positions - position).min(c.axes[2].taps.count) * c.depth
                mask = k.mask(end - self.channel - v * lanes, lanes) & ~k.mask(first, lanes)
            vectors.append(pixel.load_strided(v * lanes * c.x.channels, c.x.channels, lanes, mask))
        gradient = dy + p * c.y.space[2]
        # some channels of every pixel are no run of addresses that the hardware would prefetch
        for v in range(self.vectors):
            pixel.prefetch(_DISTANCE * c.axes[2].step * c.x.space[2] + v * lanes * c.x.channels)
        for result in range(0, self.plan.tile.results, lanes):
            gradient.prefetch(_DISTANCE * c.y.space[2] + result * c.y.channels)
        for result in range(self.plan.tile.results):
            value = gradient.splat(result * c.y.channels, lanes)
            for v, vector in enumerate(vectors):
                register = self.sums[result, v]
                register.set(k.fma(value, vector, register.get()))


def _trace_finish(module: Module, name: str, plan: WgradOverChannels, channels: int) -> Function:
    """Trace ``name(sums, dw, scale)``: store the sums of a pass; ``dw`` points to its first result and channel,
    ``scale`` to alpha and beta."""
    c, lanes = plan.c, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64") as (k, (sums, dw, scale), function):
        blend = gradient_blend(k, scale, c.dtype)
        vectors = ceil_div(channels, lanes)
        for result in k.range(plan.tile.results):
            for v in range(vectors):
                left = channels - v * lanes
                vector = sums.load((result * vectors + v) * lanes, lanes)
                at = result * c.w.results + v * lanes * c.w.channels
                mask = None if left >= lanes else k.mask(left, lanes)
                blend.store(dw + at, c.w.channels, vector, [], mask)
    return function
