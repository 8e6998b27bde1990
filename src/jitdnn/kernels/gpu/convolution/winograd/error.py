"""The error bounds of minimal filtering on GPUs; see formulas/minimal_filtering_error.py."""

from __future__ import annotations

from functools import lru_cache
from math import prod, sqrt

from jitdnn.kernels.formulas.minimal_filtering_error import LEAST, SUM_ERROR, growth_of
from jitdnn.kernels.formulas.minimal_filtering_error import roundings as roundings_of_sums
from jitdnn.kernels.gpu.convolution.winograd.plan import Axis, Plan


def growth(plan: Plan) -> float:
    """By how much errors exceed those of a plain sum with as many terms."""
    return prod(growth_of(axis.m, axis.r) for axis in plan.axes) / sqrt(
        prod(_interior_share(axis) for axis in plan.axes)
    )


def roundings(plan: Plan, chain: int) -> float:
    """The error of sums of `chain` terms, in unit roundoffs of the arithmetic."""
    return roundings_of_sums(max(LEAST, SUM_ERROR * growth(plan)), chain)


@lru_cache(256)
def _interior_share(axis: Axis) -> float:
    """The share of (result, tap) pairs that read no padding: transforms round for all taps, sums have fewer terms."""
    count = 0
    for tap in range(axis.r):
        at = axis.offset + tap * axis.dilation
        count += max(0, min(axis.results, axis.extent - at) - max(0, -at))
    return max(1, count) / (axis.results * axis.r)
