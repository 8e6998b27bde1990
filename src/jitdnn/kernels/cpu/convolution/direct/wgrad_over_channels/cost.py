"""What a filter's gradient costs that is vectorized over channels, and the tile that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels.plan import WgradChannelTile, WgradOverChannels
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa

_GATHERED_LANE = 5.0  # load slots (two a cycle) of one lane of a gather
_UNALIGNED = 1.75  # load slots of a vector that may touch two cache lines
_ITERATION = 2.0  # load slots that an iteration of the loop over the pixels is worth
_PASS = 30.0  # cycles to begin and end a pass
_FINISH = 4.0  # cycles to store one vector of sums


def choose(c: Correlation, isa: Isa) -> WgradOverChannels:
    """The cheapest plan."""
    return min(_candidates(c, isa), key=_group_cycles)


def cycles(plan: WgradOverChannels) -> float:
    """Cycles of one thread for the whole."""
    return plan.c.group_count * _group_cycles(plan)


def _candidates(c: Correlation, isa: Isa) -> Iterator[WgradOverChannels]:
    least = WgradOverChannels(c, isa, WgradChannelTile(1, 1))
    for vectors in range(1, min(4, ceil_div(least.tap_channels, least.lanes)) + 1):
        most = (isa.registers - 1 - vectors) // vectors
        for results in {ceil_div(c.width, blocks) for blocks in range(1, c.width + 1)}:
            if results <= most:
                yield WgradOverChannels(c, isa, WgradChannelTile(results, vectors))


def _group_cycles(plan: WgradOverChannels) -> float:
    """Cycles of one group, for all images."""
    full, rest = divmod(plan.c.width, plan.tile.results)
    passes = full * _pass_cycles(plan)
    if rest:
        passes += _pass_cycles(plan.narrowed(rest))
    blocks = plan.channel_blocks
    return blocks * max(passes * math.prod(plan.taps), _traffic(plan) / blocks)


def _pass_cycles(plan: WgradOverChannels) -> float:
    """Cycles of one tap and one block of channels, for all images."""
    c, tile = plan.c, plan.tile
    sums = tile.sums
    if c.x.channels == 1:
        slots = 1.0 if c.depth % plan.lanes == 0 else _UNALIGNED
    else:
        slots = _GATHERED_LANE * plan.lanes
    step = max(sums / 2, (tile.vectors * slots + tile.results + _ITERATION) / 2, 4.0)
    rows = c.batch * c.axes[0].results * c.axes[1].results
    row = c.axes[2].results * step + (2.0 * sums + _PASS) / plan.row_block + 6.0
    return rows * row + sums * _FINISH


def _traffic(plan: WgradOverChannels) -> float:
    """Cycles to bring what the units read from beyond L2."""
    c, tile, processor = plan.c, plan.tile, plan.processor
    x = c.batch * math.prod(axis.positions for axis in c.axes) * c.depth * plan.item
    dy = c.batch * math.prod(axis.results for axis in c.axes) * c.width * plan.item
    if x + dy < processor.l2(cost.DIRECT_WGRAD_IMAGES_L2):
        return 0.0
    lines = min(c.width, tile.results + plan.lanes) / tile.results  # whole cache lines are brought
    read = x * ceil_div(c.width, tile.results) + dy * plan.channel_blocks * lines
    return read / (cost.DIRECT_WGRAD_CHANNELS_L3_RATE * processor.l3_rate)
