"""Blockings of the banded kernels that are worth trying, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.depthwise.banded_plan import TILE, Band, Banded, BandedWgrad, Blocking
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_cost import reduce_seconds
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import widths
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, depthwise_clock

# cycles, fitted to measurements on an H100
_START_CYCLES, _STEP_CYCLES = 2500, 700  # until a thread block has its first rows; at the barriers of a step
_FRAGMENT_CYCLES, _SWIZZLE_CYCLES, _WGRAD_SWIZZLE_CYCLES, _ACCESS_CYCLES = 4, 2.2, 1.3, 2
# factors on cycles
_SCHEDULING = 1.25
_TWO_CHANNELS = 1.07  # of a warp: fewer registers to prefetch into
_TAPS_IN_SHARED = 1.4  # they arrive late
_UNHIDDEN = 0.35  # of the shorter of products and instructions
_MEMORY = 1.15  # on the time of memory
_HALF_SECTORS = 1.35  # and where half of each sector is for another thread block
_UNMODELLED, _WGRAD_UNMODELLED = 1.33, 1.25  # what the model leaves out


def refuse(window: Window) -> str | None:
    """Why banded matrices cannot compute a window; None if they can."""
    if window.dtype == "f32":
        return "its products are of half precision: f32 is for depthwise_sliding"
    if not window.is_channels_last:
        return "neighbouring channels must be neighbours in memory, one result of each: use nhwc and k = c"
    for axis in window.axes:
        if axis.is_scattered or axis.stride != 1:
            return "the stride must be 1"
    if sum(axis.taps > 1 for axis in window.axes) > 2 or (window.axes[0].taps > 1):
        return "the filter must have one tap in depth"
    if max(window.axes[1].taps, window.axes[2].taps) > 127:
        return f"a filter of more than 127 taps a row ({window.axes[1].taps}x{window.axes[2].taps})"
    return None


def candidates(window: Window, device: GpuDevice) -> list[Banded]:
    """Every sensible plan; none if the rows do not fit into shared memory."""
    found = []
    width = widths(window)[0]
    for axes in _orders(window):
        for blocking in blockings(window, axes, width):
            plan = Banded(
                window,
                axes,
                width,
                blocking,
                best_band(axes[2], blocking.segments, blocking.segment),
                device.facts,
            )
            if plan.fits:
                found.append(plan)
    return found


def wgrad_candidates(window: Window, device: GpuDevice) -> list[BandedWgrad]:
    """Every sensible plan; none if the rows do not fit into shared memory."""
    found = []
    width = widths(window)[0]
    for axes in _orders(window):
        for blocking in _single(blockings(window, axes, width)):
            band = best_band(axes[2], blocking.segments, blocking.segment)
            halves = -(-band.blocks // 2)
            most = max(1, min(axes[1].taps, 112 // (4 * halves)))
            rows = -(-axes[1].taps // -(-axes[1].taps // most))
            for tap_warps in sorted({1, min(2, -(-axes[1].taps // rows))}):
                plan = BandedWgrad(window, axes, width, blocking, band, device.facts, rows, tap_warps)
                if plan.warps <= 16 and plan.fits:
                    found.append(_with_splits(plan, device))
    return found


def _orders(window: Window) -> list[tuple[Axis, Axis, Axis]]:
    """The axes as (depth, rows, banded axis): also with rows and columns swapped, where that may be better."""
    depth, height, width = window.axes
    if width.taps < height.taps or width.count < 8 < height.count:
        return [(depth, height, width), (depth, width, height)]
    return [(depth, height, width)]


def _single(found: Iterator[Blocking]) -> Iterator[Blocking]:
    """The blockings of 16 tiles and one channel a warp, which wgrad takes."""
    return (blocking for blocking in found if blocking.tiles == 1 and blocking.warps == blocking.channels)


def _with_splits(plan: BandedWgrad, device: GpuDevice) -> BandedWgrad:
    """The plan split so that its thread blocks fill the device, with the same number of rounds for each."""
    wanted = max(1, device.multiprocessors * plan.resident // plan.strips)
    splits = max(1, min(wanted, plan.line_groups))
    rounds = -(-plan.line_groups // splits)
    return replace(plan, splits=-(-plan.line_groups // rounds))


def blockings(window: Window, axes: tuple[Axis, Axis, Axis], width: int) -> Iterator[Blocking]:
    """Every sensible blocking of a window."""
    _, rows, banded = axes
    tiles = -(-banded.count // TILE)
    is_one_row = rows.taps == 1 and rows.count == 1 and tiles > 16
    for sixteens in (1, 2):
        most = 16 * sixteens
        pieces = {-(-tiles // -(-tiles // most)), min(tiles, most), min(tiles, most // 2)}
        for segment in sorted(pieces):
            segments = -(-tiles // segment)
            lines = most // segment
            for channels in (8, 16, 32):
                if channels % width or channels // width > 8:
                    continue
                for own in (1, 2):
                    warps = channels // own
                    if warps > 16:
                        continue
                    base = Blocking(channels, warps, lines, segment, segments, 1, 1, 1, sixteens, is_one_row)
                    yield from _strips(base, segments if is_one_row else rows.count)


def _strips(base: Blocking, count: int) -> Iterator[Blocking]:
    for chunks in (1, 2, 4, 8, 16):
        strip = -(-count // chunks)
        if chunks > 1 and strip < 4:
            break
        for rows in sorted({min(strip, n) for n in (1, 2, 4, 7, 8)}):
            if rows * 4 < min(strip, 4):
                continue
            yield replace(base, rows=rows, strip=strip, chunks=-(-count // strip))


def best_band(axis: Axis, segments: int, tiles: int) -> Band:
    """The fewest blocks that reach all columns that are not padding."""
    found: list[Band] = []
    start, end = axis.input.positions(axis.phases)
    start, end = start - axis.start, end - axis.start
    for lead in range(8):  # columns before the tile's first result
        first, last = 0, (TILE - 1 + axis.taps - 1 + lead) // 8
        if segments == 1:
            # blocks that are padding to every tile of the line
            used = [
                b
                for b in range(first, last + 1)
                if any(8 * (j + b) - lead < end and 8 * (j + b) - lead + 7 >= start for j in range(tiles))
            ]
            first, last = (used[0], used[-1]) if used else (0, 0)
        found.append(Band(8 * first - lead, last - first + 1))
    return min(found, key=lambda band: (band.blocks, -band.shift))


def seconds(plan: Banded, device: GpuDevice) -> float:
    """Expected time of a plan, with the reduction of a wgrad's partial sums."""
    return (
        _wgrad_seconds(plan, device) if isinstance(plan, BandedWgrad) else _fprop_dgrad_seconds(plan, device)
    )


