"""The code of one task of implicit GEMM: block after block its input tile, its tiles of sums, and their way to y."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.correlation import StridePhase, View
from jitdnn.kernels.cpu.microkernel.epilogue_store import trace_store
from jitdnn.kernels.cpu.microkernel.packing import trace_panel
from jitdnn.kernels.cpu.microkernel.prefetch import Region, region_of, trace_prefetch
from jitdnn.kernels.cpu.microkernel.register_tiles import step_cycles
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, split_index, view_offset
from jitdnn.kernels.cpu.schedule.tap_clipping import inside_taps
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan

_CACHED_BYTES = 512 << 10  # of a result that surely stays in the L2 cache
_AHEAD_CYCLES = 400  # of a tile's sums: long enough for lines to come from memory


class TileCode:
    """The functions that a task calls, and the calls."""

    def __init__(
        self, plan: ImplicitGemmPlan, module: Module, prefix: str, epilogue: Epilogue | None
    ) -> None:
        self.plan, self.c, self.input_tile = plan, plan.c, plan.input_tile
        self.fill: Function | None = None
        if not plan.is_in_place:
            self.fill = plan.trace_input_tile_of(module, f"{prefix}slab")
        self.contract: list[Function] = []
        known: dict[object, Function] = {}
        for i, (stride_phase, panels) in enumerate(
            zip(plan.several.stride_phases, plan.every_panels, strict=True)
        ):
            # stride phases differ in where they begin, but for the numbers of their taps
            like = (panels, *((axis.taps.count, axis.taps.shift) for axis in stride_phase.c.axes))
            trimmed = tuple(plan.trimmed_axes(stride_phase.c, plan.box))
            if (like, trimmed) not in known:
                name = f"{prefix}contract{i}"
                known[like, trimmed] = plan.trace_contraction_of(module, name, stride_phase.c, panels)
            self.contract.append(known[like, trimmed])
        self.store = trace_store(module, f"{prefix}store", plan.tile_store(epilogue))
        self.pack: Function | None = None
        if plan.packs_late:
            self.pack = trace_panel(module, f"{prefix}panel", plan.several.stride_phases[0].c, plan.panels)
        self.own_lines, self.ask = self._own_region(), None
        if self.own_lines is not None:
            self.ask = trace_prefetch(module, f"{prefix}own", self.c.y.dtype, self.own_lines)

    def _own_region(self) -> Region | None:
        """The lines of y that a tile writes; None if they are at hand or not needed, or cannot come in time."""
        plan, c = self.plan, self.c
        if plan.streams:
            return None
        result = math.prod(plan.results) * math.prod(plan.sides) * c.group_count * c.width
        cycles = plan.steps * step_cycles(plan.tile.rows, plan.tile.vectors)
        if result * ITEM_BYTES[c.dtype] < _CACHED_BYTES or cycles < _AHEAD_CYCLES:
            return None
        strides = (c.y.batch, *c.y.space)
        dims = [
            (min(side, of) * many, stride)
            for side, of, many, stride in zip(plan.box, plan.results, plan.sides, strides, strict=True)
        ]
        channels = min(c.width, plan.panels.lanes)
        return region_of([*dims, (channels, c.y.channels)], c.y.dtype)

    # ---- input that is read in place, and what is asked for ahead of time

    def _start(self, number: Value) -> tuple[Value, list[Value]]:
        """The group of a block and its first result."""
        group, *index = split_index(number, (self.c.group_count, *self.plan.blocks))
        return group, [i * extent for i, extent in zip(index, self.plan.block, strict=True)]

    def _offset_in_x(self, group: Value, there: Sequence[Value]) -> Value:
        """Where what a block reads begins whose first result is ``there``."""
        places = [
            t * axis.step + low
            for t, axis, low in zip(there[1:], self.c.axes, self.input_tile.lows, strict=True)
        ]
        return view_offset(self.c, self.c.x, group, 0, [there[0], *places])

    def _later(
        self, k: Builder, group: Value, panel: Value, pointers: tuple[Pointer, Pointer],
        panels: tuple[Value, Value], following: tuple[Value, Value],
    ) -> tuple[Pointer, Value]:  # fmt: skip
        """(What is at hand, how far beyond it lies what is needed next): of the filter if panels are packed late."""
        plan, c, (x, w) = self.plan, self.c, pointers
        if self.pack is None:
            return x, self._offset_in_x(*self._start(following[0]))
        later = k.select(panel + 1 < panels[1], panel + 1, following[1]) * plan.panels.lanes
        return w + group_offset(group, c.groups, c.w.groups), later * c.w.results

    def _asked(
        self, k: Builder, near: Pointer, later: Value, panel: Value, place: Sequence[Value]
    ) -> list[Pointer]:
        """Where the lines are that a tile asks for, of what begins at ``near`` plus ``later``: as many as are its own.
        Others are at hand."""
        plan = self.plan.ahead
        if plan is None:
            return []
        # all tiles of a block for the input of the next one, those of a panel for the filter of the next one
        tile = self._number(panel if self.pack is None else panel * 0, place)
        first, end = (n * plan.total // plan.calls for n in (tile, tile + 1))
        return [
            near + k.select(number < end, plan.offset(number) + later, 0)
            for number in (first + i for i in range(plan.at_once))
        ]

    def _moved_in(self, k: Builder, starts: Sequence[Value], place: Sequence[Value]) -> list[Value]:
        """A tile's place in its block; in place, moved back where it would reach beyond the end of an axis."""
        plan = self.plan
        if not plan.is_in_place or not plan.is_ragged:
            return list(place)
        return [
            p.min(k.integer(of - side) - start)
            for p, of, side, start in zip(place, plan.results, plan.box, starts, strict=True)
        ]

    def _skipped(self, place: Sequence[Value], at: Sequence[Value]) -> int | Value:
        """Elements of a tile's sums that are another tile's results."""
        plan = self.plan
        if not plan.is_in_place or not plan.is_ragged:
            return 0
        if plan.vectorizes_pixels:
            return place[3] - at[3]
        skip: int | Value = 0
        for p, q, side in zip(place, at, plan.box, strict=True):
            skip = skip * side + (p - q)
        return skip * (plan.tile.vectors * plan.lanes)

    # ---- calls

    def begin(self, k: Builder, sums: Pointer) -> None:
        """Results that no tap meets are 0: nothing else is ever written to their sums."""
        if self.plan.several.has_phases_without_taps and not self.plan.waits:
            lanes = self.plan.lanes
            for i in k.range(0, self.plan.tile_elements, lanes):
                sums.store(k.constant(0, sums.dtype, lanes), i)

    def block(
        self, k: Builder, number: Value, x: Pointer, w: Pointer, own: Pointer,
        tensors: Sequence[tuple[Pointer, View]], scale: Pointer, panels: tuple[Value, Value],
        following: tuple[Value, Value],
    ) -> None:  # fmt: skip
        """Block ``number``, for the panels from one on to before another; ``following`` is the thread's next block and
        its first panel. ``own`` is the thread's memory, and ``w`` the packed filter, or the filter itself if panels
        are packed late."""
        plan, c = self.plan, self.c
        group, starts = self._start(number)
        valid = [
            (k.integer(of) - start).min(extent)
            for of, start, extent in zip(plan.results, starts, plan.block, strict=True)
        ]
        if plan.waits:
            self._zero(k, own + plan.input_tile_elements, panels[1] - panels[0])
        for channel, channels in self._passes(k):
            if self.fill is not None:
                image = x + view_offset(c, c.x, group, channel, (starts[0], 0, 0, 0))
                k.call(self.fill, image, own, valid[0], channels, *starts[1:])
                data = own
            else:
                data = x + self._offset_in_x(group, starts)
            for panel in k.range(*panels):
                taps = self._panel(k, group, panel, w, own, channel, channels)
                near, later = self._later(k, group, panel, (x, w), panels, following)
                for place in self._places(k, valid):
                    sums = self._sums_of(own, panel - panels[0], place)
                    there = [s + p for s, p in zip(starts, place, strict=True)]
                    if not plan.waits and self.ask is not None:
                        k.call(self.ask, self._tensors(group, there, panel, tensors)[0])
                    asked = self._asked(k, near, later, panel - panels[0], place)
                    at = self._moved_in(k, starts, place)
                    for i, stride_phase in enumerate(plan.several.stride_phases):
                        self._sum_up(
                            k, i, stride_phase, there, at, data, taps, sums, (channel, channels), asked
                        )
                    if not plan.waits:
                        self._finish(k, group, there, panel, sums + self._skipped(place, at), tensors, scale)
        if plan.waits:
            for panel in k.range(*panels):
                for place in self._places(k, valid):
                    there = [s + p for s, p in zip(starts, place, strict=True)]
                    sums = self._sums_of(own, panel - panels[0], place)
                    self._finish(k, group, there, panel, sums, tensors, scale)

    def _panel(
        self,
        k: Builder,
        group: Value,
        panel: Value,
        w: Pointer,
        own: Pointer,
        channel: Value,
        channels: Value,
    ) -> list[Pointer]:
        """The panel of each stride phase; one that is packed late now gets the channels of the input tile."""
        plan, c = self.plan, self.c
        if self.pack is None:
            place = group * plan.panels.count + panel
            pairs = zip(plan.every_panels, plan.panel_starts, strict=False)
            return [w + (place * panels.panel_size + start) for panels, start in pairs]
        to = own + (plan.input_tile_elements + plan.sums_elements)
        source = w + group_offset(group, c.groups, c.w.groups)
        k.call(self.pack, source, to, panel * plan.panels.lanes, channel, channels)
        return [to]

    def _passes(self, k: Builder) -> Iterator[tuple[Value, Value]]:
        """The first channel and how many channels of each input tile."""
        depth = k.integer(self.c.depth)
        if not self.plan.waits:
            yield k.integer(0), depth
            return
        for channel in k.range(0, depth, self.plan.channels):
            yield channel, (depth - channel).min(self.plan.channels)

    def _zero(self, k: Builder, sums: Pointer, panels: Value) -> None:
        lanes = self.plan.lanes
        for i in k.range(0, panels * self.plan.sums_of_panel, lanes):
            sums.store(k.constant(0, sums.dtype, lanes), i)

    def _sums_of(self, own: Pointer, panel: Value, place: Sequence[Value]) -> Pointer:
        """Where the sums of a tile are: if they wait for more channels each tile has its own."""
        plan = self.plan
        sums = own + plan.input_tile_elements
        if not plan.waits:
            return sums
        return sums + self._number(panel, place) * plan.tile_elements

    def _number(self, panel: Value, place: Sequence[Value]) -> Value:
        """The number of a tile among those of a block."""
        tile = panel
        for p, side, of in zip(place, self.plan.box, self.plan.block, strict=True):
            tile = tile * ceil_div(of, side) + p // side
        return tile

    def _places(self, k: Builder, valid: Sequence[Value]) -> Iterator[tuple[Value, Value, Value, Value]]:
        """First result of every tile of a block, relative to the block."""
        n, d, h, w = self.plan.box
        for i in k.range(0, valid[0], n):
            for j in k.range(0, valid[1], d):
                for p in k.range(0, valid[2], h):
                    for q in k.range(0, valid[3], w):
                        yield i, j, p, q

    def _tensors(
        self, group: Value, there: Sequence[Value], panel: Value, tensors: Sequence[tuple[Pointer, View]]
    ) -> list[Pointer]:
        """Where the tile whose first result is at ``there`` begins in y and in the epilogue's operands."""
        plan = self.plan
        in_y = [t * side for t, side in zip(there, plan.sides, strict=True)]
        channel = panel * plan.panels.lanes
        return [t + view_offset(self.c, view, group, channel, in_y) for t, view in tensors]

    def _finish(
        self, k: Builder, group: Value, there: Sequence[Value], panel: Value, sums: Pointer,
        tensors: Sequence[tuple[Pointer, View]], scale: Pointer,
    ) -> None:  # fmt: skip
        """A tile's sums on their way to y."""
        plan, c = self.plan, self.c
        extents = (c.batch, *plan.several.extents)
        in_y = [t * side for t, side in zip(there, plan.sides, strict=True)]
        left = [k.integer(of) - t for of, t in zip(extents, in_y, strict=True)]
        channels = k.integer(c.width) - panel * plan.panels.lanes
        rest = [left[3], channels] if plan.vectorizes_pixels else [channels, *left]
        k.call(self.store, sums, scale, *self._tensors(group, there, panel, tensors), *rest)

    def _sum_up(
        self, k: Builder, number: int, stride_phase: StridePhase, there: Sequence[Value], place: Sequence[Value],
        own: Pointer, taps: Sequence[Pointer], sums: Pointer, passing: tuple[Value, Value],
        asked: Sequence[Pointer],
    ) -> None:  # fmt: skip
        """The sums of one stride phase, of the taps that read inside.

        ``there`` is the tile's first result and ``place`` the same in its block, of which ``own`` is the input tile;
        ``passing`` are the first channel in the input tile and how many there are; ``asked`` is what to ask for meanwhile.
        """
        plan, input_tile, panels = self.plan, self.input_tile, self.plan.every_panels[number]
        row = plan.place_in_tile((0, *stride_phase.remainder))
        to = sums + row * (plan.tile.vectors * plan.lanes)
        panel = taps[number] + passing[0] * panels.channel_stride
        data = own + place[0] * input_tile.batch
        for p, step, stride in zip(place[1:], input_tile.steps, input_tile.space, strict=True):
            data = data + p * (step * stride)
        data = data + sum(
            (axis.taps.offset - low) * stride
            for axis, low, stride in zip(stride_phase.c.axes, input_tile.lows, input_tile.space, strict=True)
        )
        counts = [passing[1]] if plan.waits else []
        for i in plan.trimmed_axes(stride_phase.c, plan.box):
            axis = stride_phase.c.axes[i]
            first, last = inside_taps(axis, there[1 + i], plan.box[1 + i])
            data = data + first * (axis.taps.shift * input_tile.space[i])
            panel = panel + first * panels.tap_strides[i]
            counts.append((last - first).max(0))
        a, b = (panel, data) if plan.vectorizes_pixels else (data, panel)
        k.call(self.contract[number], a, b, to, *asked, *counts)
