"""The launch phases of a filter's gradient by minimal filtering, in either order of plan.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Operand, WinogradWgradPlan
from jitdnn.kernels.cpu.convolution.winograd_wgrad.product import trace_inverse_transform, trace_product
from jitdnn.kernels.cpu.convolution.winograd_wgrad.transforms import trace_transform
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, split_index
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

POINTERS = 3  # x, dy and dw
_TASKS = 48  # of a phase: enough to keep the threads of a large processor busy to the end


def phases(p: WinogradWgradPlan) -> list[tuple[str, int]]:
    """Names and tasks of the launch phases that ``trace`` makes."""
    if p.order == "tile-resident":
        return [("sums", p.tasks), ("finish", _share(_finish_items(p))[0])]
    transforms = [
        (f"transform{operand.number}", _share(_transform_items(p, operand))[0])
        for operand in (p.row_operand, p.lane_operand)
    ]
    return [*transforms, ("sums", p.tasks)]


def _transform_items(p: WinogradWgradPlan, operand: Operand) -> int:
    return p.groups * operand.subfilter_count * operand.blocks * p.unit_count


def _finish_items(p: WinogradWgradPlan) -> int:
    return p.groups * p.lane_operand.panels * p.row_operand.blocks


def _share(items: int) -> tuple[int, int]:
    """(tasks, items of a task)."""
    each = ceil_div(items, _TASKS)
    return ceil_div(items, each), each


def _items(k: Builder, task: Value, items: int) -> Iterator[Value]:
    each = _share(items)[1]
    yield from k.range(task * each, (task * each + each).min(items))


def trace(module: Module, p: WinogradWgradPlan) -> None:
    """Trace all phases. The pointers are to x, dy and dw."""
    code = _Code(module, p)
    if p.order == "tile-resident":
        code.trace_tile_resident()
        code.trace_finish()
    else:
        for operand in (p.row_operand, p.lane_operand):
            code.trace_transform(operand)
        code.trace_sum_resident()


@dataclass(frozen=True)
class _Functions:
    """What the phases call."""

    transforms: tuple[Function, Function]  # by the number of the operand
    product: Function
    last_product: Function  # of the last register tile of a subfilter
    inverse_transform: Function
    store: Function


def _trace_functions(module: Module, p: WinogradWgradPlan) -> _Functions:
    x, dy = sorted((p.row_operand, p.lane_operand), key=lambda operand: operand.number)
    point_pitch = p.register_tile_size if p.order == "sum-resident" else p.sum_pitch

    def product(name: str, rows: int) -> Function:
        return trace_product(module, name, p.c.dtype, rows, p.vectors, p.lanes, p.kc * p.lanes)

    whole = product("product", p.mr)
    transforms = (
        trace_transform(module, "x", p.transform(x)),
        trace_transform(module, "dy", p.transform(dy)),
    )
    return _Functions(
        transforms,
        whole,
        whole if p.last_mr == p.mr else product("last_product", p.last_mr),
        trace_inverse_transform(
            module, "inverse", p.c.dtype, p.axes[1:], p.vectors, p.lanes, point_pitch, math.prod(p.taps),
            p.split_k, p.sums_size,
        ),
        trace_store(module, "store", _tile_store(p)),
    )  # fmt: skip


def _tile_store(p: WinogradWgradPlan) -> TileStore:
    """Taps of a register tile's channels, [row][taps of each axis][vector][lane], to dw."""
    strides = [a.axis.taps.increment * s for a, s in zip(p.axes, p.c.w.space, strict=True)]
    placement = TileStrides(p.c.w.dtype, (p.row_stride, *strides), p.lane_stride)
    extents = (p.row_operand.channels, *p.taps)
    return TileStore(p.c.dtype, (p.mr, *p.taps), extents, p.vectors, placement, (), None)


