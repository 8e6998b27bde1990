"""Rows that slide through registers: the tiles that are worth trying, what they cost, and the kernels made of them.

Forward and backward to the data: sliding.cu; the filter's gradient: sliding_wgrad.cu.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.tensor.dtypes import DTYPES

Defines = tuple[tuple[str, object], ...]

SLIDING_TEXTS = "common.cuh", "sliding_rows.cuh"
MOST_REGISTERS = 200  # that a tile's numbers may take
EXTRA_REGISTERS = 24  # that the compiler adds for addresses and bounds
REGISTER_FILE = 65536
CLOCK = 1.75e9
LAUNCH = 2.5e-6
LATENCY = 0.7e-6  # of the memory, when it is busy


@dataclass(frozen=True)
class Tile:
    """What a thread does: `channels` neighbours, `columns` x `depths` results, `rows` blocks of rows in turn.

    `side`: packs of channels that lie side by side in a block of `threads` threads. For a filter's gradient `parts`
    says into how many parts its sums are split. `ahead`: steps whose rows are on their way.
    """

    channels: int
    columns: int
    depths: int
    rows: int
    side: int
    threads: int
    parts: int = 1
    ahead: int = 1


def defines_of_axis(letter: str, axis: Axis) -> Iterator[tuple[str, object]]:
    yield f"{letter}_TAPS", axis.taps
    yield f"{letter}_TAP_STEP", f"({axis.tap_step}LL)"
    yield f"{letter}_STRIDE", axis.stride
    yield f"{letter}_SCATTERED", int(axis.is_scattered)
    yield f"{letter}_PHASES", axis.phases
    yield f"{letter}_START", f"({axis.start})"
    yield f"{letter}_COUNT", axis.count
    for side, line in (("IN", axis.input), ("OUT", axis.output)):
        yield f"{letter}_{side}_PITCH", line.pitch
        yield f"{letter}_{side}_ORIGIN", f"({line.origin})"
        yield f"{letter}_{side}_SLOPE", line.slope
        yield f"{letter}_{side}_EXTENT", line.extent
        yield f"{letter}_{side}_STEP", f"({line.step}LL)"


def defines_of_window(window: Window, axes: Sequence[Axis]) -> Iterator[tuple[str, object]]:
    """What all kernels of this folder know of a problem; `axes` in the order of the letters D, H and W."""
    yield f"DTYPE_{window.dtype}", 1
    for letter, axis in zip("DHW", axes, strict=True):
        yield from defines_of_axis(letter, axis)
    yield "IMAGES", window.n
    yield "CHANNELS", window.channels
    yield "MULTIPLIER", window.multiplier
    yield "X_N", f"({window.input.strides[0]}LL)"
    yield "X_C", f"({window.input.strides[1]}LL)"
    yield "Y_N", f"({window.output.strides[0]}LL)"
    yield "Y_C", f"({window.output.strides[1]}LL)"
    yield "W_C", f"({window.filter.strides[0]}LL)"
    yield "W_BASE", f"({sum(axis.tap_base for axis in axes)}LL)"


def reach(window: Window) -> int:
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
        counts.append(next(fitting, 1) if is_apt and not window.is_channels_last else 1)
    return counts[0], counts[1]


def is_dense(window: Window, axes: Sequence[Axis]) -> bool:
    """Whether the taps of all channels are one run of memory, channel after channel."""
    if not window.is_channels_last or window.filter.strides[0] != window.taps:
        return False
    base = sum(axis.tap_base for axis in axes)
    places = (
        base + sum(i * axis.tap_step for i, axis in zip(index, axes, strict=True))
        for index in itertools.product(*(range(axis.taps) for axis in axes))
    )
    return sorted(places) == list(range(window.taps))


def sides(packs: int, size: int, most: int = 64) -> int:
    """How many of a pixel's packs of `size` bytes lie side by side: a divisor, of whole 32 bytes if there is one."""
    best = 1
    for side in range(1, min(packs, most) + 1):
        if packs % side == 0 and (side * size % 32 == 0 or best * size % 32 != 0):
            best = side
    return best


