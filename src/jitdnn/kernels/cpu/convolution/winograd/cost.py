"""What a plan of minimal filtering costs in cycles of one thread, and the cheapest plan of a correlation.

Counted from instructions: two multiply-adds or other vector operations a cycle, one store. What is not in the L2 cache
costs its bytes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.axes import Tiling
from jitdnn.kernels.cpu.convolution.winograd.candidates import blockings, regular_blockings
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.constant_matrix import grid_operations
from jitdnn.kernels.cpu.microkernel.register_tiles import LEAST_STEP_CYCLES, step_cycles
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.processor import Processor

Candidate = TypeVar("Candidate")

_CALL = 12.0  # cycles of a call of a transform, its addresses and the wait for its first loads
_HIDDEN = 0.75  # of the time of the products, in which what they read arrives
_SLACK = 1.02  # on the cost of a plan whose code other batches share
_MANY = 64  # images
_BEHIND = 1.3  # tilings whose first few blockings cost more than the best by this factor are out


Shared = dict[tuple[str, int], float]
"""Cycles that do not depend on the blocking, by what they are for and what else they depend on."""


def cycles(p: WinogradPlan, is_prepacked: bool = False, shared: Shared | None = None) -> float:
    """Cycles of one thread for everything; ``is_prepacked``: without the transform of the filter. ``shared`` has what
    other blockings of the same tiling cost alike, and gets what is not there."""
    known: Shared = {} if shared is None else shared

    def once(name: str, depends_on: int, price: Callable[[WinogradPlan], float]) -> float:
        key = (name, depends_on)
        if key not in known:
            known[key] = price(p)
        return known[key]

    order = int(p.is_data_resident)
    filters = 0.0 if is_prepacked else once("filter", 2 * p.register_tile.vectors + order, _filter_cycles)
    products = _product_cycles(p)
    traffic = once("tensors", 0, _tensor_traffic) + _traffic_cycles(p, is_prepacked, products)
    rest = once("data", order, _data_cycles) + products + once("results", order, _result_cycles) + traffic
    return p.c.group_count * (filters + rest)


def _tile_cycles(arithmetic: float, loads: int, stores: int) -> float:
    """Transforming a tile: arithmetic and stores overlap in part."""
    return _CALL + max(arithmetic / 2, loads / 2, stores) + 0.4 * min(arithmetic / 2, stores)


def _subfilter_kinds(p: WinogradPlan) -> Iterator[tuple[int, bool, bool]]:
    """(How many pairs of subfilters, whether that of the rows is short, whether that of the columns is)."""
    for start, stop, row in p.rows.subfilter_kinds:
        for first, end, column in p.columns.subfilter_kinds:
            yield (stop - start) * (end - first), row, column


def _filter_cycles(p: WinogradPlan) -> float:
    vectors = p.panels.count * p.register_tile.vectors * p.c.depth
    one = 0.0
    for number, row, column in _subfilter_kinds(p):
        first, second = p.rows.filter_matrix(row), p.columns.filter_matrix(column)
        arithmetic = grid_operations(first, second)
        one += number * _tile_cycles(arithmetic, len(first[0]) * len(second[0]), len(first) * len(second))
    return vectors * (p.subfilters[0] * one + _packing_cycles(p))


def _packing_cycles(p: WinogradPlan) -> float:
    """Packing the taps of a channel for a vector of results' channels: by copies, or by transposing squares."""
    w, taps = p.c.w, math.prod(p.panels.taps)
    if w.results == 1:
        return 1.5 * taps
    if w.channels == 1 or abs(w.channels) == taps:  # squares are full
        return 4.5 * taps
    return ceil_div(taps, p.lanes) * 4.5 * p.lanes


