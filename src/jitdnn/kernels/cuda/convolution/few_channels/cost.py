"""Strips, tiles and warps of fprop and wgrad with few channels: every sensible plan priced in cycles.

A multiprocessor reads 32 words of shared memory a cycle, starts an m16n8k16 product every `mma_cycles`, and moves
`bandwidth / multiprocessors` bytes of device memory a cycle. What it computes while it waits for memory is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Products, Rows
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, strides_of
from jitdnn.kernels.cuda.cost import SECTOR_BYTES, clock, l2_bytes_per_cycle, most_registers
from jitdnn.problems.convolution import Convolution

START_SECONDS = 3.5e-6
"""Of fprop and dgrad: a launch, until the first bytes arrive."""
_WGRAD_START_SECONDS = 4.5e-6

# cycles
_BARRIER_CYCLES = 300.0  # that a block waits for its slowest warp and the first words of a strip
_LATENCY_CYCLES = 900.0  # until the first bytes of a strip arrive
_LAUNCH_CYCLES = 4000.0  # of one more launch

_UNHIDDEN = 0.15  # of the shorter of computation and memory
_SINGLE_STAGE = 1.15  # with one stage, on the longer of them
_OVERLAP = 0.8  # of what runs at the same time: the share that hides behind the longest
_UNEVEN_WRITES = 2.2  # how much longer writes take where outputs begin inside of a sector
_BY_ROWS, _BY_CHANNELS = 1, 2
_STAGED_CYCLES = 16.0  # of a tile of 16 outputs by 8 channels that goes to shared memory number by number
_FROM_MEMORY = 0.7  # of a strip's rows: the others were read by the strip above, and come from L2
# the factor on computation by resident warps, which hide each other's latency
_WARP_PENALTIES = ((16, 1.0), (12, 1.12), (8, 1.25), (0, 2.0))


def fprop_plan(problem: Convolution, device: GpuDevice, count: int = 1) -> Plan | None:
    """The cheapest plan of a forward convolution, with `count` products each; None if there is no room for rows."""
    return _best(problem, device.facts, count, fprop_plans)


def wgrad_plan(problem: Convolution, device: GpuDevice, count: int = 1) -> Plan | None:
    """The cheapest plan of the filter's gradient; None if it does not fit into shared memory."""
    return _best(problem, device.facts, count, wgrad_plans)


@lru_cache(512)
def _best(problem: Convolution, facts: GpuFacts, count: int, plans: object) -> Plan | None:
    return min(plans(problem, facts, count), key=lambda plan: plan.seconds, default=None)  # type: ignore[operator]


