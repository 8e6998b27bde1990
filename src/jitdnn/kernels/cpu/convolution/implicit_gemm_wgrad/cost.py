"""Cycles of a wgrad as an implicit GEMM, and the tile and blocking that take the fewest.

Cycles are those of one thread that makes two multiply-adds of a vector in each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.packing import is_panel_transposed
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import Blocking, ImplicitGemmWgradPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.rewrites import (
    swapped,
    valid_fraction,
    without_padding_pixels,
)
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.store import is_dw_transposed
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import WANTED_TASKS
from jitdnn.rtcg.isa import Isa

_SPLIT_K_BYTES = 8 << 20  # of the workspace, for the sums of all splits

# Cycles of the micro-kernel.
_STEP = 0.2  # of a step of the reduction, besides its multiply-adds
_LATENCY = 4.0  # from one multiply-add into the same sum to the next
_CALL = 25.0  # to begin and end a call
_SUM_VECTOR = 0.5  # for each vector of sums of a call

# Cycles to pack one vector.
_COPY = 2.0
_TRANSPOSE = 3.0  # as part of a square of lanes x lanes
_TRANSPOSE_STEP = 2.0  # more, for each position between neighbouring pixels that is left out
_TRANSPOSE_PART = 16.0  # as part of a square with fewer pixels than lanes
_GATHER = 76.0

# Cycles to begin one row of an input tile.
_ROW = 1.5
_DENSE_ROW = 3.0  # of pixels with all their channels
_PIXEL_ROW = 6.0  # of the channels of one pixel

# Cycles to store one vector of dw.
_STORE = 3.0
_STORE_TRANSPOSED = 6.0
_REDUCE = 4.0  # to add one split

_WORTH_SHARING = 60_000.0  # cycles: below, further tasks do not pay
_TYPICAL_PIXELS = 300  # of a block, where there are as many: how often a register tile is stored
# The part of the pixels that must remain along d, h and w at most for clipping to pay: along w it keeps the loop from
# being unrolled.
_WORTH_CLIPPING = (0.98, 0.98, 0.93)


def choose_plan(c: Correlation, isa: Isa) -> ImplicitGemmWgradPlan:
    """The plan of the fewest cycles for the wgrad of a forward correlation, whose y is dy and whose w is dw."""
    return min(candidates(c, isa), key=cycles)


def candidates(c: Correlation, isa: Isa) -> Iterator[ImplicitGemmWgradPlan]:
    """The cheapest plan for x and dy as they are, and, with a single tap, for x and dy exchanged."""
    needed = without_padding_pixels(c)
    yield _plan_of(needed.merged(), isa, False)
    other = swapped(needed)
    if other is not None:
        yield _plan_of(other, isa, True)


def _plan_of(c: Correlation, isa: Isa, is_swapped: bool) -> ImplicitGemmWgradPlan:
    """The cheapest register tile, and the cheapest blocking for it."""
    smallest = ImplicitGemmWgradPlan(
        c,
        isa,
        RegisterTile((1, 1, 1, 1), 1),
        (False, False, False),
        Blocking(1, (1, 1, 1, 1), 1, 1),
        is_swapped,
    )
    tiled = min(_tilings(smallest), key=_products)
    return replace(tiled, blocking=_choose_blocking(tiled))


def cycles(plan: ImplicitGemmWgradPlan) -> float:
    """Cycles of one thread for the whole."""
    tile = _TileCycles.of(plan)
    return _cycles(tile, _BlockCycles.of(plan, tile), plan.blocking)


@dataclass(frozen=True)
class _TileCycles:
    """What the register tile determines: cycles of one group, and counts."""

    groups: int
    products: float  # of all micro-kernels
    sum_vectors: int  # of all rows and panels
    accumulate_vector: float  # to read and write a vector of sums between blocks
    beyond_l2: float  # more for each cache line that is packed
    store_vector: float  # to store a vector of sums
    store_beyond_l2: float  # more for all of them, where dw comes from beyond the L2 cache

    @staticmethod
    def of(plan: ImplicitGemmWgradPlan) -> _TileCycles:
        c, processor = plan.c, plan.isa.processor
        tensors_l2 = processor.l2(cost.GEMM_WGRAD_TENSORS_L2)
        beyond_l2 = cost.GEMM_WGRAD_LINE_L3 * processor.line_bytes / processor.l3_rate
        x = c.batch * c.depth * math.prod(axis.positions for axis in c.axes)
        dy = math.prod(plan.pixels) * c.width
        is_beyond_l2 = (x + dy) * c.group_count * plan.item > tensors_l2
        sum_vectors = plan.panels * plan.microkernel_calls * plan.tile.rows * plan.tile.vectors
        is_dw_beyond_l2 = c.depth * c.width * c.taps * c.group_count * plan.item > tensors_l2
        return _TileCycles(
            c.group_count,
            _products(plan),
            sum_vectors,
            cost.GEMM_WGRAD_SUM_L2 * processor.line_bytes / processor.l2_rate,
            beyond_l2 if is_beyond_l2 else 0.0,
            _STORE_TRANSPOSED if is_dw_transposed(c) else _STORE,
            sum_vectors * (2 * beyond_l2 if is_dw_beyond_l2 else 0.0),  # it is brought and written back
        )


@dataclass(frozen=True)
class _BlockCycles:
    """What the channels and pixels of a block determine, too: cycles of one group, and counts."""

    blocks: int  # of pixels
    calls: float  # to begin and end all micro-kernels
    x_rows: int  # rows of all input tiles, for one partition
    x_row: float  # to pack one of them
    dy: float  # to pack all panels

    @staticmethod
    def of(plan: ImplicitGemmWgradPlan, tile: _TileCycles) -> _BlockCycles:
        block, blocks = plan.blocking.block, math.prod(plan.pixel_blocks)
        d, h, w = (plan.extent(axis, pixels) for axis, pixels in enumerate(block[1:]))
        call = _CALL + _SUM_VECTOR * plan.tile.rows * plan.tile.vectors
        calls = blocks * plan.panels * plan.microkernel_calls * call
        x_row = _input_tile_row(plan, w, tile.beyond_l2)
        return _BlockCycles(
            blocks, calls, block[0] * blocks * d * h, x_row, _panel_packing(plan, tile.beyond_l2)
        )


def _cycles(tile: _TileCycles, block: _BlockCycles, blocking: Blocking) -> float:
    """Of all groups: products, sums between blocks, packing of x for each partition, packing of dy, and storing."""
    split_k = blocking.split_k
    accumulation = (block.blocks - split_k) * tile.sum_vectors * tile.accumulate_vector + block.calls
    pack_x = blocking.partitions * block.x_rows * block.x_row
    reduction = _REDUCE * split_k if split_k > 1 else 0.0
    storing = tile.store_beyond_l2 + tile.sum_vectors * (tile.store_vector + reduction)
    return tile.groups * (tile.products + accumulation + pack_x + block.dy + storing)


# ---- terms, each in cycles for one group


def _products(plan: ImplicitGemmWgradPlan) -> float:
    """The steps of all micro-kernels: bound by multiply-adds, loads, latency, or lines from the L2 cache."""
    c, tile, processor = plan.c, plan.tile, plan.isa.processor
    step = max(tile.rows * tile.vectors / 2, (tile.rows + tile.vectors) / 2, _LATENCY) + _STEP
    lines = float(tile.vectors)  # of a panel that exceeds the L1 cache, and of the input tile
    if plan.is_channels_last:
        _, d, h, w = tile.box
        pitch = c.axes[2].taps.shift * c.depth * plan.item / processor.line_bytes
        lines = max(lines, d * h * min(w, 1 + (w - 1) * pitch))
    step = max(step, lines * (cost.GEMM_WGRAD_LINE_L2 * processor.line_bytes / processor.l2_rate))
    pixels = float(math.prod(plan.pixels))
    for axis, side, is_clipped in zip(c.axes, tile.box[1:], plan.clipped, strict=True):
        pixels *= valid_fraction(axis, side) if is_clipped else 1.0
    return pixels * plan.microkernel_calls * plan.panels * step


def _input_tile_row(plan: ImplicitGemmWgradPlan, extent: int, beyond_l2: float) -> float:
    """A row of x, of all blocks of channels, into an input tile."""
    c, lanes = plan.c, plan.lanes
    if not plan.is_channels_last:
        step = 1 if c.axes[2].taps.count > 1 else c.axes[2].step
        return (ceil_div(extent, lanes) * (_COPY + step * beyond_l2) + _ROW) * c.depth
    if plan.channel_blocks == 1 and c.x.space[2] == c.depth:
        return ceil_div(extent * c.depth, lanes) * (_COPY + beyond_l2) + _DENSE_ROW
    pixel = ceil_div(plan.blocking.channels, lanes) * (_COPY + beyond_l2) + _PIXEL_ROW
    return extent * pixel * plan.channel_blocks


def _panel_packing(plan: ImplicitGemmWgradPlan, beyond_l2: float) -> float:
    """dy into panels, once for each block of channels."""
    c, step, run = plan.c, plan.c.y.space[2], plan.blocking.block[3]
    if run == plan.pixels[3] and c.y.space[1] == run * step:
        run *= plan.blocking.block[2]
    if not is_panel_transposed(c):
        vector = _COPY + beyond_l2 if c.y.channels in (0, 1) else _GATHER
    elif run >= plan.lanes:
        vector = _TRANSPOSE + step * beyond_l2 + (step - 1) * _TRANSPOSE_STEP
    else:
        vector = _TRANSPOSE_PART if step == 1 else _GATHER
    vectors = math.prod(plan.pixels) * plan.panels * plan.tile.vectors
    return plan.channel_blocks * vectors * vector


# ---- candidates


def _tilings(plan: ImplicitGemmWgradPlan) -> Iterator[ImplicitGemmWgradPlan]:
    """The plan with a register tile of any axes, or of one tap along some of them: those are clipped best."""
    c = plan.c
    pixels = max(1, min(_TYPICAL_PIXELS, math.prod(plan.pixels)))
    single = (
        (False, True) if axis.is_padded or (plan.is_channels_last and axis.taps.count > 1) else (False,)
        for axis in c.axes
    )
    for is_single in itertools.product(*single):
        extents = [1 if one else extent for one, extent in zip((False, *is_single), plan.rows, strict=True)]
        tile = choose_tile(extents, c.width, plan.isa, c.dtype, store=4.0 / pixels)
        yield replace(plan, tile=tile, clipped=_worth_clipping(c, tile))


def _worth_clipping(c: Correlation, tile: RegisterTile) -> tuple[bool, bool, bool]:
    d, h, w = (
        axis.is_padded and valid_fraction(axis, side) < worth
        for axis, side, worth in zip(c.axes, tile.box[1:], _WORTH_CLIPPING, strict=True)
    )
    return d, h, w


def _choose_blocking(plan: ImplicitGemmWgradPlan) -> Blocking:
    """The blocking of the least time, in which too few tasks leave threads idle."""
    tile = _TileCycles.of(plan)
    best, best_time = plan.blocking, math.inf
    for channels, block in _blocks(plan):
        blocked = replace(plan, blocking=Blocking(channels, block, 1, 1))
        block_cycles = _BlockCycles.of(blocked, tile)
        for blocking in _partitionings(blocked, block_cycles.blocks):
            time = _cycles(tile, block_cycles, blocking)
            if time >= _WORTH_SHARING:
                tasks = blocked.tasks * blocking.partitions * blocking.split_k
                time *= 1 + 1 / min(tasks, 2 * WANTED_TASKS)
            if time < best_time:
                best, best_time = blocking, time
    return best


def _blocks(plan: ImplicitGemmWgradPlan) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Channels of a block, in whole register tiles, and as many pixels as fit with them."""
    side, depth = plan.tile.box[0], plan.c.depth
    tiles = ceil_div(depth, side)
    for rounded in sorted({ceil_div(tiles, parts) * side for parts in _part_counts(tiles)}, reverse=True):
        channels = min(rounded, depth)
        yield channels, _grow_block(plan, channels)


