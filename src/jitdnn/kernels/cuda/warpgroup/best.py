"""The blocking of a product by warpgroups that is expected to be fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice
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
    most_tiles: int = MOST_PIECES,
) -> tuple[Blocking, float] | None:  # fmt: skip
    """The blocking that is expected to be fastest and its time; None if the device has room for none.

    `is_promoted`: the sums of each stage are moved to other registers. `taken`: bytes of a thread block's shared memory
    that are for something else. `is_rewritten`, `is_divided`, `shared_rows`, `boxes`: see `stage_cycles`;
    `divides_rows`, `is_rough`, `row`: see `Blocking`. `may_keep_b`: a thread block may bring B once. `depths`: how many
    times `row` stages of a tile may have. `lines`: taps that share rows of A. `shared`: tiles of which thread blocks
    may have equal parts of the K of all. `may_leave_at_once`: see `Blocking.leaves_at_once`. `columns_of`: of the
    product by a tile, where these differ. `seconds_of`: a second model, of which and of `seconds` the geometric mean
    counts: they were fitted to different layers, err at different ones, and the mean of both errs less.
    `may_keep_across`: and B of one of several tiles across. `most_tiles`: of a thread block with an equal part of K.
    What is divided is split.
    """

    def alike(tile: Tile) -> Products:
        columns = columns_of(tile) if columns_of else products.n
        return products if columns == products.n else replace(products, n=columns)

    def common(staged: Products, one: Blocking) -> float:
        return seconds(
            staged, one, device, bytes_moved, result_bytes, row_bytes, is_wgrad, is_rewritten, finish, is_divided,
            shared_rows, boxes,
        )  # fmt: skip

    in_stages = {
        depth: products.in_stages(depth) for depth in {depth for tile in tiles for depth in depths(tile)}
    }
    blocked = []
    for tile in tiles:
        own = alike(tile)
        for depth in depths(tile):
            staged = in_stages[depth] if own is products else own.in_stages(depth)
            blocked += [
                (staged, one)
                for one in blockings(
                    staged, (tile,), device.shared_bytes - taken, device.multiprocessors, parts, result_bytes,
                    max_splits, is_promoted, 2 if is_divided else 1, divides_rows, is_rough, row * depth, may_keep_b,
                    lines, shared, may_keep_across, most_tiles,
                )
                if may_leave_at_once or divides_rows or not one.leaves_at_once
            ]  # fmt: skip
    if seconds_of:
        times = [seconds_of(staged, one) for staged, one in blocked]
        near = _NEAR * min(times, default=0.0)
        found = [
            (one, math.sqrt(time * common(staged, one)))
            for (staged, one), time in zip(blocked, times, strict=True)
            if time <= near
        ]
    else:
        found = [(one, common(staged, one)) for staged, one in blocked]
    if not found:
        return None
    least = min(time for _, time in found)
    # of those that are as fast the tile that stands first in the list: so few kernels are compiled. Where memory is the
    # limit many are, and one of whose columns more lie outside is slower than it seems
    as_fast = [(one, time) for one, time in found if time <= _AS_FAST * least]
    filled = [alike(one.tile).filled(one.tile) for one, _ in as_fast]
    return next(one for one, share in zip(as_fast, filled, strict=True) if share > max(filled) - _OUTSIDE)
