"""Other forms of the same gradient of a filter, and which results each of its taps has to do with."""

from __future__ import annotations

from dataclasses import replace

from jitdnn.kernels.cpu.correlation import Axis, Correlation, Taps
from jitdnn.kernels.cpu.schedule.offsets import ceil_div


def reached(axis: Axis, first: int, last: int) -> tuple[int, int]:
    """The results from the first to the one after the last of which one of the taps [first, last] is inside."""
    lowest, highest = axis.taps.offset + first * axis.taps.shift, axis.taps.offset + last * axis.taps.shift
    begin = min(axis.results, ceil_div(max(0, -highest), axis.step))
    return begin, max(begin, min(axis.results, ceil_div(max(0, axis.positions - lowest), axis.step)))


def share_reached(axis: Axis, side: int) -> float:
    """The share of all products with results that is left when each run of ``side`` taps keeps to those it reaches."""
    taps, total = axis.taps.count, 0
    for first in range(0, taps, side):
        begin, end = reached(axis, first, min(first + side, taps) - 1)
        total += end - begin
    return total / max(1, axis.results * ceil_div(taps, side))


def cropped(c: Correlation) -> Correlation:
    """The same without the results at the ends that read nothing but zeros."""
    axes, offset = list(c.axes), c.y.offset
    for i, axis in enumerate(c.axes):
        begin, end = reached(axis, 0, axis.taps.count - 1)
        taps = replace(axis.taps, offset=axis.taps.offset + begin * axis.step)
        axes[i] = replace(axis, results=end - begin, taps=taps)
        offset += begin * c.y.space[i]
    return replace(c, axes=(axes[0], axes[1], axes[2]), y=replace(c.y, offset=offset))


def exchanged(c: Correlation) -> Correlation | None:
    """With a single tap that is always inside: x and y in each other's place, for the transposed filter."""
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


def from_inside(axis: Axis, results: int) -> Axis:
    """An axis of a single result that reads what ``results`` results, all of them, read of the input."""
    lowest = max(0, axis.taps.lowest)
    highest = min(axis.positions - 1, axis.taps.lowest + axis.taps.span + (results - 1) * axis.step)
    if highest <= lowest:
        return Axis(1, axis.positions, 1, Taps(1, 0, 1, lowest))
    return Axis(1, axis.positions, 1, Taps(2, 0, 1, lowest, highest - lowest))