def _data_cycles(p: WinogradPlan) -> float:
    c = p.c
    if p.has_few_channels:
        return _few_channels_cycles(p)
    vectors = ceil_div(c.depth, p.lanes)
    tile = 0.0
    for number, row, column in _subfilter_kinds(p):
        matrices = p.rows.data_matrix(row), p.columns.data_matrix(column)
        points = len(matrices[0]) * len(matrices[1])
        tile += number * _tile_cycles(grid_operations(*matrices), points, points)
    tile /= p.rows.subfilters * p.columns.subfilters
    tiles = p.tile_rows * p.row_tiles * p.subfilter_count
    lines = p.tile_rows * p.subfilters[0] * p.rows.subfilters * p.rows.alpha
    if p.reads_unpacked:
        copies = (1.0 - _interior_share(p)) * tiles * p.points * 5.0  # the others are packed one by one
    elif p.x_is_channels_last:
        copies = lines * p.read_columns * (3.0 if c.x.channels == 1 else 2.0 * p.lanes)
    else:
        square = 4.0 * p.lanes * _stride_factor(c.x.space[p.tiled[1]], p.lanes)
        copies = lines * ceil_div(min(p.read_columns, p.columns.axis.positions), p.lanes) * square
    return vectors * (tiles * tile + copies)


def _few_channels_cycles(p: WinogradPlan) -> float:
    """`_data_cycles` where channels of several subfilters share vectors."""
    matrices = p.rows.data_matrix(False), p.columns.data_matrix(False)
    tile = _tile_cycles(grid_operations(*matrices), p.points, p.points)
    step = p.columns.axis.step
    loads = 0.75 * step if p.c.x.space[p.tiled[1]] == 1 else p.lanes / 2  # and the shuffles of what is loaded
    square = p.lanes * (2.5 + loads)
    copies = p.tile_rows * p.rows.alpha * ceil_div(p.packed_columns, p.lanes) * square
    vectors = p.subfilters[0] * ceil_div(p.joint_channels, p.lanes)
    return vectors * (p.tile_rows * p.row_tiles * tile + copies)


def _interior_share(p: WinogradPlan) -> float:
    """The share of the tiles that read no padding, about."""
    share = 1.0
    for axis in (p.rows, p.columns):
        ends = (axis.axis.taps.lowest < 0) + axis.axis.is_padded
        share *= max(0.0, 1.0 - ends / axis.tiles_per_residue) if axis.axis.is_padded else 1.0
    return share


def _product_cycles(p: WinogradPlan) -> float:
    step = sum(count * step_cycles(rows, p.register_tile.vectors) for rows, count in p.register_rows)
    calls = sum(count * (10.0 + rows * p.register_tile.vectors) for rows, count in p.register_rows)
    # short subfilters have no product at the point at infinity
    products = p.subfilters[0] * sum(
        number * (p.rows.alpha - row) * (p.columns.alpha - column)
        for number, row, column in _subfilter_kinds(p)
    )
    chains = ceil_div(p.c.depth, p.kc) * p.chains
    filled = p.tile_rows / (p.blocks * p.mc_rows)  # the last block may be cut
    return p.panels.count * p.blocks * filled * (step * products * p.c.depth + p.points * calls * chains)


def _least_cycles(c: Correlation, isa: Isa, tiling: Tiling, is_prepacked: bool, shared: Shared) -> float:
    """What a tiling takes at least, however it is blocked: data and results in the cheaper of the orders, full register
    tiles, no cut block, and neither the filter nor V, U and M. What is priced on the way is kept in `shared`."""
    plan = WinogradPlan(c, isa, tiling, True, 1)
    orders = [plan] if is_prepacked else [plan, replace(plan, is_data_resident=False)]
    for p in orders:
        shared["data", int(p.is_data_resident)] = _data_cycles(p)
        shared["results", int(p.is_data_resident)] = _result_cycles(p)
    shared["tensors", 0] = _tensor_traffic(plan)
    moved = min(
        shared["data", order] + shared["results", order] for order in range(2) if ("data", order) in shared
    )
    products = plan.subfilters[0] * sum(
        number * (plan.rows.alpha - row) * (plan.columns.alpha - column)
        for number, row, column in _subfilter_kinds(plan)
    )
    tiles = (
        c.batch
        * plan.slices.results
        * plan.rows.tiles
        * plan.columns.tiles_per_residue
        * plan.columns.dilation
    )
    steps = tiles * ceil_div(c.width, plan.lanes) * products * c.depth
    return c.group_count * (moved + shared["tensors", 0] + LEAST_STEP_CYCLES * steps)


