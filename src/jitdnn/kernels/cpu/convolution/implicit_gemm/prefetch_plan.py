"""Which cache lines register tiles prefetch while they compute, for the thread's next block or next panel.

From channel to channel the addresses of an image jump too far for the hardware prefetcher, and so do those of a filter
from one result to the next. Where channels are neighbours, and tiles read the image itself, a tile reads a dozen rows
side by side, each to its end before the hardware prefetcher has found it. So each tile prefetches a few lines with
every step of its outermost loop, the channels: all tiles of a block together the input of the thread's next block, or
the filter of the panel that is packed next. And where panels were packed before, too many of them for the L2 cache, all
tiles of a panel together prefetch the next one: else only the first of them waits for it, at the rate of what is
beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import InputTile, source_steps
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, split_index
from jitdnn.rtcg.builder import Value
from jitdnn.rtcg.isa import item_bytes

_MOST_LINES = 4  # that a step prefetches
_MOST_LINES_OF_A_TILE = 2  # that a step prefetches of an input tile


@dataclass(frozen=True)
class PrefetchPlan:
    """Lines of memory of type ``dtype`` to prefetch for each channel. Strides are in elements.

    The lines form rows with the extents ``counts`` and the ``strides``. A row has ``lines`` lines, ``pitch`` apart, the
    last of which holds element ``last``. ``channel`` is the stride from one channel to the next. Each of
    ``calls`` register tiles prefetches ``lines_per_step`` lines with each channel.
    """

    dtype: str
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    lines: int
    last: int
    pitch: int
    channel: int
    calls: int
    is_panel: bool = False  # the lines are those of the next panel that was packed before
    is_place: bool = False  # they follow each other from where the next block's tile in the same place begins

    @property
    def total(self) -> int:
        return math.prod(self.counts) * self.lines

    @property
    def lines_per_step(self) -> int:
        return min(_MOST_LINES, ceil_div(self.total, max(1, self.calls)))

    def offset(self, number: Value) -> Value:
        """The offset of line ``number`` from the first element of a channel."""
        *outer, line = split_index(number, (*self.counts, self.lines))
        offset = (line * self.pitch).min(self.last)
        for i, stride in zip(outer, self.strides, strict=True):
            offset = offset + i * stride
        return offset


def plan_prefetch(plan: ImplicitGemmPlan) -> PrefetchPlan | None:
    """What tiles prefetch: the filter of the next panel if tasks pack their panels, the input of the next block, or the
    next panel."""
    if len(plan.stride_phases) != 1:
        return None
    if plan.spills:
        return None if plan.packs_in_task else _panel_lines(plan)
    processor = plan.isa.processor
    line = processor.line_bytes
    if plan.packs_in_task:
        if plan.panels.count <= 1:
            return None
        return _filter_lines(plan.c, plan.panels.lanes, plan.tiles_per_block, line)
    found = _panel_lines(plan) if plan.c.x.channels == 1 else None
    if found is None and plan.tasks > plan.threads and _reads_neighbours(plan):
        # as many lines as there are channels: those of 16 pixels of f32
        pitch = line // plan.item
        return PrefetchPlan(plan.c.x.dtype, (), (), 1, 0, pitch, pitch, 1, is_place=True)
    if found is None and plan.tasks > plan.threads:
        found = _input_lines(plan.c, plan.input_tile, plan.tiles_per_block * plan.panels_per_task, line)
    if found is None:
        return _panel_lines(plan)
    if plan.is_input_unpacked:
        return found
    # long rows for few tiles are read faster by the copy itself, and lines beyond the L2 cache would not stay in it
    are_few = found.total <= _MOST_LINES_OF_A_TILE * found.calls
    are_resident = found.total * line * plan.c.depth <= processor.l2(cost.GEMM_PREFETCHED_INPUT_L2)
    return found if are_few and are_resident else None


def _reads_neighbours(plan: ImplicitGemmPlan) -> bool:
    """Whether tiles read pixels that follow each other, with all their channels, from an image that is not cached."""
    c, processor = plan.c, plan.isa.processor
    size = math.prod(plan.results) * c.group_count * c.depth * plan.item
    return (
        plan.is_input_unpacked
        and not plan.vectorizes_pixels
        and c.depth > 1
        and c.x.channels == 1
        and c.x.space[2] == c.depth
        and math.prod(plan.box[:3]) == 1
        and size > processor.l2(cost.GEMM_CACHED_INPUT_L2)
    )


def _input_lines(c: Correlation, input_tile: InputTile, calls: int, line_bytes: int) -> PrefetchPlan | None:
    """The input of a block, prefetched by ``calls`` tiles; None where x is not read channel by channel."""
    if abs(c.x.channels) == 1 or c.depth == 1 or any(stride < 0 for stride in c.x.space):
        return None
    pitch = line_bytes // item_bytes(c.x.dtype)
    steps = source_steps(c)
    dims = [(extent, step * s) for extent, step, s in zip(input_tile.extents, steps, c.x.space, strict=True)]
    length, rows = 1, list[tuple[int, int]]()
    for extent, stride in [*dims[::-1], (input_tile.block[0], c.x.batch)]:
        if not rows and stride <= length + pitch:
            length += (extent - 1) * stride
        elif extent > 1:
            rows.insert(0, (extent, stride))
    counts, strides = tuple(extent for extent, _ in rows), tuple(stride for _, stride in rows)
    lines = 1 if length == 1 else (length - 2) // pitch + 2
    return PrefetchPlan(c.x.dtype, counts, strides, lines, length - 1, pitch, c.x.channels, calls)


def _panel_lines(plan: ImplicitGemmPlan) -> PrefetchPlan | None:
    """The next packed panel; None where the L2 cache holds all of them."""
    panels, processor = plan.panels, plan.isa.processor
    size = plan.c.group_count * panels.count * panels.panel_size * plan.item
    if panels.count <= 1 or size <= processor.l2(cost.GEMM_REREAD_OPERAND_L2):
        return None
    pitch = processor.line_bytes // plan.item
    lines = ceil_div(panels.channel_stride, pitch)
    return PrefetchPlan(
        plan.c.dtype, (), (), lines, panels.channel_stride - 1, pitch, panels.channel_stride, plan.tiles_per_block,
        is_panel=True,
    )  # fmt: skip


def _filter_lines(c: Correlation, panel: int, calls: int, line_bytes: int) -> PrefetchPlan | None:
    """The filter of ``panel`` channels of results, prefetched by ``calls`` tiles; None where it is scattered."""
    pitch = line_bytes // item_bytes(c.w.dtype)
    if c.depth == 1:
        return None
    if c.w.results == 1 and c.taps == 1:
        lines = (panel - 2) // pitch + 2
        return PrefetchPlan(c.w.dtype, (), (), lines, panel - 1, pitch, c.w.channels, calls)
    if c.w.results != c.depth * c.taps or c.w.channels != c.taps:
        return None
    # contiguous: each step prefetches the next line
    lines = ceil_div(panel * c.taps, pitch)
    return PrefetchPlan(c.w.dtype, (), (), lines, panel * c.w.results, c.depth * pitch, pitch, calls)
