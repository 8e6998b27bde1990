"""The code of one tile of `channel_lanes`: sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.nontemporal import is_aligned, store_new
from jitdnn.kernels.cpu.microkernel.packing import plan_panels
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.over_channels import ChannelTile, OverChannels


def trace_tile(
    module: Module, name: str, plan: OverChannels, tile: ChannelTile, is_masked: bool,
    epilogue: Epilogue | None,
) -> Function:  # fmt: skip
    """Trace ``name(x, w, y, scale, operands..., d, h, p)``: the tile whose first result is (d, h, p).

    ``x`` points to the group's first channel of the image, ``w`` to the tile's first result channel, ``y`` and
    the operands to the tile's first result, ``scale`` to alpha and beta. With ``is_masked`` only the last
    ``width % lanes`` lanes of the last vector of result channels exist.
    """
    c, dtype = plan.c, plan.c.dtype
    operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
    w_dtype = dtype if tile.kind == "panel" else c.w.dtype
    with module.function(
        name, x=c.x.dtype, w=w_dtype, y=c.y.dtype, scale="f64", **operands, d=None, h=None, p=None
    ) as (k, (x, w, y, scale, *rest), function):
        *pointers, d, h, p = rest
        code = _Tile(k, plan, tile, is_masked, (d, h, p))
        code.sum_up(x, w)
        code.finish(Blend.of(k, scale, dtype, y, epilogue), [y, *pointers])
    return function


class _Tile:
    def __init__(
        self, k: Builder, plan: OverChannels, tile: ChannelTile, is_masked: bool,
        place: tuple[Value, Value, Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, tile, plan.c, plan.lanes
        self.d, self.h, self.p = place
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (tile.pixels, tile.results)
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        self.panels = plan_panels(plan.c, plan.width(plan.tile)) if tile.kind == "panel" else None
        self.masks: list[Value | None] = [None] * tile.results
        if is_masked:
            self.masks[-1] = k.mask(self.c.width % self.lanes, self.lanes)

    # ---- sums

    def sum_up(self, x: Pointer, w: Pointer) -> None:
        """All taps."""
        k, c = self.k, self.c
        slices, rows, columns = c.axes
        if self.panels is None:
            w = w + sum(axis.taps.start * stride for axis, stride in zip(c.axes, c.w.space, strict=True))
            steps = [axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True)]
        else:
            steps = list(self.panels.tap_strides)
        for i in k.range(slices.taps.count):
            d = self.d * slices.step + slices.taps.offset + i * slices.taps.shift
            with when(k, inside(slices, d, 1)):
                for j in k.range(rows.taps.count):
                    h = self.h * rows.step + rows.taps.offset + j * rows.taps.shift
                    with when(k, inside(rows, h, 1)):
                        row = x + (d * c.x.space[0] + h * c.x.space[1])
                        line = w + (i * steps[0] + j * steps[1])
                        taps = 1 if self.plan.is_joined and self.tile.is_dot else columns.taps.count
                        for tap in k.range(taps):
                            at = self.p * columns.step + columns.taps.offset + tap * columns.taps.shift
                            self._tap(row, line + tap * steps[2], at)

    def _tap(self, row: Pointer, w: Pointer, at: Value) -> None:
        """One tap (or a joined row of them): pixel i of the tile reads position ``at + i * step`` of the row."""
        k, axis, tile = self.k, self.c.axes[2], self.tile
        is_joined = self.plan.is_joined and tile.is_dot
        reach = axis.taps.count - 1 if is_joined else 0
        whole = (at >= 0) & (at + ((tile.pixels - 1) * axis.step + reach) < axis.positions)
        surely = inside(axis, at, tile.pixels) is None
        body: Callable[[Pointer, Pointer, list[tuple[Value, Value]] | None], None]
        body = self._dot if tile.is_dot else self._broadcast
        pixels = row + at * self.c.x.space[2]
        with when(k, None if surely else whole):
            body(pixels, w, None)
        if surely:
            return
        with k.when(~whole):
            # of each pixel the first and the end of the channels of the run that are there
            limits = []
            for i in range(tile.pixels):
                position = at + i * axis.step
                first = (-position).max(0) * self.c.depth
                end = (k.integer(axis.positions) - position).min(reach + 1) * self.c.depth
                if not is_joined:
                    end = k.select(position < 0, k.integer(0), end)
                limits.append((first, end))
            body(pixels, w, limits)

    def _broadcast(self, pixels: Pointer, w: Pointer, limits: list[tuple[Value, Value]] | None) -> None:
        """Channel by channel: the filter's vectors of result channels times each pixel's value."""
        k, c, lanes = self.k, self.c, self.lanes
        step = c.axes[2].step * c.x.space[2]
        there = [None if limits is None else limits[i][1] > 0 for i in range(self.tile.pixels)]
        results, channels, masks = c.w.results, c.w.channels, self.masks
        if self.panels is not None:  # it has zeros where there is no result
            results, channels, masks = 1, self.panels.channel_stride, [None] * len(masks)
        for channel in k.range(c.depth):
            image, line = pixels + channel * c.x.channels, w + channel * channels
            vectors = [
                line.load_strided(v * lanes * results, results, lanes, masks[v])
                for v in range(self.tile.results)
            ]
            for i in range(self.tile.pixels):
                with when(k, there[i]):
                    value = image.splat(i * step, lanes)
                    for v, vector in enumerate(vectors):
                        register = self.sums[i, v]
                        register.set(k.fma(value, vector, register.get()))

    def _dot(self, pixels: Pointer, w: Pointer, limits: list[tuple[Value, Value]] | None) -> None:
        """Vector by vector of channels: each result channel's filter times each pixel."""
        k, c, lanes, run = self.k, self.c, self.lanes, self.plan.run
        step = c.axes[2].step * c.x.space[2]

        # without a joined row a pixel is there for all of its channels, or for none
        there: list[Value] = []
        if limits is not None and not self.plan.is_joined:
            there = [k.mask(end.min(lanes), lanes) for _, end in limits]

        def turn(first: int | Value, count: int) -> None:
            tail = None if count == lanes else k.mask(count, lanes)
            line = w + first
            vectors = [line.load(r * c.w.results, lanes, tail) for r in range(self.tile.results)]
            for i in range(self.tile.pixels):
                mask = tail
                if there:
                    mask = there[i] if tail is None else there[i] & tail
                elif limits is not None:
                    mask = k.mask(limits[i][1] - first, lanes) & ~k.mask(limits[i][0] - first, lanes)
                pixel = (pixels + (i * step + first)).load(0, lanes, mask)
                for r, vector in enumerate(vectors):
                    register = self.sums[i, r]
                    register.set(k.fma(pixel, vector, register.get()))

        whole = run - run % lanes
        for first in k.range(0, whole, lanes):
            turn(first, lanes)
        if whole < run:
            turn(k.integer(whole), run - whole)

    # ---- results

    def finish(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to their places, a pixel at a time through a little memory."""
        k, c, tile, lanes = self.k, self.c, self.tile, self.lanes
        count, wide = tile.results, lanes
        if tile.is_dot:
            count, wide = 1, 1 << (tile.results - 1).bit_length()
        kept = k.local(c.dtype, tile.pixels * count * wide)
        masks = self.masks
        for i in range(tile.pixels):
            sums = [self.sums[i, r].get() for r in range(tile.results)]
            if tile.is_dot:
                sums = [add_up(k, sums)]
                masks = [None if wide == tile.results else k.mask(tile.results, wide)]
            for v, vector in enumerate(sums):
                kept.store(vector, (i * count + v) * wide)
        if self.plan.streams:
            is_streamed = blend.overwrites & is_aligned(pointers[0], lanes)
            with k.when(is_streamed):
                self._store(blend, pointers, kept, masks, streams=True)
            with k.when(~is_streamed):
                self._store(blend, pointers, kept, masks)
        else:
            self._store(blend, pointers, kept, masks)

    def _store(
        self, blend: Blend, pointers: Sequence[Pointer], kept: Pointer, masks: Sequence[Value | None],
        streams: bool = False,
    ) -> None:  # fmt: skip
        """The kept sums of each pixel to y; whole vectors past the caches if it ``streams``."""
        k, c, tile, lanes = self.k, self.c, self.tile, self.lanes
        count, wide = tile.results, lanes
        if tile.is_dot:
            count, wide = 1, 1 << (tile.results - 1).bit_length()
        views = (c.y, *c.operands)
        for pixel in k.range((k.integer(c.axes[2].results) - self.p).min(tile.pixels)):
            places = [p + pixel * v.space[2] for p, v in zip(pointers, views, strict=True)]
            for v in range(count):
                at = [p + v * wide * view.channels for p, view in zip(places, views, strict=True)]
                others = [
                    o.load_strided(0, view.channels, wide, masks[v])
                    for o, view in zip(at[1:], c.operands, strict=True)
                ]
                vector = kept.load((pixel * count + v) * wide, wide)
                if streams:
                    store_new(at[0], c.y.channels, blend.scaled(vector, others), masks[v], streams)
                else:
                    blend.store(at[0], c.y.channels, vector, others, masks[v])


def add_up(k: Builder, vectors: Sequence[Value]) -> Value:
    """The sum of the lanes of each vector, as one vector with a lane for each of them.

    There are lanes up to the next power of two; those beyond repeat the last vector's.
    """
    count = 1 << (len(vectors) - 1).bit_length()
    values = [*vectors, *[vectors[-1]] * (count - len(vectors))]
    while len(values) > 1:
        values = [_add_pairs(k, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    total = values[0]
    while total.lanes > count:
        total = _add_pairs(k, total, None)
    return total


def _add_pairs(k: Builder, a: Value, b: Value | None) -> Value:
    """The sums of neighbouring lanes of ``a``, then of ``b``."""
    lanes = a.lanes * (1 if b is None else 2)
    if lanes == 2:
        return k.extract(a, 0) + k.extract(a, 1)
    b = a if b is None else b
    return k.shuffle(a, b, range(0, lanes, 2)) + k.shuffle(a, b, range(1, lanes, 2))
