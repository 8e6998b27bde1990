"""The code of a wgrad as an implicit GEMM: the tasks that sum, and those that add the sums of all splits.

The loops are drawn in plan.py, where the sizes have their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.packing import trace_input_tile, trace_panel
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import ImplicitGemmWgradPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.store import dw_strides, trace_store
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

POINTERS = 3  # x, dy and dw


@dataclass(frozen=True)
class _Functions:
    """What tasks call. ``runtime`` are the axes of the block whose extents the micro-kernel takes at run time."""

    pack_x: Function
    pack_dy: Function
    contract: Function
    runtime: list[int]
    store: Function


def trace(module: Module, plan: ImplicitGemmWgradPlan) -> None:
    """Trace the phases of a plan, for pointers to x, dy and dw."""
    c, split_k = plan.c, plan.blocking.split_k
    pack_x = trace_input_tile(module, "pack_x", plan.block_correlation, plan.input_tile, plan.unpadded)
    pack_dy = trace_panel(module, "pack_dy", c, plan.blocking.block, plan.tile.vectors)
    contract, runtime = _trace_microkernel(module, "contract", plan)
    store = trace_store(module, "store", c, plan.tile.vectors, plan.sum_row_strides, split_k, plan.split_sums)
    functions = _Functions(pack_x, pack_dy, contract, runtime, store)
    with module.task("sums") as (k, args, task, thread):
        _Task(k, plan, functions, args, task, thread).sum_up()
    if split_k == 1:
        return
    with module.task("split_k_reduction") as (k, args, task, thread):
        group, channel_block, panel = split_index(task, (c.group_count, plan.channel_blocks, plan.panels))
        code = _Task(k, plan, functions, args, group * (plan.tasks // c.group_count), thread)
        code.store(code.split_sums(channel_block, k.integer(0), panel), channel_block, panel)


def _trace_microkernel(module: Module, name: str, plan: ImplicitGemmWgradPlan) -> tuple[Function, list[int]]:
    """The micro-kernel, and which of a block's four extents it takes at run time."""
    block = plan.blocking.block
    is_runtime = [of % extent != 0 for of, extent in zip(plan.pixels, block, strict=True)]
    is_runtime = [one or clipped for one, clipped in zip(is_runtime, (False, *plan.clipped), strict=True)]
    x_strides, dy_strides = plan.input_tile_pixel_strides, plan.panel_pixel_strides
    loops = [
        (i, Loop(None if is_runtime[i] else block[i], x_strides[i], dy_strides[i]))
        for i in range(4)
        if is_runtime[i] or block[i] != 1
    ]
    box = points(plan.tile.box)
    function = trace_microkernel(
        module,
        name,
        plan.c.dtype,
        [_constant_dot(point, plan.input_tile_row_strides) for point in box],
        plan.tile.vectors,
        [loop for _, loop in loops],
        accumulate=plan.accumulates,
        sum_offsets=[_constant_dot(point, plan.sum_row_strides) for point in box],
    )
    return function, [i for i, loop in loops if loop.extent is None]


