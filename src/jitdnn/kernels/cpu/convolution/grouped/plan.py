"""A grouped correlation over channels-last images: neighbouring results in the lanes, whole groups at a time.

    filter : the filters as [unit][slice, row of taps][vector][channel][tap of a row][lanes of results], once
    task   : a block of rows, packed for some neighbouring units; each is filtered from there
    unit   : as many whole groups as fill a vector, or one group that fills several
    tile   : sums of [columns][vectors]; channel j of every group is spread over the group's lanes, by a shuffle, or a
             broadcast if there is one group, and multiplied by the filters of all taps of a row that meet it

A strided backward data is several correlations whose results lie between each other's: a block is packed once for
all of them. No lane is idle however few channels a group has. Packed pixels of a unit are neighbours; in memory they
are so far apart that the caches cannot keep them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.grouped.code import MOST_TAPS, chunks_of, reach, trace_filter, trace_tile
from jitdnn.kernels.cpu.convolution.grouped.packing import GroupPacking, follow, trace_pack
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases, StridePhase
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index, whole_lines
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_UNIT_BYTES = 32 << 10  # of a block of one unit, packed: the nearest cache keeps most of it
_TASK_BYTES = 320 << 10  # of all units of a task: they stay in the second cache
_MOST_UNITS = 16
_TASKS = 8  # that there should be
_STRAIGHT = 400  # multiply-adds in a straight line
_PICK = 0.25  # cycles of a shuffle
_PACK = 2.5  # cycles to copy one vector
_NEAR = 12.0  # bytes that a cycle brings from the third cache
_FAR = 10.0  # and from memory
_CACHE_BYTES = 20 << 20  # of the third cache
_TILE = 20.0  # cycles to begin and end a tile
_STORE = 2.0  # cycles to store one vector of results
_ROW = 6.0  # cycles of a turn of the loop over rows of taps
_FILTER = 1.5  # cycles to turn one value of the filter


@dataclass(frozen=True)
class GroupBlockTile:
    """Sums in registers: columns of a row, and vectors of a unit's results."""

    columns: int
    vectors: int


