"""The code of a correlation vectorized over channels: a tile of sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.code import (
    pointer_count,
    results_of,
    store_from,
    tile_function,
)
from jitdnn.kernels.cpu.convolution.direct.over_channels.plan import OverChannels
from jitdnn.kernels.cpu.microkernel.add_lanes import add_lanes
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.nontemporal import is_aligned
from jitdnn.kernels.cpu.microkernel.packing import Panels, plan_panels, trace_panel
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import group_offset, scale, view_offset
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace(module: Module, prefix: str, plan: OverChannels, extra: int, epilogue: Epilogue | None) -> None:
    """Trace the task ``<prefix>tiles``; the kernel's ``extra`` holds the units of a task."""
    c, tile, pointers = plan.c, plan.tile, pointer_count(plan.c)
    full, rest = divmod(c.width, plan.tile_width)
    panels = plan_panels(c, plan.tile_width) if tile.kind == "panel" else None
    versions: list[tuple[bool, Function]] = []
    if full:
        versions.append((True, _trace_tile(module, f"{prefix}tile", plan, panels, False, epilogue)))
    if rest:
        last = plan.narrowed(rest)
        is_masked = rest != last.tile_width
        versions.append((False, _trace_tile(module, f"{prefix}rest", last, panels, is_masked, epilogue)))
    rows, run = plan.unit_rows, plan.run_tiles
    pack = None if panels is None else trace_panel(module, f"{prefix}panel", c, panels)
    with module.task(f"{prefix}tiles") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        panel = k.local(c.dtype, plan.panel_size) if pack else None
        tensors = results_of(arguments, c)
        for unit in plan.units.each(k, task, arguments.extra(extra)):
            n, group, d = unit["image"], unit["group"], unit["slice"]
            channel = unit["channels"] * plan.tile_width
            x = arguments.pointer(0, c.x.dtype) + view_offset(c, c.x, group, 0, (n, 0, 0, 0))
            w = arguments.pointer(1, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
            if pack is not None and panel is not None:
                k.call(pack, w, panel, channel, 0, c.depth)
                w = panel
            else:
                w = w + channel * c.w.results
            first_row, begin = unit["rows"] * rows, unit["run"] * run
            last_row, end = (first_row + rows).min(c.axes[1].results), (begin + run).min(plan.row_tiles)
            for h, number in ((a, b) for a in k.range(first_row, last_row) for b in k.range(begin, end)):
                p = number * tile.pixels
                y, *operands = (t + view_offset(c, v, group, channel, (n, d, h, p)) for t, v in tensors)
                fits = unit["channels"] < full
                for is_whole, function in versions:
                    with when(k, None if len(versions) == 1 else fits if is_whole else ~fits):
                        k.call(function, x, w, y, scale(k, args, pointers), *operands, d, h, p)


def _trace_tile(
    module: Module, name: str, plan: OverChannels, panels: Panels | None, is_masked: bool,
    epilogue: Epilogue | None,
) -> Function:  # fmt: skip
    """Trace ``name(x, w, y, scale, operands..., d, h, p)``: the tile whose first result is (d, h, p).

    ``x`` points to the group's first channel of the image, ``w`` to the tile's first result channel, or to its panel
    of the ``panels``, ``y`` and the operands to the tile's first result, ``scale`` to alpha and beta. With
    ``is_masked`` only the last ``width % lanes`` lanes of the last vector of result channels exist.
    """
    dtype = plan.c.dtype
    tensors = {"x": plan.c.x.dtype, "w": dtype if panels else plan.c.w.dtype}
    with tile_function(module, name, plan.c, tensors, ("d", "h", "p")) as (
        k, (x, w, y, scale, *operands), (d, h, p), function,
    ):  # fmt: skip
        code = _Tile(k, plan, panels, is_masked, (d, h, p))
        code.sum_up(x, w)
        code.store(Blend.of(k, scale, dtype, y, epilogue), [y, *operands])
    return function


class _Tile:
    """Tracing one version of a tile."""

    def __init__(
        self,
        k: Builder,
        plan: OverChannels,
        panels: Panels | None,
        is_masked: bool,
        first: tuple[Value, Value, Value],
    ) -> None:
        self.d, self.h, self.p = first
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, plan.tile, plan.c, plan.lanes
        zero = self.k.constant(0, self.c.dtype, self.lanes)
        index = (self.tile.pixels, self.tile.results)
        self.sums = {at: self.k.register(zero) for at in itertools.product(*map(range, index))}
        self.panels = panels
        self.masks: list[Value | None] = [None] * self.tile.results
        if is_masked:
            self.masks[-1] = self.k.mask(self.c.width % self.lanes, self.lanes)

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
                        taps = 1 if self.plan.merges_taps else columns.taps.count
                        for tap in k.range(taps):
                            at = self.p * columns.step + columns.taps.offset + tap * columns.taps.shift
                            self._tap(row, line + tap * steps[2], at)

    def _tap(self, row: Pointer, w: Pointer, at: Value) -> None:
        """One tap, or a merged row of them: pixel i of the tile reads position ``at + i * step`` of the row."""
        k, axis, tile = self.k, self.c.axes[2], self.tile
        merges_taps = self.plan.merges_taps
        reach = axis.taps.count - 1 if merges_taps else 0
        whole = (at >= 0) & (at + ((tile.pixels - 1) * axis.step + reach) < axis.positions)
        is_inside = inside(axis, at, tile.pixels) is None
        body: Callable[[Pointer, Pointer, list[tuple[Value, Value]] | None], None]
        body = self._dot if tile.is_dot else self._broadcast
        pixels = row + at * self.c.x.space[2]
        with when(k, None if is_inside else whole):
            body(pixels, w, None)
        if is_inside:
            return
        with k.when(~whole):
            # for each pixel the channels [first, end) of the run that are inside
            limits = []
            for i in range(tile.pixels):
                position = at + i * axis.step
                first = (-position).max(0) * self.c.depth
                end = (k.integer(axis.positions) - position).min(reach + 1) * self.c.depth
                if not merges_taps:
                    end = k.select(position < 0, k.integer(0), end)
                limits.append((first, end))
            body(pixels, w, limits)

    def _broadcast(self, pixels: Pointer, w: Pointer, limits: list[tuple[Value, Value]] | None) -> None:
        """Channel by channel: the filter's vectors of result channels times each pixel's value."""
        k, c, lanes = self.k, self.c, self.lanes
        step = c.axes[2].step * c.x.space[2]
        is_inside = [None if limits is None else limits[i][1] > 0 for i in range(self.tile.pixels)]
        results, channels, masks = c.w.results, c.w.channels, self.masks
        if self.panels is not None:  # panels have zeros where there is no result
            results, channels, masks = 1, self.panels.channel_stride, [None] * len(masks)
        for channel in k.range(c.depth):
            image, line = pixels + channel * c.x.channels, w + channel * channels
            vectors = [
                line.load_strided(v * lanes * results, results, lanes, masks[v])
                for v in range(self.tile.results)
            ]
            for i in range(self.tile.pixels):
                with when(k, is_inside[i]):
                    value = image.splat(i * step, lanes)
                    for v, vector in enumerate(vectors):
                        register = self.sums[i, v]
                        register.set(k.fma(value, vector, register.get()))

    def _dot(self, pixels: Pointer, w: Pointer, limits: list[tuple[Value, Value]] | None) -> None:
        """Vector by vector of channels: each result channel's filter times each pixel."""
        k, c, lanes, run = self.k, self.c, self.lanes, self.plan.tap_channels
        step = c.axes[2].step * c.x.space[2]

        # unless taps are merged, all channels of a pixel are inside, or none
        whole_pixels: list[Value] = []
        if limits is not None and not self.plan.merges_taps:
            whole_pixels = [k.mask(end.min(lanes), lanes) for _, end in limits]

        def products(first: int | Value, count: int) -> None:
            tail = None if count == lanes else k.mask(count, lanes)
            line = w + first
            vectors = [line.load(r * c.w.results, lanes, tail) for r in range(self.tile.results)]
            for i in range(self.tile.pixels):
                mask = tail
                if whole_pixels:
                    mask = whole_pixels[i] if tail is None else whole_pixels[i] & tail
                elif limits is not None:
                    mask = k.mask(limits[i][1] - first, lanes) & ~k.mask(limits[i][0] - first, lanes)
                pixel = (pixels + (i * step + first)).load(0, lanes, mask)
                for r, vector in enumerate(vectors):
                    register = self.sums[i, r]
                    register.set(k.fma(pixel, vector, register.get()))

        whole = run - run % lanes
        for first in k.range(0, whole, lanes):
            products(first, lanes)
        if whole < run:
            products(k.integer(whole), run - whole)

    # ---- results

    def store(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to y, a pixel at a time by way of a buffer; past the caches where the plan says so."""
        k, c, tile, lanes = self.k, self.c, self.tile, self.lanes
        count, wide, masks = tile.results, lanes, self.masks
        if tile.is_dot:
            count, wide = 1, 1 << (tile.results - 1).bit_length()
        buffer = k.local(c.dtype, tile.pixels * count * wide)
        for i in range(tile.pixels):
            sums = [self.sums[i, r].get() for r in range(tile.results)]
            if tile.is_dot:
                sums = [add_lanes(k, sums)]
                masks = [None if wide == tile.results else k.mask(tile.results, wide)]
            for v, vector in enumerate(sums):
                buffer.store(vector, (i * count + v) * wide)
        views = (c.y, *c.operands)
        steps = [view.channels for view in views]

        def store(nontemporal: bool) -> None:
            for pixel in k.range((k.integer(c.axes[2].results) - self.p).min(tile.pixels)):
                starts = [p + pixel * v.space[2] for p, v in zip(pointers, views, strict=True)]
                for v in range(count):
                    targets = [p + v * wide * step for p, step in zip(starts, steps, strict=True)]
                    store_from(
                        blend, buffer, (pixel * count + v) * wide, targets, steps, wide, masks[v], nontemporal
                    )

        if not self.plan.is_nontemporal:
            store(nontemporal=False)
            return
        is_nontemporal = blend.overwrites & is_aligned(pointers[0], lanes)
        with k.when(is_nontemporal):
            store(nontemporal=True)
        with k.when(~is_nontemporal):
            store(nontemporal=False)
