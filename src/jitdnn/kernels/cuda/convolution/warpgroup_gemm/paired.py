"""Two stride phases of a dgrad as the halves of a product's columns.

With three taps and stride 2 along the last axis every second result meets two taps and the others one, which reads
pixels that one of the two reads as well. As two products of 64 columns each, pixels are copied three times, and there
are twice as many gaps between tiles; as one product of 128 columns, half of which a tap uses that only one phase meets,
pixels are copied twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import BLOCK
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.problems.convolution import Convolution

_MOST_COLUMNS = 256  # of a warpgroup


@dataclass(frozen=True)
class Pair:
    """`Pair` of tables.cuh, without the places of results, which are number `results` along the last axis."""

    both: int
    first: int
    single: int
    taps: tuple[int, int]
    tap_steps: tuple[int, int]
    results: tuple[int, int]

    def numbers(self, step: int) -> tuple[int, ...]:
        """`step`: elements from one result to the next."""
        return (
            self.both, self.first, self.single, *self.taps, *self.tap_steps, *(step * one for one in self.results)
        )  # fmt: skip


def may_be_paired(problem: Convolution) -> bool:
    """Whether stride phases along the last axis may be halves of a tile's columns, which are whole blocks."""
    is_usual = problem.direction == "bwd_data" and problem.stride[-1] == 2 and problem.groups == 1
    return is_usual and problem.c % BLOCK == 0 and 2 * problem.c <= _MOST_COLUMNS


def paired(
    request: ProductRequest, phases: Sequence[tuple[Axis, ...]]
) -> tuple[list[tuple[Axis, ...]], Pair]:
    """Phases of the other axes, and what the halves of columns are. Raises Refused."""
    if request.size != 2 or not may_be_paired(request.problem):
        raise Refused(
            f"pairs are stride phases of a data gradient of one group, in half precision, with stride 2 along the last"
            f" axis and {BLOCK} or {_MOST_COLUMNS // 2} channels"
        )
    lasts = sorted({axes[2] for axes in phases}, key=lambda axis: axis.taps)
    if (
        len(lasts) != 2
        or len({axis.results for axis in lasts}) > 1
        or any(axes[0].taps * axes[1].taps == 0 for axes in phases)
    ):
        raise Refused("two stride phases along the last axis are to have as many results, and taps")
    short, long = lasts
    offset, more = short.base - long.base, long.taps - short.taps
    if not (short.taps > 0 and more in (0, 1) and 0 <= offset <= more) or any(
        axis.taps > 1 and axis.dilation != 1 for axis in lasts
    ):
        raise Refused("the pixels of one stride phase are not those of the other, with one more")
    taps = tuple(axis.first_tap - (axis.base - long.base) * axis.tap_step for axis in lasts)
    pair = Pair(
        short.taps, offset, 0 if offset else short.taps, (taps[0], taps[1]), (short.tap_step, long.tap_step),
        (short.first_result, long.first_result),
    )  # fmt: skip
    merged = replace(long, first_result=0, dilation=1)
    found = [(*axes[:2], merged) for axes in phases if axes[2] == long]
    return found, pair
