"""The blocking of a product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.warpgroup.bound import Bound, Least, Model
from jitdnn.kernels.cuda.warpgroup.candidates import (
    SearchSpace,
    blockings,
    may_be_clusters,
    split_cuts,
    whole_cut,
)
from jitdnn.kernels.cuda.warpgroup.cost import seconds
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import Tile

_AS_FAST = 1.005
"""The factor on a time within which it counts as the same."""
_NEAR = 1.5  # times the least time by the second model, up to which the first is asked
_OUTSIDE = 0.2  # of the columns of tiles, that may lie outside beside those of another tile


def best_blocking(
    products: Products,
    traits: KernelTraits,
    space: SearchSpace,
    device: GpuDevice,
    second: Model | None = None,
    limit: float = math.inf,
) -> tuple[Blocking, float] | None:
    """The blocking that is expected to be fastest and its time; None if the device has room for none, or none takes as
    little as the `limit`.

    `second`: a model beside that of `cost.seconds`; the geometric mean of both counts. They were fitted to different
    layers, err at different ones, and the mean of both errs less.

    Blockings come in the order of what they take at least, and none that cannot be the best is made.
    """
    search = _Search(products, traits, space, device, second)
    fastest = _Fastest(_AS_FAST, limit)
    found = list(search.by_two_models(second, fastest) if second else search.by_one_model(fastest))
    if not found or min(one.seconds for one in found) > limit:
        return None
    found.sort(key=lambda one: (one.family, one.blocking.splits))
    # of those that are as fast the tile that stands first in the list: so few kernels are compiled. Where memory is the
    # limit many are, and one of whose columns more lie outside is slower than it seems
    as_fast = [one for one in found if one.seconds <= fastest.limit]
    filled = [search.products_by(one.blocking.tile).filled(one.blocking.tile) for one in as_fast]
    best = next(one for one, share in zip(as_fast, filled, strict=True) if share > max(filled) - _OUTSIDE)
    return best.blocking, best.seconds


@dataclass(frozen=True)
class _CommonModel:
    """That of `cost.seconds`, for a kernel and a search space."""

    traits: KernelTraits
    space: SearchSpace
    device: GpuDevice

    def seconds(self, products: Products, blocking: Blocking) -> float:
        return seconds(products, blocking, self.device, self.traits)

    def bound(self, products: Products, row: int) -> Least:
        traits, space = self.traits, self.space
        is_b_counted = not (space.may_keep_b or traits.shared_rows)
        return Bound(products, self.device, traits, row, space.tiles[0].swaps, is_b_counted, space.shared)


class _Estimated(NamedTuple):
    """A blocking, its time, and the number of its family."""

    family: int
    blocking: Blocking
    seconds: float


class _Search:
    """A search through the blockings of a kernel for products."""

    def __init__(
        self,
        products: Products,
        traits: KernelTraits,
        space: SearchSpace,
        device: GpuDevice,
        second: Model | None,
    ) -> None:
        self._products, self._traits, self._space, self._device = products, traits, space, device
        self._common = _CommonModel(traits, space, device)
        self._min_splits = 2 if traits.is_divided else 1
        self._by_columns = {products.n: products}
        self._families = self._families_of(second or self._common)

    def products_by(self, tile: Tile) -> Products:
        """With the columns that they have by this tile."""
        if self._space.columns_of is None:
            return self._products
        columns = self._space.columns_of(tile)
        if columns not in self._by_columns:
            self._by_columns[columns] = replace(self._products, n=columns)
        return self._by_columns[columns]

    def by_one_model(self, fastest: _Fastest) -> Iterator[_Estimated]:
        for number, products, blocking in self._blocked(fastest):
            yield _Estimated(number, blocking, fastest.offer(self._common.seconds(products, blocking)))

    def by_two_models(self, second: Model, fastest: _Fastest) -> Iterator[_Estimated]:
        """The common one is asked of those alone that are near to the fastest by the second."""
        near = _Fastest(_NEAR)
        times = [
            (near.offer(second.seconds(products, blocking)), number, products, blocking)
            for number, products, blocking in self._blocked(near)
        ]
        bounds: dict[tuple[int, int], Least] = {}
        for time, number, products, blocking in sorted(times, key=lambda one: one[0]):
            if time > near.limit:
                break
            key = products.n, blocking.row
            if key not in bounds:
                bounds[key] = self._common.bound(products, blocking.row)
            bound = bounds[key].seconds(blocking.tile, blocking.splits, blocking.blocks_of_split)
            if math.sqrt(time * bound) <= fastest.limit:
                mean = math.sqrt(time * self._common.seconds(products, blocking))
                yield _Estimated(number, blocking, fastest.offer(mean))

    def _families_of(self, model: Model) -> list[_Family]:
        products, space, traits = self._products, self._space, self._traits
        usable = _usable(
            space.tiles, traits.result_bytes, traits.is_promoted, traits.divides_rows, products.has_row_boxes,
            space.may_leave_at_once or traits.divides_rows, self._min_splits == 1, space.max_splits > 1,
        )  # fmt: skip
        families: list[_Family] = []
        bounds: dict[tuple[int, int], Least] = {}
        for tile, is_whole, is_split in usable:
            own = self.products_by(tile)
            for depth in space.depths(tile):
                least = bounds.get((own.n, depth))
                if least is None:
                    least = bounds[own.n, depth] = model.bound(own.in_stages(depth), space.row * depth)
                families.append(_Family(len(families), tile, depth, least, is_whole, is_split))
        return families

    def _blocked(self, fastest: _Fastest) -> Iterator[tuple[int, Products, Blocking]]:
        """Blockings that may be as fast, with the numbers of their families and their products."""
        space, device = self._space, self._device
        cuts = _in_order(self._families, device.multiprocessors, space.max_splits, self._min_splits, fastest)
        for one, cut in cuts:
            products = one.least.products
            for each in blockings(
                products, one.tile, cut, space.row * one.depth, self._traits, space, device
            ):
                yield one.number, products, each


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
