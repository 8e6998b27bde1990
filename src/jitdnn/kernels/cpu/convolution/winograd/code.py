"""The tasks of a WinogradPlan correlation, in either order; what they do with a block is traced once for both.

tiles stay   : "filter" transforms all panels; "tiles" does a block: its data, and panel by panel products and results
filter stays : "data" transforms all tiles; "panels" does a panel: chunk by chunk filter and products, then results
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.winograd.functions import Functions, Shared
from jitdnn.kernels.cpu.convolution.winograd.plan import MOST_TERMS, TileAxis, WinogradPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, split_index, view_offset
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

_CHUNK = 64  # channels of a panel that one task transforms


def phases(p: WinogradPlan, prefix: str) -> list[tuple[str, int]]:
    """Names and tasks of the phases that ``trace_winograd`` makes."""
    groups = p.c.group_count
    if p.is_filter_first:
        pieces = ceil_div(p.c.depth, _CHUNK)
        return [
            (f"{prefix}filter", groups * p.panels.count * pieces),
            (f"{prefix}tiles", groups * p.blocks),
        ]
    return [(f"{prefix}data", groups * data_tasks(p)), (f"{prefix}panels", groups * p.panels.count)]


def data_tasks(p: WinogradPlan) -> int:
    """Into how many tasks the transform of a group's data is cut, where that is a phase of its own."""
    return ceil_div(p.strips, ceil_div(p.strips, WANTED_TASKS))


@dataclass(frozen=True)
class Memory:
    """Where in the workspace the parts of a convolution lie, in elements.

    The first extra of the kernel says where the scratch of the threads begins: behind ``staged`` of each thread.
    """

    filters: int  # what the phases share: the transformed filter or the transformed data
    staged: int  # where the threads lay out pieces of the filter
    staged_elements: int  # of each thread


def trace_winograd(
    module: Module, prefix: str, p: WinogradPlan, pointers: int, epilogue: Epilogue | None, memory: Memory,
    shared: Shared,
) -> None:  # fmt: skip
    """Trace both phases. The pointers are to x, w and y, then to the operands of the epilogue.

    ``shared`` are the functions of the correlations of the module so far.
    """
    code = _Code(module, prefix, p, pointers, memory, Functions(module, prefix, p, epilogue, shared))
    if p.is_filter_first:
        code.trace_filter_task()
        code.trace_tiles_task()
    else:
        code.trace_data_task()
        code.trace_panels_task()


@dataclass(frozen=True)
class _Scratch:
    """What a thread has for itself: copies, sums, and V of a block or U of a chunk."""

    copied: Pointer
    sums: Pointer
    inner: Pointer


def _phases(k: Builder, axis: TileAxis) -> Iterator[tuple[Value, bool]]:
    """The phases of an axis, each with whether it lacks the last place."""
    for start, stop, is_short in axis.phase_kinds:
        for phase in k.range(start, stop):
            yield phase, is_short


