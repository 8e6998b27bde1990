"""Packed images and filters of 8-bit integers: four neighbouring channels in each 32-bit word.

Input tiles and panels are laid out as in microkernel/packing.py, with words for elements; the last word of a pixel is
filled up with channels of zeros. vpdpbusd multiplies unsigned by signed integers. An image without a sign is copied as
it is; one with a sign is shifted to [0, 255]:

    sum over x w  =  sum over (x + 128) w  -  128 (sum over w)

Its padding becomes 128 like every other 0 and takes part in the sum, which makes the last term a constant of the
filter: it lies behind each panel, and sums begin with it. In the filter, channels beyond the last are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.plan import WORD_CHANNELS, VnniPanels
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import (
    InputTile,
    contiguous_run,
    input_tile_rows,
    prefetch_channels,
    prefetch_elements,
    source_steps,
    tap_offsets,
    within,
)
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.types import BOOL

_SHIFT = -128  # of an i8, by exclusive or: adds 128 and takes the result as unsigned
_FILTER_PREFETCH = 512  # bytes between what is read of each result's filter and what is prefetched
_ZEROS = -0x7F7F7F80  # four times 128, the shifted 0, as an i32


def trace_vnni_input_tile(
    module: Module, name: str, c: Correlation, input_tile: InputTile, channels: int, is_shifted: bool
) -> Function:
    """Trace ``name(x, input tile, batches, words, d, h, w)`` as `packing.trace_input_tile`.

    It copies a block of ``channels``. ``c`` counts words; its view of x has the strides of single channels.
    """
    with module.function(
        name, x=c.x.dtype, input_tile="i32", batches=None, words=None, d=None, h=None, w=None
    ) as (
        k, (x, target, batches, words, *starts), function,
    ):  # fmt: skip
        origins = [s * axis.step + axis.taps.lowest for s, axis in zip(starts, c.axes, strict=True)]
        for n in k.range(0, batches):
            image, to = x + n * c.x.batch, target + n * input_tile.batch
            if input_tile.is_channels_last:
                _copy_pixels(k, c, input_tile, image, to, channels, origins, is_shifted)
            else:
                for word in k.range(words):
                    rows = image + word * (WORD_CHANNELS * c.x.channels), to + word * input_tile.channels
                    left = k.integer(channels) - word * WORD_CHANNELS
                    _copy_rows(k, c, input_tile, *rows, left, origins, is_shifted)
    return function


def _copy_pixels(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, to: Pointer, channels: int,
    origins: list[Value], is_shifted: bool,
) -> None:  # fmt: skip
    """Adjacent channels: vectors of them are words as they are."""
    lanes, step = k.lanes("i32"), source_steps(c)
    for row, inside, target in input_tile_rows(k, c, input_tile, image, to, origins):
        for p in k.range(input_tile.extents[2]):
            w = origins[2] + p * step[2]
            here = inside & within(w, c.axes[2].positions)
            limit = k.select(here, k.integer(channels), 0)
            pixel = row + k.select(here, w, 0) * c.x.space[2]
            for word in k.range(0, c.depth, lanes):
                mask = _byte_mask(k, limit - word * WORD_CHANNELS, lanes * WORD_CHANNELS)
                found = pixel.load(word * WORD_CHANNELS, lanes * WORD_CHANNELS, mask)
                pixel.prefetch(word * WORD_CHANNELS + prefetch_elements(c, k.isa.processor))
                target.store(
                    _as_words(k, found ^ _SHIFT if is_shifted else found), word + p * input_tile.space[2]
                )


def _copy_rows(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, to: Pointer, channels: Value,
    origins: list[Value], is_shifted: bool,
) -> None:  # fmt: skip
    """The rows of four channels, of which only the first ``channels`` (at least one) exist."""
    lanes, step, axis = k.lanes("i32"), source_steps(c)[2], c.axes[2]
    distance = WORD_CHANNELS * ceil_div(prefetch_channels(c, input_tile, k.isa.processor), WORD_CHANNELS)
    for row, inside, target in input_tile_rows(k, c, input_tile, image, to, origins):
        for j in k.range(0, input_tile.extents[2], lanes):
            first = origins[2] + j * step
            # lane i reads position first + i * step, which must be in [0, positions)
            limit = k.select(inside, k.integer(axis.positions), 0)
            mask = k.mask((limit - first + (step - 1)).max(0) // step, lanes)
            if axis.taps.lowest < 0:
                mask = mask & ~k.mask((k.integer(step - 1) - first).max(0) // step, lanes)
            at = row + first * c.x.space[2]
            for i in range(WORD_CHANNELS):
                at.prefetch((distance + i) * c.x.channels)
            four = _load_four(k, at, c.x.channels, c.x.space[2] * step, channels, mask)
            words = _interleave(k, four)
            target.store(words ^ _ZEROS if is_shifted else words, j)


def _load_four(
    k: Builder, source: Pointer, row_stride: int, stride: int, rows: Value, mask: Value
) -> list[Value]:
    """Vectors of bytes of four rows, 0 where the mask is off and in rows that do not exist."""
    found = []
    for i in range(WORD_CHANNELS):
        exists = mask & k.splat(rows > i, mask.lanes) if i else mask
        if (
            stride == 0
        ):  # a broadcast ignores the mask: instead of a row that does not exist it reads the first one
            vector = source.load_strided(k.select(rows > i, k.integer(i * row_stride), 0), 0, mask.lanes)
            found.append(k.select(exists, vector, 0))
        else:
            found.append(source.load_strided(i * row_stride, stride, mask.lanes, exists))
    return found


def _interleave(k: Builder, rows: Sequence[Value]) -> Value:
    """Four vectors of bytes as one vector of 32-bit lanes: lane i has byte i of each."""
    lanes = rows[0].lanes
    joined = k.join(rows)
    return _as_words(
        k, k.shuffle(joined, joined, [i * lanes + p for p in range(lanes) for i in range(WORD_CHANNELS)])
    )


def _as_words(k: Builder, found: Value) -> Value:
    return Value(k, k.b.bitcast(found.v, ir.VectorType(ir.IntType(32), found.lanes // WORD_CHANNELS)))


def _byte_mask(k: Builder, count: Value, lanes: int) -> Value:
    """`Builder.mask` for as many lanes as a mask register has bits: by arithmetic on them."""
    bits = ir.IntType(lanes)
    count = count.max(0).min(lanes)
    below = k.b.lshr(ir.Constant(bits, -1), k.b.trunc((k.integer(lanes) - count.max(1)).v, bits))
    mask = k.b.select((count > 0).v, below, ir.Constant(bits, 0))
    return Value(k, k.b.bitcast(mask, ir.VectorType(BOOL, lanes)))


def trace_vnni_panel(
    module: Module, name: str, c: Correlation, panels: VnniPanels, channels: int
) -> Function:
    """Trace ``name(w, panel, first)``: pack the filters of results ``first`` and on, and their initial sums.

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
    """Some words, of as many results as a vector has lanes, go to a buffer and from there, transposed, to
    the panel."""

    k: Builder
    c: Correlation
    panels: VnniPanels
    channels: int
    strides: Sequence[int]
    buffer: Pointer  # [result][word]

    @property
    def lanes(self) -> int:
        return self.k.lanes("i32")

    def write(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """One vector of lanes of a panel, the first ``results`` of which exist."""
        k = self.k
        if self.c.w.results == 1 and self.c.w.channels != 1:
            self._results(source, target, results, keep)
        else:
            for i in k.range(results.max(0), self.lanes):
                self.buffer.store(k.constant(0, "i32", self.lanes), i * self.lanes)
            copy = self._channels if self.c.w.channels == 1 else self._taps
            copy(source, target, results, keep)
        self._store_initial_sums(target, keep)

    def _results(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """Adjacent results are lanes as they are: four channels of them are interleaved."""
        k, panels, w = self.k, self.panels, self.c.w
        exists = k.mask(results, self.lanes)
        for to_tap, offset in tap_offsets(k, 3, self.strides, panels):
            for word in k.range(self.c.depth):
                rows = k.integer(self.channels) - word * WORD_CHANNELS
                at = source + (word * (WORD_CHANNELS * w.channels) + offset)
                four = _load_four(k, at, w.channels, 1, rows, exists)
                target.store(_interleave(k, four), to_tap + word * panels.channel_stride, keep)

    def _channels(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """Adjacent channels are words as they are."""
        k, lanes, panels = self.k, self.lanes, self.panels
        for to_tap, offset in tap_offsets(k, 3, self.strides, panels):
            for word in k.range(0, self.c.depth, lanes):
                mask = _byte_mask(k, k.integer(self.channels) - word * WORD_CHANNELS, lanes * WORD_CHANNELS)
                for i in k.range(results):
                    at = source + (i * self.c.w.results + offset)
                    at.prefetch(word * WORD_CHANNELS + _FILTER_PREFETCH)
                    found = at.load(word * WORD_CHANNELS, lanes * WORD_CHANNELS, mask)
                    self.buffer.store(_as_words(k, found), i * lanes)
                to = target + (to_tap + word * panels.channel_stride)
                self._store_columns(to, panels.channel_stride, k.integer(self.c.depth) - word, keep)

    def _taps(self, source: Pointer, target: Pointer, results: Value, keep: Value | None) -> None:
        """Channels that are not adjacent: the taps of four of them are interleaved."""
        k, lanes, panels, w = self.k, self.lanes, self.panels, self.c.w
        run, outer = contiguous_run(panels.taps, self.strides)
        stride = 1
        if run == 1:
            run, outer, stride = panels.taps[2], 2, self.strides[2]
        for word in k.range(self.c.depth):
            rows = k.integer(self.channels) - word * WORD_CHANNELS
            for to_tap, offset in tap_offsets(k, outer, self.strides, panels):
                for tap in k.range(0, run, lanes):
                    some = k.integer(run) - tap
                    at = source + (word * (WORD_CHANNELS * w.channels) + offset + tap * stride)
                    for i in k.range(results):
                        at.prefetch(i * w.results + _FILTER_PREFETCH)
                        four = _load_four(
                            k, at + i * w.results, w.channels, stride, rows, k.mask(some, lanes)
                        )
                        self.buffer.store(_interleave(k, four), i * lanes)
                    to = target + (word * panels.channel_stride + to_tap + tap * panels.lanes)
                    self._store_columns(to, panels.lanes, some, keep)

    def _store_columns(self, target: Pointer, pitch: int, columns: Value, keep: Value | None) -> None:
        """Store the first ``columns`` columns of the buffer as vectors of lanes, ``pitch`` apart."""
        lanes = self.lanes
        rows = [self.buffer.load(i * lanes, lanes) for i in range(lanes)]
        for i, column in enumerate(transpose(self.k, rows)):
            with self.k.when(columns > i):
                target.store(column, i * pitch, keep)

    def _store_initial_sums(self, panel: Pointer, keep: Value | None) -> None:
        """Store -128 times the sum of each lane of a panel behind it."""
        k, lanes = self.k, self.lanes
        total = k.register(k.constant(0, "i32", lanes))
        for step in k.range(0, self.panels.initial_sums, self.panels.lanes):
            found = panel.load(step, lanes, keep)
            total.set(k.dot(k.constant(_ZEROS, "i32", lanes), found, total.get()))
        panel.store(-total.get(), self.panels.initial_sums, keep)