@dataclass(frozen=True)
class Sliding:
    """A window with its axes in the order depth, sliding, width, and a tile."""

    window: Window
    axes: tuple[Axis, Axis, Axis]
    tile: Tile

    @cached_property
    def element(self) -> int:
        return DTYPES[self.window.dtype]

    @property
    def rows_in(self) -> int:
        slide = self.axes[1]
        return 1 if slide.is_scattered else slide.stride

    @property
    def rows_out(self) -> int:
        slide = self.axes[1]
        return slide.stride if slide.is_scattered else 1

    @property
    def steps(self) -> int:
        """Blocks of results that a row of the input reaches."""
        return -(-self.axes[1].taps // self.axes[1].stride)

    @property
    def blocks(self) -> int:
        """Blocks of rows of results."""
        slide, out = self.axes[1], self.rows_out
        return (slide.start + slide.count - 1) // out + 1 - slide.start // out

    @property
    def columns_read(self) -> int:
        return _reads(self.axes[2], self.tile.columns)

    @property
    def planes_read(self) -> int:
        return _reads(self.axes[0], self.tile.depths)

    @property
    def own(self) -> float:
        """Packs of a step that no other thread reads."""
        each = 1.0
        for axis, count in ((self.axes[0], self.tile.depths), (self.axes[2], self.tile.columns)):
            each *= count / axis.stride if axis.is_scattered else count * min(axis.stride, axis.taps)
        return self.rows_in * each

    @property
    def registers(self) -> int:
        """Registers that a thread's numbers take."""
        tile, taps = self.tile, self.window.taps
        sums = self.steps * self.rows_out * tile.depths * tile.columns * tile.channels
        reads = self.rows_in * self.planes_read * self.columns_read
        ahead = tile.ahead * reads * max(1, tile.channels * self.element // 4)
        # numbers that are read are widened as they are used, a part of them at a time
        return taps * tile.channels + sums + int(0.8 * reads * tile.channels) + ahead

    @property
    def products(self) -> float:
        """Products in a step."""
        depth, slide, width = self.axes
        tile = self.tile
        results = 1.0
        for axis, count in ((depth, tile.depths), (width, tile.columns)):
            results *= count * axis.taps / (axis.stride if axis.is_scattered else 1)
        return results * slide.taps * tile.channels

    @property
    def units(self) -> int:
        """Threads that have something to do."""
        depth, slide, width = self.axes
        phases = depth.phases * slide.phases * width.phases
        tile = self.tile
        strips = -(-width.count // tile.columns) * -(-depth.count // tile.depths)
        chunks = -(-self.blocks // tile.rows)
        return self.window.n * phases * strips * chunks * (self.window.channels // tile.channels)

    @property
    def groups(self) -> int:
        return -(-self.units // self.tile.threads)

    @property
    def resident(self) -> int:
        """Groups that a multiprocessor has at a time."""
        return min(32, resident_groups(self.registers + EXTRA_REGISTERS, self.tile.threads))

    def seconds(self, device: GpuDevice) -> float:
        tile = self.tile
        reads = self.rows_in * self.planes_read * self.columns_read
        writes = self.rows_out * tile.depths * tile.columns
        # instructions of a step: products, numbers widened and narrowed, accesses with their bounds and addresses
        issued = self.products + 1.2 * reads * tile.channels + 2.5 * reads + 12
        issued += writes * (1.5 * tile.channels + 3)
        apart = tile.channels if self.window.has_channel_lanes else tile.columns
        # packs of columns are one access for several
        read_packs, write_packs = column_packs(self.window, self.axes[2], tile.columns)
        own = self.rows_in * self.planes_read * tile.columns * self.axes[2].stride
        fewer = own * (1 - 1 / read_packs) + writes * (1 - 1 / write_packs)
        issued -= 2.5 * fewer
        accesses = (reads + writes - fewer) * max(1.0, apart * self.element * 32 / 128)
        steps = tile.rows + self.steps - 1
        if tile.rows >= self.blocks:
            steps = max(self.axes[1].input.extent // self.axes[1].input.pitch // self.rows_in, 1)
        warps = self.groups * tile.threads / 32
        width = device.multiprocessors * self.resident
        waves = math.ceil(self.groups / width)
        if waves == 1:
            filled = math.ceil(self.groups / device.multiprocessors) * device.multiprocessors / self.groups
        else:
            filled = waves * width / self.groups if waves < 4 else 1 + 0.5 * width / self.groups
        # few warps leave gaps between dependent instructions
        gaps = 0.6 + 1.7 / max(0.75, self.resident * tile.threads / 128)
        clocks = steps * warps * max(issued / 4 * gaps, accesses) / device.multiprocessors
        busy = clocks / CLOCK * filled**0.9
        # a step waits for its rows: what is on its way at once bounds the bandwidth
        threads = tile.threads * min(self.resident, self.groups / device.multiprocessors)
        in_flight = tile.ahead * threads * self.own * tile.channels * self.element
        transfer = self.window.bytes_moved / (device.bandwidth * share_of_bandwidth(in_flight))
        transfer *= filled**0.4 * (1 + 0.007 * max(0, 8 / (tile.channels * self.element) - 1))
        if self.axes[1] is self.window.axes[2]:
            transfer *= 1.1  # what is read at a time lies scattered
        # and steps follow one another
        chain = waves * LATENCY * (1.5 + steps / tile.ahead)
        more_waves = 2.4e-6 * (1 - 1 / waves)
        together = (busy**4 + transfer**4) ** 0.25
        return float(LAUNCH + more_waves + max(chain, together + 0.2 * min(busy, transfer)))

    def defines(self) -> Defines:
        tile = self.tile
        packs = column_packs(self.window, self.axes[2], tile.columns)
        return (
            *defines_of_window(self.window, self.axes),
            ("CPT", tile.channels),
            ("QB", tile.columns),
            ("DB", tile.depths),
            ("HB", tile.rows),
            ("AHEAD", tile.ahead),
            ("W_DENSE", int(is_dense(self.window, self.axes))),
            ("IN_PACK", packs[0]),
            ("OUT_PACK", packs[1]),
            ("ALIGNMENT", max(tile.channels, *packs)),
            ("CB", tile.side),
            ("THREAD_COUNT", tile.threads),
            ("MIN_BLOCKS", min(self.resident, max(1, 1024 // tile.threads))),
            ("INDEX", "u32" if self.units + 1024 < 2**32 else "u64"),
            ("OFFSET", self.window.shift(reach(self.window))),
        )

    def launch(self, epilogue: Epilogue | None = None) -> tuple[Source, list[Launch]]:
        functions, defines = epilogue_text(self.window, self.axes, epilogue)
        text = functions + read_text("cuda/convolution/depthwise", *SLIDING_TEXTS, "sliding.cu")
        source = Source("depthwise_sliding", text, (*self.defines(), *defines), "cuda", spills=True)
        return source, [Launch("depthwise", self.groups, self.tile.threads)]


def epilogue_text(window: Window, axes: Sequence[Axis], epilogue: Epilogue | None) -> tuple[str, Defines]:
    """The functions of an epilogue, and the macros through which a kernel with its axes in this order calls them."""
    code = epilogue_source(epilogue, window.output, "f32", first=3)
    space = ["d", "w", "h"] if axes[1] is window.axes[2] else ["d", "h", "w"]
    result = code.apply("(sum)", ["n", "c", *space[5 - len(window.output.shape) :]])
    names = "".join(f", e{number}" for number in range(3, 3 + len(code.operands)))
    return code.functions, (
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE(sum, n, c, d, h, w)", f"({result})"),
        ("EPILOGUE_PARAMETERS", code.parameters),
        ("EPILOGUE_ARGUMENTS", code.parameters),
        ("EPILOGUE_NAMES", names),
    )


def resident_groups(registers: int, threads: int) -> int:
    """Groups of threads with so many registers each that a multiprocessor has at a time, of which it has four parts."""
    warps = 4 * (512 // (8 * math.ceil(min(255, registers) / 8)))
    return max(1, min(warps // math.ceil(threads / 32), 2048 // threads))


def most_registers(threads: int) -> int:
    """Registers that each thread of a group may have, if the group is to run at all."""
    return min(255, 512 // math.ceil(threads / 128) // 8 * 8)


def share_of_bandwidth(in_flight: float, enough: float = 16e3, excess: float = 0.04) -> float:
    """Of the memory's bandwidth, what a multiprocessor's bytes on their way reach; too many get in the way."""
    share = in_flight / enough
    return float(min(1.0, share) ** 0.5 / (1 + excess * max(0.0, share - 1)))


def _reads(axis: Axis, results: int) -> int:
    if axis.is_scattered:
        return (results + axis.taps - 2) // axis.stride + 1
    return (results - 1) * axis.stride + axis.taps


def orders(window: Window) -> list[tuple[Axis, Axis, Axis]]:
    """The axes as (depth, sliding, width): neighbours in memory are neighbouring threads, and tall filters slide."""
    depth, height, width = window.axes
    if not window.is_channels_last:
        return [(depth, height, width)]
    found = [(depth, height, width)]
    if height.taps < width.taps or height.count < 4 <= width.count:
        found.append((depth, width, height))
    return found


def choices(window: Window) -> list[Sliding]:
    """Every sensible tile, cheapest first by the model's account; none if the filter is too large for registers."""
    found: list[Sliding] = []
    for axes in orders(window):
        depth, _, width = axes
        for channels in widths(window):
            packs = window.channels // channels
            side = sides(packs, channels * DTYPES[window.dtype]) if window.has_channel_lanes else 1
            for columns in tilings(width, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)):
                for depths, ahead in itertools.product(tilings(depth, (1, 2, 3, 4)), (1, 2, 4)):
                    tile = Tile(channels, columns, depths, 1, side, 128, ahead=ahead)
                    found += _divided(Sliding(window, axes, tile))
    return found


def _divided(whole: Sliding) -> Iterator[Sliding]:
    """The plan with its rows and threads divided among groups in every sensible way."""
    if whole.registers > MOST_REGISTERS or whole.products > 1600:
        return
    side = whole.tile.side
    for threads in (64, 128, 256):
        even = -(-threads // side) * side
        size = even if even <= 384 and even % 32 == 0 else threads
        if whole.registers + EXTRA_REGISTERS > most_registers(size):
            continue
        for chunks in (1, 2, 4, 8, 16, 32):
            rows = -(-whole.blocks // chunks)
            if chunks > 1 and rows < 2 * whole.steps:
                break
            yield replace(whole, tile=replace(whole.tile, rows=rows, threads=size))


def tilings(axis: Axis, counts: Sequence[int]) -> list[int]:
    if axis.is_scattered:
        counts = sorted({-(-count // axis.stride) * axis.stride for count in counts})
    least = min(counts)
    return [count for count in counts if count == least or count <= axis.count + axis.stride - 1]
