"""The sizes of a grouped fprop or dgrad over channels-last images: output channels of whole groups in the lanes.

A *unit* (packing.py) is as many whole groups as fill a vector, or one group that fills several. Channel j of every
group of a unit is broadcast over the lanes of its group, by a shuffle, or by an ordinary broadcast if the unit is one
group, and multiplied by vectors of the filter. So no lane is idle however few channels a group has.

    for unit                                                              a task of the first phase
      pack w            [stride phase][d, row of taps][vector][channel][tap of a row][lanes]          code.py
    for image, slice of y                                                 a task
      for block of y    block_rows x block_columns                        a task
        for units       units_per_task at a time                          a task
          pack x        [slice][unit][row][column][vector][lanes]         packing.py; stays in the L2 cache
          for unit                                                        its packed block stays in the L1 cache
            for row     of the block
              for stride phase                                            one, but for a strided dgrad
                for tile.columns of the row
                  for tile.vectors of the unit's output channels          sums in registers, columns x vectors
                    for d, h, and up to MAX_TAPS taps of a row            taps that read outside in d or h are left out
                      for channel of a group                              a broadcast times a vector for each tap
                    store                                                 microkernel/epilogue_store.py

A strided dgrad is several correlations, one for each stride phase, whose results are interleaved: a block of x is
packed once for all of them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.convolution.grouped.packing import GroupPacking, groups_per_unit
from jitdnn.kernels.cpu.correlation import Axis, Correlation, InterleavedPhases, StridePhase
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

MAX_TAPS = 4  # taps of a row whose weights are in registers at once


@dataclass(frozen=True)
class GroupedTile:
    """Sums in registers: columns of a row of y, and vectors of a unit's output channels."""

    columns: int
    vectors: int


@dataclass(frozen=True)
class GroupedPlan:
    """A register tile and a blocking for the correlations of all stride phases. Sizes are in elements unless said
    otherwise.

    ``block`` is rows of y, and tiles along each of them.
    """

    interleaved: InterleavedPhases
    isa: Isa
    tile: GroupedTile
    block: tuple[int, int]
    units_per_task: int

    @property
    def c(self) -> Correlation:
        """What all stride phases read, and the results of the one that has the most."""
        return self.interleaved.whole

    @property
    def stride_phases(self) -> tuple[StridePhase, ...]:
        return self.interleaved.stride_phases

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    # ---- units

    @property
    def groups_per_unit(self) -> int:
        return groups_per_unit(self.c, self.lanes)

    @property
    def units(self) -> int:
        return ceil_div(self.c.groups[0], self.groups_per_unit)

    @property
    def vectors(self) -> int:
        """Vectors of a unit's output channels."""
        return ceil_div(self.groups_per_unit * self.c.width, self.lanes)

    # ---- blocking

    @property
    def block_columns(self) -> int:
        return self.block[1] * self.tile.columns

    @property
    def slices(self) -> int:
        """Slices of x from the first to the last that a slice of y reads."""
        return self.c.axes[0].taps.span + 1

    @cached_property
    def packing(self) -> GroupPacking:
        """How one slice of a block of x is packed."""
        c, (_, axis_h, axis_w) = self.c, self.c.axes
        extents = axis_h.reads(self.block[0]), axis_w.reads(self.block_columns)
        positions = axis_h.positions, axis_w.positions
        return GroupPacking(
            c.dtype, self.lanes, c.x, c.depth, c.groups[0], self.groups_per_unit, positions, extents, False
        )

    @property
    def task_extents(self) -> tuple[int, int, int, int, int]:
        """The index space of the tasks: images, slices, blocks along a slice's rows and columns, and units."""
        d, h, w = (axis.results for axis in self.c.axes)
        unit_tasks = ceil_div(self.units, self.units_per_task)
        return self.c.batch, d, ceil_div(h, self.block[0]), ceil_div(w, self.block_columns), unit_tasks

    @property
    def tasks(self) -> int:
        return math.prod(self.task_extents)

    def phases(self) -> list[tuple[str, int]]:
        """The launch phases: names and tasks."""
        return [("pack_weights", self.units), ("tiles", self.tasks)]

    # ---- memory

    def phase_weights(self, stride_phase: StridePhase) -> int:
        """A unit's packed weights for one stride phase."""
        return stride_phase.c.taps * self.vectors * self.c.depth * self.lanes

    @property
    def unit_weights(self) -> int:
        """A unit's packed weights, stride phase after stride phase."""
        return sum(map(self.phase_weights, self.stride_phases))

    @property
    def weight_elements(self) -> int:
        return whole_lines(self.units * self.unit_weights, self.c.dtype, self.isa)

    @property
    def slice_elements(self) -> int:
        """One packed slice of all units of a task."""
        return self.units_per_task * self.packing.elements

    @property
    def packed_elements(self) -> int:
        """The packed block of a task."""
        return self.slice_elements * self.slices

    @property
    def thread_elements(self) -> int:
        """Room that a thread needs for itself: a packed block, and the sums of a tile."""
        sums = self.tile.columns * self.tile.vectors * self.lanes
        return whole_lines(self.packed_elements + sums, self.c.dtype, self.isa)

    def workspace(self, threads: int) -> int:
        """Bytes: the packed weights, then the room of each thread."""
        return (self.weight_elements + threads * self.thread_elements) * ITEM_BYTES[self.c.dtype]


def tap_blocks(axis: Axis) -> list[tuple[int, int]]:
    """Taps of a row whose weights are in registers at once: (the first, how many)."""
    count = axis.taps.count
    each = ceil_div(count, ceil_div(count, MAX_TAPS))
    return [(at, min(each, count - at)) for at in range(0, count, each)]


def uses_of_positions(axis: Axis, columns: int, taps: int) -> dict[int, list[tuple[int, int]]]:
    """The pairs (column, tap) that read each position, which is counted from what the first tap reads for column 0."""
    found: dict[int, list[tuple[int, int]]] = {}
    for column, tap in itertools.product(range(columns), range(taps)):
        found.setdefault(column * axis.step + tap * axis.taps.shift, []).append((column, tap))
    return dict(sorted(found.items()))
