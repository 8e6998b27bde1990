"""How implicit GEMM cuts its work: which results make a block, and how many channels of its input are copied at a time.

A block that reads all of its channels at once keeps its sums in registers from the first product to the last. Where a
long sum or a wide filter makes the input tile of even a few results large, more would be copied for the borders between
small blocks than is used: there a block is as large as it can be, its input tile holds some channels after the others, and
the sums wait in memory meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.microkernel.packing import Reach, plan_input_tile, reach_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan

INPUT_TILE_BYTES = 256 << 10  # an input tile shares the L2 cache with the panels that stream by
MOST_IN_PLACE = 400 << 10  # of a block's input that is not copied
_SUMS_BYTES = 1 << 20  # of a block's sums that wait in memory
_WHOLE_AXIS = 1.6  # times as large an input tile may be where that spares the borders between blocks
_WIDE = 4  # vectors of results that a task makes at least: no tile is wider
_LEAST_CHANNELS = 16  # that are worth a pass over the sums
_ROW = 3.0  # cycles to begin a row of an input tile
_PART = 60.0  # a part of a row, which neighbouring blocks read again from beyond the L2 cache
_COPY = 3.0  # and to copy each vector of it
_FROM_AFAR = 20.0  # times as much does an input tile cost that does not stay in the L2 cache
_WAIT = 4.0  # cycles to bring a vector of sums to memory and back
_WORTH = 0.03  # of the products' cycles that copies may take before anything else is tried

Block = tuple[int, int, int, int]


@dataclass(frozen=True)
class Blocking:
    """A block of results, the channels that its input tile holds, and into how many tasks its panels must be divided."""

    block: Block
    channels: int
    shares: int
    cycles: float  # of copies, and of sums that wait, for all blocks of a group


def choose_blocking(plan: ImplicitGemmPlan, box: Block, products: float) -> Blocking:
    """The cheapest cut for tiles of ``box``, whose products take so many cycles."""
    c, results = plan.c, plan.results
    limit = INPUT_TILE_BYTES // ITEM_BYTES[c.dtype]

    trimmed = _trimmed(plan, box)

    def cells(block: Sequence[int]) -> int:
        return block[0] * math.prod(reach.extent for reach in _reaches(plan, box, block, trimmed))

    def leaves_work(block: Sequence[int]) -> bool:
        tasks = c.group_count * math.prod(
            ceil_div(of, max(1, e)) for e, of in zip(block, results, strict=True)
        )
        # a large block saves the copying of borders; past one image it must leave work for every thread
        return tasks >= plan.wanted or math.prod(block) <= 16 * math.prod(box)

    def fits(block: Sequence[int], spare: float) -> bool:
        return cells(block) * c.depth <= spare * limit and leaves_work(block)

    whole = _grown(box, results, fits)
    copies = _copy_cycles(plan, box, whole, c.depth)
    if cells(whole) * c.depth > _WHOLE_AXIS * limit:
        copies *= _FROM_AFAR
    cut = Blocking(whole, c.depth, 1, copies)
    if not plan.may_wait or c.taps <= 1 or cut.cycles < _WORTH * products:
        return cut
    columns = min(c.width, _WIDE * plan.lanes)

    def fits_waiting(block: Sequence[int], spare: float) -> bool:
        waiting = math.prod(block) * math.prod(plan.sides) * columns
        return (
            cells(block) * min(c.depth, _LEAST_CHANNELS) <= limit
            and waiting * ITEM_BYTES[c.dtype] <= _SUMS_BYTES
            and leaves_work(block)
        )

    block = _grown(box, results, fits_waiting)
    passes = ceil_div(c.depth, max(1, limit // max(1, cells(block))))
    channels = ceil_div(c.depth, passes)
    waiting = math.prod(block) * math.prod(plan.sides) * c.width
    shares = min(ceil_div(c.width, columns), ceil_div(waiting * ITEM_BYTES[c.dtype], _SUMS_BYTES))
    vectors = math.prod(results) * math.prod(plan.sides) * ceil_div(c.width, plan.lanes)
    cycles = shares * _copy_cycles(plan, box, block, channels) + passes * vectors * _WAIT
    return Blocking(block, channels, shares, cycles) if passes > 1 and cycles < cut.cycles else cut


def reaches(plan: ImplicitGemmPlan, box: Sequence[int], block: Sequence[int]) -> tuple[Reach, Reach, Reach]:
    """What of each axis a block's tiles read: no padding that only tiles would read whose taps are counted."""
    return _reaches(plan, box, block, _trimmed(plan, box))


def _trimmed(plan: ImplicitGemmPlan, box: Sequence[int]) -> list[bool]:
    """Along which axes every tile's taps are counted."""
    trimmed = [
        set(plan.trimmed_axes(stride_phase.c, tuple(box))) for stride_phase in plan.several.stride_phases
    ]
    return [bool(trimmed) and all(i in axes for axes in trimmed) for i in range(3)]


def _reaches(
    plan: ImplicitGemmPlan, box: Sequence[int], block: Sequence[int], trimmed: Sequence[bool]
) -> tuple[Reach, Reach, Reach]:
    a, b, c = (
        reach_of(axis, block[1 + i], box[1 + i], is_trimmed)
        for i, (axis, is_trimmed) in enumerate(zip(plan.c.axes, trimmed, strict=True))
    )
    return a, b, c


def _grown(box: Sequence[int], results: Sequence[int], fits: Callable[[Sequence[int], float], bool]) -> Block:
    """A block for tiles of ``box``, grown from the last axis on while it fits."""
    block = [min(side, extent) for side, extent in zip(box, results, strict=True)]
    for axis in (3, 2, 1, 0):
        step = max(1, box[axis])
        whole = _extended(block, axis, results[axis])
        if fits(whole, _WHOLE_AXIS):
            block = whole
        # the most steps that fit: what fits does so with fewer results, too
        fewest, most = 0, ceil_div(results[axis] - block[axis], step)
        while fewest < most:
            steps = (fewest + most + 1) // 2
            if fits(_extended(block, axis, min(results[axis], block[axis] + steps * step)), 1.0):
                fewest = steps
            else:
                most = steps - 1
        block = _extended(block, axis, min(results[axis], block[axis] + fewest * step))
        if block[axis] < results[axis]:
            break
    n, d, h, w = block
    return max(1, n), max(1, d), max(1, h), max(1, w)


def _extended(block: Sequence[int], axis: int, extent: int) -> list[int]:
    return [*block[:axis], extent, *block[axis + 1 :]]


def _copy_cycles(plan: ImplicitGemmPlan, box: Sequence[int], block: Block, channels: int) -> float:
    """Cycles to copy the input tiles of all blocks of a group."""
    c = plan.c
    extents = [reach.extent for reach in reaches(plan, box, block)]
    passes = ceil_div(c.depth, max(1, channels))
    if plan_input_tile(c, block, plan.lanes).is_channels_last:
        rows, run = block[0] * math.prod(extents) * passes, channels
    else:
        rows, run = block[0] * c.depth * extents[0] * extents[1], extents[2]
    count = math.prod(ceil_div(of, e) for of, e in zip(plan.results, block, strict=True))
    begin = _PART if c.taps > 1 and block[3] < plan.results[3] else _ROW
    return count * rows * (begin + _COPY * ceil_div(run, plan.lanes))
