"""What is worth pricing for a correlation by minimal filtering: tilings, F(m, r) on two axes, and blockings of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.axes import TileAxis, Tiling
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan, even_share
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering import MAX_ALPHA
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_MIN_SEGMENTED_TAPS = 5
_SEGMENT_ALPHA = 6  # of a tile of segments
_MC = (12, 14, 16, 24, 28, 40, 56, 84, 112, 168, 224)


def tilings(c: Correlation, max_m: int) -> Iterator[Tiling]:
    """Pairs of axes with (m, segments) of each, where some axis saves products; m is at most ``max_m``."""
    for tiled in ((1, 2), (0, 2), (0, 1)):
        choices = [_axis_tilings(c.axes[i], max_m) for i in tiled]
        for first, second in itertools.product(*choices):
            saves = any(
                m > 1 and TileAxis(c.axes[i], m, segments).r > 1
                for i, (m, segments) in zip(tiled, (first, second), strict=True)
            )
            if saves or c.taps == 1:
                yield Tiling(tiled, (first[0], second[0]), (first[1], second[1]))


def _axis_tilings(axis: Axis, max_m: int) -> list[tuple[int, int]]:
    """(m, segments): the largest tiles, smaller ones that cover the axis with fewer idle results, and segments."""
    count = axis.taps.count
    if count == 1:
        return [(1, 1)]
    if axis.step > 1 and axis.taps.shift != 1:
        return []
    found: list[tuple[int, int]] = []
    covered = 0  # results of a residue's tiles by the tiling that was found last
    for m in range(min(max_m, axis.results), 0, -1):
        candidate = TileAxis(axis, m)
        results = m * candidate.tiles_per_residue
        if candidate.alpha <= MAX_ALPHA and (not found or m == 2 or results < covered):
            found.append((m, 1))
            covered = results
    if axis.step == 1 and count >= _MIN_SEGMENTED_TAPS:
        for segments in sorted({ceil_div(count, taps) for taps in (3, 4, 5)}):
            found.append((min(max_m, axis.results, _SEGMENT_ALPHA + 1 - ceil_div(count, segments)), segments))
    return found


def blockings(c: Correlation, isa: Isa, tiling: Tiling, is_prepacked: bool) -> Iterator[WinogradPlan]:
    """Plans of a tiling: filter-resident if V is small, and data-resident ones in blocks of equal size.

    A filter that is prepacked was transformed before, so that U streams by.
    """
    plan = WinogradPlan(c, isa, tiling, True, 1)
    if not is_prepacked and plan.tile_rows * plan.row_tiles <= _MC[-1]:
        filter_resident = replace(plan, is_data_resident=False, mc_rows=plan.tile_rows)
        if filter_resident.v_elements * ITEM_BYTES[c.dtype] <= isa.processor.l3(cost.WINOGRAD_V_L3):
            yield filter_resident
    most = {max(1, min(plan.tile_rows, round(mc / plan.row_tiles))) for mc in _MC}
    for mc_rows in sorted({even_share(plan.tile_rows, rows) for rows in most}):
        yield from _blocked(plan, mc_rows)


def regular_blockings(p: WinogradPlan) -> Iterator[WinogradPlan]:
    """Of a data-resident plan those whose blocks do not depend on how many images there are: the last is not whole."""
    for mc_rows in sorted({max(1, round(mc / p.row_tiles)) for mc in _MC}):
        if mc_rows <= p.tile_rows:
            yield from _blocked(replace(p, data_kc=0), mc_rows)


def _blocked(plan: WinogradPlan, mc_rows: int) -> Iterator[WinogradPlan]:
    blocked = replace(plan, mc_rows=mc_rows)
    yield blocked
    if (kc := _kc_in_l2(blocked)) < plan.c.depth:
        yield replace(blocked, data_kc=kc)


def _kc_in_l2(p: WinogradPlan) -> int:
    """Channels of V that stay in the L2 cache until they have been multiplied; all, if M of all panels does not."""
    item, share = p.item, p.isa.processor.l2(cost.WINOGRAD_V_L2)
    pieces = ceil_div(p.v_elements * item, share)
    if pieces <= 1 or p.has_few_channels or p.panels.count * p.m_panel_elements * item > share:
        return p.c.depth
    channels = ceil_div(p.c.depth, pieces)
    return ceil_div(channels, p.lanes) * p.lanes
