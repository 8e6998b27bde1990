"""What a filter's gradient by minimal filtering costs in cycles of one thread, and its cheapest plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.cost import near_cheapest
from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import Axes, dy_reading, x_reading
from jitdnn.kernels.cpu.convolution.winograd_wgrad.candidates import (
    EXACT_ALPHA,
    blockings,
    plain_blockings,
    tilings,
    unblocked,
)
from jitdnn.kernels.cpu.convolution.winograd_wgrad.error import roundings
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Operand, Order, WinogradWgradPlan
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.microkernel.constant_matrix import grid_operations
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa, item_bytes
from jitdnn.rtcg.isa import isa as isa_of
from jitdnn.rtcg.processor import Processor

Item = TypeVar("Item")

_BEHIND = 1.08  # tilings and register tiles whose plain blockings cost more by this factor are out
_WORTH_SHARING = 100_000.0  # cycles
_ONE_TASK, _FEW_TASKS = 1.6, 0.15  # what more work than that costs more in one task, and in a few
_INEXACT = 1.1  # what more points than EXACT_ALPHA must save


def choose_plan(c: Correlation, isa: Isa, limit: float, order: Order | None = None) -> WinogradWgradPlan:
    """The cheapest plan, of those with ``order`` if one is given. Some axis has several taps.

    The tiling is the best one on the reference processor with long vectors, so that the error does not depend on the
    processor; the error is below ``limit``, in unit roundoffs, or the least there is.
    """
    c = _with_fewest_taps_first(c)
    every = list(tilings(c))
    exact = [tiling for tiling in every if roundings(tiling, c.batch) <= limit]
    tiling = min(every, key=lambda tiling: roundings(tiling, c.batch))
    if exact:
        plan = _cheapest(c, isa_of("avx512"), exact, None)
        if isa == isa_of("avx512") and order in (None, plan.order):
            return plan
        tiling = plan.axes
    return _cheapest(c, isa, [tiling], order)


def _cheapest(c: Correlation, isa: Isa, tilings: Sequence[Axes], order: Order | None) -> WinogradWgradPlan:
    def screened(plan: WinogradWgradPlan) -> float:
        plans = plain_blockings(plan)
        return min((_price(p) for p in plans if order in (None, p.order)), default=math.inf)

    near = near_cheapest([p for tiling in tilings for p in unblocked(c, isa, tiling)], screened, _BEHIND)
    return min((p for plan in near for p in blockings(plan) if order in (None, p.order)), key=_price)


def _with_fewest_taps_first(c: Correlation) -> Correlation:
    """The same with the axis that has the fewest taps as the first one, which is never tiled."""
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
    """Cycles, and more for work in few tasks and for many points, which must be worth their rounding errors.

    The number of threads has no part in it: a plan must not depend on it, or the results would.
    """
    price = cycles(plan)
    if price > _WORTH_SHARING:
        price *= _ONE_TASK if plan.tasks == 1 else 1 + _FEW_TASKS / plan.tasks
    return price * _INEXACT if any(axis.alpha > EXACT_ALPHA for axis in plan.axes) else price


def cycles(plan: WinogradWgradPlan) -> float:
    """Cycles of one thread."""
    pieces = [plan.mc_pieces, plan.nc_pieces] if plan.order == "tile-resident" else [1, 1]
    transforms = _transform_cycles(plan, plan.row_operand) * pieces[1]
    transforms += _transform_cycles(plan, plan.lane_operand) * pieces[0]
    return plan.groups * (transforms + _product_cycles(plan) + _finish_cycles(plan))


def _transform_cycles(plan: WinogradWgradPlan, operand: Operand) -> float:
    """Transforming all tiles of an operand once."""
    tile, row, rows, columns = _unit_cycles(plan.axes, operand.view, operand.is_x, plan.lanes)
    size = plan.operands_size * plan.item
    processor, (l2, l3) = plan.isa.processor, _caches(plan)
    store = 1.5 + (size > l2) * _l3_cycles(processor, cost.WINOGRAD_WGRAD_STORED_L3)
    store += _memory_cycles(processor, cost.WINOGRAD_WGRAD_STORED_MEMORY) * max(0.0, 1 - l3 / size)
    if _elements(plan, operand) * item_bytes(operand.view.dtype) > 2 * l3:
        row += columns * _memory_cycles(processor, cost.WINOGRAD_WGRAD_PACKED_MEMORY)
    unit = plan.unit_tiles * (tile + plan.points * store) + rows * row + 20
    return operand.subfilter_count * operand.blocks * plan.unit_count * unit


@functools.lru_cache(maxsize=1024)
def _unit_cycles(axes: Axes, view: View, is_x: bool, lanes: int) -> tuple[float, float, int, int]:
    """Of an operand: cycles of a tile but for its stores, cycles of a row of a unit, rows and columns of a unit.

    They are the same for all blockings.
    """
    rows, columns = (x_reading(a) if is_x else dy_reading(a) for a in axes[1:])
    matrices = [a.filtering.data if is_x else a.filtering.filter for a in axes[1:]]
    row = columns.elements * 2.5
    if view.space[2] == 1 and view.channels != 1:  # squares are transposed
        row = ceil_div(columns.elements, lanes) * lanes * (2.0 if columns.spacing == 1 else 4.0)
    tile = 0.45 * grid_operations(matrices[0], matrices[1]) + 0.4 * rows.extent * columns.extent + 5
    return tile, row + 11, rows.elements, columns.elements


def _product_cycles(plan: WinogradWgradPlan) -> float:
    rows, lanes = plan.row_operand, plan.lane_operand
    item, processor, (l2, l3) = plan.item, plan.isa.processor, _caches(plan)
    tiles = plan.unit_count * plan.unit_tiles
    columns = math.prod(axis.products for axis in plan.axes) * lanes.panels
    row_tiles = ceil_div(rows.channels, plan.mr)
    steps = (row_tiles - 1) * _step_cycles(plan.mr, plan.vectors)
    steps += _step_cycles(plan.last_mr, plan.vectors)
    if plan.order == "sum-resident":
        read = plan.points * (plan.vectors + 1) * plan.kc * plan.lanes * item
        if plan.vectors > 2 or plan.operands_size * item <= 2 * l3:
            exposed = 0.3
        elif read < 2 * l2:
            exposed = _l3_cycles(processor, cost.WINOGRAD_WGRAD_PRODUCT_L3)
        else:
            exposed = _memory_cycles(processor, cost.WINOGRAD_WGRAD_PRODUCT_MEMORY)
        steps += row_tiles * exposed
        return columns * (tiles * steps + row_tiles * 20)
    sums = (
        plan.points * plan.mc_blocks * plan.nc_panels * plan.register_tiles * plan.register_tile_size * item
    )
    if sums <= l2:
        line = cost.WINOGRAD_WGRAD_CARRIED_L2 * processor.line_bytes / processor.l2_rate
    elif sums <= l3:
        line = _l3_cycles(processor, cost.WINOGRAD_WGRAD_CARRIED_L3)
    else:
        line = _memory_cycles(processor, cost.WINOGRAD_WGRAD_CARRIED_MEMORY)
    carried = plan.tile_blocks * (plan.mr * plan.vectors * line + 15)
    return columns * (tiles * steps + row_tiles * carried)


def _step_cycles(rows: int, vectors: int) -> float:
    """Of a register tile: two multiply-adds and two loads a cycle, and four cycles from sum to sum."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.3


