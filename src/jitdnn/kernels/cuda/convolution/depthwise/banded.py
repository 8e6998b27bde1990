"""Banded matrices on the matrix units: how a window is cut, what that costs, and the kernels made of it.

Forward and backward to the data: banded.cu. What a line, a segment and a plane are: banded_planes.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding import (
    CLOCK,
    LAUNCH,
    Defines,
    defines_of_window,
    epilogue_text,
    most_registers,
    reach,
    resident_groups,
    widths,
)

TILE = 8  # results of a row of a product
UNKNOWN = 1.33  # what the account of this method leaves out
MMA_TIME = 1.6  # clocks of a multiprocessor for a 16 x 8 x 16 product, all units busy


@dataclass(frozen=True)
class Band:
    """The `blocks` of 8 columns that a tile reads, the first at `shift` from the tile's own first result."""

    shift: int
    blocks: int


@dataclass(frozen=True)
class Cut:
    """How a window is cut into groups.

    `channels` in `warps` warps; `lines` of `segment` tiles; `rows` of results a step; `strip` rows a line (if `along`:
    segments of one long row); `tiles`: sixteens of a warp's tiles.
    """

    channels: int
    warps: int
    lines: int
    segment: int
    segments: int
    rows: int
    strip: int
    chunks: int
    tiles: int
    along: bool = False


