"""The code of a grouped wgrad: micro-kernels over packed blocks of a unit, and the reduction of their sums to dw.

The loops are drawn in wgrad_plan.py, where the sizes have their names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import tap_offset
from jitdnn.kernels.cpu.convolution.grouped.packing import broadcast_in_groups, trace_pack
from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import scale, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

POINTERS = 3  # x, dy and dw


@dataclass(frozen=True)
class _Functions:
    """What tasks call; a micro-kernel for each (tile of taps, tile of broadcast channels)."""

    pack_x: Function
    pack_dy: Function
    microkernels: list[tuple[int, int, Function]]


def trace(module: Module, plan: GroupedWgradPlan) -> None:
    """Trace the phases of a plan, for pointers to x, dy and dw."""
    dtype = plan.c.dtype
    pack_x = trace_pack(module, "pack_x", plan.x_packing)
    pack_dy = trace_pack(module, "pack_dy", plan.dy_packing)
    functions = _Functions(pack_x, pack_dy, list(_trace_microkernels(module, plan)))
    with module.task("sums") as (k, args, task, thread):
        arguments = Arguments(k, args, POINTERS)
        unit_task, split = split_index(task, (plan.unit_tasks, plan.split_k))
        first = unit_task * plan.units_per_task
        count = k.integer(plan.units_per_task).min(k.integer(plan.units) - first)
        sums = arguments.workspace(dtype) + (split * plan.units + first) * plan.unit_sums
        for at in k.range(0, count * plan.unit_sums, plan.lanes):
            sums.store(k.constant(0, dtype, plan.lanes), at)
        packed = arguments.workspace(dtype) + (plan.sum_elements + thread * plan.thread_elements)
        _Task(k, plan, functions, arguments, (first, count), packed, sums).run(split)
    reduce = trace_split_k_reduction(module, "reduce", plan)
    with module.task("split_k_reduction") as (k, args, unit, _):
        arguments = Arguments(k, args, POINTERS)
        sums = arguments.workspace(dtype) + unit * plan.unit_sums
        k.call(reduce, sums, arguments.pointer(2, plan.c.w.dtype), scale(k, args, POINTERS), unit)


def _trace_microkernels(module: Module, plan: GroupedWgradPlan) -> Iterator[tuple[int, int, Function]]:
    """(tile of taps, tile of broadcast channels, its function); equal ones are traced once."""
    tile = plan.tile
    known: dict[tuple[int, int, int], Function] = {}
    for i in range(plan.tap_tiles):
        for j in range(plan.channel_tiles):
            taps = min(tile.taps, plan.c.axes[2].taps.count - i * tile.taps)
            channels = min(tile.channels, plan.broadcast_channels - j * tile.channels)
            key = (taps, channels, j * tile.channels if plan.groups_per_unit > 1 else 0)
            if key not in known:
                known[key] = trace_microkernel(module, f"microkernel{len(known)}", plan, *key)
            yield i, j, known[key]


class _Task:
    """A split of the blocks for some ``units``: (the first, how many)."""

    def __init__(
        self, k: Builder, plan: GroupedWgradPlan, functions: _Functions, arguments: Arguments,
        units: tuple[Value, Value], packed: Pointer, sums: Pointer,
    ) -> None:  # fmt: skip
        self.k, self.plan, self.c, self.functions, self.sums = k, plan, plan.c, functions, sums
        self.arguments, self.units = arguments, units
        self.packed_x = packed
        self.packed_dy = packed + plan.units_per_task * plan.x_packing.elements

    def run(self, split: Value) -> None:
        k, c, plan, functions, (first, count) = self.k, self.c, self.plan, self.functions, self.units
        total, slice_sums = math.prod(plan.blocks), plan.unit_sums // c.axes[0].taps.count
        axis_d, axis_h, axis_w = c.axes
        for number in k.range(split * total // plan.split_k, (split + 1) * total // plan.split_k):
            n, d, i, j = split_index(number, plan.blocks)
            h, w = i * plan.block[0], j * plan.block[1]
            rows = (k.integer(axis_h.results) - h).min(plan.block[0])
            columns = (k.integer(axis_w.results) - w).min(plan.block[1])
            dy = self.arguments.pointer(1, c.y.dtype) + (n * c.y.batch + c.y.offset + d * c.y.space[0])
            k.call(functions.pack_dy, dy, self.packed_dy, h, w, rows, columns, first, count)
            x_row = h * axis_h.step + axis_h.taps.lowest
            x_column = w * axis_w.step + axis_w.taps.lowest
            x_rows, x_columns = axis_h.reads(rows), axis_w.reads(columns)
            for tap in k.range(axis_d.taps.count):
                at = d * axis_d.step + axis_d.taps.offset + tap * axis_d.taps.shift
                with k.when((at >= 0) & (at < axis_d.positions)):
                    x = self.arguments.pointer(0, c.x.dtype)
                    x = x + (n * c.x.batch + c.x.offset + at * c.x.space[0])
                    block = (x_row, x_column, x_rows, x_columns, first, count)
                    k.call(functions.pack_x, x, self.packed_x, *block)
                    for unit in k.range(count):
                        unit_x = self.packed_x + unit * plan.x_packing.elements
                        unit_dy = self.packed_dy + unit * plan.dy_packing.elements
                        sums = self.sums + (unit * plan.unit_sums + tap * slice_sums)
                        self._unit(unit_x, unit_dy, sums, x_row, rows, columns)

    def _unit(self, x: Pointer, dy: Pointer, sums: Pointer, row: Value, rows: Value, columns: Value) -> None:
        """All micro-kernels over the packed block of a unit, whose x begins at ``row`` of its slice."""
        k, plan, (_, axis_h, axis_w) = self.k, self.plan, self.c.axes
        for tap in k.range(axis_h.taps.count):
            row_offset = tap * axis_h.taps.shift + (axis_h.taps.offset - axis_h.taps.lowest)
            for vector in k.range(plan.vectors):
                for i, j, microkernel in self.functions.microkernels:
                    tap_position = axis_w.taps.offset + i * plan.tile.taps * axis_w.taps.shift
                    column_offset = tap_position - axis_w.taps.lowest
                    _, pixel_stride, row_stride = plan.x_packing.strides
                    tile_x = x + (row_offset * row_stride + column_offset * pixel_stride)
                    tile_dy = dy
                    vector_packing = plan.x_packing if plan.is_x_vector else plan.dy_packing
                    vector_offset = vector * vector_packing.strides[0]
                    # within a vector of several groups the micro-kernel selects the channel
                    channel = j * plan.tile.channels if plan.groups_per_unit == 1 else 0
                    if plan.is_x_vector:
                        tile_x, tile_dy = tile_x + vector_offset, tile_dy + channel
                    else:
                        tile_x, tile_dy = tile_x + channel, tile_dy + vector_offset
                    number = (i * plan.channel_tiles + j) * plan.vectors + vector
                    tile_sums = sums + (tap * plan.row_sums + number * plan.tile_sums)
                    k.call(microkernel, tile_x, tile_dy, tile_sums, row + row_offset, rows, columns)


def trace_microkernel(
    module: Module, name: str, plan: GroupedWgradPlan, taps: int, channels: int, first: int
) -> Function:
    """Trace ``name(x, dy, sums, row, rows, columns)``: some taps of a row by ``channels`` broadcast channels from the
    ``first`` on, over the pixels of a block.

    ``x`` and ``dy`` point to the packed pixels of the block's first result, ``row`` is where x's is in its slice;
    ``sums`` points to [tap][channel][lanes], which are added to.
    """
    c, lanes = plan.c, plan.lanes
    names = ("row", "rows", "columns")
    with module.function(name, x=c.dtype, dy=c.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, row, rows, columns), function,
    ):  # fmt: skip
        _, axis_h, axis_w = c.axes
        index = list(itertools.product(range(taps), range(channels)))
        registers = {at: k.register(sums.load(i * lanes, lanes)) for i, at in enumerate(index)}
        (_, x_pixel, x_row), (_, dy_pixel, dy_row) = plan.x_packing.strides, plan.dy_packing.strides
        for i in k.range(rows):
            with when(k, inside(axis_h, row + i * axis_h.step, 1)):
                for j in k.range(columns):
                    dy_at = dy + (i * dy_row + j * dy_pixel)
                    x_at = [
                        x
                        + (
                            i * (axis_h.step * x_row)
                            + j * (axis_w.step * x_pixel)
                            + s * axis_w.taps.shift * x_pixel
                        )
                        for s in range(taps)
                    ]
                    vectors = [p.load(0, lanes) for p in (x_at if plan.is_x_vector else [dy_at])]
                    broadcasts = [
                        _Broadcasts(k, plan, p, first) for p in ([dy_at] if plan.is_x_vector else x_at)
                    ]
                    for channel, s in itertools.product(range(channels), range(taps)):
                        broadcast = broadcasts[s if len(broadcasts) > 1 else 0].channel(channel)
                        vector = vectors[s if len(vectors) > 1 else 0]
                        register = registers[s, channel]
                        register.set(k.fma(vector, broadcast, register.get()))
        for number, register in enumerate(registers.values()):
            sums.store(register.get(), number * lanes)
    return function


class _Broadcasts:
    """The channels of one pixel of the broadcast operand, each over the lanes of its group; each is made once."""

    def __init__(self, k: Builder, plan: GroupedWgradPlan, pixel: Pointer, first: int) -> None:
        self.k, self.plan, self.pixel, self.first = k, plan, pixel, first
        self.vector = pixel.load(0, plan.lanes) if plan.groups_per_unit > 1 else None
        self.known: dict[int, Value] = {}

    def channel(self, channel: int) -> Value:
        if channel not in self.known:
            self.known[channel] = self._broadcast(channel)
        return self.known[channel]

    def _broadcast(self, channel: int) -> Value:
        plan = self.plan
        if self.vector is None:
            return self.pixel.splat(channel, plan.lanes)
        return broadcast_in_groups(
            self.k,
            self.vector,
            plan.groups_per_unit,
            plan.broadcast_channels,
            self.first + channel,
            plan.vector_channels,
        )


def trace_split_k_reduction(module: Module, name: str, plan: GroupedWgradPlan) -> Function:
    """Trace ``name(sums, dw, scale, unit)``: add the sums of a unit over all splits, and store them."""
    c, lanes, tile, vector_channels = plan.c, plan.lanes, plan.tile, plan.vector_channels
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64", unit=None) as (
        k, (sums, dw, scale, unit), function,
    ):  # fmt: skip
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        blend = Blend(k, alpha, beta, None)
        strides = (c.w.channels, c.w.results) if plan.is_x_vector else (c.w.results, c.w.channels)
        vector_stride, broadcast_stride = strides
        tap_stride = c.axes[2].taps.increment * c.w.space[2]
        slices, rows, columns = (axis.taps.count for axis in c.axes)
        extents = (slices, rows, plan.tap_tiles, plan.channel_tiles, plan.vectors)
        split_stride = plan.units * plan.unit_sums
        first = unit * plan.groups_per_unit
        for number in k.range(plan.unit_sums // plan.tile_sums):
            d, h, i, j, vector = split_index(number, extents)
            channels = (k.integer(plan.broadcast_channels) - j * tile.channels).min(tile.channels)
            for s in k.range((k.integer(columns) - i * tile.taps).min(tile.taps)):
                for channel in k.range(channels):
                    at = sums + (number * plan.tile_sums + (s * channels + channel) * lanes)
                    offset = (
                        tap_offset(c, d, h)
                        + (i * tile.taps + s) * tap_stride
                        + (j * tile.channels + channel) * broadcast_stride
                    )
                    offset = offset + vector * (lanes * vector_stride)
                    count = (k.integer(vector_channels) - vector * lanes).min(lanes)
                    mask = None if vector_channels % lanes == 0 else k.mask(count, lanes)
                    groups = k.integer(plan.groups_per_unit).min(k.integer(c.groups[0]) - first)
                    for group in k.range(groups):
                        total = k.register(k.constant(0, c.dtype, lanes))
                        for split in k.range(plan.split_k):
                            total += at.load(group * vector_channels + split * split_stride, lanes, mask)
                        target = dw + (offset + (first + group) * c.w.groups[0])
                        blend.store(target, vector_stride, total.get(), [], mask)
    return function
