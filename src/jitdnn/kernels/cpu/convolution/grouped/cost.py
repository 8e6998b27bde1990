"""Cycles of a grouped fprop or dgrad, and the tile and blocking that take the fewest.

Cycles are those of one thread that makes two multiply-adds of a vector in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.grouped.plan import (
    MAX_TAPS,
    GroupedPlan,
    GroupedTile,
    tap_blocks,
    uses_of_positions,
)
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.rtcg.processor import Processor

_MOST_UNITS = 16  # of a task
_WANTED_TASKS = 8
_UNROLL = 400  # multiply-adds in a straight line
_LATENCY = 4.0  # cycles from one multiply-add into a sum to the next
_HIDING_SUMS = 8  # sums of a tile that hide the latency: two multiply-adds in each of its cycles
_STEP = 0.5  # cycles of a step over a channel, besides its multiply-adds
_SHUFFLE = 0.25  # cycles, at the same time as multiply-adds
_TAP_ROW = 6.0  # cycles to begin a row of taps
_TILE = 20.0  # cycles to begin and end a tile
_STORE = 2.0  # cycles to store one vector of results
_PACK_VECTOR = 2.5  # cycles to pack a vector of x
_PACK_WEIGHT = 1.5  # cycles to pack one weight


def choose_plan(interleaved: InterleavedPhases, isa: Isa) -> GroupedPlan:
    """The cheapest tile, the largest block for it that the L1 cache holds, and as many units as the L2 cache does."""
    smallest = GroupedPlan(interleaved, isa, GroupedTile(1, 1), (1, 1), 1)
    tiled = min((replace(smallest, tile=tile) for tile in _tiles(smallest)), key=_unit_row)
    blocked = replace(tiled, block=_choose_block(tiled))
    unit_bytes = blocked.packing.elements * blocked.slices * ITEM_BYTES[blocked.c.dtype]
    together = units_per_task(blocked.units, unit_bytes, isa.processor)
    blocks = max(1, math.prod(blocked.task_extents[:-1]))
    apart = ceil_div(blocked.units, min(blocked.units, ceil_div(_WANTED_TASKS, blocks)))
    return replace(blocked, units_per_task=min(together, apart))


def cycles(plan: GroupedPlan) -> float:
    """Cycles of one thread for the whole."""
    c, packing, processor = plan.c, plan.packing, plan.isa.processor
    rows = c.batch * c.axes[0].results * c.axes[1].results
    blocks = math.prod(plan.task_extents[:-1])
    packed_vectors = blocks * math.prod(packing.extents) * packing.vectors * plan.slices
    moved = c.batch * c.group_count * ITEM_BYTES[c.dtype] * (
        c.depth * math.prod(axis.positions for axis in c.axes)
        + c.width * math.prod(plan.interleaved.extents)
    )  # fmt: skip
    unit = rows * _unit_row(plan) + packed_vectors * _PACK_VECTOR
    l3_cycles = moved / (cost.GROUPED_L3_RATE * processor.l3_rate)
    memory_cycles = 0.0
    if moved > processor.l3(cost.GROUPED_TENSORS_L3):
        memory_cycles = moved / (cost.GROUPED_MEMORY_RATE * processor.memory_rate)
    return plan.units * unit + pack_cycles(plan) + l3_cycles + memory_cycles


def pack_cycles(plan: GroupedPlan) -> float:
    """The part of ``cycles`` that packing the filter takes."""
    return plan.units * plan.unit_weights * _PACK_WEIGHT


def _unit_row(plan: GroupedPlan) -> float:
    """A row of results of each stride phase, of one unit."""
    tile = plan.tile
    tiles = ceil_div(plan.c.axes[2].results, tile.columns) * ceil_div(plan.vectors, tile.vectors)
    return tiles * sum(_tile_cycles(plan, stride_phase.c) for stride_phase in plan.stride_phases)


def _tile_cycles(plan: GroupedPlan, c: Correlation) -> float:
    """A register tile of one stride phase: bound by multiply-adds and shuffles, loads, or latency."""
    tile = plan.tile
    slices, rows, _ = (axis.taps.count for axis in c.axes)
    tap_row = 0.0
    for _, taps in tap_blocks(c.axes[2]):
        products = tile.columns * taps * tile.vectors
        broadcasts = len(uses_of_positions(c.axes[2], tile.columns, taps))
        busy = products / 2 + (_SHUFFLE * broadcasts if plan.groups_per_unit > 1 else 0.0)
        loads = (broadcasts + taps * tile.vectors) / 2
        latency = _LATENCY * taps if tile.columns * tile.vectors < _HIDING_SUMS else 0.0
        tap_row += c.depth * (max(busy, loads, latency) + _STEP)
    taps_of_tile = slices * rows * fraction_inside(c.axes[1]) * (tap_row + _TAP_ROW)
    return taps_of_tile + _TILE + tile.columns * tile.vectors * _STORE


def _tiles(plan: GroupedPlan) -> Iterator[GroupedTile]:
    """Tiles whose sums and weights fit the registers and whose straight-line code is not too long."""
    yield GroupedTile(1, 1)
    columns_of_row = plan.c.axes[2].results
    unrolled_channels = plan.c.depth if plan.groups_per_unit > 1 else 1
    most_taps = max(stride_phase.c.axes[2].taps.count for stride_phase in plan.stride_phases)
    for vectors in range(1, min(2, plan.vectors) + 1):
        weights = min(MAX_TAPS, most_taps) * vectors
        for columns in {ceil_div(columns_of_row, parts) for parts in range(1, columns_of_row + 1)}:
            fits = columns * vectors + weights + 2 <= plan.isa.registers
            if fits and columns * weights * unrolled_channels <= _UNROLL:
                yield GroupedTile(columns, vectors)


def _choose_block(plan: GroupedPlan) -> tuple[int, int]:
    """Rows and tiles of the largest block, of fewer rows if there were too few tasks even with one unit in each."""
    _, axis_h, axis_w = plan.c.axes
    vectors = ceil_div(plan.groups_per_unit * plan.c.depth, plan.lanes) * plan.slices
    block_bytes = plan.isa.processor.l1(cost.GROUPED_BLOCK_L1)

    def fits(rows: int, tiles: int) -> bool:
        pixels = axis_h.reads(rows) * axis_w.reads(tiles * plan.tile.columns)
        return pixels * vectors * plan.isa.vector_bytes <= block_bytes

    rows, tiles = largest_block(axis_h.results, ceil_div(axis_w.results, plan.tile.columns), fits)
    while rows > 1 and plan.c.batch * ceil_div(axis_h.results, rows) * plan.units < _WANTED_TASKS:
        rows = ceil_div(rows, 2)
    return rows, tiles


def largest_block(rows: int, columns: int, fits: Callable[[int, int], bool]) -> tuple[int, int]:
    """The widest block that fits, and, if it has all columns, the highest; a block of 1 x 1 if none fits."""
    width = max((w for w in block_sizes(columns, columns) if fits(1, w)), default=1)
    if width < columns:
        return 1, width
    return max((h for h in block_sizes(rows, rows) if fits(h, width)), default=1), width


def units_per_task(units: int, unit_bytes: int, processor: Processor) -> int:
    """Units that are packed together: as many as the L2 cache keeps, in equal parts."""
    most = max(1, min(_MOST_UNITS, processor.l2(cost.GROUPED_UNITS_L2) // unit_bytes))
    return ceil_div(units, ceil_div(units, most))
