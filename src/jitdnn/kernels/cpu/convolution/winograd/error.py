"""How exact Winograd's minimal filtering is.

The error of a result, relative to the norm of all, is that of its sums over the depth, made larger on each tiled axis
by the maps to places and back. Measured over the points of matrices.py, 16 to 1024 channels, and data that are
normal, positive or half zeros; normal data, whose products cancel the most, have the largest errors.
"""

from __future__ import annotations

import functools
from math import sqrt

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, summation_bound
from jitdnn.kernels.cpu.convolution.winograd.plan import MOST_TERMS, TileAxis
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.problem import Problem

# what one axis makes of the error, by places; and by (results of a tile, taps) where that differs
_OF_PLACES = {1: 1.0, 2: 1.2, 3: 1.45, 4: 1.4, 5: 2.4, 6: 2.65, 7: 4.7, 8: 5.6}
_OF_FILTERING = {(4, 3): 2.4, (3, 4): 2.4, (3, 5): 4.3, (4, 4): 4.3, (4, 5): 4.9, (3, 6): 4.9}
_OF_A_SUM = 0.27  # units of roundoff for each square root of a term
_LEAST = 0.45
_MARGIN = 1.35


def error_of(
    c: Correlation, tiled: tuple[int, int], outputs: tuple[int, int], parts: tuple[int, int] = (1, 1)
) -> float:
    """Relative error to declare for tiles of ``outputs`` results on the two axes ``tiled``, in the computing type.

    ``parts``: of the taps of each axis; they are summed as the channels are.
    """
    axes = [TileAxis(c.axes[i], m, n) for i, m, n in zip(tiled, outputs, parts, strict=True)]
    depth = c.depth * c.axes[3 - sum(tiled)].taps.count * axes[0].phases * axes[1].phases
    growth = max(_LEAST, _OF_A_SUM * _growth(axes[0]) * _growth(axes[1]))
    growth /= sqrt(_inside(axes[0].axis) * _inside(axes[1].axis))
    root = sqrt(min(depth, MOST_TERMS))
    # few products do not average out what the maps round, the more so without fused multiply-adds
    return UNIT_ROUNDOFF[c.dtype] * (2.0 + _MARGIN * growth * (root + 1.2 + 0.8 / root))


def _growth(axis: TileAxis) -> float:
    return _OF_FILTERING.get((axis.outputs, axis.taps), _OF_PLACES[axis.places])


@functools.lru_cache(maxsize=256)
def _inside(axis: Axis) -> float:
    """The part of all (result, tap) pairs that read inside: the errors are those of all taps, the results are not."""
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
