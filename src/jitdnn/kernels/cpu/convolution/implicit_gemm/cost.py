"""What a implicit GEMM costs, and which of its two forms is the cheaper.

Cycles of one thread, counted from instructions, with the rates at which what is not in the first cache arrives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.convolution.implicit_gemm.blocking import choose_blocking
from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import may_be_in_place
from jitdnn.kernels.cpu.microkernel.nontemporal import CONVOLUTION_STREAM_BYTES
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile, cost_per_step, nothing
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.tap_clipping import LAST_AXIS, unclipped_fraction
from jitdnn.rtcg.isa import ITEM_BYTES

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan

_L1_BYTES = 32 << 10
L2_BYTES = 512 << 10
_L3_BYTES = 16 << 20
_WRITE_FAR, _READ_AGAIN = 2.0, 6.0  # cycles an element of a packed filter that is larger, written and read
_STREAM_RATE = 20.0  # bytes a cycle of a panel from beyond the L1 cache that do not hold up the sums
_FAR_RATE = 12.0  # and from beyond the L2 cache, where every block reads a large filter again
_STORE = 3.0  # to finish one vector of sums whose lanes are neighbours in y
_SQUARE = 100.0  # a square of vectors that is turned first
_SCATTERED = 110.0  # one vector whose lanes are stored on their own
_WOVEN = 14.0  # more for one of a large result that several stride phases make: its lines are read before they are written
_LATE = 0.6  # times as long does it take to pack a panel that nothing is written to memory for


def choose_form(plan: ImplicitGemmPlan) -> tuple[bool, RegisterTile]:
    """(lanes are pixels, tile): the cheaper of the two ways round."""
    c, steps, results = plan.c, max(1, plan.steps), plan.results
    many = math.prod(plan.several.strides)
    panel = steps // len(plan.several.stride_phases or [c]) * 2 * plan.isa.vector_bytes
    filter_bytes, input_bytes = (n * steps * ITEM_BYTES[c.dtype] for n in (c.width, math.prod(results)))
    is_far = filter_bytes > L2_BYTES and input_bytes > L2_BYTES
    rate = _FAR_RATE if is_far else _STREAM_RATE
    stream = 0.0 if panel < _L1_BYTES else plan.isa.vector_bytes / rate

    def store_of(box: tuple[int, ...]) -> float:
        return store_cycles(plan, box) * many / steps

    def copy_of(box: tuple[int, ...]) -> float:
        n, d, h, w = box
        products = _steps_of(plan, box) * math.prod(results) * c.width / (2 * plan.lanes)
        return choose_blocking(plan, (n, d, h, w), products * steps).cycles / steps

    def steps_in(box: tuple[int, ...]) -> float:
        return _steps_of(plan, box)

    copies = nothing if may_be_in_place(c) else copy_of
    tile = choose_tile(results, c.width, plan.isa, c.dtype, store_of, steps_in, copies, stream)
    cost = _steps_of(plan, tile.box) * cost_per_step(results, c.width, tile, plan.lanes)
    cost += store_of(tile.box) * math.prod(results) * ceil_div(c.width, plan.lanes)
    last = c.axes[2]
    if (
        many > 1
        or (last.step != 1 and last.taps.count > 1)
        or (c.x.channels == 1 and c.x.space[2] != 1 and c.depth > 1)
    ):
        return False, tile  # neighbouring pixels would not be neighbours in the input tile
    turned = c.y.space[2] != 1
    store = (6.0 if turned else 2.0) / steps
    pixels = choose_tile([c.width], last.results, plan.isa, c.dtype, store)
    turns = math.prod(results[:-1])
    other = turns * cost_per_step([c.width], last.results, pixels, plan.lanes)
    other *= _steps_of(plan, (1, 1, 1, last.results))
    other += store * turns * c.width * ceil_div(last.results, plan.lanes)
    return (True, pixels) if other < cost else (False, tile)


def store_cycles(plan: ImplicitGemmPlan, box: tuple[int, ...]) -> float:
    """Cycles to finish one vector of a tile whose lanes are channels."""
    y = plan.c.y
    if y.channels == 1:
        return _STORE
    run = box[-1] * plan.sides[-1]
    if (y.space[2] != plan.sides[-1] and abs(y.space[2]) != 1) or run == 1:
        return _SCATTERED
    return _SQUARE * ceil_div(run, plan.lanes) / run


def cycles(plan: ImplicitGemmPlan) -> float:
    """Cycles of one thread for the whole: contraction, stores, copies of input and filter."""
    c, results = plan.c, plan.results
    vectors = math.prod(results) * math.prod(plan.sides) * c.width / plan.lanes
    if plan.vectorizes_pixels:
        each = _STORE if c.y.space[2] == 1 else _SQUARE / plan.lanes if c.y.channels == 1 else _SCATTERED
    else:
        each = store_cycles(plan, plan.box)
    is_large = vectors * c.group_count * plan.isa.vector_bytes >= CONVOLUTION_STREAM_BYTES
    if len(plan.several.stride_phases) > 1 and is_large:
        each += _WOVEN
    store = vectors * each
    copy = plan.cut.cycles * plan.shares / plan.cut.shares
    read = _from_memory(plan) * _READ_AGAIN
    return c.group_count * (product_cycles(plan) + store + copy) + pack_cycles(plan) + read


def product_cycles(plan: ImplicitGemmPlan) -> float:
    """Cycles of the products of one group."""
    c, results = plan.c, plan.results
    if plan.vectorizes_pixels:
        per_step = math.prod(results[:-1]) * cost_per_step([c.width], results[-1], plan.tile, plan.lanes)
    else:
        per_step = cost_per_step(results, c.width, plan.tile, plan.lanes)
    return plan.steps * _steps_of(plan, plan.box) * per_step


def pack_cycles(plan: ImplicitGemmPlan) -> float:
    """The share of ``cycles`` that packing the filter has."""
    each = 0.5 if plan.c.w.results != 1 else 4.0 / plan.lanes
    # a panel that is packed late is still in the cache when it is read
    near = plan.panel_starts[-1] * each * (_LATE if plan.packs_late else 1.0)
    return near + _from_memory(plan) * _WRITE_FAR


def _from_memory(plan: ImplicitGemmPlan) -> int:
    """Elements of a packed filter that no cache holds until they are read."""
    held = _L3_BYTES // ITEM_BYTES[plan.c.dtype]
    return max(0, plan.panel_elements - held)


def _steps_of(plan: ImplicitGemmPlan, box: tuple[int, ...]) -> float:
    """The part of the steps that tiles of a box do, those that read nothing but padding being left out."""
    done = 0.0
    for stride_phase in plan.several.stride_phases:
        part = float(stride_phase.c.taps)
        for i in plan.trimmed_axes(stride_phase.c, box):
            part *= unclipped_fraction(stride_phase.c.axes[i], box[1 + i])
            if i == 2:
                part *= 1 + LAST_AXIS / stride_phase.c.axes[2].taps.count
        done += part
    return done / max(1, sum(stride_phase.c.taps for stride_phase in plan.several.stride_phases))
