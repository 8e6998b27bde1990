"""The plan of a wgrad by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
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
    dtypes,
    pack_numbers,
    pack_seconds,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import DIVISION_BYTES, Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad_loops import Loops, Sources
from jitdnn.kernels.cuda.cost import LINE_BYTES, SECTOR_BYTES
from jitdnn.kernels.cuda.gemm.plan import linear_step, three
from jitdnn.kernels.cuda.gemm.shape import divisors
from jitdnn.kernels.cuda.warpgroup.best import best_blocking
from jitdnn.kernels.cuda.warpgroup.candidates import SearchSpace
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Boxes, KernelTraits, Products, SharedRows
from jitdnn.kernels.cuda.warpgroup.tile import SHARED, SHARED_IN_LINES, SPLIT, STAGE_ROW, Tile
from jitdnn.kernels.cuda.warpgroup.wgrad_cost import Copies, WgradModel

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
_SPLIT = frozenset(SPLIT)
_ROOM_BEHIND_SEGMENT = 8  # rows of shared memory; as in sizes.cuh
_SWEPT = 0.6
"""Of L2, that operands have of which the next call's push partial sums out of it, if these are not discarded."""
_STAGE_PIXELS = STAGE_ROW // 2
"""Of elements of 16 bits."""
SEGMENTS = (64, 32, 16)
"""Pixels of a line that a wgrad in lines takes at a time."""


def plan_in_lines(request: ProductRequest) -> Plan:
    """The fastest by how many taps share what is copied of x, and how long segments of lines are. Raises Refused."""
    problem = request.problem
    if problem.stride[-1] != 1 or problem.dilation[-1] != 1:
        raise Refused("taps along the last axis share lines where its stride and dilation are 1")
    if problem.filter_spatial[-1] == 1:
        raise Refused("one tap along the last axis shares its line with no other")
    best: Plan | None = None
    reasons: list[Refused] = []
    for taps in (2, 3, 4):
        tiles = tuple(tile for tile in request.tiles if tile.wn == 64 * taps and tile.cluster == 1)
        for segment in SEGMENTS if tiles else ():
            given, limit = (
                replace(request, tiles=tiles, uses_workspace=True),
                best.seconds if best else math.inf,
            )
            try:
                one = wgrad_plan(given, segment, limit)
            except Refused as reason:
                reasons.append(reason)
            else:
                best = one if best is None or one.seconds < best.seconds else best
    if best is None:
        raise reasons[0] if reasons else Refused("no tile is as wide as several taps")
    return best


def wgrad_plan(request: ProductRequest, segment: int = 0, limit: float = math.inf) -> Plan:
    """The fastest; in lines with `segment`: so many pixels of a line at a time. `limit`: seconds, more than which
    nobody wants. Raises Refused."""
    problem, device, batch, fusion = request.problem, request.device, request.batch, request.fusion
    loops = Loops.of(request, segment)
    if request.size != 2:
        raise Refused(
            f"products of {problem.x.dtype} tensors are read along K alone, and K runs over pixels here"
        )
    if request.is_blockwise and (not loops.is_plain or request.groups > 1 or batch):
        raise Refused(
            "blocks of pixels are scaled where both operands have the same: one tap, no padding and no groups"
        )
    sources = Sources.of(request, loops)
    if not fits_offsets(loops.rank, [axis.reach for axis in loops.axes]):
        raise Refused("taps are farther apart than the copy engine takes")
    if request.is_divided and loops.pixels <= _STAGE_PIXELS:
        raise Refused(f"{loops.pixels} pixels are one stage, and there must be splits")
    is_whole = _is_whole(request, loops, sources)
    products, blocking, seconds = _blocking(request, loops, sources, is_whole, limit)
    tile = blocking.tile
    is_whole = (is_whole[0], is_whole[1] and tile.n % 64 == 0)
    maps, is_linear = _maps(request, loops, sources, blocking, is_whole)
    if len(maps) < len(sources.a) + len(sources.b):
        raise Refused("windows begin farther outside of the image than the copy engine takes")
    result = _Result(request, loops)
    boxes = result.boxes(tile) if blocking.is_whole else None
    if boxes:
        maps = (*maps, boxes)
    numbers = _numbers(request, loops, sources, result, products, blocking, (*is_linear, *is_whole))
    return Plan(
        True, dtypes(problem), problem.w.dtype, loops.rank, 1, True, result.is_vector,
        result.column != 1 and blocking.is_whole, boxes is not None, STAGE_ROW, blocking, blocking.works(products),
        sources.packs, Tables(maps, numbers), sources.at + blocking.partial_bytes(products),
        fusion.seconds(seconds, True) + pack_seconds(sources.packs, device), fusion,
        is_divided=request.is_divided, segment=segment,
    )  # fmt: skip