@dataclass(frozen=True)
class GroupedPlan:
    """How correlations of groups that are computed together are."""

    several: InterleavedPhases
    isa: Isa

    @property
    def c(self) -> Correlation:
        """What all of them read, and all positions of the results."""
        return self.several.whole

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def fits(self) -> bool:
        """True if the channels of all tensors follow each other, and no result goes without taps."""
        c = self.c
        if c.groups[0] == 1 or not follow(c) or self.several.has_phases_without_taps:
            return False
        return all(v.groups == (c.width,) and (c.width == 1 or v.channels == 1) for v in c.operands)

    @property
    def together(self) -> int:
        """Groups of one unit."""
        return max(1, self.lanes // max(self.c.depth, self.c.width))

    @property
    def units(self) -> int:
        return ceil_div(self.c.groups[0], self.together)

    @property
    def vectors(self) -> int:
        """Of a unit's results."""
        return ceil_div(self.together * self.c.width, self.lanes)

    @property
    def slices(self) -> int:
        """That a slice of results reads, and those between them."""
        return self.c.axes[0].taps.span + 1

    # ---- tile and block

    @cached_property
    def tile(self) -> GroupBlockTile:
        return min(self._tiles(), key=self._work)

    def _tiles(self) -> Iterator[GroupBlockTile]:
        yield GroupBlockTile(1, 1)
        results, written = self.c.axes[2].results, self.c.depth if self.together > 1 else 1
        for vectors in range(1, min(2, self.vectors) + 1):
            taps = (
                min(MOST_TAPS, max(stride_phase.c.axes[2].taps.count for stride_phase in self.stride_phases))
                * vectors
            )
            for columns in {ceil_div(results, parts) for parts in range(1, results + 1)}:
                fits = columns * vectors + taps + 2 <= self.isa.registers
                if fits and columns * taps * written <= _STRAIGHT:
                    yield GroupBlockTile(columns, vectors)

    @property
    def stride_phases(self) -> tuple[StridePhase, ...]:
        return self.several.stride_phases

    def _work(self, tile: GroupBlockTile) -> float:
        """Cycles of a row of results of each correlation, of a unit."""
        tiles = ceil_div(self.c.axes[2].results, tile.columns) * ceil_div(self.vectors, tile.vectors)
        return tiles * sum(self._tile_cycles(tile, stride_phase.c) for stride_phase in self.stride_phases)

    def _tile_cycles(self, tile: GroupBlockTile, c: Correlation) -> float:
        slices, rows, _ = (axis.taps.count for axis in c.axes)
        cycles = 0.0
        for _, taps in chunks_of(c.axes[2]):
            products = tile.columns * taps * tile.vectors
            picks = len(reach(c.axes[2], tile.columns, taps))
            busy = products / 2 + (_PICK * picks if self.together > 1 else 0.0)
            # each sum waits for itself: fewer than eight leave the multipliers idle
            waits = 4.0 * taps if tile.columns * tile.vectors < 8 else 0.0
            cycles += c.depth * (max(busy, (picks + taps * tile.vectors) / 2, waits) + 0.5)
        whole = slices * rows * fraction_inside(c.axes[1]) * (cycles + _ROW)
        return whole + _TILE + tile.columns * tile.vectors * _STORE

    @cached_property
    def block(self) -> tuple[int, int]:
        """Rows of one block, and tiles along them."""
        _, down, along = self.c.axes
        rows, tiles = down.results, ceil_div(along.results, self.tile.columns)
        vectors = ceil_div(self.together * self.c.depth, self.lanes) * self.slices

        def fits(h: int, w: int) -> bool:
            pixels = down.reads(h) * along.reads(w * self.tile.columns)
            return pixels * vectors * self.isa.vector_bytes <= _UNIT_BYTES

        wide = max((w for w in block_sizes(tiles, tiles) if fits(1, w)), default=1)
        high = max((h for h in block_sizes(rows, rows) if fits(h, wide)), default=1) if wide == tiles else 1
        while high > 1 and self.c.batch * ceil_div(rows, high) < _TASKS:
            high = ceil_div(high, 2)
        return high, wide

    @property
    def blocks(self) -> tuple[int, int, int, int, int]:
        """Images, slices, blocks along a slice's rows and columns, and chunks of units."""
        d, h, w = (axis.results for axis in self.c.axes)
        high, wide = self.block
        wide *= self.tile.columns
        return self.c.batch, d, ceil_div(h, high), ceil_div(w, wide), ceil_div(self.units, self.chunk)

    @cached_property
    def pack(self) -> GroupPacking:
        """How a slice of a block of x is packed."""
        c, (high, wide), (_, down, along) = self.c, self.block, self.c.axes
        extents = down.reads(high), along.reads(wide * self.tile.columns)
        positions = down.positions, along.positions
        return GroupPacking(
            c.dtype, self.lanes, c.x, c.depth, c.groups[0], self.together, positions, extents, False
        )

    @cached_property
    def chunk(self) -> int:
        """Units of one task."""
        each = self.pack.elements * self.slices * ITEM_BYTES[self.c.dtype]
        most = max(1, min(_MOST_UNITS, _TASK_BYTES // each))
        return ceil_div(self.units, ceil_div(self.units, most))

    # ---- memory and cost

    def filters_of(self, stride_phase: StridePhase) -> int:
        """Elements of a unit's filters for one of the correlations."""
        return stride_phase.c.taps * self.vectors * self.c.depth * self.lanes

    @property
    def filter_size(self) -> int:
        """Elements of a unit's filters, those of all correlations one behind the other."""
        return sum(map(self.filters_of, self.stride_phases))

    @property
    def _filter_elements(self) -> int:
        return whole_lines(self.units * self.filter_size, self.c.dtype)

    @property
    def slice_elements(self) -> int:
        """Of the packed slice of a task's units."""
        return self.chunk * self.pack.elements

    @property
    def thread_elements(self) -> int:
        sums = self.tile.columns * self.tile.vectors * self.lanes
        return whole_lines(self.slice_elements * self.slices + sums, self.c.dtype)

    def thread_memory(self, workspace: Pointer, thread: Value) -> tuple[Pointer, Pointer]:
        """A thread's packed block, and the sums of a tile."""
        own = workspace + (self._filter_elements + thread * self.thread_elements)
        return own, own + self.slice_elements * self.slices

    def workspace(self, threads: int) -> int:
        """Bytes: the filters, and each thread's packed block and sums."""
        return (self._filter_elements + threads * self.thread_elements) * ITEM_BYTES[self.c.dtype]

    @property
    def tasks(self) -> int:
        return math.prod(self.blocks)

    def phases(self) -> list[tuple[str, int]]:
        return [("filter", self.units), ("tiles", self.tasks)]

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c = self.c
        lines = c.batch * c.axes[0].results * c.axes[1].results
        n, d, h, w, _ = self.blocks
        packed = n * d * h * w * math.prod(self.pack.extents) * self.pack.vectors * self.slices
        moved = c.batch * c.group_count * ITEM_BYTES[c.dtype] * (
            c.depth * math.prod(axis.positions for axis in c.axes)
            + c.width * math.prod(self.several.extents)
        )  # fmt: skip
        each = lines * self._work(self.tile) + packed * _PACK + self.filter_size * _FILTER
        return self.units * each + moved / _NEAR + (moved / _FAR if moved > _CACHE_BYTES else 0.0)

    # ---- code

    def trace(self, module: Module, pointers: int, epilogue: Epilogue | None) -> None:
        """Trace the phases of a kernel with pointers to x, w, y and the epilogue's operands."""
        c, tile, side = self.c, self.tile, self.several.strides[2]
        pack = trace_pack(module, "pack", self.pack)
        tiles = [list(self._versions(module, number)) for number in range(len(self.stride_phases))]
        places = [TileStrides(v.dtype, (v.space[2] * side,), 1) for v in (c.y, *c.operands)]
        kind = TileStore(
            c.dtype,
            (tile.columns,),
            (c.axes[2].results,),
            tile.vectors,
            places[0],
            tuple(places[1:]),
            epilogue,
        )
        store = trace_store(module, "store", kind)
        turns = [trace_filter(module, f"turn{i}", self, own.c) for i, own in enumerate(self.stride_phases)]
        with module.task("filter") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            filters = arguments.workspace(c.dtype) + task * self.filter_size
            for stride_phase, turn in zip(self.stride_phases, turns, strict=True):
                k.call(turn, arguments.pointer(1, c.w.dtype), filters, task)
                filters = filters + self.filters_of(stride_phase)
        with module.task("tiles") as (k, args, task, thread):
            arguments, alpha_beta = Arguments(k, args, pointers), scale(k, args, pointers)
            _Task(k, self, arguments, alpha_beta, task, thread).run(pack, tiles, store)

    def _versions(self, module: Module, number: int) -> Iterator[tuple[range, Function]]:
        """A tile of one of the correlations, by the number of its vectors: where its tiles begin, and the code."""
        each, c = self.tile.vectors, self.stride_phases[number].c
        whole = self.vectors // each * each
        if whole:
            yield range(0, whole, each), trace_tile(module, f"tile{number}", self, c, each)
        if whole < self.vectors:
            rest = self.vectors - whole
            yield range(whole, self.vectors, rest), trace_tile(module, f"rest{number}", self, c, rest)


class _Task:
    """A block of rows of some units."""

    def __init__(
        self, k: Builder, plan: GroupedPlan, arguments: Arguments, alpha_beta: Pointer, task: Value,
        thread: Value,
    ) -> None:  # fmt: skip
        self.k, self.plan, self.c, self.arguments = k, plan, plan.c, arguments
        self.n, self.d, i, j, chunk = split_index(task, plan.blocks)
        high, wide = plan.block
        self.h, self.p, self.first = i * high, j * (wide * plan.tile.columns), chunk * plan.chunk
        self.count = (k.integer(plan.units) - self.first).min(plan.chunk)
        self.filters = arguments.workspace(self.c.dtype)
        self.own, self.sums = plan.thread_memory(self.filters, thread)
        self.scale = alpha_beta
        views = (self.c.y, *self.c.operands)
        self.tensors = [(arguments.pointer(2 + i, v.dtype) + v.offset, v) for i, v in enumerate(views)]

    def run(self, pack: Function, tiles: list[list[tuple[range, Function]]], store: Function) -> None:
        k, c, plan = self.k, self.c, self.plan
        depth, down, along = c.axes
        rows = (k.integer(down.results) - self.h).min(plan.block[0])
        row = self.h * down.step + down.taps.lowest
        column = self.p * along.step + along.taps.lowest
        x_rows = down.reads(rows)
        x = self.arguments.pointer(0, c.x.dtype) + (self.n * c.x.batch + c.x.offset)
        for tap in k.range(plan.slices):
            at = self.d * depth.step + depth.taps.lowest + tap
            with k.when((at >= 0) & (at < depth.positions)):
                block = (row, column, x_rows, plan.pack.extents[1], self.first, self.count)
                k.call(pack, x + at * c.x.space[0], self.own + tap * plan.slice_elements, *block)
        for unit in k.range(self.count):
            for r in k.range(rows):
                self._row(unit, r, row + r * down.step, tiles, store)

    def _row(
        self, unit: Value, r: Value, row: Value, tiles: list[list[tuple[range, Function]]], store: Function
    ) -> None:
        """One row of each correlation, of one unit; what it reads begins in ``row`` of a slice."""
        k, c, plan = self.k, self.c, self.plan
        run, (_, pixel, line) = plan.together * c.width, plan.pack.pitches
        filters = self.filters + (self.first + unit) * plan.filter_size
        source = self.own + (unit * plan.pack.elements + r * (c.axes[1].step * line))
        begin = (self.first + unit) * run
        left = (k.integer(c.groups[0] * c.width) - begin).min(run)
        for stride_phase, versions in zip(plan.stride_phases, tiles, strict=True):
            places = [
                index * side + own
                for index, side, own in zip(
                    (self.d, self.h + r), plan.several.strides, stride_phase.remainder, strict=False
                )
            ]
            side, own = plan.several.strides[2], stride_phase.remainder[2]
            end = k.integer(ceil_div(plan.several.extents[2] - own, side)) - self.p
            with k.when((places[0] < plan.several.extents[0]) & (places[1] < plan.several.extents[1])):
                starts = [
                    t + (self.n * v.batch + places[0] * v.space[0] + places[1] * v.space[1])
                    + ((self.p * side + own) * v.space[2] + begin)
                    for t, v in self.tensors
                ]  # fmt: skip
                wide = plan.block[1] * plan.tile.columns
                for at in k.range(0, end.min(wide), plan.tile.columns):
                    targets = [
                        t + at * (side * v.space[2]) for t, (_, v) in zip(starts, self.tensors, strict=True)
                    ]
                    tile_source = source + at * (c.axes[2].step * pixel)
                    for vectors, function in versions:
                        for vector in k.range(vectors.start, vectors.stop, vectors.step):
                            lane = vector * plan.lanes
                            values = filters + lane * (c.depth * stride_phase.c.axes[2].taps.count)
                            corners = [t + lane for t in targets]
                            k.call(function, tile_source, values, self.sums, corners[0], self.d, row)
                            valid = (left - lane).min(vectors.step * plan.lanes), end - at
                            k.call(store, self.sums, self.scale, *corners, *valid)
            filters = filters + plan.filters_of(stride_phase)
