"""How exact minimal filtering is on GPUs: growth by the transforms is what cpu/convolution/winograd/error.py found."""

from __future__ import annotations

from functools import lru_cache
from math import prod, sqrt

from jitdnn.kernels.gpu.convolution.winograd.plan import Axis, Plan

# growth of the error by alpha; and by (m, r) where that differs
_GROWTH = {1: 1.0, 3: 1.45, 4: 1.4, 5: 2.4, 6: 2.65}
_GROWTH_OF = {(4, 3): 2.4, (3, 4): 2.4}
_SUM_ERROR, _MARGIN, _LEAST = 0.27, 1.35, 0.45


def growth(plan: Plan) -> float:
    """By how much errors exceed those of a plain sum with as many terms."""
    return prod(_GROWTH_OF.get((axis.m, axis.r), _GROWTH[axis.alpha]) for axis in plan.axes) / sqrt(
        prod(_interior_share(axis) for axis in plan.axes)
    )


def roundings(plan: Plan, chain: int) -> float:
    """The error of sums of `chain` terms, in unit roundoffs of the arithmetic."""
    root = sqrt(chain)
    return 2.0 + _MARGIN * max(_LEAST, _SUM_ERROR * growth(plan)) * (root + 1.2 + 0.8 / root)


@lru_cache(256)
def _interior_share(axis: Axis) -> float:
    """The share of (result, tap) pairs that read no padding: transforms round for all taps, sums have fewer terms."""
    count = 0
    for tap in range(axis.r):
        at = axis.offset + tap * axis.dilation
        count += max(0, min(axis.results, axis.extent - at) - max(0, -at))
    return max(1, count) / (axis.results * axis.r)
