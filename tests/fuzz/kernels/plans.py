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
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Blocking, Products, blockings, split_cuts, whole_cut
from jitdnn.kernels.cuda.warpgroup.tile import NO_LINES, STAGE_ROW, Tile

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
        products: Products, tiles: Sequence[Tile], device: Any, bytes_moved: int, result_bytes: int, parts: int,
        max_splits: int, row_bytes: int, is_wgrad: bool, is_promoted: bool, taken: int = 0, is_rewritten: bool = False,
        finish: Any = NO_FINISH, is_divided: bool = False, shared_rows: Any = None, divides_rows: bool = False,
        is_rough: bool = False, row: int = STAGE_ROW, may_keep_b: bool = False, boxes: Any = None,
        lines: Any = NO_LINES, depths: Any = lambda _: (1,), shared: Sequence[Tile] = (),
        may_leave_at_once: bool = False, columns_of: Any = None, seconds_of: Any = None,
        may_keep_across: bool = False, most_tiles: int = best.MOST_PIECES, bound_of: Any = None,
        limit: float = 0.0,
    ) -> tuple[Blocking, float] | None:  # fmt: skip
        """What `best_blocking` weighs."""
        min_splits = 2 if is_divided else 1
        usable = best._usable(
            tuple(tiles), result_bytes, is_promoted, divides_rows, products.has_row_boxes,
            may_leave_at_once or divides_rows, min_splits == 1, max_splits > 1,
        )  # fmt: skip
        found: list[Blocking] = []
        for tile, is_whole, is_split in usable:
            columns = columns_of(tile) if columns_of else products.n
            for depth in depths(tile):
                staged = replace(products, n=columns).in_stages(depth)
                cuts = []
                if is_whole and (
                    tile.cluster == 1 or best.may_be_clusters(staged, tile, device.multiprocessors)
                ):
                    cuts.append(whole_cut(staged, tile))
                if is_split:
                    cuts += split_cuts(staged, tile, device.multiprocessors, max_splits, min_splits)
                    if len(set(staged.blocks)) == 1 and min(max_splits, staged.longest) > min_splits:
                        wanted = range(max(2, min_splits), min(max_splits, staged.longest) + 1)
                        length = -(-staged.longest // one_of(wanted, "splits"))
                        if -(-staged.longest // length) >= 2:
                            cuts.append((-(-staged.longest // length), length))
                for cut in cuts:
                    found += blockings(
                        staged, (tile,), device.shared_bytes - taken, device.multiprocessors, parts, result_bytes,
                        max_splits, is_promoted, min_splits, divides_rows, is_rough, row * depth, may_keep_b, lines,
                        shared, may_keep_across, most_tiles, (cut,),
                    )  # fmt: skip
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
        may_be_short = chosen.tile.cluster == 1 and chosen.stages > least and not shared_rows
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
