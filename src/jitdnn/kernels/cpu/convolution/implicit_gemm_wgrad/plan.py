"""A filter's gradient as a implicit GEMM over pixels: plan, cost and code.

    dw[k, c, tap] = sum over images and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

    task   : one group, one chunk of channels, one share of the panels of k, one split of the blocks of pixels
    input tile   : the part of x that a block reads, with its zeros                   (packing.py)
    panel  : dy of the block as [pixel][lanes of k], one panel after the other  (packing.py)
    tile   : sums in registers; rows are a box of (channel, taps), lanes are k  (microkernel/gemm.py)
    sums   : [panel][channel][taps][lanes], carried from block to block
    finish : sums to dw, by the same task while they are in the cache; or, where the blocks are split,
             the splits added in a fixed order in a second phase                (store.py)

How the pixels are split depends on the problem alone, so the result is the same to the bit with any threads.
With a single tap x and dy can change places, so that channels are the lanes: see ``ways``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.code import trace_gradient
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.packing import is_panel_turned
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.rewrites import (
    cropped,
    exchanged,
    from_inside,
    share_reached,
)
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.store import is_turned
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import (
    InputTile,
    input_tile_extent,
    input_tile_step,
    plan_input_tile,
)
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_INPUT_TILE_BYTES = (
    320 << 10
)  # the input tile and a panel of a block share the L2 cache with the sums that stream by
_PANEL_BYTES = 128 << 10
_CACHE_BYTES = 768 << 10
_SUMS_BYTES = 8 << 20  # splitting the pixels may not cost more memory than this
_TYPICAL_PIXELS = 300  # of a block, where there are as many
_WORTH_CLIPPING = (
    0.98,
    0.98,
    0.93,
)  # share of the results left on each axis; the last one's loop is unrolled
_STEP = 0.2  # cycles that a step of the contraction takes beside its multiplications
_LINE = 2.25  # cycles to bring a cache line from the L2 cache
_LINE_BYTES = 64
_CALL = 25.0  # cycles to begin and end a tile
_FAR = 3.0  # cycles to bring a cache line from beyond the L2 cache, when it is asked for in time
_GATHER = 76.0  # cycles to gather a vector
_SHORT = 16.0  # cycles for each vector of a square that is not full
_WORTH_SHARING = 60_000.0  # cycles: less than this one thread does alone


def ways(c: Correlation, isa: Isa) -> Iterator[ImplicitGemmWgradPlan]:
    """The gradient as it is and, with a single tap, with x and dy in each other's place."""
    needed = cropped(c)
    yield ImplicitGemmWgradPlan(needed.merged(), isa)
    other = exchanged(needed)
    if other is not None:
        yield ImplicitGemmWgradPlan(other, isa, is_swapped=True)


@dataclass(frozen=True)
class Blocking:
    """How the work is divided: channels of an input tile, pixels of a block, and the shares of panels and of blocks."""

    chunk: int
    block: tuple[int, int, int, int]
    shares: int
    splits: int


