"""Strips, tiles and warps of wgrad with few channels: the cost in cycles of every candidate plan.

The terms are those of cost.py.
"""

from __future__ import annotations

import itertools
from functools import lru_cache, partial
from math import inf

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.few_channels.cost import (
    FROM_MEMORY,
    UNHIDDEN,
    all_plans,
    best_plan,
    bytes_per_cycle,
    cheapest_first,
    fetch_cycles,
    overlapped,
    strips_of,
    total_cycles,
)
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Rows
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.products import (
    HALVES,
    HALVES_FOR_ONE,
    HEADER_BYTES,
    Products,
)
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, strides_of
from jitdnn.kernels.cuda.cost import clock, most_registers
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution

_START_SECONDS = 4.5e-6
_DIVIDING_STRIP_CYCLES = 32.0  # of 512 bytes in shared memory into halves


def wgrad_plan(problem: Convolution, device: GpuDevice, count: int = 1) -> Plan | None:
    """The cheapest plan of the filter's gradient; None if it does not fit into shared memory."""
    return best_plan(problem, device.facts, count, _offer_wgrad)


def wgrad_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> list[Plan]:
    """Every plan of the filter's gradient."""
    return all_plans(problem, facts, count, _offer_wgrad)


def _offer_wgrad(problem: Convolution, facts: GpuFacts, count: int, cheapest: Cheapest[Plan]) -> None:
    """Offer all plans that may be the cheapest."""
    multiprocessors, bandwidth, rate = facts.multiprocessors, bytes_per_cycle(facts), clock(facts)
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    piece, at_once = 16 // shape.size, 32 // shape.size  # channels that are copied at once, outputs of an mma
    is_divided = count == HALVES
    if is_divided:
        at_once *= 2
    is_wide = shape.y_vector == piece and problem.k % piece == 0
    strips = list(strips_of(shape, 16))
    phases = strips[0].phases
    tilings = _wgrad_tiles(problem, facts, count)
    for strip, rows in cheapest_first(strips):
        outputs, phase_outputs, of_rows = rows.down * rows.across, rows.phase_outputs, fetch_cycles(rows)
        has_eights = rows.across % (8 * phases) == 0
        for least, channel_blocks, number, tiling, groups, step, apart in tilings:
            share = rows.strips / multiprocessors / rate
            if (share * phase_outputs * least + _START_SECONDS) * ROUNDED > cheapest.seconds:
                break
            m, words, channel_groups, _, warps, most = tiling
            channels = channel_groups * m * 16
            output_warps = warps // groups
            rounds = -(-phase_outputs // (output_warps * at_once))
            fetch = of_rows + outputs * channels / (32 * piece) * (3 if is_wide else 8 * piece)
            compute = rounds * warps * (step if has_eights else apart) + fetch
            if is_divided:
                compute += _DIVIDING_STRIP_CYCLES * (4 * outputs * channels + rows.bytes) / 512
            read = shape.size * outputs * min(problem.k, channels)
            memory = (read + FROM_MEMORY * rows.least_bytes) / bandwidth
            of_strip = max(compute, memory) + UNHIDDEN * min(compute, memory)
            if (share * channel_blocks * of_strip + _START_SECONDS) * ROUNDED > cheapest.seconds:
                continue
            block_sums = groups * 4 * rows.per_word * m * words * 32
            pitch = channels + 8 if products.is_f32 and not is_divided else (channels // piece | 1) * piece
            stage = rows.bytes + (outputs + 1) * pitch * shape.size
            reads = (read + FROM_MEMORY * rows.bytes) / bandwidth
            for stages in (2, 1):
                shared = max(stages * stage, 4 * block_sums * (output_warps // 2))
                resident = min(most, facts.resident(shared + 8 * warps * is_divided))
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
                    0.0,
                )
                blocks = min(rows.strips, max(1, multiprocessors * resident // channel_blocks))
                # within a block by halves; then parts are written, and read from the cache by the second launch
                finish = 2.0 * block_sums / 32 * output_warps * resident + 1000
                finish += 2 * 4 * block_sums * channel_blocks * blocks / (bandwidth * multiprocessors)
                seconds = (cycles + finish) / rate + _START_SECONDS
                made = partial(
                    _wgrad_plan, rows, count, tiling, resident, stages, channel_blocks, piece if is_wide else 1, blocks,
                    block_sums, shared, seconds,
                )  # fmt: skip
                cheapest.offer(seconds, (strip, channel_blocks, number, -stages), made)


def least_wgrad_seconds(problem: Convolution, facts: GpuFacts, count: int = 1) -> float:
    """What no plan of the filter's gradient comes below: products, and dy on its way from memory."""
    shape, tilings = Shape(problem), _wgrad_tiles(problem, facts, count)
    if not tilings:
        return inf
    outputs = problem.y.size / problem.k / next(strips_of(shape, 16)).phases  # of a phase
    compute = outputs * tilings[0][0] / facts.multiprocessors / clock(facts)
    reads = shape.size * problem.y.size / facts.bandwidth
    return (max(compute, reads) + UNHIDDEN * min(compute, reads) + _START_SECONDS) * ROUNDED


@lru_cache(16)  # for the bound, and then for the plan
def _wgrad_tiles(
    problem: Convolution, facts: GpuFacts, count: int
) -> list[tuple[float, int, int, tuple[int, int, int, int, int, int], int, float, float]]:
    """Tilings of blocks: cycles for an output of a phase at least, blocks that share the channels, the number of the
    tiling, it, its groups, and cycles of steps of outputs that share a row, or not; those of the fewest first."""
    shape = Shape(problem)
    products, rows = Products.of(shape, count, facts.mma_cycles), next(strips_of(shape, 16))
    at_once = 32 // shape.size * (2 if count == HALVES else 1)
    tilings = []
    for channel_blocks in _channel_blocks(problem.k):
        tiles = -(-problem.k // (16 * channel_blocks))
        for number, tiling in enumerate(_wgrad_tilings(tiles, rows.words, rows.phases, facts, products)):
            m, words, channel_groups, word_groups, _, _ = tiling
            if channel_groups * m * 16 * (channel_blocks - 1) >= problem.k:
                continue  # fewer shares would do
            groups = channel_groups * word_groups * rows.phases
            step = _wgrad_step(m, words, products, True)
            least = channel_blocks * groups * step / at_once
            apart = _wgrad_step(m, words, products, False)
            tilings.append((least, channel_blocks, number, tiling, groups, step, apart))
    return sorted(tilings)


def _wgrad_plan(
    rows: Rows, count: int, tiling: tuple[int, int, int, int, int, int], resident: int, stages: int,
    channel_blocks: int, y_vector: int, blocks: int, block_sums: int, shared: int, seconds: float,
) -> Plan:  # fmt: skip
    m, words, channel_groups, word_groups, warps, _ = tiling
    defines = rows.shape.defines() | rows.defines() | {
        "BLOCK_THREADS": warps * 32, "RESIDENT": resident, "STAGES": stages, "TILE_M": m,
        "TILE_WORDS": words, "CHANNEL_GROUPS": channel_groups, "WORD_GROUPS": word_groups,
        "Y_VECTOR": y_vector, "PRODUCTS": count, "PARTIALS": blocks,
        "CHANNEL_BLOCKS": channel_blocks, "X_IS_SECOND": 0, "Y_IS_WHOLE": int(_is_whole(rows.shape)),
    }  # fmt: skip
    second = Launch("few_channels_wgrad_reduce", channel_blocks * block_sums // (32 * rows.phases), 256)
    return Plan(
        tuple(defines.items()),
        warps * 32,
        (blocks, channel_blocks),
        shared,
        seconds,
        4 * block_sums * channel_blocks * blocks + HEADER_BYTES * (count == HALVES),
        reduction=second,
    )


def _channel_blocks(filters: int) -> list[int]:
    """Blocks that may share the output channels."""
    tiles = -(-filters // 16)
    return [share for share in (1, 2, 3, 4, 6, 8, 16, 32, 64) if share <= tiles and tiles <= 12 * share]


@lru_cache(256)
def _wgrad_tilings(
    tiles: int, words: int, phases: int, facts: GpuFacts, products: Products
) -> tuple[tuple[int, int, int, int, int, int], ...]:
    """(channel tiles and word tiles of a warp, groups of both, warps, blocks of a multiprocessor), the best few.

    `tiles`: tiles of 16 output channels of a block.
    """
    found = []
    for m, n, warps in itertools.product((1, 2, 3, 4), range(1, 9), (4, 8, 12, 16)):
        m_groups, n_groups = -(-tiles // m), -(-words // (8 * n))
        sums = (4 if products.is_f32 else 8) * m * n
        if warps % (m_groups * n_groups * phases):
            continue
        threads_limit = facts.registers // (warps * 32)
        factors = 8 * m + 4 if products.count == HALVES_FOR_ONE else 4 * m * products.count + 2 * n
        needed = sums + factors + (64 if warps <= 8 else 84)
        needed += 34 if products.count == 3 else 0
        if needed > most_registers(facts, warps * 32):
            continue
        most = min(2, threads_limit // int(needed))
        price = m_groups * n_groups * _wgrad_step(m, n, products)
        found.append(
            (
                price * (1.0 if warps * most >= 16 else 1.1 if warps >= 8 else 1.5),
                (m, n, m_groups, n_groups, warps, most),
            )
        )
    found.sort()
    return tuple(tiling for _, tiling in found[:4])


def _is_whole(shape: Shape) -> bool:
    """Whether rows of y follow each other."""
    *_, h, w = strides_of(shape.problem.y)
    return h == shape.out[2] * w


def _wgrad_step(m: int, n: int, products: Products, has_eights: bool = True) -> float:
    """Cycles of a warp's m tiles of channels and n of words for one mma of outputs; has_eights: eight share a row."""
    if products.count == HALVES_FOR_ONE:
        instructions = 40 + 2 * m + 8 * n + 2 * products.instructions(0, m * n)
        return overlapped(8 * m + 4 * n, 2 * products.cycles(m * n), instructions / 4)
    if products.is_f32:
        reads = 4 * m + 2 * n
        return overlapped(
            reads, products.cycles(m * n), (24 + reads + products.instructions(reads, m * n)) / 4
        )
    instructions = ((30 if has_eights else 60) + 8 * n + 2 * m * n) / 4
    # as measured: time grows with the sum of all three
    return 0.57 * (4 * m + 4 * n + products.mma_cycles * 2 * m * n + instructions)
