"""The plan of an fprop or dgrad by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from jitdnn.devices.tensor_map import ALIGNMENT, Tables, TensorMap
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Geometry, geometry_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.correlation_loops import Loops, Sources
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import (
    BLOCK,
    Pack,
    filter_map,
    filter_maps_across,
    pixel_map,
    result_map,
    rows_map,
    whole_map,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.order import depths, turn_of, used_steps
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import (
    dtypes,
    filter_steps,
    pack_numbers,
    pack_seconds,
    three_of,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan, phases_of_code
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.rows import padding_of
from jitdnn.kernels.cuda.cost import SECTOR_BYTES, narrow_store_seconds
from jitdnn.kernels.cuda.gemm.plan import linear_step
from jitdnn.kernels.cuda.gemm.shape import packed_divisor
from jitdnn.kernels.cuda.warpgroup.best import best_blocking
from jitdnn.kernels.cuda.warpgroup.candidates import SearchSpace, one_depth
from jitdnn.kernels.cuda.warpgroup.cost import MUCH_PADDING, begins_early
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES, SHARED_PRODUCTS, STAGE_ROW, WHOLE, Tile

_NEVER = 2**30  # behind all tiles
_MOST_FINISHED = 160  # sums of a thread, beside which there are registers for an epilogue
_WHOLE = frozenset(WHOLE)
_PIXELS_AS_COLUMNS, _PADDED = {2: 1.05, 4: 1.02}, 1.05
"""Factors on the time of products whose columns are pixels, by bytes of a result, and where many of these lie
outside."""
_MAX_SPLITS = 16
_ASKED = 2
"""Stages that are asked for before the launch before is done: behind all of a tile's, what is waited for comes late."""
_SKIPPED_OF_IMAGES, _SKIPPED_OF_VOLUMES = 1.09, {1: 1.0, 2: 1.1}
_SKIPPED_IN_LINES, _SKIPPED_STRIDED = 1.12, 1.11
"""The same where taps that read padding alone are left out, of volumes by axes, and more of lines and of strides:
products of zeros take the tensor cores less power than others."""
_BOX_ROWS = 64
"""Of the result, where these are neighbours in memory: a box has 128 bytes of them of each of its columns."""
_ROWS_OF_TILE, _L2_SHARE = 128, 0.75
"""Of a usual tile; of the L2 cache, that stays from one tap to the next."""
_TURNS_SHARE = 0.5
"""Of the L2 cache, more than which the data of stride phases are when these take turns: they would have left it until
the next one reads them."""


