"""The plan of a filter's gradient vectorized over channels, for channels-last images: nothing is packed.

    for work unit: group, block of result channels, vectors of channels, run of taps        each owns what it writes
      for row block of dy, in all images                                    what its passes read stays in L1 and L2
        for tap of the run: a pass
          load the sums of former passes                                                       from the stack
          for row of the block, pixel of the row whose tap is in the image
            load vectors of x
            for result:  sums[result] += broadcast dy * vectors of x                           in registers
          put the sums back
      for tap of the run: store its sums to dw

A row of the filter is one tap with more channels, if its taps and channels follow each other as those of the image do.

Everything else for channels-last images takes a workspace, or gathers pixels, which takes 5 to 20 times as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, merges_row_taps
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits


@dataclass(frozen=True)
class WgradChannelTile:
    """Sums in registers: result channels, and vectors of channels."""

    results: int
    vectors: int

    @property
    def sums(self) -> int:
        return self.results * self.vectors


@dataclass(frozen=True)
class WgradOverChannels(DirectPlan):
    """The gradient of one filter; ``c`` is the forward correlation, with y as dy and w as dw."""

    tile: WgradChannelTile

    @cached_property
    def merges_taps(self) -> bool:
        """True if a row of the filter is one run of channels."""
        return merges_row_taps(self.c, self.lanes)

    @property
    def tap_channels(self) -> int:
        """Channels of one tap, or of one row of taps if these are merged."""
        return self.c.depth * (self.c.axes[2].taps.count if self.merges_taps else 1)

    @property
    def taps(self) -> tuple[int, int, int]:
        """Taps along each axis, a merged row being one."""
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return d, h, 1 if self.merges_taps else w

    def narrowed(self, results: int) -> WgradOverChannels:
        """The plan of the last, fewer result channels."""
        return replace(self, tile=replace(self.tile, results=results))

    # ---- the loops

    @property
    def tile_channels(self) -> int:
        return self.tile.vectors * self.lanes

    @property
    def channel_blocks(self) -> int:
        """Tiles along the channels."""
        return ceil_div(self.tap_channels, self.tile_channels)

    @property
    def row_block(self) -> int:
        """Rows of dy of one pass."""
        (_, rows, columns), tile = self.c.axes, self.tile
        each = tile.results * columns.results + self.tile_channels * columns.positions * rows.step
        most = self.processor.l2(cost.DIRECT_WGRAD_CHANNELS_BLOCK_L2)
        # a row of an empty batch reads nothing
        return max(1, min(rows.results, most // max(1, each * self.item)))

    @property
    def pass_sums(self) -> int:
        """Sums of one pass, in elements."""
        return self.tile.sums * self.lanes

    @cached_property
    def unit_taps(self) -> int:
        """Taps of one work unit."""
        return max(
            1,
            min(
                math.prod(self.taps), self.processor.l1(cost.DIRECT_STACK_L1) // (self.pass_sums * self.item)
            ),
        )

    @cached_property
    def units(self) -> WorkUnits:
        c, tile = self.c, self.tile
        return WorkUnits((
            ("group", c.group_count), ("results", ceil_div(c.width, tile.results)),
            ("channels", self.channel_blocks), ("taps", ceil_div(math.prod(self.taps), self.unit_taps)),
        ))  # fmt: skip
