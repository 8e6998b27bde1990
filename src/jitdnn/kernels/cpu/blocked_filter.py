"""A filter's gradient as a blocked contraction over pixels: plan, cost and code.

    dw[k, c, tap] = sum over images and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

    task   : one group, one chunk of channels, one share of the panels of k, one split of the blocks of pixels
    slab   : the part of x that a block reads, with its zeros                   (filter_packing.py)
    panel  : dy of the block as [pixel][lanes of k], one panel after the other  (filter_packing.py)
    tile   : sums in registers; rows are a box of (channel, taps), lanes are k  (contraction.py)
    sums   : [panel][channel][taps][lanes], carried from block to block
    finish : sums to dw, by the same task while they are in the cache; or, where the blocks are split,
             the splits added in a fixed order in a second phase                (filter_finish.py)

How the pixels are split depends on the problem alone, so the result is the same to the bit with any threads.
With a single tap x and dy can change places, so that channels are the lanes: see ``ways``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.blocked import (
    WANTED_TASKS,
    group_offset,
    points,
    scale,
    split_index,
    view_offset,
    whole_lines,
)
from jitdnn.kernels.cpu.contraction import Loop, trace_contraction
from jitdnn.kernels.cpu.correlation import Axis, Correlation, Taps
from jitdnn.kernels.cpu.filter_finish import filter_strides, is_turned, trace_finish
from jitdnn.kernels.cpu.filter_packing import is_panel_turned, trace_panel, trace_slab
from jitdnn.kernels.cpu.packing import Slab, plan_slab, slab_extent
from jitdnn.kernels.cpu.tiles import Tile, ceil_div, choose_tile, cost_per_step
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_SLAB_BYTES = 320 << 10  # the slab and a panel of a block share the L2 cache with the sums that stream by
_PANEL_BYTES = 128 << 10
_CACHE_BYTES = 768 << 10
_SUMS_BYTES = 8 << 20  # splitting the pixels may not cost more memory than this
_TYPICAL_PIXELS = 300  # of a block, where there are as many
_CALL = 25.0  # cycles to begin and end a tile
_FAR = 3.0  # cycles to bring a cache line from beyond the L2 cache, when it is asked for in time
_GATHER = 76.0  # cycles to gather a vector
_WORTH_SHARING = 60_000.0  # cycles: less than this one thread does alone


def ways(c: Correlation, isa: Isa) -> Iterator[BlockedFilter]:
    """The gradient as it is and, with a single tap, with x and dy in each other's place."""
    yield BlockedFilter(c, isa)
    if c.taps != 1 or any(axis.is_padded for axis in c.axes):
        return
    offset = c.x.offset + sum(axis.taps.offset * s for axis, s in zip(c.axes, c.x.space, strict=True))
    d, h, w = (axis.step * stride for axis, stride in zip(c.axes, c.x.space, strict=True))
    x = replace(c.x, space=(d, h, w), offset=offset)
    a, b, e = (Axis(axis.results, axis.results, 1, Taps(1, axis.taps.start)) for axis in c.axes)
    dw = replace(c.w, results=c.w.channels, channels=c.w.results)
    turned = replace(c, depth=c.width, width=c.depth, axes=(a, b, e), x=c.y, y=x, w=dw)
    yield BlockedFilter(turned.merged(), isa, is_swapped=True)


@dataclass(frozen=True)
class Cut:
    """How the work is divided: channels of a slab, pixels of a block, and the shares of panels and of blocks."""

    chunk: int
    block: tuple[int, int, int, int]
    shares: int
    splits: int