class _Code:
    """The tasks of one correlation."""

    def __init__(
        self,
        module: Module,
        prefix: str,
        p: WinogradPlan,
        pointers: int,
        memory: Memory,
        functions: Functions,
    ) -> None:
        self.module, self.prefix, self.p, self.pointers, self.memory = module, prefix, p, pointers, memory
        self.f = functions

    # ---- memory

    def _shared(self, arguments: Arguments) -> Pointer:
        """The transformed filter, which a caller may keep, or the transformed data."""
        dtype = self.p.c.dtype
        start = arguments.kept(dtype) if self.p.is_filter_first else arguments.workspace(dtype)
        shared: Pointer = start + self.memory.filters
        return shared

    def _staged(self, arguments: Arguments, thread: Value) -> Pointer:
        start: Pointer = arguments.kept(self.p.c.dtype)
        return start + (thread * self.memory.staged_elements + self.memory.staged)

    def _scratch(self, arguments: Arguments, thread: Value) -> _Scratch:
        p = self.p
        copied = arguments.workspace(p.c.dtype) + (thread * p.own_elements + arguments.extra(0))
        sums = copied + p.copied_elements
        return _Scratch(copied, sums, sums + p.sum_elements)

    # ---- tasks

    def trace_filter_task(self) -> None:
        """All of a panel's channels, some at a time, to U."""
        p = self.p
        pieces = ceil_div(p.c.depth, _CHUNK)
        with self.module.task(f"{self.prefix}filter") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, panel, piece = split_index(task, (p.c.group_count, p.panels.count, pieces))
            first = piece * _CHUNK
            to = self._shared(arguments) + (group * p.panels.count + panel) * p.panel_elements
            count = (k.integer(p.c.depth) - first).min(_CHUNK)
            to = to + first * p.panel_lanes
            self._transform_filter(k, arguments, thread, group, panel, first, count, to)

    def trace_tiles_task(self) -> None:
        """A block of strips: their data to V, and for some panels at a time M and the results."""
        p = self.p
        with self.module.task(f"{self.prefix}tiles") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, block = split_index(task, (p.c.group_count, p.blocks))
            own = self._scratch(arguments, thread)
            first = block * p.block
            count = (k.integer(p.strips) - first).min(p.block)
            shared = self._shared(arguments) + group * (p.panels.count * p.panel_elements)
            for channel in k.range(0, p.c.depth, p.portion or p.c.depth):
                channels = (k.integer(p.c.depth) - channel).min(p.portion or p.c.depth)
                source = group, channel, channels
                self._transform_data(k, arguments, source, first, first, count, own.copied, own.inner)
                for panel in k.range(p.panels.count):
                    sums = own.sums + panel * p.panel_sums if p.portion else own.sums
                    for place in k.range(p.places):
                        self._ask(k, arguments, source, first, count, panel, place)
                        u = shared + (panel * p.panel_elements + place * p.filter_pitch)
                        data = own.inner + place * p.data_pitch
                        self._multiply_all(
                            k, place, data, u, sums + place * p.sum_pitch, count, channel, channels
                        )
                    if not p.portion:
                        self._write_results(k, arguments, group, panel, first, count, sums, own.copied)
            if p.portion:
                for panel in k.range(p.panels.count):
                    sums = own.sums + panel * p.panel_sums
                    self._write_results(k, arguments, group, panel, first, count, sums, own.copied)

    def trace_data_task(self) -> None:
        """Some strips to V."""
        p = self.p
        tasks = data_tasks(p)
        each = ceil_div(p.strips, tasks)
        with self.module.task(f"{self.prefix}data") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, share = split_index(task, (p.c.group_count, tasks))
            copied = self._scratch(arguments, thread).copied
            first = share * each
            count = (k.integer(p.strips) - first).min(each)
            to = self._shared(arguments) + group * p.data_elements
            source = group, k.integer(0), k.integer(p.c.depth)
            self._transform_data(k, arguments, source, k.integer(0), first, count, copied, to)

    def trace_panels_task(self) -> None:
        """A panel: chunk by chunk of its channels U and its products with all tiles, then the results."""
        p = self.p
        with self.module.task(f"{self.prefix}panels") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, panel = split_index(task, (p.c.group_count, p.panels.count))
            own = self._scratch(arguments, thread)
            shared = self._shared(arguments) + group * p.data_elements
            strips = k.integer(p.strips)
            for first in k.range(0, p.c.depth, p.chunk):
                count = (k.integer(p.c.depth) - first).min(p.chunk)
                self._transform_filter(k, arguments, thread, group, panel, first, count, own.inner)
                for place in k.range(p.places):
                    if p.asks_early:
                        self._ask_filter(k, arguments, group, panel, first + p.chunk, place)
                    data, u = shared + (place * p.data_pitch + first), own.inner + place * p.filter_pitch
                    sums = own.sums + place * p.sum_pitch
                    sources = (k.integer(p.sources[0]), *self._phases_of(k, place))
                    self._multiply(k, data, u, sums, strips, sources, count, first)
            self._write_results(k, arguments, group, panel, k.integer(0), strips, own.sums, own.copied)

    # ---- parts of tasks

    def _ask(
        self, k: Builder, arguments: Arguments, source: tuple[Value, Value, Value], first: Value, count: Value,
        panel: Value, place: Value,
    ) -> None:  # fmt: skip
        """While a place is multiplied: a share of the data that are transformed next, the block's next channels or the
        next block's, and of where this panel's results go."""
        p, c = self.p, self.p.c
        group, channel, channels = source
        is_last = channel + channels >= c.depth
        if self.f.ask_data is not None:
            x = arguments.pointer(0, c.x.dtype) + (group_offset(group, c.groups, c.x.groups) + c.x.offset)
            x = x + k.select(is_last, 0, channel + channels) * c.x.channels
            following = first + k.select(is_last, count, 0)
            strips = (k.integer(p.strips) - following).min(p.block)
            share = panel * p.places + place
            k.call(self.f.ask_data, x, following, strips, share)
        if self.f.ask_results is not None:
            result = panel * p.panel_lanes
            y = arguments.pointer(2, c.y.dtype) + view_offset(c, c.y, group, result, (0, 0, 0, 0))
            results = (k.integer(c.width) - result).min(p.panel_lanes)
            with k.when(is_last):
                k.call(self.f.ask_results, y, first, count, results, place)

    def _ask_filter(
        self, k: Builder, arguments: Arguments, group: Value, panel: Value, first: Value, place: Value
    ) -> None:
        """While a place is multiplied: a share of the filter's channels from ``first`` on, or of the next panel's."""
        p, c = self.p, self.p.c
        w = arguments.pointer(1, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        is_there = first < c.depth
        result = k.select(is_there, panel, panel + 1) * p.panel_lanes
        start = k.select(is_there, first, 0)
        for step in k.range(place * p.chunk // p.places, (place + 1) * p.chunk // p.places):
            channel = start + step // p.staged * p.staged
            k.call(self.f.ask_filter, w, result, channel, step % p.staged)

    def _transform_filter(
        self, k: Builder, arguments: Arguments, thread: Value, group: Value, panel: Value, first: Value,
        count: Value, to: Pointer,
    ) -> None:  # fmt: skip
        """Channels ``first`` and on of a panel to U, the first of them to ``to``."""
        p, c = self.p, self.p.c
        staged = self._staged(arguments, thread)
        w = arguments.pointer(1, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        slices, a, b = p.sources
        for start in k.range(0, count, p.staged):
            here = (count - start).min(p.staged)
            channel = first + start
            whole = staged + channel * -p.panels.channel_stride  # where the panel's first channel would lie
            k.call(self.f.stage, w, whole, panel * p.panel_lanes, channel, here)
            for i in k.range(here):
                if not p.asks_early:
                    k.call(self.f.ask_filter, w, panel * p.panel_lanes, channel + p.staged, i)
                source = staged + (i * p.panels.channel_stride + p.first_tap)
                target = to + (start + i) * p.panel_lanes
                for tap in k.range(slices):
                    for v in k.range(0, p.panel_lanes, p.lanes):
                        taps = source + (tap * p.tap_strides[p.third] + v)
                        for row, row_short in _phases(k, p.rows):
                            for column, column_short in _phases(k, p.columns):
                                number = (tap * a + row) * b + column
                                at = taps + p.rows.first_tap(row) * p.tap_strides[p.tiled[0]]
                                at = at + p.columns.first_tap(column) * p.tap_strides[p.tiled[1]]
                                u = target + (number * (p.chunk * p.panel_lanes) + v)
                                k.call(self.f.filters[row_short, column_short], at, u)

    def _transform_data(
        self, k: Builder, arguments: Arguments, source: tuple[Value, Value, Value], base: Value, first: Value,
        count: Value, strip: Pointer, to: Pointer,
    ) -> None:  # fmt: skip
        """Strips ``first`` and on to V, whose first row is that of strip ``base``; ``source`` is the group, its first
        channel and how many."""
        p, c = self.p, self.p.c
        group, channel, channels = source
        rows, columns = p.rows, p.columns
        slices, _, phases_b = p.sources
        x = arguments.pointer(0, c.x.dtype) + (group_offset(group, c.groups, c.x.groups) + c.x.offset)
        x = x + channel * c.x.channels
        for number in k.range(first, first + count):
            image, slice_, row, run = split_index(number, p.strip_axes)
            at = to + (number - base) * (p.strip_tiles * p.row_pitch)
            turn = run * p.run
            turns = (k.integer(columns.turns) - turn).min(p.run)
            column = turn * (columns.outputs * columns.gap) + columns.axis.taps.lowest
            top = (row // rows.spread) * (rows.outputs * rows.gap) + row % rows.spread + rows.axis.taps.lowest
            here = x + image * c.x.batch
            for tap in k.range(slices):
                depth = slice_ * p.slices.step + p.slices.taps.offset + tap * p.slices.taps.shift
                if p.folds:
                    self._folded_tiles(k, here, depth, top, column, turns, strip, at + tap * p.slice_pitch)
                    continue
                for phase, is_short in _phases(k, rows):
                    place = at + (tap * p.slice_pitch + phase * (phases_b * p.channel_pitch))
                    line = top + rows.first_position(phase)
                    tiles = self._tiles_directly if p.reads_directly else self._tiles_of_strip
                    tiles(k, here, channels, depth, line, column, turns, strip, place, is_short)

    def _tiles_of_strip(
        self, k: Builder, x: Pointer, channels: Value, depth: Value, row: Value, column: Value, turns: Value,
        strip: Pointer, to: Pointer, row_short: bool,
    ) -> None:  # fmt: skip
        """A whole strip laid out for each vector of channels, then its tiles."""
        p, lanes = self.p, self.p.lanes
        columns = p.columns
        last = p.read_positions - (p.run - 1) * (columns.gap * columns.outputs)
        positions = (turns - 1) * (columns.gap * columns.outputs) + last
        for channel, fill in self._channel_vectors(k, channels):
            k.call(fill, x + channel * p.c.x.channels, strip, depth, row, column, positions)
            for phase, column_short in _phases(k, columns):
                at = strip + columns.first_position(phase) * lanes
                target = to + (phase * p.channel_pitch + channel)
                self._transform_tiles(k, self.f.data[row_short, column_short], at, turns, target)

    def _folded_tiles(
        self, k: Builder, x: Pointer, depth: Value, row: Value, column: Value, turns: Value, strip: Pointer,
        to: Pointer,
    ) -> None:  # fmt: skip
        """A strip laid out for each vector of phases and channels, then its tiles."""
        p, columns = self.p, self.p.columns
        step = columns.outputs * columns.spread
        positions = turns * step + (p.laid_positions - p.run * step)
        for first, fill in self.f.fills:
            k.call(fill, x, strip, depth, row, column, positions)
            self._transform_tiles(k, self.f.data[False, False], strip, turns, to + first)

    def _transform_tiles(
        self, k: Builder, function: Function, strip: Pointer, turns: Value, to: Pointer
    ) -> None:
        """The tiles of a strip as it is laid out."""
        p, columns = self.p, self.p.columns
        for turn in k.range(turns):
            for stride_phase in k.range(columns.spread):
                place = turn * (p.laid_gap * columns.outputs) + stride_phase
                tile = turn * columns.spread + stride_phase
                k.call(function, strip + place * p.lanes, to + tile * p.row_pitch)

    def _tiles_directly(
        self, k: Builder, x: Pointer, channels: Value, depth: Value, row: Value, column: Value, turns: Value,
        strip: Pointer, to: Pointer, row_short: bool,
    ) -> None:  # fmt: skip
        """Tile by tile: one that lies inside is transformed from where it is, others are laid out first."""
        p, c = self.p, self.p.c
        rows, columns = p.rows, p.columns
        reach = [(axis.places - 1) * axis.gap for axis in (rows, columns)]
        whole = channels // p.lanes * p.lanes
        rows_inside = (depth >= 0) & (depth < p.slices.positions)
        rows_inside = rows_inside & (row >= 0) & (row + reach[0] < rows.axis.positions)
        for phase, column_short in _phases(k, columns):
            for turn in k.range(turns):
                for stride_phase in k.range(columns.spread):
                    at = column + turn * (columns.gap * columns.outputs) + stride_phase
                    at = at + columns.first_position(phase)
                    tile = turn * columns.spread + stride_phase
                    target = to + (tile * p.row_pitch + phase * p.channel_pitch)
                    inside = rows_inside & (at >= 0) & (at + reach[1] < columns.axis.positions)
                    direct = k.select(inside, whole, 0)
                    place = (
                        depth * c.x.space[p.third] + row * c.x.space[p.tiled[0]] + at * c.x.space[p.tiled[1]]
                    )
                    for channel in k.range(0, direct, p.lanes):
                        function = self.f.direct[row_short, column_short]
                        k.call(function, x + (place + channel), target + channel)
                    for channel, fill in self._channel_vectors(k, channels, direct):
                        k.call(fill, x + channel, strip, depth, row, at, reach[1] + 1)
                        k.call(self.f.data[row_short, column_short], strip, target + channel)

    def _channel_vectors(
        self, k: Builder, channels: Value, start: int | Value = 0
    ) -> Iterator[tuple[Value, Function]]:
        """First channel of each vector from ``start`` on, and the function that lays out so many channels."""
        p = self.p
        whole = channels // p.lanes * p.lanes
        for count, function in self.f.fills:
            if count == p.lanes:
                for channel in k.range(start, whole, p.lanes):
                    yield channel, function
            else:
                for channel in k.range(whole, channels, p.lanes):
                    yield channel, function

    def _multiply_all(
        self, k: Builder, place: Value, data: Pointer, u: Pointer, sums: Pointer, strips: Value, first: Value,
        channels: Value,
    ) -> None:  # fmt: skip
        """The products of channels ``first`` and on at a place for a panel, in blocks of terms."""
        p, (slices, _, phases_b) = self.p, self.p.sources
        most = p.portion or p.c.depth
        rows, columns = self._phases_of(k, place)
        u = u + first * p.panel_lanes
        one, step = k.integer(1), p.chunk * p.panel_lanes
        if p.folds:  # the phases of the columns are neighbours, as channels are
            columns, channels = one, columns * p.c.depth
        if p.source_count * most <= MOST_TERMS:
            self._multiply(k, data, u, sums, strips, (k.integer(slices), rows, columns), channels, first)
            return
        for tap in k.range(slices):
            if math.prod(p.sources[1:]) * most <= MOST_TERMS:
                a = data + tap * p.slice_pitch
                b = u + tap * (math.prod(p.sources[1:]) * step)
                self._multiply(k, a, b, sums, strips, (one, rows, columns), channels, first + tap)
                continue
            for row in k.range(0, rows):
                for column in k.range(0, columns):
                    source = (tap * p.sources[1] + row) * phases_b + column
                    for channel in k.range(0, channels, p.terms):
                        a = data + (source * p.channel_pitch + channel)
                        b = u + (source * step + channel * p.panel_lanes)
                        count = (channels - channel).min(p.terms)
                        adds = first + source + channel
                        self._multiply(k, a, b, sums, strips, (one, one, one), count, adds)

    def _phases_of(self, k: Builder, place: Value) -> tuple[Value, Value]:
        """How many phases of rows and of columns have a product at a place: not the short ones at the last."""
        p = self.p
        row, column = place // p.columns.places, place % p.columns.places
        return (
            k.select(row == p.rows.places - 1, k.integer(p.rows.full_phases), p.rows.phases),
            k.select(column == p.columns.places - 1, k.integer(p.columns.full_phases), p.columns.phases),
        )

    def _multiply(
        self, k: Builder, data: Pointer, u: Pointer, sums: Pointer, strips: Value,
        sources: tuple[Value, Value, Value], channels: int | Value, adds: int | Value,
    ) -> None:  # fmt: skip
        """All rows of some strips, group by group; those of strips that are not there are left out."""
        p = self.p
        tiles = strips * p.strip_tiles
        start = 0
        for (rows, count), function in zip(p.row_groups, self.f.products, strict=True):
            stop = start + count * rows
            for row in k.range(start, tiles.min(stop), rows):
                a, m = data + row * p.row_pitch, sums + row * p.panel_lanes
                k.call(function, a, u, m, *sources, channels, adds)
            start = stop

    def _write_results(
        self, k: Builder, arguments: Arguments, group: Value, panel: Value, first: Value, count: Value,
        sums: Pointer, strip: Pointer,
    ) -> None:  # fmt: skip
        """The results of some strips and of a panel's channels, from M to y."""
        p, c = self.p, self.p.c
        rows, columns = p.rows, p.columns
        tensors = [(arguments.pointer(2, c.y.dtype), c.y)]
        tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
        factors = scale(k, arguments.args, self.pointers)
        channel = panel * p.panel_lanes
        vectors = (k.integer(c.width) - channel).min(p.panel_lanes)
        for number in k.range(first, first + count):
            image, slice_, row, run = split_index(number, p.strip_axes)
            turn = run * p.run
            turns = (k.integer(columns.turns) - turn).min(p.run)
            top = (row // rows.spread) * (rows.outputs * rows.spread) + row % rows.spread
            left = turn * (columns.outputs * columns.spread)
            here = [k.integer(0)] * 5
            here[0], here[1 + p.third] = image, slice_
            here[1 + p.tiled[0]], here[1 + p.tiled[1]] = top, left
            height = ((k.integer(rows.axis.results + rows.spread - 1) - top) // rows.spread).min(rows.outputs)
            width = (k.integer(columns.axis.results) - left).min(p.run * columns.outputs * columns.spread)
            tiles = sums + (number - first) * (p.strip_tiles * p.panel_lanes)
            for v in k.range(0, vectors, p.lanes):
                for step in k.range(turns):
                    for stride_phase in k.range(columns.spread):
                        tile = step * columns.spread + stride_phase
                        place = step * (columns.outputs * columns.spread) + stride_phase
                        k.call(self.f.result, tiles + (tile * p.panel_lanes + v), strip + place * p.lanes)
                places = [t + view_offset(c, view, group, channel + v, here[:4]) for t, view in tensors]
                pitch = p.write_pitch * p.lanes
                k.call(self.f.drain, strip, factors, *places, vectors - v, height, width, pitch)
