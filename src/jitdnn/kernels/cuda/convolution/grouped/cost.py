"""Every sensible plan of fprop and dgrad of grouped convolutions, priced, and the cheapest in any direction.

Through shared memory (shared_memory.cu): channels-last sources of whole 16 bytes, in slices of up to 64 channels that
groups fill. A source pixel comes from memory once for each tile that it is in, whatever taps it meets there, in copies
that take no registers: 50 kB in flight on each multiprocessor saturate an H100's memory, and registers alone do not
hold as much. Straight into registers (registers.cu): all other sources in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.grouped.plan import (
    Plan,
    Tile,
    axis_defines,
    axis_of,
    direction_defines,
    roles,
    vector_of,
)
from jitdnn.kernels.cuda.convolution.grouped.register_cost import (
    MAX_FILTER_REGISTERS,
    MAX_REGISTERS,
    offer_registers,
)
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import (
    offer_wgrad_registers,
    offer_wgrad_shared_memory,
    shared_room,
    whole_registers,
)
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import All, Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.products import Products
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, power_of_two, strides_of
from jitdnn.kernels.cuda.cost import ROUNDED, clock
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

MAX_CHANNELS = 64
"""Of a group; half as many for wgrad, and where pixels are not whole 16 bytes."""

# ---- Registers of a thread ----
_MAX_FILTER_REGISTERS_LARGE = 150  # where a group has more than 32 channels: one resident thread block
_OTHER_REGISTERS = 56  # of the shared-memory kernel: addresses, loop counters, a fragment of the source

# ---- The model of the shared-memory kernel, fitted to measurements on an H100. Cycles of a multiprocessor:
_ACCESS_CYCLES = 4.0  # of shared memory: a copy of 16 bytes a lane, a fragment that is read, a store
_CONFLICT_FACTOR = 1.5  # on reads, where 8 positions are not in 8 different groups of four banks
_COPY_INSTRUCTIONS, _STORE_INSTRUCTIONS, _SCALAR_STORE_INSTRUCTIONS, _STEP_INSTRUCTIONS = 14, 12, 60, 60
_ISSUE_CYCLES = (
    0.5 / 4
)  # of a warp's instruction: four schedulers, which are not what the kernel waits for most
# on the cycles of a product; with more than two steps of channels more of them are independent
_MMA_FACTOR, _MMA_FACTOR_LARGE = 1.375, 1.125
_UNHIDDEN = 0.15  # of the shorter of shared memory and products
_LONE_WARP_PENALTY = 3.5  # divided by the warps of a multiprocessor, which hide each other's latency
# and memory:
_COPY_BYTES = 512  # of a warp
_BANDWIDTH_SHARE = 0.93  # of the memory's bandwidth, that copies reach
_LATENCY_BYTES = 5_000  # in flight on a multiprocessor, with which the latency of memory doubles its time
_SMALL_SLICE = 1.4  # divided by the bytes of a pixel that a thread block takes: short pieces
_BALANCED, _UNBALANCED = (
    0.3,
    0.7,
)  # shares of the memory's time without and with the imbalance of thread blocks
_REFETCHED = 0.4  # of what neighbouring tiles read, too: most of it comes from L2
_ISSUE_CYCLES_F32 = 1 / 4  # where factors are made of what is read
# of f32, as seen on an H100: how much longer it takes, more with each row of a tile, and with small blocks of two steps
_F32_FACTOR, _F32_ROW, _F32_SMALL_BLOCKS = 1.1, 0.05, 1.08
_EXPOSED = 0.5  # of the shorter of memory and computation, in the first tile
_START_SECONDS = 3.8e-6  # a launch, until the first pixels arrive
_SCALE = 0.91


def plan_of(problem: Convolution, device: GpuDevice, products: int = 1) -> Plan | None:
    """The cheapest plan, with so many `products` of the tensor cores for one; None if the filter does not fit."""
    return _best(problem, device.facts, products)


@lru_cache(512)
def _best(problem: Convolution, facts: GpuFacts, products: int) -> Plan | None:
    if problem.dtype == "f32":
        of_f32 = Cheapest[Plan]()
        _offer_shared_memory(problem, facts, of_f32, products)
        return of_f32.plan()
    unaligned, cheapest = _registers(problem, facts), Cheapest[Plan]()
    if unaligned.seconds == math.inf:
        return None
    if problem.direction == "bwd_filter":
        offer_wgrad_shared_memory(problem, facts, cheapest)
    else:
        _offer_shared_memory(problem, facts, cheapest)
    is_large = max(problem.w.shape[1], problem.k // problem.groups) > MAX_CHANNELS // 2
    return cheapest.plan() if is_large or cheapest.seconds <= unaligned.seconds else unaligned.plan()


def _registers(problem: Convolution, facts: GpuFacts) -> Cheapest[Plan]:
    cheapest = Cheapest[Plan]()
    offer = offer_wgrad_registers if problem.direction == "bwd_filter" else offer_registers
    offer(problem, facts, cheapest)
    return cheapest


@lru_cache(512)
def register_plan(problem: Convolution, facts: GpuFacts) -> Plan:
    """The plan for operands at any address."""
    plan = _registers(problem, facts).plan()
    assert plan is not None
    return plan


def shared_memory_plans(problem: Convolution, facts: GpuFacts, products: int = 1) -> list[Plan]:
    """Every plan of fprop and dgrad through shared memory."""
    every = All[Plan]()
    _offer_shared_memory(problem, facts, every, products)
    return every.plans


def _offer_shared_memory(
    problem: Convolution, facts: GpuFacts, cheapest: Cheapest[Plan], count: int = 1
) -> None:
    """Offer the plans of fprop and dgrad through shared memory that may be the cheapest."""
    multiprocessors = facts.multiprocessors
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    size, is_f32 = shape.size, products.is_f32
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
    step_in = 32 // size  # source channels of a product
    slice_groups = max(1, step_in // group_in)
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    copy_bytes = _copy_bytes(source)
    if slice_in % step_in or copy_bytes < (4 if is_f32 else 16):
        return
    steps, taps = slice_in // step_in, math.prod(shape.taps)
    tiles = 4 if slice_out % 32 == 0 else 2 if slice_out > 8 else 1
    most = MAX_FILTER_REGISTERS if steps <= 2 and not is_f32 else _MAX_FILTER_REGISTERS_LARGE
    factor = taps * steps * (6 if count == 3 else 2)  # registers of the filter for a tile
    while tiles > 1 and factor * tiles > most:
        tiles //= 2
    if factor * tiles > most:
        return
    h, w = (axis_of(shape, axis, is_forward) for axis in (1, 2))
    least_rows = 4 if steps > 2 else steps
    # whether tiles of one row leave registers for two resident blocks of 256 threads
    has_room = (4 * h.unit * w.unit + factor) * tiles + _OTHER_REGISTERS <= 128
    parts = -(-slice_out // (8 * tiles))
    slices = -(-problem.groups // slice_groups)
    planes = problem.n * shape.out[0]
    vector, _ = vector_of(result, slice_out)
    is_packed = _is_packed(problem)
    filter_row = taps * problem.w.shape[1]
    all_tiles = []
    for tile in _tiles(h, w, planes):
        sums = 4 * tiles * tile.tile_rows * h.unit * w.unit
        registers = sums + factor * tiles + _OTHER_REGISTERS
        if registers > MAX_REGISTERS:
            continue
        # large groups read much for each product with few warps: so rows shall share what they read
        one_more = registers + 4 * tiles * h.unit * w.unit
        if tile.tile_rows < min(least_rows, h.blocks) and one_more <= MAX_REGISTERS:
            continue
        again = _refetched_seconds(source, tile, facts)
        all_tiles.append((tile, whole_registers(registers), tile.units(planes), tile.steps, again))
    if not all_tiles:
        return
    sizes = [(tile, units, steps_of_tile, again) for tile, _, units, steps_of_tile, again in all_tiles]
    least_of = _Least(problem, facts, sizes, taps, steps, tiles, products)
    works: list[tuple[float, int, tuple[Any, ...], tuple[Tile, int, int, int, float]]] = []
    # two blocks of half the warps where the filter takes many registers
    for block_slices, threads in product((1, 2, 4, 8), (256, 128) if steps > 1 or is_f32 else (256,)):
        block_groups = block_slices * slice_groups
        if block_slices > 1 and block_slices >= 2 * slices:
            continue
        filter_elements = block_groups * (problem.k // problem.groups) * filter_row
        is_staged = is_packed and filter_elements * size % 16 == 0
        filter_bytes = filter_elements * size
        if filter_row * size % 32 == 0:
            filter_bytes += filter_elements // filter_row * 16
        kinds, blocks = block_slices * parts, -(-slices // block_slices)
        if kinds > threads // 32:
            continue
        splits = threads // 32 // kinds
        pixel = block_slices * slice_in * size
        block = block_slices, threads, kinds, blocks, splits, pixel, is_staged, filter_bytes
        bounds = least_of.seconds(pixel, threads // 32, kinds, splits, blocks)
        works += [
            (least, number, block, work)
            for number, (least, work) in enumerate(zip(bounds, all_tiles, strict=True), len(works))
        ]
    for least, number, block, (tile, registers, units, _, _) in sorted(works):
        if least > cheapest.seconds:
            break
        block_slices, threads, kinds, blocks, splits, pixel, is_staged, filter_bytes = block
        by_registers = facts.registers // (threads * registers)
        tile_bytes, _, _ = tile.layout(pixel)
        for resident in range(1, min(2, by_registers) + 1):
            workers = max(1, min(units, multiprocessors * resident // blocks))
            rounds = -(-units // workers)
            workers = -(-units // rounds)
            stages = min(
                3,
                rounds,
                (shared_room(facts, resident) - filter_bytes * is_staged) // tile_bytes,
            )
            if stages < 1:
                continue
            shared = stages * tile_bytes + filter_bytes * is_staged
            seconds = _seconds(
                problem, tile, facts, pixel, threads // 32, kinds, splits,
                taps, steps, tiles, workers * blocks, rounds, stages, vector, products
            )  # fmt: skip
            seconds *= _correction(
                tile, resident == 1 and (has_room or steps > 1), 3 if stages == rounds else stages
            )
            if is_f32:
                seconds *= _F32_FACTOR + _F32_ROW * tile.tile_rows
                seconds *= _F32_SMALL_BLOCKS if steps > 1 and threads < 256 else 1.0
            made = partial(
                _shared_memory_plan, shape, tile, slice_groups, block_slices, steps, tiles, stages, workers,
                threads, resident, is_staged, workers * blocks, shared, seconds, copy_bytes, count,
            )  # fmt: skip
            cheapest.offer(seconds, (number, resident), made)


def _shared_memory_plan(
    shape: Shape, tile: Tile, slice_groups: int, block_slices: int, steps: int, tiles: int, stages: int, workers: int,
    threads: int, resident: int, is_staged: bool, total: int, shared: int, seconds: float, copy_bytes: int, count: int,
) -> Plan:  # fmt: skip
    problem, is_forward = shape.problem, shape.problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in = source.shape[1] // problem.groups
    _, row_pad, image_pad = tile.layout(block_slices * slice_groups * group_in * shape.size)
    vector, result_c = vector_of(result, slice_groups * (result.shape[1] // problem.groups))
    axes = axis_defines(tile.h, tile.w) | direction_defines(shape)
    defines = shape.defines() | roles(problem, source, result) | axes | {
        "GROUP_IN": group_in, "GROUP_OUT": result.shape[1] // problem.groups,
        "SLICE_GROUPS": slice_groups, "BLOCK_SLICES": block_slices, "CHANNEL_STEPS": steps,
        "TILE_N": tiles, "TILE_ROWS": tile.tile_rows, "TILE_DOWN": tile.down, "TILE_ACROSS": tile.across,
        "TILE_IMAGES": tile.images, "STAGES": stages, "WORKERS": workers, "BLOCK_THREADS": threads,
        "RESIDENT": resident, "FILTER_STAGED": int(is_staged), "RESULT_VECTOR": vector, "HAS_WHOLE_RUNS": 0,
        "RESULT_C": result_c, "ROW_PAD": row_pad, "IMAGE_PAD": image_pad, "COPY_BYTES": copy_bytes,
        "PRODUCTS": count,
    }  # fmt: skip
    return Plan(tuple(defines.items()), threads, total, seconds, workers, shared)


def _pieces(extent: int, most: int) -> list[int]:
    """The lengths of pieces if an extent is divided into equal ones."""
    return sorted({-(-extent // parts) for parts in range(1, min(extent, most) + 1)})


def _tiles(h: Axis, w: Axis, images: int) -> Iterator[Tile]:
    for tile_rows in (1, 2, 3, 4, 5, 7):
        if tile_rows > 1 and tile_rows > h.blocks:
            continue
        row_blocks = -(-h.blocks // tile_rows)
        for across in _pieces(w.blocks, 4):
            for down in _pieces(row_blocks, 28):
                whole = across == w.blocks and down == row_blocks
                for count in (1, 2, 3, 4, 6, 8, 16) if whole else (1,):
                    if count == 1 or count <= images:
                        yield Tile(h, w, count, down, across, tile_rows)


def _copy_bytes(source: TensorDescriptor) -> int:
    """Bytes of neighbouring channels of the source that lie at multiples of as many, up to 16; 0: none are 16 bytes."""
    size = DTYPES[source.dtype]
    n, c, *space = strides_of(source)
    if c != 1 or source.shape[1] * size % 16:
        return 0
    return size * power_of_two((n, *space), 16 // size)


def _is_packed(problem: Convolution) -> bool:
    """Whether the filter of neighbouring groups is contiguous."""
    k, c, *taps = strides_of(problem.w)
    if min(k, c, *taps) < 0 or math.prod(problem.w.shape) % 8:
        return False
    extents = (1,) * (5 - len(problem.w.shape)) + problem.w.shape[2:]
    expected = 1
    for stride, extent in sorted(zip((c, *taps), (problem.w.shape[1], *extents), strict=True)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return k == expected


def _correction(tile: Tile, is_alone: bool, stages: int) -> float:
    """Measured factors that the model lacks: one block where two have room, few stages, narrow pieces of rows."""
    factor = 1.07 if is_alone else 1.0
    factor *= (1.08, 1.025, 1.0)[stages - 1]
    return factor * (1.04 if tile.across < min(8, tile.w.blocks) else 1.0)


def _seconds(
    problem: Convolution, tile: Tile, facts: GpuFacts, pixel: int, warps: int, kinds: int,
    splits: int, taps: int, channel_steps: int, tiles: int, total: int, rounds: int, stages: int, vector: int,
    products: Products,
) -> float:  # fmt: skip
    multiprocessors = facts.multiprocessors
    h, w = tile.h, tile.w
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    # of a tile: copies, reads, stores and products of warps
    copies = tile.images * tile.rows * tile.columns * pixel / _COPY_BYTES
    position_rows = (tile.tile_rows - 1) * h.step + h.reach
    steps = -(-tile.steps // splits) * splits * kinds
    conflicts = 1.0 if tile.has_no_conflicts(pixel) else _CONFLICT_FACTOR
    reads = position_rows * w.reach * channel_steps * conflicts
    multiplied = tile.tile_rows * taps * channel_steps * tiles
    stores = tile.tile_rows * h.unit * w.unit * 2
    shared = copies * _ACCESS_CYCLES + steps * (reads * _ACCESS_CYCLES + stores * _ACCESS_CYCLES)
    store_instructions = _STORE_INSTRUCTIONS if vector > 1 else _SCALAR_STORE_INSTRUCTIONS
    issue = copies * _COPY_INSTRUCTIONS
    issue += steps * (
        reads
        + products.instructions(4 * reads, multiplied)
        + stores * store_instructions
        + _STEP_INSTRUCTIONS
    )
    issue *= _ISSUE_CYCLES_F32 if products.is_f32 else _ISSUE_CYCLES
    blocks = -(-total // multiprocessors)  # of the busiest multiprocessor
    tensor = steps * products.cycles(multiplied) * (_MMA_FACTOR if channel_steps <= 2 else _MMA_FACTOR_LARGE)
    cycles = max(shared, tensor, issue) + _UNHIDDEN * min(shared, tensor)
    cycles *= 1.0 + _LONE_WARP_PENALTY / (blocks * warps)
    compute = blocks * rounds * cycles / clock(facts)
    in_flight = total / multiprocessors * stages * copies * _COPY_BYTES
    imbalance = blocks * multiprocessors / total
    latency = 1.0 + _LATENCY_BYTES / in_flight
    memory = _moved_seconds(source, result, facts, pixel, imbalance, latency)
    memory += _refetched_seconds(source, tile, facts)
    together = math.sqrt(math.hypot(memory**2, compute**2))  # each hides most of the other
    return _SCALE * (together + _EXPOSED * min(memory, compute) / rounds + _START_SECONDS)


class _Least:
    """What `_seconds` does not come below, of many tiles at once: with any number of stages and of resident blocks."""

    def __init__(
        self, problem: Convolution, facts: GpuFacts, tiles_and_sizes: Sequence[tuple[Tile, int, int, float]], taps: int,
        channel_steps: int, tiles: int, products: Products,
    ) -> None:  # fmt: skip
        self._problem, self._facts, self._products = problem, facts, products
        sizes = [
            (
                tile.images * tile.rows * tile.columns, (tile.tile_rows - 1) * tile.h.step + tile.h.reach,
                tile.tile_rows, units, steps, again,
            )
            for tile, units, steps, again in tiles_and_sizes
        ]  # fmt: skip
        self._pixels, rows, tile_rows, self._units, self._steps, self._again = np.array(sizes, float).T
        h, w = tiles_and_sizes[0][0].h, tiles_and_sizes[0][0].w
        accesses = rows * w.reach * channel_steps + tile_rows * h.unit * w.unit * 2
        self._shared = accesses * _ACCESS_CYCLES
        factor = _MMA_FACTOR if channel_steps <= 2 else _MMA_FACTOR_LARGE
        self._tensor = tile_rows * (taps * channel_steps * tiles) * products.cycles(factor)

    def seconds(self, pixel: int, warps: int, kinds: int, splits: int, blocks: int) -> list[float]:
        """Of each tile, for thread blocks of so many warps that take `pixel` bytes of a pixel."""
        problem, facts = self._problem, self._facts
        is_forward = problem.direction == "fwd"
        source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
        multiprocessors = facts.multiprocessors
        copies = self._pixels * pixel / _COPY_BYTES
        steps = np.ceil(self._steps / splits) * splits * kinds
        shared, tensor = copies * _ACCESS_CYCLES + steps * self._shared, steps * self._tensor
        cycles = np.maximum(shared, tensor) + _UNHIDDEN * np.minimum(shared, tensor)
        at_once = max(2, -(-blocks // multiprocessors))  # thread blocks of the busiest multiprocessor
        cycles *= 1.0 + _LONE_WARP_PENALTY / (at_once * warps)
        compute = self._units * blocks / multiprocessors * cycles / clock(facts)
        memory = _moved_seconds(source, result, facts, pixel)
        rounds = np.ceil(self._units / max(1, multiprocessors // blocks))  # at most
        in_flight = at_once * np.minimum(3, rounds) * copies * _COPY_BYTES
        in_flight = np.minimum(in_flight, facts.shared_bytes * max(1, -(-blocks // multiprocessors)))
        memory = memory * (1.0 + _LATENCY_BYTES / in_flight) + self._again
        together = np.sqrt(np.hypot(memory**2, compute**2)) + _EXPOSED * np.minimum(memory, compute) / rounds
        factor = _SCALE * (_F32_FACTOR if self._products.is_f32 else 1.0)
        found: list[float] = (factor * ROUNDED * (together + _START_SECONDS)).tolist()
        return found


def _moved_seconds(
    source: TensorDescriptor, result: TensorDescriptor, facts: GpuFacts, pixel: int, imbalance: float = 1.0,
    latency: float = 1.0,
) -> float:  # fmt: skip
    """Of the tensors' bytes; with factors of 1 the least."""
    memory = float(DTYPES[source.dtype]) * (source.size + result.size) / (facts.bandwidth * _BANDWIDTH_SHARE)
    memory *= _BALANCED + _UNBALANCED * imbalance
    return memory * (latency * (1.0 + _SMALL_SLICE / pixel))


def _refetched_seconds(source: TensorDescriptor, tile: Tile, facts: GpuFacts) -> float:
    """Of bytes that several tiles read."""
    size = DTYPES[source.dtype] * float(source.size)
    refetched = size * (tile.rows / (tile.down * tile.tile_rows * tile.h.step) - 1)
    refetched += size * (tile.columns / (tile.across * tile.w.step) - 1)
    return _REFETCHED * max(0.0, refetched) / facts.bandwidth
