"""The rows of shared memory in which channels and taps of the data and of the filter are copied, and shared by taps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import ROWS, Operand
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis
from jitdnn.kernels.cuda.cost import SECTOR_BYTES
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Lines
from jitdnn.problems.convolution import Convolution

_ROW_COST = {128: 1.0, 64: 0.75, 32: 0.7}
"""Of a row of so many bytes: to the copy engine they are alike, and products of short ones take less."""
_EMPTY_COST = 1.0
"""Of one behind the last tap, of zeros that fill up a stage, which take the copy engine no less time."""
_LEAST_OF_LINES = 64
"""Bytes of the shortest rows worth trying where longer ones hold a tap's channels."""
LEAST_COLUMNS = 32
"""Of the product, of which the filter is long enough."""
_COUNTS = {128: (), 64: (3,), 32: (5, 3)}
"""Of rows in a stage, where whole ones would end in zeros: more than `STAGE_ROW` bytes, or little less."""


def rows_of(channels: int, size: int, taps: int, is_exact: bool, is_whole: bool) -> tuple[int, int]:
    """Bytes of the rows in which a tap's channels are brought, and those of K in a stage, which are some rows.

    `is_exact`: behind the channels there are those of another group. `is_whole`: a stage has `STAGE_ROW` bytes.
    """

    def cost(rows: tuple[int, int]) -> float:
        row, stage = rows
        pieces = taps * -(-channels * size // row)
        return pieces * _ROW_COST[row] + -pieces % (stage // row) * _EMPTY_COST

    found = []
    for row in ROWS:
        if is_exact and channels * size % row:
            continue
        found.append((row, STAGE_ROW))
        pieces = taps * -(-channels * size // row)
        if not is_whole and -pieces % (STAGE_ROW // row):
            # stages without rows of zeros, or the one that there is
            found += [(row, row * count) for count in _COUNTS[row] if pieces % count == 0][:1]
            if pieces < STAGE_ROW // row:
                found.append((row, row * pieces))
    return min(found, key=cost)


def lines_of(phases: Sequence[Sequence[Axis]]) -> Lines | None:
    """The taps along the last axis that may share rows, the same of all stride phases; None if none do."""
    lasts = {(axes[2].input_stride, axes[2].taps, axes[2].dilation) for axes in phases}
    step, taps, dilation = next(iter(lasts))
    if len(lasts) > 1 or taps <= step or (step > 1 and dilation > 1):
        return None
    return Lines(-(-taps // step), dilation, step, taps % step or step)


def padding_of(phases: Sequence[Sequence[Axis]], extents: Sequence[int]) -> float:
    """Of the pixels that all taps read, the share that lies outside of the data."""
    inside = of_all = 0
    for axes in phases:
        inside += math.prod(axis.inside(extent) for axis, extent in zip(axes, extents, strict=True))
        of_all += math.prod(axis.taps * axis.results for axis in axes)
    return 1.0 - inside / of_all if of_all else 0.0


def neighbours_of(problem: Convolution, data: Operand, weights: Operand) -> Lines | None:
    """Lines whose windows are as many pixels apart as are a row of A, of few channels; None if there are none."""
    step, taps, dilation = problem.stride[-1], problem.filter_spatial[-1], problem.dilation[-1]
    row = step * data.channels * data.size
    if (
        problem.direction != "fwd"
        or problem.groups > 1
        or problem.mode != "cross_correlation"
        or not data.is_direct
        or step == 1
        or taps == 1
        or dilation > 1
        or row not in ROWS
        or row // step not in ROWS
        or data.space[2] != data.channels
    ):
        return None
    before = problem.padding[-1][0]
    last = (problem.output_spatial[-1] - 1) * step - before + taps - 1  # pixel that a result needs
    extent = data.extents[2]
    if extent < step or (extent % step and last >= extent // step * step):
        return None  # pixels of a row that is not whole are read
    return Lines(taps, 1, pixels=step, first=-before % step)


def rows_of_lines(channels: int, size: int, is_exact: bool, columns: int) -> list[int]:
    """Bytes of the rows in which channels may be brought where taps share rows, each of which is a stage.

    Those that hold the channels with least to spare and, since stages that have the filter of several taps by some
    columns are long and few, shorter ones of which there are more, if pixels begin at sectors.
    """
    fitting = [row for row in ROWS if not is_exact or channels * size % row == 0]
    best = min(fitting, key=lambda row: -(-channels * size // row) * _ROW_COST[row])
    if columns < LEAST_COLUMNS or channels * size % SECTOR_BYTES:
        return [best]
    return [best, *(row for row in fitting if _LEAST_OF_LINES <= row < best)]


def no_lines(problem: Convolution) -> str:
    """Why there are no taps that share pixels."""
    return (
        f"{problem.filter_spatial[-1]} taps along the last axis, stride {problem.stride[-1]}, dilation"
        f" {problem.dilation[-1]}: no two taps of all results read the same pixels, or not as many of each"
    )
