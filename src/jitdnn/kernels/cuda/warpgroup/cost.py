"""The cost model of products by warpgroups: expected times."""

from __future__ import annotations

import math

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import gemm_clock, l2_bytes_per_cycle
from jitdnn.kernels.cuda.warpgroup.families import ALONG, OTHERS, Constants, family
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products, longest_load
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW

OPERATIONS_OF_BYTE = 32.0
"""Of the tensor cores of a multiprocessor, in a cycle, for each byte of its path to shared memory."""
_WGRAD_SHARED_SHARE = 1.5  # the same where all operands are read across
_STRIDED_FACTOR = 1.1  # of a row of less than 128 bytes that is copied, some rows from the next in memory
_COPY_LATENCY = 1500.0
"""Until such rows have arrived, while all stages but one are under way: few short stages are not enough."""
_WGRAD_HALVES_SHARE = 1.25  # the same of halves
_SERIAL_CYCLES = 200.0
"""Of a stage whose sums the only consumer of a wgrad adds to others, while no product runs."""
_WGRAD_ROW_CYCLES = 1.55  # of the copy engine for a row of a stage, where all operands are read across
_WGRAD_SHORT_CYCLES = 2.2  # the same in boxes of 64 rows
_WINDOW_CYCLES = {1: 3.4, 2: 2.7, 3: 2.7}  # the same of windows, 64 pixels at a time: of numbers, of parts
_DEEP_WINDOW_CYCLES = 2.2  # the same of more pixels
_UNEVEN_CYCLES = 6.0  # the same beside these, of pixels that begin inside of a sector
_ARRIVAL_CYCLES = 1450.0  # until the rows of a wgrad's stage begin to come
_RESULT_BYTES = 24.0
"""Of a wgrad's results that leave in a cycle while the next tile's operands come: the copy engine has these to bring
first."""
_LANES = 128  # of a multiprocessor: numbers of which it computes one instruction in a cycle
_FEW_WARPS = {1: 2.2, 2: 1.25, 3: 1.0}  # of the cycles of these behind a tile's products, by consumers
_BOX_CYCLES = 110.0  # of the copy engine for a box of few rows
_DIVISION = 4.5
"""Times that what is divided into halves goes through the path to shared memory, or takes as long as that."""
_ROUGH_DIVISION = 3.5  # the same where only first halves are wanted
_ROWS_CYCLES = 450.0  # of a stage of a warpgroup: dividing 64 rows in registers, and adding its sums
_PRODUCT_CYCLES = (
    30.0  # of a product whose first operand comes from registers, beside those of one from shared memory
)
_STEPS = 4  # products along K of a stage
_SWAPPED_COLUMN, _SWAPPED_STEP = {True: 0.33, False: 0.4}, {True: 60.0, False: 25.0}
"""Cycles of a product whose first operand threads bring from shared memory as it lies, for each of its columns, and
of the one or two of a step of K beside these: where nothing else runs, and where others do."""
_SWAPPED_BYTES = 52.0  # of operands, that L2 brings each multiprocessor in a cycle for these
_SWAPPED_RESULT_BYTES = 64.0
"""Of its results in a cycle, which threads store before the products of the next tile."""
_F32_FACTOR = {(128, 128): 1.07, (64, 256): 1.1, (128, 256): 0.97, (256, 128): 1.02, (192, 96): 1.1}
_F32_ALONE_FACTOR = 1.15
"""Of a stage of such a tile with results of f32, and of the other tiles of one warpgroup."""
_ALONE_FACTOR = 1.15  # of a stage that the only consumer divides in shared memory
_DIVIDERS_FACTOR = 0.71  # of a stage that other warpgroups divide
_LINES_FACTOR = 1.35  # of a stage in lines whose consumers divide it themselves
_MIXED_FACTOR = 1.45  # of a stage of which one operand is divided in registers and the other in shared memory
_ACROSS_FACTOR = 1.0  # of a wgrad's stage that two warpgroups share across
_ROWS_ACROSS_FACTOR = 1.15  # the same where each of them divides its rows in registers
_WIDE_LINES_FACTOR = 1.24
"""Of a stage in lines of more than 64 columns, in rows of 128 bytes: there are few of them, and those of tiles without
lines take less than they are held to."""
_F32_WIDE_LINES_FACTOR = 1.15  # the same of f32
_LINES_TILE_FACTOR = {
    (64, 32): 1.15, (64, 64): 1.2, (128, 64): 0.95, (192, 64): 1.02, (128, 128): 0.93, (256, 128): 0.96,
    (128, 256): 0.96, (192, 192): 0.97, (256, 192): 0.92,
}  # fmt: skip
"""Of a stage in lines of such a tile, of results of two bytes, and below of others of more than 128 columns."""
_BEHIND_128 = 0.85
_SHORT_LINES_FACTOR = 1.15  # of a stage in lines of less than two taps on average
_PADDED_LINES, MUCH_PADDING = 1.1, 0.3
"""Of a stage in lines where more than such a share of the rows lies outside of the data."""
_LINES_RESULT_CYCLES, _LINES_RESULT_KEPT = {1: 0.117, 2: 0.117, 3: 0.09}, {1: 0.117, 2: 0.117, 3: 0.025}
_F32_LINES_RESULT_CYCLES = {1: 0.2, 2: 0.18, 3: 0.15}
"""Beside these, of a result in lines, which threads store, by consumers; where all of B is kept, of three two multiply
meanwhile."""
_EMPTY_CYCLES = 1300.0  # of a tile of zeros, beside storing them
_EARLY_STAGES = 36
_WAITED, _ADDED_BYTES = 900.0, 30.0
"""Cycles until the sums that another thread block has left begin to come, and bytes of them in a cycle."""
_WHOLE_BESIDE_PARTS = (
    8000.0  # of a tile that a thread block has whole, beside its stages, between parts of others
)
_INSIDE_FACTOR = 1.15  # of a stage of a tile that ends inside of a block of 64 columns, where K is split
_ROWS_CLUSTER_FACTOR = 1.15  # of a stage of a cluster whose x comes as rows, not as windows
_SHORT_SEGMENTS_FACTOR = (
    1.27  # of 64 rows in lines by short segments, where thread blocks have equal parts of K
)
_OUT_OF_STEP_FACTOR = 1.04  # of a stage of 256 x 128, or in lines, where few thread blocks are in step
_WINDOWS_FACTOR = {(256, 128): 0.93, (256, 64): 0.95, (192, 128): 1.02, (128, 256): 1.04, (64, 192): 1.1}
"""Of a stage of such a tile, of which x comes as windows: rows of dy are copied faster."""
_LEFT_BYTES = 64.0  # of results in a cycle, where they leave before the products of the next tile
_CLEARED = 0.8e-6  # seconds of the launch that clears what thread blocks signal
_REDUCTION_SHARE = 0.64  # of the bandwidth of copies
_PADDED, _PADDED_VOLUME, _PADDED_SKIPPED = 0.35, 0.47, 0.3
"""Of the cycles of a row outside of the tensor, that a row of pixels inside takes where some lie outside: of images, of
volumes, and of volumes whose taps that read padding alone are left out."""
_LAST = 0.7
"""The same of rows outside of the last of several tiles down, or columns of the last across."""
_TILE_FACTOR = {(64, 144): 1.3, (192, 160): 0.97, (192, 192): 0.96}
"""Of a stage of such a tile: the only warpgroup of the first has few products in flight for what L2 brings, and the
last has four stages where others as large have three."""
_ALONE_HALF = {(64, 96): 1.07, (64, 32): 1.25}  # the same of results of two bytes where many are at work
_BETWEEN = {(192, 128): 700.0, (128, 192): 500.0, (64, 256): 500.0, (192, 64): 900.0}
"""More cycles from one such tile of a thread block to the next, but where it keeps B; as measured."""
_BETWEEN_KEPT = {(128, 64): -400.0}  # the same where it keeps all of B
_PADDED_FACTOR, _PADDED_ALONE = {(128, 256): 0.95, (256, 128): 0.96}, {(256, 128): 1.05}
"""Of a stage of such a tile of layers with padding: of several across or with columns for all, and of the only one."""
_HALF_SAVED = 0.41
"""Of the cycles of a stage of paired stride phases, that one with half of the columns does not take."""
_HALVES_FACTOR = {128: 1.17, 256: 1.1}
"""Of such a stage with so many columns, the halves of which each read the pixels."""
_TURNS_FACTOR = 0.85  # of the cycles of tiles of eight stride phases that take turns
_SHARED_EVENLY = 0.95  # of the time of thread blocks with equal parts of K, forward and of the data
_UNEVEN_ROW = 0.8
"""Cycles of a row of 128 bytes of an operand, beside the stage, that is in two lines of L2."""
_ACROSS_BYTES = 69.0
"""Of operands, that L2 brings each multiprocessor in a cycle where the filter lies across."""
_BROKEN_SECTORS = 2.7
"""Times that bytes of an operand that lies across count for that, whose rows begin inside of a sector."""
_KEPT_BYTES = 200.0
"""Of B in a cycle, that a thread block brings for all of its tiles, one of several across."""
_REDUCED = 1.3e-6  # seconds more of the sum of splits
_PARTIAL_SHARE = 0.6  # of the cycles that results of as many bytes take to leave, of partial sums
_ADDED_SHARE = 1.0  # of the bandwidth of copies, at which sums of splits that L2 holds are added
_THROTTLED = (15e3, 74e3)
"""Cycles of the tensor cores from which on a product is long enough for the power limit to lower the clock, and from
which on it is lowest."""
_F32_THROTTLED = (60e3, 900e3)  # the same of f32
_THROTTLE = 0.127
LAUNCH_SECONDS = OTHERS.launch


