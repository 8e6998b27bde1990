"""The plan of an implicit product that is expected to be fastest: what is packed, the blocking, and its time."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    View,
    alignments,
    form_of,
    rows_of,
    view_of,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import PIXEL_BYTES, Plan, WgradPlan, wgrad_gemm
from jitdnn.kernels.cuda.gemm.cost import best_cut, crossing, narrowness, pack_seconds, seconds
from jitdnn.kernels.cuda.gemm.plan import Pack, Tile, copy_bytes, index_type, three
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES

_MAX_SPLITS = 64
_MAX_WGRAD_SPLITS = 512
_PIXEL_TABLE_BYTES = 2 * 64 * PIXEL_BYTES  # at most
_ELEMENTWISE_PENALTY = 3.0  # how much longer a stage takes whose elements are copied one by one, a guess
_WGRAD_COPY_PENALTY = {
    16: 1.0,
    8: 1.15,
    4: 1.4,
    0: 4.0,
}  # how much longer stages take by the width of copies, a guess


@lru_cache(512)
def plan_of(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None = None,
) -> Plan:
    """The plan that is expected to be fastest, of the problem or of a batch of such."""
    choices = [(False, False)]
    if uses_workspace and batch is None:
        choices += [(True, False), (False, True), (True, True)]
    plans = [_candidate(problem, device, tiles, uses_workspace, batch, *choice) for choice in choices]
    return min((plan for plan in plans if plan), key=lambda plan: plan.seconds)


def _candidate(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None,
    packs_data: bool,
    packs_filter: bool,
) -> Plan | None:
    """The best cut of the problem with these operands packed; None if that is no choice."""
    form, dtype = form_of(problem), problem.x.dtype
    if batch:
        form = form.repeated(batch)
    is_forward = problem.direction == "fwd"
    data, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    filter_depth, filter_columns, time, at = form.depth, form.width, 0.0, 0
    data_pack = filter_pack = None
    if packs_data:
        data_pack = Pack.of(data, form.groups, 0)
        form = replace(form, depth=data_pack.wide, data=View.of(data_pack))
        at, time = data_pack.bytes, pack_seconds(data_pack, device)
    if packs_filter:
        filter_pack = Pack.of(problem.w, 1, at)
        wide = filter_pack.wide
        row, _, space = filter_pack.strides
        column, channel = (row, 1) if is_forward else (1, row)
        group = problem.k // problem.groups * row
        form = replace(
            form, filter=replace(form.filter, group=group, column=column, channel=channel, space=space)
        )
        if is_forward:
            filter_depth = wide
        else:
            filter_columns = wide
        time += pack_seconds(filter_pack, device)
    extents = [axis.extent for axis in form.axes]
    copy_a = copy_bytes(dtype, form.data.channel, alignments(form.data, form.depth, extents))
    is_across = form.filter.channel != 1 and form.filter.column == 1 and dtype != "i8"
    taps = [
        s for s, n in zip(form.filter.space, (axis.most_taps for axis in form.axes), strict=True) if n > 1
    ]
    if is_across:
        multiples = [filter_columns, form.filter.channel, form.filter.group, *taps]
    else:
        multiples = [form.depth, filter_depth, form.filter.column, form.filter.group, *taps]
    copy_b = copy_bytes(dtype, form.filter.column if is_across else form.filter.channel, multiples)
    if (packs_data and not copy_a) or (packs_filter and not copy_b):
        return None
    element = result.dtype
    run = 8 if DTYPES[element] in (2, 4) else 0
    multiples = [form.width, form.result.image, form.result.group, *form.result.space]
    is_vector = run > 0 and form.result.channel == 1 and all(n % run == 0 for n in multiples)
    rows_first = form.result.channel != 1
    most_parts = _MAX_SPLITS if uses_workspace and len(form.classes) == 1 else 1
    moved = batch.nbytes if batch else data.nbytes + problem.w.nbytes + result.nbytes
    cut = best_cut(form.works, tiles, dtype, device, moved, most_parts, (form.most_taps + 1) * 32)
    slow = {16: 1.0, 8: 1.15, 4: 1.4, 0: _ELEMENTWISE_PENALTY}
    crossed = crossing(dtype, form.depth, rows_of(form.data, form.images, extents))
    crossed *= narrowness(dtype, problem.groups, form.depth)
    if not is_across:
        crossed = max(crossed, crossing(dtype, form.depth, [form.filter.column]))
    time += seconds(form.works, cut, dtype, device, moved) * max(slow[copy_a], slow[copy_b]) * crossed
    tensors = batch.tensors if batch else (problem.x, problem.w, problem.y)
    packed = [pack.bytes // DTYPES[dtype] for pack in (data_pack, filter_pack) if pack]
    rows = max(work.rows for work in form.works) + 4096
    return Plan(
        form, dtype, data_pack, filter_pack, cut, copy_a, copy_b, is_across, is_vector, rows_first, filter_depth,
        filter_columns, index_type(tensors, rows, *packed), time,
    )  # fmt: skip


@lru_cache(512)
def wgrad_plan_of(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None = None,
) -> WgradPlan:
    """The plan that is expected to be fastest, of the problem or of a batch of such."""
    choices = [(False, False)]
    if uses_workspace and problem.n and batch is None:
        choices += [(True, False), (False, True), (True, True)]
    plans = [_wgrad_candidate(problem, device, tiles, uses_workspace, batch, *choice) for choice in choices]
    return min((plan for plan in plans if plan), key=lambda plan: plan.seconds)


def _wgrad_candidate(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None,
    packs_data: bool,
    packs_outer: bool,
) -> WgradPlan | None:
    """The best cut of the problem with these operands packed; None if that is no choice."""
    dtype, groups = problem.x.dtype, problem.groups
    data, outer = view_of(problem.x, groups), view_of(problem.y, groups)
    if batch:
        data, outer = replace(data, group=batch.data), replace(outer, group=batch.filter)
    depth, height = problem.c // groups, problem.k // groups
    data_pack = outer_pack = None
    time, at = 0.0, 0
    if packs_data:
        data_pack = Pack.of(problem.x, groups, at)
        data, depth = View.of(data_pack), data_pack.wide
        time, at = pack_seconds(data_pack, device), data_pack.bytes
    if packs_outer:
        outer_pack = Pack.of(problem.y, groups, at)
        outer, height = View.of(outer_pack), outer_pack.wide
        time += pack_seconds(outer_pack, device)
    copy_a = copy_bytes(dtype, outer.channel, alignments(outer, height, three(problem.output_spatial, 1)))
    copy_b = copy_bytes(dtype, data.channel, alignments(data, depth, three(problem.spatial, 1)))
    if (packs_outer and not copy_a) or (packs_data and not copy_b):
        return None
    dw, taps = problem.w, math.prod(problem.filter_spatial)
    columns = taps * depth
    run = 8
    is_vector = (
        depth == problem.c // groups
        and dw.shape[0] * columns == dw.size
        and _is_run(dw.strides[2:], dw.shape[2:], dw.strides[1], depth)
        and columns % run == 0
        and dw.strides[0] % run == 0
        and (batch is None or batch.result % run == 0)
    )
    work = wgrad_gemm(problem, depth, batch.count if batch else groups)
    tensors = batch.tensors if batch else (problem.x, problem.y, dw)
    moved = sum(tensor.nbytes for tensor in tensors)
    cut = best_cut(
        [work],
        tiles,
        dtype,
        device,
        moved,
        _MAX_WGRAD_SPLITS if uses_workspace else 1,
        _PIXEL_TABLE_BYTES,
        True,
    )
    narrow = narrowness(dtype, groups, depth)
    time += (
        seconds([work], cut, dtype, device, moved, True)
        * max(_WGRAD_COPY_PENALTY[copy_a], _WGRAD_COPY_PENALTY[copy_b])
        * narrow
    )
    packed = [pack.bytes // DTYPES[dtype] for pack in (data_pack, outer_pack) if pack]
    index = index_type(tensors, work.k + 4096, *packed)
    return WgradPlan(
        problem,
        batch,
        data,
        outer,
        depth,
        height,
        data_pack,
        outer_pack,
        cut,
        copy_a,
        copy_b,
        is_vector,
        index,
        time,
    )


def _is_run(strides: tuple[int, ...], extents: tuple[int, ...], channel: int, channels: int) -> bool:
    """True if taps, with channels inside, are one run of memory."""
    step = channels
    for stride, extent in zip(reversed(strides), reversed(extents), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return channel == 1 or channels == 1
