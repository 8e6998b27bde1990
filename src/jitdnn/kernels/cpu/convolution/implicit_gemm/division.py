"""How implicit GEMM's work is divided among threads, so that they end together.

The choice of a blocking (blocking.py) looks at caches: of what is left over at the end of an axis it makes a short
block, and the panels of few blocks it divides into equal shares but for the last. Two threads that have 43 panels in
tasks of 6 wait for each other a tenth of the time. Here blocks are made equal, and more of them, or more shares of
panels, where the last task then ends earlier. No sum depends on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Block, ImplicitGemmPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import makespan

_MOST_TASKS = 32  # of a thread: more of them end together, however long each is
_WORTH = 1.01  # times the least time: what is left as it was
_TASK = 500.0  # cycles to begin one
_DELAYED = (
    0.02  # of the time that one task for each thread may cost, of which a delayed thread can give away none
)


def divided(plan: ImplicitGemmPlan, cycles: float, copy_cycles: float, threads: int) -> ImplicitGemmPlan:
    """The plan with blocks and shares of panels by which the last thread ends earliest.

    ``cycles`` are those of all tasks on one thread but for copies to input tiles, ``copy_cycles`` those of copying
    each of these once.
    """
    if not plan.block_count or not plan.panels.count:
        return plan
    least, shares, wanted = plan.blocking.min_tasks_per_block, plan.tasks_per_block, plan.min_tasks
    plan = _with(plan, plan.block, shares, copy_cycles)
    if threads == 1:
        return _with(plan, _with_blocks(plan, _parts(plan)), shares, copy_cycles)
    if plan.tasks > _MOST_TASKS * threads:
        even = _with(plan, _with_blocks(plan, _parts(plan)), shares, copy_cycles)
        return replace(even, blocking=replace(even.blocking, imbalance=1 + 1 / _MOST_TASKS))
    ways = [(plan.block, shares), *_ways(plan, least, shares, threads)]
    found = [_with(plan, block, share, copy_cycles) for block, share in dict.fromkeys(ways)]
    lengths = [_lengths(one, cycles, copy_cycles) for one in found]
    ends = [makespan(one, threads) for one in lengths]
    prices = [
        end * (1 + _DELAYED * max(0.0, 1 - len(one) / wanted)) for end, one in zip(ends, lengths, strict=True)
    ]
    best = next(number for number, price in enumerate(prices) if price <= _WORTH * min(prices))
    imbalance = ends[best] * threads / sum(lengths[best])
    return replace(found[best], blocking=replace(found[best].blocking, imbalance=imbalance))


def _with(plan: ImplicitGemmPlan, block: Block, shares: int, copy_cycles: float) -> ImplicitGemmPlan:
    blocking = replace(
        plan.blocking, block=block, min_tasks_per_block=shares, copy_cycles=copy_cycles * shares
    )
    return replace(plan, blocking=blocking, min_tasks=1)


def _ways(plan: ImplicitGemmPlan, least: int, shares: int, threads: int) -> Iterator[tuple[Block, int]]:
    """Blocks and shares of panels that may be better, those first that leave most as it is."""
    parts = _parts(plan)
    blocks = [_with_blocks(plan, parts)]
    if math.prod(plan.blocks) > 1:
        rounds = ceil_div(plan.block_count, threads) * threads
        others = plan.block_count // parts
        more = {parts + 1, parts + 2, ceil_div(rounds, others), ceil_div(rounds + threads, others)}
        blocks += [_with_blocks(plan, each) for each in sorted(more)]
    even = ceil_div(shares, threads) * threads
    wanted = {shares, shares + 1, shares + 2, 2 * shares, even, threads, 2 * threads, least}
    counts = sorted(one for one in wanted if least <= one <= plan.panels.count)
    return itertools.product(blocks, counts)


def _axis(plan: ImplicitGemmPlan) -> int:
    """The axis along which blocks were cut; those inside of it are whole."""
    return max((axis for axis, count in enumerate(plan.blocks) if count > 1), default=3)


def _parts(plan: ImplicitGemmPlan) -> int:
    return plan.blocks[_axis(plan)]


def _with_blocks(plan: ImplicitGemmPlan, parts: int) -> Block:
    """The block of so many equal parts of the axis, each of whole register tiles and none larger than it was."""
    axis, block = _axis(plan), list(plan.block)
    side = plan.box[axis]
    each = ceil_div(plan.results[axis], max(1, parts))
    block[axis] = min(block[axis], ceil_div(each, side) * side)
    n, d, h, w = block
    return n, d, h, w


def _lengths(plan: ImplicitGemmPlan, cycles: float, copy_cycles: float) -> list[float]:
    """The cycles of each task."""
    axes = zip(plan.block, plan.results, strict=True)
    extents = itertools.product(*([min(each, of - at) for at in range(0, of, each)] for each, of in axes))
    tiles = [_tiles_of(block, plan.box) for block in extents] * plan.c.group_count
    each, count = plan.panels_per_task, plan.panels.count
    panels = [min(each, count - at) for at in range(0, count, each)]
    tile, copy = cycles / (sum(tiles) * count), copy_cycles / sum(tiles)
    return [_TASK + block * (tile * share + copy) for block in tiles for share in panels]


def _tiles_of(extents: tuple[int, ...], box: Block) -> int:
    return math.prod(ceil_div(extent, side) for extent, side in zip(extents, box, strict=True))
