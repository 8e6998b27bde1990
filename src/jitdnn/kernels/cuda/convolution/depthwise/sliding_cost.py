"""The tiles of the sliding kernels that are candidates, and their cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from math import ceil, log2, prod, sqrt

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import (
    EXTRA_REGISTERS,
    EXTRA_WGRAD_REGISTERS,
    Sliding,
    SlidingWgrad,
    Tile,
    column_packs,
    max_registers,
    resident_blocks,
    resident_threads,
    widths,
)
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest, by_bound
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, LINE_BYTES, MEMORY_LATENCY, depthwise_clock
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.tensor.dtypes import DTYPES

# registers that a tile's numbers may take
MAX_REGISTERS = 200
MAX_WGRAD_REGISTERS = 205

# instructions of a thread, fitted to measurements on an H100
_CONVERT, _READ, _STEP = (
    1.2,
    2.5,
    12,
)  # for a number that is widened; a pack that is read, with bounds; a step
_NARROW, _WRITE = 1.5, 3  # for a number of a result, a pack of results
_CYCLES_PER_INSTRUCTION = 1 / 4  # of a warp: four schedulers
# cycles lost between dependent instructions, as a factor: a constant, and a part divided by the warps of a scheduler
_GAPS, _GAPS_OF_WARPS, _LEAST_WARPS = 0.6, 1.7, 0.75
_WGRAD_GAPS, _WGRAD_GAPS_OF_WARPS = 1.0, 0.95
_SCATTERED_READS = 1.1  # on memory, where rows slide along w: what a thread reads is not contiguous
_PLANAR, _WHOLE_ROW, _SHORT, _APART = 1.1, 14, 0.75, 0.14
"""Of channels first, as seen on an H200: the factor of long rows, threads of a row that are enough, the power of fewer
of them, and a part for each column of a tile whose results are stored alone."""
_EXCESS = 0.04, 0.025  # of bytes in flight beyond those that are enough; of f32
_LOADING, _FEW_LOADING, _NARROW_F32 = 1000, 0.05, (0.005, 0.055)
"""Of f32 with channels last, as seen on an H100: how many threads of a multiprocessor, times the steps that they have
in flight and the root of their channels by 2, are enough; a part of the time for each halving of them; and one for
narrower packs, without strides and with."""
# of f32 with channels last (H100): on memory of strided layers with one step in flight; of wgrad by small thread blocks
# where columns of results are long
_ONE_STEP, _SMALL_BLOCKS, _LARGE_BLOCK, _LONG_COLUMN = 1.02, 1.03, 256, 56
_WAVE_SECONDS = 2.4e-6  # of more than one wave
_UNHIDDEN, _WGRAD_UNHIDDEN = 0.2, 0.08  # of the shorter of computation and memory
_REDUCTION_SECONDS = 2.2e-6
_AGAIN_SECONDS, _END_SECONDS = 2.9e-6, 0.7e-6  # of more than one round, and behind the last


_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_MOST_THREADS = 384
_CHUNKS = (1, 2, 4, 8, 16, 32)


def cheapest(window: Window, device: GpuDevice) -> Sliding | None:
    """The plan of the least time, of equals the first; None if the filter is too large for registers."""
    works, found = _works(window, device), Cheapest[Sliding]()
    for number in by_bound([work.least for work in works], found):
        work = works[number]
        for order, (threads, rows) in enumerate(_divided(work)):
            if work.least_of(rows) <= found.seconds:
                found.offer(work.seconds(rows, threads), (number, order), partial(work.of, rows, threads))
    return found.plan()


def candidates(window: Window, device: GpuDevice) -> list[Sliding]:
    """Every sensible plan; none if the filter is too large for registers."""
    works = _works(window, device)
    return [work.of(rows, threads) for work in works for threads, rows in _divided(work)]


def _works(window: Window, device: GpuDevice) -> list[_Work]:
    """Plans whose rows and threads are to be divided."""
    works = []
    for axes in orders(window):
        depth, _, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = side_packs(packs, channels * DTYPES[window.dtype]) if window.has_channel_lanes else 1
            for columns in tilings(width, _COLUMNS):
                for depths in tilings(depth, (1, 2, 3, 4)):
                    whole = Sliding(window, axes, Tile(channels, columns, depths, 1, side, 128), device.facts)
                    if whole.registers <= MAX_REGISTERS and whole.products <= 1600:
                        work = _Work(whole, device)
                        each = (work, *(work.prefetching(steps) for steps in (2, 4)))
                        works += [one for one in each if one.registers <= MAX_REGISTERS]
    return works


def _divided(work: _Work) -> Iterator[tuple[int, int]]:
    """Threads and rows: the plan divided among thread blocks in every sensible way."""
    whole = work.plan
    side, blocks, registers = whole.tile.side, whole.blocks, work.registers + EXTRA_REGISTERS
    for threads in (64, 128, 256):
        even = -(-threads // side) * side
        size = even if even <= 384 and even % 32 == 0 else threads
        if registers > max_registers(whole.facts, size):
            continue
        for chunks in _CHUNKS:
            rows = -(-blocks // chunks)
            if chunks > 1 and rows < 2 * whole.steps:
                break
            yield size, rows


def cheapest_wgrad(window: Window, device: GpuDevice) -> SlidingWgrad | None:
    """The plan of the filter's gradient of the least time; None if the filter is too large for registers."""
    works, found = _wgrad_works(window, device), Cheapest[SlidingWgrad]()
    for number in by_bound([work.least for work in works], found):
        work = works[number]
        for order, (threads, rows) in enumerate(_divided_wgrad(work.plan)):
            if work.least_of(rows) <= found.seconds:
                seconds, _, splits = work.best_splits(rows, threads)
                found.offer(seconds, (number, order), partial(work.of, rows, threads, splits))
    return found.plan()


