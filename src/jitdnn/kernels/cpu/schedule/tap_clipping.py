"""Which taps of a filter read inside of the image: those of a tile that meet nothing but padding are left out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar

from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.rtcg.builder import Value

LAST_AXIS = 0.3  # taps that counting those of the last axis costs, for each row of the filter

Place = TypeVar("Place", int, Value)


def trimmed_axes(c: Correlation, sides: Sequence[int]) -> list[int]:
    """Axes whose taps are counted for each tile of ``sides``: those on which some fall outside.

    The last one is among them only where that saves more than it costs: its loop is no longer written out.
    """
    padded = [i for i, axis in enumerate(c.axes) if axis.taps.count > 1 and axis.is_padded]
    last = c.axes[2]
    if 2 in padded and unclipped_fraction(last, sides[2]) + LAST_AXIS / last.taps.count >= 1:
        padded.remove(2)
    return padded


@functools.lru_cache(4096)
def unclipped_fraction(axis: Axis, side: int) -> float:
    """The part of all (tile, tap) pairs on an axis that is not left out."""
    tiles = range(0, axis.results, side)
    counted = 0
    for p in tiles:
        first, last = inside_taps(axis, p, side)
        counted += max(0, last - first)
    return counted / max(1, len(tiles) * axis.taps.count)


def inside_taps(axis: Axis, result: Place, side: int) -> tuple[Place, Place]:
    """First and last (exclusive) tap that reads inside for any of ``side`` results from ``result`` on."""
    taps, reach = axis.taps, (side - 1) * axis.step
    at = result * axis.step + taps.offset  # where tap 0 of the first result reads
    step = abs(taps.shift)
    if taps.shift > 0:
        first = _at_least(-at - reach + (step - 1), 0) // step
        last = _at_least(-at + (axis.positions + step - 1), 0) // step
    else:
        first = _at_least(at - axis.positions + step, 0) // step
        last = _at_least(at + reach + step, 0) // step
    return first, _at_most(last, taps.count)


def _at_least(value: Place, least: int) -> Place:
    return value.max(least) if isinstance(value, Value) else max(value, least)


def _at_most(value: Place, most: int) -> Place:
    return value.min(most) if isinstance(value, Value) else min(value, most)
