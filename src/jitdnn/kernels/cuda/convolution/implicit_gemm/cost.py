"""The plan of an implicit product that is expected to be fastest: what is packed, the blocking, and its time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    Geometry,
    TensorStrides,
    alignments,
    geometry_of,
    pixel_strides,
    strides_of,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import PIXEL_BYTES, Plan, WgradPlan, wgrad_gemm
from jitdnn.kernels.cuda.cost import gemm_clock, narrow_store_seconds
from jitdnn.kernels.cuda.gemm import cost as gemm_cost
from jitdnn.kernels.cuda.gemm.cost import (
    best_blocking,
    least_pack_seconds,
    misalignment,
    pack_seconds,
    seconds,
    small_group_penalty,
)
from jitdnn.kernels.cuda.gemm.plan import Pack, Tile, copy_bytes, index_type, padded, three
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

_WIDEST_STORE = 8  # results
_WIDEST_COPY = 16  # bytes
_MAX_SPLITS = 64
_MAX_WGRAD_SPLITS = 512
_PIXEL_TABLE_BYTES = 2 * 64 * PIXEL_BYTES  # offset most
_ELEMENTWISE_PENALTY = 3.0  # how much longer a stage takes whose elements are copied one by one, a guess
_EMPTY_CYCLES = 900.0  # of a tile of zeros, of stride phases without taps, beside its bytes
_OF_HALVES = 1.2  # how much longer memory takes of 16 bits than copies
_LONG_ROW = 64  # bytes of a pixel, of which narrow copies are many
_WGRAD_OF_HALVES = 1.12  # how much longer memory takes of 16 bits, where gradients read two tensors
_FEW_CHANNELS, _WGRAD_OF_LARGE = 64, 1.2  # the same of more channels, or with strides
_K_MAJOR_FMA = 1.15  # how much longer multiply-adds take where both operands lie along K
_BLOCK_OF_CHANNELS, _WGRAD_OF_BLOCKS = 32, 1.25
"""The same where one tensor has no more than such a block, but half of it, x has whole ones, and L2 less than both."""
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
    plans = [_candidate(problem, device, tiles, uses_workspace, batch, False, False)]
    is_packed = uses_workspace and batch is None
    if is_packed and not _is_as_wide_as_can_be(plans[0], problem):
        plans += [
            _candidate(problem, device, tiles, uses_workspace, batch, *packs)
            for packs in ((True, False), (False, True), (True, True))
        ]
    if is_packed and problem.direction == "fwd" and tiles[0].is_fma:
        plans += [
            _candidate(problem, device, tiles, uses_workspace, batch, packs_data, True, is_across=True)
            for packs_data in (False, True)
        ]
    return min((plan for plan in plans if plan), key=lambda plan: plan.seconds)


def least_seconds(
    problem: Convolution, device: GpuDevice, tiles: tuple[Tile, ...], uses_workspace: bool
) -> float:
    """What the time of `plan_of`, of a problem without an empty tensor, does not come below."""
    geometry, dtype = geometry_of(problem), problem.x.dtype
    plain = _Packed.of(problem, device, geometry, False, False, False)
    copies, is_mn_major = plain.copies(dtype), plain.is_mn_major(dtype)
    moved = _bytes_of_memory(dtype, sum(tensor.nbytes for tensor in (problem.x, problem.w, problem.y)))
    least = gemm_cost.least_seconds(geometry.gemms, tiles, dtype, device, moved)
    access = _access_penalty(geometry, dtype, problem.groups, is_mn_major)
    found = least * _copy_penalty(geometry, dtype, copies) * access
    data = problem.x if problem.direction == "fwd" else problem.y
    if not uses_workspace:
        return found
    penalties = [_copy_penalty(geometry, dtype, (copy, copy)) for copy in copies]
    return _least_packed(found, least, penalties, (data, problem.w), device)


def _least_packed(
    plain: float,
    least: float,
    penalties: Sequence[float],
    tensors: Sequence[TensorDescriptor],
    device: GpuDevice,
) -> float:
    """The same where either operand, or both, may be packed, which leaves the penalty of the other one's copies."""
    first, second = (least_pack_seconds(tensor, device) for tensor in tensors)
    packed = first + penalties[1] * least, second + penalties[0] * least, first + second + least
    return min(plain, *packed)


def _bytes_of_memory(dtype: str, moved: int) -> int:
    """Bytes as memory takes them, which are not for the choice of a tile."""
    return int((_OF_HALVES if dtype in ("bf16", "f16") else 1.0) * moved)


