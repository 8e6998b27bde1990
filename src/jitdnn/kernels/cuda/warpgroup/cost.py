"""Expected times of products by warpgroups, and the blocking that is expected to be fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import gemm_clock, l2_bytes_per_cycle
from jitdnn.kernels.cuda.warpgroup.plan import (
    NO_FINISH,
    STAGE_ROW,
    Blocking,
    Finish,
    Products,
    Tile,
    blockings,
)

_OPERATIONS_OF_BYTE = 32.0
"""Of the tensor cores of a multiprocessor, in a cycle, for each byte of its path to shared memory."""
_EFFICIENCY = 0.96  # of the mainloop, where nothing else is the limit
_SHARED_SHARE = 1.08  # of the path to shared memory, as `shared_bytes_per_cycle` of facts counts it
_WGRAD_SHARED_SHARE = 1.5  # the same where all operands are read across
_WGRAD_HALVES_SHARE = 1.25  # the same of halves
_SERIAL_CYCLES = 200.0
"""Of a stage whose sums the only consumer of a wgrad adds to others, while no product runs."""
_ROW_CYCLES = 1.73  # of the copy engine for a row of a stage, however long it is
_WGRAD_ROW_CYCLES = 1.55  # the same where all operands are read across
_WGRAD_SHORT_CYCLES = 2.2  # the same in boxes of 64 rows
_WINDOW_CYCLES = {1: 3.4, 2: 2.7}  # the same of windows, 64 pixels at a time: of numbers, of halves
_DEEP_WINDOW_CYCLES = 2.2  # the same of more pixels
_UNEVEN_CYCLES = 6.0  # the same beside these, of pixels that begin inside of a sector
_ARRIVAL_CYCLES = 1450.0  # until the rows of a wgrad's stage begin to come
_RESULT_BYTES = 18.0
"""Of a wgrad's results that leave in a cycle while the next tile's operands come: the copy engine has these to bring
first."""
_LANES = 128  # of a multiprocessor: numbers of which it computes one instruction in a cycle
_BOX_CYCLES = 110.0  # of the copy engine for a box of few rows
_DIVISION = 4.5
"""Times that what is divided into halves goes through the path to shared memory, or takes as long as that."""
_ROUGH_DIVISION = 3.5  # the same where only first halves are wanted
_ROWS_CYCLES = 450.0  # of a stage of a warpgroup: dividing 64 rows in registers, and adding its sums
_PRODUCT_CYCLES = (
    30.0  # of a product whose first operand comes from registers, beside those of one from shared memory
)
_STEPS = 4  # products along K of a stage
_ALONE_FACTOR = 1.15  # of a stage that the only consumer divides in shared memory
_DIVIDERS_FACTOR = 0.71  # of a stage that other warpgroups divide
_MIXED_FACTOR = 1.45  # of a stage of which one operand is divided in registers and the other in shared memory
_STORE_ROW_CYCLES = 4.0  # of the copy engine for a row of results, of 128 bytes or 64
_OUTSIDE_CYCLES = 6.0  # of a row of B that lies outside of the tensor
_ACROSS_FACTOR = 1.0  # of a wgrad's stage that two warpgroups share across
_ROWS_ACROSS_FACTOR = 1.15  # the same where each of them divides its rows in registers
_TILE_CYCLES = 900.0  # from one tile of a thread block to the next
_EMPTY_CYCLES = 1300.0  # of a tile of zeros, beside storing them
_START_CYCLES = 2100.0  # until a thread block's first products
_PARTIAL_CYCLES = 890.0  # of partial sums on their way to the workspace, without their bytes
_EXCHANGE_CYCLES = 800.0  # of a cluster, beside those of its sums
_EXCHANGE_BYTES = 22.0  # of sums that a thread block of a cluster writes for others and reads, in a cycle
_CLUSTER_FACTOR = 1.25  # of a stage of clusters, forward and for data gradients
_WGRAD_CLUSTER_FACTOR = 1.3  # the same of filter gradients
_MEMORY_SHARE = 0.86  # of the bandwidth of copies
_UNHIDDEN = 0.05
"""Of the shorter of work and memory: where memory is the limit, of two tiles the one that wastes less is faster."""
LAUNCH_SECONDS = 1.95e-6
_EARLY_LAUNCH_SECONDS = 1.45e-6  # of one that begins before the one in front of it is done
_EARLY_STAGES = 36
_REDUCTION_SECONDS = 1.9e-6  # of the sum of the splits, its launch included, without their bytes
_REDUCTION_SHARE = 0.64  # of the bandwidth of copies
_AS_FAST = 1.005
"""The factor on a time within which it counts as the same."""
_OUTSIDE = 0.2  # of the columns of tiles, that may lie outside beside those of another tile


@dataclass(frozen=True)
class Boxes:
    """What a wgrad's copies of A and of B bring. `is_whole`: all blocks of 64 channels of a tile at once. `is_uneven`:
    pixels begin inside of a sector. `has_windows`: B comes as windows of pixels.
    """

    is_whole: tuple[bool, bool] = (False, False)
    is_uneven: tuple[bool, bool] = (False, False)
    has_windows: bool = False


NO_BOXES = Boxes()


@dataclass(frozen=True)
class SharedRows:
    """Rows of B that the columns of a warpgroup share, of a stage: so many boxes of so many rows."""

    boxes: int
    rows: int

    @property
    def count(self) -> int:
        return self.boxes * self.rows


def begins_early(blocking: Blocking, is_divided: bool = False) -> bool:
    """Whether the product may begin before the launch in front of it is done.

    Then its thread blocks have the multiprocessors in the order in which these become free, and share less of what L2
    brings: with many stages of K, or splits of it, that costs more than there is to gain. Not where L2 is far from its
    limit, `is_divided`: since f32 is divided into halves, or sums are scaled stage by stage.
    """
    return is_divided or (not blocking.is_split and blocking.blocks_of_split <= _EARLY_STAGES)


def copy_cycles(blocking: Blocking, row_bytes: int, rows: int) -> float:
    """Cycles of the copy engine for the rows of a stage, of operands that are read along K."""
    return rows * (blocking.row // row_bytes) * _ROW_CYCLES


def stage_cycles(
    blocking: Blocking, device: GpuDevice, row_bytes: int, is_wgrad: bool, is_rewritten: bool = False,
    is_divided: bool = False, shared_rows: SharedRows | None = None, boxes: Boxes = NO_BOXES,
) -> float:  # fmt: skip
    """Cycles of a stage of a tile: products, the path to shared memory, or the copy engine, whichever takes longest.

    `row_bytes`: of the rows that are copied. `is_rewritten`: B is read and written by threads before it is multiplied.
    `is_divided`: threads divide numbers into halves first, in shared memory. `shared_rows`: of B, which the
    columns of a warpgroup share. `boxes`: of a wgrad.
    """
    tile, facts, parts = blocking.tile, device.facts, blocking.parts
    # products of two bytes; those of four have half as many in a stage, at half the rate, those of one twice as many
    flops = 2.0 * tile.m * tile.n * blocking.row / 2
    products = 3 if parts == 2 and not blocking.is_rough else 1
    mma = products * flops / (_OPERATIONS_OF_BYTE * facts.shared_bytes_per_cycle)
    of_b = tile.across * shared_rows.count if shared_rows else 0 if blocking.keeps_b else tile.n
    brought = parts * (tile.m + of_b)  # rows of 128 bytes
    of_a = 64 * (2 if blocking.divides_rows else products)
    read = (tile.m // 64) * tile.across * (of_a + products * tile.wn) + (2 * tile.n if is_rewritten else 0)
    share = _SHARED_SHARE
    if is_wgrad and not (shared_rows or is_divided or blocking.divides_rows):
        share = _WGRAD_SHARED_SHARE if parts == 1 else _WGRAD_HALVES_SHARE
    shared = (brought + read) * blocking.row / (share * facts.shared_bytes_per_cycle)
    if is_divided:
        divided = parts * of_b if blocking.divides_rows else brought
        shared += (
            (_ROUGH_DIVISION if blocking.is_rough else _DIVISION)
            * divided
            * blocking.row
            / facts.shared_bytes_per_cycle
        )
    if is_wgrad:
        # boxes of 64 rows are slower than those of all rows of a tile, or of a stage that is deeper
        depth = blocking.row // STAGE_ROW
        a, b = (
            _WGRAD_ROW_CYCLES if (one and rows > 64) or depth > 1 else _WGRAD_SHORT_CYCLES
            for one, rows in zip(boxes.is_whole, (tile.m, tile.n), strict=True)
        )
        if boxes.has_windows:
            b = _DEEP_WINDOW_CYCLES if depth > 1 else _WINDOW_CYCLES[parts]
        a, b = (one + _UNEVEN_CYCLES * is_so for one, is_so in zip((a, b), boxes.is_uneven, strict=True))
        copies = parts * (tile.m * a + of_b * b) * depth
        arrival = copies + _ARRIVAL_CYCLES
        if parts == 2:  # of few stages the next ones are asked for late
            copies = max(copies, (arrival + max(mma, shared)) / blocking.stages)
        elif not shared_rows:  # and, of one number, when the products behind are on their way
            copies = max(copies, arrival / (blocking.stages - 1))
    else:
        copies = copy_cycles(blocking, row_bytes, brought)
    if shared_rows:
        copies = max(copies, _BOX_CYCLES * parts * shared_rows.boxes * (tile.m // 64 + tile.across))
    if blocking.divides_rows:
        # operands in registers take the tensor cores longer; each warpgroup divides, multiplies and adds in turn
        if is_divided:
            factor = _MIXED_FACTOR * (_DIVIDERS_FACTOR if tile.dividers else 1.0)
            return max(copies, factor * max(mma / _EFFICIENCY, shared))
        own = mma / tile.warpgroups + _PRODUCT_CYCLES * products * _STEPS * tile.rows
        return max(tile.warpgroups * own, own + _ROWS_CYCLES, shared, copies)
    stage = max(mma / _EFFICIENCY, shared, copies)
    if is_wgrad and parts == 2 and tile.warpgroups == 1 and not tile.dividers:
        return _ALONE_FACTOR * stage if is_divided else stage + _SERIAL_CYCLES
    return stage


def seconds(
    products: Products,
    blocking: Blocking,
    device: GpuDevice,
    bytes_moved: int,
    result_bytes: int,
    row_bytes: int,
    is_wgrad: bool,
    is_rewritten: bool = False,
    finish: Finish = NO_FINISH,
    is_divided: bool = False,
    shared_rows: SharedRows | None = None,
    boxes: Boxes = NO_BOXES,
) -> float:
    """Expected time of the launch and, where K is split, of the sum of the splits."""
    tile, clock = blocking.tile, gemm_clock(device.facts)
    outside = blocking.parts * products.outside(tile)
    stage = stage_cycles(blocking, device, row_bytes, is_wgrad, is_rewritten, is_divided, shared_rows, boxes)
    if is_wgrad:
        if tile.across > 1 and not shared_rows:
            stage *= _ROWS_ACROSS_FACTOR if blocking.divides_rows else _ACROSS_FACTOR
        if tile.cluster > 1:
            stage *= _WGRAD_CLUSTER_FACTOR
    else:
        stage = (stage + _OUTSIDE_CYCLES * outside * (not blocking.keeps_b)) * (
            _CLUSTER_FACTOR if tile.cluster > 1 else 1.0
        )
    works = blocking.works(products)
    length = products.longest if blocking.is_whole else blocking.blocks_of_split
    out = tile.m * tile.n * 4 / l2_bytes_per_cycle(device.facts) if blocking.is_split else 0.0
    finished = finish.instructions * tile.m * tile.n / _LANES
    # the results of a tile leave behind the products of the next
    chunks = tile.m * tile.n * result_bytes / l2_bytes_per_cycle(device.facts)
    loop = length * stage
    if not is_wgrad and blocking.is_whole:
        # the engine that brings the operands takes the results away, too
        brought = blocking.parts * (tile.m + (0 if blocking.keeps_b else tile.n))
        chunk = tile.chunk_bytes(result_bytes)
        stored = tile.m * -(-min(tile.n, products.n) * result_bytes // chunk)
        moved = length * copy_cycles(blocking, row_bytes, brought) + _STORE_ROW_CYCLES * stored
        loop = max(loop, moved)
    one = loop + _TILE_CYCLES + (out + _PARTIAL_CYCLES if blocking.is_split else finished)
    if tile.cluster > 1:
        one += _EXCHANGE_CYCLES + tile.m * tile.n * 4 / _EXCHANGE_BYTES + finished * (1 / tile.cluster - 1)
        chunks = chunks / tile.cluster
    if len(products.rows) > 1:
        busy = longest_load(products, tile, device.multiprocessors, [
            max(blocks * stage + _TILE_CYCLES + finished, chunks) if blocks
            else products.filled(tile) * chunks + _EMPTY_CYCLES
            for blocks in products.blocks
        ])  # fmt: skip
    else:
        turns = -(-works // device.multiprocessors)
        busy = turns * max(one, chunks)
        if is_wgrad and blocking.is_whole:
            busy += (turns - 1) * tile.m * tile.n * result_bytes / _RESULT_BYTES
    cycles = busy + _START_CYCLES + (0.0 if blocking.is_split else chunks)
    works_for, waits_for = cycles / clock, (bytes_moved + finish.nbytes) / (_MEMORY_SHARE * device.bandwidth)
    time = max(works_for, waits_for) + _UNHIDDEN * min(works_for, waits_for)
    time += _EARLY_LAUNCH_SECONDS if begins_early(blocking, is_divided) else LAUNCH_SECONDS
    if blocking.is_split:
        time += _REDUCTION_SECONDS + finished * products.tiles(tile) / device.multiprocessors / clock
        time += blocking.partial_bytes(products) / (_REDUCTION_SHARE * device.bandwidth)
    return time


def longest_load(products: Products, tile: Tile, multiprocessors: int, cycles: Sequence[float]) -> float:
    """Cycles of the thread block that has most to do, of which every `multiprocessors`-th tile is one's: tiles of each
    stride phase, which follow each other, take `cycles`."""
    loads, first = [0.0] * multiprocessors, 0
    for rows, one in zip(products.rows, cycles, strict=True):
        count = -(-rows // tile.m) * products.tiles_n(tile) * products.groups
        all_have, more = divmod(count, multiprocessors)
        for number in range(multiprocessors):
            loads[number] += one * (all_have + ((number - first) % multiprocessors < more))
        first += count
    return max(loads)


def best_blocking(
    products: Products, tiles: Sequence[Tile], device: GpuDevice, bytes_moved: int, result_bytes: int, parts: int,
    max_splits: int, row_bytes: int, is_wgrad: bool, is_promoted: bool, taken: int = 0, is_rewritten: bool = False,
    finish: Finish = NO_FINISH,
    is_divided: bool = False, shared_rows: SharedRows | None = None, divides_rows: bool = False,
    is_rough: bool = False, row: int = STAGE_ROW, may_keep_b: bool = False, boxes: Boxes = NO_BOXES,
    depths: Callable[[Tile], Sequence[int]] = lambda _: (1,),
) -> tuple[Blocking, float] | None:  # fmt: skip
    """The blocking that is expected to be fastest and its time; None if the device has room for none.

    `is_promoted`: the sums of each stage are moved to other registers. `taken`: bytes of a thread block's shared memory
    that are for something else. `is_rewritten`, `is_divided`, `shared_rows`, `boxes`: see `stage_cycles`;
    `divides_rows`, `is_rough`, `row`: see `Blocking`. `may_keep_b`: a thread block may bring B once. `depths`: how many
    times `row` stages of a tile may have. What is divided is split.
    """
    candidates = [(tile, depth, products.in_stages(depth)) for tile in tiles for depth in depths(tile)]
    found = [
        (
            one,
            seconds(
                staged,
                one,
                device,
                bytes_moved,
                result_bytes,
                row_bytes,
                is_wgrad,
                is_rewritten,
                finish,
                is_divided,
                shared_rows,
                boxes,
            ),
        )
        for tile, depth, staged in candidates
        for one in blockings(
            staged,
            (tile,),
            device.shared_bytes - taken,
            device.multiprocessors,
            parts,
            result_bytes,
            max_splits,
            is_promoted,
            2 if is_divided else 1,
            divides_rows,
            is_rough,
            row * depth,
            may_keep_b,
        )
    ]
    if not found:
        return None
    least = min(time for _, time in found)
    # of those that are as fast the tile that stands first in the list: so few kernels are compiled. Where memory is the
    # limit many are, and one of whose columns more lie outside is slower than it seems
    as_fast = [(one, time) for one, time in found if time <= _AS_FAST * least]
    most = max(products.filled(one.tile) for one, _ in as_fast)
    return next((one, time) for one, time in as_fast if products.filled(one.tile) > most - _OUTSIDE)
