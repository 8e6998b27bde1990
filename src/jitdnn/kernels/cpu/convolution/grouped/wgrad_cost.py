"""Cycles of a grouped wgrad, and the tile and blocking that take the fewest.

Cycles are those of one thread that makes two multiply-adds of a vector in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.grouped.cost import largest_block, units_per_task
from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan, WgradTile
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa

_SPLIT_K_BYTES = 4 << 20  # of the workspace, for the sums of all splits
_WANTED_TASKS = 16
_SPLIT_CYCLES = 50_000.0  # a split that takes less is not worth its sums
_LATENCY = 4.0  # cycles from one multiply-add into a sum to the next
_STEP = 0.5  # cycles of a step over a pixel, besides its multiply-adds
_SHUFFLE = 0.5  # cycles, at the same time as multiply-adds
_CALL = 16.0  # cycles to begin and end a micro-kernel
_SUM_VECTOR = 1.0  # and for each vector of its sums
_ROW = 8.0  # cycles to begin a row of pixels
_PACK_VECTOR = 2.5  # cycles to pack a vector of x or dy
_REDUCE = 2.0  # cycles to add one vector of sums of a split
_STORE = 4.0  # cycles to store one vector of sums, for each group in it
_STORE_LANE = 1.5  # more for each lane of it, where they are not neighbours in dw


def choose_plan(c: Correlation, isa: Isa) -> GroupedWgradPlan:
    """The cheapest tile, the largest block for it that the L1 cache holds, as many units as the L2 cache does, and as
    many splits as give all tasks that are wanted."""
    smallest = GroupedWgradPlan(c, isa, WgradTile(1, 1), (1, 1), 1, 1)
    plan = replace(smallest, tile=min(_tiles(smallest), key=lambda tile: (_unit_pixel(smallest, tile), tile)))
    plan = replace(plan, block=_choose_block(plan))
    unit_bytes = (plan.x_packing.elements + plan.dy_packing.elements) * plan.item
    plan = replace(plan, units_per_task=units_per_task(plan.units, unit_bytes, isa.processor))
    return replace(plan, split_k=_choose_split_k(plan))


def cycles(plan: GroupedWgradPlan) -> float:
    """Cycles of one thread for the whole."""
    vectors = plan.units * plan.unit_sums / plan.lanes
    stride = plan.c.w.channels if plan.is_x_vector else plan.c.w.results
    store = _STORE * plan.groups_per_unit + (0.0 if stride == 1 else _STORE_LANE * plan.lanes)
    return _summing(plan) + vectors * (store + _REDUCE * plan.split_k)


def _summing(plan: GroupedWgradPlan) -> float:
    """The first phase: products, micro-kernels, packing, and what comes from memory."""
    c, x, dy = plan.c, plan.x_packing, plan.dy_packing
    slices, tap_rows, _ = (axis.taps.count for axis in c.axes)
    blocks = math.prod(plan.blocks)
    rows = c.batch * c.axes[0].results * c.axes[1].results
    pixels_of_row = c.axes[2].results
    products = rows * (pixels_of_row * slices * tap_rows * plan.vectors * _unit_pixel(plan, plan.tile))
    products *= fraction_inside(c.axes[1])
    microkernels = slices * tap_rows * plan.tap_tiles * plan.channel_tiles * plan.vectors
    products += microkernels * (rows * _ROW + blocks * (_CALL + _SUM_VECTOR * plan.tile.vectors))
    packed_vectors = slices * math.prod(x.extents) * x.vectors + math.prod(dy.extents) * dy.vectors
    moved = c.batch * c.group_count * plan.item * (
        c.depth * math.prod(axis.positions for axis in c.axes)
        + c.width * math.prod(axis.results for axis in c.axes)
    )  # fmt: skip
    memory_cycles = moved / (cost.GROUPED_WGRAD_MEMORY_RATE * plan.isa.processor.memory_rate)
    return plan.units * (products + blocks * packed_vectors * _PACK_VECTOR) + memory_cycles


def _unit_pixel(plan: GroupedWgradPlan, tile: WgradTile) -> float:
    """One pixel of dy by a row of taps, for one vector of a unit: bound by multiply-adds and shuffles, loads, or
    latency."""
    shuffle = _SHUFFLE if plan.groups_per_unit > 1 else 0.0
    broadcasts = tile.channels * (1 if plan.is_x_vector else tile.taps)
    loads = (tile.taps + tile.channels + 1) / 2
    step = max(tile.vectors / 2 + broadcasts * shuffle, loads, _LATENCY) + _STEP
    tap_tiles = ceil_div(plan.c.axes[2].taps.count, tile.taps)
    return step * tap_tiles * ceil_div(plan.broadcast_channels, tile.channels)


def _tiles(plan: GroupedWgradPlan) -> Iterator[WgradTile]:
    """Tiles whose sums, with a vector for each tap and one broadcast, fit the registers."""
    columns, broadcast = plan.c.axes[2].taps.count, plan.broadcast_channels
    yield WgradTile(1, 1)
    for taps in {ceil_div(columns, parts) for parts in range(1, columns + 1)}:
        most = (plan.isa.registers - 2 - taps) // taps
        for channels in {ceil_div(broadcast, parts) for parts in range(1, broadcast + 1)}:
            if channels <= most:
                yield WgradTile(taps, channels)


def _choose_block(plan: GroupedWgradPlan) -> tuple[int, int]:
    c, (_, axis_h, axis_w) = plan.c, plan.c.axes
    x_vectors = ceil_div(plan.groups_per_unit * c.depth, plan.lanes)
    dy_vectors = ceil_div(plan.groups_per_unit * c.width, plan.lanes)
    block_bytes = plan.isa.processor.l1(cost.GROUPED_WGRAD_BLOCK_L1)

    def fits(rows: int, columns: int) -> bool:
        x, dy = axis_h.reads(rows) * axis_w.reads(columns), rows * columns
        return (x * x_vectors + dy * dy_vectors) * plan.isa.vector_bytes <= block_bytes

    return largest_block(axis_h.results, axis_w.results, fits)


def _choose_split_k(plan: GroupedWgradPlan) -> int:
    """Splits for as many tasks as are wanted, if each has enough to do, and there is room for their sums."""
    tasks = plan.unit_tasks
    wanted = min(ceil_div(_WANTED_TASKS, tasks), int(_summing(plan) / tasks / _SPLIT_CYCLES))
    room = _SPLIT_K_BYTES // (plan.units * plan.unit_sums * plan.item)
    return max(1, min(math.prod(plan.blocks), wanted, room))
