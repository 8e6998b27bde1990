"""Which tiles are worth trying for a correlation by Winograd's minimal filtering."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jitdnn.kernels.cpu.convolution.winograd.matrices import MOST_PLACES
from jitdnn.kernels.cpu.convolution.winograd.plan import TileAxis
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div

_LONG = 5  # taps that may be cut
_CUT_PLACES = 6  # of a tile of cut taps

Tiling = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""The numbers of the two tiled axes; the results of a tile, and the parts of the taps, on each."""


def tilings(c: Correlation, most: int) -> Iterator[Tiling]:
    """Pairs of axes to tile with results of a tile on each, at most ``most``, and parts of the taps."""
    for tiled in ((1, 2), (0, 2), (0, 1)):
        cuts = [_cuts(c.axes[i], most) for i in tiled]
        for first, second in itertools.product(*cuts):
            gains = any(
                m > 1 and TileAxis(c.axes[i], m, parts).taps > 1
                for i, (m, parts) in zip(tiled, (first, second), strict=True)
            )
            if gains or c.taps == 1:
                yield tiled, (first[0], second[0]), (first[1], second[1])


def _cuts(axis: Axis, most: int) -> list[tuple[int, int]]:
    """(results of a tile, parts of the taps) that are worth trying: the largest tiles, and smaller ones where those
    cover the axis more tightly."""
    count = axis.taps.count
    if count == 1:
        return [(1, 1)]
    if axis.step > 1 and axis.taps.shift != 1:
        return []
    cuts: list[tuple[int, int]] = []
    for m in range(min(most, axis.results), 0, -1):
        candidate = TileAxis(axis, m)
        if candidate.places <= MOST_PLACES and (
            not cuts or m == 2 or m * candidate.turns < cuts[-1][0] * TileAxis(axis, cuts[-1][0]).turns
        ):
            cuts.append((m, 1))
    if axis.step == 1 and count >= _LONG:
        for parts in sorted({ceil_div(count, taps) for taps in (3, 4, 5)}):
            cuts.append((min(most, axis.results, _CUT_PLACES + 1 - ceil_div(count, parts)), parts))
    return cuts
