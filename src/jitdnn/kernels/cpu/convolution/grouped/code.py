"""The code of a grouped fprop or dgrad: weights packed as vectors, and register tiles over packed blocks of x.

The loops are drawn in plan.py, where the sizes have their names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import tap_offset
from jitdnn.kernels.cpu.convolution.grouped.packing import broadcast_in_groups, trace_pack
from jitdnn.kernels.cpu.convolution.grouped.plan import GroupedPlan, tap_blocks, uses_of_positions
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value

# The tiles of one stride phase: (where they begin in the unit's vectors, function), for full tiles and for the rest.
_Tiles = list[tuple[range, Function]]


def trace(module: Module, plan: GroupedPlan, pointers: int, epilogue: Epilogue | None) -> None:
    """Trace the phases of a plan, for pointers to x, w, y and the epilogue's operands."""
    c, tile, side = plan.c, plan.tile, plan.interleaved.strides[2]
    pack = trace_pack(module, "pack", plan.packing)
    tiles = [list(_trace_tiles(module, number, plan)) for number in range(len(plan.stride_phases))]
    placements = [TileStrides(v.dtype, (v.space[2] * side,), 1) for v in (c.y, *c.operands)]
    kind = TileStore(
        c.dtype,
        (tile.columns,),
        (c.axes[2].results,),
        tile.vectors,
        placements[0],
        tuple(placements[1:]),
        epilogue,
    )
    store = trace_store(module, "store", kind)
    weight_packs = [
        trace_weight_pack(module, f"pack_weights{i}", plan, stride_phase.c)
        for i, stride_phase in enumerate(plan.stride_phases)
    ]
    with module.task("pack_weights") as (k, args, unit, _):
        arguments = Arguments(k, args, pointers)
        weights = arguments.workspace(c.dtype) + unit * plan.unit_weights
        for stride_phase, pack_weights in zip(plan.stride_phases, weight_packs, strict=True):
            k.call(pack_weights, arguments.pointer(1, c.w.dtype), weights, unit)
            weights = weights + plan.phase_weights(stride_phase)
    with module.task("tiles") as (k, args, task, thread):
        arguments, alpha_beta = Arguments(k, args, pointers), scale(k, args, pointers)
        _Task(k, plan, arguments, alpha_beta, task, thread).run(pack, tiles, store)


def trace_weight_pack(module: Module, name: str, plan: GroupedPlan, c: Correlation) -> Function:
    """Trace ``name(w, target, unit)``: the weights of a unit for one stride phase, as [d, row of taps][vector][channel]
    [tap of a row][lanes]; lanes without a result are 0."""
    lanes = plan.lanes
    slices, rows, columns = (axis.taps.count for axis in c.axes)
    tap_stride = c.axes[2].taps.increment * c.w.space[2]
    with module.function(name, w=c.w.dtype, target=c.dtype, unit=None) as (k, (w, target, unit), function):
        first = unit * plan.groups_per_unit
        for number in k.range(slices * rows * plan.vectors):
            d, h, vector = split_index(number, (slices, rows, plan.vectors))
            for tap in k.range(columns):
                source = w + (tap_offset(c, d, h) + tap * tap_stride + first * c.w.groups[0])
                source = source + vector * (lanes * c.w.results)
                target_tap = target + (number * (c.depth * columns) + tap) * lanes
                count = (k.integer(c.width) - vector * lanes).min(lanes)
                if plan.groups_per_unit == 1 and c.w.channels == 1:
                    copy_transposed(
                        k, source, c.w.results, count, c.depth, target_tap, columns * lanes, lanes
                    )
                    continue
                for channel in k.range(c.depth):
                    weights = target_tap + channel * (columns * lanes)
                    weights.store(k.constant(0, c.dtype, lanes))
                    groups = k.integer(plan.groups_per_unit).min(k.integer(c.groups[0]) - first)
                    for group in k.range(groups):
                        value = source + (group * c.w.groups[0] + channel * c.w.channels)
                        mask = k.mask(count, lanes)
                        weights.store(value.load_strided(0, c.w.results, lanes, mask), group * c.width, mask)
    return function


def _trace_tiles(module: Module, number: int, plan: GroupedPlan) -> Iterator[tuple[range, Function]]:
    """The tiles of stride phase ``number``: where in the unit's vectors they begin, and the code."""
    each, c = plan.tile.vectors, plan.stride_phases[number].c
    whole = plan.vectors // each * each
    if whole:
        yield range(0, whole, each), trace_tile(module, f"tile{number}", plan, c, each)
    if whole < plan.vectors:
        rest = plan.vectors - whole
        yield range(whole, plan.vectors, rest), trace_tile(module, f"rest{number}", plan, c, rest)