def _partitionings(plan: ImplicitGemmWgradPlan, blocks: int) -> Iterator[Blocking]:
    """The plan's block with every number of splits that there is room for, and of partitions."""
    c, blocking = plan.c, plan.blocking
    split_bytes = c.group_count * c.width * c.depth * c.taps * plan.item
    for split_k in _part_counts(max(1, min(blocks, 2 * WANTED_TASKS))):
        if split_k > 1 and split_k * split_bytes > _SPLIT_K_BYTES:
            break
        for partitions in _part_counts(plan.panels):
            yield Blocking(blocking.channels, blocking.block, partitions, split_k)


def _grow_block(plan: ImplicitGemmWgradPlan, channels: int) -> tuple[int, int, int, int]:
    """The largest block, grown from the last axis on, whose input tile of ``channels`` and panel of dy fit."""
    processor = plan.isa.processor
    input_tile_bytes = processor.l2(cost.GEMM_WGRAD_INPUT_TILE_L2)
    panel_bytes = processor.l2(cost.GEMM_WGRAD_PANEL_L2)

    def fits(candidate: list[int]) -> bool:
        input_tile = candidate[0] * channels
        for axis, pixels in enumerate(candidate[1:]):
            input_tile *= plan.extent(axis, pixels)
        panel = math.prod(candidate) * plan.panel_width
        return input_tile * plan.item <= input_tile_bytes and panel * plan.item <= panel_bytes

    block = [1, 1, 1, 1]
    for axis in (3, 2, 1, 0):
        block[axis] = next(extent for extent in _even_parts(plan.pixels[axis]) if extent == 1 or fits(
            [*block[:axis], extent, *block[axis + 1 :]]
        ))  # fmt: skip
        if block[axis] < plan.pixels[axis]:
            break
    n, d, h, w = block
    return n, d, h, w


def _part_counts(most: int) -> list[int]:
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
