"""Banded matrices on the tensor cores: how a window is blocked, forward, backward to the data and for wgrad."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import most_registers, resident_groups

TILE = 8  # results of a row of a product


@dataclass(frozen=True)
class Band:
    """The `blocks` of 8 columns that a tile reads, the first at `shift` from the tile's own first result."""

    shift: int
    blocks: int


@dataclass(frozen=True)
class Blocking:
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
    cut: Blocking
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


@dataclass(frozen=True)
class BandedWgrad(Banded):
    """A cut of which a warp takes `tap_rows` rows of taps, a group `tap_warps` times as many; `parts` share it."""

    tap_rows: int = 1
    tap_warps: int = 1
    parts: int = 1

    @property
    def tap_groups(self) -> int:
        return -(-self.taps[0] // self.tap_rows)

    @property
    def own_channels(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.cut.channels * self.tap_warps

    @property
    def slots(self) -> int:
        """Rows that the planes hold: those of a step and those that the next one adds."""
        return max(1, min(self.axes[1].taps + 2 * self.cut.rows - 1, self.end_row - self.first_row))

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dy_plane(self) -> int:
        return skewed(2 * self.cut.rows * self.cut.lines * self.cut.segment * 4)

    @property
    def shared(self) -> int:
        halves = -(-self.band.blocks // 2)
        planes = 4 * self.cut.channels * (self.plane + self.dy_plane) + 16
        return max(planes, self.warps * halves * 512)

    @property
    def is_crowded(self) -> bool:
        """Whether a step has more rows at a time, with those of the next on their way, than do it good."""
        return 4 < self.cut.rows < self.cut.strip and self.taps[0] > 1

    @property
    def registers(self) -> int:
        halves = -(-self.band.blocks // 2)
        cut = self.cut
        threads = self.threads
        chunks = cut.channels // self.width
        loads = -(-cut.rows * cut.lines * self.blocks_read * 4 * chunks // threads)
        loads += -(-cut.rows * cut.lines * cut.segment * 4 * chunks // threads)
        crowd = 12 if self.is_crowded else 0
        return self.tap_rows * halves * 4 + cut.rows * 2 + 4 + loads * max(2, self.width) + 40 + crowd

    @property
    def resident(self) -> int:
        by_shared = (self.most_shared + 1024) // (self.shared + self.line_bytes + 1024)
        return max(1, min(by_shared, resident_groups(self.registers, self.threads)))

    @property
    def strips(self) -> int:
        """Groups side by side over channels and rows of taps."""
        return -(-self.window.channels // self.cut.channels) * -(-self.tap_groups // self.tap_warps)

    @property
    def line_groups(self) -> int:
        return -(-self.line_count // self.cut.lines)

    @property
    def workspace(self) -> int:
        return 4 * self.parts * self.window.taps * self.window.channels


def skewed(words: int) -> int:
    """At least so many words, 4 more than a multiple of 32: neighbouring planes begin in other banks."""
    return (words + 27) // 32 * 32 + 4
