"""Which way to cut a filter's gradient for minimal filtering: every sensible plan is priced, the cheapest taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.linear_map import operations
from jitdnn.kernels.cpu.tiles import ceil_div
from jitdnn.kernels.cpu.winograd_filter import Operand, Order, WinogradFilter
from jitdnn.kernels.cpu.winograd_filter_axes import FilterAxis
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

MOST_PLACES = 6  # of one axis: with more the rounding errors grow faster than the work shrinks
_MOST_TAPS = 5
_SCRATCH_BYTES = 24 << 10  # rows of a unit, which the nearest cache holds between two passes
_CACHE_BYTES = 640 << 10  # of the second cache, for what is read again and again
_KEPT_BYTES = 40 << 20  # all tiles of both operands, where they are kept at once
_SUMS_BYTES = 24 << 20
_WANTED_SPLITS = 4
_LEAST_TILES = 64  # of a split


def choose_plan(c: Correlation, isa: Isa, order: Order | None = None) -> WinogradFilter:
    """The cheapest plan, of those with ``order`` if one is given. One of the last two axes has several taps."""
    return min((p for p in plans(c, isa) if order in (None, p.order)), key=cycles)


def plans(c: Correlation, isa: Isa) -> Iterator[WinogradFilter]:
    for axes in _cuts(c, isa):
        for is_swapped in (False, True):
            for rows, vectors in _tiles(c, isa, is_swapped):
                yield from _orders(WinogradFilter(
                    c, isa, axes, "whole", is_swapped, rows, vectors, 1, 1, 1, 1
                ))  # fmt: skip


def _cuts(c: Correlation, isa: Isa) -> Iterator[tuple[FilterAxis, FilterAxis, FilterAxis]]:
    """Ways to tile the last two axes; the first one is never tiled."""
    first = FilterAxis(c.axes[0])
    for h, w in itertools.product(_tilings(c.axes[1]), _tilings(c.axes[2])):
        if not (h.is_plain and w.is_plain):
            yield (first, *_with_runs(h, w, c, isa))


def _tilings(axis: Axis) -> list[FilterAxis]:
    if axis.taps.count == 1:
        return [FilterAxis(axis)]
    found = [
        FilterAxis(axis, taps, tile)
        for taps in range(2, min(axis.taps.count, _MOST_TAPS) + 1)
        for tile in range(2, MOST_PLACES - taps + 2)
    ]
    work = {f: f.parts * f.tiles * f.places for f in found}
    least = min(work.values(), default=0)
    return [f for f in found if work[f] <= 1.2 * least]


def _with_runs(h: FilterAxis, w: FilterAxis, c: Correlation, isa: Isa) -> tuple[FilterAxis, FilterAxis]:
    """As many tiles to a unit as the nearest cache holds rows for."""
    vector = isa.lanes(c.dtype) * ITEM_BYTES[c.dtype]
    room = max(1, _SCRATCH_BYTES // vector)

    def extent(axis: FilterAxis, run: int, columns: bool) -> int:
        elements = (run - 1) * axis.tile + axis.places
        return (elements - 1) * axis.unit + 1 if columns else elements

    def largest(axis: FilterAxis, room: int, columns: bool) -> FilterAxis:
        for units in range(1, axis.tiles_per_field + 1):
            run = ceil_div(axis.tiles_per_field, units)
            if extent(axis, run, columns) <= room:
                return replace(axis, run=run)
        return replace(axis, run=1)

    w = largest(w, max(1, room // h.places), True)
    return largest(h, room // extent(w, w.run, True), False), w


def _tiles(c: Correlation, isa: Isa, is_swapped: bool) -> Iterator[tuple[int, int]]:
    """Rows and vectors of the tiles of sums that are worth trying: those that fill the registers."""
    lanes = isa.lanes(c.dtype)
    across = ceil_div(c.depth if is_swapped else c.width, lanes)
    for vectors in range(1, min(3, across) + 1):
        most = (isa.registers - 1 - vectors) // vectors
        yield max(r for r in range(1, lanes + 1) if lanes % r == 0 and r <= most), vectors


def _orders(plan: WinogradFilter) -> Iterator[WinogradFilter]:
    rows, lanes = plan.row_operand, plan.lane_operand
    item = ITEM_BYTES[plan.c.dtype]
    all_units = replace(
        plan, row_chunk=rows.all_blocks, lane_chunk=lanes.all_panels, block_units=plan.unit_count
    )
    if all_units.operand_size * item <= _KEPT_BYTES:
        yield replace(all_units, order="whole", row_chunk=_even(rows.all_blocks, 8))
        block = all_units.block_tiles * plan.lanes * item
        staged = replace(
            all_units, order="staged", row_chunk=_even(rows.all_blocks, max(1, _CACHE_BYTES // 2 // block))
        )
        if staged.split_size * item <= _SUMS_BYTES:
            yield staged
    for block_tiles in (32, 64, 128):
        block = min(plan.unit_count, max(1, block_tiles // plan.unit_tiles))
        block = ceil_div(plan.unit_count, ceil_div(plan.unit_count, block))
        for row_parts, lane_parts in itertools.product((1, 2, 4, 8), (1, 2, 4, 8)):
            if row_parts > rows.all_blocks or lane_parts > lanes.all_panels:
                continue
            cut = replace(
                plan, order="streamed", row_chunk=ceil_div(rows.all_blocks, row_parts),
                lane_chunk=ceil_div(lanes.all_panels, lane_parts), block_units=block,
            )  # fmt: skip
            tasks = plan.groups * cut.row_chunks * cut.lane_chunks
            splits = min(ceil_div(_WANTED_SPLITS, tasks), cut.blocks)
            cut = replace(cut, splits=max(1, splits))
            if cut.splits * cut.split_size * item <= _SUMS_BYTES or cut.splits == 1:
                yield cut


def _even(count: int, most: int) -> int:
    """Up to ``most`` of ``count``, as evenly as can be."""
    return ceil_div(count, ceil_div(count, most))


def cycles(plan: WinogradFilter) -> float:
    """Cycles of one thread."""
    times = [plan.row_chunks, plan.lane_chunks] if plan.order == "streamed" else [1, 1]
    turned = (
        _turn_cycles(plan, plan.row_operand) * times[1] + _turn_cycles(plan, plan.lane_operand) * times[0]
    )
    return plan.groups * (turned + _sum_cycles(plan) + _finish_cycles(plan))


def _turn_cycles(plan: WinogradFilter, operand: Operand) -> float:
    """Transforming all tiles of an operand once."""
    t = plan.transform(operand)
    rows, columns = t.readings[1], t.readings[2]
    maps = t.matrices
    ops = columns.extent * operations(maps[0]) + len(maps[0]) * operations(maps[1])
    places = len(maps[0]) * len(maps[1])
    tile = ops / 2 + places * 1.5 + rows.extent * columns.extent * 0.7 + 10
    if t.is_turned:
        row = ceil_div(columns.span, plan.lanes) * (plan.lanes * 5.0) + 30
    else:
        row = columns.span * 5.0 + 15
    unit = plan.unit_tiles * tile + rows.elements * row + 60
    return operand.part_count * operand.blocks * plan.unit_count * unit


def _sum_cycles(plan: WinogradFilter) -> float:
    rows, lanes = plan.row_operand, plan.lane_operand
    tiles = plan.unit_count * plan.unit_tiles
    height = rows.part_count * ceil_div(rows.channels, plan.rows)
    step = max(plan.rows * plan.vectors / 2, (plan.rows + plan.vectors) / 2, 4.0) + 0.3
    work = tiles * height * lanes.all_panels * step
    carried = plan.blocks * height * lanes.all_panels * (plan.rows * plan.vectors * 2.0 + 15)
    if plan.order == "streamed":
        item = ITEM_BYTES[plan.c.dtype]
        kept = plan.places * plan.row_chunk * plan.lane_chunk * plan.row_tiles * plan.tile_size * item
        if kept + plan.operand_size * item > _CACHE_BYTES:
            carried *= 2.0
    elif plan.order == "whole":
        near = plan.places * plan.vectors * plan.block_tiles * plan.lanes * ITEM_BYTES[plan.c.dtype]
        if near > _CACHE_BYTES:
            work *= 2.0
    return plan.places * (work + carried)


def _finish_cycles(plan: WinogradFilter) -> float:
    rows, lanes = plan.row_operand, plan.lane_operand
    taps = plan.axes[1].taps * plan.axes[2].taps
    vector = plan.places * (1.0 + plan.splits) + 60 + taps * 12.0
    return rows.part_count * rows.channels * lanes.all_panels * plan.vectors * vector
