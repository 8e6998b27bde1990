"""A filter's gradient as a blocked contraction over pixels: plan, cost and code.

    dw[k, c, tap] = sum over images and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

    task   : one group, one chunk of channels, one share of the panels of k, one split of the blocks of pixels
    slab   : the part of x that a block reads, with its zeros                   (packing.py)
    panels : dy of the block as [panel][pixel][lanes of k]
    tile   : sums in registers; rows are a box of (channel, taps), lanes are k  (contraction.py)
    sums   : [group][split][panel][tile][row][lanes], carried from block to block
    finish : the splits added in a fixed order, then stored                     (stores.py)

How the pixels are split depends on the problem alone, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.blocked import (
    WANTED_TASKS,
    group_offset,
    points,
    scale,
    split_index,
    view_offset,
    whole_lines,
)
from jitdnn.kernels.cpu.contraction import Loop, trace_contraction
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.packing import Slab, plan_slab, slab_extent, trace_slab
from jitdnn.kernels.cpu.stores import Placement, TileStore, trace_store
from jitdnn.kernels.cpu.tiles import Tile, ceil_div, choose_tile, cost_per_step
from jitdnn.kernels.cpu.transpose import copy_transposed
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_HALF_BLOCK_BYTES = 192 << 10  # the slab of a block, and its panels, share the L2 cache with the sums
_SUMS_BYTES = 8 << 20  # splitting the pixels may not cost more memory than this
_TYPICAL_PIXELS = 200  # a block of fewer spends its time on carrying the sums
_LEAST_CHANNELS = 64  # a chunk of fewer spends it on the panels of dy, which each chunk makes anew


@dataclass(frozen=True)
class BlockedFilter:
    """How the gradient of one filter is cut. Sizes are in elements unless said otherwise."""

    c: Correlation
    isa: Isa

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def rows(self) -> tuple[int, int, int, int]:
        """Extents of what the rows of tiles run over: channels and the three axes of taps."""
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return self.c.depth, d, h, w

    @cached_property
    def tile(self) -> Tile:
        return choose_tile(self.rows, self.c.width, self.isa, self.c.dtype, store=4.0 / _TYPICAL_PIXELS)

    @property
    def panel(self) -> int:
        """Result channels in one panel."""
        return self.tile.vectors * self.lanes

    @property
    def panels(self) -> int:
        return ceil_div(self.c.width, self.panel)

    @cached_property
    def tiles(self) -> tuple[int, int, int, int]:
        a, b, c, d = (ceil_div(extent, side) for extent, side in zip(self.rows, self.tile.box, strict=True))
        return a, b, c, d

    @property
    def tile_size(self) -> int:
        return self.tile.rows * self.panel

    @property
    def split_size(self) -> int:
        """Sums of one group and one split."""
        return self.panels * math.prod(self.tiles) * self.tile_size

    @cached_property
    def results(self) -> tuple[int, int, int, int]:
        d, h, w = (axis.results for axis in self.c.axes)
        return self.c.batch, d, h, w

    @cached_property
    def chunk(self) -> int:
        """Channels whose slab is taken at once: fewer where too few pixels of all of them would fit."""
        side, chunk = self.tile.box[0], self.c.depth
        enough = min(_TYPICAL_PIXELS, math.prod(self.results))
        while chunk > max(side, _LEAST_CHANNELS) and math.prod(self._block(chunk)) < enough:
            chunk = ceil_div(ceil_div(chunk, 2), side) * side
        return chunk

    @property
    def chunks(self) -> int:
        return ceil_div(self.c.depth, self.chunk)

    @cached_property
    def block(self) -> tuple[int, int, int, int]:
        """Pixels of one block."""
        return self._block(self.chunk)

    def _block(self, channels: int) -> tuple[int, int, int, int]:
        """Grown from the last axis on while the slab of ``channels`` and a panel of dy fit."""
        c, results = self.c, self.results

        def fits(candidate: list[int]) -> bool:
            slab = candidate[0] * channels
            for axis, extent in zip(c.axes, candidate[1:], strict=True):
                slab *= slab_extent(axis, extent)
            most = max(slab, math.prod(candidate) * self.panel)
            return most * ITEM_BYTES[c.dtype] <= _HALF_BLOCK_BYTES

        block = [1, 1, 1, 1]
        for axis in (3, 2, 1, 0):
            for parts in range(1, results[axis] + 1):
                block[axis] = ceil_div(results[axis], parts)
                if fits(block):
                    break
            if block[axis] < results[axis]:
                break
        n, d, h, w = block
        return n, d, h, w

    @cached_property
    def blocks(self) -> tuple[int, int, int, int]:
        n, d, h, w = (ceil_div(of, extent) for of, extent in zip(self.results, self.block, strict=True))
        return n, d, h, w

    @cached_property
    def splits(self) -> int:
        """Into how many independent sums the blocks are divided."""
        bytes_each = max(1, self.split_size * self.c.group_count * ITEM_BYTES[self.c.dtype])
        wanted = min(ceil_div(WANTED_TASKS, self.c.group_count * self.chunks), math.prod(self.blocks))
        return max(1, min(wanted, _SUMS_BYTES // bytes_each))

    @cached_property
    def shares(self) -> int:
        """Into how many tasks the panels are divided: for the threads, and so that a task's panels fit."""
        bytes_each = math.prod(self.block) * self.panel * ITEM_BYTES[self.c.dtype]
        fitting = max(1, _HALF_BLOCK_BYTES // max(1, bytes_each))
        wanted = ceil_div(WANTED_TASKS, self.c.group_count * self.chunks * self.splits)
        return max(min(self.panels, wanted), ceil_div(self.panels, fitting))

    @property
    def tasks(self) -> int:
        return self.c.group_count * self.chunks * self.shares * self.splits

    @property
    def panels_per_share(self) -> int:
        return ceil_div(self.panels, self.shares)

    @cached_property
    def slab(self) -> Slab:
        return plan_slab(replace(self.c, depth=self.chunk), self.block, self.lanes)

    @cached_property
    def slab_elements(self) -> int:
        """Room for the slab and for what the last tiles read, and never use, beyond it."""
        reach = (self.block[0] - 1) * self.slab.batch + 1
        for axis, extent, stride in zip(self.c.axes, self.block[1:], self.slab.space, strict=True):
            reach += (slab_extent(axis, extent) - 1) * stride
        for stride, extent, side in zip(
            self._row_strides, (self.chunk, *self.rows[1:]), self.tile.box, strict=True
        ):
            rounded = ceil_div(extent, side) * side
            reach += (rounded - 1) * stride
        return whole_lines(reach + 8 * self.lanes, self.c.dtype)

    @property
    def _row_strides(self) -> list[int]:
        """Steps in the slab along the channels and the taps."""
        taps = [axis.taps.shift * s for axis, s in zip(self.c.axes, self.slab.space, strict=True)]
        return [self.slab.channels, *taps]

    @cached_property
    def panel_elements(self) -> int:
        """Room for dy of one block: one share's panels."""
        size = self.panels_per_share * math.prod(self.block) * self.panel
        return whole_lines(size + 2 * self.lanes, self.c.dtype)

    @cached_property
    def sum_elements(self) -> int:
        return whole_lines(self.c.group_count * self.splits * self.split_size, self.c.dtype)

    def workspace(self, threads: int) -> int:
        """Bytes: the sums of every split, then for each thread a slab and the panels of a block."""
        own = self.slab_elements + self.panel_elements
        return (self.sum_elements + threads * own) * ITEM_BYTES[self.c.dtype]

    def cycles(self) -> float:
        c = self.c
        pixels = math.prod(self.results)
        work = pixels * cost_per_step(self.rows, c.width, self.tile, self.lanes)
        blocks = math.prod(self.blocks)
        carried = blocks * self.split_size / self.lanes * 4.0
        slab = (
            blocks * self.shares * self.block[0] * c.depth * math.prod(self.slab.extents) / self.lanes * 4.0
        )
        turned = 6.0 if c.y.channels != 1 else 3.0
        panels = self.chunks * pixels * self.panels * self.panel / self.lanes * turned
        finish = self.split_size / self.lanes * (8.0 + 3.0 * self.splits)
        return c.group_count * (work + carried + slab + panels + finish)

    def phases(self) -> list[tuple[str, int]]:
        return [("sums", self.tasks), ("finish", self.c.group_count * self.panels * self.tiles[0])]

    # ---- code

    def trace(self, module: Module, pointers: int) -> None:
        """Trace the two phases; the pointers are x, dy and dw."""
        self._trace_sums(module, pointers)
        self._trace_finish(module, pointers)

    def _split_base(self, group: Value, split: int | Value) -> Value:
        return (group * self.splits + split) * self.split_size

    def _trace_sums(self, module: Module, pointers: int) -> None:
        c = self.c
        fill = trace_slab(module, "slab", c, self.slab)
        turn = self._trace_panels(module, "panels")
        contract, runtime = self._trace_contraction(module, "contract")
        blocks, each = math.prod(self.blocks), self.panels_per_share
        tiles, inner = math.prod(self.tiles), math.prod(self.tiles[1:])
        with module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, pointers)
            work = arguments.workspace(c.dtype)
            own = work + (thread * (self.slab_elements + self.panel_elements) + self.sum_elements)
            dy_panels = own + self.slab_elements
            # neighbouring tasks share their pixels of x: the last reading left them in the cache
            extents = (c.group_count, self.chunks, self.splits, self.shares)
            group, chunk, split, share = split_index(task, extents)
            first, last = share * each, (share * each + each).min(self.panels)
            channel = chunk * self.chunk
            channels = (k.integer(c.depth) - channel).min(self.chunk)
            column = channel // self.tile.box[0]
            columns = (channels + (self.tile.box[0] - 1)) // self.tile.box[0]
            base = work + (self._split_base(group, split) + column * (inner * self.tile_size))
            for panel in k.range(first, last):
                self._clear(k, base + panel * (tiles * self.tile_size), columns * (inner * self.tile_size))
            x, dy = arguments.pointer(0, c.x.dtype), arguments.pointer(1, c.y.dtype)
            for block in k.range(split * blocks // self.splits, (split + 1) * blocks // self.splits):
                index = split_index(block, self.blocks)
                starts = [i * extent for i, extent in zip(index, self.block, strict=True)]
                valid = [
                    (k.integer(of) - start).min(extent)
                    for of, start, extent in zip(self.results, starts, self.block, strict=True)
                ]
                image = x + view_offset(c, c.x, group, channel, (starts[0], 0, 0, 0))
                k.call(fill, image, own, valid[0], channels, *starts[1:])
                gradient = dy + view_offset(c, c.y, group, first * self.panel, starts)
                wide = [(last - first) * self.panel, k.integer(c.width) - first * self.panel]
                k.call(turn, gradient, dy_panels, *wide, *valid)
                for panel in k.range(first, last):
                    b = dy_panels + (panel - first) * (math.prod(self.block) * self.panel)
                    for tile in k.range(columns * inner):
                        corner = self._corner(tile)
                        sums = base + (panel * tiles + tile) * self.tile_size
                        at = _dot(corner, self._row_strides)
                        k.call(contract, own + at, b, sums, *(valid[i] for i in runtime))

    def _clear(self, k: Builder, sums: Pointer, count: Value) -> None:
        zero = k.constant(0, self.c.dtype, self.lanes)
        for at in k.range(0, count, self.lanes):
            sums.store(zero, at)

    def _corner(self, tile: Value) -> list[Value]:
        """The first channel and taps that a tile's rows stand for."""
        inner = math.prod(self.tiles[1:])
        index = [tile // inner, *split_index(tile % inner, self.tiles[1:])]
        return [i * side for i, side in zip(index, self.tile.box, strict=True)]

    def _trace_contraction(self, module: Module, name: str) -> tuple[Function, list[int]]:
        """The micro-kernel, and which of the four extents it takes at run time."""
        slab, block = self.slab, self.block
        steps = [slab.batch, *(s * stride for s, stride in zip(slab.steps, slab.space, strict=True))]
        pitches = [self.panel * math.prod(block[i + 1 :]) for i in range(4)]
        partial = [of % extent != 0 for of, extent in zip(self.results, block, strict=True)]
        loops = [
            (i, Loop(None if partial[i] else block[i], steps[i], pitches[i]))
            for i in range(4)
            if partial[i] or block[i] != 1
        ]
        offsets = [_flat(point, self._row_strides) for point in points(self.tile.box)]
        function = trace_contraction(
            module,
            name,
            self.c.dtype,
            offsets,
            self.tile.vectors,
            [loop for _, loop in loops],
            accumulate=True,
        )
        return function, [i for i, loop in loops if loop.extent is None]

    def _trace_panels(self, module: Module, name: str) -> Function:
        """Trace ``name(dy, panels, lanes, valid, n, d, h, w)``: dy of a block, its channels as lanes."""
        c, block, lanes = self.c, self.block, self.lanes
        names = ("total", "valid", "n", "d", "h", "w")
        with module.function(name, dy=c.y.dtype, panels=c.dtype, **dict.fromkeys(names)) as (
            k, (dy, panels, total, valid, *extents), function,
        ):  # fmt: skip
            joined = block[3] == self.results[3] and c.y.space[1] == self.results[3] * c.y.space[2]
            run = extents[2] * extents[3] if joined else extents[3]
            for lane in k.range(0, total, lanes):
                panel, within = lane // self.panel, lane % self.panel
                to = panels + (panel * (math.prod(block) * self.panel) + within)
                count = (valid - lane).max(0).min(lanes)
                source = dy + lane * c.y.channels
                for n in k.range(extents[0]):
                    for d in k.range(extents[1]):
                        for h in k.range(1 if joined else extents[2]):
                            row = source + _dot([n, d, h], [c.y.batch, c.y.space[0], c.y.space[1]])
                            pixel = ((n * block[1] + d) * block[2] + h) * block[3]
                            self._turn_run(k, row, count, run, to + pixel * self.panel)
        return function

    def _turn_run(self, k: Builder, row: Pointer, count: Value, run: Value, to: Pointer) -> None:
        """A run of pixels of up to ``lanes`` channels as vectors of channels."""
        y, lanes = self.c.y, self.lanes
        if y.space[2] == 1 and y.channels != 1:
            copy_transposed(k, row, y.channels, count, run, to, self.panel, lanes)
            return
        mask = k.mask(count, lanes)
        for p in k.range(run):
            vector = row.load_strided(p * y.space[2], y.channels, lanes, mask)
            if y.channels == 0:
                vector = k.select(mask, vector, 0.0)
            to.store(vector, p * self.panel)

    def _trace_finish(self, module: Module, pointers: int) -> None:
        c, tiles = self.c, self.tiles
        store = trace_store(module, "store", self._tile_store())
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        with module.task("finish") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            work = arguments.workspace(c.dtype)
            group, panel, column = split_index(task, (c.group_count, self.panels, tiles[0]))
            dw = arguments.pointer(2, c.w.dtype) + (group_offset(group, c.groups, c.w.groups) + start)
            channel = panel * self.panel
            for rest in k.range(math.prod(tiles[1:])):
                index = [column, *split_index(rest, tiles[1:])]
                corner = [i * side for i, side in zip(index, self.tile.box, strict=True)]
                tile = (panel * tiles[0] + column) * math.prod(tiles[1:]) + rest
                sums = work + (self._split_base(group, 0) + tile * self.tile_size)
                self._add_splits(k, sums)
                place = dw + (channel * c.w.results + _dot(corner, self._filter_strides))
                left = [k.integer(extent) - at for extent, at in zip(self.rows, corner, strict=True)]
                valid = [r.min(side) for r, side in zip(left, self.tile.box, strict=True)]
                k.call(store, sums, scale(k, args, pointers), place, k.integer(c.width) - channel, *valid)

    def _add_splits(self, k: Builder, sums: Pointer) -> None:
        if self.splits == 1:
            return
        for at in k.range(0, self.tile_size, self.lanes):
            total = k.register(sums.load(at, self.lanes))
            for split in k.range(1, self.splits):
                total += sums.load(at + split * self.split_size, self.lanes)
            sums.store(total.get(), at)

    @property
    def _filter_strides(self) -> list[int]:
        c = self.c
        return [c.w.channels, *(axis.taps.increment * s for axis, s in zip(c.axes, c.w.space, strict=True))]

    def _tile_store(self) -> TileStore:
        place = Placement(self.c.w.dtype, tuple(self._filter_strides), self.c.w.results)
        return TileStore(self.c.dtype, self.tile.box, self.rows, self.tile.vectors, place, (), None)


def _dot(point: list[Value], strides: list[int]) -> Value:
    offset = point[0] * strides[0]
    for i, stride in zip(point[1:], strides[1:], strict=True):
        offset = offset + i * stride
    return offset


def _flat(point: tuple[int, ...], strides: list[int]) -> int:
    return sum(i * stride for i, stride in zip(point, strides, strict=True))
