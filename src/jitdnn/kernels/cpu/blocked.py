"""A correlation as a blocked contraction: plan, cost and code, shared by convolution and matrix product.

    task   : one group, one block of results (batch x space), one share of the panels of results' channels
    slab   : the input that the block reads, copied once with its zeros        (packing.py)
    panel  : the filter for one tile's channels, packed once per call          (packing.py)
    tile   : sums in registers over channels and taps                          (contraction.py)
    store  : the tile to y with alpha, beta and the epilogue                   (stores.py)

A tile's lanes are either the result's channels (its rows are a box of pixels) or pixels along the last axis
(its rows are channels): whichever wastes fewer lanes and cycles. Nothing depends on the number of threads, so
the result is the same to the bit with any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.contraction import FUSED, Loop, Products, trace_contraction
from jitdnn.kernels.cpu.correlation import Axis, Correlation, View
from jitdnn.kernels.cpu.packing import (
    Panels,
    Slab,
    plan_panels,
    plan_slab,
    slab_extent,
    slab_size,
    trace_panel,
    trace_slab,
)
from jitdnn.kernels.cpu.stores import Placement, TileStore, trace_store
from jitdnn.kernels.cpu.tiles import Tile, ceil_div, choose_tile, cost_per_step
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

SLAB_BYTES = 256 << 10  # a slab shares the L2 cache with the panels that stream by
WANTED_TASKS = 24  # enough to keep the threads of a large processor busy to the end
_PANEL_CHUNK = 64  # channels that one packing task copies
_LINE = 64


@dataclass(frozen=True)
class Blocked:
    """How one correlation is cut. All sizes are in elements of its type unless said otherwise."""

    c: Correlation
    isa: Isa
    is_scaled: bool = False  # y has been multiplied by beta before: the tiles are only added
    panels_before: int = 0  # elements of the packed filters of other parts that lie before this one's
    panels_after: int = 0  # and behind it: all of them together begin the workspace

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def _choice(self) -> tuple[bool, Tile]:
        """(lanes are pixels, tile): the cheaper of the two ways round."""
        c, steps = self.c, max(1, self.c.depth * self.c.taps)
        results = [c.batch, *(axis.results for axis in c.axes)]
        turned = c.y.channels != 1
        tile = choose_tile(results, c.width, self.isa, c.dtype, store=(6.0 if turned else 2.0) / steps)
        cost = cost_per_step(results, c.width, tile, self.lanes)
        cost += (6.0 if turned else 2.0) / steps * math.prod(results) * ceil_div(c.width, self.lanes)
        last = c.axes[2]
        if (last.step != 1 and last.taps.count > 1) or (
            c.x.channels == 1 and c.x.space[2] != 1 and c.depth > 1
        ):
            return False, tile  # neighbouring pixels would not be neighbours in the slab
        turned = c.y.space[2] != 1
        pixels = choose_tile(
            [c.width], last.results, self.isa, c.dtype, store=(6.0 if turned else 2.0) / steps
        )
        turns = math.prod(results[:-1])
        other = turns * cost_per_step([c.width], last.results, pixels, self.lanes)
        other += (6.0 if turned else 2.0) / steps * turns * c.width * ceil_div(last.results, self.lanes)
        return (True, pixels) if other < cost else (False, tile)

    @property
    def lanes_are_pixels(self) -> bool:
        return self._choice[0]

    @property
    def tile(self) -> Tile:
        return self._choice[1]

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """Pixels of one tile: batch and the three axes."""
        if self.lanes_are_pixels:
            return 1, 1, 1, self.tile.vectors * self.lanes
        n, d, h, w = self.tile.box
        return n, d, h, w

    @cached_property
    def panels(self) -> Panels:
        """The filter's panels: a tile's channels each."""
        side = self.tile.box[0] if self.lanes_are_pixels else self.tile.vectors * self.lanes
        return plan_panels(self.c, side)

    @cached_property
    def block(self) -> tuple[int, int, int, int]:
        """Results of one block: grown from the last axis on while the slab fits and enough tasks are left."""
        c, box = self.c, self.box
        results = [c.batch, *(axis.results for axis in c.axes)]
        block = [min(side, extent) for side, extent in zip(box, results, strict=True)]
        limit = SLAB_BYTES // ITEM_BYTES[c.dtype]

        def fits(candidate: list[int]) -> bool:
            cells = candidate[0] * c.depth
            for axis, extent in zip(c.axes, candidate[1:], strict=True):
                cells *= slab_extent(axis, extent)
            tasks = c.group_count
            for extent, of in zip(candidate, results, strict=True):
                tasks *= ceil_div(of, max(1, extent))
            # a large block saves the copying of borders; past one image it must leave work for every thread
            return cells <= limit and (tasks >= WANTED_TASKS or math.prod(candidate) <= 16 * math.prod(box))

        for axis in (3, 2, 1, 0):
            step = max(1, box[axis])
            while block[axis] < results[axis]:
                larger = list(block)
                larger[axis] = min(results[axis], block[axis] + step)
                if not fits(larger):
                    break
                block = larger
            if block[axis] < results[axis]:
                break
        n, d, h, w = block
        return max(1, n), max(1, d), max(1, h), max(1, w)

    @cached_property
    def blocks(self) -> tuple[int, int, int, int]:
        c = self.c
        results = (c.batch, *(axis.results for axis in c.axes))
        n, d, h, w = (ceil_div(of, extent) for of, extent in zip(results, self.block, strict=True))
        return n, d, h, w

    @cached_property
    def shares(self) -> int:
        """Into how many tasks the panels of one block are divided."""
        tasks = self.c.group_count * math.prod(self.blocks)
        return max(1, min(self.panels.count, ceil_div(WANTED_TASKS, max(1, tasks))))

    @property
    def tasks(self) -> int:
        return self.c.group_count * math.prod(self.blocks) * self.shares

    @cached_property
    def slab(self) -> Slab:
        return plan_slab(self.c, self.block, self.lanes, False if self.lanes_are_pixels else None)

    @cached_property
    def slab_elements(self) -> int:
        return whole_lines(slab_size(self.c, self.slab, self.box, self.lanes), self.c.dtype)

    @cached_property
    def panel_elements(self) -> int:
        return whole_lines(self.c.group_count * self.panels.count * self.panels.panel_size, self.c.dtype)

    @property
    def all_panels(self) -> int:
        """Elements of the packed filters of all parts."""
        return self.panels_before + self.panel_elements + self.panels_after

    @property
    def tile_elements(self) -> int:
        return self.tile.rows * self.tile.vectors * self.lanes

    def workspace(self, threads: int) -> int:
        """Bytes: the packed filters of all parts, then for each thread a slab and a tile."""
        own = self.slab_elements + whole_lines(self.tile_elements, self.c.dtype)
        return (self.all_panels + threads * own) * ITEM_BYTES[self.c.dtype]

    def cycles(self) -> float:
        """Cycles of one thread for the whole: contraction, stores, copies of input and filter."""
        c = self.c
        results = [c.batch, *(axis.results for axis in c.axes)]
        if self.lanes_are_pixels:
            per_step = math.prod(results[:-1]) * cost_per_step([c.width], results[-1], self.tile, self.lanes)
            turned = c.y.space[2] != 1
        else:
            per_step = cost_per_step(results, c.width, self.tile, self.lanes)
            turned = c.y.channels != 1 and c.y.space[2] == 1
        scattered = c.y.channels != 1 and c.y.space[2] != 1
        vectors = math.prod(results) * c.width / self.lanes
        store = vectors * (24.0 if scattered else 7.0 if turned else 3.0)
        slab = math.prod(self.blocks) * self.shares * self.block[0] * c.depth * math.prod(self.slab.extents)
        copy = slab / self.lanes * 4.0
        steps = c.depth * c.taps * math.prod(self._inside_fraction(i) for i in self._trimmed_axes)
        return c.group_count * (steps * per_step + store + copy) + self.pack_cycles()

    def pack_cycles(self) -> float:
        """The share of ``cycles`` that packing the filter has."""
        each = 0.5 if self.c.w.results != 1 else 4.0 / self.lanes
        return self.c.group_count * self.panels.count * self.panels.panel_size * each

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        """Pack the filter, then compute the tiles."""
        chunks = ceil_div(self.c.depth, _PANEL_CHUNK)
        return [
            (f"{prefix}pack", self.c.group_count * self.panels.count * chunks),
            (f"{prefix}tiles", self.tasks),
        ]

    # ---- code

    def trace(
        self,
        module: Module,
        prefix: str,
        pointers: int,
        order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:
        """Trace the two phases. ``order`` holds the numbers of the pointers to x, w and y."""
        self._trace_pack(module, prefix, pointers, order[1])
        self._trace_tiles(module, prefix, pointers, order, epilogue)

    def _trace_pack(self, module: Module, prefix: str, pointers: int, number: int) -> None:
        c, panels = self.c, self.panels
        pack = trace_panel(module, f"{prefix}panel", c, panels)
        chunks = ceil_div(c.depth, _PANEL_CHUNK)
        with module.task(f"{prefix}pack") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            # neighbouring tasks read the same rows of the filter: their pages are at hand
            group, chunk, panel = split_index(task, (c.group_count, chunks, panels.count))
            w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
            to = self._filter(arguments) + (group * panels.count + panel) * panels.panel_size
            first = chunk * _PANEL_CHUNK
            k.call(pack, w, to, panel * panels.lanes, first, (k.integer(c.depth) - first).min(_PANEL_CHUNK))

    def _filter(self, arguments: Arguments) -> Pointer:
        """Where the panels begin."""
        start: Pointer = arguments.kept(self.c.dtype) + self.panels_before
        return start

    def _trace_tiles(
        self,
        module: Module,
        prefix: str,
        pointers: int,
        order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:
        c, slab = self.c, self.slab
        fill = self._trace_slab(module, f"{prefix}slab")
        contract, trimmed = self._trace_contraction(module, f"{prefix}contract")
        store = trace_store(module, f"{prefix}store", self._tile_store(epilogue))
        with module.task(f"{prefix}tiles") as (k, args, task, thread):
            arguments = Arguments(k, args, pointers)
            packed = self._filter(arguments)
            own = arguments.workspace(c.dtype) + (
                thread * (self.slab_elements + whole_lines(self.tile_elements, c.dtype)) + self.all_panels
            )
            sums = own + self.slab_elements
            # shares of one block follow each other: their slabs are in the cache
            group, *index, share = split_index(task, (c.group_count, *self.blocks, self.shares))
            starts = [i * extent for i, extent in zip(index, self.block, strict=True)]
            results = (c.batch, *(axis.results for axis in c.axes))
            valid = [
                (k.integer(of) - start).min(extent)
                for of, start, extent in zip(results, starts, self.block, strict=True)
            ]
            x = arguments.pointer(order[0], c.x.dtype) + view_offset(c, c.x, group, 0, (starts[0], 0, 0, 0))
            k.call(fill, x, own, valid[0], c.depth, *starts[1:])
            tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            each = ceil_div(self.panels.count, self.shares)
            for panel in k.range(share * each, (share * each + each).min(self.panels.count)):
                w = packed + (group * self.panels.count + panel) * self.panels.panel_size
                channel = panel * self.panels.lanes
                for place in self._places(k, valid):
                    at = place[0] * slab.batch
                    for p, step, stride in zip(place[1:], slab.steps, slab.space, strict=True):
                        at = at + p * (step * stride)
                    there = [s + p for s, p in zip(starts, place, strict=True)]
                    data, taps, counts = own + at, w, []
                    for axis in trimmed:
                        first, last = inside_taps(c.axes[axis], there[1 + axis], self.box[1 + axis])
                        data = data + first * (c.axes[axis].taps.shift * slab.space[axis])
                        taps = taps + first * self.panels.tap_strides[axis]
                        counts.append((last - first).max(0))
                    a, b = (taps, data) if self.lanes_are_pixels else (data, taps)
                    k.call(contract, a, b, sums, *counts)
                    places = [t + view_offset(c, view, group, channel, there) for t, view in tensors]
                    left = [v - p for v, p in zip(valid, place, strict=True)]
                    channels = k.integer(c.width) - channel
                    rest = [left[3], channels] if self.lanes_are_pixels else [channels, *left]
                    k.call(store, sums, scale(k, args, pointers), *places, *rest)

    def _trace_slab(self, module: Module, name: str) -> Function:
        return trace_slab(module, name, self.c, self.slab)

    def _places(self, k: Builder, valid: list[Value]) -> Iterator[tuple[Value, Value, Value, Value]]:
        """First pixel of every tile of a block, relative to the block."""
        n, d, h, w = self.box
        for i in k.range(0, valid[0], n):
            for j in k.range(0, valid[1], d):
                for p in k.range(0, valid[2], h):
                    for q in k.range(0, valid[3], w):
                        yield i, j, p, q

    @cached_property
    def _trimmed_axes(self) -> list[int]:
        """Axes whose taps are counted for each tile: those on which some fall outside, but the last.

        A row of a tile lies along the last axis, where what is outside for one pixel is inside for another.
        """
        return [i for i, axis in enumerate(self.c.axes[:2]) if axis.taps.count > 1 and axis.is_padded]

    def _inside_fraction(self, number: int) -> float:
        """The part of all (tile, tap) pairs on an axis that is not left out."""
        axis, side = self.c.axes[number], self.box[1 + number]
        tiles = range(0, axis.results, side)
        counted = 0
        for p in tiles:
            first, last = inside_taps(axis, p, side)
            counted += max(0, last - first)
        return counted / max(1, len(tiles) * axis.taps.count)

    @property
    def _products(self) -> Products:
        return FUSED

    def _trace_contraction(self, module: Module, name: str) -> tuple[Function, list[int]]:
        """The micro-kernel, and the axes whose number of taps it takes at run time."""
        c, slab, panels = self.c, self.slab, self.panels
        trimmed = self._trimmed_axes
        # (extent, step in the slab, step in the panel); taps that walk backwards have a negative step
        nest: list[tuple[int | None, int, int]] = [(c.depth, slab.channels, panels.channel_stride)]
        for i, (axis, stride) in enumerate(zip(c.axes, slab.space, strict=True)):
            count = None if i in trimmed else axis.taps.count
            nest.append((count, axis.taps.shift * stride, panels.tap_strides[i]))
        nest = [row for row in nest if row[0] != 1]
        first = sum(
            (axis.taps.offset - axis.taps.lowest) * stride
            for axis, stride in zip(c.axes, slab.space, strict=True)
        )
        if self.lanes_are_pixels:
            loops = [Loop(extent, w, x) for extent, x, w in nest]
            rows = list(range(self.tile.rows))
            function = trace_contraction(
                module, name, c.dtype, rows, self.tile.vectors, loops, b_offset=first, products=self._products
            )
            return function, trimmed
        loops = [Loop(extent, x, w) for extent, x, w in nest]
        steps = (slab.batch, *(s * stride for s, stride in zip(slab.steps, slab.space, strict=True)))
        rows = [
            first + sum(i * s for i, s in zip(point, steps, strict=True)) for point in points(self.tile.box)
        ]
        function = trace_contraction(
            module, name, c.dtype, rows, self.tile.vectors, loops, products=self._products
        )
        return function, trimmed

    def _tile_store(self, epilogue: Epilogue | None) -> TileStore:
        c, tile = self.c, self.tile
        if self.lanes_are_pixels:
            places = [Placement(v.dtype, (v.channels,), v.space[2]) for v in (c.y, *c.operands)]
            return TileStore(
                c.dtype,
                tile.box,
                (c.width,),
                tile.vectors,
                places[0],
                tuple(places[1:]),
                epilogue,
                self.is_scaled,
            )
        places = [Placement(v.dtype, (v.batch, *v.space), v.channels) for v in (c.y, *c.operands)]
        results = (c.batch, *(axis.results for axis in c.axes))
        return TileStore(
            c.dtype, tile.box, results, tile.vectors, places[0], tuple(places[1:]), epilogue, self.is_scaled
        )


Place = TypeVar("Place", int, Value)


def inside_taps(axis: Axis, result: Place, side: int) -> tuple[Place, Place]:
    """First and last (exclusive) tap that reads inside for any of ``side`` results from ``result`` on."""
    taps, reach = axis.taps, (side - 1) * axis.step
    at = result * axis.step + taps.offset  # where tap 0 of the first result reads
    step = abs(taps.shift)
    if taps.shift > 0:
        first = _at_least(-at - reach + (step - 1), 0) // step
        last = _at_least(-at + (axis.positions + step - 1), 0) // step
    else:
        first = _at_least(at - axis.positions + step, 0) // step
        last = _at_least(at + reach + step, 0) // step
    return first, _at_most(last, taps.count)


def _at_least(value: Place, least: int) -> Place:
    return value.max(least) if isinstance(value, Value) else max(value, least)


def _at_most(value: Place, most: int) -> Place:
    return value.min(most) if isinstance(value, Value) else min(value, most)


def scale(k: Builder, args: Pointer, pointers: int) -> Pointer:
    """The two doubles alpha and beta in the argument block, as a pointer."""
    return Pointer(k, (args + (pointers + 1)).v, "f64")


def points(box: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every point of a box, the last axis fastest."""
    return list(itertools.product(*(range(side) for side in box)))


