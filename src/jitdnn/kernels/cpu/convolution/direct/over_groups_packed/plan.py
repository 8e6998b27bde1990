"""The plan of a correlation vectorized over groups whose small planes are packed into the workspace first.

    for work unit: vector of groups, image                               its planes and filters stay in L2
      transpose the vector's filters, if the unit before had others
      pack x to [channel][pixel][lanes]
      run the tiles of `over_groups` from there to [result][pixel][lanes]         x of the next image is prefetched
      store these to y, transposed where y is channels-first

Channels-first planes are transposed. A row of a small one fills its vector badly, and most taps of a large filter lie
outside of it: vectorized over pixels, both are computed all the same. Transposing costs as much as some taps.
Channels-last planes are only copied: their pixels are so far apart that the caches cannot keep those that the many
taps of a large filter read again and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.direct.over_groups.plan import GroupTile, OverGroups
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.rtcg.isa import ITEM_BYTES, Isa


@dataclass(frozen=True)
class OverGroupsPacked(DirectPlan):
    """A correlation of small groups over small planes; ``tile`` is that of the packed correlation."""

    tile: GroupTile

    @property
    def is_copied(self) -> bool:
        """True if x's channels are neighbours, and its pixels are not."""
        return self.c.x.groups[0] == 1 and self.c.x.space[2] != 1

    @property
    def x_pixels(self) -> int:
        return _x_pixels(self.c)

    @property
    def y_pixels(self) -> int:
        return _y_pixels(self.c)

    @property
    def elements(self) -> int:
        """Of the planes of one vector of groups."""
        return _elements(self.c, self.lanes)

    @cached_property
    def inner(self) -> OverGroups:
        """The correlation of one vector of groups of one image, from packed planes to packed planes."""
        return OverGroups(packed(self.c, self.lanes), self.isa, self.tile)

    @property
    def vectors(self) -> int:
        """Vectors of groups."""
        return ceil_div(self.c.groups[0], self.lanes)

    def rows(self, is_input: bool) -> tuple[int, int]:
        """Rows of a plane that are packed one by one, and pixels of each: one row if they follow each other."""
        views = [self.c.x] if is_input else [self.c.y, *self.c.operands]
        extents = [axis.positions if is_input else axis.results for axis in self.c.axes]
        d, h, w = extents
        dense = list(zip(extents, (h * w, w, 1), strict=True))
        if all(
            extent == 1 or own == stride
            for view in views
            for own, (extent, stride) in zip(view.space, dense, strict=True)
        ):
            return 1, d * h * w
        return d * h, w

    # ---- the loops

    def workspace(self, threads: int) -> int:
        """Bytes: the planes and filters of one vector of groups for each thread."""
        return threads * self.thread_elements * self.item

    @property
    def thread_elements(self) -> int:
        """Elements of the workspace of a thread."""
        size = self.elements + self.inner.filter_size
        return ceil_div(size, 16 * self.lanes) * (16 * self.lanes)

    @cached_property
    def units(self) -> WorkUnits:
        return WorkUnits((("vector", self.vectors), ("image", self.c.batch)))


def fits(c: Correlation, isa: Isa) -> bool:
    """True if pixels of a row or channels are neighbours, and the planes of a vector of groups are small."""
    lanes = isa.lanes(c.dtype)
    is_row = 1 in (c.x.space[2], c.x.groups[0]) and 1 in (c.y.space[2], c.y.groups[0])
    is_whole = len(c.groups) == 1 and lanes > 1
    most = isa.processor.l2(cost.DIRECT_PACKED_VECTOR_L2)
    return is_row and is_whole and _elements(c, lanes) * ITEM_BYTES[c.dtype] <= most


def packed(c: Correlation, lanes: int) -> Correlation:
    """The correlation of one vector of groups of one image, from [channel][pixel][lanes] to [result][pixel][lanes]."""
    _, h, w = (axis.positions for axis in c.axes)
    _, p, q = (axis.results for axis in c.axes)
    x = View(c.dtype, 0, (1,), _x_pixels(c) * lanes, (h * w * lanes, w * lanes, lanes))
    y = View(c.dtype, 0, (1,), _y_pixels(c) * lanes, (p * q * lanes, q * lanes, lanes))
    return replace(c, batch=1, groups=(lanes,), x=x, y=y, operands=())


def _x_pixels(c: Correlation) -> int:
    return math.prod(axis.positions for axis in c.axes)


def _y_pixels(c: Correlation) -> int:
    return math.prod(axis.results for axis in c.axes)


def _elements(c: Correlation, lanes: int) -> int:
    return (c.depth * _x_pixels(c) + c.width * _y_pixels(c)) * lanes
