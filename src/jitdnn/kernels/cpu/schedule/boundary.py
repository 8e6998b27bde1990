"""Boundaries: tests whether a position is inside of the image, only where one can be outside, and how many are."""

from __future__ import annotations

import contextlib

from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Value


def when(k: Builder, condition: Value | None) -> contextlib.AbstractContextManager[None]:
    """``with when(k, c)``: the body runs where the condition holds, or always if there is none."""
    return contextlib.nullcontext() if condition is None else k.when(condition)


def inside(axis: Axis, at: Value, block: int) -> Value | None:
    """Whether position ``at``, which a result of the axis reads, is inside; None if no result reads outside.

    Results are computed in blocks; those of the last block beyond the axis read like the others.
    """
    last = (ceil_div(axis.results, block) * block - 1) * axis.step + axis.taps.lowest + axis.taps.span
    if axis.taps.lowest >= 0 and last < axis.positions:
        return None
    return (at >= 0) & (at < axis.positions)


def fraction_inside(axis: Axis) -> float:
    """The part of all (result, tap) pairs of an axis that read inside of the image."""
    taps = axis.taps
    if not axis.is_padded:
        return 1.0
    inside = 0
    for tap in range(taps.count):
        at = taps.offset + tap * taps.shift
        first = ceil_div(max(0, -at), axis.step)
        last = min(axis.results, (axis.positions - 1 - at) // axis.step + 1)
        inside += max(0, last - first)
    return inside / (axis.results * taps.count)
