"""Results whose windows reach outside of the data, as phases of their own without the taps that read only padding.

Of three taps along an axis of four positions one reads nothing but padding for the first position, and one for the
last: a sixth of all products. Positions along an axis form runs that the same taps meet; each run, or each pair of runs
along two axes, is a phase, like the stride phases of a dgrad.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis
from jitdnn.problems.convolution import Convolution

LEAST_SAVED, LEAST_OF_VOLUMES = 0.12, 0.04
"""Of the products along an axis of images, and of volumes, for which a plan with more phases is worth asking for."""
_MOST_RUNS = 64
"""That are joined one pair at a time: a filter of a thousand taps has two thousand runs."""
Run = tuple[int, int, int, int]


def phases_inside(
    axes: tuple[Axis, ...], extents: Sequence[int], most: int, along: int = 1, is_in_lines: bool = False
) -> tuple[tuple[Axis, ...], ...] | None:
    """The one phase with `axes` as up to `most` phases, of data with these extents; None where few products fall away.

    `along`: one or two axes, those along which most do; not the last one where its taps share pixels (`is_in_lines`).
    Phases with most taps come first.
    """
    saved = [_outside(axis, extent) for axis, extent in zip(axes, extents, strict=True)]
    numbers = sorted(range(len(axes) - is_in_lines), key=lambda number: -saved[number])[:along]
    if saved[numbers[-1]] < (LEAST_OF_VOLUMES if extents[0] > 1 else LEAST_SAVED):
        return None
    cuts = [_runs(axes[number], extents[number], most) for number in numbers]
    best = min(
        (one for one in itertools.product(*cuts) if math.prod(map(len, one)) <= most),
        key=lambda one: math.prod(map(_count, one)),
    )
    found = []
    for runs in itertools.product(*best):
        phase = list(axes)
        for number, run in zip(numbers, runs, strict=True):
            phase[number] = _part(axes[number], run)
        found.append(tuple(phase))
    return tuple(sorted(found, key=lambda one: -math.prod(axis.taps for axis in one)))


def may_save(problem: Convolution) -> bool:
    """Whether taps of as many results as make a difference read padding alone, along some axis."""
    least = LEAST_OF_VOLUMES if len(problem.spatial) == 3 else LEAST_SAVED
    for n, (before, _) in enumerate(problem.padding):
        taps, dilation, results = problem.filter_spatial[n], problem.dilation[n], problem.output_spatial[n]
        axis = Axis(results, -before, problem.stride[n], taps, dilation, 0, 1, 0, 1)
        of_all = taps * (results if problem.direction == "fwd" else problem.spatial[n])
        if of_all - axis.inside(problem.spatial[n]) >= least * of_all:
            return True
    return False


def _outside(axis: Axis, extent: int) -> float:
    """The share of the taps of all results that read padding."""
    of_all = axis.results * axis.taps
    return 1.0 - axis.inside(extent) / of_all if of_all else 0.0


def _runs(axis: Axis, extent: int, most: int) -> list[list[Run]]:
    """Runs of results, and of the taps that one of them meets: first and last ones (exclusive); no more than `most`,
    and fewer and fewer of them, where neighbours with whom least is lost become one."""
    step, results = axis.input_stride, axis.results

    def taps(result: int) -> tuple[int, int]:
        at = axis.base + result * step
        if axis.dilation == 0:
            return 0, axis.taps
        first = max(0, -(at // axis.dilation))
        last = min(axis.taps, (extent - 1 - at) // axis.dilation + 1)
        return (first, last) if first < last else (0, 0)

    if axis.taps == 1 or results == 0:
        return [[(0, results, 0, axis.taps)]]
    bounds = {0, results}
    for tap in range(axis.taps):
        at = axis.base + tap * axis.dilation
        bounds |= {-(at // step), -((at - extent) // step)}  # the first that is inside, and the first behind
    ordered = sorted(bound for bound in bounds if 0 <= bound <= results)
    runs = [(first, last, *taps(first)) for first, last in itertools.pairwise(ordered)]
    many = -(-len(runs) // _MOST_RUNS)
    runs = [reduce(_merged, runs[n : n + many]) for n in range(0, len(runs), many)]
    found = [list(runs)]
    while len(runs) > 1:
        pairs = [runs[n : n + 2] for n in range(len(runs) - 1)]
        lost = [_count([_merged(*pair)]) - _count(pair) for pair in pairs]
        at = lost.index(min(lost))
        runs[at : at + 2] = [_merged(*pairs[at])]
        found.append(list(runs))
    return [one for one in found if len(one) <= most]


def _merged(one: Run, other: Run) -> Run:
    taps = [run[2:] for run in (one, other) if run[2] < run[3]]
    first, last = min((a for a, _ in taps), default=0), max((b for _, b in taps), default=0)
    return one[0], other[1], first, last


def _count(runs: Sequence[Run]) -> int:
    """Of taps, for all results of these."""
    return sum((last - first) * (b - a) for first, last, a, b in runs)


def _part(axis: Axis, run: Run) -> Axis:
    """The axis of the results and the taps of a run."""
    first, last, tap, end = run
    return replace(
        axis, results=last - first, base=axis.base + first * axis.input_stride + tap * axis.dilation,
        taps=end - tap, first_tap=axis.first_tap + tap * axis.tap_step,
        first_result=axis.first_result + first * axis.result_stride,
    )  # fmt: skip
