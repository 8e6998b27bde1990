"""The plan of an implicit product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    geometry_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import (
    BLOCK,
    MAX_STEP,
    ROWS,
    Operand,
    Pack,
    filter_map,
    filter_maps_across,
    fits_offsets,
    pixel_map,
    result_map,
    rows_map,
    whole_map,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.order import (
    depths,
    one_depth,
    turn_of,
    used_steps,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import (
    NEEDS_WORKSPACE,
    Axis,
    batched,
    dtypes,
    element_bytes,
    filter_of,
    filter_steps,
    moved_bytes,
    pack_numbers,
    pack_seconds,
    packed,
    parts_of,
    rank_of,
    three_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import MAX_PHASES, Plan, phases_of_code
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.rows import (
    LEAST_COLUMNS,
    lines_of,
    neighbours_of,
    padding_of,
    rows_of,
    rows_of_lines,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad import plan_in_lines, wgrad_plan
from jitdnn.kernels.cuda.cost import SECTOR_BYTES, narrow_store_seconds
from jitdnn.kernels.cuda.gemm.plan import linear_step
from jitdnn.kernels.cuda.warpgroup.best import best_blocking
from jitdnn.kernels.cuda.warpgroup.cost import MUCH_PADDING
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Products
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES, SHARED_PRODUCTS, STAGE_ROW, WHOLE, Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES

MAX_PACKED = 2**32
_NEVER = 2**30  # behind all tiles
_MOST_FINISHED = 160  # sums of a thread, beside which there are registers for an epilogue
_MAX_SPLITS = 16
_WHOLE = frozenset(WHOLE)
_HALF_ROWS = 1.06
"""Factor on the time in lines whose rows hold half of what they could, beside that of others: as measured."""
_FEW_COLUMNS = 1.2
"""The same of products in lines with fewer columns than those worth shorter rows."""
_PIXELS_AS_COLUMNS, _PADDED = {2: 1.05, 4: 1.02}, 1.05
"""The same of products whose columns are pixels, by bytes of a result, and where many of these lie outside."""
_BOX_ROWS = 64
"""Of the result, where these are neighbours in memory: a box has 128 bytes of them of each of its columns."""
_ROWS_OF_TILE, _L2_SHARE = 128, 0.75
"""Of a usual tile; of the L2 cache, that stays from one tap to the next."""
_TURNS_SHARE = 0.5
"""Of the L2 cache, more than which the data of stride phases are when these take turns: they would have left it until
the next one reads them."""


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


def no_lines(problem: Convolution) -> str:
    """Why there are no taps that share pixels."""
    return (
        f"{problem.filter_spatial[-1]} taps along the last axis, stride {problem.stride[-1]}, dilation"
        f" {problem.dilation[-1]}: no two taps of all results read the same pixels, or not as many of each"
    )


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
) -> Plan | str:
    """The plan that is expected to be fastest, of the problem or of a batch of such; or why there is none.

    `is_scaled`: f32 numbers are multiplied as f16, times a power of two; with two `parts` they always are, with three
    as bf16. Operands are packed for it, but those that are divided where they are multiplied: both of a filter's
    gradient (`is_divided`), in shared memory, and with `divides_rows` dy of them in registers; without `is_divided`
    dy alone, or the data of other directions. `is_rough`: only the first of these halves are multiplied.
    `is_in_lines`: of a filter's gradient, whose taps along the last axis share what is copied of x. `is_blockwise`:
    of a filter's gradient with one tap, of which blocks of 64 pixels by 64 channels are packed as halves, each
    scaled by itself.
    """
    is_scaled = (is_scaled or parts > 1) and not is_divided
    if problem.direction == "bwd_filter":
        if is_in_lines:
            return plan_in_lines(problem, device, tiles, parts, is_scaled, is_divided, is_rough)
        return wgrad_plan(
            problem, device, tiles, uses_workspace, parts, is_scaled, is_divided, batch, fusion,
            divides_rows=divides_rows, is_rough=is_rough, is_blockwise=is_blockwise,
        )  # fmt: skip
    given = problem, device, tiles, uses_workspace, parts, is_scaled, batch, fusion, divides_rows
    if not is_in_lines:
        return _correlation_plan(*given, pixels_are_columns=pixels_are_columns)
    geometry = geometry_of(problem)
    size = element_bytes(problem, is_scaled)
    rows = rows_of_lines(geometry.in_channels, size, geometry.groups > 1, geometry.out_channels)
    best = _correlation_plan(*given, rows[0])
    if isinstance(best, Plan) and geometry.out_channels < LEAST_COLUMNS:
        return replace(best, seconds=_FEW_COLUMNS * best.seconds)
    for row in rows[1:]:
        plan = _correlation_plan(*given, row)
        if not isinstance(plan, Plan):
            continue
        plan = replace(plan, seconds=_HALF_ROWS * plan.seconds)
        if not isinstance(best, Plan) or plan.seconds < best.seconds:
            best = plan
    return best


def _correlation_plan(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int,
    is_scaled: bool,
    batch: Batch | None,
    fusion: Fusion,
    divides_rows: bool = False,
    row_of_lines: int = 0,
    pixels_are_columns: bool = False,
) -> Plan | str:
    """The plan of a forward product or of the data; in lines with `row_of_lines`: bytes of a row of those."""
    is_in_lines = row_of_lines > 0
    geometry = geometry_of(problem)
    is_forward = problem.direction == "fwd"
    data_tensor, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    size, result_bytes = element_bytes(problem, is_scaled), DTYPES[result.dtype]
    is_promoted = parts > 1 or problem.has_float8
    data = batched(Operand.of(data_tensor, 0), batch, batch.data if batch else 0)
    weights, along_columns = filter_of(problem, batch)
    swaps = tiles[0].swaps
    across_size = 4 if swaps else 2
    is_mn_major = not is_scaled and size == across_size and not weights.is_direct and along_columns.is_direct
    if swaps and not is_mn_major:
        return "operands change places where the channels of the result are innermost in a filter of f32"
    # boxes begin at multiples of 16 bytes, so groups must
    is_mn_major = is_mn_major and filter_steps(geometry, is_forward, batch)[0] * size % ALIGNMENT == 0
    if is_mn_major:
        weights = along_columns
    across = None
    if (
        not (is_scaled or divides_rows or is_in_lines or fusion.has_prologue)
        and weights.is_direct
        and not is_mn_major
    ):
        across = _across(problem, data, batch)
    # a packed filter has the channels that are summed innermost
    packs, at = packed(across or data, weights, parts, is_scaled, as_it_is=data if divides_rows else None)
    if divides_rows and packs[0]:
        return "numbers are divided where the copy engine reads them: the data have their channels innermost"
    if any(packs) and not uses_workspace:
        return NEEDS_WORKSPACE
    if any(pack and pack.source.pixels >= MAX_PACKED for pack in packs):
        return f"a copy of {max(data.pixels, weights.pixels)} pixels: at most {MAX_PACKED} are counted by its kernel"
    a, b = parts_of(across or data, packs[0]), parts_of(weights, packs[1])
    if divides_rows:
        a = a * parts  # rows of half as many channels of each
    phases = [
        tuple(Axis.of(axis, one) for axis, one in zip(geometry.axes, phase, strict=True))
        for phase in geometry.phases
    ]
    lines = NO_LINES
    if is_in_lines:
        found_lines = None if fusion.has_prologue else neighbours_of(problem, data, weights)
        found_lines = found_lines or lines_of(phases)
        if not found_lines:
            return no_lines(problem)
        lines = found_lines
        # one tap stands for those that share pixels, and windows go on behind the end of a line
        phases = [
            (*axes[:2], replace(axes[2], taps=lines.classes, results=axes[2].results + lines.reach))
            for axes in phases
        ]
    if lines.pixels > 1:  # all positions along the line are those of rows
        a = tuple(_in_rows(part, lines.pixels) for part in a)
        phases = [
            (*axes[:2], replace(axes[2], base=axes[2].base // lines.pixels, input_stride=1))
            for axes in phases
        ]
    rank = rank_of(data.extents[0], [axes[0] for axes in phases])
    if not all(fits_offsets(rank, [axis.reach for axis in axes]) for axes in phases):
        return "taps are farther apart than the copy engine takes"
    most_taps = max(math.prod(axis.taps for axis in axes) for axes in phases)
    is_whole = divides_rows or fusion.has_prologue
    # channels of another group behind these are not multiplied
    leaves_out = divides_rows and 32 < geometry.in_channels < 64 and geometry.in_channels % 16 == 0
    row_bytes, row = (
        (row_of_lines, row_of_lines)
        if is_in_lines
        else rows_of(geometry.in_channels, size, most_taps, geometry.groups > 1 and not leaves_out, is_whole)
    )
    channel_blocks = -(-geometry.in_channels * size // row_bytes)
    if lines.long < lines.classes and channel_blocks > 1:
        return f"{geometry.in_channels} channels are several stages, and taps that share pixels are not always as many"
    rows = [geometry.images * math.prod(axis.results for axis in axes) for axes in phases]
    pieces = [channel_blocks * math.prod(axis.taps for axis in axes) for axes in phases]
    blocks = [-(-count * row_bytes // row) for count in pieces]
    groups = batch.count if batch else geometry.groups
    strides = geometry.result
    group_step = batch.result if batch else strides.group
    row_step = None
    if len(phases) == 1 and not is_in_lines:
        extents_of_result = (geometry.images, *(axis.results for axis in phases[0]))
        row_step = linear_step(extents_of_result, (strides.image, *strides.space))
    row_boxes = None
    if (
        row_step == 1
        and strides.channel > 1
        and result_bytes == 2
        and not (fusion.has_prologue or fusion.has_sums)
    ):
        row_boxes = result_map(
            result.dtype, rows[0], groups, group_step, geometry.out_channels, strides.channel, _BOX_ROWS
        )
    is_strided = any(axes[2].input_stride > 1 for axes in phases)
    if pixels_are_columns:
        row_boxes = result_map(result.dtype, geometry.out_channels, 1, 0, rows[0], row_step, _BOX_ROWS)
        is_refused = (
            groups > 1 or len(phases) > 1 or parts > 1 or strides.channel != 1 or size != result_bytes
        )
        if is_refused or size == 1 or swaps or any(packs) or across or not row_boxes or not row_step:
            return "pixels are columns of one group whose results lie evenly, where no operand is packed"
    has_windows_apart = is_strided and len(phases) == 1 and most_taps > 1 and not is_in_lines
    window_bytes = math.prod(problem.stride) * geometry.in_channels * size if has_windows_apart else 0
    breaks_sectors = is_mn_major and weights.image * size % SECTOR_BYTES != 0
    products = Products(
        (geometry.out_channels,) if pixels_are_columns else tuple(rows),
        tuple(blocks),
        rows[0] if pixels_are_columns else geometry.out_channels,
        groups,
        is_mn_major and not pixels_are_columns,
        is_strided,
        row_boxes is not None and result_bytes == 2,
        padding_of(phases, data.extents),
        (b[0].is_uneven, a[0].is_uneven) if pixels_are_columns else (a[0].is_uneven, b[0].is_uneven),
        (breaks_sectors, False)
        if pixels_are_columns
        else (across is not None and across.space[2] * size % SECTOR_BYTES != 0, breaks_sectors),
        rank == 5 and len(phases) == 1,
        len(phases) > 1 and len(set(rows)) == 1 and data_tensor.nbytes > _TURNS_SHARE * device.facts.l2_bytes,
        pixels_are_columns,
        data_tensor.nbytes,
        window_bytes,
    )
    bytes_moved = batch.nbytes if batch else moved_bytes(problem)
    # what all tiles read for a tap is gone from L2 when they read it for the next
    of_tap = device.multiprocessors * _ROWS_OF_TILE * geometry.in_channels * size
    if not (batch or is_in_lines) and min(of_tap, data_tensor.nbytes) > _L2_SHARE * device.facts.l2_bytes:
        bytes_moved += (most_taps - 1) * data_tensor.nbytes
    max_splits = (
        _MAX_SPLITS if uses_workspace and max(blocks) > 1 and not (is_in_lines or pixels_are_columns) else 1
    )
    if (
        is_mn_major and not pixels_are_columns
    ):  # columns come in blocks, and those that begin within a line of memory take longer than whole ones
        tiles = tuple(
            tile
            for tile in tiles
            if tile.swaps or tile.wn % tile.block == 0 or (tile.across == 1 and products.n <= tile.n)
        )
    if is_in_lines or pixels_are_columns:
        tiles = tuple(tile for tile in tiles if tile.cluster == 1)
    if not size == result_bytes == 2:
        tiles = tuple(tile for tile in tiles if tile not in _WHOLE)
    if fusion.finish != NO_FINISH:
        # nor have large ones registers for results that threads read
        is_read = fusion.finish.nbytes > 0 and not fusion.finish.read
        tiles = tuple(
            tile for tile in tiles if tile.sums <= _MOST_FINISHED and not (is_read and tile in _WHOLE)
        )
    tiles = fusion.tiles(tiles, result_bytes, False)
    if divides_rows:
        tiles = tuple(tile for tile in tiles if tile.rows == tile.cluster == 1)
    may_share = uses_workspace and size == 2 and parts == 1 and groups == len(phases) == 1
    may_share = may_share and not (
        any(packs) or is_in_lines or is_whole or fusion.has_sums or across or pixels_are_columns
    )
    has_depths = row == row_bytes == STAGE_ROW and parts == 1 and not (is_whole or is_in_lines)
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
        divides_rows=divides_rows,
        row=row,
        may_keep_b=not (fusion.has_prologue or pixels_are_columns),
        lines=lines,
        depths=depths if has_depths else one_depth,
        shared=SHARED_PRODUCTS if may_share else (),
        most_tiles=1,
        may_keep_across=size == 2 and parts == 1 and row_bytes == STAGE_ROW and not is_in_lines,
        may_leave_at_once=not (fusion.has_prologue or fusion.has_sums)
        and (data.dtype == "f32" or size == result_bytes == 2),
    )
    if not found:
        return "no tile fits into the shared memory of the device"
    blocking, seconds = found
    if pixels_are_columns:
        seconds *= _PIXELS_AS_COLUMNS[result_bytes] * (_PADDED if products.padding > MUCH_PADDING else 1.0)
    tile = blocking.tile
    maps: list[TensorMap] = []
    is_a_whole = False
    if across:
        given = across, STAGE_ROW, blocking.row // size
        one = whole_map(*given, tile.m // BLOCK, batch is not None)
        is_a_whole = one is not None
        one = one or rows_map(*given, batch is not None)
        assert one
        maps.append(one)
    for axes in () if across else phases:
        base, results, steps = (
            three_of(getattr(axis, name) for axis in axes) for name in ("base", "results", "input_stride")
        )
        for part in a:
            rows_of_tile = tile.n if pixels_are_columns else tile.m + lines.further
            one = pixel_map(
                part, rank, base, results, steps, row_bytes * lines.pixels, rows_of_tile, not divides_rows
            )
            if one is None:
                return "windows begin farther outside of the image than the copy engine takes"
            maps.append(one)
    # one module serves several numbers of stride phases: those that there are not begin behind the last tile
    absent = phases_of_code(len(phases)) - len(phases)
    maps += maps[-parts:] * absent
    steps_of_filter = filter_steps(geometry, is_forward, batch)
    block, columns, at_once = (BLOCK, tile.m, tile.m) if pixels_are_columns else (tile.block, tile.n, tile.wn)
    may_be_whole = blocking.row == row_bytes and steps_of_filter[0] % block == 0
    maps_of_b, is_b_whole = (
        filter_maps_across(b, row_bytes // size, block, columns, may_be_whole)
        if is_mn_major
        else ([filter_map(part, row_bytes // size, at_once) for part in b], False)
    )
    maps += maps_of_b
    multiples = [geometry.out_channels, strides.image, strides.group, *strides.space]
    is_vector = strides.channel == 1 and all(n * result_bytes % ALIGNMENT == 0 for n in multiples)
    if batch:
        is_vector = is_vector and batch.result * result_bytes % ALIGNMENT == 0
    if swaps and not (is_vector and result.dtype == "f32"):
        return (
            "results of operands that change places leave by 16 bytes of channels of f32, which lie otherwise"
        )
    if strides.channel == 1 and not is_vector and blocking.is_whole:
        seconds += narrow_store_seconds(device.facts, sum(rows) * geometry.out_channels * groups)
    boxes = None
    if blocking.is_whole and not (is_in_lines or swaps):
        columns = tile.chunk_bytes(result_bytes) // result_bytes
        if row_boxes:
            boxes = replace(row_boxes, box=(min(_BOX_ROWS, 128 // result_bytes), 1, columns))
        elif is_vector and len(phases) == 1:
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
    phase_numbers += [_NEVER, *([0] * 28)] * absent
    # a thread block, of as many as are a multiple of the tiles across, has tiles with the same columns
    strip = blocking.kept_across if blocking.kept_across > 1 else products.strip(tile)
    sharers = blocking.sharers
    of_result = (1, row_step or 0) if pixels_are_columns else (0, strides.channel)
    numbers = (
        *phase_numbers,
        works, blocking.splits, groups, products.tiles_m(tile), products.tiles_n(tile), blocking.blocks_of_split,
        strip, *products.sizes, geometry.in_channels, channel_blocks,
        0 if batch else geometry.in_channels, 1 if batch else 0, *steps_of_filter,
        rank == 5, 0, 0, is_a_whole, is_b_whole,
        at, 0, strides.image, batch.result if batch else strides.group, *of_result, *strides.space,
        *pack_numbers((Pack(data, 0) if divides_rows else packs[0], packs[1])), 0,
        math.prod(weights.extents[1:]), weights.extents[2], 1, *data.extents,
        fusion.channels, room, sum_rows, turn_of(products, tile, device.multiprocessors),
        *((blocking.in_step, sharers, at + 4 * sharers * tile.m * tile.n) if sharers else ()),
    )  # fmt: skip
    plan = Plan(
        False, dtypes(problem), result.dtype, rank, len(phases), products.is_across,
        is_vector and not pixels_are_columns,
        (pixels_are_columns or strides.channel != 1) and blocking.is_whole, boxes is not None, row_bytes, blocking,
        works, packs, Tables(tuple(maps), numbers),
        (room + 8 * sum_rows * channels) if sum_rows else at + blocking.partial_bytes(products),
        fusion.seconds(seconds, False) + pack_seconds(packs, device), fusion, channels,
        is_a_mn_major=across is not None or (is_mn_major and pixels_are_columns),
        used_steps=used_steps(geometry.in_channels, row_bytes, row), pixels_are_columns=pixels_are_columns,
    )  # fmt: skip
    return (
        replace(plan, tables=replace(plan.tables, numbers=(*numbers, *blocking.ring)))
        if plan.takes_ring
        else plan
    )


def _in_rows(data: Operand, pixels: int) -> Operand:
    """The data with `pixels` neighbours along the last axis as one of as many times the channels."""
    *outer, extent = data.extents
    *steps, step = data.space
    return replace(
        data, channels=data.channels * pixels, extents=three_of((*outer, extent // pixels)),
        space=three_of((*steps, step * pixels)),
    )  # fmt: skip


def _across(problem: Convolution, data: Operand, batch: Batch | None) -> Operand | None:
    """The data with their pixels as channels, where products of one tap read them so; None elsewhere."""
    step = linear_step(data.extents, data.space)
    is_plain = (
        problem.direction == "fwd"
        and problem.groups == 1
        and {1} == {*problem.filter_spatial, *problem.stride}
        and {0} == {side for sides in problem.padding for side in sides}
        and data.size == 2
    )
    pixels = math.prod(data.extents)
    if not is_plain or data.is_direct or step != 1 or (problem.n > 1 and not batch) or pixels == 1:
        return None
    across = replace(
        data, channels=pixels, channel=1, extents=(1, 1, data.channels), space=(0, 0, data.channel)
    )
    return across if across.is_direct else None
