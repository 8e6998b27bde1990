"""Expected times of matrix products on the tensor cores, and the blocking that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.cost import (
    LAUNCH_SECONDS,
    LINE_BYTES,
    SECTOR_BYTES,
    gemm_clock,
    l2_bytes_per_cycle,
    shared_bytes_per_cycle,
)
from jitdnn.kernels.cuda.gemm.plan import LONG_ROW_BYTES, Blocking, GemmSize, Pack, Tile
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.tensor import DTYPES, TensorDescriptor

# cycles of a thread block
_PROLOGUE_CYCLES = 2500.0  # until its first products: addresses are computed, and the first stages arrive
_EPILOGUE_CYCLES = 1200.0  # behind its last products, without the bytes that it moves then
_STEP_CYCLES = 110.0  # of an mma step of a warp that waits for its own results
_LATENCY_CYCLES = 1200.0  # from an asynchronous copy to its data, with few copies in flight

_REDUCTION_SECONDS = 2.2e-6  # of the launch that adds partial sums, without reading them

# factor on a stage of multiply-adds, of a thread block with one warp a scheduler that is alone
_LONE_FMA = 1.35
_OF_F32 = 1.25  # factor on the time of products of f32, as seen of layers of all kinds

# factors on the time of a stage
_MISALIGNED = 1.55  # long rows that begin inside of sectors
_SMALL_GROUP = 1.35  # rows of a line or less, with other groups between them


def seconds(
    gemms: Sequence[GemmSize],
    blocking: Blocking,
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    is_mn_major: bool = False,
) -> float:
    """Expected time of a launch that computes all the products, and of the reduction of partial sums.

    A multiprocessor runs `resident` thread blocks at a time. They share its tensor cores, its shared memory and its
    path to L2, and hide each other's prologues and epilogues. The time is that of all waves, or that of moving
    `bytes_moved` from and to device memory, whichever is longer.

    """
    of_tile = _times_of(blocking.tile, dtype, device.facts, is_mn_major)
    tiles = _Tiles.of(gemms, blocking.tile, of_tile.bk)
    return _seconds(gemms, blocking, dtype, device, bytes_moved, of_tile, tiles)


def _seconds(
    gemms: Sequence[GemmSize],
    blocking: Blocking,
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    of_tile: _TileTimes,
    tiles: _Tiles,
) -> float:
    tile, multiprocessors, bandwidth = blocking.tile, device.multiprocessors, device.bandwidth
    resident, clock, l2_bytes = of_tile.resident, of_tile.clock, of_tile.l2_bytes
    stage_time, single_block_time = of_tile.stage, of_tile.single_stage
    sums = tile.m * tile.n * 4
    epilogue = of_tile.epilogue + sums / (l2_bytes if blocking.splits > 1 else 1.5 * l2_bytes) / clock
    prologue = _PROLOGUE_CYCLES / clock
    unsplit_blocks = tiles.count if blocking.splits == 1 else len(gemms) * blocking.unsplit
    split_blocks = (tiles.count - unsplit_blocks) * blocking.splits
    mean = tiles.stages / max(1, unsplit_blocks + split_blocks / blocking.splits)  # stages of a tile
    hidden = _hidden(resident)

    def wave(count: int, length: float) -> float:
        """Time of `count` blocks at once on a multiprocessor, of `length` stages each."""
        mainloop = length * max(stage_time, single_block_time / count)
        return count * mainloop + (prologue + epilogue * count) * (1.0 if count == 1 else hidden)

    def waves(blocks: int, length: float) -> float:
        full, rest = divmod(blocks, multiprocessors * resident)
        return full * wave(resident, length) + (wave(-(-rest // multiprocessors), length) if rest else 0.0)

    time = waves(unsplit_blocks, mean) + waves(split_blocks, math.ceil(mean / blocking.splits))
    if tiles.count_of_longest < tiles.count:  # stride phases: the longest ones take no less than alone
        time = max(time, waves(tiles.count_of_longest, tiles.longest))
    if unsplit_blocks + split_blocks > multiprocessors and resident > 1:
        time += prologue + epilogue  # of the first and the last blocks, which nothing hides
    time = max(time, bytes_moved / bandwidth)
    if blocking.splits > 1:
        time += _reduction_seconds(blocking.partial_bytes(gemms), of_tile, device)
    return time * _type_factor(tile, dtype) + LAUNCH_SECONDS


def _type_factor(tile: Tile, dtype: str) -> float:
    return _OF_F32 if dtype == "f32" and not tile.is_fma else 1.0


def _reduction_seconds(partial_bytes: int, of_tile: _TileTimes, device: GpuDevice) -> float:
    rate = min(0.75 * of_tile.l2_bytes * of_tile.clock * device.multiprocessors, 2.1 * device.bandwidth)
    # what was just written is read from L2
    return _REDUCTION_SECONDS + partial_bytes / rate


def _least_seconds(
    splits: int, unsplit: int, tile: Tile, tiles: _Tiles, dtype: str, device: GpuDevice, bytes_moved: int,
    of_tile: _TileTimes,
) -> float:  # fmt: skip
    """What `_seconds` does not come below: all waves of products, or the bytes, and adding the partial sums."""
    multiprocessors, mean = device.multiprocessors, tiles.stages / max(1, tiles.count)
    if splits == 1:
        stages = -(-tiles.count // multiprocessors) * mean
    else:
        split = (tiles.count - unsplit) * splits
        stages = -(-unsplit // multiprocessors) * mean
        stages += -(-split // multiprocessors) * math.ceil(mean / splits * ROUNDED)
    time = max(stages * of_tile.stage, bytes_moved / device.bandwidth)
    if splits > 1:
        time += _reduction_seconds(split * tile.m * tile.n * 4, of_tile, device)
    return (time * _type_factor(tile, dtype) + LAUNCH_SECONDS) * ROUNDED


@lru_cache(16)  # of algorithms that differ in what they pack alone
def least_seconds(
    gemms: tuple[GemmSize, ...],
    tiles: tuple[Tile, ...],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    is_mn_major: bool = False,
) -> float:
    """What `seconds` does not come below by any of the tiles, however it is split, but for rounding."""
    found, of_bytes = math.inf, bytes_moved / device.bandwidth
    for m, n, bk, stage, around, factor in _least_of_tiles(tiles, dtype, device.facts, is_mn_major):
        stages = 0
        for gemm in gemms:
            stages += -(-gemm.m // m) * -(-gemm.n // n) * gemm.groups * -(-gemm.k // bk)
        found = min(found, max(stages * stage + around, of_bytes) * factor)
    return (found + LAUNCH_SECONDS) * ROUNDED


@lru_cache(64)
def _least_of_tiles(
    tiles: tuple[Tile, ...], dtype: str, facts: GpuFacts, is_mn_major: bool
) -> list[tuple[int, int, int, float, float, float]]:
    """Rows, columns and terms of each tile's stage, its seconds where all multiprocessors have equal shares, those of
    the first wave's beginning and end, as far as nothing hides them, and a factor on all."""
    found = []
    for tile in tiles:
        of_tile = _times_of(tile, dtype, facts, is_mn_major)
        around = (_PROLOGUE_CYCLES / of_tile.clock + of_tile.epilogue) * _hidden(of_tile.resident)
        stage = of_tile.stage / facts.multiprocessors
        found.append((tile.m, tile.n, of_tile.bk, stage, around, _type_factor(tile, dtype)))
    return found


