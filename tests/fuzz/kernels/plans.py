"""Any plan that a kernel can run in place of the fastest one, chosen by a number.

Tiles, splits of K, stages of the ring and ways to keep or to share operands are those that the planner weighs against
each other; what decides is a hash of each in place of its time. It is the same whenever it is asked for, so that
workspace, estimate and kernel are those of one plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import patch

from jitdnn.kernels.cuda.convolution.boxes import correlation_plan, wgrad_plan
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.patches import algorithm as patches
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import correlation, edges, wgrad
from jitdnn.kernels.cuda.gemm import cost as mma_cost
from jitdnn.kernels.cuda.warpgroup import best
from jitdnn.kernels.cuda.warpgroup.candidates import (
    SearchSpace,
    blockings,
    may_be_clusters,
    split_cuts,
    whole_cut,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES

Item = TypeVar("Item")
_SECONDS = 1e-5


@contextmanager
def any_plan(seed: int) -> Iterator[None]:
    """Kernels planned within the block have plans by this number. Devices must be others than those of plans before,
    whose plans are kept."""

    def score(*what: Any) -> int:
        return zlib.crc32(repr((seed, *what)).encode())

    def one_of(items: Sequence[Item], *what: Any) -> Item:
        return min(items, key=lambda item: score(item, *what))

    def any_blocking(
        products: Products,
        traits: KernelTraits,
        space: SearchSpace,
        device: Any,
        second: Any = None,
        limit: float = 0.0,
    ) -> tuple[Blocking, float] | None:
        """What `best_blocking` weighs, whatever it takes."""
        min_splits = 2 if traits.is_divided else 1
        found: list[Blocking] = []
        for one in best._Search(products, traits, space, device, second)._families:
            tile, staged, cuts = one.tile, one.least.products, []
            if one.is_whole and (tile.cluster == 1 or may_be_clusters(staged, tile, device.multiprocessors)):
                cuts.append(whole_cut(staged, tile))
            if one.is_split:
                cuts += split_cuts(staged, tile, device.multiprocessors, space.max_splits, min_splits)
                most_splits = min(space.max_splits, staged.longest)
                if len(set(staged.blocks)) == 1 and most_splits > min_splits:
                    length = -(
                        -staged.longest // one_of(range(max(2, min_splits), most_splits + 1), "splits")
                    )
                    if -(-staged.longest // length) >= 2:
                        cuts.append((-(-staged.longest // length), length))
            for cut in cuts:
                found += blockings(staged, tile, cut, space.row * one.depth, traits, space, device)
        if not found:
            return None

        def kind(one: Blocking) -> tuple[Any, ...]:
            """What decides how a kernel works, beside its tile: as many of each are tried."""
            return (
                one.tile.cluster > 1, one.is_split, one.sharers > 0, one.keeps_b, one.kept_across > 1, one.row,
                one.leaves_at_once,
            )  # fmt: skip

        wanted_kind = one_of(sorted({kind(one) for one in found}), "kind", products)
        # by the tile first: problems that are planned by the same number share its code
        of_kind = [one for one in found if kind(one) == wanted_kind]
        tile = one_of(sorted({one.tile for one in of_kind}, key=str), "tile")
        chosen = one_of([one for one in of_kind if one.tile == tile])
        # a ring is as long as there is room, and goes round seldom in a small problem
        least = 3 if chosen.lines != NO_LINES else 2
        may_be_short = chosen.tile.cluster == 1 and chosen.stages > least and not traits.shared_rows
        if may_be_short and score("short") % 2:
            chosen = replace(chosen, stages=least + score("stages") % (chosen.stages - least))
        return chosen, _SECONDS

    def offer(self: Cheapest[Any], seconds: float, order: tuple[int, ...], make: Any) -> None:
        number = score(order)
        if self._make is None or number < self._order[0]:
            self._order, self._make = (number,), make
            # as long as that no other plan is left out for it
            self.seconds = 1e30 * (1 + number)

    def any_seconds(gemms: Any, blocking: Any, *_: Any) -> float:
        return 1e-6 * (1 + score(blocking.tile) % 1000 + score(blocking) % 100 / 100)

    def any_cycles(*given: Any) -> float:
        # of boxes, and of patches, the tile is among the arguments
        sizes = [one for one in given if type(one).__name__ in ("Box", "Tile")]
        return 1e3 + score(sizes) % 100_000

    with (
        patch.object(correlation, "best_blocking", any_blocking),
        patch.object(wgrad, "best_blocking", any_blocking),
        patch.object(edges, "LEAST_SAVED", 0.01),
        patch.object(edges, "LEAST_OF_VOLUMES", 0.01),
        patch.object(Cheapest, "offer", offer),
        patch.object(mma_cost, "_seconds", any_seconds),
        patch.object(mma_cost, "_least_seconds", lambda *_: 0.0),
        patch.object(correlation_plan, "cycles_of", any_cycles),
        patch.object(wgrad_plan, "stage_cycles", any_cycles),
        patch.object(patches, "_cycles", any_cycles),
    ):
        yield
