"""What a product with few rows costs, and the plan that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.skinny_gemm.plan import MOST_ROWS, Form, Product, SkinnyPlan, Tile
from jitdnn.rtcg.isa import Isa

_LATENCY = 4.0  # cycles from a multiply-add into a sum to the next one
_STEP = 1.0  # to go to the next step, of all that are unrolled
_CALL = 25.0  # to begin and end a tile, or a copy
_UNIT = 40.0
_STORE = 3.0  # to finish a vector of a result
_SCATTERED_LANE = 1.5  # the same for a lane that is stored alone
_REDUCE = 2.0  # to add up the lanes of a sum
_UNALIGNED = 1.5  # loads that a vector is worth whose rows do not begin at whole vectors
_FAR_ROWS = (
    1.35  # times as long take dots whose rows of a come from the L2 cache, a vector for each row and step
)
_MOST_CHAINS = 8  # sums that hide the latency: two multiply-adds begin in each cycle
_MOST_COLUMNS = {"columns": 16, "dots": 8}


def choose(product: Product, isa: Isa) -> SkinnyPlan | None:
    """The cheapest plan, with either matrix as the one with few rows; None if both have too many."""
    return min(candidates(product, isa), key=cycles, default=None)


def candidates(product: Product, isa: Isa) -> Iterator[SkinnyPlan]:
    """All plans that fit."""
    for each in (product, product.turned()):
        if each.m <= MOST_ROWS:
            for form in each.forms():
                yield from _plans(each, isa, form)


def _plans(product: Product, isa: Isa, form: Form) -> Iterator[SkinnyPlan]:
    lanes = isa.lanes(product.dtype)
    extent = ceil_div(product.n, lanes) if form == "columns" else product.n
    most_columns = min(_MOST_COLUMNS[form], extent, lanes if form == "dots" else extent)
    for columns in range(1, max(1, most_columns) + 1):
        # a register for each sum, and for what a step loads: of "dots" the vectors of a stay meanwhile
        room = isa.registers - 2 - (columns if form == "dots" else 0)
        most = max(1, min(product.m, room // (columns + 1)))
        for rows in sorted(
            {ceil_div(max(1, product.m), ceil_div(max(1, product.m), r)) for r in range(1, most + 1)}
        ):
            chains = rows * columns
            unroll = max(1, min(_MOST_CHAINS // chains, room // (chains + columns + 1), 4))
            blocked = rows < product.m
            depth = product.k
            if blocked:
                panel = isa.processor.l1(cost.SKINNY_PANEL_L1) // (columns * isa.vector_bytes)
                step = lanes * unroll if form == "dots" else unroll
                depth = max(step, panel * (lanes if form == "dots" else 1) // step * step)
            plan = SkinnyPlan(product, isa, form, Tile(rows, columns, unroll), max(1, min(depth, product.k)))
            if plan.fits:
                yield plan


def cycles(plan: SkinnyPlan) -> float:
    """Cycles of one thread."""
    p = plan.product
    full, rest = divmod(p.n, plan.width)
    total = full * _block_cycles(plan, plan.tile.columns)
    if rest:
        total += _block_cycles(plan, ceil_div(rest, plan.lanes) if plan.form == "columns" else rest)
    read = p.k * p.n * plan.item / _rate(plan)
    return math.prod(p.groups) * (max(total, read) + 0.25 * min(total, read))


def _block_cycles(plan: SkinnyPlan, columns: int) -> float:
    p, tile = plan.product, plan.tile
    passes = ceil_div(p.k, plan.kc) if plan.kc else 0
    full, rest = divmod(p.m, tile.rows)
    each = full * _step_cycles(plan, tile.rows, columns)
    if rest:
        each += _step_cycles(plan, rest, columns)
    steps = p.k if plan.form == "columns" else ceil_div(p.k, plan.lanes)
    total = steps * each + passes * plan.row_tiles * (
        _CALL + (2.0 * tile.rows * columns if plan.is_blocked else 0.0)
    )
    if plan.copies_b:
        total += p.k * columns + passes * _CALL
    vectors = columns if plan.form == "columns" else 1
    store = _STORE if p.c.columns == 1 else _SCATTERED_LANE * min(plan.width, plan.lanes)
    total += p.m * vectors * store + _UNIT
    if plan.form == "dots":
        total += p.m * columns * _REDUCE
    return total


def _step_cycles(plan: SkinnyPlan, rows: int, columns: int) -> float:
    """A step of a row tile: two multiply-adds and two loads a cycle."""
    p, sums = plan.product, rows * columns
    is_whole = plan.copies_b or (p.b.rows if plan.form == "columns" else p.b.columns) % plan.lanes == 0
    vector = 1.0 if is_whole else _UNALIGNED
    other = 1.0
    if plan.form == "dots" and p.a.rows % plan.lanes and p.m > 1:
        other = _UNALIGNED
    loads = columns * vector + rows * other
    step = max(sums / 2, loads / 2, _LATENCY / plan.tile.unroll) + _STEP / plan.tile.unroll
    return step * _FAR_ROWS if plan.form == "dots" and plan.is_blocked else step


def _rate(plan: SkinnyPlan) -> float:
    """Bytes a cycle at which b arrives."""
    processor = plan.isa.processor
    if not plan.is_far:
        return processor.l2_rate
    if plan.b_bytes <= processor.last_cache(cost.SKINNY_LAST):
        return processor.l3_rate * cost.SKINNY_L3_RATE
    return processor.memory_rate