def fprop_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> Iterator[Plan]:
    """Every plan of a forward convolution."""
    multiprocessors, bandwidth = facts.multiprocessors, bytes_per_cycle(facts)
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    most = 24 if products.is_f32 else 32  # tiles of sums in the registers of a warp
    most_registers_of_f32 = 124  # of a lane, for sums and the factors of rows
    staging = _staging(shape)
    is_uneven = strides_of(problem.y)[1] == 1 and problem.k * shape.size % SECTOR_BYTES
    slowness = _UNEVEN_WRITES if is_uneven else 1.0
    for rows in _strips(shape):
        steps = -(-rows.words // 8)
        for warps, (n, groups, channel_blocks) in [
            (8, t) for t in _channel_tilings(problem.k, rows.phases, 8)
        ]:
            filter_bytes = rows.phases * steps * (groups * n * 8 * 32 + 32)
            output_warps = warps // (groups * rows.phases)
            for m, stages in itertools.product((1, 2, 3, 4), (2, 1)):
                # a tile of sums takes 4 registers: with more than half of the most only one block is resident
                if products.is_f32 and 4 * m * (n + products.count) > most_registers_of_f32:
                    continue
                if m * n > most or (m > 1 and output_warps * 16 * (m - 1) >= rows.phase_outputs):
                    continue
                shared = stages * rows.bytes + filter_bytes
                if staging == _BY_ROWS:
                    shared += warps * 4 * 4 * (-(-16 * m // 32) * 32 + 8)
                elif staging == _BY_CHANNELS:
                    shared += warps * 8 * (8 * n * shape.size + 64)
                is_small = 2 * m * n <= most and (m <= 2 or not products.is_f32)
                resident = min(2 if is_small else 1, facts.resident(shared))
                if not resident:
                    continue
                rounds = -(-rows.phase_outputs // (output_warps * 16 * m))
                step = warps * _fprop_step(m, n, products)
                # many independent products hide each other's latency
                if m * n >= 24 and steps >= 16 and not products.is_f32:
                    step *= 0.87
                store = m * (60 + 10 * n) / 4
                if staging == _BY_CHANNELS:
                    store += _STAGED_CYCLES * m * n
                compute = rounds * (steps * step + warps * store) + fetch_cycles(rows)
                outputs = rows.down * rows.across
                writes = slowness * shape.size * outputs * min(problem.k, n * groups * 8) / bandwidth
                reads = _FROM_MEMORY * rows.bytes / bandwidth
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
                blocks = min(rows.strips, max(1, multiprocessors * resident // channel_blocks))
                fragments = rows.phases * steps * groups * n * 16
                neighbours = min(resident, -(-blocks * channel_blocks // multiprocessors))
                setup, is_packed = filter_setup(facts, fragments, 16, warps * 32, neighbours, 2, 160)
                setup += 5 * m * n  # the last tiles, which nothing hides
                pack = Launch(
                    "few_channels_fprop_pack", -(-channel_blocks * fragments // 256), 256, is_early=True
                )
                defines = shape.defines() | rows.defines() | {
                    "BLOCK_THREADS": warps * 32, "RESIDENT": resident, "STAGES": stages, "STEPS": steps,
                    "TILE_M": m, "TILE_N": n, "COLUMN_GROUPS": groups, "RESULT_VECTOR": shape.y_vector,
                    "RESULT_C": "Y_C", "CHANNEL_BLOCKS": channel_blocks, "IS_PACKED": int(is_packed),
                    "STAGES_RESULTS": staging,
                    "UNROLL_STEPS": 2 if (m, n) == (2, 8) and rows.phases == 1 and steps <= 24 and count == 1 else 1,
                    "PRODUCTS": count,
                }  # fmt: skip
                yield Plan(
                    tuple(defines.items()),
                    warps * 32,
                    (blocks, channel_blocks),
                    shared,
                    (cycles + setup) / clock(facts) + START_SECONDS,
                    workspace=16 * channel_blocks * fragments if is_packed else 0,
                    pack=pack if is_packed else None,
                )


def wgrad_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> Iterator[Plan]:
    """Every plan of the filter's gradient."""
    multiprocessors, bandwidth = facts.multiprocessors, bytes_per_cycle(facts)
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    piece, at_once = 16 // shape.size, 32 // shape.size  # channels that are copied at once, outputs of an mma
    is_wide = shape.y_vector == piece and problem.k % piece == 0
    for rows, channel_blocks in itertools.product(_strips(shape, 16), _channel_blocks(problem.k)):
        tiles = -(-problem.k // (16 * channel_blocks))
        for tiling in _wgrad_tilings(tiles, rows.words, rows.phases, facts, products):
            m, words, channel_groups, word_groups, warps, most = tiling
            channels = channel_groups * m * 16
            if channels * (channel_blocks - 1) >= problem.k:
                continue  # fewer shares would do
            groups = channel_groups * word_groups * rows.phases
            block_sums = groups * 4 * rows.per_word * m * words * 32
            outputs = rows.down * rows.across
            pitch = channels + 8 if products.is_f32 else (channels // 8 | 1) * 8
            stage = rows.bytes + (outputs + 1) * pitch * shape.size
            output_warps = warps // groups
            rounds = -(-rows.phase_outputs // (output_warps * at_once))
            fetch = fetch_cycles(rows) + outputs * channels / (32 * piece) * (3 if is_wide else 8 * piece)
            has_eights = rows.across % (8 * rows.phases) == 0
            compute = rounds * warps * _wgrad_step(m, words, products, has_eights) + fetch
            reads = (shape.size * outputs * min(problem.k, channels) + _FROM_MEMORY * rows.bytes) / bandwidth
            for stages in (2, 1):
                shared = max(stages * stage, 4 * block_sums * (output_warps // 2))
                resident = min(most, facts.resident(shared))
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
                defines = shape.defines() | rows.defines() | {
                    "BLOCK_THREADS": warps * 32, "RESIDENT": resident, "STAGES": stages, "TILE_M": m,
                    "TILE_WORDS": words, "CHANNEL_GROUPS": channel_groups, "WORD_GROUPS": word_groups,
                    "Y_VECTOR": piece if is_wide else 1, "PRODUCTS": count, "PARTIALS": blocks,
                    "CHANNEL_BLOCKS": channel_blocks, "X_IS_SECOND": 0,
                }  # fmt: skip
                seconds = (cycles + finish) / clock(facts) + _WGRAD_START_SECONDS
                second = Launch(
                    "few_channels_wgrad_reduce", channel_blocks * block_sums // (32 * rows.phases), 256
                )
                workspace = 4 * block_sums * channel_blocks * blocks
                yield Plan(
                    tuple(defines.items()),
                    warps * 32,
                    (blocks, channel_blocks),
                    shared,
                    seconds,
                    workspace,
                    reduction=second,
                )


def _strips(shape: Shape, multiple: int = 2) -> Iterator[Rows]:
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
        needed = sums + 4 * m * products.count + 2 * n + (64 if warps <= 8 else 84)
        needed += 34 if products.count == 3 else 0
        if needed > most_registers(facts, warps * 32):
            continue
        most = min(2, threads_limit // needed)
        price = m_groups * n_groups * _wgrad_step(m, n, products)
        found.append(
            (
                price * (1.0 if warps * most >= 16 else 1.1 if warps >= 8 else 1.5),
                (m, n, m_groups, n_groups, warps, most),
            )
        )
    found.sort()
    return tuple(tiling for _, tiling in found[:4])


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
    strip_cycles = max(compute, memory) + _UNHIDDEN * min(compute, memory) + _BARRIER_CYCLES / resident
    if stages == 1:
        strip_cycles = max(
            strip_cycles,
            (compute + reads + writes / 2 + _LATENCY_CYCLES) / resident,
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
    gathered = rounds * _LATENCY_CYCLES + fragments / 32 * instructions / 4 * resident
    copied = _LAUNCH_CYCLES + _LATENCY_CYCLES + fragments * size * resident / l2_bytes_per_cycle(facts)
    return min(gathered, copied), copied < gathered


def _staging(shape: Shape) -> int:
    """How results go through shared memory, as in fprop.cu; 0 where they do not."""
    n, c, d, h, w = strides_of(shape.problem.y)
    # rows of a channel are neighbours in memory, and begin anywhere in its sectors
    if w == 1 < abs(c) and any(step * shape.size % SECTOR_BYTES for step in (n, c, d, h)):
        return _BY_ROWS
    # channels are, but are stored a word at a time or less
    is_narrow = c == 1 and shape.problem.k * shape.size > SECTOR_BYTES and shape.y_vector * shape.size <= 4
    return _BY_CHANNELS if is_narrow else 0


def _fprop_step(m: int, n: int, products: Products) -> float:
    """Cycles of a warp's m x n tiles for 8 words."""
    instructions = 12 * m + 3 * n + products.instructions(4 * m + 2 * n, m * n)
    return overlapped(4 * m + 2 * n + 1, products.cycles(m * n), instructions / 4)


def _wgrad_step(m: int, n: int, products: Products, has_eights: bool = True) -> float:
    """Cycles of a warp's m tiles of channels and n of words for one mma of outputs; has_eights: eight share a row."""
    if products.is_f32:
        reads = 4 * m + 2 * n
        return overlapped(
            reads, products.cycles(m * n), (24 + reads + products.instructions(reads, m * n)) / 4
        )
    instructions = ((30 if has_eights else 60) + 8 * n + 2 * m * n) / 4
    # as measured: time grows with the sum of all three
    return 0.57 * (4 * m + 4 * n + products.mma_cycles * 2 * m * n + instructions)


def fetch_cycles(rows: Rows) -> float:
    """Cycles of a multiprocessor to stage the rows of a strip, without the latency of memory."""
    elements = rows.rows * rows.span * rows.channels
    if rows.is_dense and rows.x_bytes == 2:  # copied 8 at a time, then moved
        return elements / 8 / 32 * 16 + 300
    return elements / (rows.x_bytes / rows.shape.size) / 32 * (4 if rows.x_bytes > 2 else 8)
