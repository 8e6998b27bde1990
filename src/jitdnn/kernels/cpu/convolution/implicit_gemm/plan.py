"""The sizes of implicit GEMM for a correlation: convolutions and matrix products.

A correlation (kernels/cpu/correlation.py) computes y [N, K, D, H, W] from x [N, C, ...] and w [K, C, taps], for each
group on its own. As a product it has N D H W rows, K columns and C x taps products in each sum. The loops of one
group, with the names of their sizes:

    for a block of results ............. block = (n, d, h, w)      tasks divide blocks, and the panels of a block
      for kc of the C channels ......... kc                        input tile [kc][what the block reads]: L2 cache
        for a panel of K ............... panels.lanes channels     panel [kc][taps][panels.lanes] of w: L1 or L2 cache
          for a register tile .......... box = (n, d, h, w)        tile.rows x tile.vectors sums: registers
            for kc channels
              for taps
                sums[row][vector] += broadcast * vector            microkernel/gemm.py

A register tile's lanes hold either K (its rows are a box of pixels, and x is broadcast), or pixels of the last axis
(its rows are channels of K, and w is broadcast): ``vectorizes_pixels``.

- The input tile is a packed copy of what the block reads, with zeros for padding (microkernel/packing.py), or x itself
  where no packing is needed (unpacked_input.py).
- Panels are packed once per call, in phases before that of the tiles, or each by the task that multiplies with it.
- Where kc < C the sums of a block are spilled to memory after each pass over kc channels; the next pass adds to them.
- The workspace is [panels of all parts] [input tile, sums, panel] of thread 0, [...] of thread 1, ...

How panels are divided into tasks may depend on the number of threads, but no sum does: results are the same to the bit
with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import input_as_input_tile
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases, StridePhase
from jitdnn.kernels.cpu.microkernel.nontemporal import convolution_stream_bytes
from jitdnn.kernels.cpu.microkernel.packing import (
    InputRange,
    InputTile,
    Panels,
    input_range,
    input_tile_size,
    plan_input_tile,
    plan_panels,
    taps_are_a_run,
)
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.kernels.cpu.schedule.tap_clipping import clipped_axes
from jitdnn.rtcg.extents import Extent, Extents
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

PACK_CHANNELS = 64  # of a panel that one packing task copies

Block = tuple[int, int, int, int]  # batch and the three axes


@dataclass(frozen=True)
class Geometry(CorrelationPlan):
    """What is to be computed, before any size is chosen.

    Where ``interleaved`` has several stride phases, ``c`` is the one that covers them, and counts of results are
    those of one stride phase."""

    interleaved: InterleavedPhases
    min_tasks: int = WANTED_TASKS  # that keep all threads busy
    clips_taps: bool = True  # tiles leave out taps that read padding only
    may_spill: bool = True  # sums may be spilled to memory between passes over the channels
    clipped: tuple[int, ...] | None = (
        None  # the axes on which taps are left out, where that was settled before
    )

    @staticmethod
    def of(c: Correlation, isa: Isa, min_tasks: int = WANTED_TASKS) -> Geometry:
        """A correlation without stride phases."""
        return Geometry(c, isa, InterleavedPhases.single(c), min_tasks)

    @property
    def stride_phases(self) -> tuple[StridePhase, ...]:
        return self.interleaved.stride_phases

    @cached_property
    def results(self) -> tuple[int, int, int, int]:
        """Results of one stride phase: batch and the three axes."""
        a, b, c = (axis.results for axis in self.c.axes)
        return self.c.batch, a, b, c

    @cached_property
    def phase_strides(self) -> tuple[int, int, int, int]:
        """Distance in y from one result of a stride phase to the next: batch and the three axes."""
        return self.interleaved.phase_strides

    @cached_property
    def steps(self) -> int:
        """Products in the sum of a result, added over all stride phases."""
        return self.c.depth * sum(stride_phase.c.taps for stride_phase in self.stride_phases)

    def clipped_axes(self, c: Correlation, box: Sequence[int]) -> list[int]:
        """The axes on which tiles of ``box`` leave out taps of the stride phase ``c``."""
        if self.clipped is not None:
            return list(self.clipped)
        return clipped_axes(c, box[1:]) if self.clips_taps else []

    def axes_clipped_by_all(self, box: Sequence[int]) -> list[bool]:
        """Whether tiles of all stride phases leave out taps, for each of the three axes."""
        clipped = [set(self.clipped_axes(stride_phase.c, box)) for stride_phase in self.stride_phases]
        return [bool(clipped) and all(i in axes for axes in clipped) for i in range(3)]

    def input_ranges(
        self, box: Sequence[int], block: Sequence[int], clipped: Sequence[bool] | None = None
    ) -> tuple[InputRange, InputRange, InputRange]:
        """What a block reads of each axis, without the padding that only clipped taps of its tiles would read."""
        a, b, c = (
            input_range(axis, block[1 + i], box[1 + i], is_clipped)
            for i, (axis, is_clipped) in enumerate(
                zip(self.c.axes, self.axes_clipped_by_all(box) if clipped is None else clipped, strict=True)
            )
        )
        return a, b, c


@dataclass(frozen=True)
class Blocking:
    """A block of results, the channels of its input tile, and into how many tasks its panels must be divided."""

    block: Block
    kc: int
    min_tasks_per_block: int
    # of copies to input tiles, and of spilled sums and panels that are read again, for all blocks of a group: no part
    # of the code
    copy_cycles: float = field(repr=False)
    further_cycles: float = field(repr=False, default=0.0)
    imbalance: float = field(
        repr=False, default=1.0
    )  # until the last thread ends, by the mean of all threads

    @property
    def cycles(self) -> float:
        """What all of it takes."""
        return self.copy_cycles + self.further_cycles


@dataclass(frozen=True, kw_only=True)
class ImplicitGemmPlan(Geometry):
    """The sizes that code is generated from, in elements of the correlation's type unless said otherwise."""

    vectorizes_pixels: bool
    tile: RegisterTile
    blocking: Blocking
    is_input_unpacked: bool  # tiles read x itself, and there is no input tile
    panels_before: int = 0  # elements of packed filters of other parts that lie before this one's
    panels_after: int = 0  # and behind it: all of them together begin the workspace
    prepacks: bool = False  # phases of their own pack the filter, even where tasks could pack their panels
    threads: int = 1  # that share the tasks, from both ends

    @property
    def takes_pixels(self) -> bool:
        """Whether extents of images may be known when the code runs only: a register tile's pixels are neighbours."""
        is_row = not self.vectorizes_pixels and math.prod(self.box[:3]) == 1
        return self.interleaved.is_single and is_row and self.c.x.channels == self.c.y.channels == 1

    def with_extents(self, made: ImplicitGemmPlan, extents: Extents) -> ImplicitGemmPlan:
        """``made``, the same with some extents that are known when the code runs, with those of blocks among them, but
        where register tiles have rows that lie as far apart as blocks are long."""
        block: list[Any] = list(self.block)
        block[0] = extents.extent("block0", block[0])
        for i in (1, 2, 3):
            if isinstance(made.c.axes[i - 1].results, Extent) and math.prod(self.box[:i]) == 1:
                block[i] = extents.extent(f"block{i}", block[i])
        n, d, h, w = block
        blocking = replace(self.blocking, block=(n, d, h, w))
        if not self.takes_pixels:
            return replace(made, blocking=blocking)
        return replace(made, blocking=blocking, clipped=tuple(self.clipped_axes(self.c, self.box)))

    @cached_property
    def box(self) -> Block:
        """Pixels of one register tile: batch and the three axes."""
        return pixels_of(self.tile, self.vectorizes_pixels, self.lanes)

    @property
    def has_partial_tiles(self) -> bool:
        """True if the last tiles of an axis reach beyond its end, or may do so for an extent that code takes."""
        results: tuple[Any, ...] = self.results  # extents among them
        pairs = zip(results, self.box, strict=True)
        return any(side > 1 and (isinstance(of, Extent) or of % side) for of, side in pairs)

    # ---- blocks and tasks

    @property
    def block(self) -> Block:
        """Results of one block."""
        return self.blocking.block

    @property
    def kc(self) -> int:
        """Channels of an input tile."""
        return self.blocking.kc

    @property
    def spills(self) -> bool:
        """True if a block's sums are spilled to memory between passes over the channels."""
        return self.kc < self.c.depth

    @cached_property
    def blocks(self) -> Block:
        n, d, h, w = (ceil_div(of, extent) for of, extent in zip(self.results, self.block, strict=True))
        return n, d, h, w

    @property
    def block_count(self) -> int:
        """Blocks of all groups."""
        return self.c.group_count * math.prod(self.blocks)

    @property
    def tiles_per_block(self) -> int:
        """Register tiles of a block, for one panel."""
        return math.prod(map(ceil_div, self.block, self.box))

    @cached_property
    def tasks_per_block(self) -> int:
        """Into how many tasks the panels of one block are divided, so that few blocks also make enough tasks."""
        least = max(self.blocking.min_tasks_per_block, ceil_div(self.min_tasks, max(1, self.block_count)))
        return max(1, min(self.panels.count, least))

    @property
    def panels_per_task(self) -> int:
        return ceil_div(self.panels.count, self.tasks_per_block)

    @property
    def tasks(self) -> int:
        return self.block_count * self.tasks_per_block

    # ---- the packed filter

    @cached_property
    def panels(self) -> Panels:
        """The panels of the first stride phase; each has the channels of one register tile."""
        return self.panels_of(self.stride_phases[0].c if self.stride_phases else self.c)

    def panels_of(self, c: Correlation) -> Panels:
        return plan_panels(c, self.tile.box[0] if self.vectorizes_pixels else self.tile.vectors * self.lanes)

    @cached_property
    def panels_by_phase(self) -> list[Panels]:
        """The panels of each stride phase."""
        if len(self.stride_phases) < 2:
            return [self.panels] * len(self.stride_phases)
        return [self.panels_of(stride_phase.c) for stride_phase in self.stride_phases]

    @cached_property
    def panel_offsets(self) -> list[int]:
        """The offset of each stride phase's panels, and the end of the last ones."""
        offsets = [0]
        for panels in self.panels_by_phase:
            size = self.c.group_count * panels.count * panels.panel_size
            offsets.append(offsets[-1] + whole_lines(size, self.c.dtype, self.isa))
        return offsets

    @cached_property
    def packs_in_task(self) -> bool:
        """True if a task packs each panel right before it multiplies with it, because no other task needs it."""
        return not self.prepacks and len(self.stride_phases) == 1 and math.prod(self.blocks) == 1

    @property
    def packs_phases_together(self) -> bool:
        """True if one pass over the filter fills the panels of all stride phases."""
        return len(self.stride_phases) > 1 and taps_are_a_run([phase.c for phase in self.stride_phases])

    @property
    def panel_elements(self) -> int:
        """Elements of the filter that is packed in phases of its own."""
        return 0 if self.packs_in_task else self.panel_offsets[-1]

    @property
    def all_panel_elements(self) -> int:
        """Elements of the packed filters of all parts."""
        return self.panels_before + self.panel_elements + self.panels_after

    # ---- the memory of a thread

    @cached_property
    def input_tile(self) -> InputTile:
        if self.is_input_unpacked:
            return input_as_input_tile(self.c, self.block)
        channels_last = False if self.vectorizes_pixels else None
        ranges = self.input_ranges(self.box, self.block)
        return plan_input_tile(self.c, self.block, self.lanes, channels_last, ranges, self.kc)

    @cached_property
    def input_tile_elements(self) -> int:
        if self.is_input_unpacked:
            return 0
        ranges = self.input_ranges(self.box, self.block)
        return whole_lines(
            input_tile_size(self.input_tile, ranges, self.box, self.lanes, self.kc), self.c.dtype, self.isa
        )

    @property
    def tile_elements(self) -> int:
        """Elements of a register tile's sums, of all stride phases."""
        return self.tile.rows * math.prod(self.phase_strides) * self.tile.vectors * self.lanes

    @property
    def panel_sums_elements(self) -> int:
        """Elements of a block's spilled sums, of one panel."""
        return self.tile_elements * self.tiles_per_block

    @cached_property
    def sums_elements(self) -> int:
        """Elements of a thread's sums: one tile, or all of a task's where they are spilled."""
        size = self.panels_per_task * self.panel_sums_elements if self.spills else self.tile_elements
        if self.is_input_unpacked:
            size += self.tile_elements  # the store of a tile that was moved back begins within its sums
        return whole_lines(size, self.c.dtype, self.isa)

    @property
    def thread_elements(self) -> int:
        """Elements of a thread's own memory: an input tile, sums, and a panel if its tasks pack their own."""
        panel = whole_lines(self.panels.panel_size, self.c.dtype, self.isa) if self.packs_in_task else 0
        return self.input_tile_elements + self.sums_elements + panel

    def workspace(self, threads: int) -> int:
        """Bytes: the packed filters of all parts, then each thread's own memory."""
        return (self.all_panel_elements + threads * self.thread_elements) * self.item

    def row_in_tile(self, point: Sequence[int]) -> int:
        """The row, among those of all stride phases, of a result at ``point`` of the tile's positions in y."""
        row = 0
        for i, side, stride in zip(point, self.box, self.phase_strides, strict=True):
            row = row * (side * stride) + i
        return row

    # ---- launch

    @cached_property
    def streams(self) -> bool:
        """True if y is written by non-temporal stores: it is large, and vectors of pixels are whole lines."""
        c, y, sizes = self.c, self.c.y, (*self.results, self.c.group_count, self.c.width)
        if not self.vectorizes_pixels or y.dtype != c.dtype or y.space[2] != 1:
            return False
        steps = (y.batch, y.channels, *y.groups, *y.space[:2])
        return math.prod(sizes) * ITEM_BYTES[c.dtype] >= convolution_stream_bytes(self.isa.processor) and all(
            s % self.lanes == 0 for s in steps
        )

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        """The launch's phases and their tasks: pack the filter, unless tasks do that, then compute the tiles."""
        if self.packs_in_task:
            return [(f"{prefix}tiles", self.tasks)]
        passes = 1 if self.packs_phases_together else len(self.stride_phases)
        tasks = self.c.group_count * self.panels.count * ceil_div(self.c.depth, PACK_CHANNELS)
        return [*((f"{prefix}pack{i}", tasks) for i in range(passes)), (f"{prefix}tiles", self.tasks)]


def pixels_of(tile: RegisterTile, vectorizes_pixels: bool, lanes: int) -> Block:
    """Pixels of a register tile: batch and the three axes."""
    if vectorizes_pixels:
        return 1, 1, 1, tile.vectors * lanes
    n, d, h, w = tile.box
    return n, d, h, w