def _is_as_wide_as_can_be(plan: Plan | None, problem: Convolution) -> bool:
    """Whether no copy of an operand would be faster to read: all come by 16 bytes, and begin with a sector."""
    if plan is None or plan.copy_a != plan.copy_b or plan.copy_a != _WIDEST_COPY:
        return False
    geometry, dtype = plan.geometry, plan.dtype
    extents = [axis.extent for axis in geometry.axes]
    steps = [*pixel_strides(geometry.data, geometry.images, extents), geometry.filter.column]
    return misalignment(dtype, geometry.in_channels, steps) == 1.0


@dataclass(frozen=True)
class _Packed:
    """Operands as the product reads them, packed or not, and the seconds that packing takes."""

    geometry: Geometry
    filter_in_channels: int
    filter_out_channels: int
    data: Pack | None = None
    filter: Pack | None = None
    seconds: float = 0.0

    @staticmethod
    def of(
        problem: Convolution,
        device: GpuDevice,
        geometry: Geometry,
        packs_data: bool,
        packs_filter: bool,
        is_across: bool,
    ) -> _Packed:
        """`is_across`: a forward filter is packed with the channels of the result innermost, as multiply-adds take it
        with fewer reads of registers.
        """
        is_forward = problem.direction == "fwd"
        made = _Packed(geometry, geometry.in_channels, geometry.out_channels)
        if packs_data:
            pack = Pack.of(problem.x if is_forward else problem.y, geometry.groups, 0)
            geometry = replace(geometry, in_channels=pack.padded_channels, data=TensorStrides.of(pack))
            made = replace(made, geometry=geometry, data=pack, seconds=pack_seconds(pack, device))
        if packs_filter:
            at = made.data.bytes if made.data else 0
            pack = Pack.of(_across(problem.w), problem.groups, at) if is_across else Pack.of(problem.w, 1, at)
            row, own_group, space = pack.strides
            column, channel = (1, row) if is_across or not is_forward else (row, 1)
            group = own_group if is_across else problem.k // problem.groups * row
            strides = replace(geometry.filter, group=group, column=column, channel=channel, space=space)
            made = replace(
                made,
                geometry=replace(geometry, filter=strides),
                filter_in_channels=made.filter_in_channels if column == 1 else pack.padded_channels,
                filter_out_channels=pack.padded_channels if column == 1 else made.filter_out_channels,
                filter=pack,
                seconds=made.seconds + pack_seconds(pack, device),
            )
        return made

    def is_mn_major(self, dtype: str) -> bool:
        """Whether neighbours in the filter's memory are channels of the result."""
        filter_strides = self.geometry.filter
        return filter_strides.channel != 1 and filter_strides.column == 1 and dtype != "i8"

    def copies(self, dtype: str) -> tuple[int, int]:
        """Bytes of a copy of the data and of one of the filter; 0 where they come by elements."""
        geometry, filter_strides = self.geometry, self.geometry.filter
        extents = [axis.extent for axis in geometry.axes]
        data_outer, filter_outer, _ = geometry.outer
        copy_a = copy_bytes(
            dtype,
            geometry.data.channel,
            (*alignments(geometry.data, geometry.in_channels, extents), data_outer),
        )
        outer = [
            stride
            for stride, axis in zip(filter_strides.space, geometry.axes, strict=True)
            if axis.max_taps > 1
        ]
        outer += [filter_strides.group, filter_outer]
        if self.is_mn_major(dtype):
            inner, multiples = filter_strides.column, [self.filter_out_channels, filter_strides.channel]
        else:
            inner = filter_strides.channel
            multiples = [geometry.in_channels, self.filter_in_channels, filter_strides.column]
        return copy_a, copy_bytes(dtype, inner, [*multiples, *outer])


def _across(filter: TensorDescriptor) -> TensorDescriptor:
    """The filter with its two axes of channels in the other order."""
    (k, c, *taps), (k_step, c_step, *steps) = filter.shape, filter.strides
    return TensorDescriptor((c, k, *taps), (c_step, k_step, *steps), filter.dtype)


def _store_width(geometry: Geometry, element: str) -> int:
    """Results of one store."""
    if DTYPES[element] not in (2, 4) or geometry.result.channel != 1:
        return 1
    result, outer = geometry.result, geometry.outer[2]
    return math.gcd(_WIDEST_STORE, geometry.out_channels, result.image, result.group, *result.space, outer)


def _copy_penalty(geometry: Geometry, dtype: str, copies: tuple[int, int]) -> float:
    """How much longer stages take whose copies are narrow."""
    is_long = geometry.in_channels * DTYPES[dtype] > _LONG_ROW
    penalties = {16: 1.0, 8: 1.8 if is_long else 1.15, 4: 2.1 if is_long else 1.4, 0: _ELEMENTWISE_PENALTY}
    return max(penalties[copy] for copy in copies)


