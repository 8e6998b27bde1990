"""A correlation as a implicit GEMM: plan, cost and code, shared by convolution and matrix product.

    task   : one group, one block of results (batch x space), one share of the panels of results' channels
    input tile   : the input that the block reads, copied once with its zeros        (microkernel/packing.py),
             or x itself where nothing needs to be settled                     (unpacked_input.py)
    panel  : the filter for one tile's channels, packed once per call          (microkernel/packing.py)
    tile   : sums in registers over channels and taps                          (microkernel/gemm.py)
    store  : the tile to y with alpha, beta and the epilogue                   (microkernel/epilogue_store.py)

A tile's lanes are either the result's channels (its rows are a box of pixels) or pixels along the last axis
(its rows are channels): whichever wastes fewer lanes and cycles. How panels are shared
out may depend on the number of threads, but no sum does: the result is the same to the bit with any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.implicit_gemm import cost as blocked_cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.blocking import (
    MOST_IN_PLACE,
    Blocking,
    choose_blocking,
    reaches,
)
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import TileCode
from jitdnn.kernels.cpu.convolution.implicit_gemm.pack_weights import PANEL_CHUNK, trace_pack
from jitdnn.kernels.cpu.convolution.implicit_gemm.prefetch_plan import Ahead, plan_ahead, plan_filter_ahead
from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import (
    bytes_in_cache,
    input_as_input_tile,
    may_be_in_place,
)
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides
from jitdnn.kernels.cpu.microkernel.gemm import FUSED, Loop, Products, trace_microkernel
from jitdnn.kernels.cpu.microkernel.nontemporal import CONVOLUTION_STREAM_BYTES
from jitdnn.kernels.cpu.microkernel.packing import (
    InputTile,
    Panels,
    input_tile_size,
    plan_input_tile,
    plan_panels,
    taps_are_a_run,
    trace_input_tile,
)
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, points, scale, split_index, whole_lines
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.kernels.cpu.schedule.tap_clipping import trimmed_axes
from jitdnn.rtcg.builder import Function, Module, Pointer
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_MOST_ASKED = 2  # lines of an input tile that a tile asks for with each step
_LINE = 64


@dataclass(frozen=True)
class ImplicitGemmPlan:
    """How one correlation is cut. All sizes are in elements of its type unless said otherwise.

    Of several that interleave ``c`` is the whole, and what is said of results counts those of one stride phase.
    """

    c: Correlation
    isa: Isa
    panels_before: int = 0  # elements of the packed filters of other parts that lie before this one's
    panels_after: int = 0  # and behind it: all of them together begin the workspace
    interleaved: InterleavedPhases | None = None
    wanted: int = WANTED_TASKS  # tasks that keep all threads busy
    packs_ahead: bool = False  # the whole filter is packed first, wherever it is used
    threads: int = 1  # that take turns at the tasks: so far apart are those of one thread

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def several(self) -> InterleavedPhases:
        """The correlations that are computed together."""
        return self.interleaved or InterleavedPhases.single(self.c)

    @cached_property
    def results(self) -> tuple[int, int, int, int]:
        """Results of one stride phase: batch and the three axes."""
        a, b, c = (axis.results for axis in self.c.axes)
        return self.c.batch, a, b, c

    @cached_property
    def _form(self) -> tuple[bool, RegisterTile]:
        return blocked_cost.choose_form(self)

    @property
    def vectorizes_pixels(self) -> bool:
        return self._form[0]

    @property
    def tile(self) -> RegisterTile:
        return self._form[1]

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """Pixels of one tile: batch and the three axes."""
        if self.vectorizes_pixels:
            return 1, 1, 1, self.tile.vectors * self.lanes
        n, d, h, w = self.tile.box
        return n, d, h, w

    @cached_property
    def is_in_place(self) -> bool:
        """True if tiles read x itself, and no input tile is made."""
        c, last = self.c, self.c.axes[2]
        if (
            len(self.several.stride_phases) != 1
            or math.prod(self.several.strides) > 1
            or not may_be_in_place(c)
        ):
            return False
        if self.vectorizes_pixels and (last.results < self.box[3] or c.x.space[2] != 1):
            return False
        return bytes_in_cache(c, self._input_tiles_cut.block) <= MOST_IN_PLACE

    @property
    def asks_ahead(self) -> bool:
        """True if tiles may ask for what is needed after them."""
        return len(self.several.stride_phases) == 1 and not self.waits

    @cached_property
    def ahead(self) -> Ahead | None:
        """What tiles ask for: the filter of the next panel if that is packed late, or the input of the next block."""
        tiles = math.prod(map(ceil_div, self.block, self.box))
        if not self.asks_ahead:
            return None
        if self.packs_late:
            return plan_filter_ahead(self.c, self.panels.lanes, tiles) if self.panels.count > 1 else None
        if self.tasks <= self.threads:
            return None
        ahead = plan_ahead(self.c, self.input_tile, tiles * ceil_div(self.panels.count, self.shares))
        if ahead is None or self.is_in_place:
            return ahead
        # long rows for few tiles come faster when they are copied; and what does not stay is asked for in vain
        are_few = (
            ahead.total <= _MOST_ASKED * ahead.calls
            and ahead.total * _LINE * self.c.depth <= blocked_cost.L2_BYTES
        )
        return ahead if are_few else None

    @property
    def is_ragged(self) -> bool:
        """True if the last tiles of an axis would reach beyond its end."""
        return any(of % side for of, side in zip(self.results, self.box, strict=True))

    @cached_property
    def sides(self) -> tuple[int, int, int, int]:
        """Distance in y from one result of a stride phase to the next: batch and the three axes."""
        return 1, *self.several.strides

    @cached_property
    def panels(self) -> Panels:
        """The filter's panels: a tile's channels each. Those of the first stride phase, if there are several."""
        return (
            self.panels_of(self.several.stride_phases[0].c)
            if self.several.stride_phases
            else self.panels_of(self.c)
        )

    def panels_of(self, c: Correlation) -> Panels:
        side = self.tile.box[0] if self.vectorizes_pixels else self.tile.vectors * self.lanes
        return plan_panels(c, side)

    @cached_property
    def every_panels(self) -> list[Panels]:
        """The panels of each stride phase."""
        if len(self.several.stride_phases) < 2:
            return [self.panels] * len(self.several.stride_phases)
        return [self.panels_of(stride_phase.c) for stride_phase in self.several.stride_phases]

    @cached_property
    def cut(self) -> Blocking:
        """The blocks, and what is copied of them at a time."""
        return replace(self._input_tiles_cut, cycles=0.0) if self.is_in_place else self._input_tiles_cut

    @cached_property
    def _input_tiles_cut(self) -> Blocking:
        return choose_blocking(self, self.box, blocked_cost.product_cycles(self))

    @property
    def block(self) -> tuple[int, int, int, int]:
        """Results of one block."""
        return self.cut.block

    @property
    def channels(self) -> int:
        """How many an input tile holds."""
        return self.cut.channels

    @property
    def may_wait(self) -> bool:
        """True if sums can wait in memory for products of further channels."""
        return True

    @property
    def waits(self) -> bool:
        """True if a block's sums wait in memory for the next channels."""
        return self.channels < self.c.depth

    @cached_property
    def blocks(self) -> tuple[int, int, int, int]:
        n, d, h, w = (ceil_div(of, extent) for of, extent in zip(self.results, self.block, strict=True))
        return n, d, h, w

    @property
    def _all_blocks(self) -> int:
        return self.c.group_count * math.prod(self.blocks)

    @cached_property
    def shares(self) -> int:
        """Into how many tasks the panels of one block are divided, where there are few blocks."""
        wanted = max(self.cut.shares, ceil_div(self.wanted, max(1, self._all_blocks)))
        return max(1, min(self.panels.count, wanted))

    @property
    def tasks(self) -> int:
        return self._all_blocks * self.shares

    @cached_property
    def input_tile(self) -> InputTile:
        if self.is_in_place:
            return input_as_input_tile(self.c, self.block)
        channels_last = False if self.vectorizes_pixels else None
        reach = reaches(self, self.box, self.block)
        return plan_input_tile(self.c, self.block, self.lanes, channels_last, reach, self.channels)

    @cached_property
    def input_tile_elements(self) -> int:
        if self.is_in_place:
            return 0
        reach = reaches(self, self.box, self.block)
        return whole_lines(
            input_tile_size(self.input_tile, reach, self.box, self.lanes, self.channels), self.c.dtype
        )

    @property
    def sums_of_panel(self) -> int:
        """Elements of a block's sums that wait, of one panel."""
        return self.tile_elements * math.prod(map(ceil_div, self.block, self.box))

    @cached_property
    def sums_elements(self) -> int:
        """Elements of a thread's sums: one tile, or all of a task's that wait."""
        size = self.tile_elements
        if self.is_in_place and self.is_ragged:
            size *= 2  # a store may look beyond the tile's end
        if self.waits:
            size = ceil_div(self.panels.count, self.shares) * self.sums_of_panel
        return whole_lines(size, self.c.dtype)

    @property
    def own_elements(self) -> int:
        """Elements of a thread's own memory: an input tile, sums, and a panel if it packs its own."""
        panel = whole_lines(self.panels.panel_size, self.c.dtype) if self.packs_late else 0
        return self.input_tile_elements + self.sums_elements + panel

    @cached_property
    def panel_starts(self) -> list[int]:
        """Where the packed filter of each stride phase begins, and where the last one ends."""
        starts = [0]
        for panels in self.every_panels:
            size = self.c.group_count * panels.count * panels.panel_size
            starts.append(starts[-1] + whole_lines(size, self.c.dtype))
        return starts

    @cached_property
    def packs_late(self) -> bool:
        """True if a task packs each panel right before it multiplies with it: where nobody else needs it."""
        return not self.packs_ahead and len(self.several.stride_phases) == 1 and math.prod(self.blocks) == 1

    @property
    def panel_elements(self) -> int:
        """Elements of the filter that is packed ahead."""
        return 0 if self.packs_late else self.panel_starts[-1]

    @property
    def all_panels(self) -> int:
        """Elements of the packed filters of all parts."""
        return self.panels_before + self.panel_elements + self.panels_after

    @property
    def tile_elements(self) -> int:
        return self.tile.rows * math.prod(self.sides) * self.tile.vectors * self.lanes

    def workspace(self, threads: int) -> int:
        """Bytes: the packed filters of all parts, then for each thread an input tile and sums."""
        return (self.all_panels + threads * self.own_elements) * ITEM_BYTES[self.c.dtype]

    # ---- cost

    @cached_property
    def steps(self) -> int:
        """Products in the sum of a result of each stride phase, together."""
        return self.c.depth * sum(stride_phase.c.taps for stride_phase in self.several.stride_phases)

    def cycles(self) -> float:
        """Cycles of one thread for the whole: contraction, stores, copies of input and filter."""
        return blocked_cost.cycles(self)

    def pack_cycles(self) -> float:
        """The share of ``cycles`` that packing the filter has."""
        return blocked_cost.pack_cycles(self)

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        """Pack the filter, if that is not left to the tiles, then compute them."""
        if self.packs_late:
            return [(f"{prefix}tiles", self.tasks)]
        chunks = ceil_div(self.c.depth, PANEL_CHUNK)
        passes = 1 if self.is_packed_at_once else len(self.every_panels)
        each = self.c.group_count * self.panels.count * chunks
        return [*((f"{prefix}pack{i}", each) for i in range(passes)), (f"{prefix}tiles", self.tasks)]

    # ---- code

    def trace(
        self, module: Module, prefix: str, pointers: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:  # fmt: skip
        """Trace the two phases. ``order`` holds the numbers of the pointers to x, w and y."""
        if not self.packs_late:
            self._trace_pack(module, prefix, pointers, order[1])
        self._trace_tiles(module, prefix, pointers, order, epilogue)

    def _trace_pack(self, module: Module, prefix: str, pointers: int, number: int) -> None:
        trace_pack(self, module, prefix, pointers, number)

    @property
    def is_packed_at_once(self) -> bool:
        """True if one pass over the filter fills the panels of all stride phases."""
        return len(self.several.stride_phases) > 1 and taps_are_a_run(
            [r.c for r in self.several.stride_phases]
        )

    def filter_panels(self, arguments: Arguments) -> Pointer:
        """Where the panels begin."""
        start: Pointer = arguments.kept(self.c.dtype) + self.panels_before
        return start

    def _trace_tiles(
        self, module: Module, prefix: str, pointers: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:  # fmt: skip
        c = self.c
        code = TileCode(self, module, prefix, epilogue)
        with module.task(f"{prefix}tiles") as (k, args, task, thread):
            arguments = Arguments(k, args, pointers)
            own = arguments.workspace(c.dtype) + (thread * self.own_elements + self.all_panels)
            x = arguments.pointer(order[0], c.x.dtype)
            tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            # shares of one block follow each other: what they copy is in the cache
            block, share = split_index(task, (self._all_blocks, self.shares))
            each = ceil_div(self.panels.count, self.shares)
            panels = share * each, (share * each + each).min(self.panels.count)
            code.begin(k, own + self.input_tile_elements)
            late = self.packs_late
            w = arguments.pointer(order[1], c.w.dtype) if late else self.filter_panels(arguments)
            later, of = split_index(task + self.threads, (self._all_blocks + self.threads, self.shares))
            code.block(k, block, x, w, own, tensors, scale(k, args, pointers), panels, (later, of * each))

    def trace_input_tile_of(self, module: Module, name: str) -> Function:
        return trace_input_tile(module, name, self.c, self.input_tile)

    def trimmed_axes(self, c: Correlation, box: tuple[int, ...]) -> list[int]:
        """The axes of a stride phase whose taps are counted for each tile."""
        return trimmed_axes(c, box[1:])

    @property
    def _products(self) -> Products:
        return FUSED

    def trace_contraction_of(self, module: Module, name: str, c: Correlation, panels: Panels) -> Function:
        """The micro-kernel of a stride phase; it reads its data from its first tap on."""
        input_tile = self.input_tile
        trimmed = self.trimmed_axes(c, self.box)
        depth = None if self.waits else c.depth
        # (extent, step in the input tile, step in the panel); taps that walk backwards have a negative step
        nest: list[tuple[int | None, int, int]] = [(depth, input_tile.channels, panels.channel_stride)]
        for i, (axis, stride) in enumerate(zip(c.axes, input_tile.space, strict=True)):
            count = None if i in trimmed else axis.taps.count
            nest.append((count, axis.taps.shift * stride, panels.tap_strides[i]))
        nest = [row for row in nest if row[0] != 1]
        ahead = [] if self.ahead is None else [(self.ahead.dtype, self.ahead.channel)] * self.ahead.at_once
        if self.vectorizes_pixels:
            loops = [Loop(extent, w, x) for extent, x, w in nest]
            rows = list(range(self.tile.rows))
            return trace_microkernel(
                module, name, c.dtype, rows, self.tile.vectors, loops, self.waits,
                products=self._products, ahead=ahead,
            )  # fmt: skip
        loops = [Loop(extent, x, w) for extent, x, w in nest]
        steps = (
            input_tile.batch,
            *(s * stride for s, stride in zip(input_tile.steps, input_tile.space, strict=True)),
        )
        inner = points(self.tile.box)
        rows = [sum(i * s for i, s in zip(point, steps, strict=True)) for point in inner]
        width = self.tile.vectors * self.lanes
        places = [
            self.place_in_tile([i * s for i, s in zip(point, self.sides, strict=True)]) * width
            for point in inner
        ]
        return trace_microkernel(
            module, name, c.dtype, rows, self.tile.vectors, loops, self.waits,
            products=self._products, sum_offsets=places, ahead=ahead,
        )  # fmt: skip

    def place_in_tile(self, point: Sequence[int]) -> int:
        """The row of a result of the tile among all stride phases' rows."""
        row = 0
        for i, side, many in zip(point, self.box, self.sides, strict=True):
            row = row * (side * many) + i
        return row

    @cached_property
    def streams(self) -> bool:
        """True if results go past the caches: they are large, and whole vectors of pixels are whole lines."""
        c, y, sizes = self.c, self.c.y, (*self.results, self.c.group_count, self.c.width)
        if not self.vectorizes_pixels or y.dtype != c.dtype or y.space[2] != 1:
            return False
        steps = (y.batch, y.channels, *y.groups, *y.space[:2])
        return math.prod(sizes) * ITEM_BYTES[c.dtype] >= CONVOLUTION_STREAM_BYTES and all(
            s % self.lanes == 0 for s in steps
        )

    def tile_store(self, epilogue: Epilogue | None) -> TileStore:
        c, tile = self.c, self.tile
        box: tuple[int, ...] = tile.box
        extents: tuple[int, ...] = (c.width,)
        if self.vectorizes_pixels:
            places = [TileStrides(v.dtype, (v.channels,), v.space[2]) for v in (c.y, *c.operands)]
        else:
            places = [TileStrides(v.dtype, (v.batch, *v.space), v.channels) for v in (c.y, *c.operands)]
            box = tuple(side * many for side, many in zip(tile.box, self.sides, strict=True))
            extents = (c.batch, *self.several.extents)
        return TileStore(
            c.dtype, box, extents, tile.vectors, places[0], tuple(places[1:]), epilogue,
            streams=self.streams,
        )  # fmt: skip