def _constants(blocking: Blocking, row_bytes: int, is_wgrad: bool) -> Constants:
    return family(blocking.tile.swaps, blocking.lines, blocking.parts, row_bytes, is_wgrad)


def _clock(constants: Constants, products: Products, blocking: Blocking, device: GpuDevice) -> float:
    """Cycles a second while a product runs."""
    clock = constants.clock * gemm_clock(device.facts)
    if constants is not ALONG:
        return clock
    flops = products.products_of_rows * blocking.row  # as in `stage_cycles`
    cycles = flops / (OPERATIONS_OF_BYTE * device.facts.shared_bytes_per_cycle * device.multiprocessors)
    least, most = _F32_THROTTLED if blocking.result_bytes == 4 else _THROTTLED
    if cycles <= least:
        return clock
    share = math.log(min(most, cycles) / least) / math.log(most / least)
    return clock * (1.0 - _THROTTLE * share)


def begins_early(blocking: Blocking, is_wgrad: bool = False, is_divided: bool = False) -> bool:
    """Whether the product may begin before the launch in front of it is done.

    Then its thread blocks have the multiprocessors in the order in which these become free, and share less of what L2
    brings: with splits of K, or many stages of a filter's gradient, that costs more than there is to gain. Not where
    L2 is far from its limit, `is_divided`: since f32 is divided into halves, or sums are scaled stage by stage.
    """
    if is_divided:
        return True
    if blocking.sharers:
        return True  # behind a launch of one thread block, which waits for the launch before
    return not blocking.is_split and (not is_wgrad or blocking.blocks_of_split <= _EARLY_STAGES)


