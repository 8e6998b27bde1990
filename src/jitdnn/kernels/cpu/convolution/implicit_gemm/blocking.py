"""The choice of implicit GEMM's blocking: the results of a block, and how many channels its input tile holds (Kc).

With all channels in one input tile, sums stay in registers from the first product to the last. If the filter is wide,
or the sum long, such an input tile covers few results, and more is copied for the borders between blocks than is used.
There a block is as large as its sums allow, its input tile holds Kc channels at a time, and the sums are spilled to
memory between the passes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Block, Blocking, Geometry
from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import may_be_unpacked
from jitdnn.kernels.cpu.microkernel.packing import plan_input_tile
from jitdnn.kernels.cpu.microkernel.register_tiles import MAX_VECTORS
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import ITEM_BYTES, item_bytes

_WHOLE_AXIS = (
    1.6  # factor on the largest input tile, if the block then covers an axis and has no borders there
)
_TASK_VECTORS = 4  # vectors of results' channels that a task computes at least: no register tile is wider
_LEAST_KC = 16  # channels that are worth a pass over the sums
_ROW = 3.0  # cycles to begin a row of an input tile
_PARTIAL_ROW = (
    60.0  # the same for a part of a row: neighbouring blocks read it again, from beyond the L2 cache
)
_COPY = 3.0  # cycles to copy each vector of a row
_BEYOND_L2 = 20.0  # factor on the copies of an input tile that does not stay in the L2 cache
_SPILL = 4.0  # cycles to write a vector of sums to memory and read it back
_PREFETCHING_TILES = 2.0  # of a panel, which do not hide any of the time that the next one takes to arrive
#: over the channels of one tap, of which the cheapest number is taken
_PASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_COPY_FRACTION = 0.03  # of the products' cycles: copies that take less need no other blocking


def choose_blocking(geometry: Geometry, box: Block, product_cycles: float) -> Blocking:
    """The cheapest blocking for register tiles of ``box`` pixels, where a group's products take ``product_cycles``."""
    c, results = geometry.c, geometry.results
    processor = geometry.isa.processor
    limit = processor.l2(cost.GEMM_INPUT_TILE_L2) // ITEM_BYTES[c.dtype]
    most_sums = processor.l2(cost.GEMM_SPILLED_SUMS_L2) // ITEM_BYTES[c.dtype]
    clipped = geometry.axes_clipped_by_all(box)

    def positions(block: Sequence[int]) -> int:
        """Elements of an input tile for each channel."""
        return block[0] * math.prod(axis.extent for axis in geometry.input_ranges(box, block, clipped))

    def leaves_tasks(block: Sequence[int]) -> bool:
        tasks = c.group_count * math.prod(
            ceil_div(of, max(1, e)) for e, of in zip(block, results, strict=True)
        )
        # a large block saves copies at its borders, but beyond 16 tiles it must leave tasks for every thread
        return tasks >= geometry.min_tasks or math.prod(block) <= 16 * math.prod(box)

    most_results = _most_results(geometry, box)

    def fits(block: Sequence[int], slack: float) -> bool:
        return (
            positions(block) * c.depth <= slack * limit
            and math.prod(block) <= most_results
            and leaves_tasks(block)
        )

    block = _largest_block(box, results, fits)
    copies = _copy_cycles(geometry, box, block, c.depth)
    if positions(block) * c.depth > _WHOLE_AXIS * limit:
        copies *= _BEYOND_L2
    unspilled = Blocking(block, c.depth, 1, copies, _panel_cycles(geometry, box, block))
    if geometry.may_spill and c.taps == 1 and unspilled.further_cycles:
        return _one_tap_blocking(geometry, box, unspilled, leaves_tasks)
    if not geometry.may_spill or c.taps <= 1 or unspilled.cycles < _COPY_FRACTION * product_cycles:
        return unspilled
    columns = _columns(geometry)

    def fits_spilled(block: Sequence[int], slack: float) -> bool:
        sums = math.prod(block) * math.prod(geometry.phase_strides) * columns
        return (
            positions(block) * min(c.depth, _LEAST_KC) <= limit and sums <= most_sums and leaves_tasks(block)
        )

    block = _largest_block(box, results, fits_spilled)
    passes = ceil_div(c.depth, max(1, limit // max(1, positions(block))))
    kc = ceil_div(c.depth, passes)
    sums = math.prod(block) * math.prod(geometry.phase_strides) * c.width
    tasks = min(ceil_div(c.width, columns), ceil_div(sums, most_sums))
    spilled = _spilled(geometry, box, block, kc, tasks)
    return spilled if passes > 1 and spilled.cycles < unspilled.cycles else unspilled


def _one_tap_blocking(
    geometry: Geometry, box: Block, unspilled: Blocking, leaves_tasks: Callable[[Sequence[int]], bool]
) -> Blocking:
    """The cheapest blocking where every block reads panels again from beyond the L2 cache.

    Fewer blocks spill sums; and where there are fewer than tasks, each task copies the input tile that it shares.
    """
    c, processor = geometry.c, geometry.isa.processor
    limit = processor.l2(cost.GEMM_INPUT_TILE_L2) // ITEM_BYTES[c.dtype]
    most_sums = processor.l2(cost.GEMM_SPILLED_SUMS_L2) // ITEM_BYTES[c.dtype]
    columns, line = _columns(geometry), processor.line_bytes // ITEM_BYTES[c.dtype]
    copies = 0 if may_be_unpacked(c, processor, box) else 1

    def cycles(blocking: Blocking) -> float:
        tasks = ceil_div(geometry.min_tasks, c.group_count * _blocks(geometry, blocking.block))
        copied = max(1.0, tasks / blocking.min_tasks_per_block) * blocking.copy_cycles
        return copies * copied + blocking.further_cycles

    best, least = unspilled, cycles(unspilled)
    for passes, is_shared in itertools.product(_PASSES, (False, True)):
        kc = min(c.depth, ceil_div(ceil_div(c.depth, passes), line) * line)
        if passes > 1 and (kc < _LEAST_KC or kc == c.depth):
            break

        def fits(block: Sequence[int], slack: float, kc: int = kc, is_shared: bool = is_shared) -> bool:
            may_share = is_shared or leaves_tasks(block)
            rows = math.prod(block)
            return rows * kc <= limit and 2 * columns * _rows_of_tiles(block, box) <= most_sums and may_share

        block = _evened(geometry, box, fits)
        # a task's panels are whole ones, the last of which may begin within its share
        share = max(columns, most_sums // _rows_of_tiles(block, box) - columns)
        found = _spilled(geometry, box, block, kc, 1 if passes == 1 else ceil_div(c.width, share))
        if cycles(found) < least:
            best, least = found, cycles(found)
    return best


def _evened(geometry: Geometry, box: Block, fits: Callable[[Sequence[int], float], bool]) -> Block:
    """The largest block, made smaller where as many of equal size do."""
    n, d, h, w = _largest_block(box, geometry.results, fits)
    each = ceil_div(geometry.results[3], ceil_div(geometry.results[3], w))
    return n, d, h, min(w, ceil_div(each, box[3]) * box[3])


def _blocks(geometry: Geometry, block: Block) -> int:
    """Blocks of a group."""
    return math.prod(ceil_div(of, e) for of, e in zip(geometry.results, block, strict=True))


def _rows_of_tiles(block: Sequence[int], box: Sequence[int]) -> int:
    """Pixels of the register tiles of a block, with those that are none of its results."""
    return math.prod(ceil_div(of, side) * side for of, side in zip(block, box, strict=True))


def _spilled(geometry: Geometry, box: Block, block: Block, kc: int, tasks: int) -> Blocking:
    """A blocking whose sums are spilled between passes over ``kc`` channels, if those are not all."""
    c, passes = geometry.c, ceil_div(geometry.c.depth, max(1, kc))
    vectors = math.prod(geometry.results) * math.prod(geometry.phase_strides)
    vectors *= ceil_div(c.width, geometry.lanes)
    spills = passes * vectors * _SPILL if passes > 1 else 0.0
    copies = tasks * _copy_cycles(geometry, box, block, kc)
    return Blocking(block, kc, tasks, copies, spills + _panel_cycles(geometry, box, block))


def _columns(geometry: Geometry) -> int:
    """Channels of results that a task computes at least."""
    return min(geometry.c.width, _TASK_VECTORS * geometry.lanes)


def _panel_cycles(geometry: Geometry, box: Block, block: Block) -> float:
    """Cycles in which blocks behind the first wait for panels of one tap that the L2 cache does not hold, of a group.

    The tiles of a block prefetch the next panel, and hide the more of it, the more they are.
    """
    c, processor = geometry.c, geometry.isa.processor
    size = c.width * c.depth * ITEM_BYTES[c.dtype]
    if c.taps != 1 or size <= processor.l2(cost.GEMM_NEAR_FILTER_L2):
        return 0.0
    tiles = _rows_of_tiles(block, box) / math.prod(box)
    waiting = min(1.0, _PREFETCHING_TILES / tiles)
    return waiting * (_blocks(geometry, block) - 1) * size / (cost.GEMM_L3_RATE * processor.l3_rate)


def _most_results(geometry: Geometry, box: Block) -> float:
    """Positions of a block, so that its results, with what the epilogue reads of them, are near for every panel.

    Where channels are neighbours in y each panel returns to all pixels of the block, and writes a line or two of
    each. A filter that the L2 cache does not hold, which every block reads again, wants large blocks more, and so does
    an input that neighbouring blocks share.
    """
    c, processor = geometry.c, geometry.isa.processor
    each = geometry.lanes * MAX_VECTORS
    filter_bytes = c.width * c.depth * ITEM_BYTES[c.dtype]
    if (
        c.taps > 1
        or c.y.channels != 1
        or c.width <= each
        or filter_bytes > processor.l2(cost.GEMM_NEAR_FILTER_L2)
    ):
        return math.inf
    views = [v for v in c.operands if v.batch or any(v.space)]
    position = c.width * (item_bytes(c.y.dtype) + sum(item_bytes(v.dtype) for v in views))
    return max(math.prod(box), processor.l2(cost.GEMM_BLOCK_RESULTS_L2) // position)


def single_block(geometry: Geometry, box: Block) -> Blocking:
    """All results of a group in one block, with all channels in its input tile, whatever it takes."""
    n, d, h, w = geometry.results
    c, block = geometry.c, (max(1, n), d, h, w)  # blocks have an image, also where the batch has none
    copies = _copy_cycles(geometry, box, block, c.depth)
    extents = geometry.input_ranges(box, block)
    size = block[0] * math.prod(axis.extent for axis in extents) * c.depth * ITEM_BYTES[c.dtype]
    if size > _WHOLE_AXIS * geometry.isa.processor.l2(cost.GEMM_INPUT_TILE_L2):
        copies *= _BEYOND_L2
    return Blocking(block, c.depth, 1, copies)


def _largest_block(
    box: Sequence[int], results: Sequence[int], fits: Callable[[Sequence[int], float], bool]
) -> Block:
    """A block of tiles of ``box``, extended from the last axis on as long as it fits.

    ``fits`` takes a block and by what factor it may exceed the limit.
    """
    block = [min(side, extent) for side, extent in zip(box, results, strict=True)]
    for axis in (3, 2, 1, 0):
        step = max(1, box[axis])
        extended = _extended(block, axis, results[axis])
        if fits(extended, _WHOLE_AXIS):
            block = extended
        # bisection: a block that fits does so with fewer results, too
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


def _copy_cycles(geometry: Geometry, box: Sequence[int], block: Block, kc: int) -> float:
    """Cycles to copy the input tiles of all blocks of a group."""
    c = geometry.c
    extents = [axis.extent for axis in geometry.input_ranges(box, block)]
    passes = ceil_div(c.depth, max(1, kc))
    if plan_input_tile(c, block, geometry.lanes).is_channels_last:
        rows, run = block[0] * math.prod(extents) * passes, kc
    else:
        rows, run = block[0] * c.depth * extents[0] * extents[1], extents[2]
    count = _blocks(geometry, block)
    begin = _PARTIAL_ROW if c.taps > 1 and block[3] < geometry.results[3] else _ROW
    return count * rows * (begin + _COPY * ceil_div(run, geometry.lanes))
