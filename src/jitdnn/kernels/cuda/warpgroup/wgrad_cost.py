"""The cost model of wgrads by warpgroups in 16 bits whose operands are copied without packing: expected times.

Fitted to tiles of layers whose operands come from memory, on an H100. The choice uses the geometric mean with the time
of cost.py (best.py), which alone has times of other operands and of line tiles.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import gemm_clock, l2_bytes_per_cycle
from jitdnn.kernels.cuda.warpgroup.bound import Least
from jitdnn.kernels.cuda.warpgroup.cost import OPERATIONS_OF_BYTE, begins_early
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from jitdnn.kernels.gpu.prelude.cost import ROUNDED

_EFFICIENCY = 0.998  # of the mainloop, where nothing else is the limit
_SHARED_SHARE = 1.21  # of the path to shared memory, as `shared_bytes_per_cycle` of facts counts it
_ROW_CYCLES, _SHORT_CYCLES, _DEEP_ROW_CYCLES = 2.91, 1.5, 1.71
"""Of the copy engine for a row of a stage: all blocks of a tile's channels at once, of 64 channels, of 128 pixels."""
_WINDOW_CYCLES, _DEEP_WINDOW_CYCLES = 1.51, 2.53  # the same of windows: 64 pixels, 128
_UNEVEN_CYCLES = 6.0  # beside these, of pixels that begin inside of a sector
_CROSSING_CYCLES = 2.23  # the same of rows that lie in two lines of the cache
_OUTSIDE_CYCLES = 0.779  # the same of windows' pixels that lie outside of the data
_ARRIVAL_CYCLES = 779.0  # until the rows of a stage begin to come, while all stages but one are under way
_ASKED_BYTES, _READ_BYTES = 74.0, 28.0
"""Of operands that arrive in a cycle of each multiprocessor, and of those that L2 reads for them: what neighbours ask
for at the same time is read once."""
_WHOLE_BYTES, _SPLIT_BYTES, _CLUSTER_BYTES, _PARTS_BYTES = 63.0, 54.0, 54.0, 50.0
"""Of what is asked for where x comes as windows and each thread block has one tile: they stay in step. The same of
splits, of clusters, and where thread blocks have equal parts of the K of all tiles."""
_TURNS_BYTES, _SPLIT_TURNS_BYTES, _ROWS_TURNS_BYTES = 45.0, 40.0, 58.0
"""The same where thread blocks have several tiles, several splits, or several of either whose x comes as rows: these no
longer ask for the same at the same time."""
_TILE_CYCLES, _START_CYCLES = 237.0, 2000.0
"""From one tile of a thread block to the next; until its first products."""
_PARTIAL_CYCLES = 790.0  # of partial sums on their way to the workspace, without their bytes
_RESULT_BYTES = 20.0
"""Of results that leave in a cycle while the next tile's operands come: the copy engine has these to bring first."""
_ROWS_CLUSTER, _DEEP_CLUSTER = 1.26, 1.2
"""Factors on a stage of clusters whose x comes as rows, and of 128 pixels."""
_EXCHANGE_CYCLES, _EXCHANGED_BYTES = 800.0, 22.0
"""Of a cluster beside its sums, of which a thread block writes and reads so many bytes in a cycle."""
_INSIDE = 1.06  # factor on a stage of tiles that end inside of a block of 64 columns, where K is split
_NARROW = 1.03  # the same of whole tiles of 128 x 64 where x comes as rows
_LARGE, _LARGE_TILE = 1.12, 128 * 192  # the same of tiles of more results where x comes as rows
_WAITED_CYCLES, _ADDED_BYTES = 2330.0, 30.0
"""Until the sums that another thread block has left begin to come, and bytes of them in a cycle."""
_WHOLE_BESIDE_PARTS = 27800.0
"""Of a tile that a thread block has whole, between parts of others, beside its stages."""
_MEMORY_SHARE, _REDUCTION_SHARE = 0.93, 0.55  # of the bandwidth of copies: of operands, of partial sums
_UNHIDDEN = 0.117  # of the shorter of work and memory
_LAUNCH, _EARLY_LAUNCH, _REDUCTION, _CLEARED = 1.95e-6, 1.45e-6, 1.6e-6, 0.8e-6
"""Seconds of a launch, of one that begins early, of the sum of the splits, of clearing what thread blocks signal."""