def copy_cycles(blocking: Blocking, row_bytes: int, is_strided: bool, constants: Constants) -> float:
    """Cycles of the copy engine for a stage of operands that are read along K; `is_strided`: rows of A."""
    factor = _STRIDED_FACTOR if is_strided and row_bytes < STAGE_ROW else 1.0
    rows = blocking.parts * (factor * (blocking.tile.m + blocking.lines.further) + blocking.rows_of_b)
    return rows * (blocking.row // row_bytes) * constants.row


def _wgrad_copy_cycles(blocking: Blocking, traits: KernelTraits, rows_of_b: float, others: float) -> float:
    """The same of a wgrad's stage, whose operands are read across; `others`: cycles that all else takes."""
    tile, parts, boxes = blocking.tile, blocking.parts, traits.boxes
    # boxes of 64 rows are slower than those of all rows of a tile, or of a stage that is deeper
    depth = blocking.row // STAGE_ROW
    a, b = (
        _WGRAD_ROW_CYCLES if (one and rows > 64) or depth > 1 else _WGRAD_SHORT_CYCLES
        for one, rows in zip(boxes.is_whole, (tile.m, tile.n), strict=True)
    )
    if boxes.has_windows:
        b = _DEEP_WINDOW_CYCLES if depth > 1 else _WINDOW_CYCLES[parts]
    a, b = (one + _UNEVEN_CYCLES * is_so for one, is_so in zip((a, b), boxes.is_uneven, strict=True))
    copies = parts * (tile.m * a + rows_of_b * b) * depth
    arrival = copies + _ARRIVAL_CYCLES
    if parts > 1:  # of few stages the next ones are asked for late
        return max(copies, (arrival + others) / blocking.stages)
    if not traits.shared_rows:  # and, of one number, when the products behind are on their way
        return max(copies, arrival / (blocking.stages - 1))
    return copies


def stage_cycles(
    blocking: Blocking,
    device: GpuDevice,
    traits: KernelTraits,
    constants: Constants,
    is_strided: bool = False,
    outside: float = 0.0,
) -> float:
    """Cycles of a stage of a tile: products, the path to shared memory, or the copy engine, whichever takes longest.

    `is_strided`: see `Products`. `outside`: rows that lie outside of the tensors, of a forward product or of the data.
    """
    row_bytes, is_wgrad, is_divided = traits.row_bytes, traits.is_wgrad, traits.is_divided
    tile, facts, parts, shared_rows = blocking.tile, device.facts, blocking.parts, traits.shared_rows
    # products of two bytes; those of four have half as many in a stage, at half the rate, those of one twice as many
    flops = 2.0 * tile.m * tile.n * blocking.row / 2
    products = parts * (parts + 1) // 2 if parts > 1 and not blocking.is_rough else blocking.lines.mean_taps
    mma = products * flops / (OPERATIONS_OF_BYTE * facts.shared_bytes_per_cycle)
    of_b = tile.across * shared_rows.count if shared_rows else blocking.rows_of_b
    lines = blocking.lines
    brought = parts * ((tile.m + lines.further) * lines.pixels + of_b)  # rows of 128 bytes
    of_a = 64 * (2 if blocking.divides_rows else products)
    read = (tile.m // 64) * tile.across * (of_a + products * tile.wn) + (
        2 * tile.n if traits.is_rewritten else 0
    )
    if tile.swaps:  # the filter by threads, for each slab, and pixels by the tensor cores
        read = tile.warpgroups * tile.rows * products * (64 + tile.wn)
    share = constants.shared
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
        copies = _wgrad_copy_cycles(blocking, traits, of_b, max(mma, shared))
    else:
        copies = copy_cycles(blocking, row_bytes, is_strided, constants)
        copies += constants.outside * outside * (blocking.row // row_bytes)
        if constants is ALONG and blocking.is_across and not blocking.keeps_b:
            of_stage = tile.stage_bytes(parts, blocking.row, lines, is_across=True)
            copies = max(copies, of_stage / (_SWAPPED_BYTES if tile.swaps else _ACROSS_BYTES))
    if shared_rows:
        copies = max(copies, _BOX_CYCLES * parts * shared_rows.boxes * (tile.m // 64 + tile.across))
    if blocking.divides_rows:
        # operands in registers take the tensor cores longer; each warpgroup divides, multiplies and adds in turn
        if is_divided:
            factor = _MIXED_FACTOR * (_DIVIDERS_FACTOR if tile.dividers else 1.0)
            return max(copies, factor * max(mma / constants.efficiency, shared))
        own = mma / tile.warpgroups + _PRODUCT_CYCLES * products * _STEPS * tile.rows
        return max(tile.warpgroups * own, own + _ROWS_CYCLES, shared, copies)
    if tile.swaps:
        steps, is_alone = _STEPS * blocking.row / STAGE_ROW * products, tile.warpgroups == 1
        own = steps * (tile.rows * tile.wn * _SWAPPED_COLUMN[is_alone] + _SWAPPED_STEP[is_alone])
        mma = max(mma, tile.warpgroups * own)
    least = constants.stage + constants.piece * (blocking.row // row_bytes)
    if is_strided and row_bytes < STAGE_ROW:
        least = max(least, _COPY_LATENCY / (blocking.stages - 1))
    stage = max(mma / constants.efficiency, shared, copies, least)
    if is_divided and shared_rows and not tile.dividers:
        stage *= _LINES_FACTOR
    if constants is ALONG and blocking.result_bytes == 4 and not tile.swaps:
        stage *= _F32_FACTOR.get((tile.m, tile.n), _F32_ALONE_FACTOR if tile.warpgroups == 1 else 1.0)
    if is_wgrad and parts == 2 and tile.warpgroups == 1 and not tile.dividers:
        return _ALONE_FACTOR * stage if is_divided else stage + _SERIAL_CYCLES
    return stage


def _outside(products: Products, blocking: Blocking, is_one_wave: bool) -> float:
    """Rows of a stage that are copied and lie outside of the tensors: on average or, where each thread block has one
    tile, of that which has most of them."""
    tile = blocking.tile
    columns = 0.0
    if not blocking.keeps_b:
        across = products.tiles_n(tile)
        columns = products.outside(tile) * (_LAST * across if is_one_wave and across > 1 else 1.0)
    rows = 0.0
    if len(products.rows) == 1 and (is_one_wave or products.tiles_m(tile) == 1):
        rows = products.outside_rows(tile) * (1.0 if products.tiles_m(tile) == 1 else _LAST)
    if products.padding:
        padded = _PADDED
        if products.is_volume:
            padded = _PADDED_SKIPPED if products.skips_padding else _PADDED_VOLUME
        padded_rows = tile.n if products.pixels_are_columns else tile.m
        rows = max(rows, (products.padding + padded * (1.0 - products.padding)) * padded_rows)
    return columns + rows


def _measured_stage(
    stage: float,
    products: Products,
    blocking: Blocking,
    device: GpuDevice,
    traits: KernelTraits,
    constants: Constants,
    works: int,
) -> float:
    """Cycles of a stage with the factors of tiles and layers that were measured beside `stage_cycles`."""
    tile, is_along = blocking.tile, constants is ALONG
    row_bytes, result_bytes, is_wgrad = traits.row_bytes, traits.result_bytes, traits.is_wgrad
    shared_rows, boxes, is_half = traits.shared_rows, traits.boxes, is_along and result_bytes == 2
    if is_wgrad:
        if boxes.has_windows and blocking.parts == 1:
            stage *= _WINDOWS_FACTOR.get((tile.m, tile.n), 1.0)
        if blocking.sharers and (tile.rows > 1 or shared_rows):
            stage *= _OUT_OF_STEP_FACTOR
        if tile.n % 64 and blocking.is_split:
            stage *= _INSIDE_FACTOR
        if blocking.sharers and shared_rows and shared_rows.boxes > 1 and tile.m == 64:
            stage *= _SHORT_SEGMENTS_FACTOR
        if tile.across > 1 and not shared_rows:
            stage *= _ROWS_ACROSS_FACTOR if blocking.divides_rows else _ACROSS_FACTOR
    elif not (is_along or blocking.keeps_b):
        stage += constants.outside * blocking.parts * blocking.lines.mean_taps * products.outside(tile)
    if is_along:
        stage *= _TILE_FACTOR.get((tile.m, tile.n), 1.0)
    if is_half and 2 * works > device.multiprocessors:
        stage *= _ALONE_HALF.get((tile.m, tile.n), 1.0)
        if products.padding and blocking.is_whole and not blocking.sharers:
            is_many = tile.m < tile.n or products.tiles_n(tile) > 1
            stage *= (_PADDED_FACTOR if is_many else _PADDED_ALONE).get((tile.m, tile.n), 1.0)
    if is_along:
        a, b = products.is_uneven
        stage += _UNEVEN_ROW * (blocking.row // row_bytes) * (a * tile.m + b * blocking.rows_of_b)
        if any(products.breaks_sectors):
            of_a, of_b = (_BROKEN_SECTORS if one else 1.0 for one in products.breaks_sectors)
            asked = (of_a * tile.m + of_b * tile.brought(blocking.is_across)) * blocking.row
            stage = max(stage, asked / _ACROSS_BYTES * min(1.0, works / device.multiprocessors))
    if blocking.lines.taps > 1 and result_bytes == 2:
        stage *= _LINES_TILE_FACTOR.get((tile.m, tile.n), 1.0 if tile.n <= 128 else _BEHIND_128)
        stage *= _SHORT_LINES_FACTOR if blocking.lines.mean_taps < 2 else 1.0
        stage *= _PADDED_LINES if products.padding > MUCH_PADDING else 1.0
    if blocking.lines.taps > 1 and tile.n > 64 and row_bytes == STAGE_ROW and not tile.swaps:
        stage *= _F32_WIDE_LINES_FACTOR if result_bytes == 4 else _WIDE_LINES_FACTOR
    if products.half_stages:
        stage *= _HALVES_FACTOR.get(tile.n, 1.0) * (1.0 - _HALF_SAVED * products.half_stages)
    if tile.cluster > 1:
        stage *= constants.cluster
        if is_wgrad and blocking.parts == 1 and not boxes.has_windows:
            stage *= _ROWS_CLUSTER_FACTOR
    return stage


def _moving_cycles(
    products: Products,
    blocking: Blocking,
    traits: KernelTraits,
    constants: Constants,
    length: int,
    is_brought: bool,
) -> float:
    """Of the copy engine for a tile of `length` stages: it brings the operands, and takes the results away, too.

    `is_brought`: it brings an operand of the epilogue.
    """
    tile, result_bytes = blocking.tile, traits.result_bytes
    chunk = tile.chunk_bytes(result_bytes)
    stored = 0 if tile.swaps else tile.m * -(-min(tile.n, products.n) * result_bytes // chunk)
    moved = length * copy_cycles(blocking, traits.row_bytes, products.is_strided, constants)
    moved += constants.stored_row * stored
    if is_brought:
        moved += constants.row * tile.m * -(-min(tile.n, products.n) * result_bytes // STAGE_ROW)
    return moved


def _cycles_between(products: Products, blocking: Blocking, constants: Constants, is_half: bool) -> float:
    """From one tile of a thread block to the next; `is_half`: of `ALONG`, with results of two bytes."""
    tile, result_bytes = blocking.tile, blocking.result_bytes
    between = constants.tile
    if is_half and blocking.kept_across == len(products.rows) == 1:
        between += (_BETWEEN_KEPT if blocking.keeps_b else _BETWEEN).get((tile.m, tile.n), 0.0)
    if tile.swaps:
        between += tile.m * tile.n * result_bytes / _SWAPPED_RESULT_BYTES
    elif blocking.lines.taps > 1:
        own = _LINES_RESULT_KEPT if blocking.keeps_b else _LINES_RESULT_CYCLES
        own = _F32_LINES_RESULT_CYCLES if result_bytes == 4 else own
        between += own[tile.warpgroups] * tile.m * tile.n
    if blocking.leaves_at_once and not blocking.divides_rows:
        between += tile.m * tile.n * result_bytes / _LEFT_BYTES
    return between


def seconds(products: Products, blocking: Blocking, device: GpuDevice, traits: KernelTraits) -> float:
    """Expected time of the launch and, where K is split, of the sum of the splits."""
    tile, finish = blocking.tile, traits.finish
    row_bytes, result_bytes, is_wgrad = traits.row_bytes, traits.result_bytes, traits.is_wgrad
    constants = _constants(blocking, row_bytes, is_wgrad)
    clock = _clock(constants, products, blocking, device)
    works = blocking.works(products)
    is_along = constants is ALONG
    is_half = is_along and result_bytes == 2
    outside = _outside(products, blocking, works <= device.multiprocessors) if is_along else 0.0
    stage = stage_cycles(blocking, device, traits, constants, products.is_strided, outside)
    stage = _measured_stage(stage, products, blocking, device, traits, constants, works)
    length = products.longest if blocking.is_whole else blocking.blocks_of_split
    leaving = constants.results or l2_bytes_per_cycle(device.facts)
    out = tile.m * tile.n * 4 / leaving if blocking.is_split else 0.0
    if is_half:
        out *= _PARTIAL_SHARE
    is_brought = blocking.brings(finish, products)
    finished = (finish.instructions - is_brought * finish.read) * tile.m * tile.n / _LANES
    finished *= 1.0 if blocking.is_split else _FEW_WARPS[tile.warpgroups]
    # the results of a tile leave behind the products of the next
    chunks = tile.m * tile.n * result_bytes / leaving
    loop = length * stage
    if not is_wgrad and blocking.is_whole:
        loop = max(loop, _moving_cycles(products, blocking, traits, constants, length, is_brought))
    between = _cycles_between(products, blocking, constants, is_half)
    one = loop + between + (out + constants.partial if blocking.is_split else finished)
    if tile.cluster > 1:
        one += (
            constants.exchange + tile.m * tile.n * 4 / constants.exchanged + finished * (1 / tile.cluster - 1)
        )
        chunks = chunks / tile.cluster
    if len(products.rows) > 1 and not blocking.is_split:
        busy = longest_load(products, tile, device.multiprocessors, [
            max(blocks * stage + between + finished, chunks) if blocks
            else products.filled(tile) * chunks + _EMPTY_CYCLES
            for blocks in products.blocks
        ])  # fmt: skip
        if products.takes_turns and len(products.rows) >= 8:
            busy *= _TURNS_FACTOR
    elif blocking.sharers:
        sums = tile.m * tile.n * 4
        stages = -(-products.tiles(tile) * products.longest // blocking.sharers)
        pieces = blocking.pieces(products)
        ends = 2 if is_wgrad else min(2, pieces)
        busy = stages * stage + ends * between + constants.partial + sums / leaving
        busy += max(0, pieces - 2) * _WHOLE_BESIDE_PARTS
        busy += blocking.others(products) * (_WAITED + sums / _ADDED_BYTES)
        if not is_wgrad:
            busy *= _SHARED_EVENLY
    else:
        turns = -(-works // blocking.thread_blocks(works, device.multiprocessors))
        busy = turns * max(one, chunks)
        if blocking.kept_across > 1:
            busy += blocking.kept_bytes / _KEPT_BYTES
        if is_wgrad and blocking.is_whole:
            busy += (turns - 1) * tile.m * tile.n * result_bytes / _RESULT_BYTES
    cycles = busy + constants.start + (0.0 if blocking.is_split else chunks)
    bytes_moved = products.bytes_moved + finish.nbytes
    bytes_moved += products.read_again(tile, device.multiprocessors, device.facts.l2_bytes)
    works_for, waits_for = (
        cycles / clock,
        bytes_moved / (constants.memory * device.bandwidth),
    )
    time = max(works_for, waits_for) + constants.unhidden * min(works_for, waits_for)
    time += (
        constants.early_launch if begins_early(blocking, is_wgrad, traits.is_divided) else constants.launch
    )
    if blocking.sharers:
        time += _CLEARED
    if blocking.is_split:
        time += constants.reduction + finished * products.tiles(tile) / device.multiprocessors / clock
        added = blocking.partial_bytes(products)
        time += _REDUCED if is_half else 0.0
        is_cached = is_half and 2 * added < device.facts.l2_bytes
        time += added / ((_ADDED_SHARE if is_cached else _REDUCTION_SHARE) * device.bandwidth)
    return time
