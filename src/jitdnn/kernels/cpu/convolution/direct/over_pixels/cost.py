"""What a correlation costs that is vectorized over pixels, and the tile that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import OverPixels, PixelTile
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.isa import Isa

_MOST_VECTORS = 8
_STORE = 0.6  # cycles to finish one vector of sums, the rest being hidden behind the next tile
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_ROW = 0.4  # cycles to begin a row of the input
_TILE = 20.0  # cycles to begin and end a tile
_MISSES = 24  # cache lines that can be on their way at once
_MISS = 8.0  # cycles that a tile waits for each prefetched line beyond that
_CODE = 40_000  # multiply-adds of code that cost as much as the whole computation
_L1_ALIASING, _L1_WAYS = 4096, 8  # addresses this far apart share the ways of one set of L1
_L2_ALIASING, _L2_WAYS = 64 << 10, 16
_LINE = 64
_L1_SETS = _L1_ALIASING // _LINE
_EVICTED_LINE = 3.0  # cycles for a line of the image that L2 could not keep
_L2_FILTER_LINE, _L3_FILTER_LINE = 3.0, 8.0  # cycles for a line of the filter from L2, and from beyond
_PLAIN_BYTES, _STRIDED_BYTES = 32 << 10, 8 << 10  # of a tile's input that L1 has in time
_PLAIN_LINE, _STRIDED_LINE = 4.0, 7.0  # cycles for a line of a larger one
_PIECE = 4.0  # cycles to store a row of a tile, where those of all channels evict each other from L2
_L2_BYTES, _L3_BYTES = 768 << 10, 8 << 20  # of the images that may still be there
_HIDING = 64  # products with each element of an image, up to which nothing is hidden
_STRIDED_RATE, _MEMORY_RATE = 16.0, 8.0  # bytes a cycle of images: of every other row, and from memory


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
    c, tile, row_taps = plan.c, plan.tile, plan.row_taps
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
    close = _STRIDED_BYTES if is_strided else _PLAIN_BYTES // (3 if plan.prefetches_row else 1)
    if planes * read * _LINE > close:
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
        apart = math.gcd(c.y.channels * plan.item, _L2_ALIASING)
        if not plan.is_nontemporal and c.width * apart > _L2_WAYS * _L2_ALIASING:
            store += _PIECE / tile.vectors
    code = sums * (c.axes[1].taps.count if plan.is_unrolled else tile.rows)
    code *= row_taps if plan.is_row_unrolled else 1
    return (planes * plane + sums * plan.stride_phases * store + _TILE) * (1 + code / _CODE)


def _filter_lines(plan: OverPixels) -> float:
    """Cycles that a plane waits for lines of the filter, where its results are neighbours and its planes apart.

    Such lines are brought for few values each, one tile after the other, and planes far apart evict each other.
    """
    c = plan.c
    apart = abs(c.w.channels) * plan.item
    if abs(c.w.results) != 1 or apart < _LINE or plan.filter_fits_registers:
        return 0.0
    lines = c.depth * c.taps
    if lines <= _L1_WAYS * min(_L1_ALIASING // math.gcd(apart, _L1_ALIASING), _L1_SETS):
        return 1.0
    sets = min(_L2_ALIASING // math.gcd(apart, _L2_ALIASING), _L2_ALIASING // _LINE)
    line = _L2_FILTER_LINE if lines <= _L2_WAYS * sets else _L3_FILTER_LINE
    return c.axes[1].taps.count * plan.row_taps * line


def _broadcast_slots(plan: OverPixels) -> float:
    """Load slots of one value of the filter: many if the channels' values evict each other."""
    apart = abs(plan.c.w.results) * plan.item
    sets = min(_L1_ALIASING // math.gcd(apart, _L1_ALIASING), _L1_SETS)
    return 1.0 if plan.tile.channels <= _L1_WAYS * sets else 6.0


def _traffic(plan: OverPixels) -> float:
    """Cycles to bring the image from L3 or memory; the more products use an element, the more of them are hidden."""
    c = plan.c
    read = c.batch * c.group_count * c.depth * plan.item
    read *= math.prod(min(axis.positions, axis.results * max(1, axis.taps.count)) for axis in c.axes[:2])
    read *= c.axes[2].positions
    if plan.stride_phases > 1:  # every other row of the result is written
        pixels = c.axes[0].results * c.axes[1].results * plan.row_pixels
        read += c.batch * c.group_count * c.width * plan.item * pixels
    is_strided = c.axes[1].step > 1 or plan.stride_phases > 1  # neighbouring rows are prefetched
    if not c.taps or plan.prefetches_row or read <= (_L2_BYTES if is_strided else _L3_BYTES):
        return _evicted(plan)
    products = c.axes[0].taps.count * c.axes[1].taps.count * plan.row_taps * c.width
    rate = _STRIDED_RATE if read <= _L3_BYTES else _MEMORY_RATE
    return max(_evicted(plan), read / (rate * max(1.0, products / _HIDING)))


def _evicted(plan: OverPixels) -> float:
    """Cycles to bring the image again for each tile of channels, of several stride phases.

    Its planes lie so that L2 cannot keep a line of each.
    """
    c, tile = plan.c, plan.tile
    apart = math.gcd(abs(c.x.channels) * plan.item, _L2_ALIASING)
    lines = c.depth * tile.vectors * min(tile.rows + c.axes[1].taps.count - 1, c.axes[1].positions)
    if plan.stride_phases == 1 or lines <= _L2_WAYS * max(1, _L2_ALIASING // max(apart, _LINE)):
        return 0.0
    tiles = plan.row_tiles * ceil_div(c.axes[1].results, tile.rows) * ceil_div(c.width, tile.channels)
    count = c.batch * c.group_count * c.axes[0].results * tiles
    return count * lines * c.axes[0].taps.count * _EVICTED_LINE
