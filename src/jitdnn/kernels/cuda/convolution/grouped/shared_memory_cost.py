"""The cost of every candidate plan of fprop and dgrad of grouped convolutions through shared memory.

Channels-last sources of multiples of 16 bytes are copied in slices of up to 64 channels that groups fill. A source
pixel is read from memory once for each tile that it is in, whatever taps it meets there, by copies that take no
registers: 50 kB in flight on each multiprocessor saturate an H100's memory, and registers alone do not hold as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

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
)
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import (
    shared_room,
    whole_registers,
)
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.products import Products
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, power_of_two, strides_of
from jitdnn.kernels.cuda.cost import clock
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

Numbers = npt.NDArray[np.floating[Any]]
_TILE_ROWS = 1, 2, 3, 4, 5, 7

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


@dataclass(frozen=True)
class _Slices:
    """What all plans through shared memory have in common: channels in `slices` of whole operands, taps and axes.

    `steps`: of channels in a product's operand; `tiles`: of 8 results, `parts` of them in a slice; `factor`: registers
    of the filter for one. `has_room`: tiles of one row leave registers for two resident blocks of 256 threads.
    """

    shape: Shape
    products: Products
    source: TensorDescriptor
    result: TensorDescriptor
    copy_bytes: int
    groups: int
    width_in: int
    width_out: int
    steps: int
    taps: int
    tiles: int
    factor: int
    parts: int
    slices: int
    planes: int
    h: Axis
    w: Axis

    @staticmethod
    def of(problem: Convolution, facts: GpuFacts, count: int) -> _Slices | None:
        """None if channels, or the filter, do not fit."""
        shape = Shape(problem)
        products = Products.of(shape, count, facts.mma_cycles)
        size, is_f32 = shape.size, products.is_f32
        is_forward = problem.direction == "fwd"
        source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
        group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
        step_in = 32 // size  # source channels of a product
        groups = max(1, step_in // group_in)
        width_in, width_out = groups * group_in, groups * group_out
        copy_bytes = _copy_bytes(source)
        if width_in % step_in or copy_bytes < (4 if is_f32 else 16):
            return None
        steps, taps = width_in // step_in, math.prod(shape.taps)
        tiles = 4 if width_out % 32 == 0 else 2 if width_out > 8 else 1
        most = MAX_FILTER_REGISTERS if steps <= 2 and not is_f32 else _MAX_FILTER_REGISTERS_LARGE
        factor = taps * steps * (6 if count == 3 else 2)
        while tiles > 1 and factor * tiles > most:
            tiles //= 2
        if factor * tiles > most:
            return None
        h, w = (axis_of(shape, axis, is_forward) for axis in (1, 2))
        parts, slices = -(-width_out // (8 * tiles)), -(-problem.groups // groups)
        return _Slices(
            shape, products, source, result, copy_bytes, groups, width_in, width_out, steps, taps, tiles, factor, parts,
            slices, problem.n * shape.out[0], h, w,
        )  # fmt: skip

    @property
    def has_room(self) -> bool:
        return self.registers(1) <= 128

    def registers(self, rows: int) -> int:
        """Of a thread, with tiles of so many rows."""
        return (4 * rows * self.h.unit * self.w.unit + self.factor) * self.tiles + _OTHER_REGISTERS

    def blocks(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Thread blocks: their slices and threads, warps of different results and how many share these, thread blocks
        of all slices, and bytes of a pixel."""
        # two blocks of half the warps where the filter takes many registers
        few = self.steps > 1 or self.products.is_f32
        for block_slices, threads in product((1, 2, 4, 8), (256, 128) if few else (256,)):
            kinds = block_slices * self.parts
            if (block_slices == 1 or block_slices < 2 * self.slices) and kinds <= threads // 32:
                splits, blocks = threads // 32 // kinds, -(-self.slices // block_slices)
                yield (
                    block_slices,
                    threads,
                    kinds,
                    splits,
                    blocks,
                    block_slices * self.width_in * self.shape.size,
                )