def split_index(index: Value, extents: tuple[int, ...]) -> list[Value]:
    """A flat index as one index for each extent, the last fastest."""
    parts: list[Value] = []
    for extent in reversed(extents):
        parts.append(index % extent if extent > 1 else index * 0)
        index = index // extent if extent > 1 else index
    return parts[::-1]


def group_offset(group: Value, extents: tuple[int, ...], strides: tuple[int, ...]) -> Value:
    """Offset of a group whose number counts through ``extents``."""
    offset = group * 0
    for i, stride in zip(split_index(group, extents), strides, strict=True):
        offset = offset + i * stride
    return offset


def view_offset(
    c: Correlation,
    view: View,
    group: Value,
    channel: int | Value,
    place: tuple[int | Value, ...] | list[Value],
) -> Value:
    """Offset of an element of a view: its group, its channel within the group, its (batch, axes) place."""
    offset = group_offset(group, c.groups, view.groups) + view.offset
    offset = offset + channel * view.channels
    for i, stride in zip(place, (view.batch, *view.space), strict=True):
        offset = offset + i * stride
    return offset


def whole_lines(elements: int, dtype: str) -> int:
    """Rounded up to whole cache lines."""
    line = _LINE // ITEM_BYTES[dtype]
    return ceil_div(elements, line) * line