@dataclass(frozen=True)
class ImplicitGemmWgradPlan:
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
    def tile(self) -> RegisterTile:
        """The box of rows that takes the fewest cycles: one with a single tap along an axis can be clipped there."""
        pixels = max(1, min(_TYPICAL_PIXELS, math.prod(self.results)))
        best = []
        choices = (
            (False, True) if axis.is_padded or (self.is_channels_last and axis.taps.count > 1) else (False,)
            for axis in self.c.axes
        )
        for sides in itertools.product(*choices):
            extents = [1 if side else extent for side, extent in zip((False, *sides), self.rows, strict=True)]
            tile = choose_tile(extents, self.c.width, self.isa, self.c.dtype, store=4.0 / pixels)
            best.append((self._work_of(tile), tile))
        return min(best, key=lambda pair: pair[0])[1]

    @property
    def is_channels_last(self) -> bool:
        """True if the input tile is: see ``packing.plan_input_tile``."""
        x = self.c.x
        return x.channels == 1 and self.c.depth > 1 and x.space[2] != 1

    def _clipped_by(self, tile: RegisterTile) -> tuple[bool, bool, bool]:
        d, h, w = (
            axis.is_padded and share_reached(axis, side) < worth
            for axis, side, worth in zip(self.c.axes, tile.box[1:], _WORTH_CLIPPING, strict=True)
        )
        return d, h, w

    def _work_of(self, tile: RegisterTile) -> float:
        """Cycles of the multiplications of one group."""
        fill = max(tile.rows * tile.vectors / 2, (tile.rows + tile.vectors) / 2, 4.0) + _STEP
        lines = float(tile.vectors)  # of a panel that exceeds the nearest cache, and of the input tile
        if self.is_channels_last:
            _, d, h, w = tile.box
            pitch = self.c.axes[2].taps.shift * self.c.depth * self.item / _LINE_BYTES
            lines = max(lines, d * h * min(w, 1 + (w - 1) * pitch))
        fill = max(fill, _LINE * lines)
        turns = math.prod(ceil_div(e, side) for e, side in zip(self.rows, tile.box, strict=True))
        pixels = float(math.prod(self.results))
        for axis, side, is_clipped in zip(self.c.axes, tile.box[1:], self._clipped_by(tile), strict=True):
            pixels *= share_reached(axis, side) if is_clipped else 1.0
        return pixels * turns * ceil_div(self.c.width, tile.vectors * self.lanes) * fill

    @cached_property
    def clipped(self) -> tuple[bool, bool, bool]:
        """The axes along which each tile keeps to the results that its taps reach."""
        return self._clipped_by(self.tile)

    def is_exact(self, axis: int, results: int) -> bool:
        """True if a block of so many results along an axis of space needs no zeros there."""
        is_whole = results == self.results[1 + axis]
        return is_whole and self.clipped[axis] and self.tile.box[1 + axis] == 1

    def _extent(self, axis: int, results: int) -> int:
        """Positions of an input tile along an axis of space."""
        if self.is_exact(axis, results):
            return from_inside(self.c.axes[axis], results).taps.span + 1
        return input_tile_extent(self.c.axes[axis], results)

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
    def cut(self) -> Blocking:
        """The cheapest division, in a time that counts the threads which too few tasks leave idle."""

        def time(cut: Blocking) -> float:
            cycles = self._cycles_of(cut)
            if cycles < _WORTH_SHARING:
                return cycles
            tasks = self.c.group_count * ceil_div(self.c.depth, cut.chunk) * cut.shares * cut.splits
            return cycles * (1 + 1 / min(tasks, 2 * WANTED_TASKS))

        return min(self._cuts(), key=time)

    def _cuts(self) -> Iterator[Blocking]:
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
                    yield Blocking(min(chunk, self.c.depth), block, shares, splits)

    def _block(self, channels: int) -> tuple[int, int, int, int]:
        """Grown from the last axis on while the input tile of ``channels`` and a panel of dy fit."""
        results = self.results

        def fits(candidate: list[int]) -> bool:
            input_tile = candidate[0] * channels
            for axis, extent in enumerate(candidate[1:]):
                input_tile *= self._extent(axis, extent)
            panel = math.prod(candidate) * self.panel
            return input_tile * self.item <= _INPUT_TILE_BYTES and panel * self.item <= _PANEL_BYTES

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
    def copied(self) -> tuple[Correlation, tuple[int, int, int, int]]:
        """The correlation and the block of it whose input tile is copied: without zeros where none is needed."""
        axes, block = list(self.c.axes), list(self.block)
        for i, results in enumerate(self.block[1:]):
            if self.is_exact(i, results):
                axes[i], block[1 + i] = from_inside(axes[i], results), 1
        n, d, h, w = block
        return replace(self.c, depth=self.chunk, axes=(axes[0], axes[1], axes[2])), (n, d, h, w)

    @cached_property
    def input_tile(self) -> InputTile:
        return plan_input_tile(*self.copied, self.lanes)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Steps in the input tile along the batch and the axes of results."""
        d, h, w = (
            input_tile_step(axis) * s for axis, s in zip(self.c.axes, self.input_tile.space, strict=True)
        )
        return self.input_tile.batch, d, h, w

    @property
    def pitches(self) -> tuple[int, int, int, int]:
        """Steps in a panel of dy along the batch and the axes of results."""
        _, d, h, w = self.block
        return d * h * w * self.panel, h * w * self.panel, w * self.panel, self.panel

    @property
    def origin(self) -> int:
        """Where the first result's first tap is in the input tile: before its begin where zeros are left out."""
        pairs = zip(self.c.axes, self.copied[0].axes, self.input_tile.space, strict=True)
        return sum((axis.taps.lowest - own.taps.lowest) * stride for axis, own, stride in pairs)

    # ---- memory

    @cached_property
    def input_tile_elements(self) -> int:
        """Room for the input tile and for what the last tiles read, and never use, beyond it."""
        reach = (self.block[0] - 1) * self.input_tile.batch + 1
        for extent, stride in zip(self.input_tile.extents, self.input_tile.space, strict=True):
            reach += (extent - 1) * stride
        for stride, rounded in zip(self.row_strides, self.padded_rows, strict=True):
            reach += (rounded - 1) * abs(stride)
        return whole_lines(reach + 8 * self.lanes, self.c.dtype)

    @property
    def row_strides(self) -> list[int]:
        """Steps in the input tile along the channels and the taps."""
        taps = [axis.taps.shift * s for axis, s in zip(self.c.axes, self.input_tile.space, strict=True)]
        return [self.input_tile.channels, *taps]

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
        """Bytes: the sums of all splits, then for each thread an input tile, a panel of a block and its own sums."""
        own = self.input_tile_elements + self.panel_elements + self.own_sum_elements
        return (self.split_elements + threads * own) * self.item

    # ---- cost

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        return self._cycles_of(self.cut)

    @cached_property
    def _work(self) -> float:
        return self._work_of(self.tile)

    @cached_property
    def _far(self) -> float:
        """Cycles more for each vector that is packed: tensors that exceed the cache come from memory."""
        c = self.c
        x = c.batch * c.depth * math.prod(axis.positions for axis in c.axes)
        y = math.prod(self.results) * c.width
        return _FAR if (x + y) * c.group_count * self.item > _CACHE_BYTES else 0.0

    def _cycles_of(self, cut: Blocking) -> float:
        c, lanes = self.c, self.lanes
        chunks, blocks = ceil_div(c.depth, cut.chunk), math.prod(self._blocks(cut.block))
        tiles = math.prod(ceil_div(e, side) for e, side in zip(self.rows, self.tile.box, strict=True))
        sums = self.panels * tiles * self.tile.rows * self.tile.vectors
        tile = _CALL + 0.5 * self.tile.rows * self.tile.vectors
        carried = (blocks - cut.splits) * sums * 3.0 + blocks * self.panels * tiles * tile

        input_tile_rows = (
            cut.block[0] * blocks * self._extent(0, cut.block[1]) * self._extent(1, cut.block[2])
        )
        extent = self._extent(2, cut.block[3])
        if self.is_channels_last:
            if chunks == 1 and c.x.space[2] == c.depth:
                each = ceil_div(extent * c.depth, lanes) * (2.0 + self._far) + 3.0
            else:
                each = extent * (ceil_div(cut.chunk, lanes) * (2.0 + self._far) + 6.0) * chunks
        else:
            step = 1 if c.axes[2].taps.count > 1 else c.axes[2].step
            each = (ceil_div(extent, lanes) * (2.0 + step * self._far) + 1.5) * c.depth
        input_tile = cut.shares * input_tile_rows * each

        step = c.y.space[2]
        run = cut.block[3]
        if run == self.results[3] and c.y.space[1] == run * step:
            run *= cut.block[2]
        if is_panel_turned(c) and run < lanes:
            turned = _SHORT if step == 1 else _GATHER
        elif is_panel_turned(c):
            turned = 3.0 + step * self._far + (step - 1) * 2.0
        else:
            turned = 2.0 + self._far if c.y.channels in (0, 1) else _GATHER
        vectors = math.prod(self.results) * self.panels * self.tile.vectors
        panels = chunks * vectors * turned
        is_dw_far = c.depth * c.width * c.taps * c.group_count * self.item > _CACHE_BYTES
        finish = sums * (2 * _FAR if is_dw_far else 0.0)
        finish += sums * ((6.0 if is_turned(c) else 3.0) + (4.0 * cut.splits if cut.splits > 1 else 0.0))
        return c.group_count * (self._work + carried + input_tile + panels + finish)

    def phases(self) -> list[tuple[str, int]]:
        finish = [("finish", self.c.group_count * self.chunks * self.panels)] if self.cut.splits > 1 else []
        return [("sums", self.tasks), *finish]

    # ---- code

    def trace(self, module: Module, pointers: int) -> None:
        """Trace the phases; the pointers are x, dy and dw."""
        trace_gradient(module, self, pointers)


def _few(most: int) -> list[int]:
    """Numbers of parts up to ``most``: 1, 2, 3, 4, 6, 8, 12, ... and ``most`` itself."""
    numbers = [1]
    while numbers[-1] < most:
        n = numbers[-1]
        numbers.append(n + 1 if n < 4 else n * 3 // 2 if n & (n - 1) == 0 else n * 4 // 3)
    return sorted({min(n, most) for n in numbers})


def _even_parts(extent: int) -> list[int]:
    """Sizes of equal parts, the whole first: every number of parts up to 64, then ever wider apart."""
    numbers = list(range(1, min(extent, 64) + 1))
    while numbers and numbers[-1] < extent:
        numbers.append(min(extent, numbers[-1] * 9 // 8))
    return sorted({ceil_div(extent, parts) for parts in numbers} | {1}, reverse=True)
