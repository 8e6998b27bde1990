"""How exact Winograd's minimal filtering is on processors; see formulas/minimal_filtering_error.py."""

from __future__ import annotations

import functools
from math import sqrt

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, summation_bound
from jitdnn.kernels.cpu.convolution.winograd.axes import Tiling
from jitdnn.kernels.cpu.convolution.winograd.plan import MAX_CHAIN
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering_error import LEAST, SUM_ERROR, growth_of, roundings
from jitdnn.problems.problem import Problem


def error_of(c: Correlation, tiling: Tiling) -> float:
    """Relative error to declare for a tiling, in the computing type. Subfilters are summed as channels are."""
    rows, columns = tiling.rows(c), tiling.columns(c)
    terms = c.depth * c.axes[tiling.untiled].taps.count * rows.subfilters * columns.subfilters
    growth = max(LEAST, SUM_ERROR * growth_of(rows.m, rows.r) * growth_of(columns.m, columns.r))
    growth /= sqrt(_interior_share(rows.axis) * _interior_share(columns.axis))
    return UNIT_ROUNDOFF[c.dtype] * roundings(growth, min(terms, MAX_CHAIN))


@functools.lru_cache(maxsize=256)
def _interior_share(axis: Axis) -> float:
    """The share of (result, tap) pairs that read no padding: transforms round for all taps, sums have fewer terms."""
    taps = axis.taps
    count = 0
    for tap in range(taps.count):
        at = taps.offset + tap * taps.shift
        first, last = ceil_div(max(0, -at), axis.step), (axis.positions - 1 - at) // axis.step
        count += max(0, min(axis.results - 1, last) - first + 1)
    return max(1, count) / max(1, axis.results * taps.count)


def storage_error(problem: Problem, computing: str) -> float:
    """What rounding the results to their type in memory adds."""
    own = UNIT_ROUNDOFF[problem.dtype]
    return 2.0 * own if own > UNIT_ROUNDOFF[computing] else 0.0


def standard_error(problem: Problem, computing: str) -> float:
    """The error that a larger tile may have: that of a plain sum, and at least 84 unit roundoffs."""
    return max(plain_error(problem, computing), 84.0 * UNIT_ROUNDOFF[computing])


def plain_error(problem: Problem, computing: str) -> float:
    """The error of a plain sum."""
    return summation_bound(problem) - storage_error(problem, computing)
