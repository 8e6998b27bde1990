"""The blockings of the banded kernels that are candidates, and their cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.depthwise.banded_plan import TILE, Band, Banded, BandedWgrad, Blocking
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_cost import reduce_seconds
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import widths
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest, by_bound
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, depthwise_clock
from jitdnn.kernels.gpu.prelude.cost import ROUNDED

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


def cheapest(window: Window, device: GpuDevice) -> Banded | None:
    """The plan of the least time, of equals the first; None if the rows do not fit into shared memory."""
    works, found = _works(window, device), Cheapest[Banded]()
    for number in by_bound([work.least for work in works], found):
        work = works[number]
        for order, blocking in enumerate(_strips(work.plan.blocking, work.rows)):
            if work.least_of(blocking) > found.seconds:
                continue
            plan = work.of(blocking)
            if plan.fits:
                found.offer(work.seconds(plan), (number, order), partial(work.of, blocking))
    return found.plan()


def least_seconds(window: Window, device: GpuDevice) -> float:
    """What no plan comes below: each reads its input once at least."""
    moving = window.bytes_moved / device.bandwidth * _MEMORY
    if window.direction == "bwd_filter":
        seconds = LAUNCH_SECONDS + _WGRAD_UNMODELLED * moving + reduce_seconds(window, 1, device.bandwidth)
    else:
        seconds = LAUNCH_SECONDS + _UNMODELLED * moving
    return seconds * ROUNDED


def candidates(window: Window, device: GpuDevice) -> list[Banded]:
    """Every sensible plan; none if the rows do not fit into shared memory."""
    plans = [
        work.of(blocking)
        for work in _works(window, device)
        for blocking in _strips(work.plan.blocking, work.rows)
    ]
    return [plan for plan in plans if plan.fits]


def _works(window: Window, device: GpuDevice) -> list[_Work]:
    """Plans whose rows are to be divided."""
    width = widths(window)[0]
    return [
        _Work(
            Banded(window, axes, width, base, best_band(axes[2], base.segments, base.segment), device.facts),
            device,
        )
        for axes in _orders(window)
        for base in _bases(window, axes, width)
    ]


def wgrad_candidates(window: Window, device: GpuDevice) -> list[BandedWgrad]:
    """Every sensible plan; none if the rows do not fit into shared memory."""
    found = []
    width = widths(window)[0]
    for axes in _orders(window):
        for blocking in _single(window, axes, width):
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


def _single(window: Window, axes: tuple[Axis, Axis, Axis], width: int) -> Iterator[Blocking]:
    """The blockings of 16 tiles and one channel a warp, which wgrad takes."""
    for base in _bases(window, axes, width):
        if base.tiles == 1 and base.warps == base.channels:
            yield from _strips(base, _rows_of_lines(base, axes))


def _with_splits(plan: BandedWgrad, device: GpuDevice) -> BandedWgrad:
    """The plan split so that its thread blocks fill the device, with the same number of rounds for each."""
    wanted = max(1, device.multiprocessors * plan.resident // plan.strips)
    splits = max(1, min(wanted, plan.line_groups))
    rounds = -(-plan.line_groups // splits)
    return replace(plan, splits=-(-plan.line_groups // rounds))


def _rows_of_lines(base: Blocking, axes: tuple[Axis, Axis, Axis]) -> int:
    """Of results, which strips divide."""
    return base.segments if base.is_one_row else axes[1].count


def _bases(window: Window, axes: tuple[Axis, Axis, Axis], width: int) -> Iterator[Blocking]:
    """Every sensible blocking of a window, with its rows undivided."""
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
                    yield Blocking(channels, warps, lines, segment, segments, 1, 1, 1, sixteens, is_one_row)


def _strips(base: Blocking, count: int) -> Iterator[Blocking]:
    for chunks in (1, 2, 4, 8, 16):
        strip = -(-count // chunks)
        if chunks > 1 and strip < 4:
            break
        for rows in sorted({min(strip, n) for n in (1, 2, 4, 7, 8)}):
            if rows * 4 < min(strip, 4):
                continue
            yield Blocking(
                base.channels, base.warps, base.lines, base.segment, base.segments, rows, strip, -(-count // strip),
                base.tiles, base.is_one_row,
            )  # fmt: skip


@lru_cache(4096)
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
        _wgrad_seconds(plan, device) if isinstance(plan, BandedWgrad) else _Work(plan, device).seconds(plan)
    )


class _Work:
    """Seconds of plans by their strips and rows; `least`: of any of them, but for rounding."""

    def __init__(self, plan: Banded, device: GpuDevice) -> None:
        blocking, window = plan.blocking, plan.window
        self.plan, self._device, self._taps = plan, device, plan.taps[0]
        self.rows = _rows_of_lines(blocking, plan.axes)
        self._chunks = blocking.channels // plan.width
        self._fragments = blocking.channels * blocking.tiles * -(-plan.band.blocks // 2)
        self._conflicts = plan.bank_conflicts / (2 * blocking.tiles)
        self._of_taps = blocking.channels * plan.band.blocks if plan.has_taps_in_shared else 0
        self._packs = blocking.lines * plan.blocks_read * 4 * self._chunks  # of a row
        self._factors = (
            _TWO_CHANNELS if plan.own_channels > 1 else 1, _TAPS_IN_SHARED if plan.has_taps_in_shared else 1,
        )  # fmt: skip
        transfer = window.bytes_moved * (plan.blocks_read / blocking.segment + 3) / 4 / device.bandwidth
        if blocking.channels * 2 < 32 < window.channels * 2:
            transfer *= _HALF_SECTORS
        self._transfer = transfer
        whole = replace(plan, blocking=replace(blocking, strip=self.rows))
        first, end = whole.first_row, whole.end_row
        moved, products = _rows_read(self.rows, self.rows, self._taps, first, end)
        cycles = self._cycles(moved, products, end - first, self.rows)
        self.least = self._bound(cycles, plan.line_count / blocking.chunks)

    def _cycles(self, moved: int, products: int, height: int, strip: int) -> float:
        """Cycles of a multiprocessor that a thread block takes."""
        plan, blocking, fragments = self.plan, self.plan.blocking, self._fragments
        matrix = products * fragments * plan.facts.mma_cycles
        reading = moved * fragments * _FRAGMENT_CYCLES * self._conflicts
        reading += moved * self._of_taps
        results = strip * blocking.lines * blocking.segment * 4 * self._chunks
        swizzling = (height * self._packs + results) * plan.width / 32 * _SWIZZLE_CYCLES
        # accesses of memory: a cache line each, and the instructions around them
        accessing = (height * self._packs + results) * _ACCESS_CYCLES / max(1, self._chunks)
        issued = (products * fragments * 1.2 + moved * fragments * 3) / 4
        issued += (height * self._packs + results) * (3 * plan.width + 40) / 32 / 4
        return max(matrix, issued, reading + swizzling + accessing) + _UNHIDDEN * min(matrix, issued)

    def of(self, blocking: Blocking) -> Banded:
        """The plan with such strips and rows."""
        plan = self.plan
        return Banded(plan.window, plan.axes, plan.width, blocking, plan.band, plan.facts)

    def least_of(self, blocking: Blocking) -> float:
        """Of strips and rows, whatever fits on a multiprocessor at a time; but for rounding."""
        plan = self.of(blocking)
        _, cycles = self._of_block(plan)
        return self._bound(cycles, plan.line_count)

    def _bound(self, cycles: float, lines: float) -> float:
        window, blocking, device = self.plan.window, self.plan.blocking, self._device
        busy = lines / blocking.lines * -(-window.channels // blocking.channels) / device.multiprocessors
        busy *= cycles * _SCHEDULING * self._factors[0] * self._factors[1]
        seconds = max(busy / depthwise_clock(device.facts), self._transfer * _MEMORY)
        return (LAUNCH_SECONDS + _UNMODELLED * seconds) * ROUNDED

    def _of_block(self, plan: Banded) -> tuple[int, float]:
        """Steps and cycles of a thread block."""
        blocking, first, end = plan.blocking, plan.first_row, plan.end_row
        moved, products = _rows_read(blocking.strip, blocking.rows, self._taps, first, end)
        return -(-blocking.strip // blocking.rows), self._cycles(moved, products, end - first, blocking.strip)

    def seconds(self, plan: Banded) -> float:
        steps, cycles = self._of_block(plan)
        device, resident, grid_blocks = self._device, plan.resident, plan.grid_blocks
        width = device.multiprocessors * resident
        waves = ceil(grid_blocks / width) if grid_blocks < 6 * width else grid_blocks / width + 0.5
        overlapped = min(resident, -(-grid_blocks // device.multiprocessors))
        # a thread block waits for its first rows, and for the next at each barrier
        latency = _START_CYCLES + _STEP_CYCLES * steps
        busy = waves * max(cycles * overlapped * _SCHEDULING, latency + cycles)
        busy *= self._factors[0] * self._factors[1]
        wasted = waves * width / max(1, grid_blocks)
        transfer = self._transfer * min(1.5, wasted) * _MEMORY
        return float(LAUNCH_SECONDS + _UNMODELLED * max(busy / depthwise_clock(device.facts), transfer))


@lru_cache(4096)
def _rows_read(strip: int, rows: int, taps: int, first_row: int, end_row: int) -> tuple[int, int]:
    """Rows that a strip reads in steps of `rows` results, and pairs of one and a result of the step that it meets."""
    moved = products = 0
    for first in range(0, strip, rows):
        read = range(max(first, first_row), min(first + rows + taps - 1, end_row))
        moved += len(read)
        products += sum(min(r - first, taps - 1) - max(0, r - first - rows + 1) + 1 for r in read)
    return moved, products


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
    conflicts = plan.bank_conflicts / 2
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
    rounds = ceil(plan.line_groups / plan.splits)
    grid_blocks = plan.strips * plan.splits
    waves = ceil(grid_blocks / (device.multiprocessors * plan.resident))
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
        + reduce_seconds(plan.window, plan.splits, device.bandwidth)
    )
