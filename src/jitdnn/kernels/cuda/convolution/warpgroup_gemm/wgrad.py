"""The plan of a filter's gradient by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import (
    Operand,
    Pack,
    fits_offsets,
    line_map,
    pixel_map,
    result_map,
    rows_map,
    whole_map,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import (
    NEEDS_WORKSPACE,
    Axis,
    Three,
    batched,
    dtypes,
    element_bytes,
    moved_bytes,
    pack_numbers,
    pack_seconds,
    packed,
    parts_of,
    rank_of,
    three_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import DIVISION_BYTES, Plan
from jitdnn.kernels.cuda.cost import LINE_BYTES, SECTOR_BYTES
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.kernels.cuda.gemm.shape import divisors
from jitdnn.kernels.cuda.warpgroup.best import best_blocking
from jitdnn.kernels.cuda.warpgroup.bound import Least
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Boxes, Products, SharedRows
from jitdnn.kernels.cuda.warpgroup.tile import SHARED, SHARED_IN_LINES, SPLIT, STAGE_ROW, Tile
from jitdnn.kernels.cuda.warpgroup.wgrad_cost import Copies, WgradBound, wgrad_seconds
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES

_MAX_SPLITS = 256
_CACHED = 0.6
"""Of L2, that operands in lines may have of which thread blocks take parts: these are out of step, and ask memory again
for what others have had."""
INSIDE = (
    Tile(3, 1, 1, 96),
    Tile(3, 1, 1, 160),
    Tile(2, 1, 2, 96),
    Tile(2, 1, 1, 96),
    Tile(1, 1, 1, 160),
    Tile(2, 1, 2, 32),
    Tile(1, 1, 1, 32),
)
"""Tiles that end inside of a block of 64 columns: the channels of each tap are whole tiles then."""
_INSIDE, _SPLIT = frozenset(INSIDE), frozenset(SPLIT)
_ROOM_BEHIND_SEGMENT = 8  # rows of shared memory; as in sizes.cuh
SEGMENTS = (64, 32, 16)
"""Pixels of a line that a wgrad in lines takes at a time."""


def plan_in_lines(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    parts: int = 1,
    is_scaled: bool = False,
    is_divided: bool = False,
    is_rough: bool = False,
) -> Plan | str:
    """The fastest by how many taps share what is copied of x, and how long the segments of lines are."""
    if problem.stride[-1] != 1 or problem.dilation[-1] != 1:
        return "taps along the last axis share lines where its stride and dilation are 1"
    if problem.filter_spatial[-1] == 1:
        return "one tap along the last axis shares its line with no other"
    best: Plan | None = None
    reasons = []
    for taps in (2, 3, 4):
        own = tuple(tile for tile in tiles if tile.wn == 64 * taps and tile.cluster == 1)
        for segment in SEGMENTS if own else ():
            one = wgrad_plan(
                problem, device, own, True, parts, is_scaled, is_divided, None, NOTHING, segment, is_rough=is_rough,
                limit=best.seconds if best else math.inf,
            )  # fmt: skip
            if isinstance(one, str):
                reasons.append(one)
            elif best is None or one.seconds < best.seconds:
                best = one
    return best or next(iter(reasons), "no tile is as wide as several taps")


def wgrad_plan(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int,
    is_scaled: bool,
    is_divided: bool,
    batch: Batch | None,
    fusion: Fusion,
    segment: int = 0,
    divides_rows: bool = False,
    is_rough: bool = False,
    is_blockwise: bool = False,
    limit: float = math.inf,
) -> Plan | str:
    """The plan of a filter's gradient, or why there is none; `limit`: seconds, more than which nobody wants."""
    groups = batch.count if batch else problem.groups
    size, result_bytes = element_bytes(problem, is_scaled or is_divided), DTYPES[problem.w.dtype]
    if size != 2:
        return f"products of {problem.x.dtype} tensors are read along K alone, and K runs over pixels here"
    x = batched(Operand.of(problem.x, 0), batch, batch.data if batch else 0)
    dy = batched(Operand.of(problem.y, 1), batch, batch.filter if batch else 0)
    outputs, taps = three(problem.output_spatial, 1), three(problem.filter_spatial, 1)
    dilation, before = three(problem.dilation, 1), three([n for n, _ in problem.padding], 0)
    x, strides = _met(x, outputs, taps, three(problem.stride, 1), before)
    ones = (1, 1, 1)
    base = (-before[0], -before[1], -before[2])
    is_plain = taps == ones and strides == ones and base == (0, 0, 0) and x.extents == outputs
    if is_blockwise and (not is_plain or groups > 1 or batch):
        return (
            "blocks of pixels are scaled where both operands have the same: one tap, no padding and no groups"
        )
    packs, at = packed(
        x, dy, parts, is_scaled, problem.has_float8, dy if divides_rows else None, is_blockwise
    )
    if divides_rows and packs[1] and not is_divided:
        return "numbers are divided where the copy engine reads them: dy has its channels innermost"
    if is_divided and (any(packs) or not uses_workspace):
        return "numbers are divided where the copy engine reads them, of splits: both operands have channels innermost"
    if any(packs) and not uses_workspace:
        return NEEDS_WORKSPACE
    b, a = parts_of(x, packs[0]), parts_of(dy, packs[1])
    if is_divided:
        a, b = a * parts, b * parts  # rows of 32 channels of each
    elif divides_rows:
        a = a * parts
    axes = tuple(Axis(outputs[n], -before[n], strides[n], taps[n], dilation[n], 0, 1, 0, 1) for n in range(3))
    rank = rank_of(x.extents[0], axes[:1])
    if not fits_offsets(rank, [axis.reach for axis in axes]):
        return "taps are farther apart than the copy engine takes"
    block = STAGE_ROW // size
    out_channels, in_channels = problem.k // problem.groups, problem.c // problem.groups
    channel_blocks = -(-in_channels // 64)
    columns = math.prod(taps) * channel_blocks * 64
    pixels = problem.n * math.prod(outputs)
    at_once = tiles[0].wn // 64 if segment else 1
    if segment:  # pixels are counted by segments of lines, taps by as many as share one
        columns = columns // taps[2] * -(-taps[2] // at_once) * at_once
        axes = (*axes[:2], replace(axes[2], results=-(-outputs[2] // segment)))
        pixels = problem.n * math.prod(axis.results for axis in axes) * segment
    if is_divided and pixels <= block:
        return f"{pixels} pixels are one stage, and there must be splits"
    products = Products((out_channels,), (-(-pixels // block),), columns, groups, is_across=True)
    bytes_moved = batch.nbytes if batch else moved_bytes(problem)
    max_splits = _MAX_SPLITS if uses_workspace else 1
    # columns come in blocks of 64, behind each of which another tap may begin: no chunk of results is longer
    may_end_inside = parts == 1 and not (segment or is_scaled or is_blockwise or fusion.has_prologue)
    is_copied = may_end_inside and not (
        any(packs) or batch
    )  # from where operands lie, which the model of these knows
    tiles = tuple(
        tile
        for tile in tiles
        if (tile.wn % 64 == 0 or (may_end_inside and tile in (_INSIDE if is_copied else INSIDE[:1])))
        and (is_copied or tile not in _SPLIT)
        and (tile.n > 32 or in_channels <= 32)
        and (tile.cluster > 1 or tile.chunk_bytes(result_bytes) // result_bytes <= 64)
    )
    tiles = fusion.tiles(tiles, result_bytes, True)
    if not is_divided:
        tiles = tuple(tile for tile in tiles if not tile.dividers)
    if divides_rows:
        tiles = tuple(tile for tile in tiles if tile.rows == tile.cluster == 1)
    is_f32 = is_divided or divides_rows  # what is copied of dy

    def maps_in_rows(
        parts: Sequence[Operand], pixels: int, blocks: int, is_f32: bool, row: int = STAGE_ROW
    ) -> list[TensorMap | None]:
        return [
            whole_map(part, row, pixels, blocks, batch is not None, not is_f32) if blocks else
            rows_map(part, row, pixels, batch is not None, not is_f32)
            for part in parts
        ]  # fmt: skip

    is_whole = (  # of dy, and of x
        not segment and out_channels % 64 == 0 and all(maps_in_rows(a, block, 1, is_f32)),
        not segment
        and is_plain
        and in_channels % 64 == 0
        and (groups == 1 or not is_divided)
        and all(maps_in_rows(b, block, 1, is_divided)),
    )
    is_deep = parts == 1 and not segment and not fusion.has_prologue and not is_blockwise

    may_share = uses_workspace and parts == 1 and groups == 1 and not (any(packs) or fusion.has_prologue)
    if segment:
        may_share = may_share and bytes_moved < _CACHED * device.cache_bytes

    def depths(tile: Tile) -> tuple[int, ...]:
        # where copies of more pixels make up for fewer stages
        is_small = tile.m * tile.n == 64 * 64 if is_whole[1] else tile.m * tile.n <= 128 * 128
        return (1, 2) if is_deep and is_small else (1,)

    def columns_of(tile: Tile) -> int:
        # the channels of a tap are whole blocks of 64 or, of tiles that end inside of one, whole tiles
        return math.prod(taps) * -(-in_channels // tile.n) * tile.n if tile.n % 64 else columns

    brought = Boxes(is_whole, (_is_uneven(a[0]), _is_uneven(b[0])), not is_plain and not segment)
    outside = 1.0 - math.prod(
        axis.inside(extent) / (axis.taps * axis.results) for axis, extent in zip(axes, x.extents, strict=True)
    )
    copies = Copies(
        is_whole, brought.is_uneven, (_crossing(a[0]), _crossing(b[0])), brought.has_windows, outside
    )

    def seconds_of(alike: Products, one: Blocking) -> float:
        return wgrad_seconds(alike, one, device, bytes_moved, result_bytes, copies)

    def bound_of(staged: Products, row: int) -> Least:
        return WgradBound(staged, device, bytes_moved, row, shared)

    shared = (SHARED_IN_LINES if segment else SHARED) if may_share else ()
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
        parts > 1 or is_blockwise,
        fusion.shared + (DIVISION_BYTES if is_divided else 0),
        fusion.has_prologue,
        is_divided=is_divided,
        shared_rows=SharedRows(block // segment, segment + at_once - 1) if segment else None,
        divides_rows=divides_rows,
        is_rough=is_rough,
        boxes=brought,
        depths=depths,
        shared=shared,
        columns_of=columns_of,
        seconds_of=seconds_of if is_copied else None,
        bound_of=bound_of if is_copied else None,
        limit=limit,
    )
    if not found:
        return "no tile fits into the shared memory of the device" + " in so little time" * (limit < math.inf)
    blocking, seconds = found
    tile, sharers = blocking.tile, blocking.sharers
    columns = columns_of(tile)
    products = replace(products, n=columns)
    if segment and parts == 2:
        rows = tile.across * (block // segment) * (segment + _ROOM_BEHIND_SEGMENT)
        blocking = blocking.sharing(
            tile.n - rows, device.shared_bytes - (DIVISION_BYTES if is_divided else 0)
        )
    block *= blocking.row // STAGE_ROW
    is_whole = (is_whole[0], is_whole[1] and tile.n % 64 == 0)
    row_of_b = tile.block * size if is_copied else STAGE_ROW
    maps_of_a = maps_in_rows(a, block, tile.m // 64 if is_whole[0] else 0, is_f32)
    maps_of_b: list[TensorMap | None] = [None]
    if is_plain:
        maps_of_b = maps_in_rows(b, block, tile.n // 64 if is_whole[1] else 0, is_divided, row_of_b)
    is_a_linear, is_b_linear = all(maps_of_a), all(maps_of_b)
    if not is_a_linear:
        maps_of_a = [
            pixel_map(part, rank, (0, 0, 0), outputs, ones, STAGE_ROW, block, not is_f32) for part in a
        ]
    if not is_b_linear:
        maps_of_b = [
            pixel_map(part, rank, base, outputs, strides, row_of_b, block, not is_divided) for part in b
        ]
    if segment:
        is_a_linear = is_b_linear = False
        inner = STAGE_ROW // a[0].size
        maps_of_a = [line_map(part, inner, segment) for part in a]
        maps_of_b = [line_map(part, inner, segment + at_once - 1) for part in b]
    maps = tuple(one for one in (*maps_of_a, *maps_of_b) if one)
    if len(maps) < len(a) + len(b):
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
    if is_vector and blocking.is_whole and (batch or groups == 1 or out_channels % 64 == 0) and sign > 0:
        tap_step = linear_step(problem.filter_spatial, space)
        box_columns = tile.chunk_bytes(result_bytes) // result_bytes
        if batch:  # in the place of taps
            boxes = result_map(dw.dtype, in_channels, groups, batch.result, out_channels, row, box_columns)
        elif tap_step is not None:
            boxes = result_map(
                dw.dtype, in_channels, math.prod(taps), tap_step, groups * out_channels, row, box_columns
            )
    if boxes:
        maps = (*maps, boxes)
    works, strip = blocking.works(products), _strip(products, tile)
    of_tap = -(-in_channels // tile.n) * tile.n if tile.n % 64 else channel_blocks * 64
    divided_by = (
        blocking.splits if tile.cluster > 1 else products.tiles(tile), blocking.splits,
        products.tiles(tile) // groups,
        products.tiles_m(tile) if strip == 1 else products.tiles_n(tile),
        channel_blocks if segment else of_tap, -(-taps[2] // at_once), taps[1],
        *(axis.results for axis in axes),
    )  # fmt: skip
    numbers = (
        0, pixels, *(number for axis in axes for number in axis.numbers),
        works, blocking.splits, groups, products.tiles_m(tile), products.tiles_n(tile), blocking.blocks_of_split,
        strip, out_channels, columns, in_channels, channel_blocks,
        0 if batch else out_channels, 1 if batch else 0, 0 if batch else in_channels, 0, 1 if batch else 0,
        rank == 5, is_a_linear, is_b_linear, *is_whole,
        at, 0, 0, group, row, column, 0, 0, 0,
        *pack_numbers((Pack(x, 0) if is_divided else packs[0], Pack(dy, 0) if is_f32 else packs[1])),
        first, *tap_space, *x.extents, fusion.channels, 0, 0, 0,
        *(pack.shifts for pack in packs if pack and is_blockwise),
        *((blocking.in_step, sharers, at + 4 * sharers * tile.m * tile.n) if sharers else ()),
        *divisors(divided_by), blocking.splits if works <= device.multiprocessors else 1,
    )  # fmt: skip
    return Plan(
        True, dtypes(problem), dw.dtype, rank, 1, True, is_vector, column != 1 and blocking.is_whole,
        boxes is not None, STAGE_ROW, blocking, works, packs, Tables(maps, numbers),
        at + blocking.partial_bytes(products),
        fusion.seconds(seconds, True) + pack_seconds(packs, device), fusion, is_divided=is_divided, segment=segment,
    )  # fmt: skip


def _is_uneven(operand: Operand) -> bool:
    """Whether pixels begin inside of a sector."""
    return operand.space[2] * operand.size % SECTOR_BYTES != 0


def _crossing(operand: Operand) -> float:
    """The share of rows of 128 bytes that lie in two lines of the cache."""
    lines = LINE_BYTES // math.gcd(
        LINE_BYTES, operand.space[2] * operand.size
    )  # until rows begin at the same place again
    return (lines - 1) / lines


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


def _strip(products: Products, tile: Tile) -> int:
    """How many tiles are numbered across before those below them.

    Thread blocks that run next to each other ask for the same lines at the same time, which then come once: where the
    shorter axis of the grid of tiles comes first, those of a few of them have few different rows and columns. Blocks of
    clusters that share K have different pixels, and the longer one is as seen.
    """
    down, across = products.tiles_m(tile), products.tiles_n(tile)
    is_down_first = down > across if tile.cluster > 1 else down <= across
    return 1 if is_down_first else across
