"""What a correlation costs that is vectorized over groups of packed planes, and the tile that costs least."""

from __future__ import annotations

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.over_groups import cost as over_groups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import OverGroupsPacked, packed
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa, item_bytes

_TRANSPOSE = 140.0  # cycles to transpose a square of sixteen vectors
_COPY = 3.0  # cycles to copy one vector
_SCATTERED = 15.0  # and more where they lie apart, in images that L2 does not keep
_UNIT = 200.0  # cycles to begin and end a unit


def choose(c: Correlation, isa: Isa) -> OverGroupsPacked:
    """The cheapest plan."""
    return OverGroupsPacked(c, isa, over_groups.choose(packed(c, isa.lanes(c.dtype)), isa).tile)


def cycles(plan: OverGroupsPacked) -> float:
    """Cycles of one thread for the whole."""
    c, lanes, inner, processor = plan.c, plan.lanes, plan.inner, plan.processor
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
    is_far = moved > processor.l2(cost.DIRECT_PACKED_PLANES_L2)
    traffic = _SCATTERED * c.batch * plan.vectors * copied if is_far else 0.0
    planes = c.batch * c.group_count
    read = planes * c.depth * plan.x_pixels * item_bytes(c.x.dtype)
    if read > processor.l3(cost.DIRECT_PACKED_IMAGES_L3) and not plan.is_copied:
        written = planes * c.width * plan.y_pixels * item_bytes(c.y.dtype)
        traffic += (read + written) / (cost.DIRECT_PACKED_MEMORY_RATE * processor.memory_rate)
    return plan.vectors * (c.batch * unit + filters * _TRANSPOSE) + traffic