def _access_penalty(geometry: Geometry, dtype: str, groups: int, is_mn_major: bool) -> float:
    """How much longer stages take whose rows begin inside of sectors, or that have few channels of a group."""
    extents = [axis.extent for axis in geometry.axes]
    steps = pixel_strides(geometry.data, geometry.images, extents)
    penalty = misalignment(dtype, geometry.in_channels, steps)
    penalty *= small_group_penalty(dtype, groups, geometry.in_channels)
    if not is_mn_major:
        penalty = max(penalty, misalignment(dtype, geometry.in_channels, [geometry.filter.column]))
    return penalty


def _candidate(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None,
    packs_data: bool,
    packs_filter: bool,
    is_across: bool = False,
) -> Plan | None:
    """The best blocking of the problem with these operands packed; None if packing does not widen the copies."""
    geometry, dtype = geometry_of(problem), problem.x.dtype
    if batch:
        geometry = geometry.repeated(batch)
    packed = _Packed.of(problem, device, geometry, packs_data, packs_filter, is_across)
    geometry, is_mn_major = packed.geometry, packed.is_mn_major(dtype)
    copy_a, copy_b = packed.copies(dtype)
    if (packs_data and not copy_a) or (packs_filter and not copy_b):
        return None
    operands = (problem.x, problem.w, problem.y)
    bytes_moved = batch.nbytes if batch else sum(tensor.nbytes for tensor in operands)
    max_splits = _MAX_SPLITS if uses_workspace and len(geometry.phases) == 1 else 1
    blocking = best_blocking(
        geometry.gemms, tiles, dtype, device, bytes_moved, max_splits, (geometry.max_taps + 1) * 32
    )
    time = packed.seconds + (
        seconds(geometry.gemms, blocking, dtype, device, _bytes_of_memory(dtype, bytes_moved))
        * _copy_penalty(geometry, dtype, (copy_a, copy_b))
        * _access_penalty(geometry, dtype, problem.groups, is_mn_major)
        * (_K_MAJOR_FMA if tiles[0].is_fma and not is_mn_major else 1.0)
    )
    empty = sum(blocking.tiles(gemm) * gemm.groups for gemm in geometry.gemms if gemm.k == 0)
    time += _EMPTY_CYCLES * empty / (device.multiprocessors * gemm_clock(device.facts))
    width = _store_width(geometry, problem.output.dtype)
    if width < _WIDEST_STORE and geometry.result.channel == 1:
        results = sum(gemm.m * gemm.n * gemm.groups for gemm in geometry.gemms)
        time += narrow_store_seconds(device.facts, results // width)
    copied = [pack.bytes // DTYPES[dtype] for pack in (packed.data, packed.filter) if pack]
    rows = max(gemm.m for gemm in geometry.gemms) + 4096
    index = index_type(batch.tensors if batch else operands, rows, *copied)
    return Plan(
        geometry, dtype, packed.data, packed.filter, blocking, copy_a, copy_b, is_mn_major, width,
        geometry.result.channel != 1, packed.filter_in_channels, packed.filter_out_channels, index, time,
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
    plans = [_wgrad_candidate(problem, device, tiles, uses_workspace, batch, False, False)]
    is_widest = plans[0] is not None and plans[0].copy_a == plans[0].copy_b == _WIDEST_COPY
    if uses_workspace and problem.n and batch is None and not is_widest:
        plans += [
            _wgrad_candidate(problem, device, tiles, uses_workspace, batch, *packs)
            for packs in ((True, False), (False, True), (True, True))
        ]
    return min((plan for plan in plans if plan), key=lambda plan: plan.seconds)


def _wgrad_candidate(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    batch: Batch | None,
    packs_x: bool,
    packs_dy: bool,
) -> WgradPlan | None:
    """The best blocking of the problem with these operands packed; None if packing does not widen the copies."""
    dtype, groups = problem.x.dtype, problem.groups
    x, dy = strides_of(problem.x, groups), strides_of(problem.y, groups)
    if batch:
        x, dy = replace(x, group=batch.data), replace(dy, group=batch.filter)
    in_channels, out_channels = problem.c // groups, problem.k // groups
    x_pack = dy_pack = None
    time, at = 0.0, 0
    if packs_x:
        x_pack = Pack.of(problem.x, groups, at)
        x, in_channels = TensorStrides.of(x_pack), x_pack.padded_channels
        time, at = pack_seconds(x_pack, device), x_pack.bytes
    if packs_dy:
        dy_pack = Pack.of(problem.y, groups, at)
        dy, out_channels = TensorStrides.of(dy_pack), dy_pack.padded_channels
        time += pack_seconds(dy_pack, device)
    copy_a = copy_bytes(dtype, dy.channel, alignments(dy, out_channels, three(problem.output_spatial, 1)))
    copy_b = copy_bytes(dtype, x.channel, alignments(x, in_channels, three(problem.spatial, 1)))
    if (packs_dy and not copy_a) or (packs_x and not copy_b):
        return None
    dw, taps = problem.w, math.prod(problem.filter_spatial)
    columns = taps * in_channels
    run = 8
    is_vector = (
        in_channels == problem.c // groups
        and dw.shape[0] * columns == dw.size
        and _is_run(dw.strides[2:], dw.shape[2:], dw.strides[1], in_channels)
        and columns % run == 0
        and dw.strides[0] % run == 0
        and (batch is None or batch.result % run == 0)
    )
    gemm = wgrad_gemm(problem, in_channels, batch.count if batch else groups)
    tensors = batch.tensors if batch else (problem.x, problem.y, dw)
    bytes_moved = sum(tensor.nbytes for tensor in tensors)
    blocking = best_blocking(
        [gemm],
        tiles,
        dtype,
        device,
        bytes_moved,
        _MAX_WGRAD_SPLITS if uses_workspace else 1,
        _PIXEL_TABLE_BYTES,
        True,
    )
    penalty = small_group_penalty(dtype, groups, in_channels)
    time += (
        seconds([gemm], blocking, dtype, device, _wgrad_bytes_of_memory(problem, device, bytes_moved), True)
        * max(_WGRAD_COPY_PENALTY[copy_a], _WGRAD_COPY_PENALTY[copy_b])
        * penalty
    )
    packed = [pack.bytes // DTYPES[dtype] for pack in (x_pack, dy_pack) if pack]
    index = index_type(tensors, gemm.k + 4096, *packed)
    return WgradPlan(
        problem,
        batch,
        x,
        dy,
        in_channels,
        out_channels,
        x_pack,
        dy_pack,
        blocking,
        copy_a,
        copy_b,
        is_vector,
        index,
        time,
    )


def _wgrad_bytes_of_memory(problem: Convolution, device: GpuDevice, moved: int) -> int:
    """Bytes as memory takes them, which are not for the choice of a tile."""
    if problem.x.dtype == "f32":
        return moved
    fewer, more = sorted((problem.c, problem.k))
    is_large = max(problem.stride) > 1 or (fewer >= _FEW_CHANNELS and more > _FEW_CHANNELS)
    is_block = _BLOCK_OF_CHANNELS / 2 < fewer <= _BLOCK_OF_CHANNELS
    has_blocks = is_block and problem.c % _BLOCK_OF_CHANNELS == 0 and moved > device.facts.l2_bytes
    slowness = _WGRAD_OF_BLOCKS if has_blocks else _WGRAD_OF_LARGE if is_large else _WGRAD_OF_HALVES
    return int(slowness * moved)


def least_wgrad_seconds(
    problem: Convolution, device: GpuDevice, tiles: tuple[Tile, ...], uses_workspace: bool
) -> float:
    """What the time of `wgrad_plan_of`, of a problem without an empty tensor, does not come below."""
    dtype, groups, c = problem.x.dtype, problem.groups, problem.c // problem.groups
    moved = sum(tensor.nbytes for tensor in (problem.x, problem.y, problem.w))
    moved = _wgrad_bytes_of_memory(problem, device, moved)
    least = gemm_cost.least_seconds((wgrad_gemm(problem, c, groups),), tiles, dtype, device, moved, True)
    least *= small_group_penalty(dtype, groups, padded(c, dtype))
    penalties = [
        _WGRAD_COPY_PENALTY[copy_bytes(dtype, of.channel, alignments(of, channels, three(extents, 1)))]
        for of, channels, extents in (
            (strides_of(problem.x, groups), c, problem.spatial),
            (strides_of(problem.y, groups), problem.k // groups, problem.output_spatial),
        )
    ]
    plain = max(penalties) * least
    return _least_packed(plain, least, penalties, (problem.x, problem.y), device) if uses_workspace else plain


def _is_run(strides: tuple[int, ...], extents: tuple[int, ...], channel: int, channels: int) -> bool:
    """True if the taps, with their channels inside, are contiguous."""
    step = channels
    for stride, extent in zip(reversed(strides), reversed(extents), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return channel == 1 or channels == 1
