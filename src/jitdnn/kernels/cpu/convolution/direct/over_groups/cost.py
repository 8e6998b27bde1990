"""What a correlation of small groups costs that is vectorized over groups, and the tile that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.over_groups.plan import Clipping, GroupTile, OverGroups
from jitdnn.kernels.cpu.convolution.direct.plan import reads_of
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa

_UNROLLED = 600  # multiply-adds of a tile whose taps are unrolled: more would take long to compile
_UNROLLED_ROWS = 1600  # and of one row of the filter, in all versions
_VERSIONS = 4  # of a tile, for the ends of a row
_LONG_ROW = 64  # taps of a row that is never unrolled
_STORE = 1.0  # cycles to finish one vector of sums
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_ITERATION = 6.0  # cycles of an iteration of the loop over the taps of a row
_LOOP = 1.3  # how much longer its products take than those that are unrolled
_SHUFFLED = 3.0  # load slots more by this factor where lanes are shuffled: that delays the sums
_STRIDED = 1.0  # load slots more for a vector that the hardware does not prefetch
_L2_SLOTS = 6.0  # load slots more for a vector that is in L2
_TILE = 20.0  # cycles to begin and end a tile
_PAGE_ROW = 6.0  # and for each of its rows, if rows are in pages of their own
_PAGE = 4096
_CODE = 40_000  # multiply-adds of code that cost as much as the whole computation
_TILES = 64  # of a row, of more than which the boundary is neglected


def choose(c: Correlation, isa: Isa) -> OverGroups:
    """The cheapest plan."""
    return min(_candidates(c, isa), key=_slice_cycles)


def cycles(plan: OverGroups) -> float:
    """Cycles of one thread for the whole."""
    c, others = plan.c, math.prod(plan.c.groups[1:])
    counted = c.batch * others * c.axes[0].results * plan.vectors * _slice_cycles(plan)
    planes = math.prod(axis.positions for axis in c.axes) * c.depth
    planes += math.prod(axis.results for axis in c.axes) * c.width
    moved = c.batch * c.group_count * planes * plan.item
    if moved <= plan.processor.l3(cost.DIRECT_GROUPS_IMAGES_L3):
        return counted
    # what comes from memory is hidden only in part
    return counted + moved / (cost.DIRECT_GROUPS_MEMORY_RATE * plan.processor.memory_rate)


def _candidates(c: Correlation, isa: Isa) -> Iterator[OverGroups]:
    _, h, w = (axis.taps.count for axis in c.axes)
    yield OverGroups(c, isa, GroupTile(1, 1, "none"))
    most = (isa.registers - 3) // c.width
    for columns in range(1, min(most, c.axes[2].results, 16) + 1):
        yield OverGroups(c, isa, GroupTile(1, columns, "none"))
        if w > _LONG_ROW:
            continue
        by_row = OverGroups(c, isa, GroupTile(1, columns, "row"))
        clippings = by_row.clippings
        if len(clippings) > _VERSIONS:
            continue
        for rows in range(1, min(most // columns, c.axes[1].results) + 1):
            plan = OverGroups(c, isa, GroupTile(rows, columns, "all"))
            unrolled = len(clippings) * rows * columns * h * w * c.width
            if plan.filter_fits_registers and unrolled <= 2 * _UNROLLED:
                yield plan
        if c.width * sum(map(by_row.row_products, clippings)) <= _UNROLLED_ROWS:
            yield by_row


def _slice_cycles(plan: OverGroups) -> float:
    """Cycles of one vector of groups in one slice of one image."""
    c, tile = plan.c, plan.tile
    rows = ceil_div(c.axes[1].results, tile.rows)
    stores_vectors = c.y.groups[0] == 1 or plan.interleaves_results
    store = _STORE if stores_vectors else _SCATTERED_LANE * plan.lanes
    planes = c.depth * plan.taps[0]
    if tile.unrolled == "none":
        line = planes * _loop_cycles(plan)
        code = float(plan.sums * (1 + plan.loop_taps))
    else:
        line = sum(
            sum(last - first for first, last in runs) * planes * _unrolled_cycles(plan, clipping)
            for clipping, runs in plan.clippings.items()
        )
        code = float(c.width * tile.rows * sum(map(plan.row_products, plan.clippings)))
        code *= plan.taps[1] if tile.unrolled == "all" else 1
    tile_cycles = plan.sums * store + _TILE
    if abs(c.y.space[1]) * plan.item > _PAGE:
        tile_cycles += tile.rows * _PAGE_ROW
    return rows * (line + plan.row_tiles * tile_cycles) * (1 + code / _CODE)


def _unrolled_cycles(plan: OverGroups, clipping: Clipping) -> float:
    """Cycles of one tile and one slice of the filter, whose columns are unrolled."""
    c, tile, (_, h, w) = plan.c, plan.tile, plan.taps
    products = c.width * tile.rows * h * plan.row_products(clipping)
    lines = len(plan.row_reads) if tile.unrolled == "all" else h
    is_strided = (
        tile.unrolled == "row" and h > 1 and abs(c.x.space[2]) * plan.item > plan.processor.line_bytes
    )
    loads = lines * len(clipping.columns) * (_slots(plan) + (_STRIDED if is_strided else 0.0))
    values = 0.0
    if not plan.filter_fits_registers:
        values = float(c.width * tile.rows * h * w if plan.row_fits_registers else products)
    slowest = max(products / 2, (loads + values) / 2, 4.0 * h * min(w, 4))
    return fraction_inside(c.axes[1]) * slowest + 2.0 * h + values / 32


def _loop_cycles(plan: OverGroups) -> float:
    """Cycles of a row of tiles and one slice of the filter, in a loop that takes some taps at a time."""
    c, columns, (_, h, w) = plan.c, plan.tile.columns, plan.taps
    sums, taps = c.width * columns, plan.loop_taps
    loads = len(reads_of(c.axes[2], columns, taps)) * _reload_slots(plan)
    whole = _LOOP * max(sums / 2, (loads / taps + c.width) / 2, 4.0) + _ITERATION / taps
    boundary = columns * (1.0 + c.width / 2) + 2 * _ITERATION
    axis, tiles = c.axes[2], plan.row_tiles
    if not axis.is_padded or tiles > _TILES:
        return h * w * tiles * whole
    inner = 0
    for tile in range(tiles):
        lowest = tile * columns * axis.step + axis.taps.offset
        highest = lowest + (columns - 1) * axis.step
        shifts = range(0, axis.taps.count * axis.taps.shift, axis.taps.shift)
        inner += sum(lowest + at >= 0 and highest + at < axis.positions for at in shifts)
    total = inner * whole + (tiles * w - inner) * boundary
    return fraction_inside(c.axes[1]) * h * total + 2.0 * h * tiles


def _slots(plan: OverGroups) -> float:
    """Load slots of one vector of the input; whole cache lines need no more than one."""
    x, span = plan.c.x, plan.span
    strides = (x.groups[0] * plan.lanes, x.batch, *x.space)
    is_aligned = span.slots > 1.0 and x.groups[0] == 1 and all(s % plan.lanes == 0 for s in strides)
    shuffled = _SHUFFLED if span.step > 1 else 1.0
    return 1.0 if is_aligned else shuffled * span.slots


def _reload_slots(plan: OverGroups) -> float:
    """Load slots of one vector that was read some taps before: more if a row's pixels evict each other from L1."""
    line = plan.processor.line_bytes
    apart, sets = abs(plan.c.x.space[2]) * plan.item // line, cost.L1_WAY_BYTES // line
    resident = cost.l1_ways(plan.processor) * (sets // math.gcd(max(1, apart), sets))
    return _slots(plan) if plan.taps[2] + 16 <= resident else _slots(plan) + _L2_SLOTS