@dataclass(frozen=True)
class Copies:
    """How dy and x are copied.

    `is_whole`: all blocks of 64 channels of a tile at once. `is_uneven`: pixels begin inside of a sector. `crossing`:
    the share of rows of 128 bytes that lie in two lines of the cache. `has_windows`: x comes as windows of pixels.
    `outside`: the share of the windows' pixels that lie outside of x.
    """

    is_whole: tuple[bool, bool]
    is_uneven: tuple[bool, bool]
    crossing: tuple[float, float]
    has_windows: bool
    outside: float


@dataclass(frozen=True)
class WgradModel:
    """What filter gradients take whose operands are copied so; see `bound.Model`.

    `shared`: tiles of which thread blocks may have equal parts of the K of all.
    """

    device: GpuDevice
    result_bytes: int
    copies: Copies
    shared: Container[Tile]

    def seconds(self, products: Products, blocking: Blocking) -> float:
        return wgrad_seconds(products, blocking, self.device, self.result_bytes, self.copies)

    def bound(self, products: Products, row: int) -> Least:
        return WgradBound(products, self.device, row, self.shared)


def wgrad_seconds(
    products: Products, blocking: Blocking, device: GpuDevice, result_bytes: int, copies: Copies
) -> float:
    """Expected time of the launch and, where K is split, of the sum of the splits."""
    tile, multiprocessors = blocking.tile, device.multiprocessors
    clock, leaving = gemm_clock(device.facts), l2_bytes_per_cycle(device.facts)
    stage = _stage_cycles(products, blocking, device, copies)
    length = products.longest if blocking.is_whole else blocking.blocks_of_split
    sums, chunks = tile.m * tile.n * 4, tile.m * tile.n * result_bytes / leaving
    one = length * stage + _TILE_CYCLES
    if blocking.is_split:
        one += _PARTIAL_CYCLES + sums / leaving
    if tile.cluster > 1:
        one += _EXCHANGE_CYCLES + sums / _EXCHANGED_BYTES
        chunks /= tile.cluster
    if blocking.sharers:
        stages = -(-products.tiles(tile) * products.longest // blocking.sharers)
        busy = stages * stage + 2 * _TILE_CYCLES + _PARTIAL_CYCLES + sums / leaving
        busy += max(0, blocking.pieces(products) - 2) * _WHOLE_BESIDE_PARTS
        busy += blocking.others(products) * (_WAITED_CYCLES + sums / _ADDED_BYTES)
    else:
        turns = -(-blocking.works(products) // multiprocessors)
        busy = turns * max(one, chunks)
        if blocking.is_whole:
            busy += (turns - 1) * tile.m * tile.n * result_bytes / _RESULT_BYTES
    works_for = (busy + _START_CYCLES + (0.0 if blocking.is_split else chunks)) / clock
    waits_for = products.bytes_moved / (_MEMORY_SHARE * device.bandwidth)
    time = max(works_for, waits_for) + _UNHIDDEN * min(works_for, waits_for)
    time += _EARLY_LAUNCH if begins_early(blocking, is_wgrad=True) else _LAUNCH
    if blocking.sharers:
        time += _CLEARED
    if blocking.is_split:
        time += _REDUCTION + blocking.partial_bytes(products) / (_REDUCTION_SHARE * device.bandwidth)
    return time


def _stage_cycles(products: Products, blocking: Blocking, device: GpuDevice, copies: Copies) -> float:
    """Of a stage of a tile: products, the path to shared memory, the copy engine or L2, whichever takes longest."""
    tile, depth, path = blocking.tile, blocking.row // STAGE_ROW, device.facts.shared_bytes_per_cycle
    brought = tile.brought(is_across=True)
    multiplied = tile.m * tile.n * blocking.row / (OPERATIONS_OF_BYTE * path)
    read = (tile.m // 64) * tile.across * (64 + tile.wn)
    shared = (tile.m + brought + read) * blocking.row / (_SHARED_SHARE * path)
    a, b = (
        _DEEP_ROW_CYCLES if depth > 1 else _ROW_CYCLES if is_whole and rows > 64 else _SHORT_CYCLES
        for is_whole, rows in zip(copies.is_whole, (tile.m, tile.n), strict=True)
    )
    if copies.has_windows:
        b = (_DEEP_WINDOW_CYCLES if depth > 1 else _WINDOW_CYCLES) + _OUTSIDE_CYCLES * copies.outside
    a, b = (
        one + _UNEVEN_CYCLES * is_uneven + _CROSSING_CYCLES * crossing
        for one, is_uneven, crossing in zip((a, b), copies.is_uneven, copies.crossing, strict=True)
    )
    copied = depth * (tile.m * a + brought * b)
    # the next rows are asked for when the products behind are on their way
    copied = max(copied, (copied + _ARRIVAL_CYCLES) / (blocking.stages - 1))
    asked = (tile.m + brought) * blocking.row
    differing = asked * products.read_share(tile, blocking.in_step if blocking.sharers else 0)
    arriving = _arriving_bytes(products, blocking, device, copies.has_windows)
    stage = max(multiplied / _EFFICIENCY, shared, copied, asked / arriving, differing / _READ_BYTES)
    if not copies.has_windows and tile.m * tile.n > _LARGE_TILE:
        stage *= _LARGE
    if (
        not copies.has_windows
        and blocking.is_whole
        and (tile.m, tile.n) == (128, 64)
        and not blocking.sharers
    ):
        stage *= _NARROW
    if tile.n % 64 and blocking.is_split:
        stage *= _INSIDE
    if tile.cluster > 1:
        stage *= (1.0 if copies.has_windows else _ROWS_CLUSTER) * (_DEEP_CLUSTER if depth > 1 else 1.0)
    return stage


def _arriving_bytes(products: Products, blocking: Blocking, device: GpuDevice, has_windows: bool) -> float:
    """Of what is asked for, in a cycle of each multiprocessor."""
    has_turns = not blocking.sharers and blocking.works(products) > device.multiprocessors
    if not has_windows:
        return _ROWS_TURNS_BYTES if has_turns else _ASKED_BYTES
    if has_turns:
        return _SPLIT_TURNS_BYTES if blocking.is_split else _TURNS_BYTES
    if blocking.sharers:
        return _PARTS_BYTES
    if blocking.tile.cluster > 1:
        return _CLUSTER_BYTES
    return _SPLIT_BYTES if blocking.is_split else _WHOLE_BYTES


class WgradBound:
    """What `wgrad_seconds` does not come below; see `bound.Least`."""

    def __init__(self, products: Products, device: GpuDevice, row: int, shared: Container[Tile]) -> None:
        path = device.facts.shared_bytes_per_cycle
        self.products, self._multiprocessors, self._shared = products, device.multiprocessors, shared
        self._of_products = row / (OPERATIONS_OF_BYTE * path) / _EFFICIENCY
        self._of_rows = row / max(_ASKED_BYTES, _ROWS_TURNS_BYTES)
        self._clock, self._leaving = gemm_clock(device.facts), l2_bytes_per_cycle(device.facts)
        self._waits = products.bytes_moved / (_MEMORY_SHARE * device.bandwidth)
        self._of_partial = 4 / (_REDUCTION_SHARE * device.bandwidth)
        elements = products.groups * products.n * sum(products.rows)
        busy = products.products_of_rows * self._of_products / device.multiprocessors + _TILE_CYCLES
        self.of_splits = self._time(busy + _PARTIAL_CYCLES) + self._of_split(2 * elements)

    def seconds(self, tile: Tile, splits: int, length: int) -> float:
        m, n, tiles = tile.m, tile.n, self.products.tiles(tile)
        stage = max(self._of_products * m * n, self._of_rows * (m + n))
        if tile.cluster > 1:
            turns = -(-tiles * splits // self._multiprocessors)
            return self._time(
                turns * (length * stage + _TILE_CYCLES + _EXCHANGE_CYCLES + 4 * m * n / _EXCHANGED_BYTES)
            )
        if splits == 1:
            turns = -(-tiles // self._multiprocessors)
            busy = turns * (length * stage + _TILE_CYCLES)
            if tile in self._shared:
                busy = min(busy, tiles * length / self._multiprocessors * stage + 2 * _TILE_CYCLES)
            return self._time(busy)
        turns = -(-tiles * splits // self._multiprocessors)
        busy = turns * (length * stage + _TILE_CYCLES + _PARTIAL_CYCLES + 4 * m * n / self._leaving)
        return self._time(busy) + self._of_split(tiles * splits * m * n)

    def _time(self, busy: float) -> float:
        works_for, waits_for = (busy + _START_CYCLES) / self._clock, self._waits
        time = max(works_for, waits_for) + _UNHIDDEN * min(works_for, waits_for)
        return (time + min(_LAUNCH, _EARLY_LAUNCH)) * ROUNDED

    def _of_split(self, sums: int) -> float:
        return (_REDUCTION + sums * self._of_partial) * ROUNDED
