"""The plan of a correlation of many small groups vectorized over groups, for channels-last images.

    for task: stride phase, block of vectors of groups, run of work units
      transpose the filters of these vectors to [result][channel][tap][lanes]              on the stack: L1
      for work unit: image, slice, row block, run of tiles
        for tile in run                                                 rows of x of the tile below are prefetched
          for vector of groups of the task
            for channel of a group, slice of the filter
              for row of x that the tile reads                               rows outside of the image are skipped
                for column of x that the tile reads and the row has
                  load a vector of x                                             once for all products below
                  for row, column of the tile, result of a group:  sums += vector * vector of the filter
            store results x rows x columns vectors of sums, which were in registers

Columns outside of the image are clipped when the code is made: tiles at the ends of a row are versions of their own,
as many as differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, Reads, reads_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector, group_vector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits

_LOOP_TAPS = 4  # taps of a row that one iteration of the loop over them takes
_UNITS = 64  # that there should be: long rows are cut if there are fewer


@dataclass(frozen=True)
class GroupTile:
    """Rows and columns of the result; ``unrolled`` says of which taps: "all", those of a "row", or "none"."""

    rows: int
    columns: int
    unrolled: str


@dataclass(frozen=True)
class Clipping:
    """What exists for a tile: columns of the input, from the tile's first one on, and columns of the result."""

    columns: frozenset[int]
    results: int


