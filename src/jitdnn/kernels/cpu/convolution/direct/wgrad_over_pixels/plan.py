"""The plan of a filter's gradient vectorized over pixels: nothing is packed, and every task owns what it writes.

dw[k, c, tap] = sum over images and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

for work unit: groups, block of result channels, block of channels, run of the filter's rows
  for row block of dy, in all images                                          what its passes read stays in L1
    for group of the unit, tile of the filter's rows, tile of taps of a row: a pass
      load the sums of former passes                                                       from the stack
      for rows of the block, ``height`` at a time
        for vector of pixels of these rows
          load vectors of dy
          for row of x, channel, tap:  load a vector of x;  sums[result] += dy * x          in registers
      put the sums back
  for group, tile of the filter's rows, tile of taps of a row: add up the lanes of its sums and store them to dw
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, tap_tiles
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits

_UNITS = 16  # that there should be


@dataclass(frozen=True)
class WgradPixelTile:
    """Sums in registers, and how many rows of dy feed them at once."""

    results: int
    channels: int
    rows: int
    taps: int
    height: int

    @property
    def sums(self) -> int:
        return self.results * self.channels * self.rows * self.taps


@dataclass(frozen=True)
class WgradOverPixels(DirectPlan):
    """The gradient of one filter; ``c`` is the forward correlation, with y as dy and w as dw."""

    tile: WgradPixelTile

    def span(self, offset: int) -> RowVector:
        """How x is read at an offset: only where there is a result."""
        axis = self.c.axes[2]
        end = min(axis.positions, (axis.results - 1) * axis.step + offset + 1)
        return RowVector(axis.step, self.c.x.space[2], max(0, end), self.lanes)

    @property
    def vectors(self) -> int:
        """Vectors along a row of dy."""
        return ceil_div(self.c.axes[2].results, self.lanes)

    def narrowed(self, results: int) -> WgradOverPixels:
        """The plan of the last, fewer result channels."""
        return replace(self, tile=replace(self.tile, results=results))

    # ---- the loops

    @property
    def tap_tiles(self) -> list[range]:
        """The taps of a row, a tile's at a time."""
        return tap_tiles(self.c, self.tile.taps)

    @property
    def filter_tiles(self) -> tuple[int, int]:
        """Tiles of the filter's rows, in each slice: (slices, tiles)."""
        return self.c.axes[0].taps.count, self.c.axes[1].taps.count // self.tile.rows

    @property
    def row_block(self) -> int:
        """Rows of dy of one pass."""
        axis, tile = self.c.axes[1], self.tile
        each = (tile.results + tile.channels * axis.step) * self.c.axes[2].results * self.item
        block = max(
            1, min(axis.results, self.processor.l1(cost.DIRECT_WGRAD_PIXELS_BLOCK_L1) // max(1, each))
        )
        return ceil_div(block, tile.height) * tile.height

    @property
    def _stack_bytes(self) -> int:
        """Bytes that the sums of a unit may take."""
        return self.processor.l1(cost.DIRECT_STACK_L1)

    @property
    def _row_sums(self) -> int:
        """Bytes of the sums of one tile of the filter's rows."""
        return self.tile.sums * ceil_div(self.c.axes[2].taps.count, self.tile.taps) * self.isa.vector_bytes

    @property
    def fits_stack(self) -> bool:
        """True if the sums of a unit that takes one tile of the filter's rows are not too large."""
        return self._row_sums <= self._stack_bytes

    @cached_property
    def unit_filter_tiles(self) -> int:
        """Tiles of the filter's rows of one unit."""
        return max(1, min(math.prod(self.filter_tiles), self._stack_bytes // self._row_sums))

    @cached_property
    def unit_groups(self) -> int:
        """Groups of one unit: many of small planes, which then are read one behind the other in every image."""
        c = self.c
        planes = c.depth * math.prod(axis.positions for axis in c.axes) * self.item
        if planes > self.processor.l1(cost.DIRECT_WGRAD_SMALL_PLANES_L1):
            return 1
        return max(
            1, min(self._stack_bytes // (self.unit_filter_tiles * self._row_sums), c.group_count // _UNITS)
        )

    @cached_property
    def units(self) -> WorkUnits:
        c, tile = self.c, self.tile
        filter_runs = ceil_div(math.prod(self.filter_tiles), self.unit_filter_tiles)
        return WorkUnits((
            ("groups", ceil_div(c.group_count, self.unit_groups)), ("results", ceil_div(c.width, tile.results)),
            ("channels", c.depth // tile.channels), ("filter_tiles", filter_runs),
        ))  # fmt: skip
