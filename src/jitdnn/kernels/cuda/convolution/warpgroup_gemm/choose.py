"""The plan of an implicit product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Batch, geometry_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.correlation import correlation_plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import MAX_STEP, ROWS
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import element_bytes
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import MAX_PHASES, Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.rows import LEAST_COLUMNS, rows_of_lines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad import plan_in_lines, wgrad_plan
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution

_HALF_ROWS = 1.06
"""Factor on the time in lines whose rows hold half of what they could, beside that of others: as measured."""
_FEW_COLUMNS = 1.2
"""The same of products in lines with fewer columns than those worth shorter rows."""


def unplannable(problem: Convolution, is_scaled: bool = False) -> str | None:
    """Why no plan exists whatever the device, in words a user can act on; None if one may."""
    size = element_bytes(problem, is_scaled)
    least = ROWS[-1] // size
    if max(problem.stride) > MAX_STEP:
        return f"strides {problem.stride}: the copy engine takes steps of at most {MAX_STEP}"
    if problem.direction == "bwd_data" and math.prod(problem.stride) > MAX_PHASES:
        return (
            f"strides {problem.stride} make {math.prod(problem.stride)} stride phases: at most {MAX_PHASES}"
        )
    groups = problem.groups
    if groups > 1 and problem.direction != "bwd_filter":
        inner = (problem.c if problem.direction == "fwd" else problem.k) // groups
        if inner % least:
            return f"{inner} channels of a group are summed: they must be a multiple of {least}"
    if groups > 1 and problem.direction == "bwd_filter":
        run = ALIGNMENT // size
        for count in (problem.c // groups, problem.k // groups):
            if count % run:
                return f"{count} channels of a group: runs of pixels begin at multiples of {run} channels"
    return None


@lru_cache(512)
def plan_of(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int = 1,
    batch: Batch | None = None,
    fusion: Fusion = NOTHING,
    is_scaled: bool = False,
    is_divided: bool = False,
    is_in_lines: bool = False,
    divides_rows: bool = False,
    is_rough: bool = False,
    is_blockwise: bool = False,
    pixels_are_columns: bool = False,
    skips_padding: int = 0,
    is_paired: bool = False,
    limit: float = math.inf,
) -> Plan | str:
    """The plan that is expected to be fastest, of the problem or of a batch of such; or why there is none.

    `is_scaled`: f32 numbers are multiplied as f16, times a power of two; with two `parts` they always are, with three
    as bf16. Operands are packed for it, but those that are divided where they are multiplied: both of a filter's
    gradient (`is_divided`), in shared memory, and with `divides_rows` dy of them in registers; without `is_divided`
    dy alone, or the data of other directions. `is_rough`: only the first of these halves are multiplied.
    `is_in_lines`: of a filter's gradient, whose taps along the last axis share what is copied of x. `is_blockwise`:
    of a filter's gradient with one tap, of which blocks of 64 pixels by 64 channels are packed as halves, each
    scaled by itself. `skips_padding`: along so many axes results whose windows reach outside of the data are phases
    of their own, of the taps that read data; see edges.py. `is_paired`: two stride phases are halves of the columns;
    see paired.py. `limit`: seconds, more than which nobody wants; not of filter gradients in lines.
    """
    is_scaled = (is_scaled or parts > 1) and not is_divided
    request = ProductRequest(
        problem, device, tiles, uses_workspace, parts, batch, fusion, is_scaled, is_divided, divides_rows, is_rough,
        is_blockwise, pixels_are_columns, skips_padding, is_paired, limit,
    )  # fmt: skip
    try:
        if problem.direction == "bwd_filter":
            return plan_in_lines(request) if is_in_lines else wgrad_plan(request, limit=limit)
        return _correlation_in_lines(request) if is_in_lines else correlation_plan(request)
    except Refused as reason:
        return str(reason)


def _correlation_in_lines(request: ProductRequest) -> Plan:
    """The fastest by how long rows of shared memory are. Raises Refused."""
    geometry = geometry_of(request.problem)
    first, *shorter = rows_of_lines(
        geometry.in_channels, request.size, geometry.groups > 1, geometry.out_channels
    )
    best: Plan | None = None
    refused = Refused()
    try:
        best = correlation_plan(request, first)
        if geometry.out_channels < LEAST_COLUMNS:
            return replace(best, seconds=_FEW_COLUMNS * best.seconds)
    except Refused as reason:
        refused = reason
    for row in shorter:
        with contextlib.suppress(Refused):
            plan = correlation_plan(request, row)
            plan = replace(plan, seconds=_HALF_ROWS * plan.seconds)
            if best is None or plan.seconds < best.seconds:
                best = plan
    if best is None:
        raise refused
    return best
