"""The cost of implicit GEMM, and the choice of its plan: what lanes hold, the register tile, and the blocking.

Costs are cycles of one thread, counted from instructions and from the rates at which data arrives from each cache
level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.blocking import choose_blocking, single_block
from jitdnn.kernels.cpu.convolution.implicit_gemm.division import divided
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import (
    Block,
    Blocking,
    Geometry,
    ImplicitGemmPlan,
    pixels_of,
)
from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import bytes_in_cache, may_be_unpacked
from jitdnn.kernels.cpu.microkernel.nontemporal import convolution_stream_bytes
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile, cost_per_step
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.tap_clipping import LAST_AXIS, unclipped_fraction
from jitdnn.rtcg.isa import ITEM_BYTES

_STORE = 3.0  # to finish one vector of sums whose lanes are neighbours in y
_TRANSPOSED_SQUARE = 100.0  # to finish a square of vectors that is transposed first
_SCATTERED = 110.0  # to finish one vector whose lanes are stored one by one
_INTERLEAVED = 14.0  # more for a vector of one of several stride phases of a large y: its lines are also read
_FAR_LINE = 40.0  # to wait for a line of the filter from memory, where a panel's rows lie far apart
# of a step more for each pixel of a register tile whose channels are neighbours: a stream each
_PIXEL_STREAM = 0.009
_PANEL_STREAM = 0.2  # of the time that a panel of one tap takes to arrive, beside the products
_PACKED_IN_TASK = 0.6  # factor on packing a panel that stays in the cache until it is read


def make_plan(geometry: Geometry, threads: int = 1, prepacks: bool = False) -> ImplicitGemmPlan:
    """The plan of the least cost, its work divided among so many threads."""
    plan = _cheapest(geometry, threads, prepacks)
    copies = plan.blocking.copy_cycles / plan.blocking.min_tasks_per_block
    own = replace(plan, blocking=replace(plan.blocking, copy_cycles=0.0))
    return divided(plan, cycles(own), copies * geometry.c.group_count, threads)


def _cheapest(geometry: Geometry, threads: int, prepacks: bool) -> ImplicitGemmPlan:
    vectorizes_pixels, tile = _choose_form(geometry)
    box = pixels_of(tile, vectorizes_pixels, geometry.lanes)

    def plan_of(blocking: Blocking) -> ImplicitGemmPlan:
        is_unpacked = _is_input_unpacked(geometry, vectorizes_pixels, box, blocking)
        return ImplicitGemmPlan(
            geometry.c, geometry.isa, geometry.interleaved, geometry.min_tasks, geometry.clips_taps, geometry.may_spill,
            vectorizes_pixels=vectorizes_pixels, tile=tile,
            blocking=replace(blocking, copy_cycles=0.0) if is_unpacked else blocking,
            is_input_unpacked=is_unpacked, prepacks=prepacks, threads=threads,
        )  # fmt: skip

    plan = plan_of(choose_blocking(geometry, box, _product_cycles(geometry, vectorizes_pixels, tile)))
    if _elements_beyond_l3(plan):
        # a filter that is read once: with all results in one block no packed copy of it goes to memory and back
        single = plan_of(single_block(geometry, box))
        if single.packs_in_task and cycles(single) + _reread_cycles(single) < cycles(plan):
            return single
    return plan


def _choose_form(geometry: Geometry) -> tuple[bool, RegisterTile]:
    """(whether to vectorize over pixels, register tile): the cheaper of the two forms."""
    c, steps, results = geometry.c, max(1, geometry.steps), geometry.results
    phases = math.prod(geometry.interleaved.strides)
    vector_steps = steps // len(geometry.stride_phases or [c])
    filter_bytes, input_bytes = (n * steps * ITEM_BYTES[c.dtype] for n in (c.width, math.prod(results)))
    processor = geometry.isa.processor
    # panels of one tap stay in the L2 cache while the tiles of a block read them
    is_far = c.taps > 1 and min(filter_bytes, input_bytes) > processor.l2(cost.GEMM_REREAD_OPERAND_L2)
    rate = cost.GEMM_L3_RATE * processor.l3_rate if is_far else cost.GEMM_L2_RATE * processor.l2_rate
    vector_bytes = geometry.isa.vector_bytes

    def load_of(vectors: int) -> float:
        """A vector of a panel of so many: one that the L1 cache holds is there."""
        is_near = vector_steps * vectors * vector_bytes < processor.l1(cost.GEMM_PANEL_L1)
        return 0.0 if is_near else vector_bytes / rate

    def store_of(box: tuple[int, ...]) -> float:
        return _store_cycles(geometry, box) * phases / steps

    def copy_of(box: tuple[int, ...]) -> float:
        if may_be_unpacked(c, processor, box):
            return 0.0
        n, d, h, w = box
        products = _steps_fraction(geometry, box) * math.prod(results) * c.width / (2 * geometry.lanes)
        return choose_blocking(geometry, (n, d, h, w), products * steps).cycles / steps

    def steps_in(box: tuple[int, ...]) -> float:
        streams = math.prod(box) if c.taps == 1 and c.x.channels == 1 else 0
        return _steps_fraction(geometry, box) * (1 + _PIXEL_STREAM * streams)

    tile = choose_tile(
        results, c.width, geometry.isa, c.dtype, store_of, steps_in, copy_of, load_of,
        _PANEL_STREAM if c.taps == 1 else 0.0,
    )  # fmt: skip
    over_channels = _steps_fraction(geometry, tile.box) * cost_per_step(
        results, c.width, tile, geometry.lanes
    )
    over_channels += store_of(tile.box) * math.prod(results) * ceil_div(c.width, geometry.lanes)
    last = c.axes[2]
    if (
        phases > 1
        or (last.step != 1 and last.taps.count > 1)
        or (c.x.channels == 1 and c.x.space[2] != 1 and c.depth > 1)
    ):
        return False, tile  # neighbouring pixels would not be neighbours in the input tile
    store = (6.0 if c.y.space[2] != 1 else 2.0) / steps
    pixels = choose_tile([c.width], last.results, geometry.isa, c.dtype, store)
    rows = math.prod(results[:-1])
    over_pixels = rows * cost_per_step([c.width], last.results, pixels, geometry.lanes)
    over_pixels *= _steps_fraction(geometry, (1, 1, 1, last.results))
    over_pixels += store * rows * c.width * ceil_div(last.results, geometry.lanes)
    return (True, pixels) if over_pixels < over_channels else (False, tile)


def _is_input_unpacked(geometry: Geometry, vectorizes_pixels: bool, box: Block, blocking: Blocking) -> bool:
    """True if tiles can read x itself, and a block's input stays in the L2 cache."""
    c, last, processor = geometry.c, geometry.c.axes[2], geometry.isa.processor
    if (
        len(geometry.stride_phases) != 1
        or math.prod(geometry.interleaved.strides) > 1
        or not may_be_unpacked(c, processor, box)
    ):
        return False
    if vectorizes_pixels and (last.results < box[3] or c.x.space[2] != 1):
        return False
    size = bytes_in_cache(c, blocking.block, blocking.kc, processor.line_bytes)
    return size <= processor.l2(cost.GEMM_UNPACKED_INPUT_L2)


