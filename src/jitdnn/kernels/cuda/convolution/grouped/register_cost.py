"""The cost of plans of fprop and dgrad of grouped convolutions straight into registers (registers.cu)."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.grouped.plan import (
    Plan,
    axis_defines,
    axis_of,
    direction_defines,
    roles,
    vector_of,
)
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import whole_registers
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, power_of_two, strides_of
from jitdnn.kernels.cuda.cost import clock
from jitdnn.problems.convolution import Convolution

MAX_REGISTERS, MAX_FILTER_REGISTERS = 250, 80  # of a thread

# Cycles of a multiprocessor:
_REGISTER_THREADS = 128  # of a thread block
_WIDE_READ_CYCLES, _NARROW_READ_CYCLES = 4, 40  # of a lane's channels of a pixel, at once or one by one
_WIDE_STORE_CYCLES, _NARROW_STORE_CYCLES = 4, 30
_UNIT_CYCLES = 40  # of a work unit, beside its reads, products and stores
_SCHEDULING = 1.2
_ROW_LATENCY, _PIXEL_LATENCY = 600, 25  # until a row of the source arrives, and for each pixel of its own
_PREFETCH_GAIN = 1.6  # with two rows in flight
_UNIT_LATENCY, _START_CYCLES = 900, 2500
# and memory:
_L1_MISSES = 0.2  # of the source that neighbouring units read, too
_FEW_WARPS, _FEW_WARPS_PENALTY = 8, 1.3  # of a multiprocessor
_SHARED_PIXELS, _OWN_PIXELS = (
    1.3,
    1.1,
)  # lanes that read a pixel for several taps wait for each of them; those that do not
_UNHIDDEN = 0.15  # of the shorter of memory and computation
_REGISTER_START_SECONDS = 6e-6


def offer_registers(problem: Convolution, facts: GpuFacts, cheapest: Cheapest[Plan]) -> None:
    """Offer every plan of fprop and dgrad straight into registers."""
    multiprocessors, bandwidth = facts.multiprocessors, facts.bandwidth
    shape = Shape(problem)
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
    slice_groups = max(1, 16 // group_in)
    steps = -(-slice_groups * group_in // 16)
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    taps = math.prod(shape.taps)
    tiles = min(4, -(-slice_out // 8))
    while tiles > 1 and 2 * taps * steps * tiles > MAX_FILTER_REGISTERS:
        tiles = tiles // 2 if tiles != 3 else 2
    tiles = 2 if tiles == 3 else tiles
    if 2 * taps * steps * tiles > MAX_FILTER_REGISTERS:
        return
    h, w = (axis_of(shape, axis, is_forward) for axis in (1, 2))
    parts = -(-slice_out // (8 * tiles))
    slices = -(-problem.groups // slice_groups)
    _, s_c, *space = strides_of(source)
    piece = 4 * steps
    is_whole = steps <= 2 and slice_in % piece == 0 and source.shape[1] % piece == 0
    is_wide = s_c == 1 and is_whole and power_of_two((*space, strides_of(source)[0]), 8) >= piece
    vector, _ = vector_of(result, slice_out)
    other_registers = 12 if h.unit * w.unit > 1 else 36 if w.step == 1 else 44
    for rows, prefetch in product((1, 2, 3, 4, 5, 6, 7, 8, 10), (1, 2)):
        if rows > 1 and rows >= h.blocks + 2:
            continue
        registers = (
            4 * tiles * rows * h.unit * w.unit
            + 2 * taps * steps * tiles
            + 4 * steps * w.reach * (prefetch + 1)
            + other_registers
        )
        if registers > MAX_REGISTERS:
            continue
        resident = facts.registers // (_REGISTER_THREADS * max(64, whole_registers(registers)))
        resident = max(1, min(8, resident))
        strips = problem.n * shape.out[0] * -(-w.blocks // 8)
        units = -(-strips // 2) * -(-h.blocks // rows)
        kinds = slices * parts
        warps = multiprocessors * resident * _REGISTER_THREADS // 32
        workers = max(1, min(units, warps // kinds))
        rounds = -(-units // workers)
        workers = -(-units // rounds)
        source_rows = (rows - 1) * h.step + h.reach
        # of a work unit: products, and reads through the L1 cache
        products = rows * taps * steps * tiles * (w.unit * h.unit if is_forward else 1)
        reads = source_rows * w.reach * 2 * steps * (_WIDE_READ_CYCLES if is_wide else _NARROW_READ_CYCLES)
        stores = rows * h.unit * w.unit * 2 * (_WIDE_STORE_CYCLES if vector > 1 else _NARROW_STORE_CYCLES)
        unit = max(facts.mma_cycles * products, reads + stores) + _UNIT_CYCLES
        total = workers * kinds
        busiest = -(-total // multiprocessors)  # warps of a multiprocessor
        gain = 1.0 if prefetch == 1 else _PREFETCH_GAIN
        latency = (_ROW_LATENCY + _PIXEL_LATENCY * (7 * w.step + w.reach)) / gain
        cycles = max(busiest * unit * _SCHEDULING, source_rows * latency) + _UNIT_LATENCY
        compute = rounds * cycles + _START_CYCLES
        refetched = source.size * (source_rows / (rows * h.step) - 1) * _L1_MISSES
        memory = 2 * (source.size + result.size + max(0.0, refetched)) / bandwidth
        if total < multiprocessors * _FEW_WARPS:
            memory *= _FEW_WARPS_PENALTY
        memory *= _SHARED_PIXELS if w.step == 1 and w.reach > 1 else _OWN_PIXELS
        compute /= clock(facts)
        seconds = max(memory, compute) + _UNHIDDEN * min(memory, compute)
        seconds += _REGISTER_START_SECONDS
        made = partial(
            _register_plan, shape, h, w, slice_groups, steps, tiles, rows, workers, resident, prefetch, piece * is_wide,
            total, seconds,
        )  # fmt: skip
        cheapest.offer(seconds, (rows, prefetch), made)


def _register_plan(
    shape: Shape, h: Axis, w: Axis, slice_groups: int, steps: int, tiles: int, rows: int, workers: int, resident: int,
    prefetch: int, piece: int, total: int, seconds: float,
) -> Plan:  # fmt: skip
    problem, is_forward = shape.problem, shape.problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    vector, result_c = vector_of(result, slice_groups * (result.shape[1] // problem.groups))
    axes = axis_defines(h, w) | direction_defines(shape)
    defines = shape.defines() | roles(problem, source, result) | axes | {
        "GROUP_IN": source.shape[1] // problem.groups,
        "GROUP_OUT": result.shape[1] // problem.groups, "SLICE_GROUPS": slice_groups,
        "CHANNEL_STEPS": steps, "TILE_N": tiles, "TILE_ROWS": rows, "WORKERS": workers,
        "BLOCK_THREADS": _REGISTER_THREADS,
        "RESIDENT": resident, "PREFETCH_ROWS": prefetch, "SOURCE_PIECE": piece,
        "RESULT_VECTOR": vector, "HAS_WHOLE_RUNS": 0, "RESULT_C": result_c,
    }  # fmt: skip
    return Plan(
        tuple(defines.items()), _REGISTER_THREADS, -(-total * 32 // _REGISTER_THREADS), seconds, workers
    )
