"""Copies for a filter's gradient: the block of x with its zeros, and dy with its channels as lanes.

Both are made anew for every block, by the task that reads them, and stay in the cache until they are used up. So they
are written for many short rows: which lanes of a row are in the image is settled once a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.packing import InputTile
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed, transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

_KEPT_MASKS = 6  # of the vectors of a row; a longer row finds out as it goes
_AHEAD = 128  # elements of a row of dy that are asked for in time; of a shorter one, those of the channels that follow
_BYTES_AHEAD = (
    2048  # of x, in whole channels: their rows are too short for the processor to see where they go
)
TURNED_STEPS = (1, 2, 3, 4)  # between pixels, for which squares are loaded without gathering


def trace_input_tile(module: Module, name: str, c: Correlation, input_tile: InputTile) -> Function:
    """Trace ``name(x, input tile, batches, channels, d, h, w)``: copy the block whose first result is (d, h, w).

    ``x`` points to the first channel to copy of the block's first image; ``batches`` images and ``channels`` channels
    are there. Up to two vectors beyond the input tile are written, too.
    """
    with module.function(
        name, x=c.x.dtype, input_tile=c.dtype, batches=None, channels=None, d=None, h=None, w=None
    ) as (
        k, (x, target, batches, channels, *starts), function,
    ):  # fmt: skip
        origins = [s * axis.step + axis.taps.lowest for s, axis in zip(starts, c.axes, strict=True)]
        copy = _InputTileCopy(k, c, input_tile, origins)
        if input_tile.is_channels_last and not copy.is_dense:
            copy.pixels(x, target, batches, channels)
        else:
            copy.rows(x, target, batches, channels)
    return function


class _InputTileCopy:
    def __init__(self, k: Builder, c: Correlation, input_tile: InputTile, origins: Sequence[Value]) -> None:
        self.k, self.c, self.input_tile, self.origins = k, c, input_tile, origins
        self.lanes = k.lanes(c.dtype)
        # positions of the input from one element of the input tile to the next
        self.steps = [axis.step if axis.taps.count <= 1 else 1 for axis in c.axes]
        self.zero = k.constant(0, c.dtype, self.lanes)
        # channels last, and all of them: a row of pixels is a single run
        self.is_dense = (
            input_tile.is_channels_last
            and c.x.space[2] == input_tile.space[2] == c.depth
            and self.steps[2] == 1
        )
        unit = c.depth if self.is_dense else 1
        self.run, self.positions = input_tile.extents[2] * unit, c.axes[2].positions * unit
        self.first, self.stride = origins[2] * unit, 1 if self.is_dense else c.x.space[2]

    def rows(self, x: Pointer, target: Pointer, batches: Value, channels: Value) -> None:
        """Rows along the last axis; what is written beyond a row's end, the next row overwrites."""
        k, c, input_tile = self.k, self.c, self.input_tile
        vectors = ceil_div(self.run, self.lanes)
        masks = [
            self._mask(k.integer(j * self.lanes)) for j in range(vectors if vectors <= _KEPT_MASKS else 0)
        ]
        for n in k.range(batches):
            image, place = x + n * c.x.batch, target + n * input_tile.batch
            for channel in k.range(1 if self.is_dense else channels):
                plane, own = image + channel * c.x.channels, place + channel * input_tile.channels
                for row, inside, to in self._lines(plane, own):
                    with k.when(inside):
                        if masks:
                            for j, mask in enumerate(masks):
                                self._move(row, k.integer(j * self.lanes), mask, to)
                        else:
                            self._long_row(row, to)
                    with k.when(~inside):
                        for at in k.range(0, self.run, self.lanes):
                            to.store(self.zero, at)

    def _long_row(self, row: Pointer, to: Pointer) -> None:
        k, last = self.k, (self.lanes - 1) * self.steps[2]
        for j in k.range(0, self.run, self.lanes):
            first = self.first + j * self.steps[2]
            is_whole = (first >= 0) & (first + last < self.positions)
            with k.when(is_whole):
                self._move(row, j, None, to)
            with k.when(~is_whole):
                self._move(row, j, self._mask(j), to)

    def _mask(self, at: Value) -> Value:
        """The lanes of a row's vector that lie in the image: lane i is position first + i * step."""
        k, step = self.k, self.steps[2]
        first = self.first + at * step
        mask = k.mask((k.integer(self.positions) - first + (step - 1)).max(0) // step, self.lanes)
        if self.c.axes[2].taps.lowest < 0:
            mask = mask & ~k.mask((k.integer(step - 1) - first).max(0) // step, self.lanes)
        return mask

    def _move(self, row: Pointer, at: Value, mask: Value | None, to: Pointer) -> None:
        stride = self.stride
        offset = (self.first + at * self.steps[2]) * stride
        vector = row.load_strided(offset, stride * self.steps[2], self.lanes, mask)
        if stride == 0 and mask is not None:
            vector = self.k.select(mask, vector, 0.0)  # a broadcast load ignores the mask
        for line in range(max(1, min(4, abs(stride * self.steps[2])))):
            row.prefetch(offset + (self._ahead + line * self.lanes))
        to.store(vector, at)

    @property
    def _ahead(self) -> int:
        if self.is_dense:
            return _BYTES_AHEAD // ITEM_BYTES[self.c.dtype]
        plane = math.prod(self.input_tile.extents) * ITEM_BYTES[self.c.dtype]
        return ceil_div(_BYTES_AHEAD, plane) * self.c.x.channels

    def pixels(self, x: Pointer, target: Pointer, batches: Value, channels: Value) -> None:
        """Channels last: the channels of one pixel after the other."""
        k, c, input_tile, lanes = self.k, self.c, self.input_tile, self.lanes
        whole = channels // lanes * lanes
        tail = k.mask(channels - whole, lanes)
        for n in k.range(batches):
            for row, inside, to in self._lines(x + n * c.x.batch, target + n * input_tile.batch):
                for p in k.range(input_tile.extents[2]):
                    w = self.origins[2] + p * self.steps[2]
                    here = inside & _within(w, c.axes[2])
                    pixel, place = row + w * c.x.space[2], to + p * input_tile.space[2]
                    with k.when(here):
                        for channel in k.range(0, whole, lanes):
                            place.store(pixel.load(channel, lanes), channel)
                        place.store(pixel.load(whole, lanes, tail), whole)
                    with k.when(~here):
                        for channel in k.range(0, channels, lanes):
                            place.store(self.zero, channel)

    def _lines(self, image: Pointer, place: Pointer) -> Iterator[tuple[Pointer, Value, Pointer]]:
        """Each row of the input tile along the last axis: where it comes from, whether that exists, where it goes."""
        k, c, input_tile = self.k, self.c, self.input_tile
        for i in k.range(input_tile.extents[0]):
            d = self.origins[0] + i * self.steps[0]
            for j in k.range(input_tile.extents[1]):
                h = self.origins[1] + j * self.steps[1]
                inside = _within(d, c.axes[0]) & _within(h, c.axes[1])
                source = image + (d * c.x.space[0] + h * c.x.space[1])
                yield source, inside, place + (i * input_tile.space[0] + j * input_tile.space[1])


def _within(position: Value, axis: Axis) -> Value:
    return (position >= 0) & (position < axis.positions)


def is_panel_turned(c: Correlation) -> bool:
    """True if pixels of dy lie closer together than its channels."""
    return c.y.space[2] in TURNED_STEPS and abs(c.y.channels) > c.y.space[2]


def trace_panel(
    module: Module, name: str, c: Correlation, block: tuple[int, int, int, int], vectors: int
) -> Function:
    """Trace ``name(dy, panel, valid, n, d, h, w)``: a block of dy as [pixel][``vectors`` vectors of channels].

    ``dy`` points to the first pixel and channel; ``valid`` channels, at least one, are there, and n x d x h x w
    pixels. What lies in the other lanes is numbers of dy again, or zero.
    """
    with module.function(
        name, dy=c.y.dtype, panel=c.dtype, valid=None, n=None, d=None, h=None, w=None
    ) as (k, (dy, panel, valid, *extents), function):  # fmt: skip
        lanes, y = k.lanes(c.dtype), c.y
        joined = block[3] == c.axes[2].results and y.space[1] == c.axes[2].results * y.space[2]
        run = extents[2] * extents[3] if joined else extents[3]
        is_turned = is_panel_turned(c)
        masks = [] if is_turned else [k.mask(valid - v * lanes, lanes) for v in range(vectors)]
        for n in k.range(extents[0]):
            for d in k.range(extents[1]):
                for h in k.range(1 if joined else extents[2]):
                    row = dy + (n * y.batch + d * y.space[0] + h * y.space[1])
                    pixel = ((n * block[1] + d) * block[2] + h) * block[3]
                    to = panel + pixel * (vectors * lanes)
                    if is_turned:
                        _turn_run(k, row, y.channels, y.space[2], valid, run, to, vectors)
                    else:
                        _copy_run(k, row, y.channels, y.space[2], run, to, masks)
    return function


def _copy_run(
    k: Builder, row: Pointer, channels: int, step: int, run: Value, to: Pointer, masks: Sequence[Value]
) -> None:
    """Pixel by pixel, where channels are neighbours (or nothing is)."""
    lanes = masks[0].lanes
    for p in k.range(run):
        for v, mask in enumerate(masks):
            vector = row.load_strided(p * step + v * lanes * channels, channels, lanes, mask)
            if channels == 0:
                vector = k.select(mask, vector, 0.0)
            to.store(vector, (p * len(masks) + v) * lanes)


def _turn_run(
    k: Builder, row: Pointer, channels: int, step: int, valid: Value, run: Value, to: Pointer, vectors: int
) -> None:
    """A run of pixels of every channel, turned square by square: the last square overlaps the one before."""
    lanes = k.lanes(to.dtype)
    pitch = vectors * lanes
    is_long = run >= lanes
    for v in k.range(vectors):
        left = valid - v * lanes
        source, place = row + v * (lanes * channels), to + v * lanes
        with k.when(is_long & (left >= lanes)):
            _turn_squares(
                k,
                source,
                [k.integer(i * channels) for i in range(lanes)],
                lanes * channels,
                step,
                run,
                place,
                pitch,
            )
        with k.when(is_long & (left < lanes)):
            # lanes that no channel is left for take the last one again
            places = [(left - 1).min(i) * channels for i in range(lanes)]
            _turn_squares(k, source, places, lanes * channels, step, run, place, pitch)
        with k.when(~is_long):
            if step == 1:
                copy_transposed(k, source, channels, left.max(0).min(lanes), run, place, pitch, lanes)
            else:
                mask = k.mask(left, lanes)
                for p in k.range(run):
                    place.store(source.load_strided(p * step, channels, lanes, mask), p * pitch)


def _turn_squares(
    k: Builder, source: Pointer, channels: Sequence[Value], following: int, step: int, run: Value, to: Pointer,
    pitch: int,
) -> None:  # fmt: skip
    lanes = len(channels)
    last = run - lanes
    ahead = k.select(run >= 2 * _AHEAD, k.integer(_AHEAD), following)
    for start in k.range(0, run, lanes):
        at = start.min(last)
        # every lane is asked for, and between them nothing is read
        loaded = [source.load_strided(at * step + channel, step, lanes) for channel in channels]
        for channel in channels:
            source.prefetch(at * step + channel + ahead)
        for i, vector in enumerate(transpose(k, loaded)):
            to.store(vector, (at + i) * pitch)