def trace_tile(module: Module, name: str, plan: GroupedPlan, c: Correlation, vectors: int) -> Function:
    """Trace ``name(x, weights, sums, y, d, row)``: the sums of a tile of one stride phase as [column][vector][lanes].

    ``x`` points to the first packed pixel that any stride phase reads for the tile, which is in ``row`` of its slice;
    ``weights`` to those of the first of ``vectors`` vectors of results. ``y``, where the first result will be, is
    prefetched, and ``d`` is the slice of the results.
    """
    tile, lanes = plan.tile, plan.lanes
    axis_d, axis_h, axis_w = c.axes
    lowest = [axis.taps.lowest for axis in plan.c.axes]
    with module.function(
        name, x=c.dtype, weights=c.dtype, sums=c.dtype, y=c.y.dtype, d=None, row=None
    ) as (k, (x, weights, sums, y, d, row), function):  # fmt: skip
        for column, vector in itertools.product(range(tile.columns), range(vectors)):
            y.prefetch(column * (plan.interleaved.strides[2] * c.y.space[2]) + vector * lanes, write=True)
        zero = k.constant(0, c.dtype, lanes)
        registers = {at: k.register(zero) for at in itertools.product(range(tile.columns), range(vectors))}
        code = _Tile(k, plan, c, vectors)
        for i in k.range(axis_d.taps.count):
            slice_at = d * axis_d.step + axis_d.taps.offset + i * axis_d.taps.shift
            with when(k, inside(axis_d, slice_at, 1)):
                for h in k.range(axis_h.taps.count):
                    row_offset = h * axis_h.taps.shift + (axis_h.taps.offset - lowest[1])
                    with when(k, inside(axis_h, row + row_offset, 1)):
                        number = i * axis_d.taps.shift + (axis_d.taps.offset - lowest[0])
                        pixels = x + (number * plan.slice_elements + row_offset * plan.packing.strides[2])
                        size = plan.vectors * c.depth * axis_w.taps.count * lanes
                        code.tap_row(pixels, weights + (i * axis_h.taps.count + h) * size, registers)
        for (column, vector), register in registers.items():
            sums.store(register.get(), (column * tile.vectors + vector) * lanes)
    return function


class _Tile:
    def __init__(self, k: Builder, plan: GroupedPlan, c: Correlation, vectors: int) -> None:
        self.k, self.plan, self.vectors, self.c, self.tile = k, plan, vectors, c, plan.tile

    def tap_row(self, pixels: Pointer, weights: Pointer, registers: dict[tuple[int, int], Register]) -> None:
        """All channels, by a row of taps."""
        k, plan, taps = self.k, self.plan, self.c.axes[2].taps
        for first, count in tap_blocks(self.c.axes[2]):
            column_offset = taps.offset + first * taps.shift - plan.c.axes[2].taps.lowest
            source = pixels + column_offset * plan.packing.strides[1]
            if plan.groups_per_unit == 1:
                for channel in k.range(self.c.depth):
                    self._channel(source, weights, (first, count), channel, registers)
            else:
                for number in range(self.c.depth):
                    k.barrier()
                    self._channel(source, weights, (first, count), number, registers)

    def _channel(
        self, pixels: Pointer, weights: Pointer, taps: tuple[int, int], channel: int | Value,
        registers: dict[tuple[int, int], Register],
    ) -> None:  # fmt: skip
        """One channel of each group, by some taps of a row: (the first, how many)."""
        k, plan, (first, count), lanes = self.k, self.plan, taps, self.plan.lanes
        columns = self.c.axes[2].taps.count
        loaded = {
            (s, v): weights.load(
                (k.integer(channel) * columns + (first + s + v * self.c.depth * columns)) * lanes, lanes
            )
            for s, v in itertools.product(range(count), range(self.vectors))
        }
        for position, uses in uses_of_positions(self.c.axes[2], self.tile.columns, count).items():
            broadcast = self._broadcast(pixels + position * plan.packing.strides[1], channel)
            for (column, s), v in itertools.product(uses, range(self.vectors)):
                register = registers[column, v]
                register.set(k.fma(broadcast, loaded[s, v], register.get()))

    def _broadcast(self, pixel: Pointer, channel: int | Value) -> Value:
        plan = self.plan
        if plan.groups_per_unit == 1:
            return pixel.splat(channel, plan.lanes)
        assert isinstance(channel, int)
        vector = pixel.load(0, plan.lanes)
        return broadcast_in_groups(self.k, vector, plan.groups_per_unit, self.c.depth, channel, self.c.width)


