"""Products with swapped operands: which are candidates."""

from __future__ import annotations

from jitdnn.kernels.cuda.convolution.few_channels.swapped import swapped
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution

_DTYPES = ("bf16", "f16")
_FILLED = 0.9  # of the rows of tiles, that are there at least where pixels are columns
_FEW = 32  # channels of dy, which leave half of the rows of every tile empty


def filled(tiles: tuple[Tile, ...], channels: int) -> tuple[Tile, ...]:
    """Those whose rows are nearly all there where they are so many channels of the result."""
    return tuple(tile for tile in tiles if channels >= _FILLED * -(-channels // tile.m) * tile.m)


def exchanged(problem: Convolution) -> Convolution | None:
    """The filter's gradient whose dy is x and whose x is dy, where dy has few channels and x more; None elsewhere.

    Channels of x are rows of the product then, and those of dy its columns, of which a tile may have 32.
    """
    has_few = problem.k <= _FEW < problem.c and problem.groups == 1
    if problem.direction != "bwd_filter" or not has_few or problem.x.dtype not in _DTYPES:
        return None
    return swapped(problem)
