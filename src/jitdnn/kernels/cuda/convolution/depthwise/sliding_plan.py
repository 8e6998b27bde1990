"""Rows that slide through registers: the sizes of a thread's tile in fprop, dgrad and wgrad."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.cost import LINE_BYTES, MAX_REGISTERS, REGISTER_UNIT, SCHEDULERS
from jitdnn.tensor.dtypes import DTYPES

# registers that the compiler adds for addresses and bounds
EXTRA_REGISTERS = 24
EXTRA_WGRAD_REGISTERS = 36


@dataclass(frozen=True)
class Tile:
    """The tile of a thread: `channels` neighbours of `columns` x `depths` results, in `rows` blocks of rows.

    `side`: packs of channels that neighbouring threads of a block of `threads` have. `prefetch`: steps whose rows are
    in flight. `splits`: thread blocks with the same channels, for wgrad. The loops:

        for each thread              pack of channels, then columns, depths and blocks of rows
            for each step            the rows of the input of one more block of results; those of later steps in flight
                for each tap         `columns` x `depths` x `channels` multiply-adds, sums in registers
    """

    channels: int
    columns: int
    depths: int
    rows: int
    side: int
    threads: int
    splits: int = 1
    prefetch: int = 1


@dataclass(frozen=True)
class _Rows:
    """A window with its axes in the order depth, sliding, width, and a tile."""

    window: Window
    axes: tuple[Axis, Axis, Axis]
    tile: Tile
    facts: GpuFacts

    @cached_property
    def element(self) -> int:
        return DTYPES[self.window.dtype]


@dataclass(frozen=True)
class Sliding(_Rows):
    """fprop and dgrad."""

    @cached_property
    def rows_in(self) -> int:
        slide = self.axes[1]
        return 1 if slide.is_scattered else slide.stride

    @cached_property
    def rows_out(self) -> int:
        slide = self.axes[1]
        return slide.stride if slide.is_scattered else 1

    @cached_property
    def steps(self) -> int:
        """Blocks of results that a row of the input reaches."""
        return -(-self.axes[1].taps // self.axes[1].stride)

    @cached_property
    def blocks(self) -> int:
        """Blocks of rows of results."""
        slide, out = self.axes[1], self.rows_out
        return (slide.start + slide.count - 1) // out + 1 - slide.start // out

    @cached_property
    def columns_read(self) -> int:
        return _reads(self.axes[2], self.tile.columns)

    @cached_property
    def planes_read(self) -> int:
        return _reads(self.axes[0], self.tile.depths)

    @cached_property
    def own(self) -> float:
        """Packs of a step that no other thread reads."""
        each = 1.0
        for axis, count in ((self.axes[0], self.tile.depths), (self.axes[2], self.tile.columns)):
            each *= count / axis.stride if axis.is_scattered else count * min(axis.stride, axis.taps)
        return self.rows_in * each

    @cached_property
    def registers(self) -> int:
        """Registers that a thread's numbers take."""
        tile, taps = self.tile, self.window.taps
        sums = self.steps * self.rows_out * tile.depths * tile.columns * tile.channels
        reads = self.rows_in * self.planes_read * self.columns_read
        # numbers are widened as they are used, some of them at a time
        used = taps * tile.channels + sums + int(0.8 * reads * tile.channels)
        return used + tile.prefetch * self.registers_of_step

    @cached_property
    def registers_of_step(self) -> int:
        """Those of a step in flight."""
        reads = self.rows_in * self.planes_read * self.columns_read
        return reads * max(1, self.tile.channels * self.element // 4)

    @cached_property
    def products(self) -> float:
        """Products in a step."""
        depth, slide, width = self.axes
        tile = self.tile
        results = 1.0
        for axis, count in ((depth, tile.depths), (width, tile.columns)):
            results *= count * axis.taps / (axis.stride if axis.is_scattered else 1)
        return results * slide.taps * tile.channels

    @cached_property
    def units(self) -> int:
        """Threads of the whole grid that have results."""
        depth, slide, width = self.axes
        phases = depth.phases * slide.phases * width.phases
        tile = self.tile
        strips = -(-width.count // tile.columns) * -(-depth.count // tile.depths)
        chunks = -(-self.blocks // tile.rows)
        return self.window.n * phases * strips * chunks * (self.window.channels // tile.channels)

    @cached_property
    def grid_blocks(self) -> int:
        return -(-self.units // self.tile.threads)

    @cached_property
    def resident(self) -> int:
        """Thread blocks that a multiprocessor has at a time."""
        return resident_blocks(self.facts, self.registers + EXTRA_REGISTERS, self.tile.threads)

    @cached_property
    def ends_inside_line(self) -> bool:
        """Whether neighbouring threads read runs of f32 that are no whole lines: L2 is asked for what follows."""
        run = self.tile.side * self.tile.channels * self.element
        return self.element == 4 and self.window.has_channel_lanes and run % LINE_BYTES != 0


@dataclass(frozen=True)
class SlidingWgrad(_Rows):
    """wgrad; `tile.splits` thread blocks share the items."""

    @cached_property
    def steps(self) -> int:
        return -(-self.axes[1].taps // self.axes[1].stride)

    @cached_property
    def round(self) -> int:
        """Steps that the loop's body makes: a multiple of those in flight, of whole windows unless that is long."""
        whole = math.lcm(self.tile.prefetch, self.steps)
        return whole if whole * self.products <= 800 else self.tile.prefetch

    @cached_property
    def products(self) -> int:
        """Products in a step."""
        return self.window.taps * self.results * self.tile.channels

    @cached_property
    def reads(self) -> int:
        """Packs of x that a step reads."""
        depth, slide, width = self.axes
        tile = self.tile
        planes = (tile.depths - 1) * depth.stride + depth.taps
        return slide.stride * planes * ((tile.columns - 1) * width.stride + width.taps)

    @cached_property
    def results(self) -> int:
        """Packs of dy that a step reads."""
        return self.tile.depths * self.tile.columns

    @cached_property
    def registers(self) -> int:
        tile = self.tile
        words = max(1.0, tile.channels * self.element / 4)
        prefetch = int((self.reads + self.results) * words) * tile.prefetch
        return (self.window.taps + self.reads + self.steps * self.results) * tile.channels + prefetch

    @cached_property
    def slots(self) -> int:
        return self.tile.threads // self.tile.side

    @cached_property
    def items(self) -> int:
        depth, slide, width = self.axes
        tile = self.tile
        phases = depth.phases * slide.phases * width.phases
        tiles = (
            -(-width.count // tile.columns) * -(-depth.count // tile.depths) * -(-slide.count // tile.rows)
        )
        return tiles * phases * self.window.n

    @cached_property
    def strips(self) -> int:
        """Thread blocks along the axis of channels."""
        return self.window.channels // (self.tile.channels * self.tile.side)

    @cached_property
    def resident(self) -> int:
        return min(7, resident_blocks(self.facts, self.registers + EXTRA_WGRAD_REGISTERS, self.tile.threads))

    @cached_property
    def workspace(self) -> int:
        return 4 * self.tile.splits * self.window.taps * self.window.channels


def max_offset(window: Window) -> int:
    """The largest offset within an image, of either tensor."""
    return max(
        sum(abs(s) * (e - 1) for s, e in zip(t.strides[2:], t.shape[2:], strict=True))
        for t in (window.input, window.output)
    )


def widths(window: Window) -> list[int]:
    """Numbers of channels that one access may take, largest first."""
    if not window.is_channels_last:
        return [1]
    size = DTYPES[window.dtype]
    steps = [window.channels, window.input.strides[0], window.output.strides[0]]
    for axis in window.axes:
        steps += [axis.input.step, axis.output.step]
    return [n for n in (8, 4, 2, 1) if n * size <= 16 and all(step % n == 0 for step in steps)]


def column_packs(window: Window, width: Axis, columns: int) -> tuple[int, int]:
    """Columns that an access of the input takes, and one of the output, where a row's columns are neighbours."""
    if window.is_channels_last:
        return 1, 1
    counts = []
    for tensor, line, is_apt, count in (
        (
            window.input,
            width.input,
            not width.is_scattered and width.input.origin <= 0,
            columns * width.stride,
        ),
        (window.output, width.output, width.output.origin + width.start == 0, columns),
    ):
        others = [line.extent, count, tensor.strides[0], tensor.strides[1]]
        others += tensor.strides[2:-1]
        is_apt &= line.step == line.pitch == width.phases == 1
        size = DTYPES[window.dtype]
        fitting = (n for n in (8, 4, 2) if n * size <= 16 and all(other % n == 0 for other in others))
        counts.append(next(fitting, 1) if is_apt else 1)
    return counts[0], counts[1]


def is_dense(window: Window, axes: Sequence[Axis]) -> bool:
    """Whether the taps of all channels are one run of memory, channel after channel."""
    if not window.is_channels_last or window.filter.strides[0] != window.taps:
        return False
    base = sum(axis.tap_base for axis in axes)
    positions = (
        base + sum(i * axis.tap_step for i, axis in zip(index, axes, strict=True))
        for index in itertools.product(*(range(axis.taps) for axis in axes))
    )
    return sorted(positions) == list(range(window.taps))


def resident_blocks(facts: GpuFacts, registers: int, threads: int) -> int:
    """Thread blocks that a multiprocessor holds at a time; each quarter of it has registers for its own warps."""
    each = REGISTER_UNIT * math.ceil(min(MAX_REGISTERS, registers) / REGISTER_UNIT)
    warps = SCHEDULERS * (facts.registers // (32 * SCHEDULERS) // each)
    by_threads = min(facts.resident_blocks, facts.resident_threads // threads)
    return max(1, min(warps // math.ceil(threads / 32), by_threads))


def resident_threads(facts: GpuFacts, registers: int) -> int:
    """Threads that a multiprocessor has at a time at most, in thread blocks of any size."""
    each = REGISTER_UNIT * math.ceil(min(MAX_REGISTERS, registers) / REGISTER_UNIT)
    return min(facts.resident_threads, 32 * SCHEDULERS * (facts.registers // (32 * SCHEDULERS) // each))


def max_registers(facts: GpuFacts, threads: int) -> int:
    """Registers that each thread of a thread block may have, if the group is to run at all."""
    of_a_lane = facts.registers // (32 * SCHEDULERS)  # of a lane of a quarter, for all its warps
    each = of_a_lane // math.ceil(threads / (32 * SCHEDULERS))
    return min(MAX_REGISTERS, each // REGISTER_UNIT * REGISTER_UNIT)


def _reads(axis: Axis, results: int) -> int:
    if axis.is_scattered:
        return (results + axis.taps - 2) // axis.stride + 1
    return (results - 1) * axis.stride + axis.taps
