"""Copies of 8-bit images and filters into the workspace as quads: four neighbouring channels in 32 bits.

Input tiles and panels are laid out as in microkernel/packing.py, with a quad for an element; channels beyond the last are
there to fill the last quad. One instruction multiplies unsigned by signed integers, so that the
image is shifted to [0, 255]:

    sum over x w  =  sum over (x + 128) w  -  128 (sum over w)

The padding becomes 128 like every other 0 and takes part in the sum, which makes the last term a constant of the
filter: it lies behind each panel, and sums begin with it. Filter values of channels beyond the last are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import (
    InputTile,
    Panels,
    ahead_channels,
    ahead_elements,
    contiguous_run,
    input_tile_rows,
    nest_places,
    source_steps,
    within,
)
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.types import BOOL

QUAD = 4
_SHIFT = -128  # of an i8, by exclusive or: adds 128 and takes the result as unsigned
_FILTER_AHEAD = 512  # bytes of each result's filter that are asked for before they are read
_ZEROS = -0x7F7F7F80  # a quad of 128, the shifted 0, as an i32


@dataclass(frozen=True)
class QuadPanels(Panels):
    """A filter packed as [group][panel][quad][taps][lanes of results], and behind each panel where sums begin."""

    @property
    def start(self) -> int:
        """Where in a panel the first values of the sums are, one for each lane."""
        return super().panel_size

    @property
    def panel_size(self) -> int:
        return self.start + self.lanes


def trace_quad_input_tile(
    module: Module, name: str, c: Correlation, input_tile: InputTile, channels: int
) -> Function:
    """Trace ``name(x, input tile, batches, quads, d, h, w)`` as `packing.trace_input_tile`: copy a block of ``channels``.

    ``c`` counts quads; its view of x has the strides of single channels.
    """
    with module.function(
        name, x="i8", input_tile="i32", batches=None, quads=None, d=None, h=None, w=None
    ) as (
        k, (x, target, batches, quads, *starts), function,
    ):  # fmt: skip
        origins = [s * axis.step + axis.taps.lowest for s, axis in zip(starts, c.axes, strict=True)]
        for n in k.range(0, batches):
            image, place = x + n * c.x.batch, target + n * input_tile.batch
            if input_tile.is_channels_last:
                _copy_pixels(k, c, input_tile, image, place, channels, origins)
            else:
                for quad in k.range(quads):
                    rows = image + quad * (QUAD * c.x.channels), place + quad * input_tile.channels
                    _copy_rows(k, c, input_tile, *rows, k.integer(channels) - quad * QUAD, origins)
    return function


def _copy_pixels(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, place: Pointer, channels: int,
    origins: list[Value],
) -> None:  # fmt: skip
    """Channels that lie next to each other: whole vectors of them are quads as they are."""
    lanes, step = k.lanes("i32"), source_steps(c)
    for row, inside, target in input_tile_rows(k, c, input_tile, image, place, origins):
        for p in k.range(input_tile.extents[2]):
            w = origins[2] + p * step[2]
            here = inside & within(w, c.axes[2].positions)
            limit = k.select(here, k.integer(channels), 0)
            pixel = row + k.select(here, w, 0) * c.x.space[2]
            for quad in k.range(0, c.depth, lanes):
                mask = _byte_mask(k, limit - quad * QUAD, lanes * QUAD)
                found = pixel.load(quad * QUAD, lanes * QUAD, mask)
                pixel.prefetch(quad * QUAD + ahead_elements(c))
                target.store(_as_quads(k, found ^ _SHIFT), quad + p * input_tile.space[2])


def _copy_rows(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, place: Pointer, channels: Value,
    origins: list[Value],
) -> None:  # fmt: skip
    """The rows of four channels, of which at least one and maybe only the first ``channels`` are there."""
    lanes, step, axis = k.lanes("i32"), source_steps(c)[2], c.axes[2]
    ahead = QUAD * ceil_div(ahead_channels(c, input_tile), QUAD)
    for row, inside, target in input_tile_rows(k, c, input_tile, image, place, origins):
        for j in k.range(0, input_tile.extents[2], lanes):
            first = origins[2] + j * step
            # lane i reads position first + i * step, which must be in [0, positions)
            limit = k.select(inside, k.integer(axis.positions), 0)
            mask = k.mask((limit - first + (step - 1)).max(0) // step, lanes)
            if axis.taps.lowest < 0:
                mask = mask & ~k.mask((k.integer(step - 1) - first).max(0) // step, lanes)
            at = row + first * c.x.space[2]
            for i in range(QUAD):
                at.prefetch((ahead + i) * c.x.channels)
            four = _load_four(k, at, c.x.channels, c.x.space[2] * step, channels, mask)
            target.store(_interleaved(k, four) ^ _ZEROS, j)


def _load_four(
    k: Builder, source: Pointer, row_stride: int, stride: int, rows: Value, mask: Value
) -> list[Value]:
    """Vectors of bytes of four rows, 0 where the mask is off and in rows that are not there."""
    found = []
    for i in range(QUAD):
        there = mask & k.splat(rows > i, mask.lanes) if i else mask
        if stride == 0:  # a broadcast reads whatever the mask is: of a row that is not there, the first one
            vector = source.load_strided(k.select(rows > i, k.integer(i * row_stride), 0), 0, mask.lanes)
            found.append(k.select(there, vector, 0))
        else:
            found.append(source.load_strided(i * row_stride, stride, mask.lanes, there))
    return found


def _interleaved(k: Builder, rows: Sequence[Value]) -> Value:
    """Four vectors of bytes as one of quads: lane i has byte i of each."""
    lanes = rows[0].lanes
    joined = k.join(rows)
    return _as_quads(k, k.shuffle(joined, joined, [i * lanes + p for p in range(lanes) for i in range(QUAD)]))


def _as_quads(k: Builder, found: Value) -> Value:
    return Value(k, k.b.bitcast(found.v, ir.VectorType(ir.IntType(32), found.lanes // QUAD)))


def _byte_mask(k: Builder, count: Value, lanes: int) -> Value:
    """`Builder.mask` for as many lanes as a mask register has bits: by arithmetic on them."""
    bits = ir.IntType(lanes)
    count = count.max(0).min(lanes)
    below = k.b.lshr(ir.Constant(bits, -1), k.b.trunc((k.integer(lanes) - count.max(1)).v, bits))
    kept = k.b.select((count > 0).v, below, ir.Constant(bits, 0))
    return Value(k, k.b.bitcast(kept, ir.VectorType(BOOL, lanes)))


def trace_quad_panel(
    module: Module, name: str, c: Correlation, panels: QuadPanels, channels: int
) -> Function:
    """Trace ``name(w, panel, first)``: pack the filters of results ``first`` and on, and where their sums begin.

    ``w`` points to the group's filter and ``panel`` to the panel; results beyond the last become 0.
    """
    with module.function(name, w="i8", panel="i32", first=None) as (k, (w, panel, first), function):
        lanes = k.lanes("i32")
        strides = [axis.taps.increment * s for axis, s in zip(c.axes, c.w.space, strict=True)]
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        writer = _PanelWriter(k, c, panels, channels, strides, k.local("i32", lanes * lanes))
        for j in range(0, panels.lanes, lanes):
            here = min(lanes, panels.lanes - j)
            keep = None if here == lanes else k.mask(here, lanes)
            results = (k.integer(c.width) - first - j).min(here)
            source = w + (start + (first + j) * c.w.results)
            writer.write(source, panel + j, results, keep)
    return function


@dataclass(frozen=True)
class _PanelWriter:
    """Some quads of as many results as a vector has lanes go to a small room, and turned from there to the panel."""

    k: Builder
    c: Correlation
    panels: QuadPanels
    channels: int
    strides: Sequence[int]
    room: Pointer  # [result][quad]

    @property
    def lanes(self) -> int:
        return self.k.lanes("i32")

    def write(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """One vector of lanes of a panel, the first ``results`` of which are there."""
        k = self.k
        for i in k.range(results.max(0), self.lanes):
            self.room.store(k.constant(0, "i32", self.lanes), i * self.lanes)
        copy = self._channels if self.c.w.channels == 1 else self._taps
        copy(source, target, results, keep)
        self._begin_sums(target, keep)

    def _channels(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """Channels that lie next to each other are quads as they are."""
        k, lanes, panels = self.k, self.lanes, self.panels
        for place, offset in nest_places(k, 3, self.strides, panels):
            for quad in k.range(0, self.c.depth, lanes):
                mask = _byte_mask(k, k.integer(self.channels) - quad * QUAD, lanes * QUAD)
                for i in k.range(results):
                    at = source + (i * self.c.w.results + offset)
                    at.prefetch(quad * QUAD + _FILTER_AHEAD)
                    found = at.load(quad * QUAD, lanes * QUAD, mask)
                    self.room.store(_as_quads(k, found), i * lanes)
                to = target + (place + quad * panels.channel_stride)
                self._turn(to, panels.channel_stride, k.integer(self.c.depth) - quad, keep)

    def _taps(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """Channels that lie apart: the taps of four of them are interleaved."""
        k, lanes, panels, w = self.k, self.lanes, self.panels, self.c.w
        run, outer = contiguous_run(panels.taps, self.strides)
        stride = 1
        if run == 1:
            run, outer, stride = panels.taps[2], 2, self.strides[2]
        for quad in k.range(self.c.depth):
            rows = k.integer(self.channels) - quad * QUAD
            for place, offset in nest_places(k, outer, self.strides, panels):
                for tap in k.range(0, run, lanes):
                    some = k.integer(run) - tap
                    at = source + (quad * (QUAD * w.channels) + offset + tap * stride)
                    for i in k.range(results):
                        at.prefetch(i * w.results + _FILTER_AHEAD)
                        four = _load_four(
                            k, at + i * w.results, w.channels, stride, rows, k.mask(some, lanes)
                        )
                        self.room.store(_interleaved(k, four), i * lanes)
                    to = target + (quad * panels.channel_stride + place + tap * panels.lanes)
                    self._turn(to, panels.lanes, some, keep)

    def _turn(self, target: Pointer, pitch: int, columns: Value, keep: Value | None) -> None:
        """The first columns of the room as vectors of lanes, ``pitch`` apart."""
        lanes = self.lanes
        rows = [self.room.load(i * lanes, lanes) for i in range(lanes)]
        for i, column in enumerate(transpose(self.k, rows)):
            with self.k.when(columns > i):
                target.store(column, i * pitch, keep)

    def _begin_sums(self, panel: Pointer, keep: Value | None) -> None:
        """Write -128 times the sum of each lane of a panel behind it."""
        k, lanes = self.k, self.lanes
        total = k.register(k.constant(0, "i32", lanes))
        for step in k.range(0, self.panels.start, self.panels.lanes):
            found = panel.load(step, lanes, keep)
            total.set(k.dot(k.constant(_ZEROS, "i32", lanes), found, total.get()))
        panel.store(-total.get(), self.panels.start, keep)
