"""Tests of an image's borders that are made only where a result can be at one."""

from __future__ import annotations

import contextlib

from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.rtcg.builder import Builder, Value


def when(k: Builder, condition: Value | None) -> contextlib.AbstractContextManager[None]:
    """``with when(k, c)``: the body runs where the condition holds, or always if there is none."""
    return contextlib.nullcontext() if condition is None else k.when(condition)


def inside(axis: Axis, at: Value, block: int) -> Value | None:
    """Whether position ``at``, which a result of the axis reads, is there; None if no result reads beyond.

    Results are computed in blocks; those of the last block that do not exist read as the others do.
    """
    last = (-(-axis.results // block) * block - 1) * axis.step + axis.taps.lowest + axis.taps.span
    if axis.taps.lowest >= 0 and last < axis.positions:
        return None
    return (at >= 0) & (at < axis.positions)
