"""What a filter's gradient costs that is vectorized over pixels, and the tile that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.plan import reads_of
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels.plan import WgradOverPixels, WgradPixelTile
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.isa import Isa

_BURST = 0.04  # longer for each further row of x that is read at once, where memory is what takes long
_SHUFFLED = 5.0  # load slots for each vector out of which others are shuffled: that delays the sums
_GATHERED = 4.5  # load slots for each lane that is gathered
_SLOWER = 1.2  # than counted: loads that cross cache lines, iterations of the loops
_HEIGHTS = (1, 2, 3, 4, 7)  # rows of dy at once; many images have a multiple of seven
_UNROLLED = 200  # multiply-adds of one step along the row
_FINISH = 4.0  # cycles to add up and store one sum
_PASS = 30.0  # cycles to begin and end a pass
_CODE = 40_000  # multiply-adds of code that cost as much as the whole computation


def choose(c: Correlation, isa: Isa) -> WgradOverPixels:
    """The cheapest plan."""
    return min(_candidates(c, isa), key=_group_cycles)


def cycles(plan: WgradOverPixels) -> float:
    """Cycles of one thread for the whole."""
    return plan.c.group_count * _group_cycles(plan)


def _candidates(c: Correlation, isa: Isa) -> Iterator[WgradOverPixels]:
    _, rows, columns = (axis.taps.count for axis in c.axes)
    smallest = WgradOverPixels(c, isa, WgradPixelTile(1, 1, 1, 1, 1))
    least = smallest.span(0).registers
    for taps in {ceil_div(columns, parts) for parts in range(ceil_div(columns, smallest.lanes), columns + 1)}:
        for channels in (n for n in (1, 2, 3, 4) if c.depth % n == 0):
            for height in _HEIGHTS if c.width <= 2 else (1,):
                for tile_rows in (n for n in range(1, rows + 1) if rows % n == 0):
                    room = isa.registers - least - channels - (2 if height > 1 else 0)
                    most = room // (channels * tile_rows * taps + height)
                    for results in block_sizes(c.width, most):
                        tile = WgradPixelTile(results, channels, tile_rows, taps, height)
                        plan = WgradOverPixels(c, isa, tile)
                        if tile.sums * height <= _UNROLLED and plan.fits_stack:
                            yield plan
    yield smallest


def _group_cycles(plan: WgradOverPixels) -> float:
    """Cycles of one group, for all images."""
    c, tile, processor = plan.c, plan.tile, plan.processor
    full, rest = divmod(c.width, tile.results)
    each = full * _pass_cycles(plan)
    if rest:
        each += _pass_cycles(plan.narrowed(rest))
    passes = math.prod(plan.filter_tiles) * ceil_div(c.axes[2].taps.count, tile.taps)
    counted = max(each * passes, _traffic(plan)) * (c.depth // tile.channels)
    x = c.depth * math.prod(axis.positions for axis in c.axes)
    dy = c.width * math.prod(axis.results for axis in c.axes)
    size = c.batch * plan.item * (x + dy)
    if size * c.group_count <= processor.l3(cost.DIRECT_WGRAD_IMAGES_L3):
        return counted
    # what comes from memory is not hidden behind the products
    memory = size / (cost.DIRECT_WGRAD_MEMORY_RATE * processor.memory_rate)
    if 2 * memory > counted:
        memory *= 1 + _BURST * (tile.height - 1) * c.axes[1].step
    return counted + memory


def _traffic(plan: WgradOverPixels) -> float:
    """Cycles to bring what the units of one block of channels read from beyond L2."""
    c, tile, processor = plan.c, plan.tile, plan.processor
    x = c.batch * math.prod(axis.positions for axis in c.axes) * plan.item
    dy = c.batch * math.prod(axis.results for axis in c.axes) * plan.item
    if x * c.depth + dy * c.width < processor.l2(cost.DIRECT_WGRAD_IMAGES_L2):
        return 0.0
    read = x * tile.channels * ceil_div(c.width, tile.results) + dy * c.width
    return read / (cost.DIRECT_WGRAD_PIXELS_L3_RATE * processor.l3_rate)


def _pass_cycles(plan: WgradOverPixels) -> float:
    """Cycles of one tile of taps, for all images."""
    c, tile = plan.c, plan.tile
    per_pass = min(c.axes[1].results, plan.row_block)
    blocks, rest = divmod(per_pass, tile.height)  # rows that are left over are done one by one
    steps = blocks * _step_cycles(plan, tile.height) + rest * _step_cycles(plan, 1)
    rows = plan.vectors * steps + 2.0 * tile.sums + _PASS
    passes = c.batch * c.axes[0].results * c.axes[1].results / max(1, per_pass)
    return (passes * rows + tile.sums * _FINISH) * (1 + 3 * tile.sums * tile.height / _CODE)


def _step_cycles(plan: WgradOverPixels, height: int) -> float:
    """Cycles of one vector of ``height`` rows of dy."""
    tile, y, down = plan.tile, plan.c.y.space[2], plan.c.axes[1]
    lines = len(reads_of(down, height, tile.rows))
    gradient = 1.0 if y == 1 else 2.0 * plan.lanes
    loads = lines * tile.channels * tile.taps * _slots(plan) + tile.results * height * gradient
    return (max(tile.sums * height / 2, loads / 2, 4.0 * height) + 1.0) * _SLOWER


def _slots(plan: WgradOverPixels) -> float:
    """Load slots that a vector of x takes."""
    span = plan.span(0)
    if span.registers > 1:
        return _SHUFFLED * span.step
    return span.slots if abs(span.step * span.stride) <= 1 else _GATHERED * plan.lanes
