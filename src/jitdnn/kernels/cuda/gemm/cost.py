"""Expected times of matrix products on the tensor cores, and the blocking that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import (
    GEMM_CLOCK,
    L2_BYTES_PER_CYCLE,
    LAUNCH_SECONDS,
    LINE_BYTES,
    SECTOR_BYTES,
    SHARED_BYTES_PER_CYCLE,
)
from jitdnn.kernels.cuda.gemm.plan import LONG_ROW, Cut, Pack, Tile, Work
from jitdnn.tensor import DTYPES

_START = 2500.0  # cycles until a block's first products: its addresses, and the first stages on their way
_END = 1200.0  # cycles of a block's end beside what it moves
_STEP = 110.0  # cycles of a step of one warp that waits for its own results
_LATENCY = 1200.0  # cycles until what is asked for is there, where blocks are too few to ask for more
_FINISH = 2.2e-6  # seconds of the launch that adds parts, beside reading them
_CROSSING = 1.55  # how much longer stages take whose rows begin inside sectors
_NARROW = 1.35  # and those whose rows are a line or less of a group


def seconds(
    works: Sequence[Work], cut: Cut, dtype: str, device: GpuDevice, bytes_moved: int, is_across: bool = False
) -> float:
    """Expected time of a launch that computes all the products.

    A multiprocessor runs `resident` blocks side by side; they share its matrix units, its shared memory and its way to
    L2, and hide each other's beginnings and ends. The last wave costs as much as its blocks have to do one by one. No
    launch is faster than its operands come from memory.
    """
    tile, size = cut.tile, DTYPES[dtype]
    share = tile.share * (tile.across if is_across else 1.0)
    bk, warps = tile.k_bytes // size, tile.threads // 32
    resident = resident_blocks(tile, device)
    stage = (tile.m + tile.n) * tile.k_bytes
    fragments = warps * (tile.wm + tile.wn) * tile.k_bytes
    busy = max(
        2.0 * tile.m * tile.n * bk * device.multiprocessors / (device.tensor_flops(dtype) * share),
        (stage + fragments) / (SHARED_BYTES_PER_CYCLE * GEMM_CLOCK),
        stage / (L2_BYTES_PER_CYCLE * GEMM_CLOCK),
    )
    alone = max(tile.k_bytes / 32 * _STEP * max(1.0, warps / 8), _LATENCY / (tile.stages - 1))
    lonely = max(busy, alone / GEMM_CLOCK)
    sums = tile.m * tile.n * 4
    out = (
        _END
        + 2 * sums / SHARED_BYTES_PER_CYCLE
        + sums / (L2_BYTES_PER_CYCLE if cut.parts > 1 else 1.5 * L2_BYTES_PER_CYCLE)
    ) / GEMM_CLOCK
    start = _START / GEMM_CLOCK
    whole = divided = steps = 0
    for work in works:
        count, length = cut.tiles(work) * work.groups, -(-work.k // bk)
        undivided = count if cut.parts == 1 else cut.whole
        whole, divided = whole + undivided, divided + (count - undivided) * cut.parts
        steps += count * length
    mean = steps / max(1, whole + divided / cut.parts)
    hidden = 0.35 + 0.65 / resident**1.5

    def wave(count: int, length: float) -> float:
        """Of so many blocks on a multiprocessor."""
        own = length * max(busy, lonely / count)
        return count * own + (start + out * count) * (1.0 if count == 1 else hidden)

    def waves(blocks: int, length: float) -> float:
        full, rest = divmod(blocks, device.multiprocessors * resident)
        return full * wave(resident, length) + (
            wave(-(-rest // device.multiprocessors), length) if rest else 0.0
        )

    time = waves(whole, mean) + waves(divided, math.ceil(mean / cut.parts))
    if whole + divided > device.multiprocessors and resident > 1:
        time += start + out  # of the first and the last blocks, which nothing hides
    time = max(time, bytes_moved / device.bandwidth)
    if cut.parts > 1:
        rate = min(0.75 * L2_BYTES_PER_CYCLE * GEMM_CLOCK * device.multiprocessors, 2.1 * device.bandwidth)
        time += _FINISH + cut.partial_bytes(works) / rate  # what was just written is read from L2
    return time + LAUNCH_SECONDS


def pack_seconds(pack: Pack, device: GpuDevice) -> float:
    return LAUNCH_SECONDS + 1.3 * (pack.tensor.nbytes + pack.bytes) / device.bandwidth


def resident_blocks(tile: Tile, device: GpuDevice) -> int:
    """Blocks that a multiprocessor runs side by side."""
    return max(1, min(tile.resident, (device.shared_bytes + 1024) // (tile.shared + 2048)))


def best_cut(
    works: Sequence[Work],
    tiles: Sequence[Tile],
    dtype: str,
    device: GpuDevice,
    bytes_moved: int,
    most_parts: int,
    room: int = 0,
    is_across: bool = False,
) -> Cut:
    """The cut that is expected to be fastest; the first of equals.

    `room`: bytes of shared memory that are needed beside a tile's own.
    """
    size = DTYPES[dtype]
    best, least = None, math.inf
    for tile in tiles:
        if tile.shared + room > device.shared_bytes:
            continue
        for cut in _cuts(works, tile, tile.k_bytes // size, device, most_parts):
            time = seconds(works, cut, dtype, device, bytes_moved, is_across)
            if time < least:
                best, least = cut, time
    return best or Cut(min(tiles, key=lambda tile: tile.shared))


def _cuts(works: Sequence[Work], tile: Tile, bk: int, device: GpuDevice, most_parts: int) -> Iterator[Cut]:
    """Cuts by a tile: all tiles whole, all divided, or those divided that do not fill the machine any more."""
    yield Cut(tile)
    if most_parts == 1:
        return
    longest = max(-(-work.k // bk) for work in works) // 3  # parts of at least three stages
    one = sum(Cut(tile).tiles(work) * work.groups for work in works)
    slots = device.multiprocessors * resident_blocks(tile, device)
    if not one:
        return
    few = range(
        device.multiprocessors, slots, device.multiprocessors
    )  # fewer side by side, but fewer parts to add
    blocks = {*few, *(slots * waves for waves in (1, 2, 3, 4, 6))}
    for parts in sorted({min(count // one, longest, most_parts) for count in blocks}):
        if parts > 1:
            yield Cut(tile, parts)
    rest = one % slots
    parts = min(slots // rest, longest, most_parts) if rest else 1
    if len(works) == works[0].groups == 1 and one > slots and parts > 1:
        yield Cut(tile, parts, one - rest)


def crossing(dtype: str, channels: int, strides: Sequence[int]) -> float:
    """How much longer a stage takes whose rows, `strides` elements apart, begin anywhere in a sector of memory.

    Short rows share their sectors with their neighbours.
    """
    size = DTYPES[dtype]
    is_crossed = channels * size >= LONG_ROW and any(stride * size % SECTOR_BYTES for stride in strides)
    return _CROSSING if is_crossed else 1.0


def narrowness(dtype: str, groups: int, channels: int) -> float:
    """How much longer a stage takes of which each group has only a piece of every place."""
    return _NARROW if groups > 1 and channels * DTYPES[dtype] <= LINE_BYTES else 1.0
