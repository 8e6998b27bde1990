"""What a correlation costs that is vectorized over pixels, and the tile that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import OverPixels, PixelTile
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.processor import Processor

_MOST_VECTORS = 8
_STORE = 0.6  # cycles to finish one vector of sums, the rest being hidden behind the next tile
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_ROW = 0.4  # cycles to begin a row of the input
_TILE = 20.0  # cycles to begin and end a tile
_MISSES = 24  # cache lines that can be on their way at once
_MISS = 8.0  # cycles that a tile waits for each prefetched line beyond that
_CODE = 40_000  # multiply-adds of code that cost as much as the whole computation
_EVICTED_LINE = 3.0  # cycles for a line of the image that L2 could not keep
_L2_FILTER_LINE, _L3_FILTER_LINE = 3.0, 8.0  # cycles for a line of the filter from L2, and from beyond
_PLAIN_LINE, _STRIDED_LINE = (
    4.0,
    7.0,
)  # cycles for a line of the input of a tile that L1 does not have in time
_PIECE = 4.0  # cycles to store a row of a tile, where those of all channels evict each other from L2
_HIDING = 64  # products with each element of an image, up to which nothing is hidden


def choose(c: Correlation, last_axes: tuple[Axis, ...], isa: Isa) -> OverPixels:
    """The cheapest plan."""
    return min(_candidates(c, last_axes, isa), key=_slice_cycles)


def cycles(plan: OverPixels) -> float:
    """Cycles of one thread for the whole."""
    c = plan.c
    return c.batch * c.group_count * c.axes[0].results * _slice_cycles(plan) + _traffic(plan)


def _candidates(c: Correlation, last_axes: tuple[Axis, ...], isa: Isa) -> Iterator[OverPixels]:
    least = OverPixels(c, isa, last_axes, PixelTile(1, 1, 1))
    yield least
    most = ceil_div(last_axes[0].results, least.lanes)
    for vectors in range(1, min(_MOST_VECTORS, most) + 1):
        room = (isa.registers - least.span.registers - vectors) // (vectors * len(last_axes))
        for rows in range(1, min(room, c.axes[1].results) + 1):
            for channels in block_sizes(c.width, room // rows):
                plan = OverPixels(c, isa, last_axes, PixelTile(channels, rows, vectors))
                if rows == 1 or plan.is_unrolled or plan.is_sliding:
                    yield plan


def _slice_cycles(plan: OverPixels) -> float:
    """Cycles of one slice of one group of one image."""
    c, tile = plan.c, plan.tile
    full, rest = divmod(c.width, tile.channels)
    total = full * _tile_cycles(plan)
    if rest:
        total += _tile_cycles(plan.narrowed(rest))
    return total * plan.row_tiles * ceil_div(c.axes[1].results, tile.rows)


def _tile_cycles(plan: OverPixels) -> float:
    c, tile, row_taps, processor = plan.c, plan.tile, plan.row_taps, plan.processor
    planes, taps = c.depth * c.axes[0].taps.count, c.axes[1].taps.count * row_taps
    sums = plan.products
    lines = tile.rows - 1 + c.axes[1].taps.count
    columns = row_taps
    if plan.is_unrolled:
        lines, columns = len(plan.row_reads), len(plan.reads)
    loads = lines * columns * tile.vectors * plan.span.slots
    if not plan.filter_fits_registers:
        loads += tile.channels * tile.rows * taps * _broadcast_slots(plan)
    read = min(lines, c.axes[1].positions) * tile.vectors * abs(plan.span.step)  # cache lines
    late = 0.0
    is_strided = c.axes[2].step > 1
    in_time = processor.l1(cost.DIRECT_STRIDED_INPUT_L1 if is_strided else cost.DIRECT_INPUT_L1)
    if plan.prefetches_row and not is_strided:
        in_time //= 3
    if planes * read * processor.line_bytes > in_time:
        late = read * (_STRIDED_LINE if is_strided else _PLAIN_LINE)
    if plan.prefetches_row:
        loads += read * (2 if row_taps == 1 and c.x.channels % plan.lanes else 1)
    plane = max(sums * taps / 2, loads / 2, late, 4.0 * taps) + 0.5 + _ROW * lines
    plane += _filter_lines(plan)
    step = plan.pixel_step(c.y)
    store = _STORE if step == 1 else _SCATTERED_LANE * plan.lanes
    prefetched = tile.rows * c.axes[1].step * tile.vectors * c.axes[2].step
    if step == 1 and tile.rows < c.axes[1].results:  # the next rows share the cache with the results
        store += max(0, prefetched - _MISSES) * _MISS / sums
        way = cost.l2_way_bytes(processor)
        apart = math.gcd(c.y.channels * plan.item, way)
        if not plan.is_nontemporal and c.width * apart > cost.L2_WAYS * way:
            store += _PIECE / tile.vectors
    code = sums * (c.axes[1].taps.count if plan.is_unrolled else tile.rows)
    code *= row_taps if plan.is_row_unrolled else 1
    return (planes * plane + sums * plan.stride_phases * store + _TILE) * (1 + code / _CODE)


def _filter_lines(plan: OverPixels) -> float:
    """Cycles that a plane waits for lines of the filter, where its results are neighbours and its planes apart.

    Such lines are brought for few values each, one tile after the other, and planes far apart evict each other.
    """
    c, processor = plan.c, plan.processor
    apart = abs(c.w.channels) * plan.item
    if abs(c.w.results) != 1 or apart < processor.line_bytes or plan.filter_fits_registers:
        return 0.0
    lines = c.depth * c.taps
    if lines <= cost.l1_ways(processor) * _sets(cost.L1_WAY_BYTES, apart, processor):
        return 1.0
    sets = _sets(cost.l2_way_bytes(processor), apart, processor)
    line = _L2_FILTER_LINE if lines <= cost.L2_WAYS * sets else _L3_FILTER_LINE
    return c.axes[1].taps.count * plan.row_taps * line


def _broadcast_slots(plan: OverPixels) -> float:
    """Load slots of one value of the filter: many if the channels' values evict each other."""
    apart = abs(plan.c.w.results) * plan.item
    sets = _sets(cost.L1_WAY_BYTES, apart, plan.processor)
    return 1.0 if plan.tile.channels <= cost.l1_ways(plan.processor) * sets else 6.0