def _result_cycles(p: WinogradPlan) -> float:
    c = p.c
    vectors = ceil_div(c.width, p.lanes)
    matrices = p.rows.filtering().result, p.columns.filtering().result
    tile = _tile_cycles(grid_operations(*matrices), p.points, p.rows.m * p.columns.m)
    lines = p.tile_rows * p.rows.m * min(1.0, p.rows.axis.results / (p.rows.tiles * p.rows.m))
    results = min(p.columns.axis.results, p.tw * p.columns.m * p.columns.dilation)
    if p.y_is_channels_last:
        copies = lines * results * (3.0 if c.y.channels == 1 else 2.0 * p.lanes)
    else:
        square = 3.5 * p.lanes * _stride_factor(c.y.space[p.tiled[1]], p.lanes)
        copies = lines * ceil_div(results, p.lanes) * square
    return vectors * (p.tile_rows * p.row_tiles * tile + copies)


def _stride_factor(stride: int, lanes: int) -> float:
    """Cycles of a strided load or store by those of a plain one: small strides are shuffled, others go lane by lane."""
    return 1.0 if stride == 1 else 2.0 if 2 <= stride <= 4 else lanes / 2


def _traffic_cycles(p: WinogradPlan, is_prepacked: bool, products: float) -> float:
    """What comes from beyond the L2 cache beside x, w and y, as far as it does not come while products are computed."""
    exposed, streamed = _data_resident_traffic(p) if p.is_data_resident else _filter_resident_traffic(p)
    if p.is_data_resident and not is_prepacked:
        u = p.panels.count * p.u_panel_elements * p.item
        exposed += 2.0 * u / _rate(p.isa.processor, p.c.group_count * u)
    if is_prepacked:  # what memory hands over in each call is not hidden
        u = p.c.group_count * p.panels.count * p.u_panel_elements * p.item
        if u > p.isa.processor.l3(cost.WINOGRAD_L3):
            exposed += u / _memory_rate(p.isa.processor) / p.c.group_count
    return exposed + max(0.0, streamed - _HIDDEN * products)


def _tensor_traffic(p: WinogradPlan) -> float:
    """Cycles for x, w and y themselves."""
    c, item, processor = p.c, p.item, p.isa.processor
    l3, memory_rate = processor.l3(cost.WINOGRAD_L3), _memory_rate(processor)
    x = c.batch * math.prod(min(a.positions, a.results * a.step) for a in c.axes) * c.depth * item
    y = c.batch * math.prod(a.results for a in c.axes) * c.width * item
    outside = min(1.0, max(0.0, (x + y - l3) / l3))  # the share that is not in the L3 cache
    traffic = (x + 2.0 * y) * (outside / memory_rate + (1.0 - outside) / processor.l3_rate) / 1.4
    return traffic + c.width * c.depth * c.taps * item / (2.0 * memory_rate)


def _filter_resident_traffic(p: WinogradPlan) -> tuple[float, float]:
    """Cycles for V, U and M: (those that are exposed, those of what is streamed by the products)."""
    processor = p.isa.processor
    l2 = processor.l2(cost.WINOGRAD_L2)
    v, m, u_panel = (n * p.item for n in (p.v_elements, p.m_elements, p.u_panel_elements))
    # Kc channels may begin and end within a cache line
    lines = 1.0 if p.kc == p.c.depth or p.kc % p.lanes == 0 else (p.kc + p.lanes - 1) / p.kc
    exposed = v * _rewrite_cycles(processor, v)
    if m + u_panel > l2:
        times = ceil_div(p.c.depth, p.kc) * p.panels.count
        exposed += 2.0 * times * min(m, 2.0 * (m + u_panel - l2)) / processor.l3_rate
    return exposed, p.panels.count * v * lines / _rate(processor, 2.0 * v)


def _data_resident_traffic(p: WinogradPlan) -> tuple[float, float]:
    """The same in the other order."""
    processor = p.isa.processor
    l2 = processor.l2(cost.WINOGRAD_L2)
    v, m, u_panel = (n * p.item for n in (p.v_elements, p.m_elements, p.u_panel_elements))
    u = p.panels.count * u_panel
    streamed = p.blocks * u / _rate(processor, p.c.group_count * u) if v + m + u > l2 else 0.0
    times = ceil_div(p.c.depth, p.kc)
    evicted = min(1.0, max(0.0, v / processor.l2(cost.WINOGRAD_V_L2) - 1.0))
    exposed = p.blocks * times * v * evicted / (cost.WINOGRAD_EVICTED_L3_RATE * processor.l3_rate)
    if v + m + min(u, l2 / 2) > l2:
        again = times * v * _rewrite_cycles(processor, v + min(u, processor.l3(cost.WINOGRAD_RETAINED_L3)))
        exposed += p.blocks * (again + (1 if p.accumulates else p.panels.count) * m / processor.l3_rate)
        if v > l2 / 2:
            streamed += p.blocks * p.panels.count * v / processor.l3_rate
    return exposed, streamed