def _store_cycles(geometry: Geometry, box: Sequence[int]) -> float:
    """Cycles to finish one vector of a tile whose lanes are channels."""
    y = geometry.c.y
    if y.channels == 1:
        return _STORE
    run = box[-1] * geometry.phase_strides[-1]
    if (y.space[2] != geometry.phase_strides[-1] and abs(y.space[2]) != 1) or run == 1:
        return _SCATTERED
    return _TRANSPOSED_SQUARE * ceil_div(run, geometry.lanes) / run


def cycles(plan: ImplicitGemmPlan) -> float:
    """Cycles of one thread for all tasks: products, stores, copies of input and filter."""
    c, results = plan.c, plan.results
    positions = math.prod(results) * math.prod(plan.phase_strides)
    vectors: float = positions * ceil_div(c.width, plan.lanes)
    if plan.vectorizes_pixels:
        vectors = positions * c.width / plan.lanes
        if c.y.space[2] == 1:
            each = _STORE
        else:
            each = _TRANSPOSED_SQUARE / plan.lanes if c.y.channels == 1 else _SCATTERED
    else:
        each = _store_cycles(plan, plan.box)
    written = positions * c.width * c.group_count * plan.item
    is_large = written >= convolution_stream_bytes(plan.isa.processor)
    if len(plan.stride_phases) > 1 and is_large:
        each += _INTERLEAVED
    store = vectors * each
    copy = plan.blocking.copy_cycles * plan.tasks_per_block / plan.blocking.min_tasks_per_block
    copy += plan.blocking.further_cycles
    read = _elements_beyond_l3(plan) * cost.GEMM_READ_BYTES / plan.isa.processor.memory_rate
    if plan.packs_in_task:  # its rows lie far apart, and nobody prefetches their lines
        read += plan.panel_offsets[-1] * plan.item / plan.isa.processor.line_bytes * _far_line_cycles(plan)
    products = _product_cycles(plan, plan.vectorizes_pixels, plan.tile)
    return c.group_count * (products + store + copy) + pack_cycles(plan) + read


