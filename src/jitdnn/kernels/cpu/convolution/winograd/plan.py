"""Winograd's minimal filtering of a correlation over two tiled axes: the frozen sizes.

In Lavin and Gray's names, with alpha[0] * alpha[1] points of a tile of m[0] x m[1] results (axes.py, matrices.py):

    V [point][tile][channel]       transformed data, B^T d B
    U [panel][point][channel][Nr]  transformed filter, G w G^T
    M [panel][point][tile][Nr]     V U, a matrix product for each point

What is summed besides the tiled taps counts as channels: the input channels, once for each tap of the untiled axis and
each subfilter of the rows and of the columns. One operand is resident, the other one streams:

    loops                                       work                  where the result is
    data-resident
      phase "filter"                                                  (callers with prepacked weights run it once)
      for panel, for 64 channels: a task
        for Kp channels                         pack w                packed filter: L1
          for subfilter, for vector of Nr       G w G^T               U: L3 or memory
      phase "tiles"
      for block of Mc tiles: a task
        for Kc channels
          for tile row, for vector of channels  pack x                packed input tile of Tw tiles: L1
            for subfilter, for tile             B^T d B               V [point][Mc][Kc]: L2
          for panel                                                   U of the panel streams by
            for point
              for Mr tiles
                for chain of the Kc             micro-kernel          Mr x Nr sums: registers; M [point][Mc][Nr]: L2
            for tile row, if Kc is the last     A^T M A, store        y
    filter-resident: large filters of small images, whose U does not go through memory
      phase "data"
      for tile row: a task is some of them
        for vector of channels, for tile        pack x, B^T d B       V [point][all tiles][all channels]: L3
      phase "panels"
      for panel: a task
        for Kc channels
          for Kp channels                       pack w, G w G^T       U [point][Kc][Nr]: L2
          for point                                                   V streams by
            for Mr tiles
              for the Kc                        micro-kernel          Mr x Nr sums: registers; M [point][tile][Nr]: L2
        for tile row                            A^T M A, store        y

    Tw  tw                  tiles in a tile row, of each residue: a row of tiles or an even part of one
    Mc  mc                  tiles of a block: mc_rows tile rows
    Mr  register_tile.rows  tiles of a register tile
    Nr  nr                  results' channels of a panel: the vectors of a register tile
    Kc  kc                  channels of the resident operand at a time; of data all, unless M of all panels fits into L2
    Kp  packed_channels     channels of the filter that are packed at a time
    chain                   what a register sums before it is added to M: at most MAX_CHAIN products (`chain_scope`)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.axes import TileAxis, Tiling, reversed_axis
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.packing import Panels, plan_panels
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines

MAX_CHAIN = 512  # products of a chain: longer sums are made of several, and err as one of so many
_MAX_JOINT_VECTORS = 4

ChainScope = Literal["subfilters", "slice", "channels"]


@dataclass(frozen=True)
class WinogradPlan(CorrelationPlan):
    """One correlation, its taps in order, cut into tiles. Sizes are in elements of its type unless said otherwise."""

    tiling: Tiling
    is_data_resident: bool  # else the filter is
    mc_rows: int  # tile rows of a block
    data_kc: int = 0  # channels of V at a time, where the data are resident; 0: all of them

    @cached_property
    def rows(self) -> TileAxis:
        return self.tiling.rows(self.c)

    @cached_property
    def columns(self) -> TileAxis:
        return self.tiling.columns(self.c)

    @property
    def tiled(self) -> tuple[int, int]:
        return self.tiling.tiled

    @property
    def untiled(self) -> int:
        return self.tiling.untiled

    @property
    def slices(self) -> Axis:
        """The third axis, whose taps are summed as channels are."""
        return self.c.axes[self.untiled]

    @cached_property
    def points(self) -> int:
        return self.rows.alpha * self.columns.alpha

    @cached_property
    def subfilters(self) -> tuple[int, int, int]:
        """What is summed besides channels: taps of the third axis, subfilters of the rows and of the columns."""
        return self.slices.taps.count, self.rows.subfilters, self.columns.subfilters

    @cached_property
    def subfilter_count(self) -> int:
        return math.prod(self.subfilters)

    # ---- tile rows: what is packed and transformed at a time

    @cached_property
    def tw(self) -> int:
        """Tiles of each residue of the columns in a tile row: their packed input stays in L1."""
        vector = self.lanes * self.item
        spacing = self.columns.dilation if self.has_few_channels else self.columns.spacing
        tile = self.rows.alpha * spacing * self.columns.m * vector
        most = self.isa.processor.l1(cost.WINOGRAD_PACKED_INPUT_L1) // tile
        return even_share(self.columns.tiles_per_residue, max(1, most))

    @property
    def row_tiles(self) -> int:
        """Tiles in a tile row."""
        return self.tw * self.columns.dilation

    @cached_property
    def tile_row_extents(self) -> tuple[int, int, int, int]:
        """What tile rows are counted by: images, results of the third axis, rows of tiles, parts of such a row."""
        return (
            self.c.batch,
            self.slices.results,
            self.rows.tiles,
            ceil_div(self.columns.tiles_per_residue, self.tw),
        )

    @cached_property
    def tile_rows(self) -> int:
        return math.prod(self.tile_row_extents)

    @property
    def read_columns(self) -> int:
        """Positions of the columns that a whole tile row reads."""
        tiles = self.columns.spacing * (self.columns.m * (self.tw - 1) + self.columns.alpha)
        return tiles + (self.columns.last_position if self.columns.axis.step == 1 else 0)

    @property
    def packed_spacing(self) -> int:
        """From one datum of a tile to the next in what is packed: a tile row, or one tile at a time."""
        if self.reads_unpacked:
            return 1
        return self.columns.dilation if self.has_few_channels else self.columns.spacing

    @property
    def pack_step(self) -> int:
        """Columns of the input from one that is packed to the next: all of a tile row, or the data of one tile."""
        return self.columns.spacing if self.reads_unpacked else 1

    @property
    def packed_columns(self) -> int:
        """Columns of what is packed."""
        if self.reads_unpacked:
            return self.columns.alpha
        if not self.has_few_channels:
            return self.read_columns
        return self.columns.dilation * (self.columns.m * (self.tw - 1) + self.columns.alpha)

    @cached_property
    def packed_pitch(self) -> int:
        """From row to row of the packed input."""
        return ceil_div(self.packed_columns, self.lanes) * self.lanes

    @cached_property
    def result_pitch(self) -> int:
        """From row to row of a tile row's results."""
        results = self.tw * self.columns.m * self.columns.dilation
        return ceil_div(results, self.lanes) * self.lanes

    @cached_property
    def x_is_channels_last(self) -> bool:
        """True if vectors of channels are loaded as they are, False if squares of positions are transposed."""
        x, columns = self.c.x, self.columns.axis
        return _is_channels_last(x.channels, x.space[self.tiled[1]], columns.positions)

    @cached_property
    def y_is_channels_last(self) -> bool:
        y, columns = self.c.y, self.columns.axis
        return _is_channels_last(y.channels, y.space[self.tiled[1]], columns.results)

    @cached_property
    def reads_unpacked(self) -> bool:
        """True if a tile that reads no padding is transformed from where it is; each of the others is packed alone."""
        return self.c.x.channels == 1 and self.c.depth >= self.lanes

    @cached_property
    def has_few_channels(self) -> bool:
        """True if the lanes of a vector are the few channels of several subfilters (few_channels.py)."""
        subfilters = self.rows.subfilters * self.columns.subfilters
        is_small = 2 * self.c.depth <= self.lanes
        is_small = is_small and subfilters * self.c.depth <= _MAX_JOINT_VECTORS * self.lanes
        return is_small and subfilters > 1 and self.is_data_resident and not self.x_is_channels_last

    @property
    def joint_channels(self) -> int:
        """Channels of all subfilters of the tiled axes."""
        return self.rows.subfilters * self.columns.subfilters * self.c.depth

    # ---- blocking of the products

    @cached_property
    def blocks(self) -> int:
        return ceil_div(self.tile_rows, self.mc_rows)

    @cached_property
    def mc(self) -> int:
        """Tiles of a block."""
        return self.mc_rows * self.row_tiles

    @cached_property
    def register_tile(self) -> RegisterTile:
        return choose_tile([self.mc], self.c.width, self.isa, self.c.dtype)

    @cached_property
    def register_rows(self) -> tuple[tuple[int, int], ...]:
        """(Mr, how many register tiles of so many rows) that make up a block's tiles; at most two sizes."""
        return even_sizes(self.mc, self.register_tile.rows)

    @property
    def nr(self) -> int:
        """Results' channels of a panel."""
        return self.register_tile.vectors * self.lanes

    @cached_property
    def kc(self) -> int:
        """Channels that are multiplied at a time, of all subfilters: those of V or of U that are there at once."""
        if self.is_data_resident:
            return self.data_kc or self.c.depth
        channel = self.points * self.subfilter_count * self.nr * self.item
        step = self.packed_channels
        most = max(step, self.isa.processor.l2(cost.WINOGRAD_U_L2) // channel // step * step)
        return min(self.c.depth, ceil_div(even_share(self.c.depth, most), step) * step)

    @property
    def accumulates(self) -> bool:
        """True if M of all panels waits for further channels of the data."""
        return self.data_kc > 0

    @property
    def v_channels(self) -> int:
        """Channels of V in memory, of each subfilter."""
        return self.kc if self.is_data_resident else self.c.depth

    @property
    def u_channels(self) -> int:
        """Channels of U in memory, of each subfilter."""
        return self.c.depth if self.is_data_resident else self.kc

    @cached_property
    def packed_channels(self) -> int:
        """Kp: channels of a filter that are packed at once before they are transformed."""
        row = math.prod(self.panels.taps) * self.nr * self.item
        return min(16, max(1, self.isa.processor.l1(cost.WINOGRAD_PACKED_FILTER_L1) // row))

    @cached_property
    def prefetches_next_kc(self) -> bool:
        """True if the filter's next Kc channels may come into the L2 cache while these are multiplied."""
        if self.is_data_resident:
            return False
        filters = self.kc * math.prod(self.panels.taps) * self.nr
        used = (filters + self.u_panel_elements + self.m_elements) * self.item
        return used <= self.isa.processor.l2(cost.WINOGRAD_PREFETCH_L2)

    @cached_property
    def chain_scope(self) -> ChainScope:
        """What a register sums from zero before it is added to M: at most `MAX_CHAIN` products, if data are resident.

        "subfilters": Kc channels of all of them; "slice": of those of a tap of the third axis; "channels":
        `chain_channels` of one subfilter. Rounding errors grow with the partial sums, so that chains are short.
        """
        if self.subfilter_count * self.kc <= MAX_CHAIN:
            return "subfilters"
        return "slice" if self.subfilter_count // self.subfilters[0] * self.kc <= MAX_CHAIN else "channels"

    @cached_property
    def chain_channels(self) -> int:
        return even_share(self.kc, MAX_CHAIN)

    @property
    def chains(self) -> int:
        """Chains of a sum over Kc channels."""
        if not self.is_data_resident or self.chain_scope == "subfilters":
            return 1
        if self.chain_scope == "slice":
            return self.subfilters[0]
        return self.subfilter_count * ceil_div(self.kc, self.chain_channels)

    # ---- the filter in memory

    @cached_property
    def panels(self) -> Panels:
        """The packed filter, before it is transformed."""
        return plan_panels(self.c, self.nr)

    @cached_property
    def in_memory_order(self) -> Correlation:
        """The correlation with taps in the order of memory, in which they are packed fastest."""
        axes = [reversed_axis(axis) if self._is_reversed(i) else axis for i, axis in enumerate(self.c.axes)]
        return replace(self.c, axes=(axes[0], axes[1], axes[2]))

    def _is_reversed(self, axis: int) -> bool:
        return self.c.axes[axis].taps.increment * self.c.w.space[axis] < 0

    @cached_property
    def tap_strides(self) -> tuple[int, int, int]:
        """Elements from one tap to the next of a filter that is packed in that order."""
        a, b, c = (-s if self._is_reversed(i) else s for i, s in enumerate(self.panels.tap_strides))
        return a, b, c

    @property
    def first_tap(self) -> int:
        """Where the first tap is then."""
        return -sum(
            min(0, s) * (axis.taps.count - 1) for s, axis in zip(self.tap_strides, self.c.axes, strict=True)
        )

    # ---- V, U and M in memory

    @cached_property
    def v_subfilter_pitch(self) -> int:
        """From subfilter to subfilter of a tile of V."""
        if self.has_few_channels:
            return self.c.depth
        return ceil_div(self.v_channels, self.lanes) * self.lanes

    @cached_property
    def v_slice_pitch(self) -> int:
        """From tap to tap of the third axis of a tile of V."""
        subfilters = self.rows.subfilters * self.columns.subfilters * self.v_subfilter_pitch
        return ceil_div(subfilters, self.lanes) * self.lanes

    @cached_property
    def v_tile_pitch(self) -> int:
        return self._odd_lines(self.subfilters[0] * self.v_slice_pitch)

    @cached_property
    def v_pitch(self) -> int:
        """From point to point of V."""
        return self._odd_lines(self.mc * self.v_tile_pitch)

    @cached_property
    def u_pitch(self) -> int:
        """From point to point of U."""
        return self._odd_lines(self.subfilter_count * self.u_channels * self.nr)

    @cached_property
    def m_pitch(self) -> int:
        """From point to point of M."""
        return self._odd_lines(self.mc * self.nr)

    def _odd_lines(self, elements: int) -> int:
        """Rounded up to an odd number of cache lines: what lies so far apart falls into different sets of a cache."""
        line = self.isa.processor.line_bytes // self.item
        return (ceil_div(elements, line) | 1) * line

    @property
    def v_elements(self) -> int:
        """V of a block."""
        return self.points * self.v_pitch

    @property
    def u_panel_elements(self) -> int:
        """U of a panel."""
        return self.points * self.u_pitch

    @property
    def m_panel_elements(self) -> int:
        """M of a panel."""
        return self.points * self.m_pitch

    @property
    def m_elements(self) -> int:
        """M of a panel, or of all of them."""
        return self.m_panel_elements * (self.panels.count if self.accumulates else 1)

    @cached_property
    def shared_elements(self) -> int:
        """At the start of the workspace: U of all panels and groups, or V of all groups."""
        if self.is_data_resident:
            return self.c.group_count * self.panels.count * self.u_panel_elements
        return self.c.group_count * self.v_elements

    @cached_property
    def packed_elements(self) -> int:
        """Packed channels of the filter."""
        taps = math.prod(self.panels.taps)
        return whole_lines(self.packed_channels * taps * self.nr, self.c.dtype, self.isa)

    @cached_property
    def tile_row_elements(self) -> int:
        """A tile row's packed input, or its results. The last square of a row may reach beyond it."""
        read = self.rows.alpha * self.packed_pitch + self.lanes
        write = self.rows.m * self.result_pitch
        return whole_lines(max(read, write) * self.lanes, self.c.dtype, self.isa)

    @cached_property
    def thread_elements(self) -> int:
        """Scratch of one thread: a tile row, M, and V of a block or U of Kc channels."""
        resident = self.v_elements if self.is_data_resident else self.u_panel_elements
        return self.tile_row_elements + self.m_elements + resident


def _is_channels_last(channels: int, columns: int, extent: int) -> bool:
    return extent == 1 or columns == 0 or (channels != 0 and abs(channels) <= abs(columns))


def even_share(count: int, most: int) -> int:
    """At most ``most`` of ``count`` at a time, as evenly as can be."""
    return ceil_div(count, ceil_div(count, most))


def even_sizes(count: int, most: int) -> tuple[tuple[int, int], ...]:
    """``count`` as (size, how many) of pieces of at most ``most`` whose sizes differ by one at most."""
    pieces = ceil_div(count, most)
    size, larger = divmod(count, pieces)
    sizes = ((size + 1, larger), (size, pieces - larger))
    return tuple(each for each in sizes if each[0] and each[1])
