"""Blockings of products by warpgroups that are worth estimating: which tiles, which splits of K, which stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile

_AT_ONCE = {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
_OF_MULTIPROCESSORS = 132
"""Clusters of so many thread blocks that run at once, by the driver's word of an H200: multiprocessors stand in groups,
and some are left over."""
_LEFT_OVER = 32  # of how many multiprocessors one may be left idle for parts that are in step
_LEAST_BUSY = 0.85
"""The same where each has a part of one tile."""
_LEAST_PART = 8
"""Stages of a thread block, where all have equal parts of the K of all tiles: fewer are no more than what the sums of
parts take."""
_LEAST_TURNS = 3  # tiles of a thread block that keeps B of one of several tiles across
_MOST_PIECES = 3
"""Of the tiles of a thread block, and of thread blocks beside the one that stores a tile: with more of them, who is at
the same place of K shares little of what is read, and sums of parts take longer than idle multiprocessors."""
_MAX_INT = 2**31
_STAGES_BESIDE_KEPT = 4
"""Of A, that there is to be room for beside all of B."""
_STAGES_OF_LINES = 3
"""The same where taps share rows, with B or without: fewer, though they are long, do not hide how long copies take."""


def one_depth(_: Tile) -> Sequence[int]:
    """Stages of any tile as deep as they are at least."""
    return (1,)


@dataclass(frozen=True)
class SearchSpace:
    """Blockings that may be chosen for a kernel, of which `tiles` come first that are best for many problems.

    `row`: bytes of K of a stage at least, and `depths` how many times that it may be, by tile. `max_splits`: of K.
    `taken`: bytes of a thread block's shared memory that are for something else. `may_keep_b`: a thread block may bring
    B once, and with `may_keep_across` that of one of several tiles across. `shared`: tiles of which thread blocks may
    have equal parts of the K of all, with `most_tiles` of each. `may_leave_at_once`: see `Blocking.leaves_at_once`.
    `columns_of`: of the product by a tile, where these differ.
    """

    tiles: tuple[Tile, ...]
    row: int = STAGE_ROW
    depths: Callable[[Tile], Sequence[int]] = one_depth
    max_splits: int = 1
    taken: int = 0
    may_keep_b: bool = False
    may_keep_across: bool = False
    shared: Container[Tile] = ()
    most_tiles: int = _MOST_PIECES
    may_leave_at_once: bool = False
    columns_of: Callable[[Tile], int] | None = None


def whole_cut(products: Products, tile: Tile) -> tuple[int, int]:
    """Splits of K, and the stages of each: one of all stages, or the thread blocks of a cluster."""
    return tile.cluster, max(1, -(-products.longest // tile.cluster))


def split_cuts(
    products: Products, tile: Tile, multiprocessors: int, max_splits: int, min_splits: int = 1
) -> list[tuple[int, int]]:
    """The same where the pieces of K fill whole waves, of a tile without a cluster."""
    count, longest = products.tiles(tile), products.longest
    wanted = {min_splits} if min_splits > 1 else set()
    if len(set(products.blocks)) == 1:
        for waves in (1, 2, 3, 4):
            splits = multiprocessors * waves // max(1, count)
            wanted.add(min(max_splits, splits, longest))
    found = []
    for splits in sorted(wanted):
        if splits < max(2, min_splits):
            continue
        length = -(-longest // splits)
        splits = -(-longest // length)
        if splits >= max(2, min_splits):
            found.append((splits, length))
    return found


def blockings(
    products: Products, tile: Tile, cut: tuple[int, int], row: int, traits: KernelTraits, space: SearchSpace,
    device: GpuDevice,
) -> list[Blocking]:  # fmt: skip
    """Those of a tile and a cut of K, in stages of `row` bytes: as many stages as there is room for, with B kept or
    not, or with equal parts of K."""
    if not tile.has_chunks(traits.result_bytes, products.has_row_boxes):
        return []
    if tile.cluster > 1:
        return _in_clusters(products, tile, row, traits, space, device) if row % STAGE_ROW == 0 else []
    is_split, result_bytes, parts, lines = cut[0] > 1, traits.result_bytes, traits.parts, traits.lines
    if not tile.has_registers(traits.is_promoted, result_bytes, is_split, traits.divides_rows):
        return []
    found = []
    multiprocessors, is_across = device.multiprocessors, products.is_across
    of_stages = device.shared_bytes - space.taken, parts, is_split, result_bytes, row, lines
    least, least_beside = (_STAGES_OF_LINES,) * 2 if lines.taps > 1 else (2, _STAGES_BESIDE_KEPT)
    across = _kept_across(products, tile, multiprocessors) if space.may_keep_b and not is_split else 0
    if across == 1 or (across and space.may_keep_across):
        kept = products.longest * tile.b_bytes(parts, row, lines, is_across)
        stages = tile.stages(*of_stages, kept, is_across)
        if stages >= least_beside:
            found.append(_blocking(products, tile, stages, cut, row, traits, kept, across))
            if across == 1:
                return found
    stages = tile.stages(*of_stages, 0, is_across)
    if stages >= least:
        found.append(_blocking(products, tile, stages, cut, row, traits))
        if not is_split and tile in space.shared:
            found += _shared_evenly(found[-1], products, multiprocessors, space.most_tiles)
    return found


def _blocking(
    products: Products, tile: Tile, stages: int, cut: tuple[int, int], row: int, traits: KernelTraits, kept: int = 0,
    across: int = 1,
) -> Blocking:  # fmt: skip
    return Blocking(
        tile, stages, *cut, traits.parts, traits.result_bytes, traits.divides_rows, traits.is_rough, row, kept,
        traits.lines, products.is_across, kept_across=across,
    )  # fmt: skip


def _shared_evenly(
    whole: Blocking, products: Products, multiprocessors: int, most_tiles: int
) -> list[Blocking]:
    """The blocking with equal parts of the K of all tiles for (nearly) all multiprocessors, if whole tiles leave some
    idle, and parts are long enough, and of at most so many tiles."""
    tiles = products.tiles(whole.tile)
    least = multiprocessors - multiprocessors // _LEFT_OVER
    wanted = {max(range(least, multiprocessors + 1), key=lambda count: (math.gcd(count, tiles), count))}
    parts = multiprocessors // tiles
    if most_tiles == 1 and parts > 1 and tiles * parts >= _LEAST_BUSY * multiprocessors:
        wanted.add(tiles * parts)  # parts of one tile each, all of them in step
    stages = tiles * products.longest
    found = []
    for sharers in sorted(wanted):
        in_step = math.gcd(sharers, tiles)
        if tiles % sharers == 0 or stages < _LEAST_PART * sharers or stages // in_step * sharers >= _MAX_INT:
            continue
        if not sharers <= (_MOST_PIECES + 1) * tiles <= (_MOST_PIECES + 1) * most_tiles * sharers:
            continue
        one = replace(whole, sharers=sharers, in_step=in_step)
        if max(one.others(products), one.pieces(products)) <= _MOST_PIECES:
            found.append(one)
    return found


def _kept_across(products: Products, tile: Tile, multiprocessors: int) -> int:
    """Of how many tiles across a thread block may have one, with its columns of all of K, and all tiles below it; 0 if
    tiles have several K, or a thread block has few of them."""
    across = products.tiles_n(tile)
    if not products.groups == len(products.rows) == 1:
        return 0
    if across > 1 and not _LEAST_TURNS * across <= _LEAST_TURNS * multiprocessors <= products.tiles(tile):
        return 0
    return across


def may_be_clusters(products: Products, tile: Tile, multiprocessors: int) -> bool:
    """Whether the clusters of all tiles run at once, and every thread block of one has a part of K."""
    cluster, longest = tile.cluster, products.longest
    at_once = multiprocessors * _AT_ONCE[cluster] // _OF_MULTIPROCESSORS
    if len(products.rows) > 1 or products.tiles(tile) > at_once:
        return False
    return (cluster - 1) * -(-longest // cluster) < longest


def _in_clusters(
    products: Products, tile: Tile, row: int, traits: KernelTraits, space: SearchSpace, device: GpuDevice
) -> list[Blocking]:
    """The blocking of a tile whose K a cluster shares, if all clusters run at once and every block has a part."""
    if not may_be_clusters(products, tile, device.multiprocessors):
        return []
    cluster, length = whole_cut(products, tile)
    parts, result_bytes, is_across = traits.parts, traits.result_bytes, products.is_across
    stages = tile.stages(
        device.shared_bytes - space.taken, parts, False, result_bytes, row, is_across=is_across
    )
    of_stage = tile.stage_bytes(parts, row, is_across=is_across)
    has_room = stages * of_stage >= 4 * tile.m * tile.n  # for the sums
    if stages < 2 or not has_room or not tile.has_registers(traits.is_promoted, result_bytes, False):
        return []
    return [Blocking(tile, stages, cluster, length, parts, result_bytes, row=row, is_across=is_across)]
