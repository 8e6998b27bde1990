"""The plan of a correlation vectorized over pixels: nothing is packed, every input vector is used many times.

    for work unit: image, group, [channels | slice, row block, run of tiles]   (or the channels inside of the others)
      for tile in run                                        x of all tiles and channels of the run stays in L2
        for c, slice of the filter
          for row of x that the tile reads                              rows outside of the image are skipped
            for offset that a tap of the row reads at
              load vectors of x                                              once for all products below
              for row, channel of the tile, stride phase:  sums += vectors * broadcast filter
        store channels x rows x stride phases x vectors of sums, which were in registers

A tile of few channels (depthwise) is tall, so that many rows use a vector; a tile of many channels is wide. Vectors
that reach over a row's ends are loaded under masks, by a second version of the code.

A strided dgrad writes every second (third, ...) pixel from other taps than those between: these are the stride
phases. They read the same vectors, and their sums are interleaved before they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import (
    DirectPlan,
    Reads,
    nearest_axis_last,
    reads_of,
    row_units,
)
from jitdnn.kernels.cpu.correlation import Axis, Correlation, View
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.microkernel.nontemporal import convolution_stream_bytes
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

_UNROLLED = 600  # multiply-adds of a tile whose taps are unrolled: more would take long to compile
_UNROLLED_ROW = 200  # and of one row of the filter
_MOST_PHASES = 4
_BOUNDARY_TILES = 3  # tiles of a row that may have a version of the code each


@dataclass(frozen=True)
class PixelTile:
    """Sums in registers: result channels, rows, and vectors of pixels along a row (of each stride phase)."""

    channels: int
    rows: int
    vectors: int


@dataclass(frozen=True)
class OverPixels(DirectPlan):
    """Correlations that differ only in their last axis: stride phase i of n makes pixels i, i + n, ... of a row.

    ``last_axes`` are those of the stride phases; ``c`` is the first one's correlation.
    """

    last_axes: tuple[Axis, ...]
    tile: PixelTile

    # ---- what is computed

    @property
    def stride_phases(self) -> int:
        return len(self.last_axes)

    @property
    def phase_strides(self) -> tuple[int, int, int, int]:
        """Distance from one result of a stride phase to the next: batch and the three axes."""
        return 1, 1, 1, self.stride_phases

    @property
    def row_pixels(self) -> int:
        """Pixels of a row of the result."""
        return sum(axis.results for axis in self.last_axes)

    @cached_property
    def row_taps(self) -> int:
        """Taps of one row of the filter, of all stride phases."""
        return sum(axis.taps.count for axis in self.last_axes)

    def pixel_step(self, view: View) -> int:
        """Distance between neighbouring pixels of a row in a tensor of results."""
        return view.space[2] // self.stride_phases

    @cached_property
    def reads(self) -> dict[int, list[tuple[int, int]]]:
        """(stride phase, tap) of the last axis by the offset that they read at."""
        found: dict[int, list[tuple[int, int]]] = {}
        for stride_phase, axis in enumerate(self.last_axes):
            for tap in range(axis.taps.count):
                found.setdefault(axis.taps.offset + tap * axis.taps.shift, []).append((stride_phase, tap))
        return found

    @property
    def row_reads(self) -> Reads:
        """(row of the tile, tap of the filter) by the row of the input, from the tile's first one on."""
        return reads_of(self.c.axes[1], self.tile.rows)

    @cached_property
    def span(self) -> RowVector:
        """How a vector of x is read."""
        axis = self.c.axes[2]
        return RowVector(axis.step, self.c.x.space[2], axis.positions, self.lanes)

    # ---- the tile

    def narrowed(self, channels: int) -> OverPixels:
        """The plan of the last, fewer result channels."""
        return replace(self, tile=replace(self.tile, channels=channels))

    @cached_property
    def products(self) -> int:
        """Vectors of sums of one stride phase: multiply-adds of one tap."""
        return self.tile.channels * self.tile.rows * self.tile.vectors

    @property
    def is_unrolled(self) -> bool:
        """True if the taps of the last two axes are unrolled."""
        return self.products * self.c.axes[1].taps.count * self.row_taps <= _UNROLLED

    @property
    def is_row_unrolled(self) -> bool:
        """True if the taps of the last axis are unrolled."""
        return self.is_unrolled or self.products * self.row_taps <= _UNROLLED_ROW

    @property
    def filter_fits_registers(self) -> bool:
        """True if registers are left for a whole channel of the filter."""
        taps = self.tile.channels * self.c.axes[1].taps.count * self.row_taps
        sums = self.products * self.stride_phases
        return self.is_unrolled and sums + self.tile.vectors + taps <= self.isa.registers

    @property
    def is_sliding(self) -> bool:
        """True if neighbouring rows of the result read neighbouring rows of x, by at least as many taps."""
        axis = self.c.axes[1]
        return axis.step == 1 and abs(axis.taps.shift) == 1 and axis.taps.count >= self.tile.rows

    @property
    def prefetches_row(self) -> bool:
        """True if a tile prefetches what one of the next tiles of its row reads: there is no other row."""
        c, axis = self.c, self.c.axes[2]
        is_only = c.axes[1].positions == 1 and c.depth > 1
        return is_only and axis.step == c.x.space[2] == self.stride_phases == 1

    @cached_property
    def is_nontemporal(self) -> bool:
        """True if stores go past the caches: results are large, and lie in whole vectors."""
        c, y = self.c, self.c.y
        if y.dtype != c.dtype or self.pixel_step(y) != 1:
            return False
        pixels = c.axes[0].results * c.axes[1].results * self.row_pixels
        steps = (y.batch, y.channels, *y.groups, *y.space[:2])
        size = c.batch * c.group_count * c.width * pixels * self.item
        return size >= convolution_stream_bytes(self.isa.processor) and all(
            step % self.lanes == 0 for step in steps
        )

    # ---- the loops

    @property
    def tile_pixels(self) -> int:
        """Pixels of a tile along a row, of one stride phase."""
        return self.tile.vectors * self.lanes

    @property
    def row_tiles(self) -> int:
        """Tiles along a row."""
        return ceil_div(self.last_axes[0].results, self.tile_pixels)

    @cached_property
    def run_tiles(self) -> int:
        """Tiles of one work unit."""
        width = self.tile_pixels * self.c.axes[2].step
        each = self.c.depth * self.c.axes[1].taps.count * width * self.item
        return max(1, min(self.row_tiles, self.processor.l2(cost.DIRECT_RUN_L2) // max(1, each)))

    @cached_property
    def units(self) -> WorkUnits:
        c, tile, runs = self.c, self.tile, ceil_div(self.row_tiles, self.run_tiles)
        channels, rows = ceil_div(c.width, tile.channels), ceil_div(c.axes[1].results, tile.rows)
        return row_units(c, self.isa.processor, channels, rows, runs)

    def inner_tiles(self) -> tuple[int, int]:
        """The tiles [first, last) of a row that neither read nor write outside of the row."""
        axis, width = self.c.axes[2], self.tile_pixels
        whole = min(axis.results for axis in self.last_axes) // width
        if not self.reads:
            return 0, whole
        first = ceil_div(max(0, -min(self.reads)), width * axis.step)
        last = ((axis.positions - 1 - max(self.reads)) // axis.step + 1) // width
        return first, max(first, min(last, whole))

    def version_runs(self) -> list[range]:
        """The tiles of a row as runs that share a version of the code: the inner tiles, and each boundary."""
        tiles, (first, last) = self.row_tiles, self.inner_tiles()
        if last <= first:
            each = [range(tile, tile + 1) for tile in range(tiles)]
            return each if tiles <= _BOUNDARY_TILES else [range(tiles)]
        runs = [range(first), range(first, last), range(last, tiles)]
        return [run for run in runs if len(run)]


def lower_rows(
    problem: Convolution, operands: Sequence[TensorDescriptor] = ()
) -> Iterator[tuple[Correlation, tuple[Axis, ...]]]:
    """A convolution as correlations with the last axes of the stride phases that are computed together.

    The stride phases of a row of a dgrad are together where their results interleave in memory.
    """
    stride = problem.stride[-1]
    together = problem.direction == "bwd_data" and 1 < stride <= min(_MOST_PHASES, problem.x.shape[-1])
    together = together and problem.x.strides[-1] == 1
    parts = lower_convolution(problem, operands, separate=together)
    if not together:
        for part in parts:
            c = nearest_axis_last(part.merged())
            yield c, (c.axes[2],)
        return
    for start in range(0, len(parts), stride):
        row = parts[start : start + stride]
        yield row[0], tuple(part.axes[2] for part in row)
