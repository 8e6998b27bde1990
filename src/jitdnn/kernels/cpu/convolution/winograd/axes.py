"""One axis of a correlation as tiles of minimal filtering F(m, r).

A tile is m neighbouring results; it reads alpha = m + r - 1 data. F(m, r) wants results and taps that are equally far
apart. Three cases do not fit, and are rewritten:

    dilation d : a tile takes every d-th result, so that its taps are neighbours. The results with the same remainder
                 modulo d are a *residue*; each residue has tiles of its own.
    step s     : the filter is the sum of s *subfilters* with every s-th tap, each of which reads every s-th position.
    many taps  : the filter is the sum of *segments* of neighbouring taps, each of which reads data further on. Tiles of
                 few taps round less and are written out in less code. Segments are subfilters, too.

A subfilter is *short* if it has one tap fewer than the others. With its last tap the point at infinity drops out: the
product there is that of the last tap alone. An axis with a single tap has F(1, 1), the identity.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering import (
    Matrix,
    MinimalFiltering,
    minimal_filtering,
    reaches_beyond,
)
from jitdnn.rtcg.builder import Value


@dataclass(frozen=True)
class TileAxis:
    """One axis as tiles of ``m`` results; ``segments``: into how many the taps are cut where the step is one.

    Result i of tile t of a residue is (t * m + i) * dilation + residue; tile t * dilation + residue of the axis.
    """

    axis: Axis
    m: int
    segments: int = 1

    @functools.cached_property
    def r(self) -> int:
        """Taps of the longest subfilter."""
        return ceil_div(self.axis.taps.count, self.subfilters)

    @property
    def alpha(self) -> int:
        """Points of a tile: as many data, and as many products."""
        return self.m + self.r - 1

    def filtering(self) -> MinimalFiltering:
        return minimal_filtering(self.m, self.r)

    # ---- residues

    @functools.cached_property
    def dilation(self) -> int:
        return self.axis.taps.shift if self.axis.taps.count > 1 and self.axis.step == 1 else 1

    @property
    def spacing(self) -> int:
        """Positions from one datum of a tile to the next."""
        return self.axis.step * self.dilation

    @property
    def tiles_per_residue(self) -> int:
        return ceil_div(ceil_div(self.axis.results, self.dilation), self.m)

    @property
    def tiles(self) -> int:
        return self.tiles_per_residue * self.dilation

    # ---- subfilters

    @functools.cached_property
    def subfilters(self) -> int:
        count = self.axis.taps.count
        return self.segments if self.axis.step == 1 else min(self.axis.step, count) if count > 1 else 1

    @property
    def tap_step(self) -> int:
        """From one tap of a subfilter to the next."""
        return 1 if self.axis.step == 1 else self.subfilters

    @functools.cached_property
    def full_subfilters(self) -> int:
        """Subfilters, the first ones, with ``r`` taps; the others are short."""
        return self.axis.taps.count - (self.r - 1) * self.subfilters

    @functools.cached_property
    def subfilter_kinds(self) -> list[tuple[int, int, bool]]:
        """Subfilters as (first, end, whether they are short)."""
        kinds = [(0, self.full_subfilters, False), (self.full_subfilters, self.subfilters, True)]
        return [kind for kind in kinds if kind[0] < kind[1]]

    def first_tap(self, subfilter: Value) -> Value:
        """The number of a subfilter's first tap."""
        if self.axis.step > 1 or self.segments == 1:
            return subfilter
        return subfilter * self.r - (subfilter - self.full_subfilters).max(0)

    def first_position(self, subfilter: Value) -> Value:
        """Where a subfilter reads first, counted from where the first one does."""
        return self.first_tap(subfilter) * self.dilation

    @property
    def positions(self) -> list[int]:
        """`first_position` of all subfilters."""
        if self.axis.step > 1 or self.segments == 1:
            return list(range(self.subfilters))
        return [
            (i * self.r - max(0, i - self.full_subfilters)) * self.dilation for i in range(self.subfilters)
        ]

    @property
    def last_position(self) -> int:
        """`first_position` of the last subfilter."""
        return self.positions[-1]

    # ---- matrices

    def filter_matrix(self, is_short: bool) -> Matrix:
        """G [alpha, r] of a subfilter."""
        return _filter_matrix(self.m, self.r, is_short)

    def data_matrix(self, is_short: bool) -> Matrix:
        """B^T [alpha, alpha] of a subfilter."""
        return _data_matrix(self.m, self.r, is_short)

    @property
    def spreads(self) -> bool:
        """Whether a NaN or an infinity reaches results of its tile that do not read it.

        Short subfilters take the matrices of full ones, or a zero in place of the tap.
        """
        if self.full_subfilters < self.subfilters:
            return True
        filtering = self.filtering()
        return reaches_beyond(filtering.result, filtering.data, self.r)


class Tiling(NamedTuple):
    """Which two axes of a correlation are tiled; the results of a tile and the segments of the taps on each."""

    tiled: tuple[int, int]
    m: tuple[int, int]
    segments: tuple[int, int] = (1, 1)

    @property
    def untiled(self) -> int:
        """The number of the third axis."""
        return 3 - sum(self.tiled)

    def rows(self, c: Correlation) -> TileAxis:
        return _tile_axis(c.axes[self.tiled[0]], self.m[0], self.segments[0])

    def columns(self, c: Correlation) -> TileAxis:
        return _tile_axis(c.axes[self.tiled[1]], self.m[1], self.segments[1])


# A search prices tens of thousands of plans of a few tilings: each axis and matrix is one object, whose numbers are
# worked out once (constant_matrix.operations knows matrices by their identity).


@functools.lru_cache(maxsize=1024)
def _tile_axis(axis: Axis, m: int, segments: int) -> TileAxis:
    return TileAxis(axis, m, segments)


@functools.lru_cache(maxsize=256)
def _filter_matrix(m: int, r: int, is_short: bool) -> Matrix:
    return _without_last(minimal_filtering(m, r).filter, is_short)


@functools.lru_cache(maxsize=256)
def _data_matrix(m: int, r: int, is_short: bool) -> Matrix:
    return _without_last(minimal_filtering(m, r).data, is_short)


def _without_last(matrix: Matrix, is_short: bool) -> Matrix:
    return tuple(row[:-1] for row in matrix[:-1]) if is_short else matrix


def is_inside(position: Value, extent: int) -> Value:
    """Whether a position is one of ``extent``, and not padding."""
    return (position >= 0) & (position < extent)


def forwards(c: Correlation) -> Correlation:
    """The same with taps that read from low positions to high ones."""
    axes = []
    for axis in c.axes:
        taps = axis.taps
        axes.append(reversed_axis(axis) if taps.count > 1 and taps.shift < 0 else axis)
    return replace(c, axes=(axes[0], axes[1], axes[2]))


def reversed_axis(axis: Axis) -> Axis:
    """The same with its last tap first."""
    taps, last = axis.taps, axis.taps.count - 1
    start, offset = taps.start + last * taps.increment, taps.offset + last * taps.shift
    taps = replace(taps, start=start, increment=-taps.increment, offset=offset, shift=-taps.shift)
    return replace(axis, taps=taps)