def _hidden(resident: int) -> float:
    """The share of prologues and epilogues that thread blocks of a multiprocessor do not hide from each other."""
    return float(0.35 + 0.65 / resident**1.5)


@dataclass(frozen=True)
class _Tiles:
    """Of all products: how many, the stages of all, of the longest, and how many are as long."""

    count: int
    stages: int
    longest: int
    count_of_longest: int

    @staticmethod
    def of(gemms: Sequence[GemmSize], tile: Tile, bk: int) -> _Tiles:
        count = stages = 0
        of_length: dict[int, int] = {}  # tiles of so many stages
        for gemm in gemms:
            own, length = -(-gemm.m // tile.m) * -(-gemm.n // tile.n) * gemm.groups, -(-gemm.k // bk)
            count, stages = count + own, stages + own * length
            of_length[length] = of_length.get(length, 0) + own
        longest = max(of_length)
        return _Tiles(count, stages, longest, of_length[longest])


@dataclass(frozen=True)
class _TileTimes:
    """What `seconds` needs of a tile, whatever it is a tile of.

    Seconds of a stage where `resident` thread blocks share the multiprocessor, of one of a block that is alone and
    waits for its own results, and of the epilogue without what it writes.
    """

    resident: int
    bk: int
    clock: float
    l2_bytes: float
    stage: float
    single_stage: float
    epilogue: float


@lru_cache(256)
def _times_of(tile: Tile, dtype: str, facts: GpuFacts, is_mn_major: bool) -> _TileTimes:
    efficiency = tile.efficiency * (tile.mn_major_efficiency if is_mn_major else 1.0)
    bk, warps = tile.k_bytes // DTYPES[dtype], tile.threads // 32
    clock, l2_bytes = gemm_clock(facts), l2_bytes_per_cycle(facts)
    shared_bytes = shared_bytes_per_cycle(facts)
    stage = (tile.m + tile.n) * tile.k_bytes
    fragments = warps * (tile.wm + tile.wn) * tile.k_bytes
    rate = facts.peak_flops(dtype) if tile.is_fma else facts.tensor_flops(dtype)
    stage_time = max(
        2.0 * tile.m * tile.n * bk * facts.multiprocessors / (rate * efficiency),
        (stage + fragments) / (shared_bytes * clock),
        stage / (l2_bytes * clock),
    )
    latency = max(tile.k_bytes / 32 * _STEP_CYCLES * max(1.0, warps / 8), _LATENCY_CYCLES / (tile.stages - 1))
    epilogue = (_EPILOGUE_CYCLES + 2 * tile.m * tile.n * 4 / shared_bytes) / clock
    single = max(stage_time * (_LONE_FMA if tile.is_fma and warps < 8 else 1.0), latency / clock)
    return _TileTimes(_resident(tile, facts), bk, clock, l2_bytes, stage_time, single, epilogue)


def pack_seconds(pack: Pack, device: GpuDevice) -> float:
    """Expected time of packing a tensor."""
    return LAUNCH_SECONDS + 1.3 * (pack.tensor.nbytes + pack.bytes) / device.bandwidth


def least_pack_seconds(tensor: TensorDescriptor, device: GpuDevice) -> float:
    """The same at least: channels are extended by nothing."""
    return (LAUNCH_SECONDS + 1.3 * 2 * tensor.nbytes / device.bandwidth) * ROUNDED


def resident_blocks(tile: Tile, device: GpuDevice) -> int:
    """Thread blocks that a multiprocessor runs at a time."""
    return _resident(tile, device.facts)


def _resident(tile: Tile, facts: GpuFacts) -> int:
    # what the kernel takes beside the tile counts as no more than what the system reserves
    by_shared = facts.resident(tile.shared + facts.reserved_shared_bytes)
    return max(1, min(tile.resident, by_shared, facts.resident_threads // tile.threads))


def best_blocking(
    gemms: Sequence[GemmSize],
    tiles: Sequence[Tile],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    max_splits: int,
    other_shared: int = 0,
    is_mn_major: bool = False,
) -> Blocking:
    """The blocking that is expected to be fastest; the first of equals.

    `other_shared`: bytes of shared memory that the kernel takes beside the tile's.
    """
    return _best_blocking(
        tuple(gemms), tuple(tiles), dtype, device, bytes_moved, max_splits, other_shared, is_mn_major
    )


@lru_cache(64)  # operands that are packed mostly leave the products as they are
def _best_blocking(
    gemms: tuple[GemmSize, ...],
    tiles: tuple[Tile, ...],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    max_splits: int,
    other_shared: int,
    is_mn_major: bool,
) -> Blocking:
    best, least = None, math.inf
    for tile in tiles:
        if tile.shared + other_shared > device.shared_bytes:
            continue
        of_tile = _times_of(tile, dtype, device.facts, is_mn_major)
        counts = _Tiles.of(gemms, tile, of_tile.bk)
        for splits, unsplit in _cuts(gemms, counts, device.multiprocessors, of_tile, max_splits):
            bound = _least_seconds(splits, unsplit, tile, counts, dtype, device, bytes_moved, of_tile)
            if bound > least:
                continue
            blocking = Blocking(tile, splits, unsplit)
            time = _seconds(gemms, blocking, dtype, device, bytes_moved, of_tile, counts)
            if time < least:
                best, least = blocking, time
    return best or Blocking(min(tiles, key=lambda tile: tile.shared))


def _cuts(
    gemms: Sequence[GemmSize], tiles: _Tiles, multiprocessors: int, of_tile: _TileTimes, max_splits: int
) -> Iterator[tuple[int, int]]:
    """Splits of a tile, and tiles that are not split: no tile is, all are, or only those of the last wave, which does
    not fill the device."""
    yield 1, 0
    if max_splits == 1:
        return
    longest = tiles.longest // 3  # splits of at least three stages
    one = tiles.count
    slots = multiprocessors * of_tile.resident
    if not one:
        return
    # less than a full wave: fewer resident blocks, but fewer partial sums to add
    partial_waves = range(multiprocessors, slots, multiprocessors)
    blocks = {*partial_waves, *(slots * waves for waves in (1, 2, 3, 4, 6))}
    for splits in sorted({min(count // one, longest, max_splits) for count in blocks}):
        if splits > 1:
            yield splits, 0
    rest = one % slots
    splits = min(slots // rest, longest, max_splits) if rest else 1
    if len(gemms) == gemms[0].groups == 1 and one > slots and splits > 1:
        yield splits, one - rest


def misalignment(dtype: str, channels: int, strides: Sequence[int]) -> float:
    """The factor on a stage's time if its rows, `strides` elements apart, begin inside of sectors of memory.

    Short rows share their sectors with their neighbours, and cost nothing.
    """
    size = DTYPES[dtype]
    is_misaligned = channels * size >= LONG_ROW_BYTES and any(
        stride * size % SECTOR_BYTES for stride in strides
    )
    return _MISALIGNED if is_misaligned else 1.0


def small_group_penalty(dtype: str, groups: int, channels: int) -> float:
    """The factor on a stage's time if a group has only a small piece of each pixel."""
    return _SMALL_GROUP if groups > 1 and channels * DTYPES[dtype] <= LINE_BYTES else 1.0
