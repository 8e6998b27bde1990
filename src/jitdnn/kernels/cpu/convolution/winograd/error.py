"""How exact Winograd's minimal filtering is.

The error of a result, relative to the norm of all, is that of its sums over channels and subfilters, times a growth for
each tiled axis by the transforms to points and back. Measured with the points of matrices.py, 16 to 1024 channels, and
data that are normal, positive or half zeros; normal data, whose products cancel the most, have the largest errors.
"""

from __future__ import annotations

import functools
from math import sqrt

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, summation_bound
from jitdnn.kernels.cpu.convolution.winograd.axes import TileAxis, Tiling
from jitdnn.kernels.cpu.convolution.winograd.plan import MAX_CHAIN
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.problem import Problem

# growth of the error by alpha; and by (m, r) where that differs
_GROWTH = {1: 1.0, 2: 1.2, 3: 1.45, 4: 1.4, 5: 2.4, 6: 2.65, 7: 4.7, 8: 5.6}
_GROWTH_OF = {(4, 3): 2.4, (3, 4): 2.4, (3, 5): 4.3, (4, 4): 4.3, (4, 5): 4.9, (3, 6): 4.9}
_SUM_ERROR = 0.27  # unit roundoffs for the square root of the number of terms
_LEAST = 0.45
_MARGIN = 1.35


def error_of(c: Correlation, tiling: Tiling) -> float:
    """Relative error to declare for a tiling, in the computing type. Subfilters are summed as channels are."""
    rows, columns = tiling.rows(c), tiling.columns(c)
    terms = c.depth * c.axes[tiling.untiled].taps.count * rows.subfilters * columns.subfilters
    growth = max(_LEAST, _SUM_ERROR * _growth(rows) * _growth(columns))
    growth /= sqrt(_interior_share(rows.axis) * _interior_share(columns.axis))
    root = sqrt(min(terms, MAX_CHAIN))
    # few products do not average out what the transforms round, the more so without fused multiply-adds
    return UNIT_ROUNDOFF[c.dtype] * (2.0 + _MARGIN * growth * (root + 1.2 + 0.8 / root))


def _growth(axis: TileAxis) -> float:
    return _GROWTH_OF.get((axis.m, axis.r), _GROWTH[axis.alpha])


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
