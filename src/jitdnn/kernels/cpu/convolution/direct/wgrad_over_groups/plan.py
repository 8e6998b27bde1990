"""The plan of the gradient of a filter of many small groups, vectorized over groups: channels-last images.

    for task: block of vectors of groups, split of the row blocks                                 (split-K)
      for row block of dy of the split                                         what its passes read stays in L2
        for vector of groups, channel of a group, tile of the filter's rows, tile of taps of a row: a pass
          load the sums of former passes                                   from the stack, or from the workspace
          for row of the block, run of columns
            load vectors of dy
            for row of the filter, column of x that the taps read
              load a vector of x;  sums[result of a group][row][tap] += dy * x                 in registers
          put the sums back
      with one split: store the sums to dw
    for task: vector of groups                                                 a phase of its own, if there are more
      add up the splits in a fixed order and store them to dw

How the rows are split depends on the problem and the processor, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, tap_tiles
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector, group_vector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits


@dataclass(frozen=True)
class WgradGroupTile:
    """Sums in registers, of each result channel of a group, and the columns of dy that feed them at once."""

    rows: int
    taps: int
    columns: int


@dataclass(frozen=True)
class WgradOverGroups(DirectPlan):
    """The gradient of a grouped filter; ``c`` is the forward correlation, with y as dy and w as dw.

    ``row_block`` is the rows of dy of one pass. Tasks share the row blocks of a vector of groups in ``splits``.
    """

    tile: WgradGroupTile
    row_block: int
    splits: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of groups."""
        return ceil_div(self.c.groups[0], self.lanes)

    @cached_property
    def x_span(self) -> RowVector:
        """How x is read: neighbouring groups are as many channels apart as a group has."""
        return group_vector(self.c.x, self.c.depth, self.c.groups[0], self.lanes)

    @cached_property
    def y_span(self) -> RowVector:
        """How dy is read."""
        return group_vector(self.c.y, self.c.width, self.c.groups[0], self.lanes)

    # ---- the loops

    @property
    def tap_tiles(self) -> list[range]:
        """The taps of a row, a tile's at a time."""
        return tap_tiles(self.c, self.tile.taps)

    @property
    def filter_tiles(self) -> tuple[int, int, int]:
        """Tiles of the filter's rows: (channels of a group, slices, tiles of a slice)."""
        return self.c.depth, self.c.axes[0].taps.count, self.c.axes[1].taps.count // self.tile.rows

    @property
    def tile_size(self) -> int:
        """Sums of one tile of taps, in elements."""
        return self.c.width * self.tile.rows * self.tile.taps * self.lanes

    @property
    def filter_size(self) -> int:
        """Sums of one vector of groups, with room for whole tiles of taps."""
        tiles = self.c.axes[0].taps.count * self.c.axes[1].taps.count * len(self.tap_tiles)
        return self.c.depth * self.c.width * tiles * self.tile.taps * self.lanes

    @property
    def is_on_stack(self) -> bool:
        """True if the sums of at least one vector of groups are on the stack; else there is a workspace."""
        return self.filter_size * self.item <= self.processor.l1(cost.DIRECT_STACK_L1)

    @cached_property
    def task_vectors(self) -> int:
        """Vectors of groups of one task."""
        return max(
            1, min(self.vectors, self.processor.l1(cost.DIRECT_STACK_L1) // (self.filter_size * self.item))
        )

    @property
    def vector_blocks(self) -> int:
        """Blocks of as many vectors."""
        return ceil_div(self.vectors, self.task_vectors)

    @property
    def units(self) -> WorkUnits:
        return WorkUnits((("vectors", self.vector_blocks), ("split", self.splits)))

    def workspace(self, threads: int = 1) -> int:
        """Bytes: the sums of every split, unless they stay on the stack to the end."""
        if self.splits == 1 and self.is_on_stack:
            return 0
        return self.splits * self.vectors * self.filter_size * self.item

    def divide(self, device: CpuDevice, cycles: float) -> tuple[int, tuple[int, ...]]:
        """A task for each unit, whatever the device: the sums of a split have their place in the workspace."""
        return self.units.count, ()

    def phases(self, prefix: str, tasks: int) -> list[tuple[str, int]]:
        phases = [(f"{prefix}tiles", tasks)]
        return phases if self.workspace() == 0 else [*phases, (f"{prefix}finish", self.vectors)]
