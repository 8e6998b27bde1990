"""Tiles of the sliding kernels that are worth trying, and what they cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    widths,
)
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, LINE_BYTES, MEMORY_LATENCY, depthwise_clock
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
_WAVE_SECONDS = 2.4e-6  # of more than one wave
_UNHIDDEN, _WGRAD_UNHIDDEN = 0.2, 0.08  # of the shorter of computation and memory
_REDUCTION_SECONDS = 2.2e-6


def candidates(window: Window, device: GpuDevice) -> list[Sliding]:
    """Every sensible plan; none if the filter is too large for registers."""
    found: list[Sliding] = []
    for axes in orders(window):
        depth, _, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = side_packs(packs, channels * DTYPES[window.dtype]) if window.has_channel_lanes else 1
            for columns in tilings(width, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)):
                for depths, prefetch in itertools.product(tilings(depth, (1, 2, 3, 4)), (1, 2, 4)):
                    tile = Tile(channels, columns, depths, 1, side, 128, prefetch=prefetch)
                    found += _variants(Sliding(window, axes, tile, device.facts))
    return found


def _variants(whole: Sliding) -> Iterator[Sliding]:
    """The plan with its rows and threads divided among thread blocks in every sensible way."""
    if whole.registers > MAX_REGISTERS or whole.products > 1600:
        return
    side = whole.tile.side
    for threads in (64, 128, 256):
        even = -(-threads // side) * side
        size = even if even <= 384 and even % 32 == 0 else threads
        if whole.registers + EXTRA_REGISTERS > max_registers(whole.facts, size):
            continue
        for chunks in (1, 2, 4, 8, 16, 32):
            rows = -(-whole.blocks // chunks)
            if chunks > 1 and rows < 2 * whole.steps:
                break
            yield replace(whole, tile=replace(whole.tile, rows=rows, threads=size))


def wgrad_candidates(window: Window, device: GpuDevice) -> list[SlidingWgrad]:
    """Every sensible plan of wgrad; none if the filter is too large for registers."""
    found = []
    for axes in orders(window):
        depth, slide, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = side_packs(packs, channels * DTYPES[window.dtype])
            if not window.has_channel_lanes:
                side = 1
            for columns in tilings(width, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)):
                for depths, prefetch in itertools.product(tilings(depth, (1, 2)), (1, 2)):
                    tile = Tile(channels, columns, depths, 1, side, 128, prefetch=prefetch)
                    least = SlidingWgrad(window, axes, tile, device.facts)
                    if least.registers > MAX_WGRAD_REGISTERS:
                        continue
                    # with few rows in flight the compiler can do with less, unless there are planes to address
                    least_extra = 20 if depth.taps == prefetch == 1 else EXTRA_WGRAD_REGISTERS
                    for threads in (64, 128, 192, 256, 384):
                        if threads < side or (threads // side) * side * 8 < threads * 7:
                            continue
                        if least.registers + least_extra > max_registers(device.facts, threads):
                            continue
                        for chunks in (1, 2, 4, 8, 16, 32):
                            rows = -(-slide.count // chunks)
                            if chunks > 1 and rows < 3 * least.steps:
                                break
                            plan = replace(least, tile=replace(tile, rows=rows, threads=threads))
                            found.append(_with_splits(plan, device))
    return found


def _with_splits(plan: SlidingWgrad, device: GpuDevice) -> SlidingWgrad:
    """The plan with as many thread blocks on each multiprocessor as take the least time."""
    found = {}
    for each in range(1, plan.resident + 1):
        wanted = max(1, min(device.multiprocessors * each // plan.strips, 4096))
        rounds = -(-plan.items // (wanted * plan.slots))
        # fewer splits with the same rounds
        splits = max(1, -(-plan.items // (rounds * plan.slots)))
        if splits not in found:
            found[splits] = replace(plan, tile=replace(plan.tile, splits=splits))
    return min(found.values(), key=lambda plan: _wgrad_seconds(plan, device))


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
    return (
        _wgrad_seconds(plan, device) if isinstance(plan, SlidingWgrad) else _fprop_dgrad_seconds(plan, device)
    )


def _fprop_dgrad_seconds(plan: Sliding, device: GpuDevice) -> float:
    tile = plan.tile
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
    accesses = (reads + writes - fewer) * max(1.0, apart * plan.element * 32 / LINE_BYTES)
    steps = tile.rows + plan.steps - 1
    if tile.rows >= plan.blocks:
        steps = max(plan.axes[1].input.extent // plan.axes[1].input.pitch // plan.rows_in, 1)
    warps = plan.grid_blocks * tile.threads / 32
    width = device.multiprocessors * plan.resident
    waves = math.ceil(plan.grid_blocks / width)
    if waves == 1:
        filled = (
            math.ceil(plan.grid_blocks / device.multiprocessors) * device.multiprocessors / plan.grid_blocks
        )
    else:
        filled = waves * width / plan.grid_blocks if waves < 4 else 1 + 0.5 * width / plan.grid_blocks
    # few warps leave gaps between dependent instructions
    gaps = _GAPS + _GAPS_OF_WARPS / max(_LEAST_WARPS, plan.resident * tile.threads / 128)
    cycles = steps * warps * max(issued * _CYCLES_PER_INSTRUCTION * gaps, accesses) / device.multiprocessors
    busy = cycles / depthwise_clock(device.facts) * filled**0.9
    # a step waits for its rows: what is in flight at once bounds the bandwidth
    threads = tile.threads * min(plan.resident, plan.grid_blocks / device.multiprocessors)
    in_flight = tile.prefetch * threads * plan.own * tile.channels * plan.element
    transfer = plan.window.bytes_moved / (device.bandwidth * reached_bandwidth(in_flight))
    transfer *= filled**0.4 * (1 + 0.007 * max(0, 8 / (tile.channels * plan.element) - 1))
    if plan.axes[1] is plan.window.axes[2]:
        transfer *= _SCATTERED_READS
    # steps wait for one another
    chain = waves * MEMORY_LATENCY * (1.5 + steps / tile.prefetch)
    more_waves = _WAVE_SECONDS * (1 - 1 / waves)
    overlapped = (busy**4 + transfer**4) ** 0.25
    work = max(chain, overlapped + _UNHIDDEN * min(busy, transfer))
    if not plan.window.has_channel_lanes:
        work *= _short_rows(plan, write_packs)
    return float(LAUNCH_SECONDS + more_waves + work)


def _short_rows(plan: Sliding, write_packs: int) -> float:
    """The factor on the time where channels are first.

    Neighbouring threads have neighbouring tiles of a row, then another plane. Where a row is a few tiles, memory is
    asked for as many short pieces as planes are under way. Results that are stored alone, a tile apart, cost more, too.
    """
    columns = plan.tile.columns
    strips = plan.axes[2].count / columns
    apart = 1 + _APART * (columns - 1) if write_packs == 1 else 1.0
    return apart * float(max(_PLANAR, (_WHOLE_ROW / strips) ** _SHORT))


def _wgrad_seconds(plan: SlidingWgrad, device: GpuDevice) -> float:
    tile = plan.tile
    is_ring = plan.round % plan.steps == 0
    moves = 0 if is_ring else (plan.steps - 1) * plan.results * tile.channels
    reads = plan.reads + plan.results
    issued = plan.products + moves + _CONVERT * reads * tile.channels + _READ * reads + _STEP
    accesses = reads * max(1.0, tile.channels * plan.element * 32 / LINE_BYTES)
    is_whole = tile.rows >= plan.axes[1].count
    steps = tile.rows + (plan.steps - 1) / (2 if is_whole else 1)
    rounds = math.ceil(plan.items / (tile.splits * plan.slots))
    grid_blocks = plan.strips * tile.splits
    waves = math.ceil(grid_blocks / (device.multiprocessors * plan.resident))
    here = min(plan.resident, -(-grid_blocks // device.multiprocessors))
    warps = here * tile.threads / 32
    gaps = _WGRAD_GAPS + _WGRAD_GAPS_OF_WARPS / max(_LEAST_WARPS, warps / 4)
    busy = (
        waves
        * rounds
        * (steps + 1.5)
        * warps
        * max(issued * _CYCLES_PER_INSTRUCTION * gaps, accesses)
        / depthwise_clock(device.facts)
    )
    # packs that no other thread reads
    own = plan.results * (1 + min(plan.axes[2].stride, plan.axes[2].taps) * plan.axes[1].stride)
    used = grid_blocks / device.multiprocessors
    in_flight = tile.prefetch * min(here, used) * tile.threads * own * tile.channels * plan.element
    share = reached_bandwidth(in_flight, 21e3, 0.06)
    transfer = plan.window.bytes_moved / (device.bandwidth * share) / min(1.0, used) ** 0.23
    transfer *= 1 + 0.016 * max(0, 8 / (tile.channels * plan.element) - 1)
    chain = waves * rounds * (steps / tile.prefetch + 1) * 1.35 * MEMORY_LATENCY
    overlapped = (busy**4 + transfer**4) ** 0.25 + _WGRAD_UNHIDDEN * min(busy, transfer)
    again = 2.9e-6 * (1 - 1 / rounds) + 0.7e-6
    # many channels leave few registers, and few results many other instructions
    work = max(chain, overlapped) * (1 if is_whole else 1.02)
    work *= (1 + 0.02 * max(0, tile.channels - 2)) * (1 if plan.results > 2 else 1.06)
    return float(LAUNCH_SECONDS + again + work + reduce_seconds(plan.window, tile.splits, device))


def reduce_seconds(window: Window, splits: int, device: GpuDevice) -> float:
    """Expected time of the reduction of partial sums."""
    moved = 4 * splits * window.taps * window.channels
    return _REDUCTION_SECONDS + splits / 200 * 1e-6 + moved / (1.5 * device.bandwidth)


def reached_bandwidth(in_flight: float, enough: float = 16e3, excess: float = 0.04) -> float:
    """The share of the memory's bandwidth that a multiprocessor's bytes in flight reach; too many are slower."""
    share = in_flight / enough
    return float(min(1.0, share) ** 0.5 / (1 + excess * max(0.0, share - 1)))
