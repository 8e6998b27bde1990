"""The code of a filter's gradient by minimal filtering, for the two orders of plan.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import data_origin
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Operand, WinogradWgradPlan
from jitdnn.kernels.cpu.convolution.winograd_wgrad.product import trace_taps, trace_tile_sums
from jitdnn.kernels.cpu.microkernel.epilogue_store import trace_store
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

_TASKS = 48  # of a phase: enough to keep the threads of a large processor busy to the end


@dataclass(frozen=True)
class _Functions:
    """What the phases call."""

    transforms: tuple[Function, Function]  # by the number of the operand
    sums: Function
    last_sums: Function
    taps: Function
    store: Function


class WinogradWgradCode:
    """Traces the phases of a plan; the pointers of the kernel are x, dy and dw."""

    def __init__(self, plan: WinogradWgradPlan, pointers: int) -> None:
        self.plan, self.pointers = plan, pointers

    def phases(self) -> list[tuple[str, int]]:
        """(name, tasks) in order."""
        p = self.plan
        if p.order == "streamed":
            return [("sums", p.tasks), ("finish", self._share(self._finish_items)[0])]
        turns = [(f"turn{o.number}", self._share(self._turn_items(o))[0]) for o in self._operands]
        return [*turns, ("sums", p.tasks)]

    @property
    def _operands(self) -> tuple[Operand, Operand]:
        return self.plan.row_operand, self.plan.lane_operand

    def _turn_items(self, operand: Operand) -> int:
        return self.plan.groups * operand.part_count * operand.blocks * self.plan.unit_count

    @property
    def _finish_items(self) -> int:
        p = self.plan
        return p.groups * p.lane_operand.panels * p.row_operand.blocks

    def _share(self, items: int) -> tuple[int, int]:
        """(tasks, items of a task)."""
        each = ceil_div(items, _TASKS)
        return ceil_div(items, each), each

    def _items(self, k: Builder, task: Value, items: int) -> Iterator[Value]:
        each = self._share(items)[1]
        yield from k.range(task * each, (task * each + each).min(items))

    # ---- phases

    def trace(self, module: Module) -> None:
        p = self.plan
        transforms = sorted(self._operands, key=lambda operand: operand.number)
        plane = p.tile_size if p.order == "whole" else p.sum_plane
        pitch = p.block_tiles * p.lanes

        def sums(name: str, rows: int) -> Function:
            return trace_tile_sums(module, name, p.c.dtype, rows, p.vectors, p.lanes, pitch)

        whole = sums("tile", p.rows)
        f = _Functions(
            transforms=tuple(p.transform(o).trace(module, f"operand{o.number}") for o in transforms),  # type: ignore[arg-type]
            sums=whole,
            last_sums=whole if p.last_rows == p.rows else sums("last_tile", p.last_rows),
            taps=trace_taps(
                module,
                "taps",
                p.c.dtype,
                p.axes[1:],
                p.vectors,
                p.lanes,
                plane,
                math.prod(p.taps),
                p.splits,
                p.split_size,
            ),
            store=trace_store(module, "store", p.tile_store()),
        )
        if p.order == "streamed":
            self._trace_streamed(module, f)
            self._trace_finish(module, f)
        else:
            for operand in self._operands:
                self._trace_turn(module, operand, f)
            self._trace_whole(module, f)

    def _own(self, arguments: Arguments, thread: Value) -> Pointer:
        p = self.plan
        own: Pointer = arguments.workspace(p.c.dtype) + (thread * p.thread_size + p.shared_size)
        return own

    def _tensor(self, arguments: Arguments, operand: Operand, group: Value) -> Pointer:
        view = operand.view
        tensor: Pointer = arguments.pointer(operand.number, view.dtype)
        return tensor + (group_offset(group, self.plan.c.groups, view.groups) + view.offset)

    def _turn(
        self, k: Builder, f: _Functions, operand: Operand, tensor: Pointer, unit: Value, part: Value, block: Value,
        to: Pointer, scratch: Pointer,
    ) -> None:  # fmt: skip
        """Transform a unit of one block of channels of one part."""
        p = self.plan
        image, *units = split_index(unit, p.units)
        if operand.number == 0:
            parts = split_index(part, operand.parts)
            origins = [data_origin(a, u, i) for a, u, i in zip(p.axes, units, parts, strict=True)]
        else:
            origins = [a.first_result(u) for a, u in zip(p.axes, units, strict=True)]
        channel = block * p.lanes
        source = tensor + (image * operand.view.batch + channel * operand.view.channels)
        there = (k.integer(operand.channels) - channel).min(p.lanes)
        k.call(f.transforms[operand.number], source, to, scratch, there, *origins)

    def _trace_turn(self, module: Module, operand: Operand, f: _Functions) -> None:
        """All tiles of one operand."""
        p = self.plan
        is_unit_inner = p.transform(operand).is_turned
        blocks = operand.part_count, operand.blocks
        extents = (p.groups, *blocks, p.unit_count) if is_unit_inner else (p.groups, p.unit_count, *blocks)
        with module.task(f"turn{operand.number}") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            start, scratch = self._operand_start(arguments, operand), self._own(arguments, thread)
            for item in self._items(k, task, self._turn_items(operand)):
                group, *rest = split_index(item, extents)
                part, block, unit = rest if is_unit_inner else (*rest[1:], rest[0])
                place = (group * operand.part_count + part) * operand.room + block
                to = start + (place * p.block_tiles + unit * p.unit_tiles) * p.lanes
                tensor = self._tensor(arguments, operand, group)
                self._turn(k, f, operand, tensor, unit, part, block, to, scratch)

    def _operand_start(self, arguments: Arguments, operand: Operand) -> Pointer:
        p = self.plan
        start: Pointer = arguments.workspace(p.c.dtype)
        return start if operand is p.row_operand else start + p.places * p.row_plane

    def _tiles_of_block(self, k: Builder, block: Value) -> Iterator[tuple[int, bool]]:
        """The tiles of rows of a block of channels, and whether each is the last one of its part."""
        p = self.plan
        last = ceil_div(p.row_operand.channels, p.rows) - (p.row_operand.blocks - 1) * p.row_tiles
        if last == p.row_tiles and p.last_rows == p.rows:
            for i in range(p.row_tiles):
                yield i, False
            return
        is_last = block % p.row_operand.blocks == p.row_operand.blocks - 1
        with k.when(~is_last):
            for i in range(p.row_tiles):
                yield i, False
        with k.when(is_last):
            for i in range(last):
                yield i, i == last - 1

    def _trace_whole(self, module: Module, f: _Functions) -> None:
        p = self.plan
        with module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            own = self._own(arguments, thread)
            sums = own + (p.thread_size - p.places * p.tile_size)
            group, panel, chunk = split_index(task, (p.groups, p.lane_operand.panels, p.row_chunks))
            a = self._operand_start(arguments, p.row_operand)
            b = self._operand_start(arguments, p.lane_operand)
            pitch = p.block_tiles * p.lanes
            first = chunk * p.row_chunk
            for block in k.range(first, (first + p.row_chunk).min(p.row_operand.blocks)):
                for i, is_last in self._tiles_of_block(k, block):
                    function = f.last_sums if is_last else f.sums
                    for part in k.range(p.part_count):
                        from_rows = group * p.row_operand.all_blocks + self._block_at(part, block)
                        from_lanes = group * p.lane_operand.all_panels + self._panel_at(part, panel)
                        for place in self._places(k, part):
                            k.call(
                                function, a + (from_rows * pitch + place * p.row_plane + i * p.rows),
                                b + (from_lanes * (p.vectors * pitch) + place * p.lane_plane),
                                sums + place * p.tile_size, p.block_tiles, 0,
                            )  # fmt: skip
                        self._taps(k, f, sums, own, part, block, i)
                    self._store(k, f, args, arguments, own, group, panel, block, i)

    def _places(self, k: Builder, part: Value) -> Iterator[Value]:
        """The places at which a part is multiplied."""
        for place in k.range(self.plan.places):
            for _ in self._if_needed(k, part, place):
                yield place

    def _if_needed(self, k: Builder, part: Value, place: Value) -> Iterator[None]:
        """Once, where a part is multiplied at a place."""
        p = self.plan
        needed: Value | None = None
        parts, places = split_index(part, p.parts), split_index(place, tuple(a.places for a in p.axes))
        for axis, one, at in zip(p.axes, parts, places, strict=True):
            if axis.short_parts:
                here = axis.is_needed(one, at)
                needed = here if needed is None else needed & here
        if needed is None:
            yield
        else:
            with k.when(needed):
                yield

    def _block_at(self, part: Value, block: Value) -> Value:
        """A block of a part of x's taps among all blocks of rows."""
        return block if self.plan.is_swapped else part * self.plan.row_operand.blocks + block

    def _panel_at(self, part: Value, panel: Value) -> Value:
        return part * self.plan.lane_operand.panels + panel if self.plan.is_swapped else panel

    def _sums_at(self, group: Value, panel: Value, block: Value) -> Value:
        p = self.plan
        index = (group * p.lane_operand.all_panels + panel) * p.row_operand.all_blocks + block
        return index * (p.row_tiles * p.tile_size)

    def _trace_streamed(self, module: Module, f: _Functions) -> None:
        p = self.plan
        pitch = p.block_tiles * p.lanes
        with module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            own = self._own(arguments, thread)
            a, b = own, own + p.places * p.row_plane
            scratch = own + p.operand_size
            group, lane_chunk, row_chunk, split = split_index(
                task, (p.groups, p.lane_chunks, p.row_chunks, p.splits)
            )
            rows = (
                row_chunk * p.row_chunk,
                (row_chunk * p.row_chunk + p.row_chunk).min(p.row_operand.all_blocks),
            )
            panels = (
                lane_chunk * p.lane_chunk,
                (lane_chunk * p.lane_chunk + p.lane_chunk).min(p.lane_operand.all_panels),
            )
            sums = arguments.workspace(p.c.dtype) + split * p.split_size
            first = split * p.blocks // p.splits
            for block in k.range(first, (split + 1) * p.blocks // p.splits):
                unit = block * p.block_units
                units = (k.integer(p.unit_count) - unit).min(p.block_units)
                for operand, kept, chunk in (
                    (p.row_operand, a, rows),
                    (p.lane_operand, b, (panels[0] * p.vectors, panels[1] * p.vectors)),
                ):
                    tensor = self._tensor(arguments, operand, group)
                    for number, i in _nest(k, chunk, units, p.transform(operand).is_turned):
                        part, channels = number // operand.room, number % operand.room
                        target = kept + ((number - chunk[0]) * pitch + i * (p.unit_tiles * p.lanes))
                        with k.when(channels < operand.blocks):
                            self._turn(k, f, operand, tensor, unit + i, part, channels, target, scratch)
                start_a = a + rows[0] * -pitch
                start_b = b + panels[0] * (-p.vectors * pitch)
                for place in k.range(p.places):
                    for panel, channels in self._pairs(k, panels, rows, place):
                        from_rows = start_a + (place * p.row_plane + channels * pitch)
                        from_lanes = start_b + (place * p.lane_plane + panel * (p.vectors * pitch))
                        to = sums + (place * p.sum_plane + self._sums_at(group, panel, channels))
                        for tile, is_last in self._tiles_of_block(k, channels):
                            k.call(
                                f.last_sums if is_last else f.sums, from_rows + tile * p.rows, from_lanes,
                                to + tile * p.tile_size, units * p.unit_tiles, block - first,
                            )  # fmt: skip

    def _pairs(
        self, k: Builder, panels: tuple[Value, Value], rows: tuple[Value, Value], place: Value
    ) -> Iterator[tuple[Value, Value]]:
        """Panels of lanes with blocks of rows, those of parts that are multiplied at a place."""
        p = self.plan
        for panel in k.range(*panels):
            for block in k.range(*rows):
                part = panel // p.lane_operand.panels if p.is_swapped else block // p.row_operand.blocks
                for _ in self._if_needed(k, part, place):
                    yield panel, block

    def _trace_finish(self, module: Module, f: _Functions) -> None:
        p = self.plan
        extents = (p.groups, p.lane_operand.panels, p.row_operand.blocks)
        with module.task("finish") as (k, args, task, thread):
            arguments = Arguments(k, args, self.pointers)
            own = self._own(arguments, thread)
            sums = arguments.workspace(p.c.dtype)
            for item in self._items(k, task, self._finish_items):
                group, panel, block = split_index(item, extents)
                for i, _ in self._tiles_of_block(k, block):
                    for part in k.range(p.part_count):
                        at = self._sums_at(group, self._panel_at(part, panel), self._block_at(part, block))
                        self._taps(k, f, sums + (at + i * p.tile_size), own, part, block, i)
                    self._store(k, f, args, arguments, own, group, panel, block, i)

    def _rows_of(self, k: Builder, block: Value, tile: int) -> tuple[Value, Value]:
        """The first row of a tile of rows, as a channel, and how many there are."""
        row = block * self.plan.lanes + tile * self.plan.rows
        return row, (k.integer(self.plan.row_operand.channels) - row).min(self.plan.rows)

    def _taps(
        self, k: Builder, f: _Functions, sums: Pointer, taps: Pointer, part: Value, block: Value, tile: int
    ) -> None:
        """A tile of sums at all places, to the taps of its part."""
        p = self.plan
        at, valid = k.integer(0), []
        for axis, index in zip(p.axes, split_index(part, p.parts), strict=True):
            first = axis.first_tap(index)
            at = at * axis.axis.taps.count + first
            valid.append(axis.valid_taps(first))
        place = taps + at * (p.vectors * p.lanes)
        k.call(f.taps, sums, place, self._rows_of(k, block, tile)[1], *valid[1:])

    def _store(
        self, k: Builder, f: _Functions, args: Pointer, arguments: Arguments, taps: Pointer, group: Value,
        panel: Value, block: Value, tile: int,
    ) -> None:  # fmt: skip
        """All taps of a tile to dw."""
        p = self.plan
        row, count = self._rows_of(k, block, tile)
        lane = panel * (p.vectors * p.lanes)
        offset = group_offset(group, p.c.groups, p.c.w.groups) + row * p.row_stride + lane * p.lane_stride
        for axis, stride in zip(p.axes, p.c.w.space, strict=True):
            offset = offset + axis.axis.taps.start * stride
        dw = arguments.pointer(2, p.c.w.dtype) + offset
        lanes = k.integer(p.lane_operand.channels) - lane
        k.call(f.store, taps, scale(k, args, self.pointers), dw, lanes, count, *p.taps)


def _nest(
    k: Builder, blocks: tuple[Value, Value], units: Value, is_unit_inner: bool
) -> Iterator[tuple[Value, Value]]:
    """Every block of channels of every unit; a unit's pixels are read once where they hold all channels."""
    if is_unit_inner:
        for block in k.range(*blocks):
            for unit in k.range(units):
                yield block, unit
    else:
        for unit in k.range(units):
            for block in k.range(*blocks):
                yield block, unit
