"""The order of the tiles and stages of implicit products by warpgroups, and the length of a stage."""

from __future__ import annotations

import math

from jitdnn.kernels.cuda.warpgroup.plan import Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile


def turn_of(products: Products, tile: Tile, multiprocessors: int) -> int:
    """Tiles down of a stride phase before those of the next one, as many for each thread block; 0 for all of them."""
    if not products.takes_turns:
        return 0
    return multiprocessors // math.gcd(multiprocessors, products.tiles_n(tile) * products.groups)


def used_steps(channels: int, row_bytes: int, row: int) -> int:
    """Of the four products along K of a stage of one tap, those that have channels, of which there are few."""
    return -(-channels // 16) if row_bytes == row == STAGE_ROW and channels < 64 else 4


def depths(tile: Tile) -> tuple[int, ...]:
    """How many times `STAGE_ROW` bytes of K stages of a tile may have: of larger ones too few stages would be left."""
    return (1, 2) if tile.m + tile.n <= 128 and tile.cluster == 1 else (1,)
