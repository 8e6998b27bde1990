"""Banded matrices on the tensor cores: how a window is blocked in fprop, dgrad and wgrad.

The loops, with the terms of banded_planes.cuh:

    for each thread block                          channels x lines (groups of lines, for wgrad)
        for each step of a strip                   rows of results; the rows that they read are in shared memory
            for each row of the planes             strip + taps - 1 of them in all
                for each channel of a warp
                    for each sixteen of tiles, pair of blocks       A: ldmatrix; B: two blocks of the banded matrix
                        for each row of results    mma, sums in registers
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import max_registers, resident_blocks

TILE = 8  # results of a row of a product


@dataclass(frozen=True)
class Band:
    """The `blocks` of 8 columns that a tile reads; the first begins `shift` columns from the tile's first result."""

    shift: int
    blocks: int


@dataclass(frozen=True)
class Blocking:
    """How a window is divided into thread blocks; the words are those of banded_planes.cuh.

    A thread block has `channels` in `warps` warps, and `lines` of `segment` tiles (a row has `segments` of these),
    which are the `tiles` times 16 rows of its products. A line is a strip of `strip` rows of results (an image has
    `chunks` of these), `rows` a step. If `is_one_row`, the rows of a line are segments of one long row.
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
    is_one_row: bool = False


@dataclass(frozen=True)
class Banded:
    """A window with its axes in the order depth, rows, banded axis, and a blocking."""

    window: Window
    axes: tuple[Axis, Axis, Axis]
    width: int
    blocking: Blocking
    band: Band
    facts: GpuFacts

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
        """Rows of a line that are read, counted from its first result, but for those that are padding in all lines."""
        axis, blocking = self.axes[1], self.blocking
        if blocking.is_one_row:
            return 0, blocking.strip
        if blocking.chunks > 1 or axis.phases > 1:
            return 0, blocking.strip + axis.taps - 1
        positions = axis.input.positions(1)
        first = max(0, positions[0] - axis.start)
        return first, max(first, min(blocking.strip + axis.taps - 1, positions[1] - axis.start))

    @property
    def slots(self) -> int:
        """Rows that the planes hold: those of a step."""
        return max(1, min(self.axes[1].taps + self.blocking.rows - 1, self.end_row - self.first_row))

    @property
    def blocks_read(self) -> int:
        return self.blocking.segment + self.band.blocks - 1

    @property
    def line_blocks(self) -> int:
        """Blocks from one line to the next, with the fewest bank conflicts of 8 tiles."""
        return self._line_blocks[1]

    @property
    def bank_conflicts(self) -> int:
        """Of reading the rows of all tiles, 8 tiles at a time: as many as there are eights without any."""
        return self._line_blocks[0]

    @property
    def _line_blocks(self) -> tuple[int, int]:
        return _fewest_conflicts(
            self.blocks_read, self.blocking.segment, self.blocking.lines, self.blocking.tiles
        )

    @property
    def plane(self) -> int:
        return skewed(self.slots * self.blocking.lines * self.line_blocks * 4)

    @property
    def out_plane(self) -> int:
        return skewed(self.blocking.rows * 64 * self.blocking.tiles)

    @property
    def has_taps_in_shared(self) -> bool:
        """Whether taps come from shared memory."""
        return self.taps[0] * self.own_channels * self.band.blocks > 40 or self.taps[0] > 16

    @property
    def own_channels(self) -> int:
        """Channels of a warp."""
        return self.blocking.channels // self.blocking.warps

    @property
    def shared(self) -> int:
        table = self.taps[0] * 2 * (4 * self.band.blocks + 4) if self.has_taps_in_shared else 0
        return 4 * self.blocking.channels * (self.plane + self.out_plane + table)

    @property
    def loads(self) -> int:
        """Pairs of packs that a thread has in flight."""
        blocking = self.blocking
        tasks = blocking.rows * blocking.lines * self.blocks_read * 4 * (blocking.channels // self.width)
        return -(-tasks // self.threads)

    @property
    def registers(self) -> int:
        taps = (
            (self.blocking.rows if self.has_taps_in_shared else self.taps[0])
            * self.own_channels
            * self.band.blocks
        )
        sums = self.blocking.rows * self.own_channels * self.blocking.tiles * 4
        halves = -(-self.band.blocks // 2)
        return taps + sums + self.loads * max(2, self.width) + 4 * halves + 36

    @property
    def resident(self) -> int:
        by_shared = self.facts.resident(self.shared + self.line_bytes)
        return max(1, min(by_shared, resident_blocks(self.facts, self.registers, self.threads)))

    @property
    def line_bytes(self) -> int:
        """Shared memory for what a thread block knows of its lines."""
        return 64 * self.blocking.lines + 64

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return 32 * self.blocking.warps

    @property
    def line_count(self) -> int:
        depth, rows, width = self.axes
        phases = rows.phases * width.phases
        segments = 1 if self.blocking.is_one_row else self.blocking.segments
        return self.window.n * depth.count * phases * self.blocking.chunks * segments

    @property
    def grid_blocks(self) -> int:
        strips = -(-self.window.channels // self.blocking.channels)
        return -(-self.line_count // self.blocking.lines) * strips

    @property
    def fits(self) -> bool:
        is_small = self.shared + self.line_bytes <= self.facts.shared_bytes
        return is_small and self.registers <= min(235, max_registers(self.facts, self.threads) - 4)


@dataclass(frozen=True)
class BandedWgrad(Banded):
    """wgrad: a warp has `tap_rows` rows of taps, a thread block `tap_warps` times as many; `splits` share the lines."""

    tap_rows: int = 1
    tap_warps: int = 1
    splits: int = 1

    @property
    def tap_groups(self) -> int:
        return -(-self.taps[0] // self.tap_rows)

    @property
    def own_channels(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.blocking.channels * self.tap_warps

    @property
    def slots(self) -> int:
        """Rows that the planes hold: those of a step and those that the next one adds."""
        return max(1, min(self.axes[1].taps + 2 * self.blocking.rows - 1, self.end_row - self.first_row))

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dy_plane(self) -> int:
        return skewed(2 * self.blocking.rows * self.blocking.lines * self.blocking.segment * 4)

    @property
    def shared(self) -> int:
        halves = -(-self.band.blocks // 2)
        planes = 4 * self.blocking.channels * (self.plane + self.dy_plane) + 16
        return max(planes, self.warps * halves * 512)

    @property
    def is_crowded(self) -> bool:
        """Whether a step has so many rows, with those of the next in flight, that registers become scarce."""
        return 4 < self.blocking.rows < self.blocking.strip and self.taps[0] > 1

    @property
    def registers(self) -> int:
        halves = -(-self.band.blocks // 2)
        blocking = self.blocking
        threads = self.threads
        chunks = blocking.channels // self.width
        loads = -(-blocking.rows * blocking.lines * self.blocks_read * 4 * chunks // threads)
        loads += -(-blocking.rows * blocking.lines * blocking.segment * 4 * chunks // threads)
        crowd = 12 if self.is_crowded else 0
        return self.tap_rows * halves * 4 + blocking.rows * 2 + 4 + loads * max(2, self.width) + 40 + crowd

    @property
    def resident(self) -> int:
        by_shared = self.facts.resident(self.shared + self.line_bytes)
        return max(1, min(by_shared, resident_blocks(self.facts, self.registers, self.threads)))

    @property
    def strips(self) -> int:
        """Thread blocks along the axes of channels and rows of taps."""
        return -(-self.window.channels // self.blocking.channels) * -(-self.tap_groups // self.tap_warps)

    @property
    def line_groups(self) -> int:
        return -(-self.line_count // self.blocking.lines)

    @property
    def workspace(self) -> int:
        return 4 * self.splits * self.window.taps * self.window.channels


@lru_cache(4096)
def _fewest_conflicts(least: int, segment: int, lines: int, tiles: int) -> tuple[int, int]:
    """Bank conflicts, and blocks from one line to the next, `least` or more, that have the fewest."""

    def conflicts(blocks: int) -> int:
        worst = 0
        for first in range(0, 16 * tiles, 8):
            items = range(first, min(first + 8, lines * segment))
            banks = [(i // segment * blocks + i % segment) % 8 for i in items]
            worst += max((banks.count(bank) for bank in banks), default=0)
        return worst

    return min((conflicts(blocks), blocks) for blocks in range(least, least + 8))


def skewed(words: int) -> int:
    """At least so many words, and 4 more than a multiple of 32, so that neighbouring planes begin in other banks."""
    return (words + 27) // 32 * 32 + 4
