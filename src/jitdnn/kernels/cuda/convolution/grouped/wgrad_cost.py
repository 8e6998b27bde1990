"""The cost of every candidate plan of wgrad of grouped convolutions: through shared memory, or straight into registers.

Channels-last tensors of multiples of 16 bytes go through shared memory (wgrad_shared_memory.cu): every output is read
once and every pixel of x about once, whatever taps it meets, and the sums of a thread block's warps are added before
they are written. All others go from memory into registers (wgrad_registers.cu), each tap separately, and every warp
writes its sums. Either way each of `workers` writes at most the filter's elements, which wgrad_reduce.cu adds; a single
worker writes the result. An infinity in x makes NaN of the other taps as well, where there are zeros instead of
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan, WgradTile
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import All, Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.shape import Defines, Shape, power_of_two, strides_of
from jitdnn.kernels.cuda.cost import REGISTER_UNIT, clock, l2_bandwidth
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution

Numbers = npt.NDArray[np.floating[Any]]

_MAX_REGISTERS = 250  # of a thread
_BEHIND = 1 << 30  # plans in registers: of equals those through shared memory are taken

# ---- The model of the shared-memory kernel, fitted to measurements on an H100. Cycles of a multiprocessor:
_WARPS = (8, 16)  # of a thread block
_MAX_WORKERS = 64  # the reduction reads the partial sums of all of them
_STEP_MMAS = 2.125  # products that 16 outputs and a tap (and one for dy) take the time of: they are two
_COPY_CYCLES = 4.9  # of a warp's copy
_TILE_CYCLES, _START_CYCLES = 150, 4500
_LONE_WARP_PENALTY = 3  # divided by the warps of a multiprocessor, which hide each other's latency
_STORES_A_CYCLE = 64  # of sums
# and memory:
_COPY_BYTES = 512  # of a warp
_BANDWIDTH_SHARE = 0.94  # of the memory's bandwidth, that copies reach
_SMALL_SLICE = 2.7  # divided by the channels of a thread block: short pieces of pixels
_EXPOSED = 0.5  # of the shorter of memory and computation, in the first tile
_PARTIAL_BYTES = 9.6  # of a partial sum, written and read, with what that costs beyond L2's bandwidth
_REDUCTION_SECONDS, _START_SECONDS = 1e-6, 4.2e-6
_SCALE = 0.86
_MANY_WARPS = 1.08  # of a thread block with the most warps, on all of its time

# ---- The model of the register kernel. Cycles of a multiprocessor:
_REGISTER_THREADS = 128  # of a thread block
_PAIR_CYCLES, _ELEMENT_CYCLES = 4, 16  # of reading two channels, at once or one by one
_READ_CYCLES, _UNIT_CYCLES, _SCHEDULING = 4.0, 60, 1.2
_UNIT_LATENCY, _REGISTER_START_CYCLES = 1000, 2500
# and memory:
_FEW_WARPS, _FEW_WARPS_PENALTY = 8, 1.3  # of a multiprocessor
_UNHIDDEN = 0.15  # of the shorter of memory and computation
_REGISTER_START_SECONDS, _WORKER_SECONDS = 6e-6, 60e-9
_SCATTERED = 1 / 9  # of L2's bandwidth: for the partial sums that each warp writes out of its registers


def whole_registers(registers: int) -> int:
    """Registers that a thread gets that needs so many."""
    return -(-registers // REGISTER_UNIT) * REGISTER_UNIT


def shared_room(facts: GpuFacts, resident: int) -> int:
    """Bytes of shared memory that each of the resident thread blocks may have."""
    return facts.shared_bytes // resident - facts.reserved_shared_bytes


def wgrad_shared_memory_plans(problem: Convolution, facts: GpuFacts) -> list[Plan]:
    """Every plan of the filter's gradient through shared memory."""
    every = All[Plan]()
    offer_wgrad_shared_memory(problem, facts, every)
    return every.plans