@dataclass(frozen=True)
class _Works:
    """All tiles, `sizes` of which are images, rows of blocks down, blocks across and rows of results, by thread blocks:
    what none of their plans comes below, of the tiles of the first thread block, then of the next."""

    own: _Slices
    sizes: list[tuple[int, int, int, int]]
    blocks: list[tuple[int, int, int, int, int, int]]
    bounds: Numbers

    def tile(self, number: int) -> Tile:
        return Tile(self.own.h, self.own.w, *self.sizes[number % len(self.sizes)])


@lru_cache(8)  # for the bound, and then for the plan
def _works(problem: Convolution, facts: GpuFacts, count: int) -> _Works | None:
    """None where channels, or the filter, do not fit."""
    own = _Slices.of(problem, facts, count)
    if own is None:
        return None
    h = own.h
    least_rows = 4 if own.steps > 2 else own.steps
    # large groups read much for each product with few warps: so rows shall share what they read
    rows = [
        rows
        for rows in _TILE_ROWS
        if (rows == 1 or rows <= h.blocks)
        and own.registers(rows) <= MAX_REGISTERS
        and not (rows < min(least_rows, h.blocks) and own.registers(rows + 1) <= MAX_REGISTERS)
    ]
    sizes = [size for one in rows for size in _tile_sizes(h, own.w, own.planes, one)]
    if not sizes:
        return None
    least_of, blocks = _Least(own, facts, sizes), list(own.blocks())
    bounds = [
        least_of.seconds(pixel, threads // 32, kinds, splits, of_all)
        for _, threads, kinds, splits, of_all, pixel in blocks
    ]
    return _Works(own, sizes, blocks, np.concatenate(bounds) if bounds else np.empty(0))


def least_seconds(problem: Convolution, facts: GpuFacts, products: int = 1) -> float:
    """What no plan through shared memory comes below; infinite where there is none."""
    works = _works(problem, facts, products)
    return float(works.bounds.min(initial=math.inf)) if works else math.inf


def offer_shared_memory(
    problem: Convolution, facts: GpuFacts, cheapest: Cheapest[Plan], count: int = 1
) -> None:
    """Offer the plans of fprop and dgrad through shared memory that may be the cheapest."""
    multiprocessors, works = facts.multiprocessors, _works(problem, facts, count)
    if works is None:
        return
    own = works.own
    shape, planes, is_f32 = own.shape, own.planes, own.products.is_f32
    steps, taps, tiles, size = own.steps, own.taps, own.tiles, own.shape.size
    vector, _ = vector_of(own.result, own.width_out)
    is_packed = _is_packed(problem)
    filter_row = taps * problem.w.shape[1]
    for number in np.argsort(works.bounds, kind="stable").tolist():
        if works.bounds[number] > cheapest.seconds:
            break
        tile = works.tile(number)
        registers, units = whole_registers(own.registers(tile.tile_rows)), tile.units(planes)
        block_slices, threads, kinds, splits, blocks, pixel = works.blocks[number // len(works.sizes)]
        filter_elements = block_slices * own.groups * (problem.k // problem.groups) * filter_row
        is_staged = is_packed and filter_elements * size % 16 == 0
        filter_bytes = filter_elements * size
        if filter_row * size % 32 == 0:
            filter_bytes += filter_elements // filter_row * 16
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
                own, tile, facts, pixel, threads // 32, kinds, splits, workers * blocks, rounds, stages, vector
            )  # fmt: skip
            seconds *= _correction(
                tile, resident == 1 and (own.has_room or steps > 1), 3 if stages == rounds else stages
            )
            if is_f32:
                seconds *= _F32_FACTOR + _F32_ROW * tile.tile_rows
                seconds *= _F32_SMALL_BLOCKS if steps > 1 and threads < 256 else 1.0
            made = partial(
                _shared_memory_plan, shape, tile, own.groups, block_slices, steps, tiles, stages, workers,
                threads, resident, is_staged, workers * blocks, shared, seconds, own.copy_bytes, count,
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


def _tile_sizes(h: Axis, w: Axis, images: int, tile_rows: int) -> Iterator[tuple[int, int, int, int]]:
    row_blocks = -(-h.blocks // tile_rows)
    for across in _pieces(w.blocks, 4):
        for down in _pieces(row_blocks, 28):
            whole = across == w.blocks and down == row_blocks
            for count in (1, 2, 3, 4, 6, 8, 16) if whole else (1,):
                if count == 1 or count <= images:
                    yield count, down, across, tile_rows


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
    own: _Slices, tile: Tile, facts: GpuFacts, pixel: int, warps: int, kinds: int, splits: int, total: int, rounds: int,
    stages: int, vector: int,
) -> float:  # fmt: skip
    multiprocessors, products, taps, channel_steps = facts.multiprocessors, own.products, own.taps, own.steps
    h, w, source, result = tile.h, tile.w, own.source, own.result
    # of a tile: copies, reads, stores and products of warps
    copies = tile.images * tile.rows * tile.columns * pixel / _COPY_BYTES
    position_rows = (tile.tile_rows - 1) * h.step + h.reach
    steps = -(-tile.steps // splits) * splits * kinds
    conflicts = 1.0 if tile.has_no_conflicts(pixel) else _CONFLICT_FACTOR
    reads = position_rows * w.reach * channel_steps * conflicts
    multiplied = tile.tile_rows * taps * channel_steps * own.tiles
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

    def __init__(self, own: _Slices, facts: GpuFacts, sizes: Sequence[tuple[int, int, int, int]]) -> None:
        self._own, self._facts = own, facts
        h, w = own.h, own.w
        images, down, across, tile_rows = np.array(sizes, float).T
        # as `Tile` counts them
        rows, columns = (down * tile_rows - 1) * h.step + h.reach, (across - 1) * w.step + w.reach
        self._pixels = images * rows * columns
        self._units = np.ceil(own.planes / images) * np.ceil(h.blocks / (down * tile_rows))
        self._units *= np.ceil(w.blocks / across)
        self._steps = np.ceil(images * down * across / 16)
        self._again = _again_seconds(
            own.source, rows / (down * tile_rows * h.step), columns / (across * w.step), facts
        )
        accesses = (
            (tile_rows - 1) * h.step + h.reach
        ) * w.reach * own.steps + tile_rows * h.unit * w.unit * 2
        self._shared = accesses * _ACCESS_CYCLES
        factor = _MMA_FACTOR if own.steps <= 2 else _MMA_FACTOR_LARGE
        self._tensor = tile_rows * (own.taps * own.steps * own.tiles) * own.products.cycles(factor)

    def seconds(self, pixel: int, warps: int, kinds: int, splits: int, blocks: int) -> Numbers:
        """Of each tile, for thread blocks of so many warps that take `pixel` bytes of a pixel."""
        own, facts = self._own, self._facts
        multiprocessors = facts.multiprocessors
        copies = self._pixels * pixel / _COPY_BYTES
        steps = np.ceil(self._steps / splits) * splits * kinds
        shared, tensor = copies * _ACCESS_CYCLES + steps * self._shared, steps * self._tensor
        cycles = np.maximum(shared, tensor) + _UNHIDDEN * np.minimum(shared, tensor)
        at_once = max(2, -(-blocks // multiprocessors))  # thread blocks of the busiest multiprocessor
        cycles *= 1.0 + _LONE_WARP_PENALTY / (at_once * warps)
        compute = self._units * blocks / multiprocessors * cycles / clock(facts)
        memory = _moved_seconds(own.source, own.result, facts, pixel)
        rounds = np.ceil(self._units / max(1, multiprocessors // blocks))  # at most
        in_flight = at_once * np.minimum(3, rounds) * copies * _COPY_BYTES
        in_flight = np.minimum(in_flight, facts.shared_bytes * max(1, -(-blocks // multiprocessors)))
        memory = memory * (1.0 + _LATENCY_BYTES / in_flight) + self._again
        together = np.sqrt(np.hypot(memory**2, compute**2)) + _EXPOSED * np.minimum(memory, compute) / rounds
        factor = _SCALE * (_F32_FACTOR if own.products.is_f32 else 1.0)
        return np.asarray(factor * ROUNDED * (together + _START_SECONDS))


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


def _again_seconds(source: TensorDescriptor, rows: Numbers, columns: Numbers, facts: GpuFacts) -> Numbers:
    """The same of many tiles, by how many rows and columns they read for one of their own."""
    read = DTYPES[source.dtype] * float(source.size) * (rows + columns - 2)
    return np.asarray(_REFETCHED * np.maximum(0.0, read) / facts.bandwidth)
