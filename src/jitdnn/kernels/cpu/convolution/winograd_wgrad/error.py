"""How exact a filter's gradient by minimal filtering is.

Measured on normal numbers, an error is to that of a plain sum as `_GROWTH` of each axis, by its number of places: it
hardly matters which of them are taps. A plain sum of n terms has 0.4 sqrt(n) unit roundoffs; here n is what is added in
one chain, a block of tiles and then the sums of blocks. The maps themselves add as much as a sum of ten terms.
"""

from __future__ import annotations

import math

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import FilterAxis
from jitdnn.kernels.cpu.schedule.offsets import ceil_div

Axes = tuple[FilterAxis, FilterAxis, FilterAxis]

MOST_TILES = 112  # of a block; where all tiles are taken at once they may be some more
_GROWTH = {1: 1.0, 3: 1.25, 4: 1.25, 5: 1.9, 6: 2.1, 7: 3.6, 8: 4.0}
_MARGIN = 2.0


def roundings(axes: Axes, batch: int) -> float:
    """The error to declare, in unit roundoffs of the arithmetic."""
    tiles = batch * math.prod(axis.tiles for axis in axes)
    chain = min(tiles, MOST_TILES) + ceil_div(tiles, MOST_TILES)
    return _MARGIN * math.prod(_GROWTH[axis.places] for axis in axes) * 0.4 * math.sqrt(10 + chain)
