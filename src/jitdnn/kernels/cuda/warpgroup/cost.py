"""Expected times of products by warpgroups, and the blocking that is expected to be fastest."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, gemm_clock, l2_bytes_per_cycle
from jitdnn.kernels.cuda.warpgroup.plan import STAGE_ROW, Blocking, Products, Tile, blockings

_OPERATIONS_OF_BYTE = 32.0  # of the tensor cores of a multiprocessor, in a cycle and for each byte of its path to shared memory
_EFFICIENCY = 0.93  # of the mainloop, where nothing else is the limit
_TILE_CYCLES = 700.0  # from one tile of a thread block to the next
_START_CYCLES = 2500.0  # until a thread block's first products
_PARTIAL_CYCLES = 1500.0  # of partial sums on their way to the workspace, without their bytes
_REDUCTION_SECONDS = 2.2e-6


def stage_cycles(blocking: Blocking, device: GpuDevice) -> float:
    """Cycles of one stage of a tile: the products, the path to shared memory, or that from L2, whichever is longest."""
    tile, facts = blocking.tile, device.facts
    # products of two bytes; those of four have half as many in a stage, at half the rate
    flops = 2.0 * tile.m * tile.n * STAGE_ROW / 2
    products = 3 if blocking.parts == 2 else 1
    mma = products * flops / (_OPERATIONS_OF_BYTE * facts.shared_bytes_per_cycle)
    brought = tile.stage_bytes(blocking.parts)
    read = products * (tile.m // 64) * tile.across * (64 + tile.wn) * STAGE_ROW
    shared = (brought + read) / facts.shared_bytes_per_cycle
    l2 = brought / l2_bytes_per_cycle(facts) / 1.25
    return max(mma / _EFFICIENCY, shared, l2)


def seconds(products: Products, blocking: Blocking, device: GpuDevice, bytes_moved: int, result_bytes: int) -> float:
    """Expected time of the launch and, where K is split, of the sum of the splits."""
    tile, clock = blocking.tile, gemm_clock(device.facts)
    stage = stage_cycles(blocking, device)
    works, mean = blocking.works(products), _mean_blocks(products, tile)
    length = blocking.blocks_of_split if blocking.is_split else mean
    out = tile.m * tile.n * 4 / l2_bytes_per_cycle(device.facts) if blocking.is_split else 0.0
    # the results of a tile leave behind the products of the next
    one = length * stage + _TILE_CYCLES + (out + _PARTIAL_CYCLES if blocking.is_split else 0.0)
    chunks = tile.m * tile.n * result_bytes / l2_bytes_per_cycle(device.facts)
    one = max(one, chunks)
    waves = -(-works // device.multiprocessors)
    cycles = waves * one + _START_CYCLES + (0.0 if blocking.is_split else chunks)
    time = max(cycles / clock, bytes_moved / device.bandwidth) + LAUNCH_SECONDS
    if blocking.is_split:
        rate = min(0.75 * l2_bytes_per_cycle(device.facts) * clock * device.multiprocessors, 2.1 * device.bandwidth)
        time += _REDUCTION_SECONDS + blocking.partial_bytes(products) / rate
    return time


def _mean_blocks(products: Products, tile: Tile) -> float:
    tiles = [-(-rows // tile.m) for rows in products.rows]
    return sum(n * blocks for n, blocks in zip(tiles, products.blocks, strict=True)) / max(1, sum(tiles))


def best_blocking(
    products: Products, tiles: Sequence[Tile], device: GpuDevice, bytes_moved: int, result_bytes: int, parts: int,
    max_splits: int,
) -> tuple[Blocking, float] | None:  # fmt: skip
    """The blocking that is expected to be fastest and its time; None if the device has room for none."""
    best: tuple[Blocking, float] | None = None
    for one in blockings(
        products, tiles, device.shared_bytes, device.multiprocessors, parts, result_bytes, max_splits
    ):
        time = seconds(products, one, device, bytes_moved, result_bytes)
        if best is None or time < best[1]:
            best = one, time
    return best