def _fprop_dgrad_seconds(plan: Banded, device: GpuDevice) -> float:
    cycles, steps = _cycles_of_block(plan)
    resident = plan.resident
    width = device.multiprocessors * resident
    waves = (
        math.ceil(plan.grid_blocks / width)
        if plan.grid_blocks < 6 * width
        else plan.grid_blocks / width + 0.5
    )
    overlapped = min(resident, -(-plan.grid_blocks // device.multiprocessors))
    # a thread block waits for its first rows, and for the next at each barrier
    latency = _START_CYCLES + _STEP_CYCLES * steps
    busy = waves * max(cycles * overlapped * _SCHEDULING, latency + cycles)
    busy *= (_TWO_CHANNELS if plan.own_channels > 1 else 1) * (
        _TAPS_IN_SHARED if plan.has_taps_in_shared else 1
    )
    transfer = plan.window.bytes_moved * (plan.blocks_read / plan.blocking.segment + 3) / 4 / device.bandwidth
    if plan.blocking.channels * 2 < 32 < plan.window.channels * 2:
        transfer *= _HALF_SECTORS
    wasted = waves * width / max(1, plan.grid_blocks)
    return float(
        LAUNCH_SECONDS
        + _UNMODELLED * max(busy / depthwise_clock(device.facts), transfer * min(1.5, wasted) * _MEMORY)
    )


def _cycles_of_block(plan: Banded) -> tuple[float, int]:
    """Cycles of a multiprocessor that a thread block takes, and its steps."""
    blocking, (taps, _) = plan.blocking, plan.taps
    steps = -(-blocking.strip // blocking.rows)
    halves = -(-plan.band.blocks // 2)
    products = moved = 0.0
    for step in range(steps):
        first, end = step * blocking.rows, step * blocking.rows + blocking.rows + taps - 1
        rows = range(max(first, plan.first_row), min(end, plan.end_row))
        moved += len(rows)
        products += sum(min(r - first, taps - 1) - max(0, r - first - blocking.rows + 1) + 1 for r in rows)
    fragments = blocking.channels * blocking.tiles * halves
    matrix = products * fragments * plan.facts.mma_cycles
    conflicts = plan.bank_conflicts(plan.line_blocks)[0] / (2 * blocking.tiles)
    reading = moved * fragments * _FRAGMENT_CYCLES * conflicts
    if plan.has_taps_in_shared:
        reading += moved * blocking.channels * plan.band.blocks
    height = plan.end_row - plan.first_row
    packs = blocking.lines * plan.blocks_read * 4 * (blocking.channels // plan.width)
    results = blocking.strip * blocking.lines * blocking.segment * 4 * (blocking.channels // plan.width)
    swizzling = (height * packs + results) * plan.width / 32 * _SWIZZLE_CYCLES
    # accesses of memory: a cache line each, and the instructions around them
    accessing = (height * packs + results) * _ACCESS_CYCLES / max(1, blocking.channels // plan.width)
    issued = (products * fragments * 1.2 + moved * fragments * 3) / 4
    issued += (height * packs + results) * (3 * plan.width + 40) / 32 / 4
    return max(matrix, issued, reading + swizzling + accessing) + _UNHIDDEN * min(matrix, issued), steps


def _wgrad_seconds(plan: BandedWgrad, device: GpuDevice) -> float:
    blocking, (taps, _) = plan.blocking, plan.taps
    halves = -(-plan.band.blocks // 2)
    steps = -(-blocking.strip // blocking.rows)
    height = plan.end_row - plan.first_row
    pieces = min(plan.tap_warps, plan.tap_groups)
    products = loaded = 0.0
    for step in range(steps):
        for piece in range(pieces):
            first = step * blocking.rows + piece * plan.tap_rows
            rows = min(first + blocking.rows + plan.tap_rows - 1, plan.end_row) - max(first, plan.first_row)
            loaded += max(0, rows)
            products += max(0, rows) * blocking.rows * plan.tap_rows / (blocking.rows + plan.tap_rows - 1)
    fragments = blocking.channels * halves
    matrix = products * fragments * plan.facts.mma_cycles
    conflicts = plan.bank_conflicts(plan.line_blocks)[0] / 2
    reading = (
        loaded * fragments * _FRAGMENT_CYCLES * conflicts
        + steps * blocking.rows * blocking.channels * pieces * 2
    )
    chunks = blocking.channels // plan.width
    packs = height * blocking.lines * plan.blocks_read * 4 * chunks
    packs += blocking.strip * blocking.lines * blocking.segment * 4 * chunks
    swizzling, accessing = (
        packs * plan.width / 32 * _WGRAD_SWIZZLE_CYCLES,
        packs * _ACCESS_CYCLES / max(1, chunks),
    )
    issued = (products * fragments * 1.2 + loaded * fragments * 4) / 4 + packs * (3 * plan.width + 40) / 128
    cycles = max(matrix, issued, reading + swizzling + accessing) + _UNHIDDEN * min(matrix, issued)
    rounds = math.ceil(plan.line_groups / plan.splits)
    grid_blocks = plan.strips * plan.splits
    waves = math.ceil(grid_blocks / (device.multiprocessors * plan.resident))
    overlapped = min(plan.resident, -(-grid_blocks // device.multiprocessors))
    latency = _START_CYCLES * (1 + (taps > 1)) + _STEP_CYCLES * steps
    busy = waves * rounds * max(cycles * overlapped * _SCHEDULING, latency + cycles)
    used = min(1.0, grid_blocks / device.multiprocessors)
    again = -(-plan.tap_groups // plan.tap_warps)
    transfer = plan.window.bytes_moved * (1 + 0.4 * (again - 1)) / device.bandwidth / used
    return (
        LAUNCH_SECONDS
        + _WGRAD_UNMODELLED
        * max(busy / depthwise_clock(device.facts), transfer * _MEMORY)
        * (1 + 0.04 * plan.is_crowded * (blocking.rows - 4))
        + reduce_seconds(plan.window, plan.splits, device)
    )
