"""Which way to cut a filter's gradient for minimal filtering: every sensible plan is priced, the cheapest taken."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import FilterAxis, data_reading, gradient_reading
from jitdnn.kernels.cpu.convolution.winograd_wgrad.error import MOST_TILES, Axes, roundings
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Operand, Order, WinogradWgradPlan
from jitdnn.kernels.cpu.correlation import Axis, Correlation, View
from jitdnn.kernels.cpu.microkernel.constant_matrix import operations
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES, Isa, item_bytes
from jitdnn.rtcg.isa import isa as isa_of

Item = TypeVar("Item")

_MOST_PLACES = 8
_MOST_TAPS = 5
_SCRATCH_BYTES = 64 << 10  # rows of a unit: the more, the fewer are read twice
_IDLE_TILES = 1.04  # tiles that only fill up the last unit of a row, as a factor
_KEPT_BYTES = 24 << 20  # all tiles of both operands, where they are kept at once
_SUMS_BYTES = 80 << 20
_BLOCKS = (32, 64, MOST_TILES)  # tiles: fewer carry their sums too often, more leave the caches
_SPLITS = (1, 2, 4, 8)
_CHUNKS = ((1, 1), (2, 1), (1, 2), (2, 2))
_BEHIND = 1.08  # times the price of the best: what lags so far behind in the plainest division is out

# what a core has of the second and of the last cache for what is read again
_NEAR_BYTES, _FAR_BYTES = 700 << 10, 5 << 20
_SCATTERED, _FAR_SCATTERED = 8.0, 24.0  # cycles of a tap that is stored on its own, to a large gradient
_WORTH_SHARING = 100_000.0  # cycles; dearer by these factors where they cannot be shared, or by few threads
_ALONE, _FEW = 1.6, 0.15
_EXACT_PLACES, _INEXACT = 6, 1.1


def choose_plan(c: Correlation, isa: Isa, limit: float, order: Order | None = None) -> WinogradWgradPlan:
    """The cheapest plan, of those with ``order`` if one is given. Some axis has several taps.

    The taps and results of tiles are those that are best on a processor with long vectors, so that the error does not
    depend on the processor; they keep it below ``limit``, in unit roundoffs, where any do.
    """
    c = _with_fewest_taps_first(c)
    every = list(_cuts(c))
    cuts = [cut for cut in every if roundings(cut, c.batch) <= limit]
    cut = min(every, key=lambda cut: roundings(cut, c.batch))
    if cuts:
        plan = _cheapest(c, isa_of("avx512"), cuts, None)
        if isa == isa_of("avx512") and order in (None, plan.order):
            return plan
        cut = plan.axes
    return _cheapest(c, isa, [cut], order)


def _cheapest(c: Correlation, isa: Isa, cuts: Sequence[Axes], order: Order | None) -> WinogradWgradPlan:
    """The cheapest plan of some cuts; how those that lag far behind are best divided does not matter."""
    seeds = [p for cut in cuts for p in _seeds(c, isa, cut)]
    first = [
        min((_price(p) for p in _first_orders(s) if order in (None, p.order)), default=math.inf)
        for s in seeds
    ]
    near = [seed for seed, price in zip(seeds, first, strict=True) if price <= _BEHIND * min(first)]
    return min((p for seed in near for p in _orders(seed) if order in (None, p.order)), key=_price)


def _with_fewest_taps_first(c: Correlation) -> Correlation:
    """The same with another axis in the place of the first one, which is never tiled, if that has fewer taps."""
    fewest = min(range(3), key=lambda i: c.axes[i].taps.count)

    def exchange(three: tuple[Item, Item, Item]) -> tuple[Item, Item, Item]:
        items = list(three)
        items[0], items[fewest] = items[fewest], items[0]
        a, b, d = items
        return a, b, d

    return replace(
        c, axes=exchange(c.axes), x=replace(c.x, space=exchange(c.x.space)),
        w=replace(c.w, space=exchange(c.w.space)), y=replace(c.y, space=exchange(c.y.space)),
    )  # fmt: skip


def _price(plan: WinogradWgradPlan) -> float:
    """Cycles, and more for work that a second thread cannot help with, whether there is one or not.

    A little more for many places, too: they must be worth their rounding errors.
    """
    price = cycles(plan)
    if price > _WORTH_SHARING:
        price *= _ALONE if plan.tasks == 1 else 1 + _FEW / plan.tasks
    return price * _INEXACT if any(axis.places > _EXACT_PLACES for axis in plan.axes) else price


def _seeds(c: Correlation, isa: Isa, cut: Axes) -> Iterator[WinogradWgradPlan]:
    """Plans that are not divided yet."""
    axes = _with_runs(cut, c, isa)
    for is_swapped in (False, True):
        for rows, vectors in _tiles(c, isa, is_swapped):
            yield WinogradWgradPlan(c, isa, axes, "whole", is_swapped, rows, vectors, 1, 1, 1, 1)


def _cuts(c: Correlation) -> Iterator[Axes]:
    """Ways to tile the last two axes; the first one is never tiled."""
    for h, w in itertools.product(_tilings(c.axes[1]), _tilings(c.axes[2])):
        if not (h.is_plain and w.is_plain):
            yield FilterAxis(c.axes[0]), h, w


def _tilings(axis: Axis) -> list[FilterAxis]:
    if axis.taps.count == 1:
        return [FilterAxis(axis)]
    found = [
        FilterAxis(axis, taps, tile)
        for taps in range(2, min(axis.taps.count, _MOST_TAPS) + 1)
        for tile in range(2, _MOST_PLACES - taps + 2)
    ]
    work = {f: f.products * f.tiles for f in found}
    least = min(work[f] for f in found if f.places <= _EXACT_PLACES)
    kept: dict[int, FilterAxis] = {}  # the best cut into each number of places, which decides about the error
    for f in sorted(found, key=lambda f: work[f]):
        if work[f] <= least * (1.1 if f.places <= _EXACT_PLACES else 0.92):
            kept.setdefault(f.places, f)
    return list(kept.values())


def _with_runs(cut: Axes, c: Correlation, isa: Isa) -> Axes:
    """As many tiles to a unit as there is room for their rows."""
    first, h, w = cut
    vector = isa.lanes(c.dtype) * ITEM_BYTES[c.dtype]
    room = max(1, _SCRATCH_BYTES // vector)

    def extent(axis: FilterAxis, run: int) -> int:
        return (run - 1) * axis.tile + axis.places

    def largest(axis: FilterAxis, room: int, most: int) -> FilterAxis:
        for units in range(1, axis.tiles_per_field + 1):
            run = ceil_div(axis.tiles_per_field, units)
            cut = replace(axis, run=run)
            fits = run <= most and extent(axis, run) <= room
            if fits and cut.tiles <= _IDLE_TILES * replace(axis, run=1).tiles:
                return cut
        return replace(axis, run=1)

    w = largest(w, max(1, room // h.places), MOST_TILES)
    return first, largest(h, room // extent(w, w.run), MOST_TILES // w.run), w


def _tiles(c: Correlation, isa: Isa, is_swapped: bool) -> Iterator[tuple[int, int]]:
    """Rows and vectors of the tiles of sums that are worth trying: those that fill the registers."""
    lanes = isa.lanes(c.dtype)
    across = ceil_div(c.depth if is_swapped else c.width, lanes)
    for vectors in {2, 3 if across % 3 == 0 else 2} if across > 1 else {1}:
        most = (isa.registers - 1 - vectors) // vectors
        yield max(r for r in range(1, lanes + 1) if lanes % r == 0 and r <= most), vectors


def _first_orders(plan: WinogradWgradPlan) -> list[WinogradWgradPlan]:
    """The two orders in the plainest division."""
    rows, lanes = plan.row_operand, plan.lane_operand
    size = _even(plan.unit_count, max(1, MOST_TILES // plan.unit_tiles))
    streamed = replace(
        plan, order="streamed", row_chunk=rows.all_blocks, lane_chunk=lanes.all_panels, block_units=size
    )
    return [*_whole(plan), streamed]


def _whole(plan: WinogradWgradPlan) -> Iterator[WinogradWgradPlan]:
    rows, lanes = plan.row_operand, plan.lane_operand
    cut = replace(plan, row_chunk=rows.all_blocks, lane_chunk=lanes.all_panels, block_units=plan.unit_count)
    fits = cut.operand_size * ITEM_BYTES[plan.c.dtype] <= _KEPT_BYTES
    if fits and cut.block_tiles <= MOST_TILES * 7 // 4:
        yield replace(cut, row_chunk=_even(rows.blocks, 8))


def _orders(plan: WinogradWgradPlan) -> Iterator[WinogradWgradPlan]:
    rows, lanes = plan.row_operand, plan.lane_operand
    item = ITEM_BYTES[plan.c.dtype]
    yield from _whole(plan)
    sizes = {_even(plan.unit_count, max(1, tiles // plan.unit_tiles)) for tiles in _BLOCKS}
    for size, splits, (down, across) in itertools.product(sorted(sizes), _SPLITS, _CHUNKS):
        cut = replace(
            plan, order="streamed", row_chunk=ceil_div(rows.all_blocks, down),
            lane_chunk=ceil_div(lanes.all_panels, across), block_units=size, splits=splits,
        )  # fmt: skip
        fits = splits == 1 or splits * cut.split_size * item <= _SUMS_BYTES
        if splits <= cut.blocks and (cut.row_chunks, cut.lane_chunks) == (down, across) and fits:
            yield cut


def _even(count: int, most: int) -> int:
    """Up to ``most`` of ``count``, as evenly as can be."""
    return ceil_div(count, ceil_div(count, most))


def cycles(plan: WinogradWgradPlan) -> float:
    """Cycles of one thread."""
    times = [plan.row_chunks, plan.lane_chunks] if plan.order == "streamed" else [1, 1]
    turned = (
        _turn_cycles(plan, plan.row_operand) * times[1] + _turn_cycles(plan, plan.lane_operand) * times[0]
    )
    return plan.groups * (turned + _sum_cycles(plan) + _finish_cycles(plan))


def _turn_cycles(plan: WinogradWgradPlan, operand: Operand) -> float:
    """Transforming all tiles of an operand once."""
    tile, row, rows, columns = _unit_cycles(plan.axes, operand.view, operand.number == 0, plan.lanes)
    held = plan.operand_size * ITEM_BYTES[plan.c.dtype]
    store = 1.5 + (held > _NEAR_BYTES) + 10.0 * max(0.0, 1 - _FAR_BYTES / held)
    if _elements(plan, operand) * item_bytes(operand.view.dtype) > 2 * _FAR_BYTES:
        row += columns * 6.0
    unit = plan.unit_tiles * (tile + plan.places * store) + rows * row + 20
    return operand.part_count * operand.blocks * plan.unit_count * unit


@functools.lru_cache(maxsize=1024)
def _unit_cycles(axes: Axes, view: View, is_data: bool, lanes: int) -> tuple[float, float, int, int]:
    """Of an operand: cycles of a tile but for its stores, cycles of a row of a unit, rows and columns of a unit.

    They are the same for all ways to divide the work.
    """
    rows, columns = (data_reading(a) if is_data else gradient_reading(a) for a in axes[1:])
    first, second = (a.filtering.data if is_data else a.filtering.filter for a in axes[1:])
    ops = columns.extent * operations(first) + len(first) * operations(second)
    row = columns.elements * 2.5
    if view.space[2] == 1 and view.channels != 1:  # squares are turned
        row = ceil_div(columns.elements, lanes) * lanes * (2.0 if columns.spacing == 1 else 4.0)
    return 0.45 * ops + 0.4 * rows.extent * columns.extent + 5, row + 11, rows.elements, columns.elements


def _sum_cycles(plan: WinogradWgradPlan) -> float:
    rows, lanes = plan.row_operand, plan.lane_operand
    item = ITEM_BYTES[plan.c.dtype]
    tiles = plan.unit_count * plan.unit_tiles
    columns = math.prod(axis.products for axis in plan.axes) * lanes.panels
    tiles_of_rows = ceil_div(rows.channels, plan.rows)
    steps = (tiles_of_rows - 1) * _step_cycles(plan.rows, plan.vectors)
    steps += _step_cycles(plan.last_rows, plan.vectors)
    if plan.order == "whole":
        read = plan.places * (plan.vectors + 1) * plan.block_tiles * plan.lanes * item
        is_hidden = plan.vectors > 2 or plan.operand_size * item <= 2 * _FAR_BYTES
        steps += tiles_of_rows * (0.3 if is_hidden else 1.2 if read < 2 * _NEAR_BYTES else 3.0)
        return columns * (tiles * steps + tiles_of_rows * 20)
    kept = plan.places * plan.row_chunk * plan.lane_chunk * plan.row_tiles * plan.tile_size * item
    line = 3.0 if kept <= _NEAR_BYTES else 7.0 if kept <= _FAR_BYTES else 12.0
    carried = plan.blocks * (plan.rows * plan.vectors * line + 15)
    return columns * (tiles * steps + tiles_of_rows * carried)


def _step_cycles(rows: int, vectors: int) -> float:
    """Of one tile: two multiply-adds and two loads a cycle, and none into the same sum for four."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.3


