"""Where the positions of a convolution lie in the circles that are transformed.

Along an axis, x[u], y[q] and w[v] meet where u = q + v; with stride, dilation and padding before

    u = 0, 1, ...        q = -before, -before + stride, ...        v = 0, dilation, 2 dilation, ...

On a circle of ``length`` positions two of them give the third in every direction, if no two positions of one of
them fall together, and no x meets a y by a position of the circle that is a tap for another pair. Long axes are
cut into blocks of results (of y's positions, for a filter's gradient), each with what it sees of the other tensor:
overlap-save.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.kernels.cpu.schedule.offsets import ceil_div


@dataclass(frozen=True)
class Run:
    """Elements [first, last) of an axis of a tensor; the first is at position ``place`` of the circle, the others
    ``step`` apart, around the circle."""

    first: int
    last: int
    place: int
    step: int

    def pieces(self, length: int) -> Iterator[tuple[slice, slice]]:
        """(elements, positions) of the parts between which the circle begins anew."""
        at, place = self.first, self.place % length
        while at < self.last:
            count = min(self.last - at, ceil_div(length - place, self.step))
            yield slice(at, at + count), slice(place, place + (count - 1) * self.step + 1, self.step)
            at, place = at + count, (place + count * self.step) % length


@dataclass(frozen=True)
class Block:
    """What of x and y is on one circle."""

    x: Run
    y: Run


@dataclass(frozen=True)
class CircleAxis:
    """An axis of a convolution: extents of x, y and w, and its attributes."""

    x: int
    y: int
    w: int
    stride: int
    before: int
    dilation: int

    @property
    def reach(self) -> int:
        """Distance from the first tap to the last."""
        return (self.w - 1) * self.dilation

    @property
    def taps(self) -> Run:
        return Run(0, self.w, 0, self.dilation)

    def _block(self, first: int, last: int, cuts_x: bool) -> Block:
        """Elements [first, last) of y with what they see of x, or of x with the y that see them."""
        if cuts_x:
            low = ceil_div(max(0, first - self.reach + self.before), self.stride)
            high = min(self.y, (last - 1 + self.before) // self.stride + 1)
            u0, u1, p0, p1 = first, last, low, max(low, high)
        else:
            p0, p1 = first, last
            u0 = min(self.x, max(0, p0 * self.stride - self.before))
            u1 = max(u0, min(self.x, (p1 - 1) * self.stride - self.before + self.reach + 1))
        # position 0 of the circle is the first that is seen of x; where nothing meets, any place will do
        place = p0 * self.stride - self.before - u0 if u0 < u1 and p0 < p1 else 0
        return Block(Run(u0, u1, 0, 1), Run(p0, p1, place, self.stride))

    def _length(self, block: Block) -> int:
        """The shortest circle for a block."""
        last = block.y.place + max(0, block.y.last - block.y.first - 1) * self.stride
        size = block.x.last - block.x.first
        return max(
            self.reach + last + 1, size - block.y.place, size, last - block.y.place + 1, self.reach + 1
        )

    def blocks(self, length: int | None, cuts_x: bool) -> list[Block]:
        """The blocks for circles of ``length``; one block if it is None."""
        extent = self.x if cuts_x else self.y
        size = extent
        if length is not None:
            step = 1 if cuts_x else self.stride
            size = max(1, min(extent, (length - self.reach - 1) // step + 1))
        return [self._block(first, min(extent, first + size), cuts_x) for first in range(0, extent, size)]

    def shortest(self, cuts_x: bool) -> int:
        """The length of the circle that holds the whole axis at once."""
        return max(map(self._length, self.blocks(None, cuts_x)))


@dataclass(frozen=True)
class Circles:
    """The lengths of the circles along the axes, and the blocks of each axis."""

    lengths: tuple[int, ...]
    blocks: tuple[tuple[Block, ...], ...]

    @property
    def positions(self) -> int:
        return math.prod(self.lengths)

    @property
    def frequencies(self) -> int:
        """Of a real signal: the others are their conjugates."""
        return math.prod(self.lengths[:-1]) * (self.lengths[-1] // 2 + 1)

    @property
    def count(self) -> int:
        """Blocks over all axes."""
        return math.prod(map(len, self.blocks))


def butterflies(length: int) -> float:
    """Operations of a real transform, as such are counted: 2.5 n log2 n."""
    return 2.5 * length * math.log2(max(2, length))


@functools.lru_cache(maxsize=1024)
def smooth_length(least: int) -> int:
    """The shortest length from ``least`` on without prime factors above 5: transforms of such real signals are fast."""
    best = 1 << max(0, least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            whole = three << max(0, ceil_div(least, three) - 1).bit_length()
            best = min(best, whole)
            three *= 3
        five *= 5
    return best