def offer_wgrad_shared_memory(problem: Convolution, facts: GpuFacts, cheapest: Cheapest[Plan]) -> None:
    """Offer the plans of the filter's gradient through shared memory that may be the cheapest."""
    multiprocessors, bandwidth = facts.multiprocessors, facts.bandwidth
    shape, slice_groups = Shape(problem), _slice_groups(problem)
    if not slice_groups or not _is_whole(problem):
        return
    group_in = problem.w.shape[1]
    slice_in = slice_groups * group_in
    elements, pixels = math.prod(problem.w.shape), 2.0 * (problem.x.size + problem.y.size)
    families = _families(shape, facts, slice_groups)
    bounds = np.concatenate([family.least for family in families]) if families else np.empty(0)
    firsts = np.cumsum([0, *(len(family.least) for family in families)])
    for number in np.argsort(bounds, kind="stable").tolist():
        if bounds[number] > cheapest.seconds:
            break
        at = int(np.searchsorted(firsts, number, side="right")) - 1
        family, place = families[at], number - int(firsts[at])
        warps, blocks, block_slices = family.warps, family.blocks, family.block_slices
        images, rows, columns = family.tiles.sizes[place]
        tile = WgradTile(shape, images, rows, columns, family.taps)
        units, tile_steps = int(family.tiles.units[place]), int(family.tiles.steps[place])
        of_tile, copies = float(family.of_tile[place]), float(family.copies[place])
        slice_out, all_taps = family.slice_out, family.taps * shape.taps[2]
        x_bytes, _, _ = tile.layout(block_slices * slice_in)
        y_bytes = tile_steps * 16 * (2 * block_slices * slice_out + 16)
        for order, (resident, most) in enumerate(((1, _MAX_WORKERS), (2, _MAX_WORKERS), (1, 1))):
            if resident * warps > 16 or (most == 1 and 2 * blocks < multiprocessors):
                continue
            workers = max(1, min(units, multiprocessors * resident // blocks, most))
            rounds = -(-units // workers)
            workers = -(-units // rounds)
            room = shared_room(facts, resident)
            stages = min(3, rounds, room // (x_bytes + y_bytes))
            shared = max(stages * (x_bytes + y_bytes), 4 * warps * all_taps * 256)
            if stages < min(2, rounds) or shared > room:
                continue
            total = workers * blocks
            busiest = -(-total // multiprocessors)  # thread blocks of a multiprocessor
            lone = 1 + _LONE_WARP_PENALTY / (busiest * warps)
            cycles = of_tile * lone + _TILE_CYCLES
            stores = block_slices * slice_out * group_in * all_taps * family.splits / _STORES_A_CYCLE
            compute = (busiest * (rounds * cycles + stores) + _START_CYCLES) / clock(facts)
            memory = pixels / (_BANDWIDTH_SHARE * bandwidth) * (busiest * multiprocessors / total)
            memory *= 1 + _SMALL_SLICE / (block_slices * slice_in)
            memory += max(0.0, _COPY_BYTES * copies * rounds * total - pixels) / bandwidth
            together = (memory**6 + compute**6) ** (1 / 6) + _EXPOSED * min(memory, compute) / rounds
            reduction = _PARTIAL_BYTES * workers * elements / l2_bandwidth(facts) + _REDUCTION_SECONDS
            reduction = reduction if workers > 1 else 0.0
            seconds = _SCALE * (together + reduction + _START_SECONDS)
            seconds *= _MANY_WARPS if warps == max(_WARPS) else 1.0
            made = partial(
                _shared_memory_plan, tile, warps, slice_groups, block_slices, family.slice_parts, resident, stages,
                workers, total, shared, seconds,
            )  # fmt: skip
            cheapest.offer(seconds, (number, order), made)


@dataclass(frozen=True)
class _Tiles:
    """Images, rows and columns of tiles, and of each its units, steps, and pixels of x."""

    sizes: list[tuple[int, int, int]]
    units: Numbers
    steps: Numbers
    pixels: Numbers


@dataclass(frozen=True)
class _Family:
    """Thread blocks of tiles with the same rows of `taps`, warps and slices, `blocks` of them for all channels.

    Of each tile: cycles and copies of a warp, and what the seconds of all its plans do not come below.
    """

    tiles: _Tiles
    taps: int
    warps: int
    block_slices: int
    slice_parts: int
    slice_out: int
    splits: int
    blocks: int
    of_tile: Numbers
    copies: Numbers
    least: Numbers


def _families(shape: Shape, facts: GpuFacts, slice_groups: int) -> list[_Family]:
    problem, sizes = shape.problem, list(_tile_sizes(shape))
    group_in, group_out = problem.w.shape[1], problem.k // problem.groups
    slice_in, all_out = slice_groups * group_in, slice_groups * group_out
    slices = -(-problem.groups // slice_groups)
    found = []
    for tile_taps in range(1, shape.taps[1] + 1):
        all_taps = tile_taps * shape.taps[2]
        if all_taps > 12 or shape.taps[2] > 11:  # more sums than registers, here or in the register kernel
            continue
        tiles = _tiles(shape, sizes, tile_taps)
        for warps in _WARPS:
            slice_parts = _slice_parts(slice_in, all_out, warps)
            if not slice_parts or (warps == max(_WARPS) and all_taps > 9):
                continue
            slice_out = all_out // slice_parts
            for block_slices in (1, 2, 4):
                kinds = block_slices * slice_in * slice_out // 256
                if kinds > warps or (block_slices > 1 and (slice_parts > 1 or block_slices >= 2 * slices)):
                    continue
                splits = warps // kinds
                blocks = -(-slices // block_slices) * slice_parts * -(-shape.taps[1] // tile_taps)
                # of a tile: reads and copies
                steps = np.ceil(tiles.steps / splits) * (splits * kinds)
                copies = block_slices * (tiles.pixels * slice_in + 16 * tiles.steps * slice_out) / 256
                of_tile = steps * (_STEP_MMAS * facts.mma_cycles) * (1 + all_taps) + _COPY_CYCLES * copies
                least = _least(problem, facts, tiles, warps, blocks, block_slices * slice_in, of_tile, copies)
                given = tiles, tile_taps, warps, block_slices, slice_parts, slice_out, splits, blocks
                found.append(_Family(*given, of_tile, copies, least))
    return found


def _least(
    problem: Convolution, facts: GpuFacts, tiles: _Tiles, warps: int, blocks: int, channels: int, of_tile: Numbers,
    copies: Numbers,
) -> Numbers:  # fmt: skip
    """What no number of workers and of resident blocks comes below, whose `channels` are those of a thread block."""
    multiprocessors, pixels = facts.multiprocessors, 2.0 * (problem.x.size + problem.y.size)
    all_units = tiles.units * blocks
    busiest = max(16 // warps, -(-blocks // multiprocessors))
    cycles = of_tile * (1 + _LONE_WARP_PENALTY / (busiest * warps)) + _TILE_CYCLES
    compute = (all_units / multiprocessors * cycles + _START_CYCLES) / clock(facts)
    again = np.maximum(0.0, _COPY_BYTES * copies * all_units - pixels) / facts.bandwidth
    memory = pixels / (_BANDWIDTH_SHARE * facts.bandwidth) * (1 + _SMALL_SLICE / channels) + again
    together = (memory**6 + compute**6) ** (1 / 6)
    scale = _SCALE * (_MANY_WARPS if warps == max(_WARPS) else 1.0) * ROUNDED
    return np.asarray(scale * (together + _START_SECONDS))


def _shared_memory_plan(
    tile: WgradTile, warps: int, slice_groups: int, block_slices: int, slice_parts: int, resident: int, stages: int,
    workers: int, total: int, shared: int, seconds: float,
) -> Plan:  # fmt: skip
    shape, problem = tile.shape, tile.shape.problem
    group_in = problem.w.shape[1]
    _, row_pad, image_pad = tile.layout(block_slices * slice_groups * group_in)
    defines = shape.defines() | {
        "PLANES": shape.out[0], "GROUPS_OF_CHANNELS": problem.groups, "GROUP_IN": group_in,
        "GROUP_OUT": problem.k // problem.groups, "SLICE_GROUPS": slice_groups, "BLOCK_SLICES": block_slices,
        "SLICE_PARTS": slice_parts, "ROW_PAD": row_pad, "IMAGE_PAD": image_pad,
        "TILE_TAPS": tile.taps, "TILE_IMAGES": tile.images, "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns, "WORKERS": workers, "BLOCK_THREADS": 32 * warps,
        "STAGES": stages, "RESIDENT": resident, "IS_ALONE": int(workers == 1), **_reduction_defines(workers, group_in),
    }  # fmt: skip
    return Plan(tuple(defines.items()), 32 * warps, total, seconds, workers, shared)


def _reduction_defines(workers: int, group_in: int) -> Defines:
    """Macros of the reduction, whose threads have 8 loads in flight."""
    return {
        "REDUCTION_THREADS": power_of_two_above(-(-workers // 8), 32),
        "REDUCTION_VECTOR": 4 if group_in % 4 == 0 else 1,
    }


def power_of_two_above(number: int, most: int) -> int:
    """The least power of two, up to `most`, that is no less than the number."""
    return min(most, 1 << max(0, number - 1).bit_length())


def _slice_groups(problem: Convolution) -> int:
    """Groups whose channels fill whole operands of 16, in and out; 0 if several groups take more than two operands."""
    group_in, group_out = problem.w.shape[1], problem.k // problem.groups
    groups = math.lcm(16 // math.gcd(16, group_in), 16 // math.gcd(16, group_out))
    return groups if groups == 1 or groups * max(group_in, group_out) <= 32 else 0


def _slice_parts(slice_in: int, slice_out: int, warps: int) -> int:
    """Blocks that share the outputs of a slice, so that a block has no more operands by operands of 16 than warps."""
    operands = slice_out // 16
    fits = (
        n for n in range(1, operands + 1) if operands % n == 0 and slice_in * slice_out // n // 256 <= warps
    )
    return next(fits, 0)


def _is_whole(problem: Convolution) -> bool:
    """Whether channels come in units of 16 bytes at addresses that are multiples of 16."""
    for tensor in (problem.x, problem.y):
        n, c, *space = strides_of(tensor)
        if c != 1 or tensor.shape[1] % 8 or power_of_two((n, *space), 8) < 8:
            return False
    return True


def _tile_sizes(shape: Shape) -> Iterator[tuple[int, int, int]]:
    _, p, q = shape.out
    for columns in sorted({-(-q // parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16)}):
        for rows in sorted({-(-p // parts) for parts in range(1, p + 1)}):
            for images in (1, 2, 3, 4, 6, 8) if rows == p and columns == q else (1,):
                if 16 <= images * rows * columns <= 1024 or (images == 8 and rows == p) or p * q > 1024:
                    yield images, rows, columns


def _tiles(shape: Shape, sizes: list[tuple[int, int, int]], taps: int) -> _Tiles:
    """The tiles with so many rows of taps: as `WgradTile` counts them, all at once."""
    (_, stride_h, stride_w), (_, dilation_h, dilation_w) = shape.stride, shape.dilation
    planes, p, q = shape.out
    images, rows, columns = np.array(sizes, float).reshape(-1, 3).T
    units = np.ceil(shape.problem.n * planes / images) * np.ceil(p / rows) * np.ceil(q / columns)
    down = (rows - 1) * stride_h + (taps - 1) * dilation_h + 1
    across = (columns - 1) * stride_w + (shape.taps[2] - 1) * dilation_w + 1
    return _Tiles(sizes, units, np.ceil(images * rows * columns / 16), images * down * across)


def offer_wgrad_registers(problem: Convolution, facts: GpuFacts, cheapest: Cheapest[Plan]) -> None:
    """Offer every plan of the filter's gradient straight into registers."""
    multiprocessors, bandwidth = facts.multiprocessors, facts.bandwidth
    scattered = _SCATTERED * l2_bandwidth(facts)
    shape, order = Shape(problem), _BEHIND
    group_in, group_out = problem.w.shape[1], problem.k // problem.groups
    slice_groups = max(1, min(16 // group_in, 16 // group_out))
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    planes, p, q = shape.out
    stride, taps = shape.stride[1], shape.taps
    strips = problem.n * planes * -(-q // 8)
    is_even = {
        letter: int(c == 1 and slice_size % 2 == 0 and power_of_two((n, *space), 2) == 2)
        for letter, slice_size, (n, c, *space) in (
            ("X", slice_in, strides_of(problem.x)),
            ("Y", slice_out, strides_of(problem.y)),
        )
    }
    for tile_taps in range(1, taps[1] + 1):
        sums = 8 * tile_taps * taps[2]
        live = -(-((tile_taps - 1) * shape.dilation[1] + 1) // stride) + 1
        registers = sums + 10 * taps[2] + 4 * live + 44
        if registers > _MAX_REGISTERS:
            continue
        resident = facts.registers // (_REGISTER_THREADS * max(64, whole_registers(registers)))
        resident = max(1, min(5, resident))
        kinds = -(-problem.groups // slice_groups) * -(-slice_in // 16) * -(-slice_out // 16)
        kinds *= -(-taps[1] // tile_taps)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8):
            if rows > 1 and (rows >= p + 2 or (rows * taps[2] * tile_taps > 96)):
                continue
            units = -(-strips // 2) * -(-p // rows)
            source_rows = (rows - 1) * stride + (tile_taps - 1) * shape.dilation[1] + 1
            for fewer in (1, 2, 4, 8):
                workers = max(
                    1, min(units, multiprocessors * resident * (_REGISTER_THREADS // 32) // kinds // fewer)
                )
                rounds = -(-units // workers)
                workers = -(-units // rounds)
                reads = source_rows * taps[2] * (_PAIR_CYCLES if is_even["X"] else _ELEMENT_CYCLES)
                reads += rows * (_PAIR_CYCLES if is_even["Y"] else _ELEMENT_CYCLES)
                products = rows * tile_taps * taps[2] * 2
                unit = max(facts.mma_cycles * products, _READ_CYCLES * reads) + _UNIT_CYCLES
                total = workers * kinds
                cycles = -(-total // multiprocessors) * unit * _SCHEDULING + _UNIT_LATENCY
                compute = (rounds * cycles + _REGISTER_START_CYCLES) / clock(facts)
                partial_bytes = 4.0 * workers * math.prod(problem.w.shape)
                memory = 2.0 * (problem.x.size + problem.y.size) / bandwidth
                if total < multiprocessors * _FEW_WARPS:
                    memory *= _FEW_WARPS_PENALTY
                seconds = max(memory, compute) + _UNHIDDEN * min(memory, compute)
                seconds += _REGISTER_START_SECONDS
                seconds += workers / 8 * _WORKER_SECONDS + partial_bytes / scattered
                made = partial(
                    _register_plan,
                    shape,
                    slice_groups,
                    tile_taps,
                    rows,
                    workers,
                    resident,
                    is_even,
                    total,
                    seconds,
                )
                cheapest.offer(seconds, (order := order + 1,), made)


def _register_plan(
    shape: Shape, slice_groups: int, tile_taps: int, rows: int, workers: int, resident: int, is_even: dict[str, int],
    total: int, seconds: float,
) -> Plan:  # fmt: skip
    problem, group_in = shape.problem, shape.problem.w.shape[1]
    defines = shape.defines() | {
        "PLANES": shape.out[0], "GROUPS_OF_CHANNELS": problem.groups, "GROUP_IN": group_in,
        "GROUP_OUT": problem.k // problem.groups, "SLICE_GROUPS": slice_groups, "TILE_TAPS": tile_taps,
        "TILE_ROWS": rows, "WORKERS": workers, "BLOCK_THREADS": _REGISTER_THREADS,
        "RESIDENT": resident, "X_IS_EVEN": is_even["X"],
        "Y_IS_EVEN": is_even["Y"], **_reduction_defines(workers, group_in),
    }  # fmt: skip
    return Plan(
        tuple(defines.items()), _REGISTER_THREADS, -(-total * 32 // _REGISTER_THREADS), seconds, workers
    )
