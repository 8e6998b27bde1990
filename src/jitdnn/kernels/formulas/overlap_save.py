"""Overlap-save: the blocks of an axis, and where their elements are modulo the length of the transform.

Along an axis, x[u], y[q] and w[v] meet where u = q + v; with stride, dilation and padding before

    u = 0, 1, ...        q = -padding, -padding + stride, ...        v = 0, dilation, 2 dilation, ...

A transform of ``length`` points convolves modulo its length. Two of the three give the third, in every direction, if no
two elements of one tensor fall on the same point, and no x meets a y at a point that is a tap for another pair. Long
axes are cut into blocks of y (of x for dgrad), each with what it meets of the other tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.problems.convolution import Convolution


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Run:
    """Elements [first, last) of an axis of a tensor; the first is at ``point`` of the transform, the others ``step``
    apart, modulo its length."""

    first: int
    last: int
    point: int
    step: int

    def pieces(self, length: int) -> Iterator[tuple[slice, slice]]:
        """(elements, points) of the parts between which the points begin anew."""
        at, point = self.first, self.point % length
        while at < self.last:
            count = min(self.last - at, ceil_div(length - point, self.step))
            yield slice(at, at + count), slice(point, point + (count - 1) * self.step + 1, self.step)
            at, point = at + count, (point + count * self.step) % length


@dataclass(frozen=True)
class Block:
    """The elements of x and of y in one transform."""

    x: Run
    y: Run


@dataclass(frozen=True)
class FftAxis:
    """An axis of a convolution: extents of x, y and w, stride, padding before, and dilation."""

    x: int
    y: int
    w: int
    stride: int
    padding: int
    dilation: int

    @property
    def span(self) -> int:
        """Distance from the first tap to the last."""
        return (self.w - 1) * self.dilation

    @property
    def taps(self) -> Run:
        return Run(0, self.w, 0, self.dilation)

    def _block(self, first: int, last: int, is_of_x: bool) -> Block:
        """Elements [first, last) of y with the x that they read, or of x with the y that read them."""
        if is_of_x:
            low = ceil_div(max(0, first - self.span + self.padding), self.stride)
            high = min(self.y, (last - 1 + self.padding) // self.stride + 1)
            x_first, x_last, y_first, y_last = first, last, low, max(low, high)
        else:
            y_first, y_last = first, last
            x_first = min(self.x, max(0, y_first * self.stride - self.padding))
            x_last = max(x_first, min(self.x, (y_last - 1) * self.stride - self.padding + self.span + 1))
        # point 0 is the first x of the block; where x and y do not meet, y may be at any point
        meets = x_first < x_last and y_first < y_last
        point = y_first * self.stride - self.padding - x_first if meets else 0
        return Block(Run(x_first, x_last, 0, 1), Run(y_first, y_last, point, self.stride))

    def _length(self, block: Block) -> int:
        """The shortest transform for a block."""
        last = block.y.point + max(0, block.y.last - block.y.first - 1) * self.stride
        size = block.x.last - block.x.first
        return max(self.span + last + 1, size - block.y.point, size, last - block.y.point + 1, self.span + 1)

    def blocks(self, length: int | None, is_of_x: bool) -> list[Block]:
        """The blocks, of x or of y, for transforms of ``length``; one block if it is None."""
        extent = self.x if is_of_x else self.y
        size = extent
        if length is not None:
            step = 1 if is_of_x else self.stride
            size = max(1, min(extent, (length - self.span - 1) // step + 1))
        return [self._block(first, min(extent, first + size), is_of_x) for first in range(0, extent, size)]

    def shortest(self, is_of_x: bool) -> int:
        """The length of the transform that holds the whole axis at once."""
        return max(self._length(block) for block in self.blocks(None, is_of_x))


def axes_of(problem: Convolution) -> tuple[FftAxis, ...]:
    """The axes of space of a convolution."""
    p = problem
    extents = zip(p.x.shape[2:], p.y.shape[2:], p.w.shape[2:], strict=True)
    attributes = zip(p.stride, p.padding, p.dilation, strict=True)
    return tuple(
        FftAxis(x, y, w, stride, padding[0], dilation)
        for (x, y, w), (stride, padding, dilation) in zip(extents, attributes, strict=True)
    )


@dataclass(frozen=True)
class Transforms:
    """The lengths of the transform along the axes, and the blocks of each axis."""

    lengths: tuple[int, ...]
    blocks: tuple[tuple[Block, ...], ...]

    @property
    def points(self) -> int:
        return math.prod(self.lengths)

    @property
    def frequencies(self) -> int:
        """Of a real signal: the others are their conjugates."""
        return math.prod(self.lengths[:-1]) * (self.lengths[-1] // 2 + 1)

    @property
    def count(self) -> int:
        """Blocks over all axes."""
        return math.prod(map(len, self.blocks))


@functools.lru_cache(maxsize=1024)
def smooth_length(least: int) -> int:
    """The shortest length from ``least`` on without prime factors above 5: transforms of such real signals are fast."""
    best = 1 << max(0, least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            length = three << max(0, ceil_div(least, three) - 1).bit_length()
            best = min(best, length)
            three *= 3
        five *= 5
    return best
