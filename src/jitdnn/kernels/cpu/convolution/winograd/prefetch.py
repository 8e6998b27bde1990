"""Prefetches into the L2 cache: Winograd's transforms touch many short runs that no hardware prefetcher follows.

While a block's products are computed, the data of the next block and the lines of this block's results are prefetched,
a share of them at each point; so are the next channels of a filter while it is transformed. An address outside of a
tensor is harmless: nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

_LINES = 16  # prefetched at a time


def trace_prefetch_input(module: Module, name: str, p: WinogradPlan) -> Function | None:
    """Trace ``name(x, first, count, share)``: the share of a panel and point of what ``count`` tile rows read.

    The tile rows are those from ``first`` on; ``x`` points to the first channel to read of the group's first image.
    Rows that the tile row above reads, too, are left out. None where neither channels nor columns are contiguous.
    """
    x, rows, columns = p.c.x, p.rows, p.columns
    runs = _runs(x, p, p.v_channels, p.read_columns)
    if runs is None:
        return None
    line = p.isa.processor.line_bytes // ITEM_BYTES[x.dtype]
    each = runs.at_a_time(line)
    pieces = ceil_div(runs.count, each)
    height, spacing = rows.m * rows.tap_step, rows.spacing // rows.tap_step
    seen = (rows.r - 1) * rows.spacing  # positions that the tile row above reads, too
    if rows.axis.step == 1:
        seen = rows.last_position + seen
    with module.function(name, x=x.dtype, first=None, count=None, share=None) as (
        k, (source, first, count, share), function,
    ):  # fmt: skip
        for item in _share(k, count * (height * pieces), share, p.panels.count * p.points):
            tile_row, i, piece = _split(item, (height, pieces))
            image, slice_, row, part = split_index(first + tile_row, p.tile_row_extents)
            top = (
                (row // rows.dilation) * (rows.m * rows.spacing) + row % rows.dilation + rows.axis.taps.lowest
            )
            top = top + seen + i * spacing
            left = part * (p.tw * columns.m * columns.spacing) + columns.axis.taps.lowest
            depth = slice_ * p.slices.step + p.slices.taps.lowest + p.slices.taps.span
            at = source + (image * x.batch + depth * x.space[p.untiled] + piece * (each * runs.stride))
            at = at + (top * x.space[p.tiled[0]] + left * x.space[p.tiled[1]])
            _prefetch(at, runs, each, line, write=False)
    return function


def trace_prefetch_output(module: Module, name: str, p: WinogradPlan) -> Function | None:
    """Trace ``name(y, first, count, channels, share)``: a point's share of where ``count`` tile rows' results go.

    ``y`` points to the first of the ``channels`` channels of the first image.
    """
    y, rows, columns = p.c.y, p.rows, p.columns
    width = min(columns.axis.results, p.tw * columns.m * columns.dilation)
    runs = _runs(y, p, p.nr, width)
    if runs is None:
        return None
    line = p.isa.processor.line_bytes // ITEM_BYTES[y.dtype]
    each = runs.at_a_time(line)
    with module.function(name, y=y.dtype, first=None, count=None, channels=None, share=None) as (
        k, (target, first, count, channels, share), function,
    ):  # fmt: skip
        pieces = (((k.integer(runs.count) if p.y_is_channels_last else channels) + (each - 1)) // each).max(1)
        for item in _share(k, count * rows.m * pieces, share, p.points):
            piece, rest = item % pieces, item // pieces
            i, tile_row = rest % rows.m, rest // rows.m
            image, slice_, row, part = split_index(first + tile_row, p.tile_row_extents)
            top = (row // rows.dilation) * (rows.m * rows.dilation) + row % rows.dilation + i * rows.dilation
            left = part * (p.tw * columns.m * columns.dilation)
            at = target + (image * y.batch + slice_ * y.space[p.untiled] + piece * (each * runs.stride))
            at = at + (top * y.space[p.tiled[0]] + left * y.space[p.tiled[1]])
            with k.when(top < rows.axis.results):
                _prefetch(at, runs, each, line, write=True)
    return function


def trace_prefetch_filter(module: Module, name: str, p: WinogradPlan) -> Function:
    """Trace ``name(w, result, channel, step)``: a piece of the filter that is packed next.

    The channels that are packed at a time, from ``channel`` on, of a panel from ``result`` on are cut into
    ``p.packed_channels`` pieces, of which this is number ``step``: a channel or some results, whichever are further
    apart.
    """
    c, w = p.in_memory_order, p.c.w
    by_channel = abs(w.channels) > abs(w.results)
    each = 1 if by_channel else ceil_div(p.nr, p.packed_channels)
    taps = [
        (axis.taps.count, axis.taps.increment * stride) for axis, stride in zip(c.axes, w.space, strict=True)
    ]
    first = sum(axis.taps.start * stride for axis, stride in zip(c.axes, w.space, strict=True))
    inner = (p.nr, w.results) if by_channel else (p.packed_channels, w.channels)
    run, outer = _contiguous([inner, *taps])
    line = p.isa.processor.line_bytes // ITEM_BYTES[w.dtype]
    with module.function(name, w=w.dtype, result=None, channel=None, step=None) as (
        k, (source, result, channel, step), function,
    ):  # fmt: skip
        at = source + (first + channel * w.channels + result * w.results)
        at = at + step * (w.channels if by_channel else each * w.results)
        for i in k.range(each):
            _prefetch_nest(k, at + i * w.results, outer, run, line)
    return function


@dataclass(frozen=True)
class _Runs:
    """``count`` runs of ``length`` contiguous elements, ``stride`` elements apart."""

    count: int
    stride: int
    length: int

    def at_a_time(self, line: int) -> int:
        """Runs of `_LINES` cache lines of ``line`` elements."""
        return max(1, _LINES // ceil_div(self.length, line))


def _runs(view: View, p: WinogradPlan, channels: int, columns: int) -> _Runs | None:
    """A row of so many channels and columns."""
    column_stride, channel_stride = view.space[p.tiled[1]], view.channels
    if channel_stride == 1:
        return _Runs(columns, column_stride, channels)
    if column_stride == 1:
        return _Runs(channels, channel_stride, columns)
    return None


def _share(k: Builder, items: Value, share: Value, shares: int) -> Iterator[Value]:
    yield from k.range(items * share // shares, items * (share + 1) // shares)


def _split(index: Value, extents: Sequence[int]) -> list[Value]:
    """A flat index as one index for each extent, the last fastest, before which stands what is left."""
    parts = []
    for extent in reversed(extents):
        parts.append(index % extent)
        index = index // extent
    return [index, *reversed(parts)]


def _prefetch(at: Pointer, runs: _Runs, count: int, line: int, write: bool) -> None:
    """``count`` of the runs, of which ``at`` points to the first one, in cache lines of ``line`` elements."""
    for i in range(count):
        for start in range(0, runs.length + line - 1, line):
            at.prefetch(i * runs.stride + min(start, runs.length - 1), write=write, nearest=False)


def _contiguous(extents: Sequence[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """The length of the run of contiguous elements that axes (extent, stride) form, and the other axes."""
    run = 1
    outer: list[tuple[int, int]] = []
    for extent, stride in sorted(extents, key=lambda axis: abs(axis[1])):
        if abs(stride) == run and not outer:
            run *= extent
        elif extent > 1:
            outer.append((extent, stride))
    return run, outer


def _prefetch_nest(k: Builder, at: Pointer, outer: Sequence[tuple[int, int]], run: int, line: int) -> None:
    if outer:
        extent, stride = outer[-1]
        for i in k.range(extent):
            _prefetch_nest(k, at + i * stride, outer[:-1], run, line)
        return
    for start in k.range(0, run + line - 1, line):
        at.prefetch(start, nearest=False)
