"""What a WinogradPlan correlation costs, and the cheapest way to cut one.

Cycles of one thread, counted from instructions: two multiply-adds or other vector operations a cycle, one store. What
does not stay in a cache close by costs its bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu.convolution.winograd.candidates import Tiling
from jitdnn.kernels.cpu.convolution.winograd.plan import MOST_TERMS, WinogradPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.constant_matrix import Matrix, operations
from jitdnn.kernels.cpu.microkernel.register_tiles import step_cycles
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_CALL = 12.0  # cycles of a call of a transform, its addresses and the wait for its first loads
_SECOND_CACHE = 768 << 10  # bytes of the second cache that a thread may count on
_THIRD_CACHE = 16 << 20
_THIRD_RATE = 12.0  # bytes a cycle from the third cache
_MEMORY_RATE = 6.0  # and from memory
_STAY = 10 << 20  # bytes of transformed data that are there for every panel
_KEPT = 6 << 20  # bytes of transformed data and filter that the third cache keeps all of
_LOST = 24 << 20  # and that it keeps next to nothing of
_CLOSE = 224 << 10  # bytes of transformed data that are still in the second cache when they are multiplied
_FAR_RATE = 13.0  # bytes a cycle of those that are not, and of what they drive out
_HIDDEN = 0.75  # of the time of the products, in which what they read arrives
_BEHIND = 1.3  # times the price of the best way, with a few sizes of blocks: dearer ways are out
_WIDTHS = (12, 14, 16, 24, 28, 40, 56, 84, 112, 168, 224)  # tiles of a block


def cycles(p: WinogradPlan, is_kept: bool = False) -> float:
    """Cycles of one thread for the whole; ``is_kept``: the filter is there already."""
    c = p.c
    filters = 0.0 if is_kept else _filter_cycles(p)
    rest = _data_cycles(p) + _product_cycles(p) + _result_cycles(p) + _traffic_cycles(p, is_kept)
    return c.group_count * (filters + rest)


def _grid_operations(first: Matrix, second: Matrix) -> float:
    """Vector operations of both matrices applied to a grid."""
    return operations(first) * len(second[0]) + operations(second) * len(first)


def _tile_cycles(arithmetic: float, loads: int, stores: int) -> float:
    return _CALL + max(arithmetic / 2, loads / 2, stores) + 0.4 * min(arithmetic / 2, stores)


def _kinds(p: WinogradPlan) -> Iterator[tuple[int, bool, bool]]:
    """How many pairs of phases there are of each kind."""
    for start, stop, row in p.rows.phase_kinds:
        for first, end, column in p.columns.phase_kinds:
            yield (stop - start) * (end - first), row, column


def _filter_cycles(p: WinogradPlan) -> float:
    vectors = p.panels.count * p.tile.vectors * p.c.depth
    one = 0.0
    for number, row, column in _kinds(p):
        first, second = p.rows.filter_matrix(row), p.columns.filter_matrix(column)
        arithmetic = _grid_operations(first, second)
        one += number * _tile_cycles(arithmetic, len(first[0]) * len(second[0]), len(first) * len(second))
    return vectors * (p.sources[0] * one + _staging_cycles(p))


def _staging_cycles(p: WinogradPlan) -> float:
    """Laying out the taps of one channel for a vector of results: as they lie, or by squares that are transposed."""
    w, taps = p.c.w, math.prod(p.panels.taps)
    if w.results == 1:
        return 1.5 * taps
    if w.channels == 1 or abs(w.channels) == taps:  # squares are full
        return 4.5 * taps
    return ceil_div(taps, p.lanes) * 4.5 * p.lanes


def _data_cycles(p: WinogradPlan) -> float:
    c = p.c
    if p.folds:
        return _folded_cycles(p)
    vectors = ceil_div(c.depth, p.lanes)
    tile = 0.0
    for number, row, column in _kinds(p):
        maps = p.rows.data_matrix(row), p.columns.data_matrix(column)
        places = len(maps[0]) * len(maps[1])
        tile += number * _tile_cycles(_grid_operations(*maps), places, places)
    tile /= p.rows.phases * p.columns.phases
    tiles = p.strips * p.strip_tiles * p.source_count
    lines = p.strips * p.sources[0] * p.rows.phases * p.rows.places
    if p.reads_directly:
        outside = 1.0 - _inside(p)
        copies = outside * tiles * p.places * 5.0
    elif p.reads_channels:
        copies = lines * p.read_positions * (3.0 if c.x.channels == 1 else 2.0 * p.lanes)
    else:
        square = 4.0 * p.lanes * _of_stride(c.x.space[p.tiled[1]], p.lanes)
        copies = lines * ceil_div(min(p.read_positions, p.columns.axis.positions), p.lanes) * square
    return vectors * (tiles * tile + copies)


def _folded_cycles(p: WinogradPlan) -> float:
    """`_data_cycles` where channels and phases share vectors."""
    maps = p.rows.data_matrix(False), p.columns.data_matrix(False)
    tile = _tile_cycles(_grid_operations(*maps), p.places, p.places)
    step = p.columns.axis.step
    loads = 0.75 * step if p.c.x.space[p.tiled[1]] == 1 else p.lanes / 2  # and the shuffles of what is loaded
    square = p.lanes * (2.5 + loads)
    copies = p.strips * p.rows.places * ceil_div(p.laid_positions, p.lanes) * square
    vectors = p.sources[0] * ceil_div(p.folded, p.lanes)
    return vectors * (p.strips * p.strip_tiles * tile + copies)


def _inside(p: WinogradPlan) -> float:
    """The part of the tiles that read nothing outside, about."""
    part = 1.0
    for axis in (p.rows, p.columns):
        ends = (axis.axis.taps.lowest < 0) + axis.axis.is_padded
        part *= max(0.0, 1.0 - ends / axis.turns) if axis.axis.is_padded else 1.0
    return part


def _product_cycles(p: WinogradPlan) -> float:
    groups = p.row_groups
    step = sum(count * step_cycles(rows, p.tile.vectors) for rows, count in groups)
    calls = sum(count * (10.0 + rows * p.tile.vectors) for rows, count in groups)
    if not p.is_filter_first:
        sums = ceil_div(p.c.depth, p.chunk)
    else:
        most = p.portion or p.c.depth
        sums = ceil_div(p.c.depth, most)
        if p.source_count * most > p.sources[0] * MOST_TERMS:
            sums *= p.source_count * ceil_div(most, p.terms)
        elif p.source_count * most > MOST_TERMS:
            sums *= p.sources[0]
    # products of all sources at all places: short phases have none at the last one
    products = p.sources[0] * sum(
        number * (p.rows.places - row) * (p.columns.places - column) for number, row, column in _kinds(p)
    )
    filled = p.strips / (p.blocks * p.block)  # the last block may be cut
    return p.panels.count * p.blocks * filled * (step * products * p.c.depth + p.places * calls * sums)


def _result_cycles(p: WinogradPlan) -> float:
    c = p.c
    vectors = ceil_div(c.width, p.lanes)
    maps = p.rows.filtering().result, p.columns.filtering().result
    tile = _tile_cycles(_grid_operations(*maps), p.places, math.prod(p.outputs))
    lines = p.strips * p.outputs[0] * min(1.0, p.rows.axis.results / (p.rows.tiles * p.outputs[0]))
    results = min(p.columns.axis.results, p.run * p.columns.outputs * p.columns.spread)
    if p.writes_channels:
        copies = lines * results * (3.0 if c.y.channels == 1 else 2.0 * p.lanes)
    else:
        square = 3.5 * p.lanes * _of_stride(c.y.space[p.tiled[1]], p.lanes)
        copies = lines * ceil_div(results, p.lanes) * square
    return vectors * (p.strips * p.strip_tiles * tile + copies)


def _of_stride(stride: int, lanes: int) -> float:
    """What a stride makes of the cycles of a load or store: some are shuffled, larger ones go lane by lane."""
    return 1.0 if stride == 1 else 2.0 if 2 <= stride <= 4 else lanes / 2


def _traffic_cycles(p: WinogradPlan, is_kept: bool) -> float:
    """What the caches close by do not hold, as far as it does not arrive while products are computed."""
    c, item = p.c, ITEM_BYTES[p.c.dtype]
    data, sums, panel = (n * item for n in (p.data_elements, p.sum_elements, p.panel_elements))
    filters = p.panels.count * panel
    image = c.batch * math.prod(min(a.positions, a.results * a.step) for a in c.axes) * c.depth * item
    result = c.batch * math.prod(a.results for a in c.axes) * c.width * item
    far = min(
        1.0, max(0.0, (image + result - _THIRD_CACHE) / _THIRD_CACHE)
    )  # the part that is not in a cache
    given = (image + 2.0 * result) * (far / _MEMORY_RATE + (1.0 - far) / _THIRD_RATE) / 1.4
    given += c.width * c.depth * c.taps * item / (2.0 * _MEMORY_RATE)
    if not p.is_filter_first:
        # a chunk's channels may begin and end within a line
        lines = 1.0 if p.chunk == c.depth or p.chunk % p.lanes == 0 else (p.chunk + p.lanes - 1) / p.chunk
        streamed = p.panels.count * data * lines / _rate(2.0 * data)
        chunks = ceil_div(c.depth, p.chunk) * p.panels.count
        inner = data * _again(data)
        if sums + panel > _SECOND_CACHE:
            inner += 2.0 * chunks * min(sums, 2.0 * (sums + panel - _SECOND_CACHE)) / _THIRD_RATE
        return given + inner + max(0.0, streamed - _HIDDEN * _product_cycles(p))
    streamed = (
        p.blocks * filters / _rate(c.group_count * filters) if data + sums + filters > _SECOND_CACHE else 0.0
    )
    portions = ceil_div(c.depth, p.portion or c.depth)
    inner = p.blocks * portions * data * min(1.0, max(0.0, data / _CLOSE - 1.0)) / _FAR_RATE
    if data + sums + min(filters, _SECOND_CACHE / 2) > _SECOND_CACHE:
        again = portions * data * _again(data + min(filters, _KEPT))
        inner += p.blocks * (again + (1 if p.portion else p.panels.count) * sums / _THIRD_RATE)
        if data > _SECOND_CACHE / 2:
            streamed += p.blocks * p.panels.count * data / _THIRD_RATE
    if not is_kept:
        inner += 2.0 * filters / _rate(c.group_count * filters)
    return given + inner + max(0.0, streamed - _HIDDEN * _product_cycles(p))


def _again(held: float) -> float:
    """Cycles a byte to write transformed data and to read them again, of ``held`` bytes used in turn.

    They are written line by line to every place. From memory each line is read before it is written.
    """
    lost = min(1.0, max(0.0, (held - _KEPT) / (_LOST - _KEPT)))
    return (1.0 - lost) / _THIRD_RATE + lost * 4.5 / _MEMORY_RATE


def _rate(held: float) -> float:
    """Bytes a cycle of what is ``held`` bytes and used in turn."""
    return _THIRD_RATE if held <= _THIRD_CACHE else _MEMORY_RATE


@functools.lru_cache(maxsize=512)
def choose_winograd(c: Correlation, isa: Isa, ways: tuple[Tiling, ...], keeps: bool = False) -> WinogradPlan:
    """The cheapest way to cut a correlation whose taps are in order, of the given (axes, results of a tile).

    ``keeps``: the filter will have been transformed, so it must not stay.
    """

    def price(p: WinogradPlan) -> float:
        return cycles(p, keeps) * _waiting(p)

    # a few sizes of blocks of every way first: one that lags far behind does not win by another size
    found = [list(_candidates(c, isa, way, keeps)) for way in ways]
    first = [min(cycles(p, keeps) for p in plans[:1] + plans[1:3] + plans[4::3]) for plans in found]
    near = (
        p for plans, least in zip(found, first, strict=True) if least <= _BEHIND * min(first) for p in plans
    )
    return min(near, key=price)


def _waiting(p: WinogradPlan) -> float:
    """The time that threads wait for the last task, as a factor: the mean for one, two and four of them."""
    tasks = p.c.group_count * (p.blocks if p.is_filter_first else p.panels.count)
    return sum(ceil_div(tasks, threads) * threads / tasks for threads in (1, 2, 4)) / 3


def _candidates(c: Correlation, isa: Isa, way: Tiling, keeps: bool) -> Iterator[WinogradPlan]:
    tiled, outputs, parts = way
    whole = WinogradPlan(c, isa, tiled, outputs, True, 1, parts)
    if not keeps and whole.strips * whole.strip_tiles <= _WIDTHS[-1]:
        at_once = replace(whole, is_filter_first=False, block=whole.strips)
        if at_once.data_elements * ITEM_BYTES[c.dtype] <= _STAY:  # every panel reads them line by line
            yield at_once
    sizes = {max(1, min(whole.strips, round(width / whole.strip_tiles))) for width in _WIDTHS}
    # blocks of equal size
    for block in sorted({ceil_div(whole.strips, ceil_div(whole.strips, size)) for size in sizes}):
        yield replace(whole, block=block)
        if (portion := _portion(replace(whole, block=block))) < c.depth:
            yield replace(whole, block=block, portion=portion)


def _portion(p: WinogradPlan) -> int:
    """Channels of a block whose data stay close until they have been multiplied, if their sums may wait meanwhile."""
    item = ITEM_BYTES[p.c.dtype]
    lines = ceil_div(p.data_elements * item, _CLOSE)
    if lines <= 1 or p.folds or p.panels.count * p.panel_sums * item > _CLOSE:
        return p.c.depth
    channels = ceil_div(p.c.depth, lines)
    return ceil_div(channels, p.lanes) * p.lanes