def _rewrite_cycles(processor: Processor, used: float) -> float:
    """Cycles a byte to write V and to read it again, of ``used`` bytes that are used in turn.

    A line is written at every point. From memory each line is read before it is written.
    """
    retained = processor.l3(cost.WINOGRAD_RETAINED_L3)
    lost = min(1.0, max(0.0, (used - retained) / (processor.l3(cost.WINOGRAD_LOST_L3) - retained)))
    return (1.0 - lost) / processor.l3_rate + lost * 4.5 / _memory_rate(processor)


def _rate(processor: Processor, used: float) -> float:
    """Bytes a cycle of ``used`` bytes that are used in turn."""
    return processor.l3_rate if used <= processor.l3(cost.WINOGRAD_L3) else _memory_rate(processor)


def _memory_rate(processor: Processor) -> float:
    return cost.WINOGRAD_MEMORY_RATE * processor.memory_rate


@functools.lru_cache(maxsize=512)
def choose_plan(
    c: Correlation, isa: Isa, tilings: tuple[Tiling, ...], is_prepacked: bool = False
) -> WinogradPlan:
    """The cheapest plan of a correlation whose taps are in order, of the given tilings.

    ``is_prepacked``: the filter was transformed before, and its plan must have U stream by.
    """

    shared: dict[Tiling, Shared] = {tiling: {} for tiling in tilings}

    def price(p: WinogradPlan) -> float:
        return cycles(p, is_prepacked, shared[p.tiling])

    def screened(plans: list[WinogradPlan]) -> float:
        """The least cycles of a few blockings of a tiling."""
        return min(map(price, plans[:3] + plans[4::3]))

    plans: dict[Tiling, list[WinogradPlan]] = {}
    prices: dict[Tiling, float] = {}
    floors = {tiling: _least_cycles(c, isa, tiling, is_prepacked, shared[tiling]) for tiling in tilings}
    least = math.inf
    for tiling in sorted(tilings, key=floors.__getitem__):
        if floors[tiling] <= _BEHIND * least:  # else no blocking of it comes near
            plans[tiling] = list(blockings(c, isa, tiling, is_prepacked))
            prices[tiling] = screened(plans[tiling])
            least = min(least, prices[tiling])
    near = [plans[tiling] for tiling in tilings if prices.get(tiling, math.inf) <= _BEHIND * least]

    def whole(p: WinogradPlan) -> float:
        return price(p) * _load_imbalance(p)

    best = min(itertools.chain.from_iterable(near), key=whole)
    if not best.is_data_resident or c.batch == 1:
        return best
    # another batch has the same code where blocks do not follow from it: of those nearly as good the best for many
    most = _SLACK * whole(best)
    regular = [p for p in regular_blockings(best) if whole(p) <= most]

    def of_many(p: WinogradPlan) -> float:
        return cycles(replace(p, c=replace(c, batch=_MANY)), is_prepacked)

    return min(regular, key=of_many) if regular else best


def near_cheapest(
    candidates: Sequence[Candidate], price: Callable[[Candidate], float], behind: float
) -> list[Candidate]:
    """Those whose price is at most ``behind`` times the least: only they are worth a closer look."""
    prices = [price(candidate) for candidate in candidates]
    least = behind * min(prices)
    return [candidate for candidate, its in zip(candidates, prices, strict=True) if its <= least]


def _load_imbalance(p: WinogradPlan) -> float:
    """The time until the last task ends, by that of tasks which divide evenly.

    It is the mean for 1, 2 and 4 threads: a plan must not depend on the number of threads, or the results would.
    """
    tasks = p.c.group_count * (p.blocks if p.is_data_resident else p.panels.count)
    return sum(ceil_div(tasks, threads) * threads / tasks for threads in (1, 2, 4)) / 3
