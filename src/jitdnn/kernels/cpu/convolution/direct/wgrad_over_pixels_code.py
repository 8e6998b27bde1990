"""The code of `filter_pixel_lanes`: one pass over some rows of dy for one tile of taps, and the end of its sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.cpu.convolution.direct.over_channels_code import add_up
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.row_vectors import Masks, RowVector
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import WgradOverPixels, WgradPixelTile

_ENDS = 4  # vectors at the ends of a row that may be versions of their own


def trace_pass(
    module: Module, name: str, plan: WgradOverPixels, tile: WgradPixelTile, taps: range
) -> Function:
    """Trace ``name(x, dy, sums, d, h, end, i, r, asks, ahead_x, ahead_dy)``: rows [h, end) of slice d of dy, for the
    taps from (i, r) on and in ``taps`` along a row.

    ``x`` and ``dy`` point to the first channel of the tile in an image; ``sums`` to [result][channel][row of the
    filter][tap][lanes], which are added to. The first pass over some rows ``asks`` for the rows that come after
    them, which are as far ahead as the last two say.
    """
    c = plan.c
    names = ("d", "h", "end", "i", "r", "asks", "ahead_x", "ahead_dy")
    with module.function(name, x=c.x.dtype, dy=c.y.dtype, sums=c.dtype, **dict.fromkeys(names)) as (
        k, (x, dy, sums, d, h, end, i, r, asks, *ahead), function,
    ):  # fmt: skip
        code = _Pass(k, plan, tile, taps, r, asks, ahead)
        at = d * c.axes[0].step + c.axes[0].taps.offset + i * c.axes[0].taps.shift
        with when(k, inside(c.axes[0], at, 1)):
            for number, register in enumerate(code.sums.values()):
                register.set(sums.load(number * plan.lanes, plan.lanes))
            code.rows(x + at * c.x.space[0], dy + d * c.y.space[0], h, end)
            for number, register in enumerate(code.sums.values()):
                sums.store(register.get(), number * plan.lanes)
    return function


class _Pass:
    def __init__(
        self, k: Builder, plan: WgradOverPixels, tile: WgradPixelTile, taps: range, first_row: Value, asks: Value,
        ahead: Sequence[Value],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.tile, self.c, self.lanes = k, plan, tile, plan.c, plan.lanes
        self.first_row = first_row if tile.rows < self.c.axes[1].taps.count else k.integer(0)
        self.asks, self.ahead = asks, ahead
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (tile.results, tile.channels, tile.rows, len(taps))
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        axis = self.c.axes[2]
        self.offsets = [axis.taps.offset + tap * axis.taps.shift for tap in taps]
        self.spans = [plan.span(offset) for offset in self.offsets]
        self.gradient = RowVector(1, self.c.y.space[2], axis.results, self.lanes)
        # the vectors that are whole, for dy and for every tap
        width = self.lanes * axis.step
        ends = [span.positions - offset for span, offset in zip(self.spans, self.offsets, strict=True)]
        whole = [(end - 1 + axis.step) // width if end > 0 else 0 for end in ends]
        self.last = max(0, min(axis.results // self.lanes, *whole))
        self.first = min(max(-(-max(0, -min(self.offsets)) // width), 0), self.last)

    def rows(self, plane: Pointer, dy: Pointer, h: Value, end: Value) -> None:
        """Rows of dy, ``height`` at a time."""
        height = self.tile.height
        done = h
        if height > 1:
            done = h + (end - h) // height * height
            for row in self.k.range(h, done, height):
                self._row(plane, dy, row, height)
        for row in self.k.range(done, end):
            self._row(plane, dy, row, 1)

    def _row(self, plane: Pointer, dy: Pointer, h: Value, height: int) -> None:
        """Some rows of dy, vector by vector."""
        k, vectors = self.k, self.plan.vectors
        for v in k.range(self.first, self.last):
            self._step(plane, dy, h, height, v, (self.first, self.last - 1))
        ends = [*range(self.first), *range(self.last, vectors)]
        if len(ends) <= _ENDS:
            for v in ends:
                self._step(plane, dy, h, height, k.integer(v), (v, v))
            return
        for some in (range(self.first), range(self.last, vectors)):
            for v in k.range(some.start, some.stop):
                self._step(plane, dy, h, height, v, (some.start, some.stop - 1))

    def _ask(self, plane: Pointer, dy: Pointer, h: Value, height: int, v: Value) -> None:
        """Prefetch what the same vector of the same rows of the next block will read first."""
        x, y, axis = self.c.x, self.c.y, self.c.axes[1]
        step = self.c.axes[2].step
        corner = plane + (h * (axis.step * x.space[1]) + self.ahead[0] + v * (step * self.lanes * x.space[2]))
        for channel, row in itertools.product(range(self.tile.channels), range(height * axis.step)):
            for line in range(step):
                place = channel * x.channels + row * x.space[1] + line * self.lanes * x.space[2]
                corner.prefetch(place)
        corner = dy + (h * y.space[1] + self.ahead[1] + v * (self.lanes * y.space[2]))
        for result, row in itertools.product(range(self.tile.results), range(height)):
            corner.prefetch(result * y.channels + row * y.space[1])

    def _step(
        self, plane: Pointer, dy: Pointer, h: Value, height: int, v: Value, known: tuple[int, int]
    ) -> None:
        """One vector of pixels of each row; ``known`` is the least and the greatest number that v can be."""
        k, c, tile, axis = self.k, self.c, self.tile, self.c.axes[1]
        with k.when(self.asks != 0):
            self._ask(plane, dy, h, height, v)
        place, bounds = v * self.lanes, [number * self.lanes for number in known]
        mask = self.gradient.masks(k, place, bounds[0], bounds[1])
        masks = [
            span.masks(
                k, place * span.step + offset, bounds[0] * span.step + offset, bounds[1] * span.step + offset
            )
            for span, offset in zip(self.spans, self.offsets, strict=True)
        ]
        gradients = {
            (result, row): self.gradient.load(
                dy + (result * c.y.channels + (h + row) * c.y.space[1]), place, mask
            )
            for result, row in itertools.product(range(tile.results), range(height))
        }
        reach: dict[int, list[tuple[int, int]]] = {}
        for row, tap in itertools.product(range(height), range(tile.rows)):
            reach.setdefault(row * axis.step + tap * axis.taps.shift, []).append((row, tap))
        first = h * axis.step + axis.taps.offset + self.first_row * axis.taps.shift
        for at, pairs in sorted(reach.items()):
            with when(k, inside(axis, first + at, 1)):
                row_of_x = plane + (first + at) * c.x.space[1]
                for channel in range(tile.channels):
                    image = row_of_x + channel * c.x.channels
                    self._multiply(image, place, channel, pairs, masks, gradients)

    def _multiply(
        self, image: Pointer, place: Value, channel: int, pairs: Sequence[tuple[int, int]],
        masks: Sequence[Masks], gradients: dict[tuple[int, int], Value],
    ) -> None:  # fmt: skip
        """One row of x, at every tap of the row, times the rows of dy that meet it."""
        for tap, (span, offset) in enumerate(zip(self.spans, self.offsets, strict=True)):
            vector = span.load(image, place * span.step + offset, masks[tap])
            for (row, r), result in itertools.product(pairs, range(self.tile.results)):
                register = self.sums[result, channel, r, tap]
                register.set(self.k.fma(vector, gradients[result, row], register.get()))


def trace_finish(
    module: Module, name: str, plan: WgradOverPixels, tile: WgradPixelTile, taps: range
) -> Function:
    """Trace ``name(sums, dw, scale)``: add up the lanes of the sums of a pass and store them.

    ``dw`` points to the first tap of the tile's first row of taps, ``scale`` to alpha and beta.
    """
    c, lanes = plan.c, plan.lanes
    with module.function(name, sums=c.dtype, dw=c.w.dtype, scale="f64") as (k, (sums, dw, scale), function):
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        blend = Blend(k, alpha, beta, None)
        steps = [axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True)]
        wide = 1 << (len(taps) - 1).bit_length()
        mask = None if wide == len(taps) else k.mask(len(taps), wide)
        for result in k.range(tile.results):
            for channel in k.range(tile.channels):
                for row in k.range(tile.rows):
                    number = ((result * tile.channels + channel) * tile.rows + row) * len(taps)
                    total = add_up(k, [sums.load((number + i) * lanes, lanes) for i in range(len(taps))])
                    place = result * c.w.results + channel * c.w.channels + row * steps[1]
                    blend.store(dw + (place + taps.start * steps[2]), steps[2], total, [], mask)
    return function