class _Task:
    """The code of one task of the first phase; the second uses its addresses."""

    def __init__(
        self, k: Builder, plan: ImplicitGemmWgradPlan, functions: _Functions, args: Pointer, task: Value,
        thread: Value,
    ) -> None:  # fmt: skip
        self.k, self.plan, self.c, self.functions = k, plan, plan.c, functions
        self.scale = scale(k, args, POINTERS)
        arguments = Arguments(k, args, POINTERS)
        x, dy = (1, 0) if plan.is_swapped else (0, 1)
        self.x = arguments.pointer(x, self.c.x.dtype)
        self.dy = arguments.pointer(dy, self.c.y.dtype)
        self.dw = arguments.pointer(2, self.c.w.dtype)
        self.workspace: Pointer = arguments.workspace(self.c.dtype)
        self.input_tile = self.workspace + (thread * plan.thread_elements + plan.split_k_elements)
        self.panel = self.input_tile + plan.input_tile_elements
        self.task_sums = self.panel + plan.panel_elements
        # neighbouring tasks are partitions of one split: they read the same x, which the first leaves in the cache
        extents = (self.c.group_count, plan.channel_blocks, plan.blocking.split_k, plan.blocking.partitions)
        self.group, self.channel_block, self.split, self.partition = split_index(task, extents)

    def split_sums(self, channel_block: Value, split: Value, panel: Value) -> Pointer:
        """The sums of a split that the second phase reads."""
        plan = self.plan
        first = (self.group * plan.blocking.split_k + split) * plan.split_sums
        return self.workspace + (first + (channel_block * plan.panels + panel) * plan.panel_sums)

    def sum_up(self) -> None:
        """All blocks of the split, by all panels of the partition."""
        k, c, plan, functions = self.k, self.c, self.plan, self.functions
        each, split_k, blocks = (
            plan.panels_per_partition, plan.blocking.split_k, math.prod(plan.pixel_blocks)
        )  # fmt: skip
        first, last = self.partition * each, (self.partition * each + each).min(plan.panels)
        channel = self.channel_block * plan.blocking.channels
        channels = (k.integer(c.depth) - channel).min(plan.blocking.channels)
        begin, end = self.split * blocks // split_k, (self.split + 1) * blocks // split_k
        if blocks == 0:
            for panel in k.range(first, last):
                self._clear(self.task_sums)
                self.store(self.task_sums, self.channel_block, panel)
        for block in k.range(begin, end):
            index = split_index(block, plan.pixel_blocks)
            starts = [i * extent for i, extent in zip(index, plan.blocking.block, strict=True)]
            extents = [
                (k.integer(of) - start).min(extent)
                for of, start, extent in zip(plan.pixels, starts, plan.blocking.block, strict=True)
            ]
            image = self.x + view_offset(c, c.x, self.group, channel, (starts[0], 0, 0, 0))
            k.call(functions.pack_x, image, self.input_tile, extents[0], channels, *starts[1:])
            for panel in k.range(first, last):
                dy = self.dy + view_offset(c, c.y, self.group, panel * plan.panel_width, starts)
                valid = k.integer(c.width) - panel * plan.panel_width
                k.call(functions.pack_dy, dy, self.panel, valid, *extents)
                if split_k > 1:
                    sums = self.split_sums(self.channel_block, self.split, panel)
                else:
                    sums = self.task_sums + (panel - first) * (plan.panel_sums if plan.accumulates else 0)
                if plan.accumulates:
                    with k.when(block == begin):
                        self._clear(sums)
                self._multiply(sums, channels, starts, extents)
                if split_k == 1:
                    with k.when(block == end - 1):
                        self.store(sums, self.channel_block, panel)

    def _clear(self, sums: Pointer) -> None:
        zero = self.k.constant(0, self.c.dtype, self.plan.lanes)
        for at in self.k.range(0, self.plan.panel_sums, self.plan.lanes):
            sums.store(zero, at)

    def _multiply(self, sums: Pointer, channels: Value, starts: list[Value], block: list[Value]) -> None:
        """The packed block by the packed panel: every register tile of rows.

        ``starts`` and ``block`` are the first pixel of the block and its extents.
        """
        k, plan, functions = self.k, self.plan, self.functions
        channel_side, *tap_sides = plan.tile.box
        tiles = tuple(ceil_div(e, s) for e, s in zip(plan.rows[1:], tap_sides, strict=True))
        for channel in k.range(0, channels, channel_side):
            for tile in k.range(math.prod(tiles)):
                taps = [i * s for i, s in zip(split_index(tile, tiles), tap_sides, strict=True)]
                x = self.input_tile + (_dot([channel, *taps], plan.input_tile_row_strides) + plan.origin)
                dy, extents = self.panel, list(block)
                for i, (tap, axis) in enumerate(zip(taps, self.c.axes, strict=True), 1):
                    if plan.clipped[i - 1]:
                        last = (tap + (tap_sides[i - 1] - 1)).min(axis.taps.count - 1)
                        begin, end = (
                            (at - starts[i]).max(0).min(block[i]) for at in _valid_pixels(k, axis, tap, last)
                        )
                        x = x + begin * plan.input_tile_pixel_strides[i]
                        dy = dy + begin * plan.panel_pixel_strides[i]
                        extents[i] = (end - begin).max(0)
                tile_sums = sums + _dot([channel, *taps], plan.sum_row_strides)
                k.call(functions.contract, x, dy, tile_sums, *(extents[i] for i in functions.runtime))

    def store(self, sums: Pointer, channel_block: Value, panel: Value) -> None:
        """Store the sums of a block of channels and a panel."""
        c, plan = self.c, self.plan
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        channel, result = channel_block * plan.blocking.channels, panel * plan.panel_width
        offset = group_offset(self.group, c.groups, c.w.groups) + start
        offset = offset + (channel * dw_strides(c)[0] + result * c.w.results)
        channels = (self.k.integer(c.depth) - channel).min(plan.blocking.channels)
        valid = (self.k.integer(c.width) - result).min(plan.panel_width)
        self.k.call(self.functions.store, sums, self.scale, self.dw + offset, valid, channels)


def _valid_pixels(k: Builder, axis: Axis, first: Value, last: Value) -> tuple[Value, Value]:
    """`rewrites.valid_pixels` at run time; the end is not bounded by the number of pixels."""
    lowest, highest = (tap * axis.taps.shift + axis.taps.offset for tap in (first, last))
    begin = ((-highest).max(0) + (axis.step - 1)) // axis.step
    return begin, ((k.integer(axis.positions) - lowest).max(0) + (axis.step - 1)) // axis.step


def _dot(index: Sequence[Value], strides: Sequence[int]) -> Value:
    offset = index[0] * strides[0]
    for i, stride in zip(index[1:], strides[1:], strict=True):
        offset = offset + i * stride
    return offset


def _constant_dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(index, strides, strict=True))