class _Task:
    """A block of y, of some units."""

    def __init__(
        self, k: Builder, plan: GroupedPlan, arguments: Arguments, alpha_beta: Pointer, task: Value,
        thread: Value,
    ) -> None:  # fmt: skip
        self.k, self.plan, self.c, self.arguments = k, plan, plan.c, arguments
        self.n, self.d, i, j, unit_task = split_index(task, plan.task_extents)
        self.h, self.w = i * plan.block[0], j * plan.block_columns
        self.first_unit = unit_task * plan.units_per_task
        self.units = (k.integer(plan.units) - self.first_unit).min(plan.units_per_task)
        self.weights = arguments.kept(self.c.dtype)
        room = arguments.workspace(self.c.dtype)
        self.packed = room + (plan.weight_elements + thread * plan.thread_elements)
        self.sums = self.packed + plan.packed_elements
        self.scale = alpha_beta
        views = (self.c.y, *self.c.operands)
        self.tensors = [(arguments.pointer(2 + i, v.dtype) + v.offset, v) for i, v in enumerate(views)]

    def run(self, pack: Function, tiles: list[_Tiles], store: Function) -> None:
        k, c, plan = self.k, self.c, self.plan
        axis_d, axis_h, axis_w = c.axes
        rows = (k.integer(axis_h.results) - self.h).min(plan.block[0])
        row = self.h * axis_h.step + axis_h.taps.lowest
        column = self.w * axis_w.step + axis_w.taps.lowest
        x_rows = axis_h.reads(rows)
        x = self.arguments.pointer(0, c.x.dtype) + (self.n * c.x.batch + c.x.offset)
        for number in k.range(plan.slices):
            at = self.d * axis_d.step + axis_d.taps.lowest + number
            with k.when((at >= 0) & (at < axis_d.positions)):
                block = (row, column, x_rows, plan.packing.extents[1], self.first_unit, self.units)
                k.call(pack, x + at * c.x.space[0], self.packed + number * plan.slice_elements, *block)
        for unit in k.range(self.units):
            for r in k.range(rows):
                self._row(unit, r, row + r * axis_h.step, tiles, store)

    def _row(self, unit: Value, r: Value, row: Value, tiles: list[_Tiles], store: Function) -> None:
        """Row ``r`` of the block for each stride phase, of one unit; what it reads begins in ``row`` of a slice."""
        k, c, plan = self.k, self.c, self.plan
        sides, extents = plan.interleaved.strides, plan.interleaved.extents
        unit_channels, (_, pixel_stride, row_stride) = plan.groups_per_unit * c.width, plan.packing.strides
        weights = self.weights + (self.first_unit + unit) * plan.unit_weights
        source = self.packed + (unit * plan.packing.elements + r * (c.axes[1].step * row_stride))
        begin = (self.first_unit + unit) * unit_channels
        left = (k.integer(c.groups[0] * c.width) - begin).min(unit_channels)
        for stride_phase, versions in zip(plan.stride_phases, tiles, strict=True):
            d, h = (
                index * side + offset
                for index, side, offset in zip(
                    (self.d, self.h + r), sides, stride_phase.remainder, strict=False
                )
            )
            side, offset = sides[2], stride_phase.remainder[2]
            end = k.integer(ceil_div(extents[2] - offset, side)) - self.w
            with k.when((d < extents[0]) & (h < extents[1])):
                starts = [
                    t + (self.n * v.batch + d * v.space[0] + h * v.space[1])
                    + ((self.w * side + offset) * v.space[2] + begin)
                    for t, v in self.tensors
                ]  # fmt: skip
                for at in k.range(0, end.min(plan.block_columns), plan.tile.columns):
                    targets = [
                        t + at * (side * v.space[2]) for t, (_, v) in zip(starts, self.tensors, strict=True)
                    ]
                    tile_source = source + at * (c.axes[2].step * pixel_stride)
                    for vectors, function in versions:
                        for vector in k.range(vectors.start, vectors.stop, vectors.step):
                            lane = vector * plan.lanes
                            tile_weights = weights + lane * (c.depth * stride_phase.c.axes[2].taps.count)
                            corners = [t + lane for t in targets]
                            k.call(function, tile_source, tile_weights, self.sums, corners[0], self.d, row)
                            valid = (left - lane).min(vectors.step * plan.lanes), end - at
                            k.call(store, self.sums, self.scale, *corners, *valid)
            weights = weights + plan.phase_weights(stride_phase)
