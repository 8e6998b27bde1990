"""Equal forms of a wgrad that do less: without pixels that read only padding, or with x and dy exchanged; and which
pixels of dy meet a tap inside of the image, for clipping."""

from __future__ import annotations

from dataclasses import replace

from jitdnn.kernels.cpu.correlation import Axis, Correlation, Taps
from jitdnn.kernels.cpu.microkernel.packing import InputRange
from jitdnn.kernels.cpu.schedule.offsets import ceil_div


def valid_pixels(axis: Axis, first: int, last: int) -> tuple[int, int]:
    """Pixels of dy along an axis, [begin, end), between which all lie for which a tap of [first, last] reads inside."""
    lowest, highest = axis.taps.offset + first * axis.taps.shift, axis.taps.offset + last * axis.taps.shift
    begin = min(axis.results, ceil_div(max(0, -highest), axis.step))
    return begin, max(begin, min(axis.results, ceil_div(max(0, axis.positions - lowest), axis.step)))


def valid_fraction(axis: Axis, side: int) -> float:
    """The part of all (pixel, tap) pairs along an axis that remains if each run of ``side`` taps is clipped."""
    taps, total = axis.taps.count, 0
    for first in range(0, taps, side):
        begin, end = valid_pixels(axis, first, min(first + side, taps) - 1)
        total += end - begin
    return total / max(1, axis.results * ceil_div(taps, side))


def without_padding_pixels(c: Correlation) -> Correlation:
    """The same gradient without the pixels at the ends of each axis of dy that read nothing but padding."""
    axes, offset = list(c.axes), c.y.offset
    for i, axis in enumerate(c.axes):
        begin, end = valid_pixels(axis, 0, axis.taps.count - 1)
        taps = replace(axis.taps, offset=axis.taps.offset + begin * axis.step)
        axes[i] = replace(axis, results=end - begin, taps=taps)
        offset += begin * c.y.space[i]
    return replace(c, axes=(axes[0], axes[1], axes[2]), y=replace(c.y, offset=offset))


def swapped(c: Correlation) -> Correlation | None:
    """The transposed filter's gradient, with x and dy exchanged; None unless there is one tap, and it never reads
    padding."""
    if c.taps != 1 or any(axis.is_padded for axis in c.axes):
        return None
    offset = c.x.offset + sum(axis.taps.offset * s for axis, s in zip(c.axes, c.x.space, strict=True))
    d, h, w = (axis.step * stride for axis, stride in zip(c.axes, c.x.space, strict=True))
    x = replace(c.x, space=(d, h, w), offset=offset)
    plain = [Axis(axis.results, axis.results, 1, Taps(1, axis.taps.start)) for axis in c.axes]
    dw = replace(c.w, results=c.w.channels, channels=c.w.results)
    return replace(
        c, depth=c.width, width=c.depth, axes=(plain[0], plain[1], plain[2]), x=c.y, y=x, w=dw
    ).merged()


def image_range(axis: Axis, pixels: int) -> InputRange:
    """The positions inside of the image between the first and the last that the first ``pixels`` pixels read."""
    low = max(0, axis.taps.lowest)
    high = min(axis.positions - 1, axis.taps.lowest + axis.taps.span + (pixels - 1) * axis.step)
    extent = max(1, high - low + 1)
    return InputRange(low, extent, extent)
