"""The plan of a correlation vectorized over channels, for channels-last images: no workspace.

    for work unit: image, group, [result channel block | slice, row block, run of tiles]
      pack the unit's weights into a panel on the stack           "panel" only; it stays in L1
      for row, tile in the unit                                        x of the run stays in L2
        for slice, row, column of the filter                            rows outside of the image are skipped
          "broadcast", "panel": for c:          sums[pixel][vector] += broadcast x[pixel] * vectors of result channels
          "dot": for vector of channels:         sums[pixel][result] += vector of x[pixel] * vector of the filter
        "dot": add up the lanes of each sum
        store pixels x result channels, which were in registers

Where the filter's result channels are neighbours in memory they are the lanes, and x is broadcast. A small filter is
brought into that order on the stack. Of a large one the channels that are summed are the lanes: every sum is a vector
of partial sums. There a filter's row is one run of channels, if its taps and channels follow each other as the
image's do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, merges_row_taps, row_units
from jitdnn.kernels.cpu.microkernel.nontemporal import stream_bytes
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits


@dataclass(frozen=True)
class ChannelTile:
    """Sums in registers: pixels along a row, and vectors of result channels (or single ones).

    ``kind`` is "broadcast" (vectors of the filter as they are), "panel" (packed on the stack first) or "dot" (the
    channels that are summed are the lanes).
    """

    pixels: int
    results: int
    kind: str

    @property
    def is_dot(self) -> bool:
        return self.kind == "dot"


@dataclass(frozen=True)
class OverChannels(DirectPlan):
    """A correlation vectorized over its result channels, or over those that are summed."""

    tile: ChannelTile

    @cached_property
    def merges_taps(self) -> bool:
        """True if a row of the filter is one run of channels."""
        return self.tile.is_dot and merges_row_taps(self.c, self.lanes)

    @property
    def tap_channels(self) -> int:
        """Channels of one tap, or of one row of taps if these are merged."""
        return self.c.depth * (self.c.axes[2].taps.count if self.merges_taps else 1)

    @property
    def tile_width(self) -> int:
        """Result channels of the tile."""
        return self.tile.results if self.tile.is_dot else self.tile.results * self.lanes

    @property
    def panel_size(self) -> int:
        """Elements of the filter that a tile reads."""
        return self.tile_width * self.c.depth * self.c.taps

    def narrowed(self, width: int) -> OverChannels:
        """The plan of the last, fewer result channels."""
        results = width if self.tile.is_dot else ceil_div(width, self.lanes)
        return replace(self, tile=replace(self.tile, results=results))

    @cached_property
    def is_nontemporal(self) -> bool:
        """True if stores go past the caches: results are large, and lie in whole vectors."""
        c, y = self.c, self.c.y
        if self.tile.is_dot or y.dtype != c.dtype or y.channels != 1:
            return False
        size = c.batch * c.group_count * c.width * math.prod(axis.results for axis in c.axes)
        steps = (y.batch, *y.groups, *y.space)
        return size * self.item >= stream_bytes(self.isa.processor) and all(
            step % self.lanes == 0 for step in steps
        )

    # ---- the loops

    @property
    def row_tiles(self) -> int:
        """Tiles along a row."""
        return ceil_div(self.c.axes[2].results, self.tile.pixels)

    @property
    def run_tiles(self) -> int:
        """Tiles along a row of one work unit."""
        c, axis = self.c, self.c.axes[2]
        each = c.depth * c.axes[1].taps.count * self.tile.pixels * axis.step * self.item
        return max(1, min(self.row_tiles, self.processor.l2(cost.DIRECT_RUN_L2) // max(1, each)))

    @property
    def unit_rows(self) -> int:
        """Rows of one work unit: several where the filter is packed for them."""
        c, (_, rows, columns) = self.c, self.c.axes
        if self.tile.kind != "panel" or self.run_tiles < self.row_tiles:
            return 1
        each = c.depth * rows.step * columns.positions * self.item
        return max(1, min(rows.results, self.processor.l2(cost.DIRECT_RUN_L2) // max(1, each)))

    @cached_property
    def units(self) -> WorkUnits:
        c, runs = self.c, ceil_div(self.row_tiles, self.run_tiles)
        channels, rows = ceil_div(c.width, self.tile_width), ceil_div(c.axes[1].results, self.unit_rows)
        return row_units(c, self.isa.processor, channels, rows, runs)
