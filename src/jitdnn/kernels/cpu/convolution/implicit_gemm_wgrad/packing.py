"""Packing for wgrad: a block of x with its padding as an input tile, and of dy as a panel of vectors of channels.

Input tile: [image][channel][d][h][w], or with channels last [image][d][h][w][channel], as `InputTile` says. Panel:
[pixel][vectors * lanes of k]. Both are packed by the task that reads them, for every block, and stay in the cache until
then. Rows are short and many, so the masks of the vectors of a row are made once a block.
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

_MOST_MASKS = 6  # vectors of a row whose masks are made once a block; longer rows make them as they go
_PREFETCH_DY = 128  # elements along a row of dy; in a shorter row the channels that follow are prefetched
_PREFETCH_X_BYTES = 2048  # in whole channels, whose rows are too short for the hardware to prefetch
_TRANSPOSED_STEPS = (1, 2, 3, 4)  # distances between pixels of dy for which no gather is needed


def trace_input_tile(
    module: Module, name: str, c: Correlation, input_tile: InputTile, unpadded: tuple[bool, bool, bool]
) -> Function:
    """Trace ``name(x, input tile, batches, channels, d, h, w)``: pack the block whose first pixel is (d, h, w).

    ``x`` points to the first channel to pack of the block's first image; ``batches`` images and ``channels`` channels
    are there. An ``unpadded`` axis is in one block, whose pixel is 0. Up to two vectors beyond the input tile are
    written, too.
    """
    with module.function(
        name, x=c.x.dtype, input_tile=c.dtype, batches=None, channels=None, d=None, h=None, w=None
    ) as (
        k, (x, target, batches, channels, *starts), function,
    ):  # fmt: skip
        origins = [
            start * (1 if is_unpadded else axis.step) + low
            for start, axis, low, is_unpadded in zip(starts, c.axes, input_tile.lows, unpadded, strict=True)
        ]
        pack = _InputTilePacking(k, c, input_tile, origins)
        if input_tile.is_channels_last and not pack.is_dense:
            pack.pixels(x, target, batches, channels)
        else:
            pack.rows(x, target, batches, channels)
    return function


class _InputTilePacking:
    """The code that packs one block of x; ``origins`` is the position of its first element on each axis."""

    def __init__(self, k: Builder, c: Correlation, input_tile: InputTile, origins: Sequence[Value]) -> None:
        self.k, self.c, self.input_tile, self.origins = k, c, input_tile, origins
        self.lanes = k.lanes(c.dtype)
        # positions of x from one element of the input tile to the next: with one tap only those that are read
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
            self._mask(k.integer(j * self.lanes)) for j in range(vectors if vectors <= _MOST_MASKS else 0)
        ]
        for n in k.range(batches):
            image, target_image = x + n * c.x.batch, target + n * input_tile.batch
            for channel in k.range(1 if self.is_dense else channels):
                plane = image + channel * c.x.channels
                target_plane = target_image + channel * input_tile.channels
                for row, is_inside, target_row in self._rows_of(plane, target_plane):
                    with k.when(is_inside):
                        if masks:
                            for j, mask in enumerate(masks):
                                self._copy(row, k.integer(j * self.lanes), mask, target_row)
                        else:
                            self._long_row(row, target_row)
                    with k.when(~is_inside):
                        for at in k.range(0, self.run, self.lanes):
                            target_row.store(self.zero, at)

    def _long_row(self, row: Pointer, target: Pointer) -> None:
        k, last = self.k, (self.lanes - 1) * self.steps[2]
        for j in k.range(0, self.run, self.lanes):
            first = self.first + j * self.steps[2]
            is_whole = (first >= 0) & (first + last < self.positions)
            with k.when(is_whole):
                self._copy(row, j, None, target)
            with k.when(~is_whole):
                self._copy(row, j, self._mask(j), target)

    def _mask(self, at: Value) -> Value:
        """The lanes of a row's vector that lie in the image: lane i is position first + i * step."""
        k, step = self.k, self.steps[2]
        first = self.first + at * step
        mask = k.mask((k.integer(self.positions) - first + (step - 1)).max(0) // step, self.lanes)
        if self.input_tile.lows[2] < 0:
            mask = mask & ~k.mask((k.integer(step - 1) - first).max(0) // step, self.lanes)
        return mask

    def _copy(self, row: Pointer, at: Value, mask: Value | None, target: Pointer) -> None:
        """A vector of a row, from element ``at`` of the row of the input tile on."""
        stride = self.stride
        offset = (self.first + at * self.steps[2]) * stride
        vector = row.load_strided(offset, stride * self.steps[2], self.lanes, mask)
        if stride == 0 and mask is not None:
            vector = self.k.select(mask, vector, 0.0)  # a broadcast load ignores the mask
        for line in range(max(1, min(4, abs(stride * self.steps[2])))):
            row.prefetch(offset + (self._prefetch_distance + line * self.lanes))
        target.store(vector, at)

    @property
    def _prefetch_distance(self) -> int:
        if self.is_dense:
            return _PREFETCH_X_BYTES // ITEM_BYTES[self.c.dtype]
        plane = math.prod(self.input_tile.extents) * ITEM_BYTES[self.c.dtype]
        return ceil_div(_PREFETCH_X_BYTES, plane) * self.c.x.channels

    def pixels(self, x: Pointer, target: Pointer, batches: Value, channels: Value) -> None:
        """Channels last: the channels of one pixel after the other."""
        k, c, input_tile, lanes = self.k, self.c, self.input_tile, self.lanes
        whole = channels // lanes * lanes
        tail = k.mask(channels - whole, lanes)
        for n in k.range(batches):
            image, target_image = x + n * c.x.batch, target + n * input_tile.batch
            for row, is_row_inside, target_row in self._rows_of(image, target_image):
                for p in k.range(input_tile.extents[2]):
                    w = self.origins[2] + p * self.steps[2]
                    is_inside = is_row_inside & _is_inside(w, c.axes[2])
                    pixel, target_pixel = row + w * c.x.space[2], target_row + p * input_tile.space[2]
                    with k.when(is_inside):
                        for channel in k.range(0, whole, lanes):
                            target_pixel.store(pixel.load(channel, lanes), channel)
                        target_pixel.store(pixel.load(whole, lanes, tail), whole)
                    with k.when(~is_inside):
                        for channel in k.range(0, channels, lanes):
                            target_pixel.store(self.zero, channel)

    def _rows_of(self, image: Pointer, target: Pointer) -> Iterator[tuple[Pointer, Value, Pointer]]:
        """Each row of the input tile along the last axis: its source, whether that is in the image, and its target."""
        k, c, input_tile = self.k, self.c, self.input_tile
        for i in k.range(input_tile.extents[0]):
            d = self.origins[0] + i * self.steps[0]
            for j in k.range(input_tile.extents[1]):
                h = self.origins[1] + j * self.steps[1]
                is_inside = _is_inside(d, c.axes[0]) & _is_inside(h, c.axes[1])
                source = image + (d * c.x.space[0] + h * c.x.space[1])
                yield source, is_inside, target + (i * input_tile.space[0] + j * input_tile.space[1])


def _is_inside(position: Value, axis: Axis) -> Value:
    return (position >= 0) & (position < axis.positions)


def is_panel_transposed(c: Correlation) -> bool:
    """True if pixels of dy lie closer together than its channels: vectors of pixels are loaded and transposed."""
    return c.y.space[2] in _TRANSPOSED_STEPS and abs(c.y.channels) > c.y.space[2]


def trace_panel(
    module: Module, name: str, c: Correlation, block: tuple[int, int, int, int], vectors: int
) -> Function:
    """Trace ``name(dy, panel, valid, n, d, h, w)``: a block of dy as [pixel][``vectors`` vectors of channels].

    ``dy`` points to the first pixel and channel; ``valid`` channels, at least one, are there, and n x d x h x w
    pixels. The other lanes hold elements of dy again, or zero.
    """
    with module.function(
        name, dy=c.y.dtype, panel=c.dtype, valid=None, n=None, d=None, h=None, w=None
    ) as (k, (dy, panel, valid, *extents), function):  # fmt: skip
        lanes, y = k.lanes(c.dtype), c.y
        is_joined = block[3] == c.axes[2].results and y.space[1] == c.axes[2].results * y.space[2]
        run = extents[2] * extents[3] if is_joined else extents[3]
        is_transposed = is_panel_transposed(c)
        masks = [] if is_transposed else [k.mask(valid - v * lanes, lanes) for v in range(vectors)]
        for n in k.range(extents[0]):
            for d in k.range(extents[1]):
                for h in k.range(1 if is_joined else extents[2]):
                    row = dy + (n * y.batch + d * y.space[0] + h * y.space[1])
                    pixel = ((n * block[1] + d) * block[2] + h) * block[3]
                    target = panel + pixel * (vectors * lanes)
                    if is_transposed:
                        _transpose_run(k, row, y.channels, y.space[2], valid, run, target, vectors)
                    else:
                        _copy_run(k, row, y.channels, y.space[2], run, target, masks)
    return function


def _copy_run(
    k: Builder, row: Pointer, channels: int, step: int, run: Value, target: Pointer, masks: Sequence[Value]
) -> None:
    """Pixel by pixel, where channels are neighbours (or nothing is)."""
    lanes = masks[0].lanes
    for p in k.range(run):
        for v, mask in enumerate(masks):
            vector = row.load_strided(p * step + v * lanes * channels, channels, lanes, mask)
            if channels == 0:
                vector = k.select(mask, vector, 0.0)
            target.store(vector, (p * len(masks) + v) * lanes)


def _transpose_run(
    k: Builder,
    row: Pointer,
    channels: int,
    step: int,
    valid: Value,
    run: Value,
    target: Pointer,
    vectors: int,
) -> None:
    """A run of pixels of every channel, in squares of lanes x lanes: the last one overlaps the one before."""
    lanes = k.lanes(target.dtype)
    pitch = vectors * lanes
    is_long = run >= lanes
    for v in k.range(vectors):
        left = valid - v * lanes
        source, own = row + v * (lanes * channels), target + v * lanes
        with k.when(is_long & (left >= lanes)):
            offsets = [k.integer(i * channels) for i in range(lanes)]
            _transpose_squares(k, source, offsets, lanes * channels, step, run, own, pitch)
        with k.when(is_long & (left < lanes)):
            # lanes without a channel repeat the last one
            offsets = [(left - 1).min(i) * channels for i in range(lanes)]
            _transpose_squares(k, source, offsets, lanes * channels, step, run, own, pitch)
        with k.when(~is_long):
            if step == 1:
                copy_transposed(k, source, channels, left.max(0).min(lanes), run, own, pitch, lanes)
            else:
                mask = k.mask(left, lanes)
                for p in k.range(run):
                    own.store(source.load_strided(p * step, channels, lanes, mask), p * pitch)


def _transpose_squares(
    k: Builder, source: Pointer, channels: Sequence[Value], next_channels: int, step: int, run: Value,
    target: Pointer, pitch: int,
) -> None:  # fmt: skip
    """Squares of a vector of pixels for each of the offsets ``channels``; those of the next vector of channels are
    ``next_channels`` elements further."""
    lanes = len(channels)
    last = run - lanes
    distance = k.select(run >= 2 * _PREFETCH_DY, k.integer(_PREFETCH_DY), next_channels)
    for start in k.range(0, run, lanes):
        at = start.min(last)
        # one load after the other, then all prefetches
        loaded = [source.load_strided(at * step + channel, step, lanes) for channel in channels]
        for channel in channels:
            source.prefetch(at * step + channel + distance)
        for i, vector in enumerate(transpose(k, loaded)):
            target.store(vector, (at + i) * pitch)