def _elements(plan: WinogradWgradPlan, operand: Operand) -> int:
    """Elements of the tensor that an operand is made of."""
    axes = [a.axis.positions if operand.number == 0 else a.axis.results for a in plan.axes]
    return plan.c.batch * plan.groups * operand.channels * math.prod(axes)


def _finish_cycles(plan: WinogradWgradPlan) -> float:
    rows, lanes = plan.row_operand, plan.lane_operand
    taps = plan.axes[1].taps * plan.axes[2].taps
    part = 15 + plan.places * (1.0 + 2.4 * (plan.splits - 1))
    vector = part + (45 + math.prod(plan.taps) * 5.0) / rows.part_count / lanes.part_count
    strides = [
        plan.lane_stride,
        *(a.axis.taps.increment * s for a, s in zip(plan.axes, plan.c.w.space, strict=True)),
    ]
    if 1 not in map(abs, strides):  # every lane is stored on its own
        held = plan.c.width * plan.c.depth * plan.c.taps * plan.groups * ITEM_BYTES[plan.c.dtype]
        vector += (
            plan.axes[0].axis.taps.count
            * taps
            * plan.lanes
            * (_SCATTERED if held <= _FAR_BYTES else _FAR_SCATTERED)
        )
    if plan.order == "streamed" and plan.splits * plan.split_size * ITEM_BYTES[plan.c.dtype] > 2 * _FAR_BYTES:
        vector += plan.places * plan.splits * 6.0
    return rows.part_count * rows.channels * lanes.all_panels * plan.vectors * vector
