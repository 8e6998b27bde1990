"""Every sensible plan of fprop and dgrad of grouped convolutions, priced, and the cheapest in any direction.

Through shared memory (shared_memory.cu): channels-last sources of whole 16 bytes, in slices of up to 64 channels that
groups fill. A source pixel comes from memory once for each tile that it is in, whatever taps it meets there, in copies
that take no registers: 50 kB in flight on each multiprocessor saturate an H100's memory, and registers alone do not
hold as much. Straight into registers (registers.cu): all other sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, product

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan, Tile, axis_defines, meeting, roles, vector_of
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import wgrad_register_plans, wgrad_shared_memory_plans
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape, power_of_two, strides_of
from jitdnn.kernels.cuda.cost import CLOCK, REGISTERS, RESERVED_SHARED
from jitdnn.problems.convolution import Convolution

MOST_CHANNELS = (
    64  # of a group; half as many for the filter's gradient, and where pixels are no whole 16 bytes
)
_MOST_FRAGMENTS = 80  # registers of the filter
_MOST_FRAGMENTS_LARGE = 150  # where a group has more than 32 channels: one block a multiprocessor
_IN_FLIGHT = 5_000  # bytes of a multiprocessor: a wait for memory is felt as 1 part to that many times more
_START = 3.8e-6  # a launch, the first pixels' way
_REACHED = 0.93  # of the memory's bandwidth, by copies


def plan_of(problem: Convolution, device: GpuDevice) -> Plan | None:
    """The cheapest plan; None if the filter does not fit into registers."""
    return _best(problem, device.multiprocessors, device.bandwidth, device.shared_bytes)


@lru_cache(512)
def _best(problem: Convolution, multiprocessors: int, bandwidth: float, shared_bytes: int) -> Plan | None:
    if problem.direction == "bwd_filter":
        unaligned_plan = [*wgrad_register_plans(problem, multiprocessors, bandwidth)]
        tiled = wgrad_shared_memory_plans(problem, multiprocessors, bandwidth, shared_bytes)
    else:
        unaligned_plan = [*register_plans(problem, multiprocessors, bandwidth)]
        tiled = shared_memory_plans(problem, multiprocessors, bandwidth, shared_bytes)
    if not unaligned_plan:
        return None
    is_large = max(problem.w.shape[1], problem.k // problem.groups) > MOST_CHANNELS // 2
    plans: Iterable[Plan] = tiled if is_large else chain(tiled, unaligned_plan)
    return min(plans, key=lambda plan: plan.seconds, default=None)


@lru_cache(512)
def register_plan(problem: Convolution, multiprocessors: int, bandwidth: float) -> Plan:
    """The plan for operands at any address."""
    plans = wgrad_register_plans if problem.direction == "bwd_filter" else register_plans
    return min(plans(problem, multiprocessors, bandwidth), key=lambda plan: plan.seconds)


def shared_memory_plans(
    problem: Convolution, multiprocessors: int, bandwidth: float, shared_bytes: int
) -> Iterator[Plan]:
    """Every plan of forward and backward data through shared memory."""
    shape = Shape(problem)
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
    slice_groups = max(1, 16 // group_in)
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    if slice_in % 16 or not _is_whole(problem, is_forward):
        return
    steps, taps = slice_in // 16, math.prod(shape.taps)
    tiles = 4 if slice_out % 32 == 0 else 2 if slice_out > 8 else 1
    most = _MOST_FRAGMENTS if steps <= 2 else _MOST_FRAGMENTS_LARGE
    while tiles > 1 and 2 * taps * steps * tiles > most:
        tiles //= 2
    if 2 * taps * steps * tiles > most:
        return
    h, w = (meeting(shape, axis, is_forward) for axis in (1, 2))
    least_rows = 4 if steps > 2 else steps
    # whether tiles of one row leave registers for two blocks of 256 threads
    has_room = (4 * h.unit * w.unit + 2 * taps * steps) * tiles + 56 <= 128
    parts = -(-slice_out // (8 * tiles))
    slices = -(-problem.groups // slice_groups)
    planes = problem.n * shape.out[0]
    vector, result_c = vector_of(result)
    is_packed = _is_packed(problem)
    filter_row = taps * problem.w.shape[1]
    # two blocks of half the warps where the filter takes many registers
    for block_slices, threads in product((1, 2, 4, 8), (256, 128) if steps > 1 else (256,)):
        block_groups = block_slices * slice_groups
        if block_slices > 1 and block_slices >= 2 * slices:
            continue
        filter_elements = block_groups * (problem.k // problem.groups) * filter_row
        is_staged = is_packed and filter_elements % 8 == 0
        filter_bytes = filter_elements * 2
        if filter_row % 16 == 0:
            filter_bytes += filter_bytes // filter_row * 8
        kinds, blocks = block_slices * parts, -(-slices // block_slices)
        if kinds > threads // 32:
            continue
        splits = threads // 32 // kinds
        for tile in _tiles(h, w, planes):
            sums = 4 * tiles * tile.tile_rows * h.unit * w.unit
            registers = sums + 2 * taps * steps * tiles + 56
            if registers > 250:
                continue
            # large groups read much for each product, with few warps: rows share what they read
            one_more = registers + 4 * tiles * h.unit * w.unit
            if tile.tile_rows < min(least_rows, h.blocks) and one_more <= 250:
                continue
            by_registers = REGISTERS // (threads * -(-registers // 8) * 8)
            tile_bytes, row_pad, image_pad = tile.layout(block_slices * slice_in)
            for resident in range(1, min(2, by_registers) + 1):
                units = tile.units(planes)
                workers = max(1, min(units, multiprocessors * resident // blocks))
                turns = -(-units // workers)
                workers = -(-units // turns)
                stages = min(
                    3,
                    turns,
                    (shared_bytes // resident - RESERVED_SHARED - filter_bytes * is_staged) // tile_bytes,
                )
                if stages < 1:
                    continue
                shared = stages * tile_bytes + filter_bytes * is_staged
                seconds = _seconds(
                    problem, tile, multiprocessors, bandwidth, block_slices * slice_in, threads // 32, kinds, splits,
                    taps, steps, tiles, workers * blocks, turns, stages, vector
                )  # fmt: skip
                seconds *= _seen(
                    tile, resident == 1 and (has_room or steps > 1), 3 if stages == turns else stages
                )
                defines = shape.defines() | roles(problem, source, result) | axis_defines(h, w) | {
                    "IS_FORWARD": int(is_forward), "GROUP_IN": group_in, "GROUP_OUT": group_out,
                    "SLICE_GROUPS": slice_groups, "BLOCK_SLICES": block_slices, "CHANNEL_STEPS": steps,
                    "TILE_N": tiles, "TILE_ROWS": tile.tile_rows, "TILE_DOWN": tile.down, "TILE_ACROSS": tile.across,
                    "TILE_IMAGES": tile.images, "STAGES": stages, "WORKERS": workers, "BLOCK_THREADS": threads,
                    "RESIDENT": resident, "FILTER_STAGED": int(is_staged), "RESULT_VECTOR": vector,
                    "RESULT_C": result_c, "ROW_PAD": row_pad, "IMAGE_PAD": image_pad,
                }  # fmt: skip
                yield Plan(
                    tuple(defines.items()), threads, workers * blocks, seconds, workers, shared, 2 * vector
                )


def _parts(extent: int, most: int) -> list[int]:
    """Lengths that cut an extent into equal parts."""
    return sorted({-(-extent // parts) for parts in range(1, min(extent, most) + 1)})


def _tiles(h: Axis, w: Axis, images: int) -> Iterator[Tile]:
    for tile_rows in (1, 2, 3, 4, 5, 7):
        if tile_rows > 1 and tile_rows > h.blocks:
            continue
        row_blocks = -(-h.blocks // tile_rows)
        for across in _parts(w.blocks, 4):
            for down in _parts(row_blocks, 28):
                whole = across == w.blocks and down == row_blocks
                for count in (1, 2, 3, 4, 6, 8, 16) if whole else (1,):
                    if count == 1 or count <= images:
                        yield Tile(h, w, count, down, across, tile_rows)


def _is_whole(problem: Convolution, is_forward: bool) -> bool:
    """Whether channels of the source come in units of 16 bytes at addresses that are multiples of 16."""
    source = problem.x if is_forward else problem.y
    n, c, *space = strides_of(source)
    return c == 1 and source.shape[1] % 8 == 0 and power_of_two((n, *space), 8) == 8


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


def _seen(tile: Tile, is_alone: bool, stages: int) -> float:
    """What measurements say beside the model: more for one block where there is room for two, for few stages, and for
    narrow parts of rows."""
    factor = 1.07 if is_alone else 1.0
    factor *= (1.08, 1.025, 1.0)[stages - 1]
    return factor * (1.04 if tile.across < min(8, tile.w.blocks) else 1.0)


def _seconds(
    problem: Convolution, tile: Tile, multiprocessors: int, bandwidth: float, block_in: int, warps: int, kinds: int,
    splits: int, taps: int, channel_steps: int, tiles: int, total: int, turns: int, stages: int, vector: int,
) -> float:  # fmt: skip
    h, w = tile.h, tile.w
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    # clocks of a multiprocessor for a tile: shared memory, products, instructions; fitted to measurements on an H100
    copies = tile.images * tile.rows * tile.columns * block_in / 8 / 32
    position_rows = (tile.tile_rows - 1) * h.step + h.reach
    steps = -(-tile.steps // splits) * splits * kinds
    reads = position_rows * w.reach * channel_steps * (1.0 if tile.is_quiet(block_in) else 1.5)
    products = tile.tile_rows * taps * channel_steps * tiles
    stores = tile.tile_rows * h.unit * w.unit * 2
    shared = copies * 4 + steps * (reads * 4 + stores * 4)
    issue = copies * 14 + steps * (reads + products + stores * (12 if vector > 1 else 60) + 60)
    sharing = -(-total // multiprocessors)
    few = 1.0 + 3.5 / (sharing * warps)  # warps that do not cover each other's waits
    multiplied = (2.2 if channel_steps <= 2 else 1.8) * steps * products
    clocks = (max(shared, multiplied, 0.5 * issue / 4) + 0.15 * min(shared, multiplied)) * few
    compute = sharing * turns * clocks / CLOCK
    under_way = total / multiprocessors * stages * copies * 512
    uneven = sharing * multiprocessors / total
    memory = 2.0 * (source.size + result.size) / (bandwidth * _REACHED) * (0.3 + 0.7 * uneven)
    memory *= (1.0 + _IN_FLIGHT / under_way) * (1.0 + 0.7 / block_in)
    # what a tile fetches beside its own pixels is near, but takes its way
    fetched = 2.0 * source.size * (tile.rows / (tile.down * tile.tile_rows * h.step) - 1)
    fetched += 2.0 * source.size * (tile.columns / (tile.across * w.step) - 1)
    memory += 0.4 * max(0.0, fetched) / bandwidth
    together = math.sqrt(math.hypot(memory**2, compute**2))  # each hides most of the other
    return 0.91 * (together + 0.5 * min(memory, compute) / turns + _START)


def register_plans(problem: Convolution, multiprocessors: int, bandwidth: float) -> Iterator[Plan]:
    """Every plan of forward and backward data."""
    shape = Shape(problem)
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
    slice_groups = max(1, 16 // group_in)
    steps = -(-slice_groups * group_in // 16)
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    taps = math.prod(shape.taps)
    tiles = min(4, -(-slice_out // 8))
    while tiles > 1 and 2 * taps * steps * tiles > _MOST_FRAGMENTS:
        tiles = tiles // 2 if tiles != 3 else 2
    tiles = 2 if tiles == 3 else tiles
    if 2 * taps * steps * tiles > _MOST_FRAGMENTS:
        return
    h, w = (meeting(shape, axis, is_forward) for axis in (1, 2))
    parts = -(-slice_out // (8 * tiles))
    slices = -(-problem.groups // slice_groups)
    _, s_c, *space = strides_of(source)
    piece = 4 * steps
    is_whole = steps <= 2 and slice_in % piece == 0 and source.shape[1] % piece == 0
    is_wide = s_c == 1 and is_whole and power_of_two((*space, strides_of(source)[0]), 8) >= piece
    vector, result_c = vector_of(result)
    others = 12 if h.unit * w.unit > 1 else 36 if w.step == 1 else 44  # registers
    for rows, ahead in product((1, 2, 3, 4, 5, 6, 7, 8, 10), (1, 2)):
        if rows > 1 and rows >= h.blocks + 2:
            continue
        registers = (
            4 * tiles * rows * h.unit * w.unit
            + 2 * taps * steps * tiles
            + 4 * steps * w.reach * (ahead + 1)
            + others
        )
        if registers > 250:
            continue
        resident = max(1, min(8, REGISTERS // (128 * max(64, -(-registers // 8) * 8))))
        strips = problem.n * shape.out[0] * -(-w.blocks // 8)
        units = -(-strips // 2) * -(-h.blocks // rows)
        kinds = slices * parts
        warps = multiprocessors * resident * 4
        workers = max(1, min(units, warps // kinds))
        turns = -(-units // workers)
        workers = -(-units // turns)
        source_rows = (rows - 1) * h.step + h.reach
        # clocks of a multiprocessor for a unit: first-level reads, products
        products = rows * taps * steps * tiles * (w.unit * h.unit if is_forward else 1)
        reads = source_rows * w.reach * 2 * steps * (4 if is_wide else 40)
        stores = rows * h.unit * w.unit * 2 * (4 if vector > 1 else 30)
        unit = max(1.6 * products, reads + stores) + 40
        total = workers * kinds
        sharing = -(-total // multiprocessors)
        # a row waits for memory, the longer the more of its pixels are its own; two rows do not wait together for long
        latency = (600 + 25 * (7 * w.step + w.reach)) / (1.0 if ahead == 1 else 1.6)
        compute = turns * (max(sharing * unit * 1.2, source_rows * latency) + 900) + 2500
        refetched = source.size * (source_rows / (rows * h.step) - 1) * 0.2
        memory = 2 * (source.size + result.size + max(0.0, refetched)) / bandwidth
        if total < multiprocessors * 8:
            memory *= 1.3
        # lanes that read a pixel for several taps wait for each: as measured on an H100
        memory *= 1.3 if w.step == 1 and w.reach > 1 else 1.1
        seconds = max(memory, compute / CLOCK) + 0.15 * min(memory, compute / CLOCK) + 6e-6
        defines = shape.defines() | roles(problem, source, result) | axis_defines(h, w) | {
            "IS_FORWARD": int(is_forward), "GROUP_IN": group_in, "GROUP_OUT": group_out, "SLICE_GROUPS": slice_groups,
            "CHANNEL_STEPS": steps, "TILE_N": tiles, "TILE_ROWS": rows, "WORKERS": workers, "BLOCK_THREADS": 128,
            "RESIDENT": resident, "PREFETCH_ROWS": ahead, "SOURCE_PIECE": piece * is_wide,
            "RESULT_VECTOR": vector, "RESULT_C": result_c,
        }  # fmt: skip
        yield Plan(tuple(defines.items()), 128, -(-total // 4), seconds, workers)
