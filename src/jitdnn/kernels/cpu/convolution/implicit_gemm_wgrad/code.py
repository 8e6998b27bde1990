"""The code of `blocked_filter`: the tasks that sum, and those that add up what was split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.packing import trace_input_tile, trace_panel
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.store import filter_strides, trace_finish
from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.schedule.offsets import (
    ceil_div,
    group_offset,
    points,
    scale,
    split_index,
    view_offset,
)
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import ImplicitGemmWgradPlan


def trace_gradient(module: Module, plan: ImplicitGemmWgradPlan, pointers: int) -> None:
    """Trace the phases of a plan; the pointers are x, dy and dw."""
    c, splits = plan.c, plan.cut.splits
    fill = trace_input_tile(module, "slab", plan.copied[0], plan.input_tile)
    turn = trace_panel(module, "panel", c, plan.block, plan.tile.vectors)
    contract, runtime = _trace_microkernel(module, "contract", plan)
    finish = trace_finish(module, "store", c, plan.tile.vectors, plan.sum_strides, splits, plan.split_size)
    with module.task("sums") as (k, args, task, thread):
        _Task(k, plan, args, pointers, task, thread).trace(fill, turn, contract, runtime, finish)
    if splits == 1:
        return
    with module.task("finish") as (k, args, task, thread):
        group, chunk, panel = split_index(task, (c.group_count, plan.chunks, plan.panels))
        place = _Task(k, plan, args, pointers, group * (plan.tasks // c.group_count), thread)
        place.finish(finish, place.shared_sums(chunk, k.integer(0), panel), chunk, panel)


def _trace_microkernel(module: Module, name: str, plan: ImplicitGemmWgradPlan) -> tuple[Function, list[int]]:
    """The micro-kernel, and which of the four extents it takes at run time."""
    given = [of % extent != 0 for of, extent in zip(plan.results, plan.block, strict=True)]
    given = [is_given or clipped for is_given, clipped in zip(given, (False, *plan.clipped), strict=True)]
    loops = [
        (i, Loop(None if given[i] else plan.block[i], plan.steps[i], plan.pitches[i]))
        for i in range(4)
        if given[i] or plan.block[i] != 1
    ]
    box = points(plan.tile.box)
    function = trace_microkernel(
        module,
        name,
        plan.c.dtype,
        [_flat(point, plan.row_strides) for point in box],
        plan.tile.vectors,
        [loop for _, loop in loops],
        accumulate=plan.is_carried,
        sum_offsets=[_flat(point, plan.sum_strides) for point in box],
    )
    return function, [i for i, loop in loops if loop.extent is None]


class _Task:
    """The code of one task."""

    def __init__(
        self,
        k: Builder,
        plan: ImplicitGemmWgradPlan,
        args: Pointer,
        pointers: int,
        task: Value,
        thread: Value,
    ) -> None:
        self.k, self.plan, self.c = k, plan, plan.c
        self.scale = scale(k, args, pointers)
        arguments = Arguments(k, args, pointers)
        x, dy = (1, 0) if plan.is_swapped else (0, 1)
        self.x = arguments.pointer(x, self.c.x.dtype)
        self.dy = arguments.pointer(dy, self.c.y.dtype)
        self.dw = arguments.pointer(2, self.c.w.dtype)
        self.work: Pointer = arguments.workspace(self.c.dtype)
        own = plan.input_tile_elements + plan.panel_elements + plan.own_sum_elements
        self.input_tile = self.work + (thread * own + plan.split_elements)
        self.panel = self.input_tile + plan.input_tile_elements
        self.own_sums = self.panel + plan.panel_elements
        # neighbouring tasks share their pixels of x: the last reading left them in the cache
        extents = (self.c.group_count, plan.chunks, plan.cut.splits, plan.cut.shares)
        self.group, self.chunk, self.split, self.share = split_index(task, extents)

    def shared_sums(self, chunk: Value, split: Value, panel: Value) -> Pointer:
        """Where the sums of a chunk, a split and a panel are that another phase reads."""
        plan = self.plan
        first = (self.group * plan.cut.splits + split) * plan.split_size
        return self.work + (first + (chunk * plan.panels + panel) * plan.chunk_size)

    def trace(
        self, fill: Function, turn: Function, contract: Function, runtime: list[int], finish: Function
    ) -> None:
        k, c, plan = self.k, self.c, self.plan
        each, splits, blocks = plan.panels_per_share, plan.cut.splits, math.prod(plan.blocks)
        first, last = self.share * each, (self.share * each + each).min(plan.panels)
        channel = self.chunk * plan.chunk
        channels = (k.integer(c.depth) - channel).min(plan.chunk)
        begin, end = self.split * blocks // splits, (self.split + 1) * blocks // splits
        if blocks == 0:
            for panel in k.range(first, last):
                self._clear(self.own_sums)
                self.finish(finish, self.own_sums, self.chunk, panel)
        for block in k.range(begin, end):
            index = split_index(block, plan.blocks)
            starts = [i * extent for i, extent in zip(index, plan.block, strict=True)]
            valid = [
                (k.integer(of) - start).min(extent)
                for of, start, extent in zip(plan.results, starts, plan.block, strict=True)
            ]
            image = self.x + view_offset(c, c.x, self.group, channel, (starts[0], 0, 0, 0))
            k.call(fill, image, self.input_tile, valid[0], channels, *starts[1:])
            for panel in k.range(first, last):
                gradient = self.dy + view_offset(c, c.y, self.group, panel * plan.panel, starts)
                k.call(turn, gradient, self.panel, k.integer(c.width) - panel * plan.panel, *valid)
                if splits > 1:
                    sums = self.shared_sums(self.chunk, self.split, panel)
                else:
                    sums = self.own_sums + (panel - first) * (plan.chunk_size if plan.is_carried else 0)
                if plan.is_carried:
                    with k.when(block == begin):
                        self._clear(sums)
                self._tiles(contract, runtime, sums, channels, starts, valid)
                if splits == 1:
                    with k.when(block == end - 1):
                        self.finish(finish, sums, self.chunk, panel)

    def _clear(self, sums: Pointer) -> None:
        zero = self.k.constant(0, self.c.dtype, self.plan.lanes)
        for at in self.k.range(0, self.plan.chunk_size, self.plan.lanes):
            sums.store(zero, at)

    def _tiles(
        self, contract: Function, runtime: list[int], sums: Pointer, channels: Value, starts: list[Value],
        valid: list[Value],
    ) -> None:  # fmt: skip
        k, plan = self.k, self.plan
        side, *sides = plan.tile.box
        tiles = tuple(ceil_div(e, s) for e, s in zip(plan.rows[1:], sides, strict=True))
        for column in k.range(0, channels, side):
            for tile in k.range(math.prod(tiles)):
                taps = [i * s for i, s in zip(split_index(tile, tiles), sides, strict=True)]
                a = self.input_tile + (_dot([column, *taps], plan.row_strides) + plan.origin)
                b, extents = self.panel, list(valid)
                for i, (tap, axis) in enumerate(zip(taps, self.c.axes, strict=True), 1):
                    if plan.clipped[i - 1]:
                        last = (tap + (sides[i - 1] - 1)).min(axis.taps.count - 1)
                        begin, end = (
                            (at - starts[i]).max(0).min(valid[i]) for at in _reached(k, axis, tap, last)
                        )
                        a, b = a + begin * plan.steps[i], b + begin * plan.pitches[i]
                        extents[i] = (end - begin).max(0)
                own = sums + _dot([column, *taps], plan.sum_strides)
                k.call(contract, a, b, own, *(extents[i] for i in runtime))

    def finish(self, finish: Function, sums: Pointer, chunk: Value, panel: Value) -> None:
        """Store the sums of a chunk and a panel."""
        c, plan = self.c, self.plan
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        channel, result = chunk * plan.chunk, panel * plan.panel
        place = group_offset(self.group, c.groups, c.w.groups) + start
        place = place + (channel * filter_strides(c)[0] + result * c.w.results)
        channels = (self.k.integer(c.depth) - channel).min(plan.chunk)
        valid = (self.k.integer(c.width) - result).min(plan.panel)
        self.k.call(finish, sums, self.scale, self.dw + place, valid, channels)


def _reached(k: Builder, axis: Axis, first: Value, last: Value) -> tuple[Value, Value]:
    """``filter_forms.reached`` at run time, but for the number of results."""
    lowest, highest = (tap * axis.taps.shift + axis.taps.offset for tap in (first, last))
    begin = ((-highest).max(0) + (axis.step - 1)) // axis.step
    return begin, ((k.integer(axis.positions) - lowest).max(0) + (axis.step - 1)) // axis.step


def _dot(point: Sequence[Value], strides: Sequence[int]) -> Value:
    offset = point[0] * strides[0]
    for i, stride in zip(point[1:], strides[1:], strict=True):
        offset = offset + i * stride
    return offset


def _flat(point: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(point, strides, strict=True))
