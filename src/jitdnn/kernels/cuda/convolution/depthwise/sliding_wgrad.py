"""The filter's gradient by rows that slide through registers: tiles, parts, what they cost, and their kernels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding import (
    CLOCK,
    LATENCY,
    LAUNCH,
    SLIDING_TEXTS,
    Defines,
    Tile,
    column_packs,
    defines_of_window,
    most_registers,
    orders,
    reach,
    resident_groups,
    share_of_bandwidth,
    sides,
    tilings,
    widths,
)
from jitdnn.tensor.dtypes import DTYPES

MOST_REGISTERS = 205
EXTRA_REGISTERS = 36  # that the compiler adds for addresses and bounds


def sum_launch(window: Window) -> Launch:
    """The second pass, which adds the parts."""
    return Launch("sum_parts", -(-window.taps * window.channels // 32), 256)


def sum_seconds(window: Window, parts: int, device: GpuDevice) -> float:
    moved = 4 * parts * window.taps * window.channels
    return 2.2e-6 + parts / 200 * 1e-6 + moved / (1.5 * device.bandwidth)


@dataclass(frozen=True)
class SlidingFilter:
    """A window with its axes in the order depth, sliding, width, and a tile; `tile.parts` groups share the items."""

    window: Window
    axes: tuple[Axis, Axis, Axis]
    tile: Tile

    @property
    def element(self) -> int:
        return DTYPES[self.window.dtype]

    @property
    def steps(self) -> int:
        return -(-self.axes[1].taps // self.axes[1].stride)

    @property
    def round(self) -> int:
        """Steps that the loop's body makes: a multiple of those on their way, of whole windows unless that is long."""
        whole = math.lcm(self.tile.ahead, self.steps)
        return whole if whole * self.products <= 800 else self.tile.ahead

    @property
    def products(self) -> int:
        """Products in a step."""
        return self.window.taps * self.results * self.tile.channels

    @property
    def reads(self) -> int:
        """Packs of x that a step reads."""
        depth, slide, width = self.axes
        tile = self.tile
        planes = (tile.depths - 1) * depth.stride + depth.taps
        return slide.stride * planes * ((tile.columns - 1) * width.stride + width.taps)

    @property
    def results(self) -> int:
        """Packs of dy that a step reads."""
        return self.tile.depths * self.tile.columns

    @property
    def registers(self) -> int:
        tile = self.tile
        words = max(1.0, tile.channels * self.element / 4)
        ahead = int((self.reads + self.results) * words) * tile.ahead
        return (self.window.taps + self.reads + self.steps * self.results) * tile.channels + ahead

    @property
    def slots(self) -> int:
        return self.tile.threads // self.tile.side

    @property
    def items(self) -> int:
        depth, slide, width = self.axes
        tile = self.tile
        phases = depth.phases * slide.phases * width.phases
        tiles = (
            -(-width.count // tile.columns) * -(-depth.count // tile.depths) * -(-slide.count // tile.rows)
        )
        return tiles * phases * self.window.n

    @property
    def strips(self) -> int:
        """Groups side by side over the channels."""
        return self.window.channels // (self.tile.channels * self.tile.side)

    @property
    def resident(self) -> int:
        return min(7, resident_groups(self.registers + EXTRA_REGISTERS, self.tile.threads))

    def seconds(self, device: GpuDevice) -> float:
        tile = self.tile
        is_ring = self.round % self.steps == 0
        moves = 0 if is_ring else (self.steps - 1) * self.results * tile.channels
        reads = self.reads + self.results
        issued = self.products + moves + 1.2 * reads * tile.channels + 2.5 * reads + 12
        accesses = reads * max(1.0, tile.channels * self.element * 32 / 128)
        is_whole = tile.rows >= self.axes[1].count
        steps = tile.rows + (self.steps - 1) / (2 if is_whole else 1)
        rounds = math.ceil(self.items / (tile.parts * self.slots))
        groups = self.strips * tile.parts
        waves = math.ceil(groups / (device.multiprocessors * self.resident))
        here = min(self.resident, -(-groups // device.multiprocessors))
        warps = here * tile.threads / 32
        gaps = 1.0 + 0.95 / max(0.75, warps / 4)
        busy = waves * rounds * (steps + 1.5) * warps * max(issued / 4 * gaps, accesses) / CLOCK
        # packs that no other thread reads
        own = self.results * (1 + min(self.axes[2].stride, self.axes[2].taps) * self.axes[1].stride)
        used = groups / device.multiprocessors
        in_flight = tile.ahead * min(here, used) * tile.threads * own * tile.channels * self.element
        share = share_of_bandwidth(in_flight, 21e3, 0.06)
        transfer = self.window.bytes_moved / (device.bandwidth * share) / min(1.0, used) ** 0.23
        transfer *= 1 + 0.016 * max(0, 8 / (tile.channels * self.element) - 1)
        chain = waves * rounds * (steps / tile.ahead + 1) * 1.35 * LATENCY
        together = (busy**4 + transfer**4) ** 0.25 + 0.08 * min(busy, transfer)
        again = 2.9e-6 * (1 - 1 / rounds) + 0.7e-6
        # wide threads have few registers to spare, narrow ones much to do beside products
        work = max(chain, together) * (1 if is_whole else 1.02)
        work *= (1 + 0.02 * max(0, tile.channels - 2)) * (1 if self.results > 2 else 1.06)
        return float(LAUNCH + again + work + sum_seconds(self.window, tile.parts, device))

    @property
    def workspace(self) -> int:
        return 4 * self.tile.parts * self.window.taps * self.window.channels

    def defines(self) -> Defines:
        tile = self.tile
        pack, _ = column_packs(self.window, self.axes[2], tile.columns)
        return (
            *defines_of_window(self.window, self.axes),
            ("CPT", tile.channels),
            ("QB", tile.columns),
            ("DB", tile.depths),
            ("AHEAD", tile.ahead),
            ("ROUND", self.round),
            ("HB", tile.rows),
            ("CB", tile.side),
            ("IN_PACK", pack),
            ("ALIGNMENT", max(tile.channels, pack)),
            ("PARTS", tile.parts),
            ("THREAD_COUNT", tile.threads),
            ("MIN_BLOCKS", self.resident),
            ("OFFSET", self.window.shift(reach(self.window))),
        )

    def launch(self, epilogue: None = None) -> tuple[Source, list[Launch]]:
        files = ("sliding_wgrad.cu", "wgrad_reduce.cu")
        text = read_text("cuda/convolution/depthwise", *SLIDING_TEXTS, *files)
        source = Source("depthwise_sliding_filter", text, self.defines(), "cuda", spills=True)
        grid = (self.strips, self.tile.parts)
        return source, [Launch("depthwise_filter", grid, self.tile.threads), sum_launch(self.window)]


def choices(window: Window, device: GpuDevice) -> list[SlidingFilter]:
    """Every sensible tile; none if the filter is too large for registers."""
    found = []
    for axes in orders(window):
        depth, slide, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = sides(packs, channels * DTYPES[window.dtype])
            if not window.has_channel_lanes:
                side = 1
            for columns in tilings(width, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)):
                for depths, ahead in itertools.product(tilings(depth, (1, 2)), (1, 2)):
                    tile = Tile(channels, columns, depths, 1, side, 128, ahead=ahead)
                    least = SlidingFilter(window, axes, tile)
                    if least.registers > MOST_REGISTERS:
                        continue
                    # with few rows on their way the compiler can do with less, unless there are planes to address
                    least_extra = 20 if depth.taps == ahead == 1 else EXTRA_REGISTERS
                    for threads in (64, 128, 192, 256, 384):
                        if threads < side or (threads // side) * side * 8 < threads * 7:
                            continue
                        if least.registers + least_extra > most_registers(threads):
                            continue
                        for chunks in (1, 2, 4, 8, 16, 32):
                            rows = -(-slide.count // chunks)
                            if chunks > 1 and rows < 3 * least.steps:
                                break
                            plan = replace(least, tile=replace(tile, rows=rows, threads=threads))
                            found.append(with_parts(plan, device))
    return found


def with_parts(plan: SlidingFilter, device: GpuDevice) -> SlidingFilter:
    """The plan with as many parts as give each multiprocessor the same, by the model the best number, of groups."""
    found = []
    for each in range(1, plan.resident + 1):
        wanted = max(1, min(device.multiprocessors * each // plan.strips, 4096))
        rounds = -(-plan.items // (wanted * plan.slots))
        # fewer parts with the same rounds
        parts = max(1, -(-plan.items // (rounds * plan.slots)))
        found.append(replace(plan, tile=replace(plan.tile, parts=parts)))
    return min(found, key=lambda plan: plan.seconds(device))