def _sets(way: int, apart: int, processor: Processor) -> int:
    """Sets of a cache that addresses ``apart`` bytes from each other fall into; a way of it has ``way`` bytes."""
    return min(way // math.gcd(apart, way), way // processor.line_bytes)


def _traffic(plan: OverPixels) -> float:
    """Cycles to bring the image from L3 or memory; the more products use an element, the more of them are hidden."""
    c, processor = plan.c, plan.processor
    read = c.batch * c.group_count * c.depth * plan.item
    read *= math.prod(min(axis.positions, axis.results * max(1, axis.taps.count)) for axis in c.axes[:2])
    read *= c.axes[2].positions
    if plan.stride_phases > 1:  # every other row of the result is written
        pixels = c.axes[0].results * c.axes[1].results * plan.row_pixels
        read += c.batch * c.group_count * c.width * plan.item * pixels
    is_strided = c.axes[1].step > 1 or plan.stride_phases > 1  # neighbouring rows are prefetched
    l3_bytes = processor.l3(cost.DIRECT_IMAGES_L3)
    resident = processor.l2(cost.DIRECT_STRIDED_IMAGES_L2) if is_strided else l3_bytes
    if not c.taps or plan.prefetches_row or read <= resident:
        return _evicted(plan)
    products = c.axes[0].taps.count * c.axes[1].taps.count * plan.row_taps * c.width
    rate = cost.DIRECT_MEMORY_RATE * processor.memory_rate
    if read <= l3_bytes:
        rate = cost.DIRECT_STRIDED_L3_RATE * processor.l3_rate
    return max(_evicted(plan), read / (rate * max(1.0, products / _HIDING)))


def _evicted(plan: OverPixels) -> float:
    """Cycles to bring the image again for each tile of channels, of several stride phases.

    Its planes lie so that L2 cannot keep a line of each.
    """
    c, tile = plan.c, plan.tile
    way, line = cost.l2_way_bytes(plan.processor), plan.processor.line_bytes
    apart = math.gcd(abs(c.x.channels) * plan.item, way)
    lines = c.depth * tile.vectors * min(tile.rows + c.axes[1].taps.count - 1, c.axes[1].positions)
    if plan.stride_phases == 1 or lines <= cost.L2_WAYS * max(1, way // max(apart, line)):
        return 0.0
    tiles = plan.row_tiles * ceil_div(c.axes[1].results, tile.rows) * ceil_div(c.width, tile.channels)
    count = c.batch * c.group_count * c.axes[0].results * tiles
    return count * lines * c.axes[0].taps.count * _EVICTED_LINE
