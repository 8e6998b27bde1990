"""Packing into the workspace: the input of a block of results as an input tile, and filters as panels.

An input tile holds what a block of results reads, in one of two orders, with zeros for padding, so that the
micro-kernel reads it without a test. It is no im2col matrix: each element of the input is in it once.

    channels first : [batch][channel][axis 0][axis 1][axis 2]     rows along axis 2 are copied
    channels last  : [batch][axis 0][axis 1][axis 2][channel]     rows along the channels are copied
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed, transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import item_bytes
from jitdnn.rtcg.processor import Processor

# elements of each result's filter between what is read and what is prefetched
_FILTER_PREFETCH = 128
_MOST_TAPS = 64  # of a filter that is packed in one pass: their loop is unrolled
_MOST_PREFETCHED = 4  # lines that one vector of a row may lie in
_MOST_MASKS = 7  # vectors of a row that have a register for their mask


@dataclass(frozen=True)
class InputTile:
    """Extents and strides of an input tile. ``block`` holds the extents of the results: batch and the three axes.

    On each axis the tile begins ``lows`` positions from ``step`` times the block's first result.
    """

    block: tuple[int, int, int, int]
    lows: tuple[int, int, int]
    extents: tuple[int, int, int]
    steps: tuple[int, int, int]
    batch: int
    channels: int
    space: tuple[int, int, int]
    is_channels_last: bool


def input_tile_step(axis: Axis) -> int:
    """Distance in the input tile between neighbouring results: with one tap only what is read is copied."""
    return 1 if axis.taps.count <= 1 else axis.step


def input_tile_extent(axis: Axis, results: int) -> int:
    """Positions of an axis that a block of ``results`` results reads."""
    return max(0, results - 1) * input_tile_step(axis) + axis.taps.span + 1


@dataclass(frozen=True)
class InputRange:
    """The positions of an axis that a block reads."""

    low: int  # the first one, relative to ``step`` times the block's first result
    extent: int
    extent_of_tiles: int  # with those that partial register tiles read for results beyond the block


def input_range(axis: Axis, results: int, side: int, is_clipped: bool) -> InputRange:
    """What a block of ``results`` reads in register tiles of ``side`` results.

    Where tiles leave out taps that read padding only (``is_clipped``), a block of the whole axis reads no farther
    outside than a tile does whose first or last result is at the boundary.
    """
    low, extent = axis.taps.lowest, input_tile_extent(axis, results)
    most = input_tile_extent(axis, ceil_div(results, side) * side)
    if not is_clipped or results < axis.results:
        return InputRange(low, extent, most)
    margin = (side - 1) * axis.step
    first, last = max(low, -margin), axis.positions + margin  # the last is exclusive
    return InputRange(first, max(1, min(low + extent, last) - first), max(1, min(low + most, last) - first))


def plan_input_tile(
    c: Correlation, block: tuple[int, int, int, int], lanes: int, channels_last: bool | None = None,
    ranges: Sequence[InputRange] | None = None, channels: int | None = None,
) -> InputTile:  # fmt: skip
    """Lay out an input tile; its rows lie along the axis that is contiguous in the input.

    By default it is all that the block reads, and has all channels.
    """
    if ranges is None:
        ranges = [
            input_range(axis, results, 1, False) for axis, results in zip(c.axes, block[1:], strict=True)
        ]
    lows = _triple([one.low for one in ranges])
    extents = tuple(one.extent for one in ranges)
    steps = tuple(input_tile_step(axis) for axis in c.axes)
    channels = channels or c.depth
    if channels_last is None:
        channels_last = c.x.channels == 1 and c.depth > 1 and c.x.space[2] != 1
    d, h, w = extents
    if channels_last:
        # a pitch that is a multiple of 256 bytes would put neighbouring pixels into few sets of the L1 cache
        pitch = channels + lanes if channels % (4 * lanes) == 0 else channels
        space = (h * w * pitch, w * pitch, pitch)
        return InputTile(block, lows, (d, h, w), _triple(steps), d * h * w * pitch, 1, space, True)
    plane = d * h * w
    if plane % (4 * lanes) == 0 and c.depth > 1:
        plane += lanes  # for the same reason, between channels
    return InputTile(block, lows, (d, h, w), _triple(steps), channels * plane, plane, (h * w, w, 1), False)


def input_tile_size(
    input_tile: InputTile, ranges: Sequence[InputRange], box: Sequence[int], lanes: int, channels: int
) -> int:  # fmt: skip
    """Elements to reserve: partial tiles of ``box`` results also read, but never use, elements beyond the block."""
    elements = 1 + (input_tile.block[0] - 1) * input_tile.batch + (channels - 1) * input_tile.channels
    for axis, stride in zip(ranges, input_tile.space, strict=True):
        elements += (axis.extent_of_tiles - 1) * stride
    elements += (ceil_div(input_tile.block[0], box[0]) * box[0] - input_tile.block[0]) * input_tile.batch
    return elements + 8 * lanes


def trace_input_tile(module: Module, name: str, c: Correlation, input_tile: InputTile) -> Function:
    """Trace ``name(x, input tile, batches, channels, d, h, w)``: copy the block whose first result is (d, h, w).

    ``x`` points to the first channel to copy of the block's first image; ``batches`` images and ``channels``
    channels are copied.
    """
    with module.function(
        name, x=c.x.dtype, input_tile=c.dtype, batches=None, channels=None, d=None, h=None, w=None
    ) as (
        k, (x, target, batches, channels, *starts), function,
    ):  # fmt: skip
        # a block of the whole axis begins at 0
        starts = [
            k.integer(0) if isinstance(extent, int) and extent >= axis.results else start
            for start, extent, axis in zip(starts, input_tile.block[1:], c.axes, strict=True)
        ]
        origins = [s * axis.step + low for s, axis, low in zip(starts, c.axes, input_tile.lows, strict=True)]
        masks = _row_masks(k, c, input_tile, origins[2])
        for n in k.range(0, batches):
            image, to = x + n * c.x.batch, target + n * input_tile.batch
            if input_tile.is_channels_last:
                _copy_pixels(k, c, input_tile, image, to, channels, origins)
            else:
                for channel in k.range(channels):
                    plane, to_plane = image + channel * c.x.channels, to + channel * input_tile.channels
                    _copy_rows(k, c, input_tile, plane, to_plane, origins, masks)
    return function


def prefetch_elements(c: Correlation, processor: Processor) -> int:
    """Elements of the input between what is read and what is prefetched.

    From channel to channel and from row to row the addresses jump too far for the hardware prefetcher.
    """
    return processor.l1(cost.PREFETCH_DISTANCE_L1) // item_bytes(c.x.dtype)


def prefetch_channels(c: Correlation, input_tile: InputTile, processor: Processor) -> int:
    """Channels of a block between what is read and what is prefetched."""
    return ceil_div(prefetch_elements(c, processor), max(1, math.prod(input_tile.extents)))


def source_steps(c: Correlation) -> list[int]:
    """Positions of the input from one element of the input tile to the next, on each axis."""
    return [axis.step if axis.taps.count <= 1 else 1 for axis in c.axes]


def _row_masks(
    k: Builder, c: Correlation, input_tile: InputTile, origin: Value
) -> Callable[[int | Value], Value]:
    """Which lanes of the vector at an element of a row are inside of the image.

    The masks of a short row are computed once for all rows.
    """
    lanes, axis, step = k.lanes(c.dtype), c.axes[2], source_steps(c)[2]

    def mask(at: int | Value) -> Value:
        # lane i reads position first + i * step, which must be in [0, positions)
        first = origin + at * step
        inside = k.mask((k.integer(axis.positions) - first + (step - 1)).max(0) // step, lanes)
        if input_tile.lows[2] < 0:
            inside = inside & ~k.mask((k.integer(step - 1) - first).max(0) // step, lanes)
        return inside

    if input_tile.extents[2] > _MOST_MASKS * lanes:
        return mask
    known = {at: mask(at) for at in range(0, input_tile.extents[2], lanes)}
    return lambda at: known[at] if isinstance(at, int) else mask(at)


def _copy_rows(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, to: Pointer, origins: list[Value],
    masks: Callable[[int | Value], Value],
) -> None:  # fmt: skip
    lanes, step = k.lanes(c.dtype), source_steps(c)[2]
    vectors, distance = (
        range(0, input_tile.extents[2], lanes),
        prefetch_channels(c, input_tile, k.isa.processor) * c.x.channels,
    )
    for row, inside, target in input_tile_rows(k, c, input_tile, image, to, origins):
        row = row + origins[2] * c.x.space[2]
        with k.when(inside):
            for j in vectors if len(vectors) <= _MOST_MASKS else k.range(0, input_tile.extents[2], lanes):
                mask = masks(j)
                for line in range(min(_MOST_PREFETCHED, max(1, abs(step * c.x.space[2])))):
                    row.prefetch(j * (step * c.x.space[2]) + (distance + line * lanes))
                vector = row.load_strided(j * (step * c.x.space[2]), c.x.space[2] * step, lanes, mask)
                _store_masked(k, c.x.space[2] * step, vector, mask, target, j)
        with k.when(~inside):
            for j in k.range(0, input_tile.extents[2], lanes):
                target.store(k.constant(0, c.dtype, lanes), j)


def _store_masked(
    k: Builder, stride: int, vector: Value, mask: Value, target: Pointer, at: int | Value
) -> None:
    """Store a vector of a row, 0 where the mask is off, which a broadcast load (stride 0) ignores."""
    if stride == 0:
        vector = k.select(mask, vector, 0.0)
    target.store(vector, at)


def input_tile_rows(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, to: Pointer, origins: list[Value]
) -> Iterator[tuple[Pointer, Value, Pointer]]:
    """Each row of the input tile along axis 2: its source, whether that is inside of the image, its target."""
    step = source_steps(c)
    for i in k.range(input_tile.extents[0]):
        d = origins[0] + i * step[0]
        for j in k.range(input_tile.extents[1]):
            h = origins[1] + j * step[1]
            inside = within(d, c.axes[0].positions) & within(h, c.axes[1].positions)
            source = image + (k.select(inside, d, 0) * c.x.space[0] + k.select(inside, h, 0) * c.x.space[1])
            yield source, inside, to + (i * input_tile.space[0] + j * input_tile.space[1])


def _copy_pixels(
    k: Builder, c: Correlation, input_tile: InputTile, image: Pointer, to: Pointer, channels: Value,
    origins: list[Value],
) -> None:  # fmt: skip
    lanes = k.lanes(c.dtype)
    step = source_steps(c)
    for row, inside, target in input_tile_rows(k, c, input_tile, image, to, origins):
        for p in k.range(input_tile.extents[2]):
            w = origins[2] + p * step[2]
            here = inside & within(w, c.axes[2].positions)
            limit = k.select(here, channels, 0)
            pixel = row + k.select(here, w, 0) * c.x.space[2]
            for channel in k.range(0, channels, lanes):
                mask = k.mask(limit - channel, lanes)
                pixel.prefetch(channel * c.x.channels + prefetch_elements(c, k.isa.processor))
                vector = pixel.load_strided(channel * c.x.channels, c.x.channels, lanes, mask)
                _store_masked(k, c.x.channels, vector, mask, target + p * input_tile.space[2], channel)


def within(position: Value, extent: int) -> Value:
    return (position >= 0) & (position < extent)


@dataclass(frozen=True)
class Panels:
    """A filter packed as [group][panel][channel][tap 0][tap 1][tap 2][lanes of results]."""

    lanes: int
    count: int
    taps: tuple[int, int, int]
    depth: int

    @property
    def panel_size(self) -> int:
        a, b, c = self.taps
        return self.depth * a * b * c * self.lanes

    @property
    def tap_strides(self) -> tuple[int, int, int]:
        _, b, c = self.taps
        return b * c * self.lanes, c * self.lanes, self.lanes

    @property
    def channel_stride(self) -> int:
        a, b, c = self.taps
        return a * b * c * self.lanes


def plan_panels(c: Correlation, lanes: int) -> Panels:
    taps = _triple([axis.taps.count for axis in c.axes])
    return Panels(lanes, ceil_div(c.width, lanes), taps, c.depth)


def trace_panel(module: Module, name: str, c: Correlation, panels: Panels) -> Function:
    """Trace ``name(w, panel, first, channel, channels)``: pack some channels of results ``first`` and on.

    ``w`` points to the group's filter and ``panel`` to the panel; results beyond the last become 0.
    """
    with module.function(name, w=c.w.dtype, panel=c.dtype, first=None, channel=None, channels=None) as (
        k, (w, panel, first, channel, channels), function,
    ):  # fmt: skip
        lanes = k.lanes(c.dtype)
        strides = [axis.taps.increment * s for axis, s in zip(c.axes, c.w.space, strict=True)]
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        run, outer = contiguous_run(panels.taps, strides)
        # what of a result's filter is contiguous, and copied by transposing squares: taps, channels, or all of them
        transposes_taps = run >= 4 or (
            run == panels.taps[2] and run * c.w.channels > 1 and c.w.channels == run
        )
        transposes_all = run == panels.taps[0] * panels.taps[1] * panels.taps[2] and c.w.channels == run
        transposes_channels = c.w.channels == 1 and not transposes_taps
        for j, here in _vectors(k, panels.lanes, lanes):
            source = w + (start + (first + j) * c.w.results)
            valid = k.integer(c.width) - first - j
            keep = None if here == lanes else k.mask(here, lanes)
            if c.w.results != 1 and transposes_channels and not transposes_all:
                for to_tap, offset in tap_offsets(k, 3, strides, panels):
                    copy_transposed(
                        k, source + (channel + offset), c.w.results, valid.min(here), channels,
                        panel + (channel * panels.channel_stride + j + to_tap), panels.channel_stride,
                        lanes, keep, _FILTER_PREFETCH,
                    )  # fmt: skip
            elif c.w.results == 1 or not (transposes_taps or transposes_all):
                for ch in k.range(channel, channel + channels):
                    at = panel + (ch * panels.channel_stride + j)
                    mask = k.mask(valid.min(here), lanes)
                    for to_tap, offset in tap_offsets(k, 3, strides, panels):
                        vector = source.load_strided(ch * c.w.channels + offset, c.w.results, lanes, mask)
                        if c.w.results == 0:
                            vector = k.select(mask, vector, 0.0)
                        at.store(vector, to_tap, keep)
            elif transposes_all:
                copy_transposed(
                    k, source + channel * run, c.w.results, valid.min(here), channels * run,
                    panel + (channel * panels.channel_stride + j), panels.lanes, lanes, keep, _FILTER_PREFETCH,
                )  # fmt: skip
            else:
                for ch in k.range(channel, channel + channels):
                    for to_tap, offset in tap_offsets(k, outer, strides, panels):
                        copy_transposed(
                            k, source + (ch * c.w.channels + offset), c.w.results, valid.min(here), run,
                            panel + (ch * panels.channel_stride + j + to_tap), panels.lanes, lanes, keep,
                        )  # fmt: skip
    return function


def _vectors(k: Builder, width: int, lanes: int) -> Iterator[tuple[Value, int]]:
    """Loops over the vectors of a panel: (its first lane, how many it has). Whole ones share their code: squares that
    are transposed are more of it than the micro-kernel, and what is packed is mostly packed once."""
    whole = width - width % lanes
    for j in k.range(0, whole, lanes):
        yield j, lanes
    if whole < width:
        yield k.integer(whole), width - whole


def _taps_by_offset(c: Correlation) -> dict[int, tuple[int, ...]]:
    """The tap at each offset in the filter."""
    taps = {}
    for tap in itertools.product(*(range(axis.taps.count) for axis in c.axes)):
        steps = zip(tap, c.axes, c.w.space, strict=True)
        taps[sum((axis.taps.start + i * axis.taps.increment) * s for i, axis, s in steps)] = tap
    return taps


def taps_are_a_run(several: Sequence[Correlation]) -> bool:
    """True if the taps of several correlations together are contiguous in the filter, and few.

    Taps of a filter that is broadcast along an axis share an offset: they are not contiguous.
    """
    offsets = sorted(offset for c in several for offset in _taps_by_offset(c))
    if len(offsets) != sum(c.taps for c in several):
        return False
    return offsets == list(range(len(offsets))) and 1 < len(offsets) <= _MOST_TAPS


def trace_panels_at_once(
    module: Module, name: str, several: Sequence[Correlation], panels: Sequence[Panels]
) -> Function:
    """Trace ``name(w, panels..., first, channel, channels)``: as `trace_panel`, for correlations that share a filter.

    Every value of the filter is read once, and stored to the panel of the correlation that it is a tap of.
    """
    c, width = several[0], panels[0].lanes
    targets = {f"panel{i}": c.dtype for i in range(len(several))}
    targets_of: dict[int, tuple[int, int]] = {}
    for i, (one, own) in enumerate(zip(several, panels, strict=True)):
        for offset, tap in _taps_by_offset(one).items():
            targets_of[offset] = i, sum(i_tap * s for i_tap, s in zip(tap, own.tap_strides, strict=True))
    with module.function(name, w=c.w.dtype, **targets, first=None, channel=None, channels=None) as (
        k, (w, *rest), function,
    ):  # fmt: skip
        *pointers, first, channel, channels = rest
        lanes = k.lanes(c.dtype)
        for j, here in _vectors(k, width, lanes):
            valid = (k.integer(c.width) - first - j).min(here)
            keep = None if here == lanes else k.mask(here, lanes)
            for ch in k.range(channel, channel + channels):
                source = w + ((first + j) * c.w.results + ch * c.w.channels)
                for start in range(0, len(targets_of), lanes):
                    count = min(lanes, len(targets_of) - start)
                    rows = []
                    for lane in range(lanes):
                        mask = k.mask(k.select(valid > lane, k.integer(count), 0), lanes)
                        rows.append(source.load(start + lane * c.w.results, lanes, mask))
                    for i, vector in enumerate(transpose(k, rows)[:count]):
                        number, to_tap = targets_of[start + i]
                        to = ch * panels[number].channel_stride + (to_tap + j)
                        pointers[number].store(vector, to, keep)
    return function


def contiguous_run(taps: tuple[int, int, int], strides: Sequence[int]) -> tuple[int, int]:
    """The number of innermost taps that are contiguous, and how many outer axes are left."""
    run, axis = 1, 3
    while axis > 0 and (taps[axis - 1] == 1 or strides[axis - 1] == run):
        run *= taps[axis - 1]
        axis -= 1
    return run, axis


def tap_offsets(
    k: Builder, axes: int, strides: Sequence[int], panels: Panels
) -> Iterator[tuple[Value, Value]]:
    """Loops over the first ``axes`` axes of taps: (offset in the panel, offset in the filter)."""
    extents = [panels.taps[i] if i < axes else 1 for i in range(3)]
    for a in k.range(extents[0]):
        for b in k.range(extents[1]):
            for c in k.range(extents[2]):
                to, of = panels.tap_strides, strides
                yield a * to[0] + b * to[1] + c * to[2], a * of[0] + b * of[1] + c * of[2]


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    a, b, c = values
    return a, b, c
