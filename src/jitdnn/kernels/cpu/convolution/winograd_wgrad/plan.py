"""A filter's gradient by minimal filtering: the frozen sizes.

    dw = A^T [ sum over tiles of  (B^T X B) . (G dY G^T) ] A      F(m, r) on one or two axes, m taps and r results

At each point the products of all channels of x with all channels of dy are a matrix product whose reduction is over the
tiles. Its operands lie alike, as [point][block of a vector of channels][tile][lane]: the channels of one are the rows,
those of the other the lanes. The subfilters of the taps (axes.py) count as further channels of x. There are two orders:

    loops                                       work                  where the result is
    sum-resident: few tiles
      phases "transform0" (x), "transform1" (dy)
      for unit of tiles, for block: a task is some of them
        for tile                                pack, B^T X B or G dY G^T   packed unit: L1; operand: L3 or memory
      phase "sums"
      for panel of lanes, for Mc blocks of rows: a task
        for block of rows, for Mr rows
          for subfilter
            for point
              for tile                          micro-kernel          Mr x lanes: registers; sums [point][Mr][lanes]: L1
            once                                A^T sums A            taps [Mr][tap][lanes]: L2
          once                                  store                 dw
    tile-resident
      phase "sums"
      for Nc panels of lanes, for Mc blocks of rows, for share of split-K: a task
        for Kc tiles
          for block of both, for unit           pack, B^T X B or G dY G^T   operands [point][Mc or Nc][Kc]: L2
          for point
            for panel of lanes, for block of rows, for Mr rows
              for tile of the Kc                micro-kernel          Mr x lanes: registers; sums: L3 or memory
      phase "finish"
      for panel of lanes, for block of rows: a task is some of them
        for Mr rows
          for subfilter                         add shares, A^T sums A      taps [Mr][tap][lanes]: L2
          once                                  store                 dw

    Mr  mr                  rows of a register tile, which is ``vectors`` vectors of lanes wide
    Mc  mc_blocks           blocks of rows of a task
    Nc  nc_panels           panels of lanes of a task; a panel has the blocks of a register tile
    Kc  kc                  tiles that are multiplied at a time: kc_units units, if the sums are resident all of them
    split-K  split_k        sets of sums, each of a share of the tiles

All sizes depend on the problem and the processor alone, so that the result is the same to the bit with any number of
threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import Axes, Reading, dy_reading, x_reading
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering import Matrix

Order = Literal["sum-resident", "tile-resident"]
_PADDING = 80  # elements between points, so that the points of one tile do not share few sets of a cache


@dataclass(frozen=True)
class Operand:
    """One of the two tensors as the matrix product reads it, in blocks of a vector of channels."""

    number: int  # of the kernel's pointers: 0 is x, 1 is dy
    view: View
    channels: int
    subfilters: tuple[int, int, int]
    lanes: int
    vectors: int = 1  # blocks of a panel

    @property
    def is_x(self) -> bool:
        return self.number == 0

    @property
    def subfilter_count(self) -> int:
        return math.prod(self.subfilters)

    @property
    def blocks(self) -> int:
        """Blocks of one subfilter."""
        return ceil_div(self.channels, self.lanes)

    @property
    def panels(self) -> int:
        """Panels of one subfilter."""
        return ceil_div(self.blocks, self.vectors)

    @property
    def padded_blocks(self) -> int:
        """Blocks of one subfilter in memory: those of whole panels."""
        return self.panels * self.vectors

    @property
    def all_blocks(self) -> int:
        """Blocks of all subfilters in memory."""
        return self.subfilter_count * self.padded_blocks

    @property
    def all_panels(self) -> int:
        return self.subfilter_count * self.panels


@dataclass(frozen=True)
class UnitTransform:
    """A tensor in units of tiles; ``dtype`` is that of the arithmetic, ``pitch`` is from point to point."""

    dtype: str
    view: View
    readings: tuple[Reading, Reading, Reading]
    matrices: tuple[Matrix, Matrix]
    lanes: int
    pitch: int

    @property
    def is_transposed(self) -> bool:
        """True if a row is contiguous in memory and the channels are not."""
        return self.view.space[2] == 1 and self.view.channels != 1

    @property
    def packed_pitch(self) -> int:
        """Vectors from one row of a packed unit to the next."""
        columns = self.readings[2].elements
        return ceil_div(columns, self.lanes) * self.lanes if self.is_transposed else columns

    @property
    def packed_elements(self) -> int:
        return self.readings[1].elements * self.packed_pitch * self.lanes


@dataclass(frozen=True)
class WinogradWgradPlan(CorrelationPlan):
    """The gradient of one filter. Sizes are in elements of the arithmetic's type unless said otherwise."""

    axes: Axes
    order: Order
    is_swapped: bool  # the rows are channels of dy and the lanes those of x
    mr: int  # rows of a register tile
    vectors: int  # of a register tile
    mc_blocks: int  # of rows, of a task; where the sums are resident, of each subfilter
    nc_panels: int  # of lanes, of a task
    kc_units: int  # of tiles, that are transformed at a time
    split_k: int  # sets of sums

    @property
    def groups(self) -> int:
        return self.c.group_count

    @cached_property
    def subfilters(self) -> tuple[int, int, int]:
        a, b, c = (axis.subfilters for axis in self.axes)
        return a, b, c

    @property
    def subfilter_count(self) -> int:
        return math.prod(self.subfilters)

    @property
    def taps(self) -> tuple[int, int, int]:
        """Of the whole filter."""
        a, b, c = (axis.axis.taps.count for axis in self.axes)
        return a, b, c

    @property
    def points(self) -> int:
        return math.prod(axis.alpha for axis in self.axes)

    @cached_property
    def row_operand(self) -> Operand:
        return self._operand(not self.is_swapped, 1)

    @cached_property
    def lane_operand(self) -> Operand:
        return self._operand(self.is_swapped, self.vectors)

    def _operand(self, is_x: bool, vectors: int) -> Operand:
        c = self.c
        if is_x:
            return Operand(0, c.x, c.depth, self.subfilters, self.lanes, vectors)
        return Operand(1, c.y, c.width, (1, 1, 1), self.lanes, vectors)

    # ---- tiles

    @cached_property
    def units(self) -> tuple[int, int, int, int]:
        """Units of tiles: images, and along each axis."""
        a, b, c = (axis.units for axis in self.axes)
        return self.c.batch, a, b, c

    @property
    def unit_count(self) -> int:
        return math.prod(self.units)

    @property
    def unit_tiles(self) -> int:
        return math.prod(axis.unit_tiles for axis in self.axes)

    @property
    def kc(self) -> int:
        """Tiles that are transformed at a time."""
        return self.kc_units * self.unit_tiles

    @property
    def tile_blocks(self) -> int:
        """Blocks of Kc tiles."""
        return ceil_div(self.unit_count, self.kc_units)

    # ---- blocking of the products

    @property
    def register_tiles(self) -> int:
        """Register tiles of a block of rows."""
        return self.lanes // self.mr

    @property
    def last_mr(self) -> int:
        """Rows of the last register tile of a subfilter."""
        return (self.row_operand.channels - 1) % self.mr + 1

    @property
    def mc_pieces(self) -> int:
        """Tasks that share the rows."""
        rows = self.row_operand
        return ceil_div(rows.all_blocks if self.order == "tile-resident" else rows.blocks, self.mc_blocks)

    @property
    def nc_pieces(self) -> int:
        """Tasks that share the lanes."""
        return ceil_div(self.lane_operand.all_panels, self.nc_panels)

    @property
    def tasks(self) -> int:
        """Tasks of the phase "sums", which has the fewest."""
        if self.order == "sum-resident":
            return self.groups * self.mc_pieces * self.lane_operand.panels
        return self.groups * self.mc_pieces * self.nc_pieces * self.split_k

    # ---- memory

    @property
    def register_tile_size(self) -> int:
        """Sums of a register tile at one point."""
        return self.mr * self.vectors * self.lanes

    @cached_property
    def row_pitch(self) -> int:
        """From point to point of the operand of rows."""
        blocks = (
            self.mc_blocks if self.order == "tile-resident" else self.groups * self.row_operand.all_blocks
        )
        return blocks * self.kc * self.lanes + self._padding

    @cached_property
    def lane_pitch(self) -> int:
        """From point to point of the operand of lanes."""
        panels = (
            self.nc_panels if self.order == "tile-resident" else self.groups * self.lane_operand.all_panels
        )
        return panels * self.vectors * self.kc * self.lanes + self._padding

    @property
    def _padding(self) -> int:
        return ceil_div(_PADDING, self.lanes) * self.lanes

    @property
    def operands_size(self) -> int:
        """Both operands at all points."""
        return self.points * (self.row_pitch + self.lane_pitch)

    @cached_property
    def sum_pitch(self) -> int:
        """From point to point of sums that are carried, [group][panel][block][register tile]."""
        blocks = self.groups * self.lane_operand.all_panels * self.row_operand.all_blocks
        return blocks * self.register_tiles * self.register_tile_size + self._padding

    @property
    def sums_size(self) -> int:
        """A set of sums."""
        return self.points * self.sum_pitch

    @property
    def taps_size(self) -> int:
        """The taps of a register tile's channels, those of all subfilters."""
        return math.prod(self.taps) * self.register_tile_size

    @cached_property
    def thread_size(self) -> int:
        """What a thread has for itself."""
        transforms = (self.transform(self.row_operand), self.transform(self.lane_operand))
        size = max(*(t.packed_elements for t in transforms), self.taps_size)
        if self.order == "sum-resident":
            return size + self.points * self.register_tile_size + self.lanes
        return size + self.operands_size

    @property
    def shared_size(self) -> int:
        """What all threads share."""
        return self.operands_size if self.order == "sum-resident" else self.split_k * self.sums_size

    def workspace(self, threads: int) -> int:
        """Bytes: what is shared, then what each thread has for itself."""
        return (self.shared_size + threads * self.thread_size) * self.item

    # ---- the tensors

    def transform(self, operand: Operand) -> UnitTransform:
        a, b, c = (x_reading(axis) if operand.is_x else dy_reading(axis) for axis in self.axes)
        matrices = [axis.filtering.data if operand.is_x else axis.filtering.filter for axis in self.axes[1:]]
        pitch = self.row_pitch if operand is self.row_operand else self.lane_pitch
        return UnitTransform(
            self.c.dtype, operand.view, (a, b, c), (matrices[0], matrices[1]), self.lanes, pitch
        )

    @property
    def row_stride(self) -> int:
        """Elements of dw from one row of sums to the next."""
        return self.c.w.results if self.is_swapped else self.c.w.channels

    @property
    def lane_stride(self) -> int:
        return self.c.w.channels if self.is_swapped else self.c.w.results