def correlation_plan(request: ProductRequest, row_of_lines: int = 0) -> Plan:
    """The fastest; in lines with `row_of_lines`: bytes of a row of those. Raises Refused."""
    problem, fusion, device = request.problem, request.fusion, request.device
    geometry = geometry_of(problem)
    sources = Sources.of(request, geometry, row_of_lines > 0)
    loops = Loops.of(request, geometry, sources, row_of_lines)
    sources = sources.in_rows(loops.lines.pixels)
    result = _Result(request, geometry, loops)
    products = _products(request, geometry, sources, loops, result)
    is_vector = result.is_vector
    if all(tile.swaps for tile in request.tiles) and not (is_vector and request.result.dtype == "f32"):
        raise Refused(
            "results of operands that change places leave by 16 bytes of channels of f32, which lie otherwise"
        )
    blocking, seconds = _blocking(request, sources, loops, products)
    maps_of_data, is_a_whole = _data_maps(request, sources, loops, blocking)
    maps_of_filter, is_b_whole = _filter_maps(request, geometry, sources, loops, blocking)
    is_along, by_pixels = result.strides.channel == 1, request.pixels_are_columns
    if is_along and not is_vector and blocking.is_whole:
        seconds += narrow_store_seconds(
            device.facts, sum(loops.rows) * geometry.out_channels * request.groups
        )
    is_stored_whole = blocking.is_whole and not (row_of_lines or blocking.tile.swaps)
    boxes = result.boxes(blocking.tile) if is_stored_whole else None
    maps = (*maps_of_data, *maps_of_filter, *([boxes] if boxes else []))
    works, channels = blocking.works(products), request.groups * geometry.out_channels
    workspace = sources.at + blocking.partial_bytes(products)
    room = -(-workspace // 256) * 256
    sum_rows = fusion.sum_rows(blocking, works, products.tiles_m(blocking.tile), device.multiprocessors)
    numbers = (
        *_phase_numbers(loops, blocking.tile),
        *_product_numbers(request, geometry, loops, products, blocking),
        {3: 2, 4: 0, 5: 1}[loops.rank], 0, 0, is_a_whole, is_b_whole,
        sources.at, 0, *result.numbers,
        *_operand_numbers(request, sources),
        fusion.channels, room, sum_rows, turn_of(products, blocking.tile, device.multiprocessors),
        *_shared_numbers(sources, blocking),
    )  # fmt: skip
    plan = Plan(
        False, dtypes(problem), request.result.dtype, loops.rank, len(loops.phases), products.is_across,
        is_vector and not by_pixels, (by_pixels or not is_along) and blocking.is_whole, boxes is not None,
        loops.row_bytes, blocking, works, sources.packs, Tables(maps, numbers),
        (room + 8 * sum_rows * channels) if sum_rows else workspace,
        fusion.seconds(seconds, False) + pack_seconds(sources.packs, device), fusion, channels,
        is_a_mn_major=sources.across is not None or (sources.is_mn_major and by_pixels),
        used_steps=used_steps(geometry.in_channels, loops.row_bytes, loops.row), pixels_are_columns=by_pixels,
        is_paired=loops.pair is not None,
    )  # fmt: skip
    asks = begins_early(blocking) and loops.pair is None and not any(sources.packs)
    ring = (*blocking.ring, _ASKED if asks else 0) if plan.takes_ring else ()
    pair = loops.pair.numbers(result.strides.space[2]) if loops.pair else ()
    return replace(plan, tables=replace(plan.tables, numbers=(*numbers, *ring, *pair)))


class _Result:
    """How the result lies, and by which boxes the copy engine may store it."""

    def __init__(self, request: ProductRequest, geometry: Geometry, loops: Loops) -> None:
        self._request, self._geometry, self._loops = request, geometry, loops
        self.strides = strides = geometry.result
        batch = request.batch
        self._group = batch.result if batch else strides.group
        # those of a pair lie between each other: rows of one are two results apart
        self._has_one_phase = len(loops.phases) == 1 and loops.pair is None
        steps = [geometry.out_channels, strides.image, strides.group, *strides.space]
        steps += [batch.result] if batch else []
        self.is_vector = strides.channel == 1 and all(
            n * request.result_bytes % ALIGNMENT == 0 for n in steps
        )
        self.row_step = None
        if self._has_one_phase and loops.lines == NO_LINES:
            extents = (geometry.images, *(axis.results for axis in loops.phases[0]))
            self.row_step = linear_step(extents, (strides.image, *strides.space))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Steps in elements."""
        strides = self.strides
        of_row, of_column = (
            (1, self.row_step or 0) if self._request.pixels_are_columns else (0, strides.channel)
        )
        return strides.image, self._group, of_row, of_column, *strides.space

    @cached_property
    def row_boxes(self) -> TensorMap | None:
        """Of columns, where neighbours in memory are rows; None elsewhere."""
        request, columns, step = self._request, self._geometry.out_channels, self.strides.channel
        dtype, rows = request.result.dtype, self._loops.rows[0]
        if request.pixels_are_columns:
            return result_map(dtype, columns, 1, 0, rows, self.row_step, _BOX_ROWS)
        is_fused = request.fusion.has_prologue or request.fusion.has_sums
        if self.row_step != 1 or step <= 1 or request.result_bytes != 2 or is_fused:
            return None
        return result_map(dtype, rows, request.groups, self._group, columns, step, _BOX_ROWS)

    def boxes(self, tile: Tile) -> TensorMap | None:
        """Of the chunks in which a tile leaves; None where threads store it."""
        request, geometry = self._request, self._geometry
        columns = tile.chunk_bytes(request.result_bytes) // request.result_bytes
        if self.row_boxes:
            return replace(self.row_boxes, box=(min(_BOX_ROWS, 128 // request.result_bytes), 1, columns))
        if not self.is_vector or not self._has_one_phase:
            return None
        return result_map(
            request.result.dtype, geometry.out_channels, request.groups, self._group, self._loops.rows[0],
            self.row_step, columns,
        )  # fmt: skip


def _products(
    request: ProductRequest, geometry: Geometry, sources: Sources, loops: Loops, result: _Result
) -> Products:
    """Raises Refused where pixels cannot be the columns that they are asked to be."""
    phases, across, size, by_pixels = loops.phases, sources.across, request.size, request.pixels_are_columns
    has_one_phase, data = len(phases) == 1, request.data.nbytes
    if by_pixels:
        is_usual = request.groups == 1 and has_one_phase and request.parts == 1 and not request.tiles[0].swaps
        is_usual = is_usual and result.strides.channel == 1 and size == request.result_bytes > 1
        if not is_usual or any(sources.packs) or across or not result.row_boxes or not result.row_step:
            raise Refused(
                "pixels are columns of one group whose results lie evenly, where no operand is packed"
            )
    pixels, channels = loops.rows, geometry.out_channels * (2 if loops.pair else 1)
    if loops.pair and not (sources.is_mn_major and result.is_vector and not any(sources.packs)):
        raise Refused("pairs have a filter that lies across, and results that are stored as vectors")
    uneven = sources.a[0].is_uneven, sources.b[0].is_uneven
    breaks = (
        across is not None and across.space[2] * size % SECTOR_BYTES != 0,
        sources.is_mn_major and sources.weights.image * size % SECTOR_BYTES != 0,
    )
    is_strided = any(axes[2].input_stride > 1 for axes in phases)
    has_windows_apart = (
        is_strided
        and (has_one_phase or request.skips_padding > 0)
        and loops.most_taps > 1
        and loops.lines == NO_LINES
    )
    takes_turns = not has_one_phase and len(set(pixels)) == 1
    takes_turns = takes_turns and data > _TURNS_SHARE * request.device.facts.l2_bytes
    return Products(
        (channels,) if by_pixels else pixels,
        loops.blocks,
        pixels[0] if by_pixels else channels,
        request.groups,
        is_across=sources.is_mn_major and not by_pixels,
        is_strided=is_strided,
        has_row_boxes=result.row_boxes is not None and request.result_bytes == 2,
        padding=padding_of(phases, sources.data.extents),
        is_uneven=uneven[::-1] if by_pixels else uneven,
        breaks_sectors=(breaks[1], False) if by_pixels else breaks,
        is_volume=loops.rank == 5 and (has_one_phase or request.skips_padding > 0),
        takes_turns=takes_turns,
        pixels_are_columns=by_pixels,
        data_bytes=data,
        window_bytes=(
            math.prod(request.problem.stride) * geometry.in_channels * size if has_windows_apart else 0
        ),
        half_stages=1.0 - loops.pair.both / loops.phases[0][2].taps if loops.pair else 0.0,
        skips_padding=request.skips_padding > 0,
        bytes_moved=_bytes_moved(request, geometry, loops),
    )


def _tiles(request: ProductRequest, sources: Sources, loops: Loops, columns: int) -> tuple[Tile, ...]:
    tiles, finish, by_pixels = request.tiles, request.fusion.finish, request.pixels_are_columns
    if sources.is_mn_major and not by_pixels:
        # columns come in blocks, and those that begin within a line of memory take longer than whole ones
        tiles = tuple(
            tile
            for tile in tiles
            if tile.swaps or tile.wn % tile.block == 0 or (tile.across == 1 and columns <= tile.n)
        )
    if loops.lines != NO_LINES or by_pixels:
        tiles = tuple(tile for tile in tiles if tile.cluster == 1)
    if loops.pair:
        tiles = tuple(tile for tile in tiles if tile.across == tile.cluster == 1 and tile.wn == columns)
    if not request.size == request.result_bytes == 2:
        tiles = tuple(tile for tile in tiles if tile not in _WHOLE)
    if finish != NO_FINISH:
        # nor have large ones registers for results that threads read
        is_read = finish.nbytes > 0 and not finish.read
        tiles = tuple(
            tile for tile in tiles if tile.sums <= _MOST_FINISHED and not (is_read and tile in _WHOLE)
        )
    tiles = request.fusion.tiles(tiles, request.result_bytes, False)
    if request.divides_rows:
        tiles = tuple(tile for tile in tiles if tile.rows == tile.cluster == 1)
    return tiles


def _bytes_moved(request: ProductRequest, geometry: Geometry, loops: Loops) -> int:
    """From and to memory. What all tiles read for a tap may be gone from L2 when they read it for the next."""
    device, data = request.device, request.data.nbytes
    of_tap = device.multiprocessors * _ROWS_OF_TILE * geometry.in_channels * request.size
    is_again = (
        not (request.batch or loops.lines != NO_LINES)
        and min(of_tap, data) > _L2_SHARE * device.facts.l2_bytes
    )
    return request.bytes_moved + ((loops.most_taps - 1) * data if is_again else 0)


def _blocking(
    request: ProductRequest, sources: Sources, loops: Loops, products: Products
) -> tuple[Blocking, float]:
    """The fastest one and its time."""
    by_pixels, is_in_lines = request.pixels_are_columns, loops.lines != NO_LINES
    found = best_blocking(
        products, _traits(request, loops), _space(request, sources, loops, products), request.device,
        limit=request.limit,
    )  # fmt: skip
    if not found:
        in_time = " in so little time" if request.limit < math.inf else ""
        raise Refused(f"no tile fits into the shared memory of the device{in_time}")
    blocking, seconds = found
    if by_pixels:
        padded = _PADDED if products.padding > MUCH_PADDING else 1.0
        seconds *= _PIXELS_AS_COLUMNS[request.result_bytes] * padded
    if request.skips_padding:
        seconds *= _SKIPPED_OF_VOLUMES[request.skips_padding] if products.is_volume else _SKIPPED_OF_IMAGES
        seconds *= _SKIPPED_IN_LINES if is_in_lines else _SKIPPED_STRIDED if products.is_strided else 1.0
    return blocking, seconds


def _traits(request: ProductRequest, loops: Loops) -> KernelTraits:
    return KernelTraits(
        request.parts,
        request.result_bytes,
        loops.row_bytes,
        is_promoted=request.parts > 1 or request.problem.has_float8,
        divides_rows=request.divides_rows,
        lines=loops.lines,
        finish=request.fusion.finish,
    )


def _space(request: ProductRequest, sources: Sources, loops: Loops, products: Products) -> SearchSpace:
    fusion, size, is_plain = request.fusion, request.size, request.parts == 1
    is_in_lines, by_pixels, is_paired = (
        loops.lines != NO_LINES,
        request.pixels_are_columns,
        loops.pair is not None,
    )
    is_fused = fusion.has_prologue or fusion.has_sums
    is_wide = size == request.result_bytes == 2
    is_whole = request.divides_rows or fusion.has_prologue
    may_share = request.uses_workspace and size == 2 and is_plain and request.groups == len(loops.phases) == 1
    may_share = may_share and not (
        is_paired
        or any(sources.packs)
        or is_in_lines
        or is_whole
        or fusion.has_sums
        or sources.across
        or by_pixels
    )
    has_depths = loops.row == loops.row_bytes == STAGE_ROW and is_plain and not (is_whole or is_in_lines)
    may_split = (
        not is_paired and request.uses_workspace and max(loops.blocks) > 1 and not (is_in_lines or by_pixels)
    )
    return SearchSpace(
        _tiles(request, sources, loops, products.n),
        loops.row,
        depths if has_depths else one_depth,
        _MAX_SPLITS if may_split else 1,
        fusion.shared,
        may_keep_b=not (fusion.has_prologue or by_pixels or is_paired),
        may_keep_across=size == 2 and is_plain and loops.row_bytes == STAGE_ROW and not is_in_lines,
        shared=SHARED_PRODUCTS if may_share else (),
        most_tiles=1,
        may_leave_at_once=not is_fused and (sources.data.dtype == "f32" or is_wide),
    )


def _data_maps(
    request: ProductRequest, sources: Sources, loops: Loops, blocking: Blocking
) -> tuple[list[TensorMap], bool]:
    """Of A, by stride phases and parts, and whether one copy brings all blocks of a tile's rows."""
    tile, lines, is_batch = blocking.tile, loops.lines, request.batch is not None
    if sources.across:
        given = sources.across, STAGE_ROW, blocking.row // request.size
        whole = whole_map(*given, tile.m // BLOCK, is_batch)
        one = whole or rows_map(*given, is_batch)
        assert one
        return [one], whole is not None
    maps = []
    rows_of_tile = tile.n if request.pixels_are_columns else tile.m + lines.further
    for axes in loops.phases:
        base, results, steps = (
            three_of(getattr(axis, name) for axis in axes) for name in ("base", "results", "input_stride")
        )
        for part in sources.a:
            one = pixel_map(
                part, loops.rank, base, results, steps, loops.row_bytes * lines.pixels, rows_of_tile,
                not request.divides_rows,
            )  # fmt: skip
            if one is None:
                raise Refused("windows begin farther outside of the image than the copy engine takes")
            maps.append(one)
    # one module serves several numbers of stride phases: those that there are not begin behind the last tile
    return maps + maps[-request.parts :] * _absent(loops), False


def _filter_maps(
    request: ProductRequest, geometry: Geometry, sources: Sources, loops: Loops, blocking: Blocking
) -> tuple[list[TensorMap], bool]:
    """Of B, and whether one copy brings all blocks of a tile's columns."""
    tile, rows = blocking.tile, loops.row_bytes // request.size
    by_pixels = request.pixels_are_columns
    if not sources.is_mn_major:
        return [filter_map(part, rows, tile.m if by_pixels else tile.wn) for part in sources.b], False
    block, columns = (BLOCK, tile.m) if by_pixels else (tile.block, tile.n)
    step = filter_steps(geometry, request.problem.direction == "fwd", request.batch)[0]
    # a box has one block of columns behind the other, which is how a stage of one row has them
    may_be_whole = blocking.row == loops.row_bytes and step % block == 0 and not loops.pair
    return filter_maps_across(sources.b, rows, block, columns, may_be_whole)


def _phase_numbers(loops: Loops, tile: Tile) -> list[int]:
    before, numbers = 0, []
    for rows, axes in zip(loops.rows, loops.phases, strict=True):
        numbers += [before, rows, *(number for axis in axes for number in axis.numbers)]
        before += -(-rows // tile.m)
    return numbers + [_NEVER, *([0] * 28)] * _absent(loops)


def _product_numbers(
    request: ProductRequest, geometry: Geometry, loops: Loops, products: Products, blocking: Blocking
) -> tuple[int, ...]:
    tile, batch, channels = blocking.tile, request.batch, geometry.in_channels
    return (
        blocking.works(products), blocking.splits, request.groups, products.tiles_m(tile), products.tiles_n(tile),
        blocking.blocks_of_split, _strip(products, blocking),
        *_divisors(request, loops, products, blocking), *products.sizes, channels,
        loops.channel_blocks, 0 if batch else channels, 1 if batch else 0,
        *filter_steps(geometry, request.problem.direction == "fwd", batch),
    )  # fmt: skip


def _strip(products: Products, blocking: Blocking) -> int:
    """Tiles that are numbered across before those below them."""
    # a thread block, of as many as are a multiple of the tiles across, has tiles with the same columns
    return blocking.kept_across if blocking.kept_across > 1 else products.strip(blocking.tile)


def _divisors(request: ProductRequest, loops: Loops, products: Products, blocking: Blocking) -> list[int]:
    """`CorrelationDivisors` of tables.cuh, of kernels that have them."""
    if len(loops.phases) == loops.lines.taps == 1:
        return []
    tile, phases = blocking.tile, loops.phases
    tiles, strip = products.tiles(tile), _strip(products, blocking)
    turn = turn_of(products, tile, request.device.multiprocessors) or 1
    divided_by = [
        blocking.splits if tile.cluster > 1 else tiles, tiles // request.groups, products.tiles_m(tile) * strip, strip,
        turn * len(phases), turn, *(axis.results for axes in phases for axis in axes), *[1] * 3 * _absent(loops),
    ]  # fmt: skip
    return [packed_divisor(number) for number in divided_by]


def _operand_numbers(request: ProductRequest, sources: Sources) -> tuple[int, ...]:
    data, taps = sources.data, sources.weights.extents
    packs = Pack(data, 0) if request.divides_rows else sources.packs[0], sources.packs[1]
    return *pack_numbers(packs), 0, math.prod(taps[1:]), taps[2], 1, *data.extents


def _shared_numbers(sources: Sources, blocking: Blocking) -> tuple[int, ...]:
    """Where thread blocks have equal parts of the K of all tiles."""
    tile, sharers = blocking.tile, blocking.sharers
    return (blocking.in_step, sharers, sources.at + 4 * sharers * tile.m * tile.n) if sharers else ()


def _absent(loops: Loops) -> int:
    return phases_of_code(len(loops.phases)) - len(loops.phases)
