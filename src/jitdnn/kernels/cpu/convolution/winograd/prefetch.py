"""Memory asked for ahead of its use: Winograd's transforms touch many short runs that no prefetcher follows.

While a block's products are computed, the data of the next block and the lines of this one's results come into the
second cache, a share of them with the products of each place; so do the next channels of a filter while it is
transformed. An address outside of a tensor is harmless: nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

_LINES = 16  # asked for at a time


def trace_ask_data(module: Module, name: str, p: WinogradPlan) -> Function | None:
    """Trace ``name(x, first, strips, share)``: the share of a panel and place of what strips read.

    The strips are those from ``first`` on; ``x`` points to the first channel to read of the group's first image. Rows
    that the strip above reads too are left out. None where neither channels nor columns are neighbours in memory.
    """
    x, rows, columns = p.c.x, p.rows, p.columns
    run = _run(x, p, p.portion or p.c.depth, p.read_positions)
    if run is None:
        return None
    (items, stride), length = run
    each = max(1, _LINES // ceil_div(length * ITEM_BYTES[x.dtype], 64))
    chunks = ceil_div(items, each)
    height, spacing = rows.outputs * rows.tap_step, rows.gap // rows.tap_step
    seen = (
        rows.last_position + (rows.taps - 1) * rows.gap if rows.axis.step == 1 else (rows.taps - 1) * rows.gap
    )
    with module.function(name, x=x.dtype, first=None, strips=None, share=None) as (
        k, (source, first, strips, share), function,
    ):  # fmt: skip
        for item in _share(k, strips * (height * chunks), share, p.panels.count * p.places):
            strip, i, chunk = _split(item, (height, chunks))
            image, slice_, row, turn = split_index(first + strip, p.strip_axes)
            top = (row // rows.spread) * (rows.outputs * rows.gap) + row % rows.spread + rows.axis.taps.lowest
            top = top + seen + i * spacing
            left = turn * (p.run * columns.outputs * columns.gap) + columns.axis.taps.lowest
            depth = slice_ * p.slices.step + p.slices.taps.lowest + p.slices.taps.span
            at = source + (image * x.batch + depth * x.space[p.third] + chunk * (each * stride))
            at = at + (top * x.space[p.tiled[0]] + left * x.space[p.tiled[1]])
            _ask(k, at, each, stride, length, ITEM_BYTES[x.dtype], write=False)
    return function


def trace_ask_results(module: Module, name: str, p: WinogradPlan) -> Function | None:
    """Trace ``name(y, first, strips, channels, share)``: a place's share of where strips' results go.

    ``y`` points to the first of the ``channels`` channels of the first image.
    """
    y, rows, columns = p.c.y, p.rows, p.columns
    width = min(columns.axis.results, p.run * columns.outputs * columns.spread)
    run = _run(y, p, p.panel_lanes, width)
    if run is None:
        return None
    (items, stride), length = run
    each = max(1, _LINES // ceil_div(length * ITEM_BYTES[y.dtype], 64))
    with module.function(name, y=y.dtype, first=None, strips=None, channels=None, share=None) as (
        k, (target, first, strips, channels, share), function,
    ):  # fmt: skip
        chunks = (((k.integer(items) if p.writes_channels else channels) + (each - 1)) // each).max(1)
        for item in _share(k, strips * rows.outputs * chunks, share, p.places):
            chunk, rest = item % chunks, item // chunks
            i, strip = rest % rows.outputs, rest // rows.outputs
            image, slice_, row, turn = split_index(first + strip, p.strip_axes)
            top = (row // rows.spread) * (rows.outputs * rows.spread) + row % rows.spread + i * rows.spread
            left = turn * (p.run * columns.outputs * columns.spread)
            at = target + (image * y.batch + slice_ * y.space[p.third] + chunk * (each * stride))
            at = at + (top * y.space[p.tiled[0]] + left * y.space[p.tiled[1]])
            with k.when(top < rows.axis.results):
                _ask(k, at, each, stride, length, ITEM_BYTES[y.dtype], write=True)
    return function


def _run(view: View, p: WinogradPlan, channels: int, columns: int) -> tuple[tuple[int, int], int] | None:
    """((how many runs, elements between them), elements of each) of a row of so many channels and columns."""
    along, across = view.space[p.tiled[1]], view.channels
    if across == 1:
        return (columns, along), channels
    if along == 1:
        return (channels, across), columns
    return None


def _share(k: Builder, items: Value, share: Value, shares: int) -> Iterator[Value]:
    yield from k.range(items * share // shares, items * (share + 1) // shares)


def _split(index: Value, extents: Sequence[int]) -> list[Value]:
    """A flat index as one for what is counted last to first, and one for each extent."""
    parts = []
    for extent in reversed(extents):
        parts.append(index % extent)
        index = index // extent
    return [index, *reversed(parts)]


def _ask(k: Builder, at: Pointer, count: int, stride: int, length: int, item: int, write: bool) -> None:
    for i in range(count):
        for start in range(0, length + 64 // item - 1, 64 // item):
            at.prefetch(i * stride + min(start, length - 1), write=write, nearest=False)


def trace_ask_filter(module: Module, name: str, p: WinogradPlan) -> Function:
    """Trace ``name(w, result, channel, step)``: a part of the filter that is laid out next.

    The part is the one numbered ``step`` of ``p.staged`` into which the channels that are laid out at a time, from
    ``channel`` on, are cut for a panel from ``result`` on: a channel or some results, whichever are further apart.
    """
    c, w = p.as_it_lies, p.c.w
    by_channel = abs(w.channels) > abs(w.results)
    each = 1 if by_channel else ceil_div(p.panel_lanes, p.staged)
    taps = [
        (axis.taps.count, axis.taps.increment * stride) for axis, stride in zip(c.axes, w.space, strict=True)
    ]
    first = sum(axis.taps.start * stride for axis, stride in zip(c.axes, w.space, strict=True))
    inner = (p.panel_lanes, w.results) if by_channel else (p.staged, w.channels)
    run, outer = _contiguous([inner, *taps])
    with module.function(name, w=w.dtype, result=None, channel=None, step=None) as (
        k, (source, result, channel, step), function,
    ):  # fmt: skip
        at = source + (first + channel * w.channels + result * w.results)
        at = at + step * (w.channels if by_channel else each * w.results)
        for i in k.range(each):
            _ask_nest(k, at + i * w.results, outer, run, ITEM_BYTES[w.dtype])
    return function


def _contiguous(extents: Sequence[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """The length of the run of neighbours that axes (extent, stride) form, and the axes outside of it."""
    run = 1
    outer: list[tuple[int, int]] = []
    for extent, stride in sorted(extents, key=lambda axis: abs(axis[1])):
        if abs(stride) == run and not outer:
            run *= extent
        elif extent > 1:
            outer.append((extent, stride))
    return run, outer


def _ask_nest(k: Builder, at: Pointer, outer: Sequence[tuple[int, int]], run: int, item: int) -> None:
    if outer:
        extent, stride = outer[-1]
        for i in k.range(extent):
            _ask_nest(k, at + i * stride, outer[:-1], run, item)
        return
    line = 64 // item
    for start in k.range(0, run + line - 1, line):
        at.prefetch(start, nearest=False)
