"""The loops of an fprop or dgrad as a product by warpgroups.

for each stride phase, row and column              rows: pixels of the result; columns: its channels
    sum over taps and channels                     or over groups of taps along a line, which share copied pixels
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jitdnn.devices.tensor_map import ALIGNMENT
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Geometry
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.edges import phases_inside
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand, fits_offsets
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.paired import Pair, paired
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import (
    NEEDS_WORKSPACE,
    Axis,
    Packs,
    batched,
    filter_of,
    filter_steps,
    is_line,
    packed,
    parts_of,
    rank_of,
    three_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import MAX_PHASES
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.rows import lines_of, neighbours_of, no_lines, rows_of
from jitdnn.kernels.cuda.gemm.plan import linear_step
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES, STAGE_ROW, Lines

MAX_PACKED = 2**32
_NEAR = 128
"""Positions outside of an image, or of its end, beyond which windows begin no more, and taps reach."""
Phase = tuple[Axis, ...]


@dataclass(frozen=True)
class Sources:
    """What is copied: A of the data and B of the filter, or of their packed copies, which fill the workspace up to
    `at`. `is_mn_major`: neighbours of B in memory are columns. `across`: the data with their pixels as channels, where
    neighbours of A are rows.
    """

    data: Operand
    weights: Operand
    across: Operand | None
    is_mn_major: bool
    packs: Packs
    at: int
    a: tuple[Operand, ...]
    b: tuple[Operand, ...]

    @staticmethod
    def of(request: ProductRequest, geometry: Geometry, is_in_lines: bool) -> Sources:
        """Raises Refused."""
        problem, batch, divides_rows = request.problem, request.batch, request.divides_rows
        is_forward = problem.direction == "fwd"
        data = batched(Operand.of(request.data, 0), batch, batch.data if batch else 0)
        weights, along_columns = filter_of(problem, batch)
        swaps, size = request.tiles[0].swaps, request.size
        is_mn_major = not request.is_scaled and size == (4 if swaps else 2)
        is_mn_major = is_mn_major and not weights.is_direct and along_columns.is_direct
        if swaps and not is_mn_major:
            raise Refused(
                "operands change places where the channels of the result are innermost in a filter of f32"
            )
        # boxes begin at multiples of 16 bytes, so groups must
        is_mn_major = is_mn_major and filter_steps(geometry, is_forward, batch)[0] * size % ALIGNMENT == 0
        if is_mn_major:
            weights = along_columns
        across = None
        is_usual = not (request.is_scaled or divides_rows or is_in_lines or request.fusion.has_prologue)
        if is_usual and weights.is_direct and not is_mn_major:
            across = _across(request, data)
        # a packed filter has the channels that are summed innermost
        packs, at = packed(
            across or data, weights, request.parts, request.is_scaled, as_it_is=data if divides_rows else None
        )
        if divides_rows and packs[0]:
            raise Refused(
                "numbers are divided where the copy engine reads them: the data have their channels innermost"
            )
        if any(packs) and not request.uses_workspace:
            raise Refused(NEEDS_WORKSPACE)
        if any(pack and pack.source.pixels >= MAX_PACKED for pack in packs):
            raise Refused(
                f"a copy of {max(data.pixels, weights.pixels)} pixels: at most {MAX_PACKED} are counted by its kernel"
            )
        of_a = request.parts if divides_rows else 1  # rows of half as many channels of each
        a, b = parts_of(across or data, packs[0]) * of_a, parts_of(weights, packs[1])
        return Sources(data, weights, across, is_mn_major, packs, at, a, b)

    def in_rows(self, pixels: int) -> Sources:
        """The same with `pixels` neighbours of A along the last axis as one of as many times the channels."""
        return self if pixels == 1 else replace(self, a=tuple(_in_rows(part, pixels) for part in self.a))


@dataclass(frozen=True)
class Loops:
    """`phases`: each by its axes, with `lines` of taps that share rows, one of them for all. `row_bytes`: of the
    channels that one copy brings of a pixel, of which a tap has `channel_blocks`; `row`: of K in a stage. `rank`: of
    the maps of pixels. `most_taps`: of a phase. `pair`: of stride phases that are halves of the columns.
    """

    phases: tuple[Phase, ...]
    lines: Lines
    rank: int
    row_bytes: int
    row: int
    channel_blocks: int
    images: int
    most_taps: int
    pair: Pair | None = None

    @staticmethod
    def of(request: ProductRequest, geometry: Geometry, sources: Sources, row_of_lines: int) -> Loops:
        """In lines with `row_of_lines`: bytes of a row of those. Raises Refused."""
        phases = [
            tuple(Axis.of(axis, one) for axis, one in zip(geometry.axes, phase, strict=True))
            for phase in geometry.phases
        ]
        pair = None
        if request.is_paired:
            phases, pair = paired(request, phases)
        if request.skips_padding:
            phases = _inside(request, sources, phases, row_of_lines > 0)
        lines = _lines(request, sources, phases) if row_of_lines else NO_LINES
        if row_of_lines:
            # one tap stands for those that share pixels, and windows go on behind the end of a line
            phases = [
                (*axes[:2], replace(axes[2], taps=lines.classes, results=axes[2].results + lines.reach))
                for axes in phases
            ]
        if lines.pixels > 1:  # all positions along the line are those of rows
            phases = [
                (*axes[:2], replace(axes[2], base=axes[2].base // lines.pixels, input_stride=1))
                for axes in phases
            ]
        rank = rank_of(sources.data.extents[0], [axes[0] for axes in phases])
        if is_line(sources.data.extents, phases) and not all(_fits_image(axes[2]) for axes in phases):
            rank = 3
        if not all(fits_offsets(rank, [axis.reach for axis in axes]) for axes in phases):
            raise Refused("taps are farther apart than the copy engine takes")
        most_taps = max(math.prod(axis.taps for axis in axes) for axes in phases)
        channels, size = geometry.in_channels, request.size
        row_bytes = row = row_of_lines
        if not row_of_lines:
            # channels of another group behind these are not multiplied
            leaves_out = request.divides_rows and 32 < channels < 64 and channels % 16 == 0
            is_exact = geometry.groups > 1 and not leaves_out
            is_whole = request.divides_rows or request.fusion.has_prologue
            row_bytes, row = rows_of(channels, size, most_taps, is_exact, is_whole)
        channel_blocks = -(-channels * size // row_bytes)
        if lines.long < lines.classes and channel_blocks > 1:
            raise Refused(
                f"{channels} channels are several stages, and taps that share pixels are not always as many"
            )
        if pair and not row_bytes == row == STAGE_ROW:
            raise Refused("pairs have whole rows of channels")
        return Loops(
            tuple(phases), lines, rank, row_bytes, row, channel_blocks, geometry.images, most_taps, pair
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """Of the product, by stride phases."""
        return tuple(self.images * math.prod(axis.results for axis in axes) for axes in self.phases)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Stages of K, by stride phases."""
        pieces = [self.channel_blocks * math.prod(axis.taps for axis in axes) for axes in self.phases]
        return tuple(-(-count * self.row_bytes // self.row) for count in pieces)


def _fits_image(axis: Axis) -> bool:
    """Whether windows along an axis begin and end as near to an image's edges as its maps take."""
    return -axis.base <= _NEAR and axis.reach + axis.input_stride <= _NEAR


def _inside(request: ProductRequest, sources: Sources, phases: list[Phase], is_in_lines: bool) -> list[Phase]:
    """The phases of results that the same taps meet. Raises Refused."""
    if len(phases) > 1:
        raise Refused("stride phases are not divided by the taps that read padding alone")
    found = phases_inside(phases[0], sources.data.extents, MAX_PHASES, request.skips_padding, is_in_lines)
    if not found:
        raise Refused("few taps read nothing but padding, of any result")
    return list(found)


def _lines(request: ProductRequest, sources: Sources, phases: list[Phase]) -> Lines:
    problem, found = request.problem, None
    if not request.fusion.has_prologue:
        found = neighbours_of(problem, sources.data, sources.weights)
    found = found or lines_of(phases)
    if not found:
        raise Refused(no_lines(problem))
    return found


def _in_rows(data: Operand, pixels: int) -> Operand:
    *outer, extent = data.extents
    *steps, step = data.space
    return replace(
        data, channels=data.channels * pixels, extents=three_of((*outer, extent // pixels)),
        space=three_of((*steps, step * pixels)),
    )  # fmt: skip


def _across(request: ProductRequest, data: Operand) -> Operand | None:
    """The data with their pixels as channels, where products of one tap read them so; None elsewhere."""
    problem = request.problem
    step = linear_step(data.extents, data.space)
    is_plain = (
        problem.direction == "fwd"
        and problem.groups == 1
        and {1} == {*problem.filter_spatial, *problem.stride}
        and {0} == {side for sides in problem.padding for side in sides}
        and data.size == 2
    )
    pixels = math.prod(data.extents)
    if not is_plain or data.is_direct or step != 1 or (problem.n > 1 and not request.batch) or pixels == 1:
        return None
    across = replace(
        data, channels=pixels, channel=1, extents=(1, 1, data.channels), space=(0, 0, data.channel)
    )
    return across if across.is_direct else None
