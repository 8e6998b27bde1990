"""What a correlation costs that is vectorized over groups of packed planes, and the tile that costs least."""

from __future__ import annotations

from jitdnn.kernels.cpu.convolution.direct.over_groups import cost as over_groups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import OverGroupsPacked, packed
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa, item_bytes

_TRANSPOSE = 140.0  # cycles to transpose a square of sixteen vectors
_COPY = 3.0  # cycles to copy one vector
_SCATTERED = 15.0  # and more where they lie apart, in images that L2 does not keep
_L2_BYTES = 1 << 20
_L3_BYTES = 6 << 20  # of the images that may still be there
_MEMORY_RATE = 8.0  # bytes a cycle of planes that come from memory: transposing waits for them
_UNIT = 200.0  # cycles to begin and end a unit


def choose(c: Correlation, isa: Isa) -> OverGroupsPacked:
    """The cheapest plan."""
    return OverGroupsPacked(c, isa, over_groups.choose(packed(c, isa.lanes(c.dtype)), isa).tile)


def cycles(plan: OverGroupsPacked) -> float:
    """Cycles of one thread for the whole."""
    c, lanes, inner = plan.c, plan.lanes, plan.inner
    squares = copied = 0.0
    for is_input, channels in ((True, c.depth), (False, c.width)):
        rows, pixels = plan.rows(is_input)
        view = c.x if is_input else c.y
        if view.groups[0] == 1 and view.space[2] != 1:
            copied += channels * rows * pixels
        else:
            squares += channels * rows * ceil_div(pixels, lanes)
    filters = inner.filter_size / lanes**2
    unit = over_groups.cycles(inner) + squares * _TRANSPOSE * lanes / 16 + copied * _COPY + _UNIT
    moved = c.batch * plan.vectors * plan.elements * plan.item
    traffic = _SCATTERED * c.batch * plan.vectors * copied if moved > _L2_BYTES else 0.0
    planes = c.batch * c.group_count
    read = planes * c.depth * plan.x_pixels * item_bytes(c.x.dtype)
    if read > _L3_BYTES and not plan.is_copied:
        written = planes * c.width * plan.y_pixels * item_bytes(c.y.dtype)
        traffic += (read + written) / _MEMORY_RATE
    return plan.vectors * (c.batch * unit + filters * _TRANSPOSE) + traffic
