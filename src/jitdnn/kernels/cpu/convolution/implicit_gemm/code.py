"""The code of implicit GEMM: the functions that tasks call, and the loops of a task over them (drawn in plan.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.pack_weights import panels_of_part, trace_pack
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm.prefetch_plan import PrefetchPlan, plan_prefetch
from jitdnn.kernels.cpu.correlation import Correlation, StridePhase, View
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.microkernel.gemm import FUSED, Loop, Products, trace_microkernel
from jitdnn.kernels.cpu.microkernel.packing import Panels, trace_input_tile, trace_panel
from jitdnn.kernels.cpu.microkernel.prefetch import Region, region_of, trace_prefetch
from jitdnn.kernels.cpu.microkernel.register_tiles import step_cycles
from jitdnn.kernels.cpu.schedule.offsets import (
    ceil_div,
    group_offset,
    points,
    scale,
    split_index,
    view_offset,
)
from jitdnn.kernels.cpu.schedule.tap_clipping import inside_taps
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

_PREFETCH_CYCLES = 400  # of a tile's products: long enough for lines to arrive from memory


def trace(
    plan: ImplicitGemmPlan, module: Module, prefix: str, pointers: int, order: tuple[int, int, int],
    epilogue: Epilogue | None,
) -> None:  # fmt: skip
    """Trace the tasks of ``plan.phases``. ``order`` holds the numbers of the pointers to x, w and y."""
    if not plan.packs_in_task:
        trace_pack(plan, module, prefix, pointers, order[1])
    trace_tiles(TileFunctions(plan, module, prefix, epilogue), module, prefix, pointers, order)


class TileFunctions:
    """The functions that a task calls."""

    def __init__(
        self, plan: ImplicitGemmPlan, module: Module, prefix: str, epilogue: Epilogue | None
    ) -> None:
        self.plan, self.c = plan, plan.c
        self.pack_input: Function | None = None
        if not plan.is_input_unpacked:
            self.pack_input = self.trace_input_tile(module, f"{prefix}input_tile")
        self.prefetch_plan = self.plan_prefetch()
        self.microkernels: list[Function] = []
        known: dict[object, Function] = {}
        for i, (stride_phase, panels) in enumerate(
            zip(plan.stride_phases, plan.panels_by_phase, strict=True)
        ):
            # stride phases with equally many taps on each axis share a micro-kernel, which is passed where they begin
            taps = (panels, *((axis.taps.count, axis.taps.shift) for axis in stride_phase.c.axes))
            key = taps, tuple(plan.clipped_axes(stride_phase.c, plan.box))
            if key not in known:
                known[key] = self._trace_microkernel(
                    module, f"{prefix}microkernel{i}", stride_phase.c, panels
                )
            self.microkernels.append(known[key])
        self.store = trace_store(module, f"{prefix}store", self.tile_store(epilogue))
        self.pack_panel: Function | None = None
        if plan.packs_in_task:
            self.pack_panel = trace_panel(module, f"{prefix}panel", plan.stride_phases[0].c, plan.panels)
        self.prefetch_y: Function | None = None
        lines = self._lines_of_y()
        if lines is not None:
            self.prefetch_y = trace_prefetch(module, f"{prefix}prefetch_y", self.c.y.dtype, lines)

    # ---- what other types of elements replace

    def trace_input_tile(self, module: Module, name: str) -> Function:
        """The function that packs an input tile."""
        return trace_input_tile(module, name, self.c, self.plan.input_tile)

    def plan_prefetch(self) -> PrefetchPlan | None:
        return plan_prefetch(self.plan)

    @property
    def products(self) -> Products:
        return FUSED

    def tile_store(self, epilogue: Epilogue | None) -> TileStore:
        plan, c, tile = self.plan, self.c, self.plan.tile
        box: tuple[int, ...] = tile.box
        extents: tuple[int, ...] = (c.width,)
        if plan.vectorizes_pixels:
            strides = [TileStrides(v.dtype, (v.channels,), v.space[2]) for v in (c.y, *c.operands)]
        else:
            strides = [TileStrides(v.dtype, (v.batch, *v.space), v.channels) for v in (c.y, *c.operands)]
            box = tuple(side * stride for side, stride in zip(tile.box, plan.phase_strides, strict=True))
            extents = (c.batch, *plan.interleaved.extents)
        return TileStore(
            c.dtype, box, extents, tile.vectors, strides[0], tuple(strides[1:]), epilogue,
            streams=plan.streams,
        )  # fmt: skip

    # ----

    def _trace_microkernel(self, module: Module, name: str, c: Correlation, panels: Panels) -> Function:
        """The micro-kernel of a stride phase; it reads its data from its first tap on."""
        plan, input_tile = self.plan, self.plan.input_tile
        clipped = plan.clipped_axes(c, plan.box)
        depth = None if plan.spills else c.depth
        # (extent, step in the input tile, step in the panel); of mirrored taps the step in the input tile is negative
        nest: list[tuple[int | None, int, int]] = [(depth, input_tile.channels, panels.channel_stride)]
        for i, (axis, stride) in enumerate(zip(c.axes, input_tile.space, strict=True)):
            count = None if i in clipped else axis.taps.count
            nest.append((count, axis.taps.shift * stride, panels.tap_strides[i]))
        nest = [row for row in nest if row[0] != 1]
        lines = self.prefetch_plan
        prefetch = [] if lines is None else [(lines.dtype, lines.channel)] * lines.lines_per_step
        if plan.vectorizes_pixels:
            loops = [Loop(extent, w, x) for extent, x, w in nest]
            rows = list(range(plan.tile.rows))
            return trace_microkernel(
                module, name, c.dtype, rows, plan.tile.vectors, loops, plan.spills,
                products=self.products, prefetch=prefetch,
            )  # fmt: skip
        loops = [Loop(extent, x, w) for extent, x, w in nest]
        steps = (
            input_tile.batch,
            *(s * stride for s, stride in zip(input_tile.steps, input_tile.space, strict=True)),
        )
        inner = points(plan.tile.box)
        rows = [sum(i * s for i, s in zip(point, steps, strict=True)) for point in inner]
        width = plan.tile.vectors * plan.lanes
        sum_offsets = [
            plan.row_in_tile([i * s for i, s in zip(point, plan.phase_strides, strict=True)]) * width
            for point in inner
        ]
        return trace_microkernel(
            module, name, c.dtype, rows, plan.tile.vectors, loops, plan.spills,
            products=self.products, sum_offsets=sum_offsets, prefetch=prefetch,
        )  # fmt: skip

    def _lines_of_y(self) -> Region | None:
        """The lines of y that a tile writes; None if they are cached or not read, or could not arrive in time."""
        plan, c = self.plan, self.c
        if plan.streams:
            return None
        result = math.prod(plan.results) * math.prod(plan.phase_strides) * c.group_count * c.width
        cycles = plan.steps * step_cycles(plan.tile.rows, plan.tile.vectors)
        processor = plan.isa.processor
        is_cached = result * ITEM_BYTES[c.dtype] < processor.l2(cost.GEMM_CACHED_RESULT_L2)
        if is_cached or cycles < _PREFETCH_CYCLES:
            return None
        strides = (c.y.batch, *c.y.space)
        dims = [
            (min(side, of) * apart, stride)
            for side, of, apart, stride in zip(
                plan.box, plan.results, plan.phase_strides, strides, strict=True
            )
        ]
        channels = min(c.width, plan.panels.lanes)
        return region_of([*dims, (channels, c.y.channels)], c.y.dtype, processor.line_bytes)


def trace_tiles(
    functions: TileFunctions, module: Module, prefix: str, pointers: int, order: tuple[int, int, int]
) -> None:
    """Trace the task ``<prefix>tiles``: a block of results, for some of its panels."""
    plan, c = functions.plan, functions.c
    with module.task(f"{prefix}tiles") as (k, args, task, thread):
        arguments = Arguments(k, args, pointers)
        memory = arguments.workspace(c.dtype) + (thread * plan.thread_elements + plan.all_panel_elements)
        x = arguments.pointer(order[0], c.x.dtype)
        tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
        tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
        # the tasks of one block follow each other, so that what they read is in the cache
        block, part = split_index(task, (plan.block_count, plan.tasks_per_block))
        each = plan.panels_per_task
        panels = part * each, (part * each + each).min(plan.panels.count)
        _zero_results_without_taps(plan, k, memory + plan.input_tile_elements)
        w = arguments.pointer(order[1], c.w.dtype) if plan.packs_in_task else panels_of_part(plan, arguments)
        # threads of even numbers take the first tasks that are left, the others the last
        up, down = ceil_div(plan.threads, 2), plan.threads // 2
        next_task = task + up if not down else k.select(thread % 2 == 0, task + up, (task - down).max(0))
        next_block, next_part = split_index(next_task, (plan.block_count + up, plan.tasks_per_block))
        alpha_beta = scale(k, args, pointers)
        following = next_block, next_part * each
        _Task(k, functions, memory, x, w, tensors, alpha_beta, panels, following).trace(block)


def _zero_results_without_taps(plan: ImplicitGemmPlan, k: Builder, sums: Pointer) -> None:
    """The sums of results without a tap are 0, and no micro-kernel writes to them."""
    if plan.interleaved.has_phases_without_taps and not plan.spills:
        for i in k.range(0, plan.tile_elements, plan.lanes):
            sums.store(k.constant(0, sums.dtype, plan.lanes), i)


class _Task:
    """The code of one task: the panels from ``panels[0]`` on to before ``panels[1]`` of one block of results.

    ``memory`` is the thread's. ``w`` is the packed filter, or the filter itself if tasks pack their panels.
    ``following`` is the block of the thread's next task, and its first panel.

    A *position* is the first result of a register tile within its block, a *result* the same within y.
    """

    def __init__(
        self, k: Builder, functions: TileFunctions, memory: Pointer, x: Pointer, w: Pointer,
        tensors: Sequence[tuple[Pointer, View]], alpha_beta: Pointer, panels: tuple[Value, Value],
        following: tuple[Value, Value],
    ) -> None:  # fmt: skip
        self.k, self.functions, self.plan, self.c = k, functions, functions.plan, functions.c
        self.memory, self.x, self.w, self.tensors = memory, x, w, tensors
        self.alpha_beta, self.panels, self.following = alpha_beta, panels, following
        self.number = k.integer(0)  # of the block
        self.input_tile = self.plan.input_tile

    def trace(self, number: Value) -> None:
        """Block ``number``."""
        k, plan, functions, panels = self.k, self.plan, self.functions, self.panels
        self.number = number
        group, starts = self._start_of_block(number)
        valid = [
            (k.integer(of) - start).min(extent)
            for of, start, extent in zip(plan.results, starts, plan.block, strict=True)
        ]
        if plan.spills:
            self._zero_sums()
        for channel, channels in self._passes():
            data = self._input(group, channel, channels, starts, valid)
            for panel in k.range(*panels):
                taps = self._panels(group, panel, channel, channels)
                base, distance = self._next_data(group, panel, channel)
                for position in self._positions(valid):
                    sums = self._sums_of(panel - panels[0], position)
                    result = [s + p for s, p in zip(starts, position, strict=True)]
                    if not plan.spills and functions.prefetch_y is not None:
                        k.call(functions.prefetch_y, self._tensors_at(group, result, panel)[0])
                    lines = self._lines_to_prefetch(base, distance, panel - panels[0], position)
                    at = self._moved_inside(starts, position)
                    for i, stride_phase in enumerate(plan.stride_phases):
                        self._multiply(
                            i, stride_phase, result, at, data, taps, sums, (channel, channels), lines
                        )
                    if not plan.spills:
                        self._store(group, result, panel, sums + self._overlap(position, at))
        if plan.spills:
            for panel in k.range(*panels):
                for position in self._positions(valid):
                    result = [s + p for s, p in zip(starts, position, strict=True)]
                    sums = self._sums_of(panel - panels[0], position)
                    at = self._moved_inside(starts, position)
                    self._store(group, result, panel, sums + self._overlap(position, at))

    # ---- the input of a block, and the panels

    def _start_of_block(self, number: Value) -> tuple[Value, list[Value]]:
        """The group of a block and its first result."""
        group, *index = split_index(number, (self.c.group_count, *self.plan.blocks))
        return group, [i * extent for i, extent in zip(index, self.plan.block, strict=True)]

    def _offset_in_x(self, group: Value, start: Sequence[Value]) -> Value:
        """The offset in x of what the block reads whose first result is ``start``."""
        positions = [
            t * axis.step + low
            for t, axis, low in zip(start[1:], self.c.axes, self.input_tile.lows, strict=True)
        ]
        return view_offset(self.c, self.c.x, group, 0, [start[0], *positions])

    def _passes(self) -> Iterator[tuple[Value, Value]]:
        """The first channel and the number of channels of each input tile."""
        k = self.k
        depth = k.integer(self.c.depth)
        if not self.plan.spills:
            yield k.integer(0), depth
            return
        for channel in k.range(0, depth, self.plan.kc):
            yield channel, (depth - channel).min(self.plan.kc)

    def _input(
        self, group: Value, channel: Value, channels: Value, starts: Sequence[Value], valid: Sequence[Value]
    ) -> Pointer:
        """The input tile, packed now, or what the block reads in x."""
        pack = self.functions.pack_input
        if pack is None:
            return self.x + (self._offset_in_x(group, starts) + channel * self.c.x.channels)
        image = self.x + view_offset(self.c, self.c.x, group, channel, (starts[0], 0, 0, 0))
        self.k.call(pack, image, self.memory, valid[0], channels, *starts[1:])
        return self.memory

    def _panels(self, group: Value, panel: Value, channel: Value, channels: Value) -> list[Pointer]:
        """The panel of each stride phase. One that the task packs gets the channels of the input tile now."""
        plan, c, pack = self.plan, self.c, self.functions.pack_panel
        if pack is None:
            index = group * plan.panels.count + panel
            pairs = zip(plan.panels_by_phase, plan.panel_offsets, strict=False)
            return [self.w + (index * panels.panel_size + offset) for panels, offset in pairs]
        to = self.memory + (plan.input_tile_elements + plan.sums_elements)
        source = self.w + group_offset(group, c.groups, c.w.groups)
        self.k.call(pack, source, to, panel * plan.panels.lanes, channel, channels)
        return [to]

    # ---- prefetch

    @property
    def prefetches_filter(self) -> bool:
        """Whether tiles prefetch the filter's next panel, and not the input of the next block."""
        lines = self.functions.prefetch_plan
        return self.functions.pack_panel is not None or (lines is not None and lines.is_panel)

    def _next_data(self, group: Value, panel: Value, channel: Value) -> tuple[Pointer, Value]:
        """A pointer into data in the cache, and the distance from there to what the thread needs next.

        That is the filter of the next panel, packed or not, from the channels of this pass on or, behind the last
        panel, of the next one; or the input of the next block.
        """
        k, plan, c = self.k, self.plan, self.c
        if not self.prefetches_filter:
            there = self._offset_in_x(*self._start_of_block(self.following[0]))
            lines = self.functions.prefetch_plan
            if lines is None or not lines.is_place:
                return self.x, there
            here = self._offset_in_x(*self._start_of_block(self.number))
            return self.x + here, there - here
        first, is_last, following = channel, panel + 1 >= self.panels[1], self.following[1]
        if plan.spills:
            is_over = channel + plan.kc >= c.depth
            channel = k.select(is_last, k.select(is_over, 0, channel + plan.kc), channel)
            following = k.select(is_over, following, self.panels[0])
        next_panel = k.select(is_last, following, panel + 1)
        if self.functions.pack_panel is None:
            here = (group * plan.panels.count + panel) * plan.panels.panel_size
            here = here + first * plan.panels.channel_stride if plan.spills else here
            distance = (next_panel - panel) * plan.panels.panel_size
            if plan.spills:
                distance = distance + (channel - first) * plan.panels.channel_stride
            return self.w + here, distance
        distance = next_panel * plan.panels.lanes
        return self.w + group_offset(group, c.groups, c.w.groups), distance * c.w.results

    def _lines_to_prefetch(
        self, base: Pointer, distance: Value, panel: Value, position: Sequence[Value]
    ) -> list[Pointer]:
        """The lines that a tile prefetches, of the data at ``base`` plus ``distance``: its part of them, no other
        tile's.

        Where fewer are left than a step prefetches, the rest are lines at ``base``.
        """
        k, plan = self.k, self.functions.prefetch_plan
        if plan is None:
            return []
        if plan.is_place:
            # once for each place, at the last panel
            here = base + position[3] * self.c.x.space[2]
            return [here + k.select(self.panels[0] + panel + 1 >= self.panels[1], distance, 0)]
        # the input of the next block is divided among all tiles of a block, the next filter among those of a panel
        tile = self._tile_number(panel * 0 if self.prefetches_filter else panel, position)
        first, end = (n * plan.total // plan.calls for n in (tile, tile + 1))
        return [
            base + k.select(number < end, plan.offset(number) + distance, 0)
            for number in (first + i for i in range(plan.lines_per_step))
        ]

    # ---- register tiles

    def _positions(self, valid: Sequence[Value]) -> Iterator[tuple[Value, Value, Value, Value]]:
        """The position of every tile of a block."""
        k, (n, d, h, w) = self.k, self.plan.box
        for i in k.range(0, valid[0], n):
            for j in k.range(0, valid[1], d):
                for p in k.range(0, valid[2], h):
                    for q in k.range(0, valid[3], w):
                        yield i, j, p, q

    def _tile_number(self, panel: Value, position: Sequence[Value]) -> Value:
        """The number of a tile among those of a block."""
        tile = panel
        for p, side, of in zip(position, self.plan.box, self.plan.block, strict=True):
            tile = tile * ceil_div(of, side) + p // side
        return tile

    def _moves_tiles(self) -> bool:
        """True if partial tiles are moved back into y, since there is no input tile with elements beyond its end."""
        return self.plan.is_input_unpacked and self.plan.has_partial_tiles

    def _moved_inside(self, starts: Sequence[Value], position: Sequence[Value]) -> list[Value]:
        """The position from which a tile is computed: a partial one overlaps the tile before it."""
        plan = self.plan
        if not self._moves_tiles():
            return list(position)
        return [
            p.min(self.k.integer(of - side) - start)
            for p, of, side, start in zip(position, plan.results, plan.box, starts, strict=True)
        ]

    def _overlap(self, position: Sequence[Value], at: Sequence[Value]) -> int | Value:
        """Elements of a tile's sums that are results of the tile before it."""
        plan = self.plan
        if not self._moves_tiles():
            return 0
        if plan.vectorizes_pixels:
            return position[3] - at[3]
        rows: int | Value = 0
        for p, q, side in zip(position, at, plan.box, strict=True):
            rows = rows * side + (p - q)
        return rows * (plan.tile.vectors * plan.lanes)

    def _zero_sums(self) -> None:
        k, plan, sums = self.k, self.plan, self.memory + self.plan.input_tile_elements
        panels = self.panels[1] - self.panels[0]
        for i in k.range(0, panels * plan.panel_sums_elements, plan.lanes):
            sums.store(k.constant(0, sums.dtype, plan.lanes), i)

    def _sums_of(self, panel: Value, position: Sequence[Value]) -> Pointer:
        """The memory of a tile's sums: each tile has its own if they are spilled."""
        plan = self.plan
        sums = self.memory + plan.input_tile_elements
        if not plan.spills:
            return sums
        return sums + self._tile_number(panel, position) * plan.tile_elements

    def _multiply(
        self, number: int, stride_phase: StridePhase, result: Sequence[Value], position: Sequence[Value],
        data: Pointer, taps: Sequence[Pointer], sums: Pointer, passing: tuple[Value, Value],
        prefetch: Sequence[Pointer],
    ) -> None:  # fmt: skip
        """Call the micro-kernel of a stride phase, for the taps that read inside.

        ``data`` is the block's input. ``passing`` are the first channel of the input tile, and how many it has.
        """
        k, plan, input_tile, panels = self.k, self.plan, self.input_tile, self.plan.panels_by_phase[number]
        row = plan.row_in_tile((0, *stride_phase.remainder))
        to = sums + row * (plan.tile.vectors * plan.lanes)
        panel = taps[number] + passing[0] * panels.channel_stride
        data = data + position[0] * input_tile.batch
        for p, step, stride in zip(position[1:], input_tile.steps, input_tile.space, strict=True):
            data = data + p * (step * stride)
        data = data + sum(
            (axis.taps.offset - low) * stride
            for axis, low, stride in zip(stride_phase.c.axes, input_tile.lows, input_tile.space, strict=True)
        )
        counts = [passing[1]] if plan.spills else []
        for i in plan.clipped_axes(stride_phase.c, plan.box):
            axis = stride_phase.c.axes[i]
            first, last = inside_taps(axis, result[1 + i], plan.box[1 + i])
            data = data + first * (axis.taps.shift * input_tile.space[i])
            panel = panel + first * panels.tap_strides[i]
            counts.append((last - first).max(0))
        a, b = (panel, data) if plan.vectorizes_pixels else (data, panel)
        k.call(self.functions.microkernels[number], a, b, to, *prefetch, *counts)

    # ---- results

    def _tensors_at(self, group: Value, result: Sequence[Value], panel: Value) -> list[Pointer]:
        """Where a tile begins in y and in the epilogue's operands."""
        in_y = [r * stride for r, stride in zip(result, self.plan.phase_strides, strict=True)]
        channel = panel * self.plan.panels.lanes
        return [t + view_offset(self.c, view, group, channel, in_y) for t, view in self.tensors]

    def _store(self, group: Value, result: Sequence[Value], panel: Value, sums: Pointer) -> None:
        """Call the store of a tile's sums."""
        k, plan, c = self.k, self.plan, self.c
        extents = (c.batch, *plan.interleaved.extents)
        in_y = [r * stride for r, stride in zip(result, plan.phase_strides, strict=True)]
        left = [k.integer(of) - r for of, r in zip(extents, in_y, strict=True)]
        channels = k.integer(c.width) - panel * plan.panels.lanes
        rest = [left[3], channels] if plan.vectorizes_pixels else [channels, *left]
        tensors = self._tensors_at(group, result, panel)
        k.call(self.functions.store, sums, self.alpha_beta, *tensors, *rest)