def _elements(plan: WinogradWgradPlan, operand: Operand) -> int:
    """Elements of the tensor that an operand is made of."""
    axes = [a.axis.positions if operand.is_x else a.axis.results for a in plan.axes]
    return plan.c.batch * plan.groups * operand.channels * math.prod(axes)


def _caches(plan: WinogradWgradPlan) -> tuple[int, int]:
    """Bytes of the L2 and of the L3 cache that are counted on for what is read again."""
    processor = plan.isa.processor
    return processor.l2(cost.WINOGRAD_WGRAD_L2), processor.l3(cost.WINOGRAD_WGRAD_L3)


def _l3_cycles(processor: Processor, lines: float) -> float:
    """Cycles of so many cache lines from the L3 cache."""
    return lines * processor.line_bytes / processor.l3_rate


def _memory_cycles(processor: Processor, lines: float) -> float:
    """Cycles of so many cache lines from memory."""
    return lines * processor.line_bytes / processor.memory_rate


def _finish_cycles(plan: WinogradWgradPlan) -> float:
    processor, (_, l3) = plan.isa.processor, _caches(plan)
    rows, lanes = plan.row_operand, plan.lane_operand
    taps = plan.axes[1].m * plan.axes[2].m
    subfilter = 15 + plan.points * (1.0 + 2.4 * (plan.split_k - 1))
    vector = subfilter + (45 + math.prod(plan.taps) * 5.0) / rows.subfilter_count / lanes.subfilter_count
    strides = [
        plan.lane_stride,
        *(a.axis.taps.increment * s for a, s in zip(plan.axes, plan.c.w.space, strict=True)),
    ]
    if 1 not in map(abs, strides):  # every lane is stored on its own
        size = plan.c.width * plan.c.depth * plan.c.taps * plan.groups * plan.item
        if size <= l3:
            scattered = _l3_cycles(processor, cost.WINOGRAD_WGRAD_SCATTERED_L3)
        else:
            scattered = _memory_cycles(processor, cost.WINOGRAD_WGRAD_SCATTERED_MEMORY)
        vector += plan.axes[0].axis.taps.count * taps * plan.lanes * scattered
    carried = plan.split_k * plan.sums_size * plan.item
    if plan.order == "tile-resident" and carried > 2 * l3:
        vector += plan.points * plan.split_k * _memory_cycles(processor, cost.WINOGRAD_WGRAD_FINISH_MEMORY)
    return rows.subfilter_count * rows.channels * lanes.all_panels * plan.vectors * vector
