"""Shapes of the implicit products as arguments of their kernels: the `Tables` of fprop_dgrad.cu and wgrad.cu."""

from __future__ import annotations

import math

from jitdnn.devices.tensor_map import Tables
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Geometry, PhaseAxis
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan, leaves_input
from jitdnn.kernels.cuda.gemm.code import initializer
from jitdnn.kernels.cuda.gemm.plan import Pack, linear_step, three
from jitdnn.kernels.cuda.gemm.shape import divisor, divisors, tables, work
from jitdnn.tensor import DTYPES

_ROOM = 32
"""Axes of stride phases that a structure of arguments has room for: a launch takes 4 KiB of them."""
_NOT_PACKED = -1


def axis_phases(geometry: Geometry, is_known: bool) -> tuple[list[tuple[PhaseAxis, ...]], int]:
    """The stride phases along each axis, those of most taps first; room for all of them, 0 if they are compiled in."""
    phases = [tuple(sorted(axis.phases, key=lambda one: -one.taps)) for axis in geometry.axes]
    count = sum(map(len, phases))
    return phases, count if count == len(phases) else _ROOM * (count <= _ROOM and not is_known)


def axis_phase_defines(geometry: Geometry, is_known: bool) -> list[tuple[str, object]]:
    """Macros of all `AxisPhase`s, which have no room in the structure or are those of a known shape."""
    phases, _ = axis_phases(geometry, is_known)
    rows = []
    for one in (one for axis in phases for one in axis):
        results, taps = (f"{{{initializer(divisor(number))}}}" for number in (one.results, one.taps))
        rows.append(f"{{{results}, {taps}, {one.first_result}, {one.data_offset}, {one.first_tap}}}")
    counts = [{one.results for one in axis} for axis in phases]
    is_same = is_known and all(len(numbers) == 1 for numbers in counts)
    same = [("SAME_RESULTS", initializer([number for numbers in counts for number in numbers]))]
    return [("AXIS_PHASE_TABLE", ", ".join(rows)), *(same if is_same else [])]


def _axis_phase(one: PhaseAxis) -> tuple[int, ...]:
    return (*divisor(one.results), *divisor(one.taps), one.first_result, one.data_offset, one.first_tap)


def _place(pack: Pack | None) -> int:
    return pack.offset if pack else _NOT_PACKED


def result_form(geometry: Geometry) -> tuple[int, int]:
    """Which pixels of the result lie evenly in memory, and their step: 2, all; 1, those of each image; 0, neither."""
    if len(geometry.phases) > 1:
        return 0, 0
    results, result = [axis.phases[0].results for axis in geometry.axes], geometry.result
    for form, step in (
        (2, linear_step((geometry.images, *results), (result.image, *result.space))),
        (1, linear_step(results, result.space)),
    ):
        if step is not None:
            return form, step
    return 0, 0


def fprop_data_step(geometry: Geometry) -> int | None:
    """Elements from pixel to pixel of the data, if a single tap meets all of them and they lie evenly; else None."""
    for axis in geometry.axes:
        one = axis.phases[0]
        if len(axis.phases) > 1 or (one.taps, one.data_offset, one.results) != (1, 0, axis.extent):
            return None
    extents = [axis.extent for axis in geometry.axes]
    return linear_step((geometry.images, *extents), (geometry.data.image, *geometry.data.space))


def tables_of(plan: Plan, is_known: bool) -> Tables:
    """The `Tables` of fprop_dgrad.cu."""
    geometry = plan.geometry
    phases, room = axis_phases(geometry, is_known)
    data, weights, result, axes = geometry.data, geometry.filter, geometry.result, geometry.axes
    counts = [len(axis) for axis in phases]
    every = [one for axis in phases for one in axis] if room else []
    every += [phases[0][0]] * (room - len(every))
    tile, size = plan.blocking.tile, DTYPES[plan.dtype]
    block = tile.k_bytes // size
    chunks = (tile.n * size if plan.is_mn_major else tile.k_bytes) // 16  # of a row of B, one a thread
    filter_row = weights.channel if plan.is_mn_major else weights.column
    data_outer, filter_outer, result_outer = geometry.outer
    return tables(
        work(plan.blocking, geometry.gemms, plan.partials_offset),
        len(geometry.phases),
        geometry.images,
        divisors(counts),
        (0, counts[0], counts[0] + counts[1]),
        divisor(geometry.in_channels),
        plan.filter_in_channels,
        divisor(geometry.in_channels // block),
        geometry.out_channels,
        plan.filter_out_channels,
        [axis.dilation for axis in axes],
        [axis.filter_step for axis in axes],
        [axis.input_stride for axis in axes],
        [axis.output_stride for axis in axes],
        [axis.extent for axis in axes],
        [axis.is_masked for axis in axes],
        divisor(geometry.inner or geometry.groups),
        (data.image, data.group, data.channel, *data.space, data_outer),
        (weights.group, weights.column, weights.channel, *weights.space, filter_outer),
        tile.threads // chunks * filter_row * size,
        (result.image, result.group, result.channel, *result.space, result_outer),
        fprop_data_step(geometry) or 0,
        result_form(geometry)[1],
        divisor(math.prod(axis.phases[0].results for axis in axes)),
        _place(plan.data_pack),
        _place(plan.filter_pack),
        [number for one in every for number in _axis_phase(one)],
    )


def known_shape(shape: Tables) -> tuple[str, str]:
    """The macro of the numbers where they are compiled in."""
    return "KNOWN_SHAPE", initializer(shape.numbers)


def wgrad_tables_of(plan: WgradPlan) -> Tables:
    """The `Tables` of wgrad.cu."""
    problem, dw, taps = plan.problem, plan.problem.w, plan.problem.filter_spatial
    results, extents = three(problem.output_spatial, 1), three(problem.spatial, 1)
    pixels, block = plan.gemm.k, plan.blocking.tile.k_bytes // DTYPES[problem.x.dtype]
    sign = -1 if problem.mode == "convolution" else 1
    # tap t of a flipped filter meets what tap taps - 1 - t of an unflipped one does: strides of dw are negated
    base = sum((n - 1) * s for n, s in zip(taps, dw.strides[2:], strict=True)) if sign < 0 else 0
    group = plan.batch.result if plan.batch else problem.k // problem.groups * dw.strides[0]
    return tables(
        work(plan.blocking, [plan.gemm], plan.partials_offset),
        pixels,
        -(-pixels // block),
        problem.k // problem.groups,
        plan.out_channels,
        problem.c // problem.groups,
        divisor(plan.in_channels),
        plan.gemm.n,
        divisors(results),
        extents,
        (plan.x.image, plan.x.group, plan.x.channel, *plan.x.space, data_step(plan) or 0),
        (plan.dy.image, plan.dy.group, plan.dy.channel, *plan.dy.space, outer_step(plan) or 0),
        (base, group, *dw.strides[:2], *three([sign * s for s in dw.strides[2:]], 0)),
        _place(plan.x_pack),
        _place(plan.dy_pack),
    )


def outer_step(plan: WgradPlan) -> int | None:
    """Elements from pixel to pixel of dy, if they are the same everywhere; else None."""
    problem = plan.problem
    return linear_step((problem.n, *three(problem.output_spatial, 1)), (plan.dy.image, *plan.dy.space))


def data_step(plan: WgradPlan) -> int | None:
    """The same of x, if a single tap meets all of them; else None."""
    problem = plan.problem
    if max(problem.filter_spatial) > 1 or max(problem.stride) > 1 or any(leaves_input(problem)):
        return None
    return linear_step((problem.n, *three(problem.spatial, 1)), (plan.x.image, *plan.x.space))
