"""The plan of an implicit product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    Geometry,
    GeometryAxis,
    PhaseAxis,
    geometry_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import (
    HEADER_BYTES,
    MAX_STEP,
    NO_PACK,
    ROWS,
    Operand,
    Pack,
    filter_map,
    fits_offsets,
    pixel_map,
    result_map,
    rows_map,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.cost import narrow_store_seconds
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.kernels.cuda.warpgroup.cost import LAUNCH_SECONDS, best_blocking
from jitdnn.kernels.cuda.warpgroup.plan import STAGE_ROW, Products, Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES

MAX_PHASES = 8
_MAX_SPLITS = 16
_MAX_WGRAD_SPLITS = 256
_ROW_COST = {128: 1.0, 64: 0.66, 32: 0.62}
"""Of a row of so many bytes: to the copy engine they are alike, and products of short ones take less."""
_Three = tuple[int, int, int]
_Packs = tuple[Pack | None, Pack | None]
_PACK_BLOCK_SECONDS = 0.5e-6  # of a multiprocessor, for each thread block that packs, as seen of few channels
_NEEDS_WORKSPACE = "an operand must be packed, which takes workspace"


@dataclass(frozen=True)
class Axis:
    """An axis of a stride phase, its taps in the order of rising positions; see `Axis` of tables.cuh."""

    results: int
    base: int
    input_stride: int
    taps: int
    dilation: int
    first_tap: int
    tap_step: int
    first_result: int
    result_stride: int

    @staticmethod
    def of(axis: GeometryAxis, phase: PhaseAxis) -> Axis:
        dilation, step, first, base = axis.dilation, axis.filter_step, phase.first_tap, phase.data_offset
        if dilation < 0 or phase.taps <= 1:  # from the last tap to the first: positions rise
            base += dilation * max(0, phase.taps - 1)
            first += step * max(0, phase.taps - 1)
            dilation, step = -dilation, -step
        return Axis(
            phase.results, base, axis.input_stride, phase.taps, abs(dilation), first, step,
            phase.first_result, axis.output_stride,
        )  # fmt: skip

    @property
    def numbers(self) -> tuple[int, ...]:
        return (
            self.results, self.base, self.input_stride, self.taps, self.dilation, self.first_tap, self.tap_step,
            self.first_result, self.result_stride,
        )  # fmt: skip

    @property
    def reach(self) -> int:
        """The largest offset of a tap."""
        return max(0, self.taps - 1) * self.dilation


def unplannable(problem: Convolution, is_scaled: bool = False) -> str | None:
    """Why no plan exists whatever the device, in words a user can act on; None if one may."""
    size = _element_bytes(problem, is_scaled)
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
) -> Plan | str:
    """The plan that is expected to be fastest, of the problem or of a batch of such; or why there is none.

    `is_scaled`: f32 numbers are multiplied as f16, times a power of two; with two `parts` they always are.
    """
    is_scaled = is_scaled or parts == 2
    if problem.direction == "bwd_filter":
        return _wgrad_plan(problem, device, tiles, uses_workspace, parts, is_scaled, batch, fusion)
    return _correlation_plan(problem, device, tiles, uses_workspace, parts, is_scaled, batch, fusion)


def _row_bytes(channels: int, size: int, is_exact: bool) -> int:
    """Of the rows in which channels are brought. `is_exact`: behind them there are those of another group."""
    choices = [row for row in ROWS if not is_exact or channels * size % row == 0]
    return min(choices, key=lambda row: -(-channels * size // row) * _ROW_COST[row])


def _rank(extent: int, axes: Sequence[Axis]) -> int:
    """Of the maps of pixels: 4 where the outermost axis of space has one position, one tap and no padding; else 5."""
    return 4 if extent == 1 and all((axis.results, axis.taps, axis.base) == (1, 1, 0) for axis in axes) else 5


def _packed(
    first: Operand, second: Operand, parts: int, is_scaled: bool, is_widened: bool = False
) -> tuple[_Packs, int]:
    """The packs of operands that are not read directly, and the bytes of the workspace up to their end.

    `is_widened`: both are copied as f16.
    """
    packs: list[Pack | None] = []
    at = HEADER_BYTES if is_scaled else 0
    for operand in (first, second):
        is_read = operand.is_direct and not is_scaled and not is_widened
        pack = None if is_read else Pack(operand, at, parts, is_widened, is_scaled)
        packs.append(pack)
        at += pack.bytes if pack else 0
    return (packs[0], packs[1]), at


def _parts_of(operand: Operand, pack: Pack | None) -> tuple[Operand, ...]:
    """What is multiplied of an operand: itself, or its copies."""
    return tuple(pack.operand(part) for part in range(pack.parts)) if pack else (operand,)


def _pack_numbers(packs: _Packs) -> tuple[int, ...]:
    return tuple(number for pack in packs for number in (pack.numbers if pack else NO_PACK))


def _pack_seconds(packs: _Packs, device: GpuDevice) -> float:
    """Expected time of packing."""
    time = 0.0
    for pack in packs:
        if pack:
            one = pack.source
            read = one.pixels * one.channels * one.size
            moved = read + pack.bytes
            if pack.is_scaled:  # the largest number is looked for first, and what fits stays in L2
                moved += read
            time += 1.3 * moved / device.bandwidth
            if not pack.is_flat:
                time += pack.blocks * _PACK_BLOCK_SECONDS / device.multiprocessors
    if any(packs):
        time += (2 if any(pack and pack.is_scaled for pack in packs) else 1) * LAUNCH_SECONDS
    return time


def _batched(operand: Operand, batch: Batch | None, step: int) -> Operand:
    """The operand of one product as that of all: the products are its images."""
    return replace(operand, images=batch.count, image=step) if batch else operand


def _correlation_plan(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int,
    is_scaled: bool,
    batch: Batch | None,
    fusion: Fusion,
) -> Plan | str:
    geometry = geometry_of(problem)
    is_forward = problem.direction == "fwd"
    data_tensor, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    size, result_bytes = _element_bytes(problem, is_scaled), DTYPES[result.dtype]
    is_promoted = parts == 2 or problem.has_float8
    data = _batched(Operand.of(data_tensor, 0), batch, batch.data if batch else 0)
    weights, along_columns = _filter_of(problem, batch)
    is_mn_major = not is_scaled and size == 2 and not weights.is_direct and along_columns.is_direct
    # boxes begin at multiples of 16 bytes, so groups must
    is_mn_major = is_mn_major and _filter_steps(geometry, is_forward, batch)[0] * size % ALIGNMENT == 0
    if is_mn_major:
        weights = along_columns
    # a packed filter has the channels that are summed innermost
    packs, at = _packed(data, weights, parts, is_scaled)
    if any(packs) and not uses_workspace:
        return _NEEDS_WORKSPACE
    a, b = _parts_of(data, packs[0]), _parts_of(weights, packs[1])
    phases = [
        tuple(Axis.of(axis, one) for axis, one in zip(geometry.axes, phase, strict=True))
        for phase in geometry.phases
    ]
    rank = _rank(data.extents[0], [axes[0] for axes in phases])
    if not all(fits_offsets(rank, [axis.reach for axis in axes]) for axes in phases):
        return "taps are farther apart than the copy engine takes"
    row_bytes = _row_bytes(geometry.in_channels, size, geometry.groups > 1)
    channel_blocks = -(-geometry.in_channels * size // row_bytes)
    rows = [geometry.images * math.prod(axis.results for axis in axes) for axes in phases]
    pieces = [channel_blocks * math.prod(axis.taps for axis in axes) for axes in phases]
    blocks = [-(-count * row_bytes // STAGE_ROW) for count in pieces]
    groups = batch.count if batch else geometry.groups
    products = Products(tuple(rows), tuple(blocks), geometry.out_channels, groups)
    bytes_moved = batch.nbytes if batch else _bytes_moved(problem)
    max_splits = _MAX_SPLITS if uses_workspace and max(blocks) > 1 else 1
    if is_mn_major:  # columns come in blocks of 64, and a part of one takes as long
        tiles = tuple(tile for tile in tiles if tile.wn % 64 == 0)
    tiles = fusion.tiles(tiles, result_bytes, False)
    found = best_blocking(
        products,
        tiles,
        device,
        bytes_moved,
        result_bytes,
        parts,
        max_splits,
        row_bytes,
        False,
        is_promoted,
        fusion.shared,
        finish=fusion.finish,
    )
    if not found:
        return "no tile fits into the shared memory of the device"
    blocking, seconds = found
    tile = blocking.tile
    maps: list[TensorMap] = []
    for axes in phases:
        base, results, steps = (
            _three_of(getattr(axis, name) for axis in axes) for name in ("base", "results", "input_stride")
        )
        for part in a:
            one = pixel_map(part, rank, base, results, steps, row_bytes, tile.m)
            if one is None:
                return "windows begin farther outside of the image than the copy engine takes"
            maps.append(one)
    inner = row_bytes // size
    maps += [filter_map(part, 64, inner) if is_mn_major else filter_map(part, inner, tile.wn) for part in b]
    strides = geometry.result
    multiples = [geometry.out_channels, strides.image, strides.group, *strides.space]
    is_vector = strides.channel == 1 and all(n * result_bytes % ALIGNMENT == 0 for n in multiples)
    if batch:
        is_vector = is_vector and batch.result * result_bytes % ALIGNMENT == 0
    if strides.channel == 1 and not is_vector and not blocking.is_split:
        seconds += narrow_store_seconds(device.facts, sum(rows) * geometry.out_channels * groups)
    boxes = None
    if is_vector and len(phases) == 1 and not blocking.is_split:
        extents_of_result = (geometry.images, *(axis.results for axis in phases[0]))
        row_step = linear_step(extents_of_result, (strides.image, *strides.space))
        group_step = batch.result if batch else strides.group
        columns = tile.chunk_bytes(result_bytes) // result_bytes
        boxes = result_map(
            result.dtype, geometry.out_channels, groups, group_step, rows[0], row_step, columns
        )
    if boxes:
        maps.append(boxes)
    works = blocking.works(products)
    room = -(-(at + blocking.partial_bytes(products)) // 256) * 256
    sum_rows = fusion.sum_rows(blocking, works, products.tiles_m(tile), device.multiprocessors)
    channels = groups * geometry.out_channels
    tiles_before = 0
    phase_numbers: list[int] = []
    for n, axes in zip(rows, phases, strict=True):
        phase_numbers += [tiles_before, n, *(number for axis in axes for number in axis.numbers)]
        tiles_before += -(-n // tile.m)
    numbers = (
        *phase_numbers,
        works, blocking.splits, groups, products.tiles_m(tile), products.tiles_n(tile), blocking.blocks_of_split,
        max(rows), geometry.out_channels, geometry.in_channels, channel_blocks,
        0 if batch else geometry.in_channels, 1 if batch else 0, *_filter_steps(geometry, is_forward, batch),
        rank == 5, 0, 0,
        at, 0, strides.image, batch.result if batch else strides.group, 0, strides.channel, *strides.space,
        *_pack_numbers(packs), 0, 0, 0, 0, *data.extents, fusion.channels, room, sum_rows,
    )  # fmt: skip
    return Plan(
        False, _dtypes(problem), result.dtype, rank, len(phases), is_mn_major, is_vector,
        strides.channel != 1 and not blocking.is_split, boxes is not None, row_bytes, blocking,
        works, packs, Tables(tuple(maps), numbers),
        (room + 8 * sum_rows * channels) if sum_rows else at + blocking.partial_bytes(products),
        fusion.seconds(seconds, False) + _pack_seconds(packs, device), fusion, channels,
    )  # fmt: skip


def _three_of(numbers: Iterable[int]) -> _Three:
    a, b, c = numbers
    return a, b, c


def _element_bytes(problem: Convolution, is_scaled: bool) -> int:
    """Of what is multiplied."""
    is_widened = problem.direction == "bwd_filter" and problem.has_float8
    return 2 if is_scaled or is_widened else DTYPES[_dtypes(problem)[0]]


def _dtypes(problem: Convolution) -> tuple[str, str]:
    """The types of the operands."""
    first, second = (operand.descriptor.dtype for operand in problem.inputs)
    return first, second


def _bytes_moved(problem: Convolution) -> int:
    """From and to memory: of an x that is read, what taps meet where they are fewer than the stride."""
    x = problem.x.nbytes
    if problem.direction != "bwd_data":
        for taps, stride in zip(problem.filter_spatial, problem.stride, strict=True):
            x = x * min(taps, stride) // stride
    return x + problem.w.nbytes + problem.y.nbytes


def _filter_of(problem: Convolution, batch: Batch | None) -> tuple[Operand, Operand]:
    """The filter with the channels that are summed as its channels, and with those of the columns."""
    weights = Operand.of(problem.w, 1)
    if batch:  # one tap, in whose place the products are
        weights = replace(weights, extents=(batch.count, 1, 1), space=(batch.filter, 0, 0))
    swapped = replace(
        weights,
        images=weights.channels,
        channels=weights.images,
        image=weights.channel,
        channel=weights.image,
    )
    return (weights, swapped) if problem.direction == "fwd" else (swapped, weights)


def _filter_steps(geometry: Geometry, is_forward: bool, batch: Batch | None) -> tuple[int, int, int]:
    """From group to group in the coordinates of the filter: columns, channels that are summed, outermost axis."""
    if batch:
        return 0, 0, 1
    return (geometry.out_channels, 0, 0) if is_forward else (0, geometry.in_channels, 0)


def _wgrad_plan(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int,
    is_scaled: bool,
    batch: Batch | None,
    fusion: Fusion,
) -> Plan | str:
    groups = batch.count if batch else problem.groups
    size, result_bytes = _element_bytes(problem, is_scaled), DTYPES[problem.w.dtype]
    if size != 2:
        return f"products of {problem.x.dtype} tensors are read along K alone, and K runs over pixels here"
    x = _batched(Operand.of(problem.x, 0), batch, batch.data if batch else 0)
    dy = _batched(Operand.of(problem.y, 1), batch, batch.filter if batch else 0)
    packs, at = _packed(x, dy, parts, is_scaled, problem.has_float8)
    if any(packs) and not uses_workspace:
        return _NEEDS_WORKSPACE
    b, a = _parts_of(x, packs[0]), _parts_of(dy, packs[1])
    outputs, taps = three(problem.output_spatial, 1), three(problem.filter_spatial, 1)
    strides, dilation = three(problem.stride, 1), three(problem.dilation, 1)
    before = three([n for n, _ in problem.padding], 0)
    axes = tuple(Axis(outputs[n], -before[n], strides[n], taps[n], dilation[n], 0, 1, 0, 1) for n in range(3))
    rank = _rank(x.extents[0], axes[:1])
    if not fits_offsets(rank, [axis.reach for axis in axes]):
        return "taps are farther apart than the copy engine takes"
    block = STAGE_ROW // size
    out_channels, in_channels = problem.k // problem.groups, problem.c // problem.groups
    channel_blocks = -(-in_channels // 64)
    columns = math.prod(taps) * channel_blocks * 64
    pixels = problem.n * math.prod(outputs)
    products = Products((out_channels,), (-(-pixels // block),), columns, groups)
    bytes_moved = batch.nbytes if batch else _bytes_moved(problem)
    max_splits = _MAX_WGRAD_SPLITS if uses_workspace else 1
    # columns come in blocks of 64, behind each of which another tap may begin: no chunk of results is longer
    tiles = tuple(
        tile for tile in tiles if tile.wn % 64 == 0 and tile.chunk_bytes(result_bytes) // result_bytes <= 64
    )
    tiles = fusion.tiles(tiles, result_bytes, True)
    found = best_blocking(
        products,
        tiles,
        device,
        bytes_moved,
        result_bytes,
        parts,
        max_splits,
        STAGE_ROW,
        True,
        parts == 2,
        fusion.shared,
        fusion.has_prologue,
    )
    if not found:
        return "no tile fits into the shared memory of the device"
    blocking, seconds = found
    tile = blocking.tile
    ones = (1, 1, 1)
    base = (-before[0], -before[1], -before[2])
    is_plain = taps == ones and strides == ones and base == (0, 0, 0) and x.extents == outputs
    maps_of_a = [rows_map(part, STAGE_ROW, block, batch is not None) for part in a]
    maps_of_b = [rows_map(part, STAGE_ROW, block, batch is not None) for part in b] if is_plain else [None]
    is_a_linear, is_b_linear = all(maps_of_a), all(maps_of_b)
    if not is_a_linear:
        maps_of_a = [pixel_map(part, rank, (0, 0, 0), outputs, ones, STAGE_ROW, block) for part in a]
    if not is_b_linear:
        maps_of_b = [pixel_map(part, rank, base, outputs, strides, STAGE_ROW, block) for part in b]
    maps = tuple(one for one in (*maps_of_a, *maps_of_b) if one)
    if len(maps) < 2 * parts:
        return "windows begin farther outside of the image than the copy engine takes"
    dw = problem.w
    row, column, *space = dw.strides
    sign = -1 if problem.mode == "convolution" else 1
    first = sum((n - 1) * s for n, s in zip(problem.filter_spatial, space, strict=True)) if sign < 0 else 0
    tap_space = three([sign * s for s in space], 0)
    group = batch.result if batch else out_channels * row
    used = [s for s, n in zip(space, problem.filter_spatial, strict=True) if n > 1]
    multiples = [in_channels, row, group, first, *used]
    is_vector = column == 1 and all(n * result_bytes % ALIGNMENT == 0 for n in multiples)
    boxes = None
    if (
        is_vector
        and not blocking.is_split
        and not batch
        and (groups == 1 or out_channels % 64 == 0)
        and sign > 0
    ):
        tap_step = linear_step(problem.filter_spatial, space)
        box_columns = tile.chunk_bytes(result_bytes) // result_bytes
        if tap_step is not None:
            boxes = result_map(
                dw.dtype, in_channels, math.prod(taps), tap_step, groups * out_channels, row, box_columns
            )
    if boxes:
        maps = (*maps, boxes)
    works = blocking.works(products)
    numbers = (
        0, pixels, *(number for axis in axes for number in axis.numbers),
        works, blocking.splits, groups, products.tiles_m(tile), products.tiles_n(tile), blocking.blocks_of_split,
        out_channels, columns, in_channels, channel_blocks,
        0 if batch else out_channels, 1 if batch else 0, 0 if batch else in_channels, 0, 1 if batch else 0,
        rank == 5, is_a_linear, is_b_linear,
        at, 0, 0, group, row, column, 0, 0, 0,
        *_pack_numbers(packs), first, *tap_space, *x.extents, fusion.channels, 0, 0,
    )  # fmt: skip
    return Plan(
        True, _dtypes(problem), dw.dtype, rank, 1, True, is_vector, column != 1 and not blocking.is_split,
        boxes is not None, STAGE_ROW, blocking, works, packs, Tables(maps, numbers),
        at + blocking.partial_bytes(products),
        fusion.seconds(seconds, True) + _pack_seconds(packs, device), fusion,
    )  # fmt: skip
