"""The sizes of a grouped wgrad over channels-last images: channels of whole groups in the lanes.

Of x and dy the one with more channels in a group is the *vector operand*: its channels are in the lanes. Channel j of
the other, the *broadcast operand*, is broadcast over the lanes of its group, by a shuffle, or by an ordinary broadcast
if the unit is one group. A *unit* (packing.py) is as many whole groups as fill a vector, or one group that fills
several. So no lane is idle however few channels a group has.

    for units             units_per_task at a time                      a task
      for split           of split_k: some blocks of pixels             a task
        for block         of dy, block rows x columns
          pack dy         of all these units                            packing.py; stays in the L2 cache
          for d           of taps
            pack x        of all these units                            packing.py; stays in the L2 cache
            for unit                                                    its two blocks stay in the L1 cache
              for h       of taps
                for vector of the unit's vector operand
                  for tile.taps of the row, tile.channels of the broadcast operand
                    for row, column of the block                        sums in registers, taps x channels
                      sums[tap][channel] += vector operand * broadcast operand
    for unit                                                            a task of the second phase
      add the sums of all splits in their order, store dw               wgrad_code.py

Between blocks the sums of a unit wait in memory, [d][h][tile of taps][tile of channels][vector][tap][channel][lanes].
What is split depends on the problem alone, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.convolution.grouped.packing import GroupPacking, groups_per_unit
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines


@dataclass(frozen=True, order=True)
class WgradTile:
    """Sums in registers: taps of a row, and channels of the broadcast operand."""

    taps: int
    channels: int

    @property
    def vectors(self) -> int:
        return self.taps * self.channels


@dataclass(frozen=True)
class GroupedWgradPlan(CorrelationPlan):
    """A register tile and a blocking for one wgrad. Sizes are in elements unless said otherwise.

    ``c`` is the forward correlation, with y as dy and w as dw; ``block`` is rows and columns of dy; ``split_k`` is into
    how many parts the blocks are split, whose sums the second phase adds.
    """

    tile: WgradTile
    block: tuple[int, int]
    units_per_task: int
    split_k: int

    # ---- operands and units

    @property
    def is_x_vector(self) -> bool:
        """True if x is the vector operand and dy the broadcast operand."""
        return self.c.depth >= self.c.width

    @property
    def vector_channels(self) -> int:
        """Channels of a group of the vector operand."""
        return max(self.c.depth, self.c.width)

    @property
    def broadcast_channels(self) -> int:
        """Channels of a group of the broadcast operand."""
        return min(self.c.depth, self.c.width)

    @property
    def groups_per_unit(self) -> int:
        return groups_per_unit(self.c, self.lanes)

    @property
    def units(self) -> int:
        return ceil_div(self.c.groups[0], self.groups_per_unit)

    @property
    def vectors(self) -> int:
        """Vectors of a unit's channels of the vector operand."""
        return ceil_div(self.groups_per_unit * self.vector_channels, self.lanes)

    # ---- blocking

    @property
    def tap_tiles(self) -> int:
        return ceil_div(self.c.axes[2].taps.count, self.tile.taps)

    @property
    def channel_tiles(self) -> int:
        return ceil_div(self.broadcast_channels, self.tile.channels)

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """Images, slices, and blocks along a slice's rows and columns."""
        d, h, w = (axis.results for axis in self.c.axes)
        return self.c.batch, d, ceil_div(h, self.block[0]), ceil_div(w, self.block[1])

    @cached_property
    def x_packing(self) -> GroupPacking:
        """How one slice of a block of x is packed."""
        c, (_, axis_h, axis_w) = self.c, self.c.axes
        extents = axis_h.reads(self.block[0]), axis_w.reads(self.block[1])
        positions = axis_h.positions, axis_w.positions
        return GroupPacking(
            c.dtype, self.lanes, c.x, c.depth, c.groups[0], self.groups_per_unit, positions, extents,
            self.is_x_vector,
        )  # fmt: skip

    @cached_property
    def dy_packing(self) -> GroupPacking:
        """How a block of dy is packed."""
        c, pixels = self.c, (self.c.axes[1].results, self.c.axes[2].results)
        return GroupPacking(
            c.dtype, self.lanes, c.y, c.width, c.groups[0], self.groups_per_unit, pixels, self.block,
            not self.is_x_vector,
        )  # fmt: skip

    @property
    def unit_tasks(self) -> int:
        """Into how many tasks the units are divided."""
        return ceil_div(self.units, self.units_per_task)

    @property
    def tasks(self) -> int:
        """Tasks of the first phase."""
        return self.unit_tasks * self.split_k

    def phases(self) -> list[tuple[str, int]]:
        """The launch phases: names and tasks."""
        return [("sums", self.tasks), ("split_k_reduction", self.units)]

    # ---- memory

    @property
    def tile_sums(self) -> int:
        return self.tile.vectors * self.lanes

    @property
    def unit_sums(self) -> int:
        """Sums of one unit."""
        slices, rows, _ = (axis.taps.count for axis in self.c.axes)
        return slices * rows * self.row_sums

    @property
    def row_sums(self) -> int:
        """Sums of one unit for a row of taps."""
        return self.tap_tiles * self.channel_tiles * self.vectors * self.tile_sums

    @property
    def sum_elements(self) -> int:
        """Room for the sums of all splits."""
        return whole_lines(self.split_k * self.units * self.unit_sums, self.c.dtype, self.isa)

    @property
    def thread_elements(self) -> int:
        """Room for a thread's packed blocks of x and dy."""
        unit = self.x_packing.elements + self.dy_packing.elements
        return whole_lines(self.units_per_task * unit, self.c.dtype, self.isa)

    def workspace(self, threads: int) -> int:
        """Bytes: the sums of all splits, then the room of each thread."""
        return (self.sum_elements + threads * self.thread_elements) * self.item