@dataclass(frozen=True)
class Banded:
    """A window with its axes in the order depth, rows, banded, and a cut."""

    window: Window
    axes: tuple[Axis, Axis, Axis]
    width: int
    cut: Cut
    band: Band
    most_shared: int

    @property
    def taps(self) -> tuple[int, int]:
        return self.axes[1].taps, self.axes[2].taps

    @property
    def first_row(self) -> int:
        return self._rows[0]

    @property
    def end_row(self) -> int:
        return self._rows[1]

    @property
    def _rows(self) -> tuple[int, int]:
        """Rows of a line that are read, counted from its first result; without those that are padding in all lines."""
        axis, cut = self.axes[1], self.cut
        if cut.along:
            return 0, cut.strip
        if cut.chunks > 1 or axis.phases > 1:
            return 0, cut.strip + axis.taps - 1
        places = axis.input.places(1)
        first = max(0, places[0] - axis.start)
        return first, max(first, min(cut.strip + axis.taps - 1, places[1] - axis.start))

    @property
    def slots(self) -> int:
        """Rows that the planes hold: those of a step."""
        return max(1, min(self.axes[1].taps + self.cut.rows - 1, self.end_row - self.first_row))

    @property
    def blocks_read(self) -> int:
        return self.cut.segment + self.band.blocks - 1

    @cached_property
    def line_blocks(self) -> int:
        """Blocks from one line to the next, so that 8 tiles lie in different banks as far as can be."""
        return min(range(self.blocks_read, self.blocks_read + 8), key=self._conflicts)

    def _conflicts(self, blocks: int) -> tuple[int, int]:
        worst = 0
        for first in range(0, 16 * self.cut.tiles, 8):
            items = [i for i in range(first, first + 8) if i < self.cut.lines * self.cut.segment]
            banks = [(i // self.cut.segment * blocks + i % self.cut.segment) % 8 for i in items]
            worst += max((banks.count(bank) for bank in banks), default=0)
        return worst, blocks

    @property
    def plane(self) -> int:
        return skewed(self.slots * self.cut.lines * self.line_blocks * 4)

    @property
    def out_plane(self) -> int:
        return skewed(self.cut.rows * 64 * self.cut.tiles)

    @property
    def is_rolling(self) -> bool:
        """Whether taps come from shared memory."""
        return self.taps[0] * self.own_channels * self.band.blocks > 40 or self.taps[0] > 16

    @property
    def own_channels(self) -> int:
        """Channels of a warp."""
        return self.cut.channels // self.cut.warps

    @property
    def shared(self) -> int:
        table = self.taps[0] * 2 * (4 * self.band.blocks + 4) if self.is_rolling else 0
        return 4 * self.cut.channels * (self.plane + self.out_plane + table)

    @property
    def loads(self) -> int:
        """Pairs of packs that a thread has on their way."""
        cut = self.cut
        tasks = cut.rows * cut.lines * self.blocks_read * 4 * (cut.channels // self.width)
        return -(-tasks // self.threads)

    @property
    def registers(self) -> int:
        taps = (self.cut.rows if self.is_rolling else self.taps[0]) * self.own_channels * self.band.blocks
        sums = self.cut.rows * self.own_channels * self.cut.tiles * 4
        halves = -(-self.band.blocks // 2)
        return taps + sums + self.loads * max(2, self.width) + 4 * halves + 36

    @property
    def resident(self) -> int:
        by_shared = (self.most_shared + 1024) // (self.shared + self.line_bytes + 1024)
        return max(1, min(by_shared, resident_groups(self.registers, self.threads)))

    @property
    def line_bytes(self) -> int:
        """Shared memory for what a group knows of its lines."""
        return 64 * self.cut.lines + 64

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return 32 * self.cut.warps

    @property
    def line_count(self) -> int:
        depth, rows, width = self.axes
        phases = rows.phases * width.phases
        segments = 1 if self.cut.along else self.cut.segments
        return self.window.n * depth.count * phases * self.cut.chunks * segments

    @property
    def groups(self) -> int:
        strips = -(-self.window.channels // self.cut.channels)
        return -(-self.line_count // self.cut.lines) * strips

    @property
    def fits(self) -> bool:
        is_small = self.shared + self.line_bytes <= self.most_shared
        return is_small and self.registers <= min(235, most_registers(self.threads) - 4)

    def clocks_of_group(self) -> tuple[float, int]:
        """Clocks of a multiprocessor that a group keeps busy, and its steps."""
        cut, (taps, _) = self.cut, self.taps
        steps = -(-cut.strip // cut.rows)
        halves = -(-self.band.blocks // 2)
        products = moved = 0.0
        for step in range(steps):
            first, end = step * cut.rows, step * cut.rows + cut.rows + taps - 1
            rows = range(max(first, self.first_row), min(end, self.end_row))
            moved += len(rows)
            products += sum(min(r - first, taps - 1) - max(0, r - first - cut.rows + 1) + 1 for r in rows)
        fragments = cut.channels * cut.tiles * halves
        matrix = products * fragments * MMA_TIME
        conflicts = self._conflicts(self.line_blocks)[0] / (2 * cut.tiles)
        reading = moved * fragments * 4 * conflicts
        if self.is_rolling:
            reading += moved * cut.channels * self.band.blocks
        height = self.end_row - self.first_row
        packs = cut.lines * self.blocks_read * 4 * (cut.channels // self.width)
        results = cut.strip * cut.lines * cut.segment * 4 * (cut.channels // self.width)
        turning = (height * packs + results) * self.width / 32 * 2.2
        # accesses of memory: a line of the cache each, and instructions around them
        passing = (height * packs + results) * 2 / max(1, cut.channels // self.width)
        issued = (products * fragments * 1.2 + moved * fragments * 3) / 4
        issued += (height * packs + results) * (3 * self.width + 40) / 32 / 4
        return max(matrix, issued, reading + turning + passing) + 0.35 * min(matrix, issued), steps

    def seconds(self, device: GpuDevice) -> float:
        clocks, steps = self.clocks_of_group()
        resident = self.resident
        width = device.multiprocessors * resident
        waves = math.ceil(self.groups / width) if self.groups < 6 * width else self.groups / width + 0.5
        together = min(resident, -(-self.groups // device.multiprocessors))
        # a group waits for its first rows, and for the next at each barrier
        waiting = 2500 + 700 * steps
        busy = waves * max(clocks * together * 1.25, waiting + clocks)
        # two channels of a warp leave it fewer registers to fetch ahead with, taps in shared memory are fetched late
        busy *= (1.07 if self.own_channels > 1 else 1) * (1.4 if self.is_rolling else 1)
        transfer = self.window.bytes_moved * (self.blocks_read / self.cut.segment + 3) / 4 / device.bandwidth
        if self.cut.channels * 2 < 32 < self.window.channels * 2:
            transfer *= 1.35  # half of what memory hands out at a time is for another group
        wasted = waves * width / max(1, self.groups)
        return float(LAUNCH + UNKNOWN * max(busy / CLOCK, transfer * min(1.5, wasted) * 1.15))

    def defines(self) -> Defines:
        cut = self.cut
        return (
            *defines_of_window(self.window, self.axes),
            *self.shape_defines(),
            ("PR", cut.rows),
            ("CW", self.own_channels),
            ("ROLLING", int(self.is_rolling)),
            ("OUT_PLANE", self.out_plane),
            ("ALTERNATE", int(not self.is_rolling)),
            ("MIN_BLOCKS", min(self.resident, 2)),
            ("OFFSET", self.window.shift(reach(self.window))),
        )

    def shape_defines(self) -> Iterator[tuple[str, object]]:
        cut = self.cut
        yield from (("CH", cut.channels), ("V", self.width), ("SEG", cut.segment), ("LINES", cut.lines))
        yield from (("SEGMENTS", 1 if cut.along else cut.segments), ("CHUNKS", cut.chunks), ("HB", cut.strip))
        yield from (("BLOCKS", self.band.blocks), ("SHIFT", f"({self.band.shift})"), ("MT", cut.tiles))
        yield from (("LINE_BLOCKS", self.line_blocks), ("PLANE", self.plane), ("SLOTS", self.slots))
        yield from (("ROW_FIRST", self.first_row), ("ROW_END", self.end_row), ("WARPS", cut.warps))
        yield from (("ROW_SHIFT", 8 * cut.segment if cut.along else 0), ("LINE_COUNT", self.line_count))

    def launch(self, epilogue: Epilogue | None = None) -> tuple[Source, list[Launch]]:
        functions, defines = epilogue_text(self.window, self.axes, epilogue)
        files = (
            "common.cuh",
            "banded_planes.cuh",
            "banded.cu",
        )
        text = functions + read_text("cuda/convolution/depthwise", *files)
        source = Source("depthwise_banded", text, (*self.defines(), *defines), "cuda", spills=True)
        return source, [Launch("depthwise", self.groups, self.threads, self.shared)]


def skewed(words: int) -> int:
    """At least so many words, 4 more than a multiple of 32: neighbouring planes begin in other banks."""
    return (words + 27) // 32 * 32 + 4


def refuse(window: Window) -> str | None:
    """Why a window is not for the matrix units, if it is not."""
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


def bands(axis: Axis, segments: int, tiles: int) -> Band:
    """The fewest blocks that reach all columns that are not padding."""
    found: list[Band] = []
    start, end = axis.input.places(axis.phases)
    start, end = start - axis.start, end - axis.start
    for ahead in range(8):
        first, last = 0, (TILE - 1 + axis.taps - 1 + ahead) // 8
        if segments == 1:
            # blocks that are padding to every tile of the line
            used = [
                b
                for b in range(first, last + 1)
                if any(8 * (j + b) - ahead < end and 8 * (j + b) - ahead + 7 >= start for j in range(tiles))
            ]
            first, last = (used[0], used[-1]) if used else (0, 0)
        found.append(Band(8 * first - ahead, last - first + 1))
    return min(found, key=lambda band: (band.blocks, -band.shift))


def cuts(window: Window, axes: tuple[Axis, Axis, Axis], width: int) -> Iterator[Cut]:
    """Every sensible way to cut a window."""
    _, rows, banded = axes
    tiles = -(-banded.count // TILE)
    along = rows.taps == 1 and rows.count == 1 and tiles > 16
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
                    base = Cut(channels, warps, lines, segment, segments, 1, 1, 1, sixteens, along)
                    yield from _strips(base, segments if along else rows.count)


def _strips(base: Cut, count: int) -> Iterator[Cut]:
    for chunks in (1, 2, 4, 8, 16):
        strip = -(-count // chunks)
        if chunks > 1 and strip < 4:
            break
        for rows in sorted({min(strip, n) for n in (1, 2, 4, 7, 8)}):
            if rows * 4 < min(strip, 4):
                continue
            yield replace(base, rows=rows, strip=strip, chunks=-(-count // strip))


def choices(window: Window, device: GpuDevice) -> list[Banded]:
    """Every sensible cut; none if the rows do not fit into shared memory."""
    found = []
    width = widths(window)[0]
    depth, height, wide = window.axes
    orders: Sequence[tuple[Axis, Axis, Axis]] = [(depth, height, wide)]
    if wide.taps < height.taps or wide.count < 8 < height.count:
        orders = [*orders, (depth, wide, height)]
    for axes in orders:
        for cut in cuts(window, axes, width):
            plan = Banded(
                window, axes, width, cut, bands(axes[2], cut.segments, cut.segment), device.shared_bytes
            )
            if plan.fits:
                found.append(plan)
    return found