def wgrad_candidates(window: Window, device: GpuDevice) -> list[SlidingWgrad]:
    """Every sensible plan of wgrad, with its best splits; none if the filter is too large for registers."""
    return [
        work.of(rows, threads, work.best_splits(rows, threads)[-1])
        for work in _wgrad_works(window, device)
        for threads, rows in _divided_wgrad(work.plan)
    ]


def _wgrad_works(window: Window, device: GpuDevice) -> list[_WgradWork]:
    """Plans whose rows, threads and splits are to be chosen."""
    works = []
    for axes in orders(window):
        depth, _, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = side_packs(packs, channels * DTYPES[window.dtype])
            if not window.has_channel_lanes:
                side = 1
            for columns in tilings(width, _COLUMNS):
                for depths, prefetch in itertools.product(tilings(depth, (1, 2)), (1, 2)):
                    tile = Tile(channels, columns, depths, 1, side, 128, prefetch=prefetch)
                    whole = SlidingWgrad(window, axes, tile, device.facts)
                    if whole.registers <= MAX_WGRAD_REGISTERS:
                        works.append(_WgradWork(whole, device))
    return works


def _divided_wgrad(least: SlidingWgrad) -> Iterator[tuple[int, int]]:
    """Threads and rows: the plan divided among thread blocks in every sensible way."""
    depth, slide, _ = least.axes
    side = least.tile.side
    # with few rows in flight the compiler can do with less, unless there are planes to address
    least_extra = 20 if depth.taps == least.tile.prefetch == 1 else EXTRA_WGRAD_REGISTERS
    for threads in (64, 128, 192, 256, 384):
        if threads < side or (threads // side) * side * 8 < threads * 7:
            continue
        if least.registers + least_extra > max_registers(least.facts, threads):
            continue
        for chunks in _CHUNKS:
            rows = -(-slide.count // chunks)
            if chunks > 1 and rows < 3 * least.steps:
                break
            yield threads, rows


def orders(window: Window) -> list[tuple[Axis, Axis, Axis]]:
    """The axes as (depth, sliding, width): neighbours in memory are neighbouring threads, and tall filters slide."""
    depth, height, width = window.axes
    if not window.is_channels_last:
        return [(depth, height, width)]
    found = [(depth, height, width)]
    if height.taps < width.taps or height.count < 4 <= width.count:
        found.append((depth, width, height))
    return found


def side_packs(packs: int, size: int, most: int = 64) -> int:
    """Packs of `size` bytes of a pixel for neighbouring threads: a divisor of `packs`, of whole sectors if possible."""
    best = 1
    for side in range(1, min(packs, most) + 1):
        if packs % side == 0 and (side * size % 32 == 0 or best * size % 32 != 0):
            best = side
    return best


def tilings(axis: Axis, counts: Sequence[int]) -> list[int]:
    """The counts of results along an axis that are worth trying: multiples of a scattered axis's stride."""
    if axis.is_scattered:
        counts = sorted({-(-count // axis.stride) * axis.stride for count in counts})
    least = min(counts)
    return [count for count in counts if count == least or count <= axis.count + axis.stride - 1]


def seconds(plan: Sliding | SlidingWgrad, device: GpuDevice) -> float:
    """Expected time of a plan, with the reduction of a wgrad's partial sums."""
    tile = plan.tile
    if isinstance(plan, SlidingWgrad):
        return _WgradWork(plan, device).seconds(tile.rows, tile.threads, tile.splits)
    return _Work(plan, device).seconds(tile.rows, tile.threads)


class _Work:
    """Seconds of a plan by its rows and threads; `least`: of any number of them, but for rounding.

    `registers`: with the steps in flight that it is about, which are those of `plan` or others (`prefetching`).
    """

    def __init__(self, plan: Sliding, device: GpuDevice) -> None:
        tile, slide = plan.tile, plan.axes[1]
        self.plan, self._clock = plan, depthwise_clock(device.facts)
        self.registers, self._prefetch = plan.registers, tile.prefetch
        self._multiprocessors, self._bandwidth = device.multiprocessors, device.bandwidth
        reads = plan.rows_in * plan.planes_read * plan.columns_read
        writes = plan.rows_out * tile.depths * tile.columns
        # instructions of a step: products, numbers widened and narrowed, accesses with their bounds and addresses
        issued = plan.products + _CONVERT * reads * tile.channels + _READ * reads + _STEP
        issued += writes * (_NARROW * tile.channels + _WRITE)
        apart = tile.channels if plan.window.has_channel_lanes else tile.columns
        # packs of columns are one access for several
        read_packs, write_packs = column_packs(plan.window, plan.axes[2], tile.columns)
        own = plan.rows_in * plan.planes_read * tile.columns * plan.axes[2].stride
        fewer = own * (1 - 1 / read_packs) + writes * (1 - 1 / write_packs)
        issued -= _READ * fewer
        self._issued = issued * _CYCLES_PER_INSTRUCTION
        self._accesses = (reads + writes - fewer) * max(1.0, apart * plan.element * 32 / LINE_BYTES)
        self._whole_steps = max(slide.input.extent // slide.input.pitch // plan.rows_in, 1)
        self._bytes = plan.own, tile.channels, plan.element
        self._narrow = 1 + 0.007 * max(0, 8 / (tile.channels * plan.element) - 1)
        self._is_f32 = plan.element == 4 and plan.window.has_channel_lanes
        self._is_strided = max(axis.stride for axis in plan.axes) > 1
        if self._is_f32:
            self._narrow = 1 + _NARROW_F32[self._is_strided] * (16 / (tile.channels * plan.element) - 1)
        self._is_scattered = slide is plan.window.axes[2]
        self._units = plan.units // -(-plan.blocks // tile.rows)  # of one chunk of rows
        self._factor = 1.0 if plan.window.has_channel_lanes else _short_rows(plan, write_packs)
        self._begin()

    def _begin(self) -> None:
        """What depends on the steps in flight."""
        plan, self._resident, self._least_of = (
            self.plan,
            dict[int, int](),
            dict[int, float](),
        )  # by threads, rows
        is_exposed = self._is_f32 and self._is_strided and self._prefetch == 1
        self._one_step = _ONE_STEP if is_exposed else 1.0
        threads = max(_MOST_THREADS, resident_threads(plan.facts, self.registers + EXTRA_REGISTERS))
        self._gaps = _GAPS + _GAPS_OF_WARPS / (threads / 128)
        share = _most_bandwidth(self._prefetch * threads * prod(self._bytes))
        self._transfer = plan.window.bytes_moved / (self._bandwidth * share) * self._narrow
        if self._is_scattered:
            self._transfer *= _SCATTERED_READS
        self.least = self._bound(min(self._whole_steps, plan.blocks + plan.steps - 1), 0)

    def prefetching(self, steps: int) -> _Work:
        """The same with so many steps in flight."""
        other = copy(self)
        other.registers += (steps - self._prefetch) * self.plan.registers_of_step
        other._prefetch = steps
        other._begin()
        return other

    def of(self, rows: int, threads: int) -> Sliding:
        """The plan with these."""
        tile = replace(self.plan.tile, rows=rows, threads=threads, prefetch=self._prefetch)
        return replace(self.plan, tile=tile)

    def seconds(self, rows: int, threads: int) -> float:
        plan, multiprocessors = self.plan, self._multiprocessors
        if threads not in self._resident:
            self._resident[threads] = resident_blocks(plan.facts, self.registers + EXTRA_REGISTERS, threads)
        resident = self._resident[threads]
        grid_blocks = -(-self._units * -(-plan.blocks // rows) // threads)
        steps = self._whole_steps if rows >= plan.blocks else rows + plan.steps - 1
        warps = grid_blocks * threads / 32
        width = multiprocessors * resident
        waves = ceil(grid_blocks / width)
        if waves == 1:
            filled = ceil(grid_blocks / multiprocessors) * multiprocessors / grid_blocks
        else:
            filled = waves * width / grid_blocks if waves < 4 else 1 + 0.5 * width / grid_blocks
        # few warps leave gaps between dependent instructions
        gaps = _GAPS + _GAPS_OF_WARPS / max(_LEAST_WARPS, resident * threads / 128)
        cycles = steps * warps * max(self._issued * gaps, self._accesses) / multiprocessors
        busy = cycles / self._clock * filled**0.9
        # a step waits for its rows: what is in flight at once bounds the bandwidth
        own, channels, element = self._bytes
        in_flight = self._prefetch * (threads * min(resident, grid_blocks / multiprocessors)) * own
        excess = _EXCESS[self._is_f32]
        transfer = plan.window.bytes_moved / (
            self._bandwidth * reached_bandwidth(in_flight * channels * element, excess=excess)
        )
        transfer *= filled**0.4 * self._narrow * self._one_step
        if self._is_scattered:
            transfer *= _SCATTERED_READS
        if self._is_f32:
            loading = self._prefetch * threads * min(resident, grid_blocks / multiprocessors)
            loading *= sqrt(channels / 2)
            transfer *= 1 + _FEW_LOADING * max(0.0, log2(_LOADING / loading))
        # steps wait for one another
        chain = waves * MEMORY_LATENCY * (1.5 + steps / self._prefetch)
        more_waves = _WAVE_SECONDS * (1 - 1 / waves)
        work = max(chain, _together(busy, transfer, _UNHIDDEN))
        return float(LAUNCH_SECONDS + more_waves + work * self._factor)

    def least_of(self, rows: int) -> float:
        """Of so many rows a thread; but for rounding."""
        if rows not in self._least_of:
            blocks = self.plan.blocks
            steps = self._whole_steps if rows >= blocks else rows + self.plan.steps - 1
            self._least_of[rows] = self._bound(-(-blocks // rows) * steps, steps)
        return self._least_of[rows]

    def _bound(self, steps: int, chain: int) -> float:
        """Of so many steps of all chunks of a column of rows, and of one of them."""
        cycles = (
            steps * self._units / 32 * max(self._issued * self._gaps, self._accesses) / self._multiprocessors
        )
        waiting = MEMORY_LATENCY * (1.5 + chain / self._prefetch)
        work = max(waiting, _together(cycles / self._clock, self._transfer, _UNHIDDEN))
        return (LAUNCH_SECONDS + work * self._factor) * ROUNDED


def _together(busy: float, transfer: float, unhidden: float) -> float:
    """Seconds of computation and of memory side by side."""
    return float((busy**4 + transfer**4) ** 0.25 + unhidden * min(busy, transfer))


def _short_rows(plan: Sliding, write_packs: int) -> float:
    """The factor on the time where channels are first.

    Neighbouring threads have neighbouring tiles of a row, then another plane. Where a row is a few tiles, memory is
    asked for as many short pieces as planes are under way. Results that are stored alone, a tile apart, cost more, too.
    """
    columns = plan.tile.columns
    strips = plan.axes[2].count / columns
    apart = 1 + _APART * (columns - 1) if write_packs == 1 else 1.0
    return apart * float(max(_PLANAR, (_WHOLE_ROW / strips) ** _SHORT))


class _WgradWork:
    """Seconds of a plan by its rows, threads and splits; `least`: of any number of them, but for rounding."""

    def __init__(self, plan: SlidingWgrad, device: GpuDevice) -> None:
        tile = plan.tile
        self.plan, self._clock = plan, depthwise_clock(device.facts)
        self._multiprocessors, self._bandwidth = device.multiprocessors, device.bandwidth
        is_ring = plan.round % plan.steps == 0
        moves = 0 if is_ring else (plan.steps - 1) * plan.results * tile.channels
        reads = plan.reads + plan.results
        issued = plan.products + moves + _CONVERT * reads * tile.channels + _READ * reads + _STEP
        self._issued = issued * _CYCLES_PER_INSTRUCTION
        self._accesses = reads * max(1.0, tile.channels * plan.element * 32 / LINE_BYTES)
        self._items = plan.items // -(-plan.axes[1].count // tile.rows)  # of one chunk of rows
        # packs that no other thread reads
        self._own = plan.results * (1 + min(plan.axes[2].stride, plan.axes[2].taps) * plan.axes[1].stride)
        self._narrow = 1 + 0.016 * max(0, 8 / (tile.channels * plan.element) - 1)
        # many channels leave few registers, and few results many other instructions
        self._factor = 1 + 0.02 * max(0, tile.channels - 2)
        self._of_few = 1 if plan.results > 2 else 1.06
        self._resident, self._least_of = dict[int, int](), dict[int, float]()  # by threads, by rows
        threads = max(_MOST_THREADS, resident_threads(plan.facts, plan.registers + EXTRA_WGRAD_REGISTERS))
        gaps = _WGRAD_GAPS + _WGRAD_GAPS_OF_WARPS / (threads / 128)
        warps = self._items * plan.strips * tile.side / 32 / self._multiprocessors
        self._cycles_of_step = warps * max(self._issued * gaps, self._accesses) / self._clock
        share = _most_bandwidth(tile.prefetch * threads * self._own * tile.channels * plan.element, 21e3)
        self._transfer = plan.window.bytes_moved / (self._bandwidth * share) * self._narrow
        self._reduction = reduce_seconds(plan.window, 1, self._bandwidth)
        self.least = self._bound(plan.axes[1].count + (plan.steps - 1) / 2 + 1.5, 0)

    def resident(self, threads: int) -> int:
        """Thread blocks that a multiprocessor has at a time."""
        if threads not in self._resident:
            registers = self.plan.registers + EXTRA_WGRAD_REGISTERS
            self._resident[threads] = min(7, resident_blocks(self.plan.facts, registers, threads))
        return self._resident[threads]

    def items(self, rows: int) -> int:
        return self._items * -(-self.plan.axes[1].count // rows)

    def of(self, rows: int, threads: int, splits: int) -> SlidingWgrad:
        """The plan with these."""
        return replace(self.plan, tile=replace(self.plan.tile, rows=rows, threads=threads, splits=splits))

    def best_splits(self, rows: int, threads: int) -> tuple[float, int, int]:
        """Seconds with the best number of thread blocks of the same channels, its place among those tried, and it."""
        tried = self._splits(rows, threads)
        return min((self.seconds(rows, threads, splits), at, splits) for at, splits in enumerate(tried))

    def _splits(self, rows: int, threads: int) -> list[int]:
        """Numbers that are worth trying: for as many thread blocks on each multiprocessor."""
        items, slots, strips = self.items(rows), threads // self.plan.tile.side, self.plan.strips
        found: dict[int, None] = {}
        for each in range(1, self.resident(threads) + 1):
            wanted = max(1, min(self._multiprocessors * each // strips, 4096))
            rounds = -(-items // (wanted * slots))
            found[max(1, -(-items // (rounds * slots)))] = None  # fewer splits with the same rounds
        return list(found)

    def seconds(self, rows: int, threads: int, splits: int) -> float:
        plan, tile = self.plan, self.plan.tile
        multiprocessors, resident = self._multiprocessors, self.resident(threads)
        is_whole = rows >= plan.axes[1].count
        steps = rows + (plan.steps - 1) / (2 if is_whole else 1)
        rounds = ceil(self.items(rows) / (splits * (threads // tile.side)))
        grid_blocks = plan.strips * splits
        waves = ceil(grid_blocks / (multiprocessors * resident))
        here = min(resident, -(-grid_blocks // multiprocessors))
        warps = here * threads / 32
        gaps = _WGRAD_GAPS + _WGRAD_GAPS_OF_WARPS / max(_LEAST_WARPS, warps / 4)
        cycles = max(self._issued * gaps, self._accesses)
        busy = waves * rounds * (steps + 1.5) * warps * cycles / self._clock
        used = grid_blocks / multiprocessors
        in_flight = tile.prefetch * min(here, used) * threads * self._own * tile.channels * plan.element
        share = reached_bandwidth(in_flight, 21e3, 0.06)
        transfer = plan.window.bytes_moved / (self._bandwidth * share) / min(1.0, used) ** 0.23
        transfer *= self._narrow
        chain = waves * rounds * (steps / tile.prefetch + 1) * 1.35 * MEMORY_LATENCY
        work = max(chain, _together(busy, transfer, _WGRAD_UNHIDDEN)) * (1 if is_whole else 1.02)
        work *= self._factor * self._of_few
        is_long = plan.axes[1].count >= _LONG_COLUMN
        if is_long and threads < _LARGE_BLOCK and plan.element == 4 and plan.window.has_channel_lanes:
            work *= _SMALL_BLOCKS
        again = _AGAIN_SECONDS * (1 - 1 / rounds) + _END_SECONDS
        return float(LAUNCH_SECONDS + again + work + reduce_seconds(plan.window, splits, self._bandwidth))

    def least_of(self, rows: int) -> float:
        """Of so many rows a thread; but for rounding."""
        if rows not in self._least_of:
            count = self.plan.axes[1].count
            steps = rows + (self.plan.steps - 1) / (2 if rows >= count else 1)
            self._least_of[rows] = self._bound(-(-count // rows) * (steps + 1.5), steps)
        return self._least_of[rows]

    def _bound(self, steps: float, chain: float) -> float:
        """Of so many steps of all chunks of a column of rows, and of one of them."""
        busy = steps * self._cycles_of_step
        waiting = (chain / self.plan.tile.prefetch + 1) * 1.35 * MEMORY_LATENCY
        work = max(waiting, _together(busy, self._transfer, _WGRAD_UNHIDDEN)) * self._factor * self._of_few
        return (LAUNCH_SECONDS + _END_SECONDS + work + self._reduction) * ROUNDED


def reduce_seconds(window: Window, splits: int, bandwidth: float) -> float:
    """Expected time of the reduction of partial sums."""
    moved = 4 * splits * window.taps * window.channels
    return _REDUCTION_SECONDS + splits / 200 * 1e-6 + moved / (1.5 * bandwidth)


def reached_bandwidth(in_flight: float, enough: float = 16e3, excess: float = 0.04) -> float:
    """The share of the memory's bandwidth that a multiprocessor's bytes in flight reach; too many are slower."""
    share = in_flight / enough
    return float(min(1.0, share) ** 0.5 / (1 + excess * max(0.0, share - 1)))


def _most_bandwidth(in_flight: float, enough: float = 16e3) -> float:
    """The largest share that so many bytes in flight, or fewer, reach."""
    return float(min(1.0, in_flight / enough) ** 0.5)