def pack_cycles(plan: ImplicitGemmPlan) -> float:
    """The part of ``cycles`` that packing the filter takes."""
    each = 0.5 if plan.c.w.results != 1 else 4.0 / plan.lanes
    packing = plan.panel_offsets[-1] * each * (_PACKED_IN_TASK if plan.packs_in_task else 1.0)
    beyond = _elements_beyond_l3(plan) * cost.GEMM_WRITE_BYTES / plan.isa.processor.memory_rate
    return packing + beyond


def _product_cycles(geometry: Geometry, vectorizes_pixels: bool, tile: RegisterTile) -> float:
    """Cycles of the products of one group."""
    c, results = geometry.c, geometry.results
    if vectorizes_pixels:
        per_step = math.prod(results[:-1]) * cost_per_step([c.width], results[-1], tile, geometry.lanes)
    else:
        per_step = cost_per_step(results, c.width, tile, geometry.lanes)
    box = pixels_of(tile, vectorizes_pixels, geometry.lanes)
    return geometry.steps * _steps_fraction(geometry, box) * per_step


def _elements_beyond_l3(plan: ImplicitGemmPlan) -> int:
    """Elements of a packed filter that leave the caches before they are read."""
    most = plan.isa.processor.last_cache(cost.GEMM_PACKED_FILTER) // plan.item
    return max(0, plan.panel_elements - most)


def _far_line_cycles(plan: ImplicitGemmPlan) -> float:
    """Cycles that packing waits for a line of a filter that is in no cache."""
    size = plan.panel_offsets[-1] * plan.item
    return _FAR_LINE if size > plan.isa.processor.last_cache(cost.GEMM_PACKED_FILTER) else 0.0


def _reread_cycles(plan: ImplicitGemmPlan) -> float:
    """Cycles to read an input tile that leaves the L2 cache again for each panel."""
    size = plan.input_tile_elements * plan.item
    if size <= plan.isa.processor.l2(cost.GEMM_INPUT_TILE_L2):
        return 0.0
    return plan.c.group_count * plan.panels.count * size / (cost.GEMM_L3_RATE * plan.isa.processor.l3_rate)


def _steps_fraction(geometry: Geometry, box: Sequence[int]) -> float:
    """The part of the steps that is left when tiles of ``box`` leave out the taps that read padding only."""
    done = 0.0
    for stride_phase in geometry.stride_phases:
        part = float(stride_phase.c.taps)
        for i in geometry.clipped_axes(stride_phase.c, box):
            part *= unclipped_fraction(stride_phase.c.axes[i], box[1 + i])
            if i == 2:
                part *= 1 + LAST_AXIS / stride_phase.c.axes[2].taps.count
        done += part
    return done / max(1, sum(stride_phase.c.taps for stride_phase in geometry.stride_phases))
