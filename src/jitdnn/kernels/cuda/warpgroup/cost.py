"""Expected times of products by warpgroups, and the blocking that is expected to be fastest."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import (
    LAUNCH_SECONDS,
    gemm_clock,
    l2_bandwidth,
    l2_bytes_per_cycle,
    shared_bytes_per_cycle,
)
from jitdnn.kernels.cuda.warpgroup.plan import STAGE_ROW, Blocking, Products, Tile, blockings

_OPERATIONS_OF_BYTE = 32.0
"""Of the tensor cores of a multiprocessor, in a cycle, for each byte of its path to shared memory."""
_EFFICIENCY = 0.95  # of the mainloop, where nothing else is the limit
_L2_SHARE = (
    1.5  # of the path from L2 that other kernels reach: what many multiprocessors want at once is read once
)
_L2_SHARE_OF_PIXELS = 1.04  # the same of a wgrad, all operands of which are pixels
_L2_SHARE_OF_ROWS = 1.3  # of what all multiprocessors read from L2 together, where each reads rows of its own
_OUTSIDE_CYCLES = 8.0  # of a row of B that lies outside of the tensor
_TILE_CYCLES = 700.0  # from one tile of a thread block to the next
_START_CYCLES = 2500.0  # until a thread block's first products
_PARTIAL_CYCLES = 1500.0  # of partial sums on their way to the workspace, without their bytes
_MEMORY_SHARE = 0.9  # of the bandwidth of copies
_REDUCTION_SECONDS = 2.2e-6
_AS_FAST = 1.03
"""The factor on a time within which it counts as the same."""


def stage_cycles(blocking: Blocking, device: GpuDevice, is_wgrad: bool) -> float:
    """Cycles of one stage of a tile: the products, the path to shared memory, or that from L2, whichever is longest."""
    tile, facts = blocking.tile, device.facts
    # products of two bytes; those of four have half as many in a stage, at half the rate
    flops = 2.0 * tile.m * tile.n * STAGE_ROW / 2
    products = 3 if blocking.parts == 2 else 1
    mma = products * flops / (_OPERATIONS_OF_BYTE * facts.shared_bytes_per_cycle)
    brought = tile.stage_bytes(blocking.parts)
    read = products * (tile.m // 64) * tile.across * (64 + tile.wn) * STAGE_ROW
    shared = (brought + read) / shared_bytes_per_cycle(facts)
    share = _L2_SHARE_OF_PIXELS if is_wgrad else _L2_SHARE
    return max(mma / _EFFICIENCY, shared, brought / l2_bytes_per_cycle(facts) / share)


def seconds(
    products: Products,
    blocking: Blocking,
    device: GpuDevice,
    bytes_moved: int,
    result_bytes: int,
    is_wgrad: bool,
) -> float:
    """Expected time of the launch and, where K is split, of the sum of the splits."""
    tile, clock = blocking.tile, gemm_clock(device.facts)
    outside = blocking.parts * (products.tiles_n(tile) * tile.n - products.n) / products.tiles_n(tile)
    stage = stage_cycles(blocking, device, is_wgrad) + (0.0 if is_wgrad else _OUTSIDE_CYCLES * outside)
    works, mean = blocking.works(products), _mean_blocks(products, tile)
    length = blocking.blocks_of_split if blocking.is_split else mean
    out = tile.m * tile.n * 4 / l2_bytes_per_cycle(device.facts) if blocking.is_split else 0.0
    # the results of a tile leave behind the products of the next
    one = length * stage + _TILE_CYCLES + (out + _PARTIAL_CYCLES if blocking.is_split else 0.0)
    chunks = tile.m * tile.n * result_bytes / l2_bytes_per_cycle(device.facts)
    one = max(one, chunks)
    waves = -(-works // device.multiprocessors)
    cycles = waves * one + _START_CYCLES + (0.0 if blocking.is_split else chunks)
    rows = blocking.parts * STAGE_ROW * products.groups * _rows_read(products, tile, is_wgrad)
    time = max(
        cycles / clock,
        bytes_moved / (_MEMORY_SHARE * device.bandwidth),
        rows / (_L2_SHARE_OF_ROWS * l2_bandwidth(device.facts)),
    )
    time += LAUNCH_SECONDS
    if blocking.is_split:
        rate = min(
            0.75 * l2_bytes_per_cycle(device.facts) * clock * device.multiprocessors, 2.1 * device.bandwidth
        )
        time += _REDUCTION_SECONDS + blocking.partial_bytes(products) / rate
    return time


def _rows_read(products: Products, tile: Tile, is_wgrad: bool) -> int:
    """Rows of stages that multiprocessors read from L2, those that several read at once counted once."""
    columns = products.tiles_n(tile) * tile.n if is_wgrad else 0  # a filter is read by all at once
    return sum((rows + columns) * blocks for rows, blocks in zip(products.rows, products.blocks, strict=True))


def _mean_blocks(products: Products, tile: Tile) -> float:
    tiles = [-(-rows // tile.m) for rows in products.rows]
    return sum(n * blocks for n, blocks in zip(tiles, products.blocks, strict=True)) / max(1, sum(tiles))


def best_blocking(
    products: Products, tiles: Sequence[Tile], device: GpuDevice, bytes_moved: int, result_bytes: int, parts: int,
    max_splits: int, is_wgrad: bool, taken: int = 0,
) -> tuple[Blocking, float] | None:  # fmt: skip
    """The blocking that is expected to be fastest and its time; None if the device has room for none.

    `taken`: bytes of a thread block's shared memory that are for something else.
    """
    found = [
        (one, seconds(products, one, device, bytes_moved, result_bytes, is_wgrad))
        for one in blockings(
            products,
            tiles,
            device.shared_bytes - taken,
            device.multiprocessors,
            parts,
            result_bytes,
            max_splits,
        )
    ]
    if not found:
        return None
    least = min(time for _, time in found)
    # of those that are as fast the tile that stands first in the list: so few kernels are compiled
    return next((one, time) for one, time in found if time <= _AS_FAST * least)
