"""What is worth pricing for a filter's gradient by minimal filtering: tilings, register tiles, blockings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.plan import even_share
from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import Axes, WgradAxis
from jitdnn.kernels.cpu.convolution.winograd_wgrad.error import MAX_KC
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import WinogradWgradPlan
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering import MAX_ALPHA
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

EXACT_ALPHA = 6  # more points round noticeably more
_MAX_M = 5
_IDLE_TILES = 1.04  # tiles that only fill up the last unit of a row, as a factor
_SUMS_BYTES = 80 << 20  # of memory for the sums of split-K: no cache has them
_KC = (32, 64, MAX_KC)  # fewer tiles carry their sums too often, more leave the L2 cache
_SPLITS = (1, 2, 4, 8)
_PIECES = ((1, 1), (2, 1), (1, 2), (2, 2))  # of the rows and of the lanes


def tilings(c: Correlation) -> Iterator[Axes]:
    """F(m, r) on the last two axes; the first one is never tiled."""
    for h, w in itertools.product(_axis_tilings(c.axes[1]), _axis_tilings(c.axes[2])):
        if not (h.is_plain and w.is_plain):
            yield WgradAxis(c.axes[0]), h, w


def _axis_tilings(axis: Axis) -> list[WgradAxis]:
    """Of each alpha, which decides about the error, the tiling with the fewest products, if it has few of them."""
    if axis.taps.count == 1:
        return [WgradAxis(axis)]
    found = [
        WgradAxis(axis, m, r)
        for m in range(2, min(axis.taps.count, _MAX_M) + 1)
        for r in range(2, MAX_ALPHA - m + 2)
    ]
    work = {tiling: tiling.products * tiling.tiles for tiling in found}
    least = min(work[tiling] for tiling in found if tiling.alpha <= EXACT_ALPHA)
    kept: dict[int, WgradAxis] = {}
    for tiling in sorted(found, key=lambda tiling: work[tiling]):
        if work[tiling] <= least * (1.1 if tiling.alpha <= EXACT_ALPHA else 0.92):
            kept.setdefault(tiling.alpha, tiling)
    return list(kept.values())


def unblocked(c: Correlation, isa: Isa, tiling: Axes) -> Iterator[WinogradWgradPlan]:
    """Plans of a tiling with each register tile, whose blocking is not chosen yet."""
    axes = _with_units(tiling, c, isa)
    for is_swapped in (False, True):
        for mr, vectors in _register_tiles(c, isa, is_swapped):
            yield WinogradWgradPlan(c, isa, axes, "sum-resident", is_swapped, mr, vectors, 1, 1, 1, 1)


def _with_units(tiling: Axes, c: Correlation, isa: Isa) -> Axes:
    """With as many tiles to a unit as there is room for when it is packed."""
    first, h, w = tiling
    vector = isa.lanes(c.dtype) * ITEM_BYTES[c.dtype]
    room = max(1, isa.processor.l1(cost.WINOGRAD_WGRAD_UNIT_L1) // vector)

    def extent(axis: WgradAxis, tiles: int) -> int:
        return (tiles - 1) * axis.r + axis.alpha

    def largest(axis: WgradAxis, room: int, most: int) -> WgradAxis:
        for units in range(1, axis.tiles_per_residue + 1):
            tiles = ceil_div(axis.tiles_per_residue, units)
            candidate = replace(axis, unit_tiles=tiles)
            fits = tiles <= most and extent(axis, tiles) <= room
            if fits and candidate.tiles <= _IDLE_TILES * replace(axis, unit_tiles=1).tiles:
                return candidate
        return replace(axis, unit_tiles=1)

    w = largest(w, max(1, room // h.alpha), MAX_KC)
    return first, largest(h, room // extent(w, w.unit_tiles), MAX_KC // w.unit_tiles), w


def _register_tiles(c: Correlation, isa: Isa, is_swapped: bool) -> Iterator[tuple[int, int]]:
    """(Mr, vectors) of register tiles that fill the registers."""
    lanes = isa.lanes(c.dtype)
    blocks = ceil_div(c.depth if is_swapped else c.width, lanes)
    for vectors in {2, 3 if blocks % 3 == 0 else 2} if blocks > 1 else {1}:
        most = (isa.registers - 1 - vectors) // vectors
        yield max(r for r in range(1, lanes + 1) if lanes % r == 0 and r <= most), vectors


def plain_blockings(plan: WinogradWgradPlan) -> list[WinogradWgradPlan]:
    """Both orders, without pieces or split-K: what is priced first."""
    kc_units = even_share(plan.unit_count, max(1, MAX_KC // plan.unit_tiles))
    return [
        *_sum_resident(plan),
        replace(
            plan, order="tile-resident", mc_blocks=plan.row_operand.all_blocks,
            nc_panels=plan.lane_operand.all_panels, kc_units=kc_units,
        ),
    ]  # fmt: skip


def blockings(plan: WinogradWgradPlan) -> Iterator[WinogradWgradPlan]:
    yield from _sum_resident(plan)
    rows, lanes, item = plan.row_operand, plan.lane_operand, plan.item
    sizes = {even_share(plan.unit_count, max(1, kc // plan.unit_tiles)) for kc in _KC}
    for kc_units, split_k, pieces in itertools.product(sorted(sizes), _SPLITS, _PIECES):
        blocked = replace(
            plan, order="tile-resident", mc_blocks=ceil_div(rows.all_blocks, pieces[0]),
            nc_panels=ceil_div(lanes.all_panels, pieces[1]), kc_units=kc_units, split_k=split_k,
        )  # fmt: skip
        fits = split_k == 1 or split_k * blocked.sums_size * item <= _SUMS_BYTES
        if split_k <= blocked.tile_blocks and (blocked.mc_pieces, blocked.nc_pieces) == pieces and fits:
            yield blocked


def _sum_resident(plan: WinogradWgradPlan) -> Iterator[WinogradWgradPlan]:
    """If the tiles are few enough for their operands and for a chain of all of them."""
    rows, lanes = plan.row_operand, plan.lane_operand
    blocked = replace(plan, mc_blocks=rows.all_blocks, nc_panels=lanes.all_panels, kc_units=plan.unit_count)
    most = plan.isa.processor.l3(cost.WINOGRAD_WGRAD_OPERANDS_L3)
    fits = blocked.operands_size * plan.item <= most
    if fits and blocked.kc <= MAX_KC * 7 // 4:
        yield replace(blocked, mc_blocks=even_share(rows.blocks, 8))
