"""Strips, tiles and warps of fprop with few channels: the cost in cycles of every candidate plan.

A multiprocessor reads 32 words of shared memory a cycle, starts an m16n8k16 product every `mma_cycles`, and moves
`bandwidth / multiprocessors` bytes of device memory a cycle. Computation that overlaps a wait for memory is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from math import inf

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Rows
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import All, Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.products import (
    Products,
)
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, strides_of
from jitdnn.kernels.cuda.cost import SECTOR_BYTES, clock, l2_bytes_per_cycle
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution

START_SECONDS = 3.5e-6
"""Of fprop and dgrad: a launch, until the first bytes arrive."""

# cycles
_BARRIER_CYCLES = 300.0  # that a block waits for its slowest warp and the first words of a strip
LATENCY_CYCLES = 900.0  # until the first bytes of a strip arrive
_LAUNCH_CYCLES = 4000.0  # of one more launch

UNHIDDEN = 0.15  # of the shorter of computation and memory
_SINGLE_STAGE = 1.15  # with one stage, on the longer of them
_OVERLAP = 0.8  # of what runs at the same time: the share that hides behind the longest
_UNEVEN_WRITES = 2.2  # how much longer writes take where outputs begin inside of a sector
_BY_ROWS, _BY_CHANNELS = 1, 2
_FPROP_WARPS = 8  # of a thread block
_MOST_REGISTERS_OF_F32 = 124  # of a lane, for sums and the factors of rows
_STAGED_CYCLES = 16.0  # of a tile of 16 outputs by 8 channels that goes to shared memory number by number
FROM_MEMORY = 0.7  # of a strip's rows: the others were read by the strip above, and come from L2
_OF_THREE, _OF_THREE_ALTERNATELY = 1.15, 1.35
"""How much longer forward layers by three products of tf32 take (H100), also of two blocks with two stages."""
# the factor on computation by resident warps, which hide each other's latency
_WARP_PENALTIES = ((16, 1.0), (12, 1.12), (8, 1.25), (0, 2.0))


def fprop_plan(
    problem: Convolution, device: GpuDevice, count: int = 1, in_halves: bool = False
) -> Plan | None:
    """The cheapest plan of a forward convolution, with `count` products each; None if there is no room for rows.

    `in_halves`: as `Shape` says.
    """
    return best_plan(problem, device.facts, count, _OFFER_FPROP_IN_HALVES if in_halves else _offer_fprop)


Offer = Callable[[Convolution, GpuFacts, int, Cheapest[Plan]], None]
"""Offers all plans that may be the cheapest."""


@lru_cache(512)
def best_plan(problem: Convolution, facts: GpuFacts, count: int, offer: Offer) -> Plan | None:
    """The cheapest of the plans that are offered, with `count` products each; None if there is none."""
    cheapest = Cheapest[Plan]()
    offer(problem, facts, count, cheapest)
    return cheapest.plan()


def all_plans(problem: Convolution, facts: GpuFacts, count: int, offer: Offer) -> list[Plan]:
    """Every plan that is offered."""
    every = All[Plan]()
    offer(problem, facts, count, every)
    return every.plans


def fprop_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> list[Plan]:
    """Every plan of a forward convolution."""
    return all_plans(problem, facts, count, _offer_fprop)


def _offer_fprop(
    problem: Convolution, facts: GpuFacts, count: int, cheapest: Cheapest[Plan], in_halves: bool = False
) -> None:
    """Offer all plans that may be the cheapest."""
    multiprocessors, bandwidth, rate = facts.multiprocessors, bytes_per_cycle(facts), clock(facts)
    shape = Shape(problem, in_halves)
    products = Products.of(shape, count, facts.mma_cycles)
    most = _most_tiles(products)
    staging, slowness, warps, strips = (
        _staging(shape),
        _write_slowness(shape),
        _FPROP_WARPS,
        list(strips_of(shape)),
    )
    # as many of all strips
    phases, steps = strips[0].phases, -(-strips[0].words // 8)
    tiles = _fprop_tiles(problem, facts, count, in_halves)
    for strip, rows in cheapest_first(strips):
        phase_outputs, fetch = rows.phase_outputs, fetch_cycles(rows)
        outputs = rows.down * rows.across
        for least, number, n, groups, channel_blocks, m, output_warps, round_cycles in tiles:
            # what takes longer whatever its blocks do meanwhile, and so do those behind it
            share = rows.strips / multiprocessors / rate
            if (share * phase_outputs * least + START_SECONDS) * ROUNDED > cheapest.seconds:
                break
            if m > 1 and output_warps * 16 * (m - 1) >= phase_outputs:
                continue
            rounds = -(-phase_outputs // (output_warps * 16 * m))
            compute = rounds * round_cycles + fetch
            writes = slowness * shape.y_size * outputs * min(problem.k, n * groups * 8) / bandwidth
            memory = FROM_MEMORY * rows.least_bytes / bandwidth + writes
            of_strip = max(compute, memory) + UNHIDDEN * min(compute, memory)
            if (share * channel_blocks * of_strip + START_SECONDS) * ROUNDED > cheapest.seconds:
                continue
            filter_bytes = phases * steps * (groups * n * 8 * 32 + 32)
            reads = FROM_MEMORY * rows.bytes / bandwidth
            is_small = 2 * m * n <= most and (m <= 2 or not products.is_f32)
            for stages in (2, 1):
                shared = stages * rows.bytes + filter_bytes
                if staging == _BY_ROWS:
                    shared += warps * 4 * 4 * (-(-16 * m // 32) * 32 + 8)
                elif staging == _BY_CHANNELS:
                    shared += warps * 8 * (8 * n * shape.y_size + 64)
                resident = min(2 if is_small else 1, facts.resident(shared))
                if not resident:
                    continue
                cycles = total_cycles(
                    rows.strips * channel_blocks,
                    multiprocessors,
                    resident,
                    warps,
                    stages,
                    compute,
                    reads,
                    writes,
                )
                if count == 3:
                    cycles *= _OF_THREE_ALTERNATELY if stages == resident == 2 else _OF_THREE
                blocks = min(rows.strips, max(1, multiprocessors * resident // channel_blocks))
                fragments = phases * steps * groups * n * 16
                neighbours = min(resident, -(-blocks * channel_blocks // multiprocessors))
                setup, is_packed = filter_setup(facts, fragments, 16, warps * 32, neighbours, 2, 160)
                setup += 5 * m * n  # the last tiles, which nothing hides
                seconds = (cycles + setup) / rate + START_SECONDS
                made = partial(
                    _fprop_plan, rows, count, warps, resident, stages, steps, (m, n), groups, channel_blocks,
                    staging, is_packed, blocks, shared, fragments, seconds,
                )  # fmt: skip
                cheapest.offer(seconds, (strip, number, m, -stages), made)


def least_fprop_seconds(
    problem: Convolution, facts: GpuFacts, count: int = 1, in_halves: bool = False
) -> float:
    """What no plan of a forward convolution comes below: products, and results on their way to memory."""
    shape, tiles = Shape(problem, in_halves), _fprop_tiles(problem, facts, count, in_halves)
    if not tiles:
        return inf
    outputs = problem.y.size / problem.k / next(strips_of(shape)).phases  # of a phase
    compute = outputs * tiles[0][0] / facts.multiprocessors / clock(facts)
    writes = _write_slowness(shape) * shape.y_size * problem.y.size / facts.bandwidth
    return (max(compute, writes) + UNHIDDEN * min(compute, writes) + START_SECONDS) * ROUNDED


@lru_cache(16)  # for the bound, and then for the plan
def _fprop_tiles(
    problem: Convolution, facts: GpuFacts, count: int, in_halves: bool
) -> list[tuple[float, int, int, int, int, int, int, float]]:
    """Tiles of warps: cycles for an output of a phase at least, the number of the tiling of channels, that tiling,
    tiles of outputs, warps that share these, and cycles of a round; those of the fewest cycles first."""
    shape, warps = Shape(problem, in_halves), _FPROP_WARPS
    products, staging, rows = (
        Products.of(shape, count, facts.mma_cycles),
        _staging(shape),
        next(strips_of(shape)),
    )
    phases, steps = rows.phases, -(-rows.words // 8)
    tiles = []
    for (number, (n, groups, channel_blocks)), m in itertools.product(
        enumerate(_channel_tilings(problem.k, phases, warps)), (1, 2, 3, 4)
    ):
        # a tile of sums takes 4 registers: with more than half of the most only one block is resident
        if products.is_f32 and 4 * m * (n + products.count) > _MOST_REGISTERS_OF_F32:
            continue
        if m * n > _most_tiles(products):
            continue
        step = warps * _fprop_step(m, n, products)
        # many independent products hide each other's latency
        if m * n >= 24 and steps >= 16 and not products.is_f32 and not in_halves:
            step *= 0.87
        store = m * (60 + 10 * n) / 4
        if staging == _BY_CHANNELS:
            store += _STAGED_CYCLES * m * n
        round_cycles = steps * step + warps * store
        output_warps = warps // (groups * phases)
        least = channel_blocks * round_cycles / (output_warps * 16 * m)  # for an output of a phase
        tiles.append((least, number, n, groups, channel_blocks, m, output_warps, round_cycles))
    return sorted(tiles)


def _most_tiles(products: Products) -> int:
    """Tiles of sums in the registers of a warp."""
    return 24 if products.is_f32 else 32


def _write_slowness(shape: Shape) -> float:
    problem = shape.problem
    is_uneven = strides_of(problem.y)[1] == 1 and problem.k * shape.y_size % SECTOR_BYTES
    return _UNEVEN_WRITES if is_uneven else 1.0


_OFFER_FPROP_IN_HALVES = partial(_offer_fprop, in_halves=True)


def _fprop_plan(
    rows: Rows, count: int, warps: int, resident: int, stages: int, steps: int, tile: tuple[int, int], groups: int,
    channel_blocks: int, staging: int, is_packed: bool, blocks: int, shared: int, fragments: int,
    seconds: float,
) -> Plan:  # fmt: skip
    (m, n), shape = tile, rows.shape
    pack = Launch("few_channels_fprop_pack", -(-channel_blocks * fragments // 256), 256, is_early=True)
    defines = shape.defines() | rows.defines() | {
        "BLOCK_THREADS": warps * 32, "RESIDENT": resident, "STAGES": stages, "STEPS": steps,
        "TILE_M": m, "TILE_N": n, "COLUMN_GROUPS": groups, "RESULT_VECTOR": shape.y_vector,
        "HAS_WHOLE_RUNS": int(shape.problem.k % shape.y_vector == 0),
        "RESULT_C": "Y_C", "CHANNEL_BLOCKS": channel_blocks, "IS_PACKED": int(is_packed),
        "STAGES_RESULTS": staging, "IS_FULL": int(shape.problem.k % (8 * n * groups) == 0),
        "UNROLL_STEPS": 2 if (m, n) == (2, 8) and rows.phases == 1 and steps <= 24 and count == 1 else 1,
        "PRODUCTS": count,
    }  # fmt: skip
    return Plan(
        tuple(defines.items()),
        warps * 32,
        (blocks, channel_blocks),
        shared,
        seconds,
        workspace=16 * channel_blocks * fragments if is_packed else 0,
        pack=pack if is_packed else None,
    )


def cheapest_first(strips: Sequence[Rows]) -> list[tuple[int, Rows]]:
    """Strips and their numbers, those first that have the fewest outputs and rows in all."""
    numbered = list(enumerate(strips))
    return sorted(numbered, key=lambda one: one[1].strips * (one[1].phase_outputs + 8 * one[1].rows))


def strips_of(shape: Shape, multiple: int = 2) -> Iterator[Rows]:
    """The strips worth trying: full rows, also padded to a multiple of `multiple` columns, or pieces of long rows."""
    _, p, q = shape.out
    even = -(-q // 2) * 2
    widths = (
        sorted({even, -(-q // multiple) * multiple})
        if even <= 256
        else [*(w for w in (64, 128, 192, 256, 512) if w < even), *([even] if even <= 600 else [])]
    )
    heights = sorted({min(p, h) for h in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)})
    for across, down in itertools.product(widths, heights):
        if down * across <= 4096 and (
            down * across >= 64 or (down == p and across == even) or down == heights[-1]
        ):
            yield Rows(shape, down, across)


def _channel_tilings(filters: int, phases: int, warps: int) -> Iterator[tuple[int, int, int]]:
    """Column tiles of a warp, column groups of a block, blocks that share the channels."""
    tiles = -(-filters // 8)
    for groups in (1, 2, 4, 8):
        if warps % (groups * phases):
            continue
        least = -(-tiles // (8 * groups))
        for channel_blocks in (least, 2 * least, 4 * least, 8 * least):
            n = -(-tiles // (groups * channel_blocks))
            n += n % 2
            if n * groups * (channel_blocks - 1) < tiles:  # else fewer would do
                yield n, groups, channel_blocks


def bytes_per_cycle(facts: GpuFacts) -> float:
    """Bytes of device memory that a multiprocessor moves in a cycle."""
    return facts.bandwidth / clock(facts) / facts.multiprocessors


def total_cycles(
    strips: int,
    multiprocessors: int,
    resident: int,
    warps: int,
    stages: int,
    compute: float,
    reads: float,
    writes: float,
) -> float:
    """Cycles of all strips, distributed over resident thread blocks: what each computes, reads and writes.

    With two stages a block prefetches while it computes; with one only other resident blocks use the time.
    """
    blocks = multiprocessors * resident
    rounds = -(-strips // blocks) * resident if strips > blocks else -(-strips // multiprocessors)
    resident_warps = warps * min(resident, -(-strips // multiprocessors))
    compute *= next(penalty for least, penalty in _WARP_PENALTIES if resident_warps >= least)
    memory = reads + writes
    strip_cycles = max(compute, memory) + UNHIDDEN * min(compute, memory) + _BARRIER_CYCLES / resident
    if stages == 1:
        strip_cycles = max(
            strip_cycles,
            (compute + reads + writes / 2 + LATENCY_CYCLES) / resident,
            _SINGLE_STAGE * max(compute, memory),
        )
    return rounds * strip_cycles


def overlapped(reads: float, products: float, instructions: float) -> float:
    """Cycles of what runs at the same time, without being hidden completely behind the longest."""
    longest = max(reads, products, instructions)
    return _OVERLAP * longest + 0.2 * (reads + products + instructions)


def filter_setup(
    facts: GpuFacts, fragments: int, size: int, threads: int, resident: int, at_once: int, instructions: int
) -> tuple[float, bool]:
    """Cycles until a block has its fragments of the filter, and whether they are made by a launch of their own.

    `fragments` of `size` bytes each are gathered element by element, `at_once` by a thread: few of them by each block
    for itself, many by that launch, once for all blocks, which then copy them.
    """
    rounds = -(-fragments // (threads * at_once))
    gathered = rounds * LATENCY_CYCLES + fragments / 32 * instructions / 4 * resident
    copied = _LAUNCH_CYCLES + LATENCY_CYCLES + fragments * size * resident / l2_bytes_per_cycle(facts)
    return min(gathered, copied), copied < gathered


def _staging(shape: Shape) -> int:
    """How results go through shared memory, as in fprop.cu; 0 where they do not."""
    n, c, d, h, w = strides_of(shape.problem.y)
    # rows of a channel are neighbours in memory, and begin anywhere in its sectors
    if w == 1 < abs(c) and any(step * shape.y_size % SECTOR_BYTES for step in (n, c, d, h)):
        return _BY_ROWS
    # channels are, but are stored a word at a time or less
    is_narrow = (
        c == 1 and shape.problem.k * shape.y_size > SECTOR_BYTES and shape.y_vector * shape.y_size <= 4
    )
    return _BY_CHANNELS if is_narrow else 0


def _fprop_step(m: int, n: int, products: Products) -> float:
    """Cycles of a warp's m x n tiles for 8 words."""
    instructions = 12 * m + 3 * n + products.instructions(4 * m + 2 * n, m * n)
    return overlapped(4 * m + 2 * n + 1, products.cycles(m * n), instructions / 4)


def fetch_cycles(rows: Rows) -> float:
    """Cycles of a multiprocessor to stage the rows of a strip, without the latency of memory."""
    elements = rows.rows * rows.span * rows.channels
    if rows.is_dense and rows.x_bytes == 2:  # copied 8 at a time, then moved
        return elements / 8 / 32 * 16 + 300
    return elements / (rows.x_bytes / rows.shape.size) / 32 * (4 if rows.x_bytes > 2 else 8)
