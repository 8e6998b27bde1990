"""A filter's gradient by minimal filtering: how it is cut, and its code.

    dw = A^T [ sum over tiles of  (B^T X B) . (G dY G^T) ] A        F(taps, results of a tile) on one or two axes

The products of all channels of x with all channels of dy at one place are a contraction over the tiles, whose two
operands lie alike, as [place][block of channels][tile][lane]: the channels of one are its rows, those of the other its
lanes. The parts that an axis' taps are cut into (axes.py) count as further channels of x.

There are two orders:

    whole    : all tiles at once; a tile of sums stays in a near cache through all places, and goes straight to dw
    streamed : a block of tiles at a time, whose sums are carried from block to block

How the tiles are split depends on the problem alone, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import FilterAxis, data_reading, gradient_reading
from jitdnn.kernels.cpu.convolution.winograd_wgrad.transforms import TileTransform
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

Order = Literal["whole", "streamed"]
_LINE_ELEMENTS = 80  # beyond a plane, so that the planes of one tile do not share few sets of a cache


@dataclass(frozen=True)
class Operand:
    """One of the two tensors as the contraction reads it, cut into blocks of a vector of channels."""

    number: int
    view: View
    channels: int
    parts: tuple[int, int, int]
    lanes: int
    vectors: int = 1  # blocks that belong together

    @property
    def part_count(self) -> int:
        return math.prod(self.parts)

    @property
    def blocks(self) -> int:
        """Blocks of one part that there are."""
        return ceil_div(self.channels, self.lanes)

    @property
    def panels(self) -> int:
        """Groups of ``vectors`` blocks of one part."""
        return ceil_div(self.blocks, self.vectors)

    @property
    def room(self) -> int:
        """Blocks of one part that there is room for."""
        return self.panels * self.vectors

    @property
    def all_blocks(self) -> int:
        """Blocks of all parts that there is room for."""
        return self.part_count * self.room

    @property
    def all_panels(self) -> int:
        return self.part_count * self.panels


@dataclass(frozen=True)
class WinogradWgradPlan:
    """How the gradient of one filter is cut. Sizes are in elements unless said otherwise.

    ``rows`` by ``vectors`` vectors are a tile of sums. ``row_chunk`` blocks and ``lane_chunk`` panels belong to one
    task, which in order "whole" has them of all parts; ``block_units`` units of tiles are transformed at a time, and
    ``splits`` sets of sums are made of all of them.
    """

    c: Correlation
    isa: Isa
    axes: tuple[FilterAxis, FilterAxis, FilterAxis]
    order: Order
    is_swapped: bool
    rows: int
    vectors: int
    row_chunk: int
    lane_chunk: int
    block_units: int
    splits: int

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def groups(self) -> int:
        return self.c.group_count

    @cached_property
    def parts(self) -> tuple[int, int, int]:
        a, b, c = (axis.parts for axis in self.axes)
        return a, b, c

    @property
    def part_count(self) -> int:
        return math.prod(self.parts)

    @property
    def taps(self) -> tuple[int, int, int]:
        """Of the whole filter."""
        a, b, c = (axis.axis.taps.count for axis in self.axes)
        return a, b, c

    @cached_property
    def row_operand(self) -> Operand:
        return self._operand(not self.is_swapped, 1)

    @cached_property
    def lane_operand(self) -> Operand:
        return self._operand(self.is_swapped, self.vectors)

    def _operand(self, is_data: bool, vectors: int) -> Operand:
        c = self.c
        if is_data:
            return Operand(0, c.x, c.depth, self.parts, self.lanes, vectors)
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
        return math.prod(axis.run for axis in self.axes)

    @property
    def block_tiles(self) -> int:
        """Tiles that are transformed at a time."""
        return self.block_units * self.unit_tiles

    @property
    def blocks(self) -> int:
        return ceil_div(self.unit_count, self.block_units)

    @property
    def places(self) -> int:
        return math.prod(axis.places for axis in self.axes)

    @property
    def tasks(self) -> int:
        """Tasks of the phase that is the hardest to share."""
        if self.order == "whole":
            return self.groups * self.row_chunks * self.lane_operand.panels
        return self.groups * self.row_chunks * self.lane_chunks * self.splits

    # ---- memory

    @property
    def row_tiles(self) -> int:
        """Tiles of rows in a block."""
        return self.lanes // self.rows

    @property
    def last_rows(self) -> int:
        """Rows of the last tile of a part."""
        return (self.row_operand.channels - 1) % self.rows + 1

    @property
    def tile_size(self) -> int:
        """A tile of sums at one place."""
        return self.rows * self.vectors * self.lanes

    @property
    def row_chunks(self) -> int:
        rows = self.row_operand
        return ceil_div(rows.all_blocks if self.order == "streamed" else rows.blocks, self.row_chunk)

    @property
    def lane_chunks(self) -> int:
        return ceil_div(self.lane_operand.all_panels, self.lane_chunk)

    @cached_property
    def row_plane(self) -> int:
        """From place to place of the operand of rows."""
        held = self.row_chunk if self.order == "streamed" else self.groups * self.row_operand.all_blocks
        return held * self.block_tiles * self.lanes + self._gap

    @cached_property
    def lane_plane(self) -> int:
        """From place to place of the operand of lanes."""
        held = self.lane_chunk if self.order == "streamed" else self.groups * self.lane_operand.all_panels
        return held * self.vectors * self.block_tiles * self.lanes + self._gap

    @property
    def _gap(self) -> int:
        return ceil_div(_LINE_ELEMENTS, self.lanes) * self.lanes

    @property
    def operand_size(self) -> int:
        """Both operands at all places."""
        return self.places * (self.row_plane + self.lane_plane)

    @cached_property
    def sum_plane(self) -> int:
        """From place to place of sums that are kept, [group][panel][block][tile of rows]."""
        tiles = self.groups * self.lane_operand.all_panels * self.row_operand.all_blocks * self.row_tiles
        return tiles * self.tile_size + self._gap

    @property
    def split_size(self) -> int:
        return self.places * self.sum_plane

    @property
    def taps_size(self) -> int:
        """A tile of sums turned into taps, those of all parts."""
        return math.prod(self.taps) * self.tile_size

    @cached_property
    def thread_size(self) -> int:
        """What a thread has for itself."""
        size = max(t.scratch for t in (self.transform(self.row_operand), self.transform(self.lane_operand)))
        size = max(size, self.taps_size)
        if self.order == "whole":
            return size + self.places * self.tile_size + self.lanes
        return size + (self.operand_size if self.order == "streamed" else 0)

    @property
    def shared_size(self) -> int:
        """What all threads share."""
        if self.order == "whole":
            return self.operand_size
        return self.splits * self.split_size

    def workspace(self, threads: int) -> int:
        """Bytes: what is shared, then what each thread has for itself."""
        return (self.shared_size + threads * self.thread_size) * ITEM_BYTES[self.c.dtype]

    # ---- what the code is made of

    def transform(self, operand: Operand) -> TileTransform:
        is_data = operand.number == 0
        readings = tuple(data_reading(a) if is_data else gradient_reading(a) for a in self.axes)
        maps = [a.filtering.data if is_data else a.filtering.filter for a in self.axes]
        plane = self.row_plane if operand is self.row_operand else self.lane_plane
        return TileTransform(
            self.c.dtype, operand.view, (readings[0], readings[1], readings[2]), (maps[1], maps[2]), self.lanes, plane
        )  # fmt: skip

    @property
    def row_stride(self) -> int:
        """Elements of dw from one row of sums to the next."""
        return self.c.w.results if self.is_swapped else self.c.w.channels

    @property
    def lane_stride(self) -> int:
        return self.c.w.channels if self.is_swapped else self.c.w.results

    def tile_store(self) -> TileStore:
        """A tile of taps, [row][taps of each axis][vector][lane], to dw."""
        c = self.c
        strides = [a.axis.taps.increment * s for a, s in zip(self.axes, c.w.space, strict=True)]
        place = TileStrides(c.w.dtype, (self.row_stride, *strides), self.lane_stride)
        extents = (self.row_operand.channels, *self.taps)
        return TileStore(c.dtype, (self.rows, *self.taps), extents, self.vectors, place, (), None)
