"""The blocking of a product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.warpgroup.bound import Bound, Least
from jitdnn.kernels.cuda.warpgroup.cost import seconds
from jitdnn.kernels.cuda.warpgroup.plan import (
    MOST_PIECES,
    NO_BOXES,
    NO_FINISH,
    Blocking,
    Boxes,
    Finish,
    Products,
    SharedRows,
    blockings,
    may_be_clusters,
    split_cuts,
    whole_cut,
)
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES, STAGE_ROW, Lines, Tile

_AS_FAST = 1.005
"""The factor on a time within which it counts as the same."""
_NEAR = 1.5  # times the least time by the second model, up to which the first is asked
_OUTSIDE = 0.2  # of the columns of tiles, that may lie outside beside those of another tile


def best_blocking(
    products: Products, tiles: Sequence[Tile], device: GpuDevice, bytes_moved: int, result_bytes: int, parts: int,
    max_splits: int, row_bytes: int, is_wgrad: bool, is_promoted: bool, taken: int = 0, is_rewritten: bool = False,
    finish: Finish = NO_FINISH,
    is_divided: bool = False, shared_rows: SharedRows | None = None, divides_rows: bool = False,
    is_rough: bool = False, row: int = STAGE_ROW, may_keep_b: bool = False, boxes: Boxes = NO_BOXES,
    lines: Lines = NO_LINES, depths: Callable[[Tile], Sequence[int]] = lambda _: (1,), shared: Sequence[Tile] = (),
    may_leave_at_once: bool = False, columns_of: Callable[[Tile], int] | None = None,
    seconds_of: Callable[[Products, Blocking], float] | None = None, may_keep_across: bool = False,
    most_tiles: int = MOST_PIECES, bound_of: Callable[[Products, int], Least] | None = None,
    limit: float = math.inf,
) -> tuple[Blocking, float] | None:  # fmt: skip
    """The blocking that is expected to be fastest and its time; None if the device has room for none, or none takes as
    little as the `limit`.

    `is_promoted`: the sums of each stage are moved to other registers. `taken`: bytes of a thread block's shared memory
    that are for something else. `is_rewritten`, `is_divided`, `shared_rows`, `boxes`: see `stage_cycles`;
    `divides_rows`, `is_rough`, `row`: see `Blocking`. `may_keep_b`: a thread block may bring B once. `depths`: how many
    times `row` stages of a tile may have. `lines`: taps that share rows of A. `shared`: tiles of which thread blocks
    may have equal parts of the K of all. `may_leave_at_once`: see `Blocking.leaves_at_once`. `columns_of`: of the
    product by a tile, where these differ. `seconds_of`: a second model, of which and of `seconds` the geometric mean
    counts: they were fitted to different layers, err at different ones, and the mean of both errs less.
    `may_keep_across`: and B of one of several tiles across. `most_tiles`: of a thread block with an equal part of K.
    `bound_of`: what the second model does not come below, for products in stages of so many bytes. What is divided is
    split.

    Blockings come in the order of what they take at least, and none that cannot be the best is made.
    """
    min_splits = 2 if is_divided else 1

    def alike(tile: Tile) -> Products:
        columns = columns_of(tile) if columns_of else products.n
        return products if columns == products.n else replace(products, n=columns)

    def common(staged: Products, one: Blocking) -> float:
        return seconds(
            staged, one, device, bytes_moved, result_bytes, row_bytes, is_wgrad, is_rewritten, finish, is_divided,
            shared_rows, boxes,
        )  # fmt: skip

    is_b_counted = not (may_keep_b or shared_rows)

    def common_bound(staged: Products, of_stage: int) -> Least:
        return Bound(
            staged, device, bytes_moved + finish.nbytes, row_bytes, is_wgrad, parts, of_stage, lines, tiles[0].swaps,
            is_rough, is_b_counted, shared, result_bytes,
        )  # fmt: skip

    usable = _usable(
        tuple(tiles), result_bytes, is_promoted, divides_rows, products.has_row_boxes,
        may_leave_at_once or divides_rows, min_splits == 1, max_splits > 1,
    )  # fmt: skip
    families: list[_Family] = []
    bounds: dict[tuple[int, int], Least] = {}
    for tile, is_whole, is_split in usable:
        own = alike(tile) if columns_of else products
        for depth in depths(tile):
            least = bounds.get((own.n, depth))
            if least is None:
                least = bounds[own.n, depth] = (bound_of or common_bound)(own.in_stages(depth), row * depth)
            families.append(_Family(len(families), tile, depth, least, is_whole, is_split))

    def blocked(fastest: _Fastest) -> Iterator[tuple[int, Products, Blocking]]:
        """Blockings that may be as fast, with the numbers of their families."""
        for one, cut in _in_order(families, device.multiprocessors, max_splits, min_splits, fastest):
            for each in blockings(
                one.least.products, (one.tile,), device.shared_bytes - taken, device.multiprocessors, parts,
                result_bytes, max_splits, is_promoted, min_splits, divides_rows, is_rough, row * one.depth, may_keep_b,
                lines, shared, may_keep_across, most_tiles, (cut,),
            ):  # fmt: skip
                yield one.number, one.least.products, each

    found: list[tuple[int, Blocking, float]] = []
    fastest = _Fastest(_AS_FAST, limit)
    if seconds_of:
        near = _Fastest(_NEAR)
        times = [
            (near.offer(seconds_of(staged, each)), number, staged, each)
            for number, staged, each in blocked(near)
        ]
        least_common: dict[tuple[int, int], Least] = {}
        for time, number, staged, each in sorted(times, key=lambda one: one[0]):
            if time > near.limit:
                break
            key = staged.n, each.row
            if key not in least_common:
                least_common[key] = common_bound(staged, each.row)
            bound = least_common[key].seconds(each.tile, each.splits, each.blocks_of_split)
            if math.sqrt(time * bound) <= fastest.limit:
                found.append((number, each, fastest.offer(math.sqrt(time * common(staged, each)))))
    else:
        found = [
            (number, each, fastest.offer(common(staged, each))) for number, staged, each in blocked(fastest)
        ]
    if not found or min(time for _, _, time in found) > limit:
        return None
    found.sort(key=lambda one: (one[0], one[1].splits))
    # of those that are as fast the tile that stands first in the list: so few kernels are compiled. Where memory is the
    # limit many are, and one of whose columns more lie outside is slower than it seems
    as_fast = [(one, time) for _, one, time in found if time <= fastest.limit]
    filled = [alike(one.tile).filled(one.tile) for one, _ in as_fast]
    return next(one for one, share in zip(as_fast, filled, strict=True) if share > max(filled) - _OUTSIDE)


class _Fastest:
    """The least time so far, or one that is known of something else, and `limit`: times a factor."""

    def __init__(self, factor: float, known: float = math.inf) -> None:
        self._factor, self.limit = factor, factor * known

    def offer(self, seconds: float) -> float:
        self.limit = min(self.limit, self._factor * seconds)
        return seconds


@lru_cache(512)
def _usable(
    tiles: tuple[Tile, ...], result_bytes: int, is_promoted: bool, divides_rows: bool, has_row_boxes: bool,
    may_leave_at_once: bool, may_be_whole: bool, may_be_split: bool,
) -> list[tuple[Tile, bool, bool]]:  # fmt: skip
    """The tiles that have the registers, whole (or in clusters) and with their K split."""

    def has_registers(tile: Tile, is_split: bool) -> bool:
        return tile.has_registers(is_promoted, result_bytes, is_split, divides_rows and tile.cluster == 1)

    found = []
    for tile in tiles:
        is_whole = (may_be_whole or tile.cluster > 1) and has_registers(tile, False)
        is_whole = is_whole and (may_leave_at_once or not tile.leaves_at_once(result_bytes))
        is_split = may_be_split and tile.cluster == 1 and has_registers(tile, True)
        if (is_whole or is_split) and tile.has_chunks(result_bytes, has_row_boxes):
            found.append((tile, is_whole, is_split))
    return found


class _Family(NamedTuple):
    """A tile with stages of one depth, by its number in the order of tiles, what its blockings take at least, and
    whether it may be whole, or its K split."""

    number: int
    tile: Tile
    depth: int
    least: Least
    is_whole: bool
    is_split: bool


def _in_order(
    families: Sequence[_Family], multiprocessors: int, max_splits: int, min_splits: int, fastest: _Fastest
) -> Iterator[tuple[_Family, tuple[int, int]]]:  # fmt: skip
    """Families, and cuts of their K, by what they take at least, as long as that is no more than the limit."""
    # a family without a cut stands for all of its splits, which are not counted before their turn
    heap: list[tuple[float, int, _Family, tuple[int, int] | None]] = []
    for one in families:
        _, tile, _, least, is_whole, is_split = one
        products = least.products
        if is_whole and (tile.cluster == 1 or may_be_clusters(products, tile, multiprocessors)):
            cut = whole_cut(products, tile)
            heap.append((least.seconds(tile, *cut), len(heap), one, cut))
        if is_split:
            heap.append((least.of_splits, len(heap), one, None))
    number = itertools.count(len(heap))
    heapq.heapify(heap)
    while heap and heap[0][0] <= fastest.limit:
        _, _, one, next_cut = heapq.heappop(heap)
        if next_cut:
            yield one, next_cut
            continue
        for cut in split_cuts(one.least.products, one.tile, multiprocessors, max_splits, min_splits):
            heapq.heappush(heap, (one.least.seconds(one.tile, *cut), next(number), one, cut))
