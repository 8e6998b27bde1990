"""How exact a filter's gradient by minimal filtering is.

Measured on normal numbers, an error is that of a plain sum times `_GROWTH` of each axis, by its alpha; m and r hardly
matter otherwise. A plain sum of n terms has 0.4 sqrt(n) unit roundoffs; here n is what is added in one chain, Kc tiles
and then the blocks of tiles. The transforms themselves add as much as a sum of ten terms.
"""

from __future__ import annotations

import math

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import Axes
from jitdnn.kernels.cpu.schedule.offsets import ceil_div

MAX_KC = 112  # tiles; where the sums are resident there may be some more
_GROWTH = {1: 1.0, 3: 1.25, 4: 1.25, 5: 1.9, 6: 2.1, 7: 3.6, 8: 4.0}
_MARGIN = 2.0


def roundings(axes: Axes, batch: int) -> float:
    """The error to declare, in unit roundoffs of the arithmetic."""
    tiles = batch * math.prod(axis.tiles for axis in axes)
    chain = min(tiles, MAX_KC) + ceil_div(tiles, MAX_KC)
    return _MARGIN * math.prod(_GROWTH[axis.alpha] for axis in axes) * 0.4 * math.sqrt(10 + chain)