@dataclass(frozen=True)
class BlockedFilter:
    """How the gradient of one filter is cut. Sizes are in elements unless said otherwise.

    ``is_swapped``: the correlation's x is the problem's dy, and its y the problem's x.
    """

    c: Correlation
    isa: Isa
    is_swapped: bool = False

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def item(self) -> int:
        return ITEM_BYTES[self.c.dtype]

    @cached_property
    def rows(self) -> tuple[int, int, int, int]:
        """Extents of what the rows of tiles run over: channels and the three axes of taps."""
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return self.c.depth, d, h, w

    @cached_property
    def tile(self) -> Tile:
        pixels = max(1, min(_TYPICAL_PIXELS, math.prod(self.results)))
        return choose_tile(self.rows, self.c.width, self.isa, self.c.dtype, store=4.0 / pixels)

    @property
    def panel(self) -> int:
        """Result channels in one panel."""
        return self.tile.vectors * self.lanes

    @property
    def panels(self) -> int:
        return ceil_div(self.c.width, self.panel)

    @cached_property
    def padded_rows(self) -> tuple[int, int, int, int]:
        """Channels of a chunk and taps, each rounded up to whole tiles."""
        extents = (self.chunk, *self.rows[1:])
        a, b, c, d = (ceil_div(e, side) * side for e, side in zip(extents, self.tile.box, strict=True))
        return a, b, c, d

    @property
    def sum_strides(self) -> tuple[int, int, int, int]:
        """Steps in the sums along the channels and the taps."""
        _, d, h, w = self.padded_rows
        return d * h * w * self.panel, h * w * self.panel, w * self.panel, self.panel

    @property
    def chunk_size(self) -> int:
        """Sums of one chunk and one panel."""
        return math.prod(self.padded_rows) * self.panel

    @property
    def split_size(self) -> int:
        """Sums of one group and one split."""
        return self.chunks * self.panels * self.chunk_size

    @cached_property
    def results(self) -> tuple[int, int, int, int]:
        d, h, w = (axis.results for axis in self.c.axes)
        return self.c.batch, d, h, w

    # ---- division

    @property
    def chunk(self) -> int:
        return self.cut.chunk

    @property
    def chunks(self) -> int:
        return ceil_div(self.c.depth, self.chunk)

    @property
    def block(self) -> tuple[int, int, int, int]:
        return self.cut.block

    @cached_property
    def blocks(self) -> tuple[int, int, int, int]:
        return self._blocks(self.block)

    def _blocks(self, block: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        n, d, h, w = (ceil_div(of, extent) for of, extent in zip(self.results, block, strict=True))
        return n, d, h, w

    @property
    def tasks(self) -> int:
        return self.c.group_count * self.chunks * self.cut.shares * self.cut.splits

    @property
    def panels_per_share(self) -> int:
        return ceil_div(self.panels, self.cut.shares)

    @property
    def is_carried(self) -> bool:
        """True if sums wait for another block."""
        return math.prod(self.blocks) > self.cut.splits

    @cached_property
    def cut(self) -> Cut:
        """The cheapest division, in a time that counts the threads which too few tasks leave idle."""

        def time(cut: Cut) -> float:
            cycles = self._cycles_of(cut)
            if cycles < _WORTH_SHARING:
                return cycles
            tasks = self.c.group_count * ceil_div(self.c.depth, cut.chunk) * cut.shares * cut.splits
            return cycles * (1 + 2 / min(tasks, 2 * WANTED_TASKS))

        return min(self._cuts(), key=time)

    def _cuts(self) -> Iterator[Cut]:
        side = self.tile.box[0]
        columns = ceil_div(self.c.depth, side)
        for chunk in sorted({ceil_div(columns, parts) * side for parts in _few(columns)}, reverse=True):
            block = self._block(min(chunk, self.c.depth))
            blocks = math.prod(self._blocks(block))
            for splits in _few(max(1, min(blocks, 2 * WANTED_TASKS))):
                sums = splits * self.c.group_count * self.c.width * self.c.depth * self.c.taps * self.item
                if splits > 1 and sums > _SUMS_BYTES:
                    break
                for shares in _few(self.panels):
                    yield Cut(min(chunk, self.c.depth), block, shares, splits)

    def _block(self, channels: int) -> tuple[int, int, int, int]:
        """Grown from the last axis on while the slab of ``channels`` and a panel of dy fit."""
        c, results = self.c, self.results

        def fits(candidate: list[int]) -> bool:
            slab = candidate[0] * channels
            for axis, extent in zip(c.axes, candidate[1:], strict=True):
                slab *= slab_extent(axis, extent)
            panel = math.prod(candidate) * self.panel
            return slab * self.item <= _SLAB_BYTES and panel * self.item <= _PANEL_BYTES

        block = [1, 1, 1, 1]
        for axis in (3, 2, 1, 0):
            block[axis] = next(extent for extent in _even_parts(results[axis]) if extent == 1 or fits(
                [*block[:axis], extent, *block[axis + 1 :]]
            ))  # fmt: skip
            if block[axis] < results[axis]:
                break
        n, d, h, w = block
        return n, d, h, w

    @cached_property
    def slab(self) -> Slab:
        return plan_slab(replace(self.c, depth=self.chunk), self.block, self.lanes)

    # ---- memory

    @cached_property
    def slab_elements(self) -> int:
        """Room for the slab and for what the last tiles read, and never use, beyond it."""
        reach = (self.block[0] - 1) * self.slab.batch + 1
        for axis, extent, stride in zip(self.c.axes, self.block[1:], self.slab.space, strict=True):
            reach += (slab_extent(axis, extent) - 1) * stride
        for stride, rounded in zip(self._row_strides, self.padded_rows, strict=True):
            reach += (rounded - 1) * abs(stride)
        return whole_lines(reach + 8 * self.lanes, self.c.dtype)

    @property
    def _row_strides(self) -> list[int]:
        """Steps in the slab along the channels and the taps."""
        taps = [axis.taps.shift * s for axis, s in zip(self.c.axes, self.slab.space, strict=True)]
        return [self.slab.channels, *taps]

    @cached_property
    def panel_elements(self) -> int:
        return whole_lines(math.prod(self.block) * self.panel + 2 * self.lanes, self.c.dtype)

    @cached_property
    def own_sum_elements(self) -> int:
        """Sums that a task keeps to itself: of all its panels, or of one after the other."""
        if self.cut.splits > 1:
            return 0
        return whole_lines(self.chunk_size * (self.panels_per_share if self.is_carried else 1), self.c.dtype)

    @cached_property
    def split_elements(self) -> int:
        """Sums of all splits."""
        size = self.c.group_count * self.cut.splits * self.split_size if self.cut.splits > 1 else 0
        return whole_lines(size, self.c.dtype)

    def workspace(self, threads: int) -> int:
        """Bytes: the sums of all splits, then for each thread a slab, a panel of a block and its own sums."""
        own = self.slab_elements + self.panel_elements + self.own_sum_elements
        return (self.split_elements + threads * own) * self.item

    # ---- cost

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        return self._cycles_of(self.cut)

    @cached_property
    def _work(self) -> float:
        """Cycles of the multiplications of one group."""
        return math.prod(self.results) * cost_per_step(self.rows, self.c.width, self.tile, self.lanes)

    @cached_property
    def _far(self) -> float:
        """Cycles more for each vector that is packed: tensors that exceed the cache come from memory."""
        c = self.c
        x = c.batch * c.depth * math.prod(axis.positions for axis in c.axes)
        y = math.prod(self.results) * c.width
        return _FAR if (x + y) * c.group_count * self.item > _CACHE_BYTES else 0.0

    def _cycles_of(self, cut: Cut) -> float:
        c, lanes = self.c, self.lanes
        chunks, blocks = ceil_div(c.depth, cut.chunk), math.prod(self._blocks(cut.block))
        tiles = math.prod(ceil_div(e, side) for e, side in zip(self.rows, self.tile.box, strict=True))
        sums = self.panels * tiles * self.tile.rows * self.tile.vectors
        tile = _CALL + 0.5 * self.tile.rows * self.tile.vectors
        carried = (blocks - cut.splits) * sums * 3.0 + blocks * self.panels * tiles * tile

        slab_rows = cut.block[0] * blocks * slab_extent(c.axes[0], cut.block[1]) * slab_extent(
            c.axes[1], cut.block[2]
        )  # fmt: skip
        extent = slab_extent(c.axes[2], cut.block[3])
        if c.x.channels == 1 and c.depth > 1 and c.x.space[2] != 1:
            each = extent * (ceil_div(cut.chunk, lanes) * (2.0 + self._far) + 3.0) * chunks
        else:
            step = 1 if c.axes[2].taps.count > 1 else c.axes[2].step
            each = (ceil_div(extent, lanes) * (2.0 + step * self._far) + 1.5) * c.depth
        slab = cut.shares * slab_rows * each

        step = c.y.space[2]
        if is_panel_turned(c):
            turned = 3.0 + step * self._far + (step - 1) * 2.0
        else:
            turned = 2.0 + self._far if c.y.channels in (0, 1) else _GATHER
        vectors = math.prod(self.results) * self.panels * self.tile.vectors
        panels = chunks * vectors * turned
        finish = sums * ((6.0 if is_turned(c) else 3.0) + (4.0 * cut.splits if cut.splits > 1 else 0.0))
        return c.group_count * (self._work + carried + slab + panels + finish)

    def phases(self) -> list[tuple[str, int]]:
        finish = [("finish", self.c.group_count * self.chunks * self.panels)] if self.cut.splits > 1 else []
        return [("sums", self.tasks), *finish]

    # ---- code

    def trace(self, module: Module, pointers: int) -> None:
        """Trace the phases; the pointers are x, dy and dw."""
        fill = trace_slab(module, "slab", self.c, self.slab)
        turn = trace_panel(module, "panel", self.c, self.block, self.tile.vectors)
        contract, runtime = self._trace_contraction(module, "contract")
        splits = self.cut.splits
        finish = trace_finish(
            module, "store", self.c, self.tile.vectors, self.sum_strides, splits, self.split_size
        )
        with module.task("sums") as (k, args, task, thread):
            _Task(k, self, args, pointers, task, thread).trace(fill, turn, contract, runtime, finish)
        if splits == 1:
            return
        with module.task("finish") as (k, args, task, thread):
            group, chunk, panel = split_index(task, (self.c.group_count, self.chunks, self.panels))
            place = _Task(k, self, args, pointers, group * (self.tasks // self.c.group_count), thread)
            place.finish(finish, place.shared_sums(chunk, k.integer(0), panel), chunk, panel)

    def _trace_contraction(self, module: Module, name: str) -> tuple[Function, list[int]]:
        """The micro-kernel, and which of the four extents it takes at run time."""
        slab, block = self.slab, self.block
        steps = [slab.batch, *(s * stride for s, stride in zip(slab.steps, slab.space, strict=True))]
        pitches = [self.panel * math.prod(block[i + 1 :]) for i in range(4)]
        partial = [of % extent != 0 for of, extent in zip(self.results, block, strict=True)]
        loops = [
            (i, Loop(None if partial[i] else block[i], steps[i], pitches[i]))
            for i in range(4)
            if partial[i] or block[i] != 1
        ]
        box = points(self.tile.box)
        function = trace_contraction(
            module,
            name,
            self.c.dtype,
            [_flat(point, self._row_strides) for point in box],
            self.tile.vectors,
            [loop for _, loop in loops],
            accumulate=self.is_carried,
            places=[_flat(point, self.sum_strides) for point in box],
        )
        return function, [i for i, loop in loops if loop.extent is None]


class _Task:
    """The code of one task."""

    def __init__(
        self, k: Builder, plan: BlockedFilter, args: Pointer, pointers: int, task: Value, thread: Value
    ) -> None:
        self.k, self.plan, self.c = k, plan, plan.c
        self.scale = scale(k, args, pointers)
        arguments = Arguments(k, args, pointers)
        x, dy = (1, 0) if plan.is_swapped else (0, 1)
        self.x = arguments.pointer(x, self.c.x.dtype)
        self.dy = arguments.pointer(dy, self.c.y.dtype)
        self.dw = arguments.pointer(2, self.c.w.dtype)
        self.work: Pointer = arguments.workspace(self.c.dtype)
        own = plan.slab_elements + plan.panel_elements + plan.own_sum_elements
        self.slab = self.work + (thread * own + plan.split_elements)
        self.panel = self.slab + plan.slab_elements
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
            k.call(fill, image, self.slab, valid[0], channels, *starts[1:])
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
                self._tiles(contract, runtime, sums, channels, valid)
                if splits == 1:
                    with k.when(block == end - 1):
                        self.finish(finish, sums, self.chunk, panel)

    def _clear(self, sums: Pointer) -> None:
        zero = self.k.constant(0, self.c.dtype, self.plan.lanes)
        for at in self.k.range(0, self.plan.chunk_size, self.plan.lanes):
            sums.store(zero, at)

    def _tiles(
        self, contract: Function, runtime: list[int], sums: Pointer, channels: Value, valid: list[Value]
    ) -> None:
        k, plan = self.k, self.plan
        side, *sides = plan.tile.box
        tiles = tuple(ceil_div(e, s) for e, s in zip(plan.rows[1:], sides, strict=True))
        for column in k.range(0, channels, side):
            for tile in k.range(math.prod(tiles)):
                taps = [i * s for i, s in zip(split_index(tile, tiles), sides, strict=True)]
                a = self.slab + _dot([column, *taps], plan._row_strides)
                own = sums + _dot([column, *taps], list(plan.sum_strides))
                k.call(contract, a, self.panel, own, *(valid[i] for i in runtime))

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


def _few(most: int) -> list[int]:
    """Numbers of parts up to ``most``: 1, 2, 3, 4, 6, 8, 12, ... and ``most`` itself."""
    numbers = [1]
    while numbers[-1] < most:
        n = numbers[-1]
        numbers.append(n + 1 if n < 4 else n * 3 // 2 if n & (n - 1) == 0 else n * 4 // 3)
    return sorted({min(n, most) for n in numbers})


def _even_parts(extent: int) -> list[int]:
    """Sizes of equal parts, the whole first."""
    return sorted({ceil_div(extent, parts) for parts in range(1, min(extent, 64) + 1)} | {1}, reverse=True)


def _dot(point: list[Value], strides: list[int]) -> Value:
    offset = point[0] * strides[0]
    for i, stride in zip(point[1:], strides[1:], strict=True):
        offset = offset + i * stride
    return offset


def _flat(point: tuple[int, ...], strides: list[int] | tuple[int, ...]) -> int:
    return sum(i * stride for i, stride in zip(point, strides, strict=True))