@dataclass(frozen=True)
class OverGroups(DirectPlan):
    """A correlation of small groups. The first axis of its groups is in the lanes."""

    tile: GroupTile

    # ---- what is computed

    @property
    def takes_pixels(self) -> bool:
        """Whether extents of images may be known when the code runs only: where pixels lie one behind the other."""
        return self.c.x.space[2] >= self.lanes and self.c.y.space[2] >= self.lanes

    @property
    def vectors(self) -> int:
        """Vectors of groups."""
        return ceil_div(self.c.groups[0], self.lanes)

    @property
    def is_masked(self) -> bool:
        """True if the last vector has fewer groups than lanes."""
        return self.c.groups[0] % self.lanes != 0

    @property
    def taps(self) -> tuple[int, int, int]:
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return d, h, w

    @cached_property
    def span(self) -> RowVector:
        """How a vector is read: neighbouring groups are as many channels apart as a group has."""
        return group_vector(self.c.x, self.c.depth, self.c.groups[0], self.lanes)

    @cached_property
    def interleaves_results(self) -> bool:
        """True if the results of a group are neighbours in memory, and the next group's follow."""
        c = self.c
        return 1 < c.width <= 4 and c.y.channels == 1 and c.y.groups[0] == c.width

    @property
    def prefetches_results(self) -> bool:
        """True if results exceed the caches and lie between those of other correlations.

        The hardware prefetches runs of lines by itself.
        """
        c = self.c
        if abs(c.y.space[2]) <= c.group_count * c.width:
            return False
        results = c.batch * c.group_count * c.width * math.prod(axis.results for axis in c.axes)
        return results * self.item > self.processor.l3(cost.DIRECT_WRITTEN_L3)

    # ---- the tile

    @property
    def column_reads(self) -> Reads:
        """(column of the tile, tap) by the column of the input, from the tile's first one on."""
        return reads_of(self.c.axes[2], self.tile.columns)

    @property
    def row_reads(self) -> Reads:
        """(row of the tile, tap) by the row of the input, from the tile's first one on."""
        return reads_of(self.c.axes[1], self.tile.rows)

    @cached_property
    def clippings(self) -> dict[Clipping, list[tuple[int, int]]]:
        """Runs [first, last) of tiles along a row, by what exists for them."""
        axis, reads, columns = self.c.axes[2], list(self.column_reads), self.tile.columns
        tiles, width = self.row_tiles, columns * axis.step
        first = last = 0  # the tiles for which everything exists
        if reads:
            first = min(tiles, ceil_div(max(0, -reads[0]), width))
            last = max(first, min(axis.results // columns, (axis.positions - 1 - reads[-1]) // width + 1))
        found: dict[Clipping, list[tuple[int, int]]] = {}
        if first < last:
            found[Clipping(frozenset(reads), columns)] = [(first, last)]
        for tile in (*range(first), *(last + i for i in range(tiles - last))):
            at = tile * columns
            inside = frozenset(q for q in reads if 0 <= at * axis.step + q < axis.positions)
            runs = found.setdefault(Clipping(inside, int(min(columns, axis.results - at))), [])
            if runs and runs[-1][1] == tile:
                runs[-1] = (runs[-1][0], tile + 1)
            else:
                runs.append((tile, tile + 1))
        return found

    @cached_property
    def versions(self) -> dict[Clipping, list[tuple[int, int]]]:
        """The versions of the code of a tile, and the runs of tiles along a row that each is for."""
        if self.tile.unrolled == "none":
            return {Clipping(frozenset(self.column_reads), self.tile.columns): [(0, self.row_tiles)]}
        return self.clippings

    def row_products(self, clipping: Clipping) -> int:
        """Vector products of a row of the filter and one of a tile."""
        axis = self.c.axes[2]
        return sum(
            column * axis.step + axis.taps.offset + tap * axis.taps.shift in clipping.columns
            for column, tap in itertools.product(range(clipping.results), range(axis.taps.count))
        )

    @property
    def sums(self) -> int:
        """Vectors of sums of a tile."""
        return self.c.width * self.tile.rows * self.tile.columns

    @property
    def filter_fits_registers(self) -> bool:
        """True if registers are left for the whole filter."""
        needed = self.sums + 2 + self.c.width * math.prod(self.taps)
        return self.tile.unrolled == "all" and needed <= self.isa.registers

    @property
    def row_fits_registers(self) -> bool:
        """True if registers are left for all columns of the input that a row of the tile reads."""
        return self.sums + 4 + len(self.column_reads) <= self.isa.registers

    @property
    def loop_taps(self) -> int:
        """Taps of a row that one iteration takes where not all of them are unrolled."""
        fits = self.c.width * (self.tile.columns + _LOOP_TAPS) < self.isa.registers
        return _LOOP_TAPS if self.taps[2] >= 2 * _LOOP_TAPS and fits else 1

    # ---- the loops

    @property
    def row_tiles(self) -> int:
        """Tiles along a row."""
        return ceil_div(self.c.axes[2].results, self.tile.columns)

    @property
    def filter_size(self) -> int:
        """Elements of the filters of one vector of groups."""
        return self.c.width * self.c.depth * math.prod(self.taps) * self.lanes

    @property
    def is_on_stack(self) -> bool:
        """True if the filters of at least one vector of groups are on the stack; else they are in the workspace."""
        return self.filter_size * self.item <= self.processor.l1(cost.DIRECT_STACK_L1)

    @cached_property
    def task_vectors(self) -> int:
        """Vectors of groups of one task."""
        return max(
            1,
            min(
                self.vectors,
                self.processor.l1(cost.DIRECT_STACK_L1) // (max(1, self.filter_size) * self.item),
            ),
        )

    @property
    def vector_blocks(self) -> int:
        """Blocks of as many vectors."""
        return ceil_div(self.vectors, self.task_vectors)

    @property
    def stride_phases(self) -> int:
        """Correlations that are carried as further groups."""
        return math.prod(self.c.groups[1:])

    def workspace(self, threads: int) -> int:
        """Bytes: the filters of one vector of groups for each thread, if they are too large for the stack."""
        if self.is_on_stack:
            return 0
        line = self.processor.line_bytes
        return threads * ceil_div(self.filter_size * self.item, line) * line

    @cached_property
    def units(self) -> WorkUnits:
        c = self.c
        rows = ceil_div(c.axes[1].results, self.tile.rows)
        blocks = c.batch * c.axes[0].results * rows
        runs = max(1, min(self.row_tiles, _UNITS // max(1, blocks)))
        return WorkUnits((("image", c.batch), ("slice", c.axes[0].results), ("rows", rows), ("run", runs)))

    def divide(self, device: CpuDevice, cycles: float) -> tuple[int, tuple[int, ...]]:
        """The extras are the tasks of a block of vectors and the units of a task."""
        blocks = self.stride_phases * self.vector_blocks
        tasks, per_task = self.units.split(device, cycles / blocks)
        return blocks * tasks, (tasks, per_task)


def divide_together(plans: Sequence[OverGroups]) -> tuple[int, tuple[int, ...]] | None:
    """What ``divide`` returns, for correlations whose results interleave: each task computes a part of all of them.

    So they read while it is in the cache what they have in common. None if their loops are not the same.
    """
    first = plans[0]
    if any(plan.units != first.units or plan.vector_blocks != first.vector_blocks for plan in plans):
        return None
    if any(plan.stride_phases > 1 for plan in plans):
        return None
    unit = abs(first.c.x.space[1]) * first.tile.rows * first.c.axes[1].step * first.item
    per_task = max(1, first.processor.l2(cost.DIRECT_INTERLEAVED_INPUT_L2) // max(1, unit))
    tasks = ceil_div(first.units.count, per_task)
    return first.vector_blocks * tasks, (tasks, per_task)