class _Code:
    def __init__(self, module: Module, p: WinogradWgradPlan) -> None:
        self.module, self.p = module, p
        self.f = _trace_functions(module, p)

    def _thread_memory(self, arguments: Arguments, thread: Value) -> Pointer:
        p = self.p
        own: Pointer = arguments.workspace(p.c.dtype) + (thread * p.thread_size + p.shared_size)
        return own

    def _tensor(self, arguments: Arguments, operand: Operand, group: Value) -> Pointer:
        view = operand.view
        tensor: Pointer = arguments.pointer(operand.number, view.dtype)
        return tensor + (group_offset(group, self.p.c.groups, view.groups) + view.offset)

    def _transform_unit(
        self, k: Builder, operand: Operand, tensor: Pointer, unit: Value, subfilter: Value, block: Value,
        to: Pointer, scratch: Pointer,
    ) -> None:  # fmt: skip
        """Transform a unit of a block of channels of a subfilter."""
        p = self.p
        image, *units = split_index(unit, p.units)
        if operand.is_x:
            subfilters = split_index(subfilter, operand.subfilters)
            origins = [a.first_position(u, i) for a, u, i in zip(p.axes, units, subfilters, strict=True)]
        else:
            origins = [a.first_result(u) for a, u in zip(p.axes, units, strict=True)]
        channel = block * p.lanes
        source = tensor + (image * operand.view.batch + channel * operand.view.channels)
        channels = (k.integer(operand.channels) - channel).min(p.lanes)
        k.call(self.f.transforms[operand.number], source, to, scratch, channels, *origins)

    def trace_transform(self, operand: Operand) -> None:
        """All tiles of one operand."""
        p = self.p
        is_unit_inner = p.transform(operand).is_transposed
        blocks = operand.subfilter_count, operand.blocks
        extents = (p.groups, *blocks, p.unit_count) if is_unit_inner else (p.groups, p.unit_count, *blocks)
        with self.module.task(f"transform{operand.number}") as (k, args, task, thread):
            arguments = Arguments(k, args, POINTERS)
            start, scratch = self._operand_start(arguments, operand), self._thread_memory(arguments, thread)
            for item in _items(k, task, _transform_items(p, operand)):
                group, *rest = split_index(item, extents)
                subfilter, block, unit = rest if is_unit_inner else (*rest[1:], rest[0])
                number = (group * operand.subfilter_count + subfilter) * operand.padded_blocks + block
                to = start + (number * p.kc + unit * p.unit_tiles) * p.lanes
                tensor = self._tensor(arguments, operand, group)
                self._transform_unit(k, operand, tensor, unit, subfilter, block, to, scratch)

    def _operand_start(self, arguments: Arguments, operand: Operand) -> Pointer:
        p = self.p
        start: Pointer = arguments.workspace(p.c.dtype)
        return start if operand is p.row_operand else start + p.points * p.row_pitch

    def _register_tiles_of(self, k: Builder, block: Value) -> Iterator[tuple[int, bool]]:
        """The register tiles of a block of rows, and whether each is the last one of its subfilter."""
        p = self.p
        last = ceil_div(p.row_operand.channels, p.mr) - (p.row_operand.blocks - 1) * p.register_tiles
        if last == p.register_tiles and p.last_mr == p.mr:
            for i in range(p.register_tiles):
                yield i, False
            return
        is_last = block % p.row_operand.blocks == p.row_operand.blocks - 1
        with k.when(~is_last):
            for i in range(p.register_tiles):
                yield i, False
        with k.when(is_last):
            for i in range(last):
                yield i, i == last - 1

    def trace_sum_resident(self) -> None:
        p = self.p
        with self.module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, POINTERS)
            own = self._thread_memory(arguments, thread)
            sums = own + (p.thread_size - p.points * p.register_tile_size)
            group, panel, piece = split_index(task, (p.groups, p.lane_operand.panels, p.mc_pieces))
            a = self._operand_start(arguments, p.row_operand)
            b = self._operand_start(arguments, p.lane_operand)
            pitch = p.kc * p.lanes
            first = piece * p.mc_blocks
            for block in k.range(first, (first + p.mc_blocks).min(p.row_operand.blocks)):
                for i, is_last in self._register_tiles_of(k, block):
                    function = self.f.last_product if is_last else self.f.product
                    for subfilter in k.range(p.subfilter_count):
                        from_rows = group * p.row_operand.all_blocks + self._block_at(subfilter, block)
                        from_lanes = group * p.lane_operand.all_panels + self._panel_at(subfilter, panel)
                        for point in k.range(p.points):
                            with self._when_multiplied(k, subfilter, point):
                                k.call(
                                    function, a + (from_rows * pitch + point * p.row_pitch + i * p.mr),
                                    b + (from_lanes * (p.vectors * pitch) + point * p.lane_pitch),
                                    sums + point * p.register_tile_size, p.kc, 0,
                                )  # fmt: skip
                        self._inverse_transform(k, sums, own, subfilter, block, i)
                    self._store(k, args, arguments, own, group, panel, block, i)

    def _when_multiplied(self, k: Builder, subfilter: Value, point: Value) -> AbstractContextManager[None]:
        """What is traced inside runs where a subfilter has a product at a point."""
        p = self.p
        needed: Value | None = None
        digits = split_index(subfilter, p.subfilters), split_index(point, tuple(a.alpha for a in p.axes))
        for axis, of_axis, at in zip(p.axes, *digits, strict=True):
            if axis.short_subfilters:
                here = axis.has_product(of_axis, at)
                needed = here if needed is None else needed & here
        return nullcontext() if needed is None else k.when(needed)

    def _block_at(self, subfilter: Value, block: Value) -> Value:
        """The number of a subfilter's block among all blocks of rows."""
        return block if self.p.is_swapped else subfilter * self.p.row_operand.blocks + block

    def _panel_at(self, subfilter: Value, panel: Value) -> Value:
        return subfilter * self.p.lane_operand.panels + panel if self.p.is_swapped else panel

    def _sums_at(self, group: Value, panel: Value, block: Value) -> Value:
        p = self.p
        index = (group * p.lane_operand.all_panels + panel) * p.row_operand.all_blocks + block
        return index * (p.register_tiles * p.register_tile_size)

    def trace_tile_resident(self) -> None:
        p = self.p
        pitch = p.kc * p.lanes
        with self.module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, POINTERS)
            own = self._thread_memory(arguments, thread)
            a, b = own, own + p.points * p.row_pitch
            scratch = own + p.operands_size
            extents = (p.groups, p.nc_pieces, p.mc_pieces, p.split_k)
            group, lane_piece, row_piece, split = split_index(task, extents)
            rows = (
                row_piece * p.mc_blocks,
                (row_piece * p.mc_blocks + p.mc_blocks).min(p.row_operand.all_blocks),
            )
            panels = (
                lane_piece * p.nc_panels,
                (lane_piece * p.nc_panels + p.nc_panels).min(p.lane_operand.all_panels),
            )
            sums = arguments.workspace(p.c.dtype) + split * p.sums_size
            first = split * p.tile_blocks // p.split_k
            for block in k.range(first, (split + 1) * p.tile_blocks // p.split_k):
                unit = block * p.kc_units
                units = (k.integer(p.unit_count) - unit).min(p.kc_units)
                for operand, start, piece in (
                    (p.row_operand, a, rows),
                    (p.lane_operand, b, (panels[0] * p.vectors, panels[1] * p.vectors)),
                ):
                    tensor = self._tensor(arguments, operand, group)
                    for number, i in _nest(k, piece, units, p.transform(operand).is_transposed):
                        subfilter, channels = number // operand.padded_blocks, number % operand.padded_blocks
                        target = start + ((number - piece[0]) * pitch + i * (p.unit_tiles * p.lanes))
                        with k.when(channels < operand.blocks):
                            self._transform_unit(
                                k, operand, tensor, unit + i, subfilter, channels, target, scratch
                            )
                start_a = a + rows[0] * -pitch
                start_b = b + panels[0] * (-p.vectors * pitch)
                for point in k.range(p.points):
                    for panel, channels in self._pairs(k, panels, rows, point):
                        from_rows = start_a + (point * p.row_pitch + channels * pitch)
                        from_lanes = start_b + (point * p.lane_pitch + panel * (p.vectors * pitch))
                        to = sums + (point * p.sum_pitch + self._sums_at(group, panel, channels))
                        for tile, is_last in self._register_tiles_of(k, channels):
                            k.call(
                                self.f.last_product if is_last else self.f.product, from_rows + tile * p.mr, from_lanes,
                                to + tile * p.register_tile_size, units * p.unit_tiles, block - first,
                            )  # fmt: skip

    def _pairs(
        self, k: Builder, panels: tuple[Value, Value], rows: tuple[Value, Value], point: Value
    ) -> Iterator[tuple[Value, Value]]:
        """Panels of lanes with blocks of rows, those of subfilters that have a product at a point."""
        p = self.p
        for panel in k.range(*panels):
            for block in k.range(*rows):
                subfilter = panel // p.lane_operand.panels if p.is_swapped else block // p.row_operand.blocks
                with self._when_multiplied(k, subfilter, point):
                    yield panel, block

    def trace_finish(self) -> None:
        p = self.p
        extents = (p.groups, p.lane_operand.panels, p.row_operand.blocks)
        with self.module.task("finish") as (k, args, task, thread):
            arguments = Arguments(k, args, POINTERS)
            own = self._thread_memory(arguments, thread)
            sums = arguments.workspace(p.c.dtype)
            for item in _items(k, task, _finish_items(p)):
                group, panel, block = split_index(item, extents)
                for i, _ in self._register_tiles_of(k, block):
                    for subfilter in k.range(p.subfilter_count):
                        at = self._sums_at(
                            group, self._panel_at(subfilter, panel), self._block_at(subfilter, block)
                        )
                        self._inverse_transform(
                            k, sums + (at + i * p.register_tile_size), own, subfilter, block, i
                        )
                    self._store(k, args, arguments, own, group, panel, block, i)

    def _rows_of(self, k: Builder, block: Value, tile: int) -> tuple[Value, Value]:
        """The first row of a register tile, as a channel, and how many rows there are."""
        row = block * self.p.lanes + tile * self.p.mr
        return row, (k.integer(self.p.row_operand.channels) - row).min(self.p.mr)

    def _inverse_transform(
        self, k: Builder, sums: Pointer, taps: Pointer, subfilter: Value, block: Value, tile: int
    ) -> None:
        """The sums of a register tile at all points to the taps of a subfilter."""
        p = self.p
        at, valid = k.integer(0), []
        for axis, index in zip(p.axes, split_index(subfilter, p.subfilters), strict=True):
            first = axis.first_tap(index)
            at = at * axis.axis.taps.count + first
            valid.append(axis.valid_taps(first))
        target = taps + at * (p.vectors * p.lanes)
        k.call(self.f.inverse_transform, sums, target, self._rows_of(k, block, tile)[1], *valid[1:])

    def _store(
        self, k: Builder, args: Pointer, arguments: Arguments, taps: Pointer, group: Value,
        panel: Value, block: Value, tile: int,
    ) -> None:  # fmt: skip
        """All taps of a register tile's channels to dw."""
        p = self.p
        row, count = self._rows_of(k, block, tile)
        lane = panel * (p.vectors * p.lanes)
        offset = group_offset(group, p.c.groups, p.c.w.groups) + row * p.row_stride + lane * p.lane_stride
        for axis, stride in zip(p.axes, p.c.w.space, strict=True):
            offset = offset + axis.axis.taps.start * stride
        dw = arguments.pointer(2, p.c.w.dtype) + offset
        lanes = k.integer(p.lane_operand.channels) - lane
        k.call(self.f.store, taps, scale(k, args, POINTERS), dw, lanes, count, *p.taps)


def _nest(
    k: Builder, blocks: tuple[Value, Value], units: Value, is_unit_inner: bool
) -> Iterator[tuple[Value, Value]]:
    """Every block of channels of every unit; a unit is read once where its pixels hold all channels."""
    if is_unit_inner:
        for block in k.range(*blocks):
            for unit in k.range(units):
                yield block, unit
    else:
        for unit in k.range(units):
            for block in k.range(*blocks):
                yield block, unit
