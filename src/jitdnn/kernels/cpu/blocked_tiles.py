"""The code of one task of `blocked`: block after block its slab, its tiles of sums, and their way to y."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.correlation import Residue, View
from jitdnn.kernels.cpu.indexing import split_index, view_offset
from jitdnn.kernels.cpu.prefetching import Region, region_of, trace_prefetch
from jitdnn.kernels.cpu.stores import trace_store
from jitdnn.kernels.cpu.tiles import step_cycles
from jitdnn.kernels.cpu.trimming import inside_taps
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.blocked import Blocked

_CACHED_BYTES = 512 << 10  # of a result that surely stays in the L2 cache
_AHEAD_CYCLES = 400  # of a tile's sums: long enough for lines to come from memory


class TileCode:
    """The functions that a task calls, and the calls."""

    def __init__(self, plan: Blocked, module: Module, prefix: str, epilogue: Epilogue | None) -> None:
        self.plan, self.c, self.slab = plan, plan.c, plan.slab
        self.fill = plan.trace_slab_of(module, f"{prefix}slab")
        self.contract: list[Function] = []
        known: dict[object, Function] = {}
        for i, (residue, panels) in enumerate(zip(plan.several.residues, plan.every_panels, strict=True)):
            # residues differ in where they begin, but for the numbers of their taps
            like = (panels, *((axis.taps.count, axis.taps.shift) for axis in residue.c.axes))
            trimmed = tuple(plan.trimmed_axes(residue.c, plan.box))
            if (like, trimmed) not in known:
                name = f"{prefix}contract{i}"
                known[like, trimmed] = plan.trace_contraction_of(module, name, residue.c, panels)
            self.contract.append(known[like, trimmed])
        self.store = trace_store(module, f"{prefix}store", plan.tile_store(epilogue))
        self.own_lines, self.ask = self._own_region(), None
        if self.own_lines is not None:
            self.ask = trace_prefetch(module, f"{prefix}own", self.c.y.dtype, self.own_lines)

    def _own_region(self) -> Region | None:
        """The lines of y that a tile writes; None if they are at hand, or there is no time to bring them."""
        plan, c = self.plan, self.c
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

    # ---- calls

    def begin(self, k: Builder, sums: Pointer) -> None:
        """Results that no tap meets are 0: nothing else is ever written to their sums."""
        if self.plan.several.has_unmet:
            lanes = self.plan.lanes
            for i in k.range(0, self.plan.tile_elements, lanes):
                sums.store(k.constant(0, sums.dtype, lanes), i)

    def block(
        self, k: Builder, number: Value, x: Pointer, packed: Pointer, own: Pointer,
        tensors: Sequence[tuple[Pointer, View]], scale: Pointer, panels: tuple[Value, Value],
    ) -> None:  # fmt: skip
        """Block ``number``, for the panels from one on to before another. ``own`` is the thread's memory."""
        plan, c = self.plan, self.c
        group, *index = split_index(number, (c.group_count, *plan.blocks))
        starts = [i * extent for i, extent in zip(index, plan.block, strict=True)]
        valid = [
            (k.integer(of) - start).min(extent)
            for of, start, extent in zip(plan.results, starts, plan.block, strict=True)
        ]
        image = x + view_offset(c, c.x, group, 0, (starts[0], 0, 0, 0))
        k.call(self.fill, image, own, valid[0], c.depth, *starts[1:])
        for panel in k.range(*panels):
            for place in self._places(k, valid):
                self._tile(k, group, starts, place, panel, packed, own, tensors, scale)

    def _places(self, k: Builder, valid: Sequence[Value]) -> Iterator[tuple[Value, Value, Value, Value]]:
        """First result of every tile of a block, relative to the block."""
        n, d, h, w = self.plan.box
        for i in k.range(0, valid[0], n):
            for j in k.range(0, valid[1], d):
                for p in k.range(0, valid[2], h):
                    for q in k.range(0, valid[3], w):
                        yield i, j, p, q

    def _tile(
        self, k: Builder, group: Value, starts: Sequence[Value], place: Sequence[Value], panel: Value,
        packed: Pointer, own: Pointer, tensors: Sequence[tuple[Pointer, View]], scale: Pointer,
    ) -> None:  # fmt: skip
        """The sums of one tile, of all residues, and their way to y."""
        plan, c, slab = self.plan, self.c, self.slab
        sums = own + plan.slab_elements
        there = [s + p for s, p in zip(starts, place, strict=True)]
        at = place[0] * slab.batch
        for p, step, stride in zip(place[1:], slab.steps, slab.space, strict=True):
            at = at + p * (step * stride)
        channel = panel * plan.panels.lanes
        in_y = [t * side for t, side in zip(there, plan.sides, strict=True)]
        places = [t + view_offset(c, view, group, channel, in_y) for t, view in tensors]
        if self.ask is not None:
            k.call(self.ask, places[0])
        for i, residue in enumerate(plan.several.residues):
            row = plan.place_in_tile((0, *residue.place))
            to = sums + row * (plan.tile.vectors * plan.lanes)
            self._sum_up(k, i, residue, there, own + at, packed, group * plan.panels.count + panel, to)
        extents = (c.batch, *plan.several.extents)
        left = [k.integer(of) - t for of, t in zip(extents, in_y, strict=True)]
        channels = k.integer(c.width) - channel
        rest = [left[3], channels] if plan.lanes_are_pixels else [channels, *left]
        k.call(self.store, sums, scale, *places, *rest)

    def _sum_up(
        self, k: Builder, number: int, residue: Residue, there: Sequence[Value], data: Pointer,
        packed: Pointer, panel: Value, to: Pointer,
    ) -> None:  # fmt: skip
        """The sums of one residue, of the taps that read inside."""
        plan, slab, panels = self.plan, self.slab, self.plan.every_panels[number]
        taps = packed + (panel * panels.panel_size + plan.panel_starts[number])
        data = data + sum(
            (axis.taps.offset - whole.taps.lowest) * stride
            for axis, whole, stride in zip(residue.c.axes, self.c.axes, slab.space, strict=True)
        )
        counts = []
        for i in plan.trimmed_axes(residue.c, plan.box):
            axis = residue.c.axes[i]
            first, last = inside_taps(axis, there[1 + i], plan.box[1 + i])
            data = data + first * (axis.taps.shift * slab.space[i])
            taps = taps + first * panels.tap_strides[i]
            counts.append((last - first).max(0))
        a, b = (taps, data) if plan.lanes_are_pixels else (data, taps)
        k.call(self.contract[number], a, b, to, *counts)