def _in_rows(
    parts: Sequence[Operand], pixels: int, blocks: int, is_batch: bool, is_f32: bool, row: int = STAGE_ROW
) -> list[TensorMap | None]:
    """Maps of operands as rows of `row` bytes, with `blocks` blocks of channels at once; None where there is none."""
    if blocks:
        return [whole_map(part, row, pixels, blocks, is_batch, not is_f32) for part in parts]
    return [rows_map(part, row, pixels, is_batch, not is_f32) for part in parts]


def _is_whole(request: ProductRequest, loops: Loops, sources: Sources) -> tuple[bool, bool]:
    """Whether one copy may bring all blocks of 64 channels of a tile, of dy and of x."""
    if loops.segment:
        return False, False
    is_batch = request.batch is not None
    may_b = loops.is_plain and loops.in_channels % 64 == 0 and (request.groups == 1 or not request.is_divided)
    return (
        loops.out_channels % 64 == 0
        and all(_in_rows(sources.a, _STAGE_PIXELS, 1, is_batch, sources.is_a_f32)),
        may_b and all(_in_rows(sources.b, _STAGE_PIXELS, 1, is_batch, sources.is_b_f32)),
    )


def _tiles(request: ProductRequest, loops: Loops, is_copied: bool) -> tuple[Tile, ...]:
    """Those that can be; `is_copied`: from where operands lie, which the model of some tiles knows."""
    # columns come in blocks of 64, behind each of which another tap may begin: no chunk of results is longer
    inside = INSIDE if is_copied else INSIDE[:1] if _may_end_inside(request, loops) else ()
    tiles: tuple[Tile, ...] = tuple(
        tile
        for tile in request.tiles
        if (tile.wn % 64 == 0 or tile in inside)
        and (is_copied or tile not in _SPLIT)
        and (tile.n > 32 or loops.in_channels <= 32)
        and (tile.cluster > 1 or tile.chunk_bytes(request.result_bytes) // request.result_bytes <= 64)
    )
    tiles = request.fusion.tiles(tiles, request.result_bytes, True)
    if not request.is_divided:
        tiles = tuple(tile for tile in tiles if not tile.dividers)
    if request.divides_rows:
        tiles = tuple(tile for tile in tiles if tile.rows == tile.cluster == 1)
    return tiles


def _may_end_inside(request: ProductRequest, loops: Loops) -> bool:
    """Whether tiles may end inside of a block of 64 columns."""
    is_plain = request.parts == 1 and not (request.is_scaled or request.is_blockwise)
    return is_plain and not (loops.segment or request.fusion.has_prologue)


def _is_copied(request: ProductRequest, loops: Loops, sources: Sources) -> bool:
    """Whether operands are copied from where they lie, by numbers of which tiles may end inside of a block."""
    return _may_end_inside(request, loops) and not (any(sources.packs) or request.batch)


def _blocking(
    request: ProductRequest, loops: Loops, sources: Sources, is_whole: tuple[bool, bool], limit: float
) -> tuple[Products, Blocking, float]:
    """The fastest blocking, the products that it divides, and its time."""
    device, segment = request.device, loops.segment
    space = _space(request, loops, sources, is_whole)
    traits = _traits(request, loops, sources, is_whole)
    stages = -(-loops.pixels // _STAGE_PIXELS)
    products = Products(
        (loops.out_channels,), (stages,), loops.columns(64), request.groups, is_across=True,
        bytes_moved=request.bytes_moved,
    )  # fmt: skip
    second = None
    if _is_copied(request, loops, sources):
        second = WgradModel(device, request.result_bytes, _copies(loops, sources, traits.boxes), space.shared)
    found = best_blocking(products, traits, space, device, second, limit)
    if not found:
        in_time = " in so little time" if limit < math.inf else ""
        raise Refused(f"no tile fits into the shared memory of the device{in_time}")
    blocking, seconds = found
    tile = blocking.tile
    if segment and request.parts == 2:
        rows = tile.across * (_STAGE_PIXELS // segment) * (segment + _ROOM_BEHIND_SEGMENT)
        room = device.shared_bytes - (DIVISION_BYTES if request.is_divided else 0)
        blocking = blocking.sharing(tile.n - rows, room)
    return replace(products, n=loops.columns(tile.n)), blocking, seconds


def _traits(
    request: ProductRequest, loops: Loops, sources: Sources, is_whole: tuple[bool, bool]
) -> KernelTraits:
    segment = loops.segment
    return KernelTraits(
        request.parts,
        request.result_bytes,
        is_wgrad=True,
        is_promoted=request.parts > 1 or request.is_blockwise,
        is_rewritten=request.fusion.has_prologue,
        is_divided=request.is_divided,
        divides_rows=request.divides_rows,
        is_rough=request.is_rough,
        shared_rows=SharedRows(_STAGE_PIXELS // segment, segment + loops.at_once - 1) if segment else None,
        boxes=Boxes(
            is_whole,
            (_is_uneven(sources.a[0]), _is_uneven(sources.b[0])),
            not loops.is_plain and not segment,
        ),
    )


def _copies(loops: Loops, sources: Sources, boxes: Boxes) -> Copies:
    crossing = _crossing(sources.a[0]), _crossing(sources.b[0])
    return Copies(boxes.is_whole, boxes.is_uneven, crossing, boxes.has_windows, loops.outside)


def _space(
    request: ProductRequest, loops: Loops, sources: Sources, is_whole: tuple[bool, bool]
) -> SearchSpace:
    device, fusion, segment = request.device, request.fusion, loops.segment
    may_share = request.uses_workspace and request.parts == 1 and request.groups == 1
    may_share = may_share and not (any(sources.packs) or fusion.has_prologue)
    if segment:
        may_share = may_share and request.bytes_moved < _CACHED * device.cache_bytes
    is_deep = request.parts == 1 and not (segment or fusion.has_prologue or request.is_blockwise)

    def depths(tile: Tile) -> tuple[int, ...]:
        # where copies of more pixels make up for fewer stages
        is_small = tile.m * tile.n == 64 * 64 if is_whole[1] else tile.m * tile.n <= 128 * 128
        return (1, 2) if is_deep and is_small else (1,)

    return SearchSpace(
        _tiles(request, loops, _is_copied(request, loops, sources)),
        depths=depths,
        max_splits=_MAX_SPLITS if request.uses_workspace else 1,
        taken=fusion.shared + (DIVISION_BYTES if request.is_divided else 0),
        shared=(SHARED_IN_LINES if segment else SHARED) if may_share else (),
        columns_of=lambda tile: loops.columns(tile.n),
    )


def _maps(
    request: ProductRequest, loops: Loops, sources: Sources, blocking: Blocking, is_whole: tuple[bool, bool]
) -> tuple[tuple[TensorMap, ...], tuple[bool, bool]]:
    """Of A and B, those that there can be, and whether each is read as rows."""
    a, b, segment, tile = sources.a, sources.b, loops.segment, blocking.tile
    if segment:
        inner = STAGE_ROW // a[0].size
        lines = [line_map(part, inner, segment) for part in a]
        lines += [line_map(part, inner, segment + loops.at_once - 1) for part in b]
        return tuple(lines), (False, False)
    pixels = _STAGE_PIXELS * (blocking.row // STAGE_ROW)
    is_batch = request.batch is not None
    row_of_b = tile.block * request.size if _is_copied(request, loops, sources) else STAGE_ROW
    of_a = _in_rows(a, pixels, tile.m // 64 if is_whole[0] else 0, is_batch, sources.is_a_f32)
    of_b: list[TensorMap | None] = [None]
    if loops.is_plain:
        of_b = _in_rows(b, pixels, tile.n // 64 if is_whole[1] else 0, is_batch, sources.is_b_f32, row_of_b)
    is_linear = all(of_a), all(of_b)
    rank, outputs = loops.rank, loops.outputs
    if not is_linear[0]:
        of_a = [
            pixel_map(part, rank, (0, 0, 0), outputs, (1, 1, 1), STAGE_ROW, pixels, not sources.is_a_f32)
            for part in a
        ]
    if not is_linear[1]:
        of_b = [
            pixel_map(part, rank, loops.base, outputs, loops.strides, row_of_b, pixels, not sources.is_b_f32)
            for part in b
        ]
    return tuple(one for one in (*of_a, *of_b) if one), is_linear


class _Result:
    """How the filter's gradient lies: steps in elements, of taps from the last to the first of a true convolution."""

    def __init__(self, request: ProductRequest, loops: Loops) -> None:
        problem, self._request, self._loops = request.problem, request, loops
        self.row, self.column, *self._space = problem.w.strides
        taps = problem.filter_spatial
        self._is_mirrored = problem.mode == "convolution"
        pairs = list(zip(taps, self._space, strict=True))
        self.first = sum((n - 1) * s for n, s in pairs) if self._is_mirrored else 0
        self.tap_space = three([-s if self._is_mirrored else s for s in self._space], 0)
        self.group = request.batch.result if request.batch else loops.out_channels * self.row
        steps = [loops.in_channels, self.row, self.group, self.first, *(s for n, s in pairs if n > 1)]
        self.is_vector = self.column == 1 and all(n * request.result_bytes % ALIGNMENT == 0 for n in steps)

    def boxes(self, tile: Tile) -> TensorMap | None:
        """The map by which the copy engine stores tiles; None where it cannot."""
        request, loops = self._request, self._loops
        problem, batch, groups = request.problem, request.batch, request.groups
        has_whole_rows = batch or groups == 1 or loops.out_channels % 64 == 0
        if not self.is_vector or self._is_mirrored or not has_whole_rows:
            return None
        columns, dtype = tile.chunk_bytes(request.result_bytes) // request.result_bytes, problem.w.dtype
        if batch:  # in the place of taps
            return result_map(
                dtype, loops.in_channels, groups, batch.result, loops.out_channels, self.row, columns
            )
        step = linear_step(problem.filter_spatial, self._space)
        if step is None:
            return None
        taps, rows = math.prod(loops.taps), groups * loops.out_channels
        return result_map(dtype, loops.in_channels, taps, step, rows, self.row, columns)


def _numbers(
    request: ProductRequest, loops: Loops, sources: Sources, result: _Result, products: Products, blocking: Blocking,
    how: tuple[bool, ...],
) -> tuple[int, ...]:  # fmt: skip
    """`Tables` of tables.cuh; `how`: whether A and B are read as rows, and as whole boxes."""
    tile, sharers, batch, fusion = blocking.tile, blocking.sharers, request.batch, request.fusion
    packs, at, axes = sources.packs, sources.at, loops.axes
    works, strip = blocking.works(products), _strip(products, tile)
    divided_by = (
        blocking.splits if tile.cluster > 1 else products.tiles(tile), blocking.splits,
        products.tiles(tile) // request.groups,
        products.tiles_m(tile) if strip == 1 else products.tiles_n(tile),
        loops.channel_blocks if loops.segment else loops.columns_of_tap(tile.n), loops.last_taps, loops.taps[1],
        *(axis.results for axis in axes),
    )  # fmt: skip
    return (
        0, loops.pixels, *(number for axis in axes for number in axis.numbers),
        works, blocking.splits, request.groups, products.tiles_m(tile), products.tiles_n(tile),
        blocking.blocks_of_split, strip, loops.out_channels, products.n, loops.in_channels, loops.channel_blocks,
        0 if batch else loops.out_channels, 1 if batch else 0, 0 if batch else loops.in_channels, 0, 1 if batch else 0,
        loops.rank == 5, *how,
        at, 0, 0, result.group, result.row, result.column, 0, 0, 0,
        *pack_numbers((
            Pack(loops.x, 0) if sources.is_b_f32 else packs[0], Pack(loops.dy, 0) if sources.is_a_f32 else packs[1]
        )),
        result.first, *result.tap_space, *loops.x.extents, fusion.channels, 0, 0, 0,
        *(pack.shifts for pack in packs if pack and request.is_blockwise),
        *((blocking.in_step, sharers, at + 4 * sharers * tile.m * tile.n) if sharers else ()),
        *divisors(divided_by), blocking.splits if works <= request.device.multiprocessors else 1,
        int(blocking.is_split and request.bytes_moved > _SWEPT * request.device.cache_bytes),
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


def _strip(products: Products, tile: Tile) -> int:
    """How many tiles are numbered across before those below them.

    Thread blocks that run next to each other ask for the same lines at the same time, which then come once: where the
    shorter axis of the grid of tiles comes first, those of a few of them have few different rows and columns. Blocks of
    clusters that share K have different pixels, and the longer one is as seen.
    """
    down, across = products.tiles_m(tile), products.tiles_n(tile)
    is_down_first = down > across if tile.cluster > 1 else down <= across
    return 1 if is_down_first else across
