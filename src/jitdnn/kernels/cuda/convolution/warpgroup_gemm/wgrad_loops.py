"""The loops of a wgrad as a product by warpgroups.

for each 64 channels of dy and each column         columns: the taps, for each of them blocks of 64 channels of x
    sum over pixels of dy                          or over segments of lines, whose taps share the copied pixels of x
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import (
    NEEDS_WORKSPACE,
    Axis,
    Packs,
    Three,
    batched,
    packed,
    parts_of,
    rank_of,
    three_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.gemm.plan import three

_ONES = (1, 1, 1)


@dataclass(frozen=True)
class Loops:
    """`x` is what the taps meet, with `strides` between the pixels of neighbouring results and `base` the position of
    the first tap of the first one. `axes` count pixels, or segments of lines: `segment` pixels each, 0 of whole images,
    of which `at_once` taps share what is copied.
    """

    x: Operand
    dy: Operand
    outputs: Three
    taps: Three
    strides: Three
    base: Three
    axes: tuple[Axis, Axis, Axis]
    rank: int
    images: int
    in_channels: int
    out_channels: int
    segment: int
    at_once: int

    @staticmethod
    def of(request: ProductRequest, segment: int) -> Loops:
        """The loops of a problem, whose last axis is cut into segments of so many pixels; 0: it is not."""
        problem, batch = request.problem, request.batch
        x = batched(Operand.of(problem.x, 0), batch, batch.data if batch else 0)
        dy = batched(Operand.of(problem.y, 1), batch, batch.filter if batch else 0)
        outputs, taps = three(problem.output_spatial, 1), three(problem.filter_spatial, 1)
        dilation, before = three(problem.dilation, 1), three([n for n, _ in problem.padding], 0)
        x, strides = _met(x, outputs, taps, three(problem.stride, 1), before)
        first, second, last = (
            Axis(outputs[n], -before[n], strides[n], taps[n], dilation[n], 0, 1, 0, 1) for n in range(3)
        )
        rank = rank_of(x.extents[0], (first,))
        if segment:
            last = replace(last, results=-(-outputs[2] // segment))
        return Loops(
            x, dy, outputs, taps, strides, (-before[0], -before[1], -before[2]), (first, second, last), rank,
            problem.n, problem.c // problem.groups, problem.k // problem.groups,
            segment, request.tiles[0].wn // 64 if segment else 1,
        )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether each pixel of dy meets the same pixel of x alone."""
        at_zero = self.base == (0, 0, 0) and self.x.extents == self.outputs
        return self.taps == _ONES and self.strides == _ONES and at_zero

    @property
    def channel_blocks(self) -> int:
        return -(-self.in_channels // 64)

    @property
    def last_taps(self) -> int:
        """Along the last axis: those that share what is copied count once."""
        return -(-self.taps[2] // self.at_once)

    @property
    def pixels(self) -> int:
        """Summed over, those behind the ends of lines included where segments reach there."""
        return self.images * math.prod(axis.results for axis in self.axes) * max(1, self.segment)

    def columns_of_tap(self, n: int) -> int:
        """The channels of a tap as whole blocks of 64 or, of tiles of `n` that end inside of one, as whole tiles."""
        return -(-self.in_channels // n) * n if n % 64 else self.channel_blocks * 64

    def columns(self, n: int) -> int:
        return math.prod(self.taps[:2]) * self.last_taps * self.at_once * self.columns_of_tap(n)

    @property
    def outside(self) -> float:
        """The share of the windows' pixels that lie outside of x."""
        inside = [
            axis.inside(extent) / (axis.taps * axis.results)
            for axis, extent in zip(self.axes, self.x.extents, strict=True)
        ]
        return 1.0 - math.prod(inside)


def _met(x: Operand, outputs: Three, taps: Three, strides: Three, before: Three) -> tuple[Operand, Three]:
    """What the taps meet of x, and their strides over that: along an axis with one tap, every `strides`-th position.

    So these are read as neighbours, and the others are not packed.
    """
    is_single = [
        taps[n] == 1 and not before[n] and (outputs[n] - 1) * strides[n] < x.extents[n] for n in range(3)
    ]
    steps = three_of(s if one else 1 for s, one in zip(strides, is_single, strict=True))
    counts = three_of(n if one else e for n, e, one in zip(outputs, x.extents, is_single, strict=True))
    left = three_of(1 if one else s for s, one in zip(strides, is_single, strict=True))
    return x.every(steps, counts), left


@dataclass(frozen=True)
class Sources:
    """What is copied: A of dy and B of x, or of their packed copies, which fill the workspace up to `at`. Of numbers
    that are divided where they are multiplied each part is the operand itself: `is_a_f32`, `is_b_f32`.
    """

    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    packs: Packs
    at: int
    is_a_f32: bool
    is_b_f32: bool

    @staticmethod
    def of(request: ProductRequest, loops: Loops) -> Sources:
        """Raises Refused where one must be packed and cannot."""
        parts, is_divided, divides_rows = request.parts, request.is_divided, request.divides_rows
        dy, x = loops.dy, loops.x
        packs, at = packed(
            x, dy, parts, request.is_scaled, request.problem.has_float8, dy if divides_rows else None,
            request.is_blockwise,
        )  # fmt: skip
        if divides_rows and packs[1] and not is_divided:
            raise Refused(
                "numbers are divided where the copy engine reads them: dy has its channels innermost"
            )
        if is_divided and (any(packs) or not request.uses_workspace):
            raise Refused(
                "numbers are divided where the copy engine reads them, of splits: both operands have channels innermost"
            )
        if any(packs) and not request.uses_workspace:
            raise Refused(NEEDS_WORKSPACE)
        of_a = parts if is_divided or divides_rows else 1
        of_b = parts if is_divided else 1  # rows of 32 channels of each
        return Sources(
            parts_of(dy, packs[1]) * of_a, parts_of(x, packs[0]) * of_b, packs, at,
            is_divided or divides_rows, is_divided,
        )  # fmt: skip
