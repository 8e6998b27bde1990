"""The tiles of x and of dy, transformed for a filter's gradient.

A unit of tiles of up to a vector of channels is first turned into rows of vectors, [row][column][lane], with zeros
where the tensor ends; then each tile of it is mapped and its places are stored in planes,

    [place][block of channels][tile][lane]

so that the contraction reads both operands one tile after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import Reading, within
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.microkernel.constant_matrix import Matrix, apply_to_grid
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


@dataclass(frozen=True)
class TileTransform:
    """A tensor read in units of tiles; ``dtype`` is that of the arithmetic, ``plane`` the distance of places."""

    dtype: str
    view: View
    readings: tuple[Reading, Reading, Reading]
    matrices: tuple[Matrix, Matrix]
    lanes: int
    plane: int

    @property
    def is_turned(self) -> bool:
        """True if a row is contiguous in memory and the channels are not."""
        return self.view.space[2] == 1 and self.view.channels != 1

    @property
    def pitch(self) -> int:
        """Vectors from one row of a unit to the next."""
        columns = self.readings[2].elements
        return ceil_div(columns, self.lanes) * self.lanes if self.is_turned else columns

    @property
    def scratch(self) -> int:
        """Elements of the rows of a unit."""
        return self.readings[1].elements * self.pitch * self.lanes

    def trace(self, module: Module, name: str) -> Function:
        """Trace ``name(source, to, scratch, channels, d, h, w)``.

        ``source`` points to position 0 of the first channel, of which ``channels`` are there; d, h, w are the first
        positions of the unit, and may be outside. ``to`` is the place of the unit's first tile in the first plane.
        """
        fill, tiles = self._trace_fill(module, f"{name}_rows"), self._trace_tiles(module, f"{name}_tiles")
        origins = dict.fromkeys(("d", "h", "w"))
        with module.function(
            name, source=self.view.dtype, to=self.dtype, scratch=self.dtype, channels=None, **origins
        ) as (k, (source, to, scratch, *rest), function):
            k.call(fill, source, scratch, *rest)
            k.call(tiles, scratch, to)
        return function

    def _trace_fill(self, module: Module, name: str) -> Function:
        depth, rows, _ = self.readings
        origins = dict.fromkeys(("d", "h", "w"))
        with module.function(
            name, source=self.view.dtype, scratch=self.dtype, channels=None, **origins
        ) as (k, (source, scratch, channels, d, h, w), function):  # fmt: skip
            is_there = within(k, d, depth.bound)
            source = source + k.select(is_there, d, 0) * self.view.space[0]
            for i in k.range(rows.elements):
                at = h + i * rows.spacing
                inside = is_there & within(k, at, rows.bound)
                row = source + k.select(inside, at, 0) * self.view.space[1]
                target = scratch + i * (self.pitch * self.lanes)
                copy = self._turn_row if self.is_turned else self._copy_row
                copy(k, row, target, inside, w, channels)
        return function

    def _turn_row(
        self, k: Builder, row: Pointer, target: Pointer, inside: Value, first: Value, channels: Value
    ) -> None:
        """Squares of channels by positions, transposed; a channel that is not there repeats the last one."""
        lanes, reading = self.lanes, self.readings[2]
        spacing, limit = reading.spacing, k.select(inside, k.integer(reading.bound), 0)
        starts = [channels.min(c + 1) * self.view.channels - self.view.channels for c in range(lanes)]
        for j in k.range(0, reading.elements, lanes):
            w = first + j * spacing
            # lane i reads position w + i * spacing, which must be in [0, limit)
            after = (limit - w + (spacing - 1)).max(0) // spacing
            before = (k.integer(spacing - 1) - w).max(0) // spacing
            mask = k.mask(after, lanes) & ~k.mask(before, lanes)
            square = [(row + start).load_strided(w, spacing, lanes, mask) for start in starts]
            for i, vector in enumerate(transpose(k, square)):
                target.store(vector, (j + i) * lanes)

    def _copy_row(
        self, k: Builder, row: Pointer, target: Pointer, inside: Value, first: Value, channels: Value
    ) -> None:
        lanes, reading = self.lanes, self.readings[2]
        for j in k.range(reading.elements):
            w = first + j * reading.spacing
            here = inside & within(k, w, reading.bound)
            mask = k.mask(k.select(here, channels, 0), lanes)
            pixel = row + k.select(here, w, 0) * self.view.space[2]
            vector = pixel.load_strided(0, self.view.channels, lanes, mask)
            if self.view.channels == 0:
                vector = k.select(mask, vector, 0.0)
            target.store(vector, j * lanes)

    def _trace_tiles(self, module: Module, name: str) -> Function:
        lanes, (_, rows, columns) = self.lanes, self.readings
        with module.function(name, scratch=self.dtype, to=self.dtype) as (k, (scratch, to), function):
            for i in k.range(rows.run):
                for j in k.range(columns.run):
                    tile = scratch + (i * (rows.tile * self.pitch * lanes) + j * (columns.tile * lanes))
                    grid = [
                        [tile.load((a * self.pitch + b) * lanes, lanes) for b in range(columns.extent)]
                        for a in range(rows.extent)
                    ]
                    place = to + (i * columns.run + j) * lanes
                    for a, line in enumerate(apply_to_grid(k, self.matrices, grid)):
                        for b, value in enumerate(line):
                            place.store(value, (a * len(self.matrices[1]) + b) * self.plane)
        return function
