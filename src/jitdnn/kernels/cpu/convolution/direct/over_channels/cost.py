"""What a correlation costs that is vectorized over channels, and the tile that costs least."""

from __future__ import annotations

from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.over_channels.plan import ChannelTile, OverChannels
from jitdnn.kernels.cpu.convolution.direct.plan import merges_row_taps
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import image_bytes, is_filter_loop_outer
from jitdnn.rtcg.isa import Isa, item_bytes

_STORE = 3.0  # cycles to finish one vector of results
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_GATHERED_LANE = 2.0  # load slots (two a cycle) of one lane of a gather
_UNALIGNED = 1.75  # load slots of a vector that may touch two cache lines
_REDUCE = 2.0  # cycles to add up the lanes of one sum
_ITERATION = 3.0  # load slots that an iteration of the loop over the channels is worth
_RETURN = 8.0  # cycles to wait for a line of results that lies apart from those written before
_TILE = 30.0  # cycles to begin and end a tile
_MOST_MASKS = 7  # pixels at the end of a row have a mask each: no more than there are registers for them
_NEAR_LATENCY, _FAR_LATENCY = (
    2.0,
    3.0,
)  # cycles that a vector waits for a filter in the nearer part of L3, and in the rest
_MEMORY_LATENCY = 7.0  # of a larger one
_PACK = 0.5  # cycles to bring one element of it there


def choose(c: Correlation, isa: Isa) -> OverChannels:
    """The cheapest plan."""
    return min(_candidates(c, isa), key=_row_cycles)


def cycles(plan: OverChannels) -> float:
    """Cycles of one thread for the whole."""
    c = plan.c
    rows = c.batch * c.group_count * c.axes[0].results * c.axes[1].results
    return rows * _row_cycles(plan) + _reread_cycles(plan)


def _reread_cycles(plan: OverChannels) -> float:
    """Cycles to read images again for each block of the filter, where that is the outer loop and the L2 cache holds no
    image."""
    c, processor = plan.c, plan.processor
    image = image_bytes(c)
    if image <= processor.l2(cost.REPEATED_OPERAND_L2) or not is_filter_loop_outer(c, processor):
        return 0.0
    blocks = c.batch * c.group_count * (ceil_div(c.width, plan.tile_width) - 1)
    return blocks * image / (cost.DIRECT_REREAD_L3_RATE * processor.l3_rate)


def _candidates(c: Correlation, isa: Isa) -> Iterator[OverChannels]:
    lanes = isa.lanes(c.dtype)
    most = max(1, c.axes[2].results)
    for vectors in range(1, min(4, ceil_div(c.width, lanes)) + 1):
        for pixels in range(1, min(most, (isa.registers - 1 - vectors) // vectors) + 1):
            plan = OverChannels(c, isa, ChannelTile(pixels, vectors, "broadcast"))
            yield plan
            if c.w.results != 1 and plan.panel_size * plan.item <= isa.processor.l1(cost.DIRECT_PANEL_L1):
                yield OverChannels(c, isa, ChannelTile(pixels, vectors, "panel"))
    if c.x.channels != 1 or c.w.channels != 1:
        return
    for results in range(1, min(8, c.width, lanes) + 1):
        room = (isa.registers - 1 - results) // results
        for pixels in range(1, min(most, room, _MOST_MASKS) + 1):
            yield OverChannels(c, isa, ChannelTile(pixels, results, "dot"))


def _row_cycles(plan: OverChannels) -> float:
    """Cycles of one row of one slice of one group of one image."""
    c = plan.c
    full, rest = divmod(c.width, plan.tile_width)
    total = full * _tile_cycles(plan)
    if rest:
        total += _tile_cycles(plan.narrowed(rest))
    total *= plan.row_tiles
    total += _returning_lines(plan) * _RETURN
    if plan.tile.kind == "panel":
        blocks = ceil_div(c.width, plan.tile_width) * ceil_div(plan.row_tiles, plan.run_tiles)
        total += blocks * plan.panel_size * _PACK / plan.unit_rows
    return total


def _returning_lines(plan: OverChannels) -> int:
    """Lines of a row's results that are written by a unit which goes through too many pixels for each block of
    channels, so that every block of channels finds other lines and pages near."""
    c, columns = plan.c, plan.c.axes[2].results
    pixels = plan.unit_rows * min(columns, plan.run_tiles * plan.tile.pixels)
    position = c.width * sum(item_bytes(v.dtype) for v in (c.y, *c.operands) if v.batch or any(v.space))
    if c.y.channels != 1 or c.width <= plan.tile_width:
        return 0
    if pixels * position <= plan.processor.l2(cost.GEMM_BLOCK_RESULTS_L2):
        return 0
    return columns * position // plan.processor.line_bytes


def _tile_cycles(plan: OverChannels) -> float:
    c, tile, lanes = plan.c, plan.tile, plan.lanes
    taps = c.taps // (c.axes[2].taps.count if merges_row_taps(c, lanes) else 1)
    bytes_read = plan.tile_width * c.depth * c.taps * plan.item
    beyond_l1 = 1.0 if bytes_read <= plan.processor.l1(cost.DIRECT_FILTER_TILE_L1) else 1.5
    sums = tile.pixels * tile.results
    least = 4.0
    if tile.is_dot:
        steps = taps * ceil_div(plan.tap_channels, lanes)
        is_aligned = plan.tap_channels % lanes == 0
        loads = (tile.pixels + beyond_l1 * tile.results) * (1.0 if is_aligned else _UNALIGNED)
        finish = sums * _REDUCE + tile.pixels * _STORE
        vectors = tile.pixels + tile.results
        if vectors * plan.tap_channels * plan.item > plan.processor.l1(cost.DIRECT_TILE_L1):
            # neither the pixels nor the filter of a tile are still there for the next one
            near = vectors * plan.isa.vector_bytes / (cost.DIRECT_L2_RATE * plan.processor.l2_rate)
            least = max(least, near)
    else:
        steps = c.depth * c.taps
        vector = 1.0 if tile.kind == "panel" or c.w.channels % lanes == 0 else _UNALIGNED
        if tile.kind == "broadcast" and c.w.results != 1:
            vector = _GATHERED_LANE * lanes
        loads = tile.results * vector * beyond_l1 + tile.pixels
        finish = sums * (_STORE if c.y.channels == 1 else _SCATTERED_LANE * lanes)
    step = max(sums / 2, (loads + _ITERATION) / 2, least)
    if tile.kind == "broadcast" and c.w.results == 1:
        step += tile.results * _filter_latency(plan)
    return steps * step + finish + _TILE + 4.0 * taps


def _filter_latency(plan: OverChannels) -> float:
    """Cycles that a vector of the filter waits: its channels lie far apart, and the hardware does not prefetch them."""
    c, processor = plan.c, plan.processor
    size = c.width * c.depth * c.taps * plan.item
    if size <= processor.l2(cost.DIRECT_FILTER_L2):
        return 0.0
    if size <= processor.l3(cost.DIRECT_NEAR_FILTER_L3):
        return _NEAR_LATENCY
    return _FAR_LATENCY if size <= processor.l3(cost.DIRECT_FILTER_L3) else _MEMORY_LATENCY
