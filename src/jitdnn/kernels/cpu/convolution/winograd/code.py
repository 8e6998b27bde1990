"""The tasks of a correlation by minimal filtering, in either order of plan.py.

data-resident   : "filter" transforms all panels; "tiles" does a block: its data, and by panels products and results
filter-resident : "data" transforms all tiles; "panels" does a panel: filter and products Kc by Kc, then the results
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.winograd.axes import TileAxis, is_inside
from jitdnn.kernels.cpu.convolution.winograd.functions import Functions, Traced
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan, even_share
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, split_index, view_offset
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

_TASK_CHANNELS = 64  # channels of a panel that one task transforms


def phases(p: WinogradPlan, prefix: str) -> list[tuple[str, int]]:
    """Names and tasks of the launch phases that ``trace`` makes."""
    groups = p.c.group_count
    if p.is_data_resident:
        pieces = ceil_div(p.c.depth, _TASK_CHANNELS)
        return [
            (f"{prefix}filter", groups * p.panels.count * pieces),
            (f"{prefix}tiles", groups * p.blocks),
        ]
    return [(f"{prefix}data", groups * data_tasks(p)), (f"{prefix}panels", groups * p.panels.count)]


def data_tasks(p: WinogradPlan) -> int:
    """Of the phase that transforms the data of a group, in the filter-resident order."""
    return even_share(p.tile_rows, WANTED_TASKS)


@dataclass(frozen=True)
class Memory:
    """Where in the workspace a correlation has what its phases share, in elements.

    The first extra of the kernel says where the scratch of the threads begins: behind the packed filters.
    """

    shared: int  # U or V
    packed: int  # the threads' packed filters
    packed_elements: int  # of each thread


def trace(
    module: Module, prefix: str, p: WinogradPlan, pointers: int, epilogue: Epilogue | None, memory: Memory,
    traced: Traced,
) -> None:  # fmt: skip
    """Trace both phases. The pointers are to x, w and y, then to the operands of the epilogue.

    ``traced`` are the functions of the module so far.
    """
    code = _Code(module, prefix, p, pointers, memory, Functions(module, prefix, p, epilogue, traced))
    if p.is_data_resident:
        code.trace_filter_task()
        code.trace_tiles_task()
    else:
        code.trace_data_task()
        code.trace_panels_task()


@dataclass(frozen=True)
class _Scratch:
    """What a thread has for itself: a packed tile row, M, and V of a block or U of Kc channels."""

    tile_row: Pointer
    m: Pointer
    resident: Pointer


@dataclass(frozen=True)
class _Channels:
    """Channels of a group: ``count`` from number ``first`` on."""

    group: Value
    first: Value
    count: Value


@dataclass(frozen=True)
class _TileRows:
    """``count`` tile rows from number ``first`` on."""

    first: Value
    count: Value


def _subfilters(k: Builder, axis: TileAxis) -> Iterator[tuple[Value, bool]]:
    """The subfilters of an axis, each with whether it is short."""
    for start, stop, is_short in axis.subfilter_kinds:
        for subfilter in k.range(start, stop):
            yield subfilter, is_short


class _Code:
    """The tasks of one correlation."""

    def __init__(
        self, module: Module, prefix: str, p: WinogradPlan, pointers: int, memory: Memory, functions: Functions
    ) -> None:  # fmt: skip
        self.module, self.prefix, self.p, self.pointers, self.memory = module, prefix, p, pointers, memory
        self.f = functions

    # ---- memory

    def _shared(self, arguments: Arguments) -> Pointer:
        """U, which a caller may keep, or V."""
        dtype = self.p.c.dtype
        start = arguments.kept(dtype) if self.p.is_data_resident else arguments.workspace(dtype)
        shared: Pointer = start + self.memory.shared
        return shared

    def _packed_filter(self, arguments: Arguments, thread: Value) -> Pointer:
        start: Pointer = arguments.kept(self.p.c.dtype)
        return start + (thread * self.memory.packed_elements + self.memory.packed)

    def _scratch(self, arguments: Arguments, thread: Value) -> _Scratch:
        p = self.p
        tile_row = arguments.workspace(p.c.dtype) + (thread * p.thread_elements + arguments.extra(0))
        m = tile_row + p.tile_row_elements
        return _Scratch(tile_row, m, m + p.m_elements)

    # ---- tasks

    def trace_filter_task(self) -> None:
        """Some channels of a panel to U."""
        p = self.p
        pieces = ceil_div(p.c.depth, _TASK_CHANNELS)
        with self.module.task(f"{self.prefix}filter") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, panel, piece = split_index(task, (p.c.group_count, p.panels.count, pieces))
            first = piece * _TASK_CHANNELS
            u = self._shared(arguments) + (group * p.panels.count + panel) * p.u_panel_elements
            count = (k.integer(p.c.depth) - first).min(_TASK_CHANNELS)
            u = u + first * p.nr
            self._transform_filter(k, arguments, thread, panel, _Channels(group, first, count), u)

    def trace_tiles_task(self) -> None:
        """A block of tile rows: its data to V, and panel by panel M and the results."""
        p = self.p
        with self.module.task(f"{self.prefix}tiles") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, block = split_index(task, (p.c.group_count, p.blocks))
            own = self._scratch(arguments, thread)
            first = block * p.mc_rows
            rows = _TileRows(first, (k.integer(p.tile_rows) - first).min(p.mc_rows))
            shared = self._shared(arguments) + group * (p.panels.count * p.u_panel_elements)
            for channel in k.range(0, p.c.depth, p.kc):
                channels = _Channels(group, channel, (k.integer(p.c.depth) - channel).min(p.kc))
                self._transform_data(k, arguments, channels, rows.first, rows, own.tile_row, own.resident)
                for panel in k.range(p.panels.count):
                    m = own.m + panel * p.m_panel_elements if p.accumulates else own.m
                    for point in k.range(p.points):
                        self._prefetch(k, arguments, channels, rows, panel, point)
                        u = shared + (panel * p.u_panel_elements + point * p.u_pitch)
                        v = own.resident + point * p.v_pitch
                        self._multiply_in_chains(k, point, v, u, m + point * p.m_pitch, rows.count, channels)
                    if not p.accumulates:
                        self._write_results(k, arguments, group, panel, rows, m, own.tile_row)
            if p.accumulates:
                for panel in k.range(p.panels.count):
                    m = own.m + panel * p.m_panel_elements
                    self._write_results(k, arguments, group, panel, rows, m, own.tile_row)

    def trace_data_task(self) -> None:
        """Some tile rows to V."""
        p = self.p
        tasks = data_tasks(p)
        each = ceil_div(p.tile_rows, tasks)
        with self.module.task(f"{self.prefix}data") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, share = split_index(task, (p.c.group_count, tasks))
            tile_row = self._scratch(arguments, thread).tile_row
            first = share * each
            rows = _TileRows(first, (k.integer(p.tile_rows) - first).min(each))
            v = self._shared(arguments) + group * p.v_elements
            channels = _Channels(group, k.integer(0), k.integer(p.c.depth))
            self._transform_data(k, arguments, channels, k.integer(0), rows, tile_row, v)

    def trace_panels_task(self) -> None:
        """A panel: Kc by Kc its U and its products with all tiles, then the results."""
        p = self.p
        with self.module.task(f"{self.prefix}panels") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            group, panel = split_index(task, (p.c.group_count, p.panels.count))
            own = self._scratch(arguments, thread)
            shared = self._shared(arguments) + group * p.v_elements
            all_rows = k.integer(p.tile_rows)
            for first in k.range(0, p.c.depth, p.kc):
                count = (k.integer(p.c.depth) - first).min(p.kc)
                channels = _Channels(group, first, count)
                self._transform_filter(k, arguments, thread, panel, channels, own.resident)
                for point in k.range(p.points):
                    if p.prefetches_next_kc:
                        self._prefetch_filter(k, arguments, group, panel, first + p.kc, point)
                    v, u = shared + (point * p.v_pitch + first), own.resident + point * p.u_pitch
                    m = own.m + point * p.m_pitch
                    subfilters = (k.integer(p.subfilters[0]), *self._subfilters_at(k, point))
                    self._multiply(k, v, u, m, all_rows, subfilters, count, first)
            rows = _TileRows(k.integer(0), all_rows)
            self._write_results(k, arguments, group, panel, rows, own.m, own.tile_row)

    # ---- prefetches while a point is multiplied

    def _prefetch(
        self, k: Builder, arguments: Arguments, channels: _Channels, rows: _TileRows, panel: Value, point: Value
    ) -> None:  # fmt: skip
        """A share of the data that are transformed next, the block's next channels or the next block's, and of where
        this panel's results go."""
        p, c = self.p, self.p.c
        is_last = channels.first + channels.count >= c.depth
        if self.f.prefetch_input is not None:
            x = arguments.pointer(0, c.x.dtype) + (
                group_offset(channels.group, c.groups, c.x.groups) + c.x.offset
            )
            x = x + k.select(is_last, 0, channels.first + channels.count) * c.x.channels
            first = rows.first + k.select(is_last, rows.count, 0)
            count = (k.integer(p.tile_rows) - first).min(p.mc_rows)
            share = panel * p.points + point
            k.call(self.f.prefetch_input, x, first, count, share)
        if self.f.prefetch_output is not None:
            result = panel * p.nr
            y = arguments.pointer(2, c.y.dtype) + view_offset(c, c.y, channels.group, result, (0, 0, 0, 0))
            results = (k.integer(c.width) - result).min(p.nr)
            with k.when(is_last):
                k.call(self.f.prefetch_output, y, rows.first, rows.count, results, point)

    def _prefetch_filter(
        self, k: Builder, arguments: Arguments, group: Value, panel: Value, first: Value, point: Value
    ) -> None:
        """A share of the filter's channels from ``first`` on, or of the next panel's."""
        p, c = self.p, self.p.c
        w = arguments.pointer(1, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        is_there = first < c.depth
        result = k.select(is_there, panel, panel + 1) * p.nr
        start = k.select(is_there, first, 0)
        for step in k.range(point * p.kc // p.points, (point + 1) * p.kc // p.points):
            channel = start + step // p.packed_channels * p.packed_channels
            k.call(self.f.prefetch_filter, w, result, channel, step % p.packed_channels)

    # ---- transforms

    def _transform_filter(
        self, k: Builder, arguments: Arguments, thread: Value, panel: Value, channels: _Channels, u: Pointer
    ) -> None:  # fmt: skip
        """Channels of a panel to U, the first of them to ``u``; Kp of them are packed at a time."""
        p, c = self.p, self.p.c
        packed = self._packed_filter(arguments, thread)
        w = arguments.pointer(1, c.w.dtype) + group_offset(channels.group, c.groups, c.w.groups)
        slices, a, b = p.subfilters
        for start in k.range(0, channels.count, p.packed_channels):
            here = (channels.count - start).min(p.packed_channels)
            channel = channels.first + start
            panel_start = (
                packed + channel * -p.panels.channel_stride
            )  # where the panel's first channel would lie
            k.call(self.f.pack_filter, w, panel_start, panel * p.nr, channel, here)
            for i in k.range(here):
                if not p.prefetches_next_kc:
                    k.call(self.f.prefetch_filter, w, panel * p.nr, channel + p.packed_channels, i)
                source = packed + (i * p.panels.channel_stride + p.first_tap)
                target = u + (start + i) * p.nr
                for tap in k.range(slices):
                    for v in k.range(0, p.nr, p.lanes):
                        taps = source + (tap * p.tap_strides[p.untiled] + v)
                        for row, row_short in _subfilters(k, p.rows):
                            for column, column_short in _subfilters(k, p.columns):
                                number = (tap * a + row) * b + column
                                at = taps + p.rows.first_tap(row) * p.tap_strides[p.tiled[0]]
                                at = at + p.columns.first_tap(column) * p.tap_strides[p.tiled[1]]
                                to = target + (number * (p.u_channels * p.nr) + v)
                                k.call(self.f.filter_transforms[row_short, column_short], at, to)

    def _transform_data(
        self, k: Builder, arguments: Arguments, channels: _Channels, base: Value, tile_rows: _TileRows,
        scratch: Pointer, v: Pointer,
    ) -> None:  # fmt: skip
        """Tile rows to V, which begins with tile row ``base``; ``scratch`` is for their packed input."""
        p, c = self.p, self.p.c
        rows, columns = p.rows, p.columns
        slices, _, b = p.subfilters
        x = arguments.pointer(0, c.x.dtype) + (
            group_offset(channels.group, c.groups, c.x.groups) + c.x.offset
        )
        x = x + channels.first * c.x.channels
        for number in k.range(tile_rows.first, tile_rows.first + tile_rows.count):
            image, slice_, row, part = split_index(number, p.tile_row_extents)
            at = v + (number - base) * (p.row_tiles * p.v_tile_pitch)
            tile = part * p.tw
            tw = (k.integer(columns.tiles_per_residue) - tile).min(p.tw)
            left = tile * (columns.m * columns.spacing) + columns.axis.taps.lowest
            top = (
                (row // rows.dilation) * (rows.m * rows.spacing) + row % rows.dilation + rows.axis.taps.lowest
            )
            here = x + image * c.x.batch
            for tap in k.range(slices):
                position = slice_ * p.slices.step + p.slices.taps.offset + tap * p.slices.taps.shift
                if p.has_few_channels:
                    self._few_channels_tiles(
                        k, here, position, top, left, tw, scratch, at + tap * p.v_slice_pitch
                    )
                    continue
                for subfilter, is_short in _subfilters(k, rows):
                    to = at + (tap * p.v_slice_pitch + subfilter * (b * p.v_subfilter_pitch))
                    line = top + rows.first_position(subfilter)
                    tiles = self._unpacked_tiles if p.reads_unpacked else self._packed_tiles
                    tiles(k, here, channels.count, position, line, left, tw, scratch, to, is_short)

    def _packed_tiles(
        self, k: Builder, x: Pointer, channels: Value, slice_: Value, row: Value, column: Value, tw: Value,
        scratch: Pointer, to: Pointer, row_short: bool,
    ) -> None:  # fmt: skip
        """A whole tile row packed for each vector of channels, then its tiles."""
        p, lanes = self.p, self.p.lanes
        columns = p.columns
        last = p.read_columns - (p.tw - 1) * (columns.spacing * columns.m)
        positions = (tw - 1) * (columns.spacing * columns.m) + last
        for channel, pack in self._channel_vectors(k, channels):
            k.call(pack, x + channel * p.c.x.channels, scratch, slice_, row, column, positions)
            for subfilter, column_short in _subfilters(k, columns):
                at = scratch + columns.first_position(subfilter) * lanes
                target = to + (subfilter * p.v_subfilter_pitch + channel)
                self._transform_tiles(k, self.f.data_transforms[row_short, column_short], at, tw, target)

    def _few_channels_tiles(
        self, k: Builder, x: Pointer, slice_: Value, row: Value, column: Value, tw: Value, scratch: Pointer,
        to: Pointer,
    ) -> None:  # fmt: skip
        """A tile row packed for each vector of subfilters and channels, then its tiles."""
        p, columns = self.p, self.p.columns
        step = columns.m * columns.dilation
        positions = tw * step + (p.packed_columns - p.tw * step)
        for first, pack in self.f.pack_input:
            k.call(pack, x, scratch, slice_, row, column, positions)
            self._transform_tiles(k, self.f.data_transforms[False, False], scratch, tw, to + first)

    def _transform_tiles(
        self, k: Builder, function: Function, packed: Pointer, tw: Value, to: Pointer
    ) -> None:
        """The tiles of a packed tile row."""
        p, columns = self.p, self.p.columns
        for tile in k.range(tw):
            for residue in k.range(columns.dilation):
                position = tile * (p.packed_spacing * columns.m) + residue
                number = tile * columns.dilation + residue
                k.call(function, packed + position * p.lanes, to + number * p.v_tile_pitch)

    def _unpacked_tiles(
        self, k: Builder, x: Pointer, channels: Value, slice_: Value, row: Value, column: Value, tw: Value,
        scratch: Pointer, to: Pointer, row_short: bool,
    ) -> None:  # fmt: skip
        """Tile by tile: one that reads no padding is transformed from where it is, others are packed first."""
        p, c = self.p, self.p.c
        rows, columns = p.rows, p.columns
        reach = [(axis.alpha - 1) * axis.spacing for axis in (rows, columns)]
        whole = channels // p.lanes * p.lanes
        rows_inside = is_inside(slice_, p.slices.positions)
        rows_inside = rows_inside & (row >= 0) & (row + reach[0] < rows.axis.positions)
        for subfilter, column_short in _subfilters(k, columns):
            for tile in k.range(tw):
                for residue in k.range(columns.dilation):
                    at = column + tile * (columns.spacing * columns.m) + residue
                    at = at + columns.first_position(subfilter)
                    number = tile * columns.dilation + residue
                    target = to + (number * p.v_tile_pitch + subfilter * p.v_subfilter_pitch)
                    inside = rows_inside & (at >= 0) & (at + reach[1] < columns.axis.positions)
                    unpacked = k.select(inside, whole, 0)
                    offset = (
                        slice_ * c.x.space[p.untiled]
                        + row * c.x.space[p.tiled[0]]
                        + at * c.x.space[p.tiled[1]]
                    )
                    for channel in k.range(0, unpacked, p.lanes):
                        function = self.f.unpacked_transforms[row_short, column_short]
                        k.call(function, x + (offset + channel), target + channel)
                    for channel, pack in self._channel_vectors(k, channels, unpacked):
                        k.call(pack, x + channel, scratch, slice_, row, at, columns.alpha)
                        k.call(self.f.data_transforms[row_short, column_short], scratch, target + channel)

    def _channel_vectors(
        self, k: Builder, channels: Value, start: int | Value = 0
    ) -> Iterator[tuple[Value, Function]]:
        """First channel of each vector from ``start`` on, and the function that packs so many channels."""
        p = self.p
        whole = channels // p.lanes * p.lanes
        for count, function in self.f.pack_input:
            if count == p.lanes:
                for channel in k.range(start, whole, p.lanes):
                    yield channel, function
            else:
                for channel in k.range(whole, channels, p.lanes):
                    yield channel, function

    # ---- products

    def _multiply_in_chains(
        self, k: Builder, point: Value, v: Pointer, u: Pointer, m: Pointer, tile_rows: Value, channels: _Channels
    ) -> None:  # fmt: skip
        """The products of channels at a point for a panel, in chains of `plan.chain_scope`.

        A chain is added to M unless it is the first one: unless the number of its first channel, counted through
        all subfilters, is 0.
        """
        p, (slices, _, b) = self.p, self.p.subfilters
        rows, columns = self._subfilters_at(k, point)
        first, count = channels.first, channels.count
        u = u + first * p.nr
        one, step = k.integer(1), p.u_channels * p.nr
        if p.has_few_channels:  # the subfilters of the columns are neighbours, as channels are
            columns, count = one, columns * p.c.depth
        if p.chain_scope == "subfilters":
            self._multiply(k, v, u, m, tile_rows, (k.integer(slices), rows, columns), count, first)
            return
        for tap in k.range(slices):
            if p.chain_scope == "slice":
                a = v + tap * p.v_slice_pitch
                w = u + tap * (math.prod(p.subfilters[1:]) * step)
                self._multiply(k, a, w, m, tile_rows, (one, rows, columns), count, first + tap)
                continue
            for row in k.range(0, rows):
                for column in k.range(0, columns):
                    subfilter = (tap * p.subfilters[1] + row) * b + column
                    for channel in k.range(0, count, p.chain_channels):
                        a = v + (subfilter * p.v_subfilter_pitch + channel)
                        w = u + (subfilter * step + channel * p.nr)
                        length = (count - channel).min(p.chain_channels)
                        adds = first + subfilter + channel
                        self._multiply(k, a, w, m, tile_rows, (one, one, one), length, adds)

    def _subfilters_at(self, k: Builder, point: Value) -> tuple[Value, Value]:
        """How many subfilters of rows and of columns have a product at a point: not the short ones at infinity."""
        p = self.p
        row, column = point // p.columns.alpha, point % p.columns.alpha
        return (
            k.select(row == p.rows.alpha - 1, k.integer(p.rows.full_subfilters), p.rows.subfilters),
            k.select(
                column == p.columns.alpha - 1, k.integer(p.columns.full_subfilters), p.columns.subfilters
            ),
        )

    def _multiply(
        self, k: Builder, v: Pointer, u: Pointer, m: Pointer, tile_rows: Value,
        subfilters: tuple[Value, Value, Value], channels: int | Value, adds: int | Value,
    ) -> None:  # fmt: skip
        """One chain for all tiles of some tile rows, register tile by register tile; ``adds`` not 0: added to M."""
        p = self.p
        tiles = tile_rows * p.row_tiles
        start = 0
        for (rows, count), function in zip(p.register_rows, self.f.products, strict=True):
            stop = start + count * rows
            for tile in k.range(start, tiles.min(stop), rows):
                a, sums = v + tile * p.v_tile_pitch, m + tile * p.nr
                k.call(function, a, u, sums, *subfilters, channels, adds)
            start = stop

    # ---- results

    def _write_results(
        self, k: Builder, arguments: Arguments, group: Value, panel: Value, tile_rows: _TileRows, m: Pointer,
        scratch: Pointer,
    ) -> None:  # fmt: skip
        """The results of some tile rows and of a panel's channels, from M to y."""
        p, c = self.p, self.p.c
        rows, columns = p.rows, p.columns
        tensors = [(arguments.pointer(2, c.y.dtype), c.y)]
        tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
        factors = scale(k, arguments.args, self.pointers)
        channel = panel * p.nr
        channels = (k.integer(c.width) - channel).min(p.nr)
        for number in k.range(tile_rows.first, tile_rows.first + tile_rows.count):
            image, slice_, row, part = split_index(number, p.tile_row_extents)
            first = part * p.tw
            tw = (k.integer(columns.tiles_per_residue) - first).min(p.tw)
            top = (row // rows.dilation) * (rows.m * rows.dilation) + row % rows.dilation
            left = first * (columns.m * columns.dilation)
            here = [k.integer(0)] * 5
            here[0], here[1 + p.untiled] = image, slice_
            here[1 + p.tiled[0]], here[1 + p.tiled[1]] = top, left
            height = ((k.integer(rows.axis.results + rows.dilation - 1) - top) // rows.dilation).min(rows.m)
            width = (k.integer(columns.axis.results) - left).min(p.tw * columns.m * columns.dilation)
            sums = m + (number - tile_rows.first) * (p.row_tiles * p.nr)
            for v in k.range(0, channels, p.lanes):
                for tile in k.range(tw):
                    for residue in k.range(columns.dilation):
                        at = tile * columns.dilation + residue
                        position = tile * (columns.m * columns.dilation) + residue
                        k.call(self.f.inverse_transform, sums + (at * p.nr + v), scratch + position * p.lanes)
                targets = [t + view_offset(c, view, group, channel + v, here[:4]) for t, view in tensors]
                pitch = p.result_pitch * p.lanes
                k.call(self.f.store_output, scratch, factors, *targets, channels - v, height, width, pitch)
