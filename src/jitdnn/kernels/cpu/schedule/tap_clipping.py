"""Clipping: register tiles leave out the taps that read nothing but padding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar

from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.rtcg.builder import Value

LAST_AXIS = 0.3  # the cost of clipping the last axis, in taps for each row of the filter

_Index = TypeVar("_Index", int, Value)  # known now, or when the code runs


def clipped_axes(c: Correlation, sides: Sequence[int]) -> list[int]:
    """Axes whose taps are clipped for each tile of ``sides``: those on which some taps read padding.

    The last one is among them only where that saves more than it costs: its loop is no longer unrolled.
    """
    padded = [i for i, axis in enumerate(c.axes) if axis.taps.count > 1 and axis.is_padded]
    last = c.axes[2]
    if 2 in padded and unclipped_fraction(last, sides[2]) + LAST_AXIS / last.taps.count >= 1:
        padded.remove(2)
    return padded


@functools.lru_cache(4096)
def unclipped_fraction(axis: Axis, side: int) -> float:
    """The part of all (tile, tap) pairs on an axis that is left after clipping: those of `inside_taps`.

    Tap by tap, since an axis may have millions of tiles.
    """
    tiles, reach, from_tile_to_tile = -(-axis.results // side), (side - 1) * axis.step, side * axis.step
    left = 0
    for tap in range(axis.taps.count):
        at = axis.taps.offset + tap * axis.taps.shift  # where it reads for the first result of the first tile
        first, end = -((at + reach) // from_tile_to_tile), -((at - axis.positions) // from_tile_to_tile)
        left += max(0, min(end, tiles) - max(first, 0))
    return left / max(1, tiles * axis.taps.count)


def inside_taps(axis: Axis, result: _Index, side: int) -> tuple[_Index, _Index]:
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


def _at_least(value: _Index, least: int) -> _Index:
    return value.max(least) if isinstance(value, Value) else max(value, least)


def _at_most(value: _Index, most: int) -> _Index:
    return value.min(most) if isinstance(value, Value) else min(value, most)
