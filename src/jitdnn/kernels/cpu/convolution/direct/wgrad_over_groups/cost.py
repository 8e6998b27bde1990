"""What the gradient of a grouped filter costs that is vectorized over groups; the tile that costs least; the splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups.plan import WgradGroupTile, WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import block_count
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_UNROLLED = 200  # multiply-adds of one step along the row
_TASKS = 16  # that should be there, if the vectors of groups are fewer
_SPLIT_CYCLES = 50_000.0  # a split that takes less is not worth its sums
_FINISH_LANE = 2.0  # cycles to add up and store one lane of one tap
_SHUFFLED = 2.0  # load slots more by this factor where lanes are shuffled: that delays the sums
_PASS = 30.0  # cycles to begin and end a pass


def choose(c: Correlation, isa: Isa, may_split: bool) -> WgradOverGroups:
    """The cheapest plan; its rows are split, which takes a workspace, where that may be."""
    plan = min(_candidates(c, isa), key=_vector_cycles)
    if not may_split:
        return plan
    blocks = plan.vector_blocks
    wanted = min(_TASKS // blocks, int(cycles(plan) / blocks / _SPLIT_CYCLES))
    return replace(plan, splits=max(1, min(block_count(c, plan.row_block), wanted)))


def cycles(plan: WgradOverGroups) -> float:
    """Cycles of one thread for the whole."""
    return plan.vectors * _vector_cycles(plan)


def _candidates(c: Correlation, isa: Isa) -> Iterator[WgradOverGroups]:
    _, rows, columns = (axis.taps.count for axis in c.axes)
    block = _row_block(c, isa)
    yield WgradOverGroups(c, isa, WgradGroupTile(1, 1, 1), block)
    for taps in {ceil_div(columns, parts) for parts in range(1, columns + 1)}:
        for tile_rows in (n for n in range(1, rows + 1) if rows % n == 0):
            sums = c.width * tile_rows * taps
            most = min((isa.registers - 3 - sums) // c.width, _UNROLLED // sums, c.axes[2].results)
            for width in range(1, most + 1):
                yield WgradOverGroups(c, isa, WgradGroupTile(tile_rows, taps, width), block)


def _row_block(c: Correlation, isa: Isa) -> int:
    """Rows of dy whose passes read no more than stays in L2."""
    each = (c.width * c.axes[2].results + c.depth * c.axes[1].step * c.axes[2].positions) * c.groups[0]
    most = isa.processor.l2(cost.DIRECT_WGRAD_GROUPS_BLOCK_L2)
    # a row of an empty batch reads nothing
    return max(1, min(c.axes[1].results, most // max(1, each * ITEM_BYTES[c.dtype])))


def _vector_cycles(plan: WgradOverGroups) -> float:
    """Cycles of one vector of groups, for all images."""
    c, tile = plan.c, plan.tile
    slices, rows, columns = (axis.taps.count for axis in c.axes)
    sums = c.width * tile.rows * tile.taps
    reads = (tile.columns - 1) * c.axes[2].step + tile.taps
    loads = tile.rows * reads * _slots(plan.x_span) + c.width * tile.columns * _slots(plan.y_span)
    step = max(sums * tile.columns / 2, loads / 2, 4.0 * tile.columns) + 1.0
    row = ceil_div(c.axes[2].results, tile.columns) * step
    row += (2.0 * sums + _PASS) / plan.row_block
    passes = c.depth * slices * (rows // tile.rows) * ceil_div(columns, tile.taps)
    lines = c.batch * c.axes[0].results * c.axes[1].results
    return passes * (lines * row + sums * plan.lanes * _FINISH_LANE)


def _slots(span: RowVector) -> float:
    return span.slots * (_SHUFFLED if span.step > 1 else 1.0)
