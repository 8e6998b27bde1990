"""One axis of a filter's gradient as tiles of minimal filtering F(m, r).

    dw[tap] = sum over results p of  dy[p] * x[step * p + offset + dilation * tap]

Here the m results of F(m, r) are neighbouring taps of the filter, and its r taps are neighbouring results p: a tile
takes m taps and r elements of dy, and reads alpha = m + r - 1 elements of x. F(m, r) wants taps and results that are
equally far apart in x. Where they are not (a stride, a dilation), a tile takes those that are, at the least common
multiple of both distances:

    subfilter : up to m taps that lie one such distance apart. Each one has sums of its own. A *short* one has fewer
                taps, and no product at the last point, that of infinity.
    residue   : the results that lie one such distance apart, a row of tiles. All residues enter the same sums.
    unit      : neighbouring tiles of a residue, which are packed and transformed together
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.minimal_filtering import MinimalFiltering, minimal_filtering
from jitdnn.rtcg.builder import Value


@dataclass(frozen=True)
class WgradAxis:
    """An axis in tiles of ``m`` taps and ``r`` results, of which ``unit_tiles`` are a unit."""

    axis: Axis
    m: int = 1
    r: int = 1
    unit_tiles: int = 1

    @cached_property
    def is_plain(self) -> bool:
        """True if nothing is saved here: every tap is a subfilter, every result a tile."""
        return self.alpha == 1

    @cached_property
    def alpha(self) -> int:
        """Points of a tile: as many elements of x, and as many products."""
        return self.m + self.r - 1

    @cached_property
    def filtering(self) -> MinimalFiltering:
        return minimal_filtering(self.m, self.r)

    # ---- distances

    @property
    def dilation(self) -> int:
        """Positions of x from tap to tap."""
        return self.axis.taps.shift if self.axis.taps.count > 1 else 1

    @cached_property
    def spacing(self) -> int:
        """Positions of x from one element of a tile to the next."""
        return self.axis.step if self.is_plain else math.lcm(self.axis.step, self.dilation)

    @cached_property
    def tap_step(self) -> int:
        """Taps from one of a subfilter to the next."""
        return 1 if self.is_plain else self.spacing // self.dilation

    @cached_property
    def result_step(self) -> int:
        """Results from one of a tile to the next."""
        return self.spacing // self.axis.step

    # ---- subfilters

    @cached_property
    def segments(self) -> int:
        """Subfilters of the taps that have the same remainder modulo ``tap_step``."""
        return ceil_div(ceil_div(self.axis.taps.count, self.tap_step), self.m)

    @cached_property
    def subfilters(self) -> int:
        return min(self.tap_step, self.axis.taps.count) * self.segments

    @cached_property
    def short_subfilters(self) -> int:
        firsts = [
            i // self.segments + i % self.segments * self.m * self.tap_step for i in range(self.subfilters)
        ]
        count = self.axis.taps.count
        return sum(len(range(first, count, self.tap_step)) < self.m for first in firsts)

    @cached_property
    def products(self) -> int:
        """Points of all subfilters at which there is a product."""
        return self.subfilters * self.alpha - self.short_subfilters

    def first_tap(self, subfilter: Value) -> Value:
        return subfilter // self.segments + (subfilter % self.segments) * (self.m * self.tap_step)

    def valid_taps(self, first: Value) -> Value:
        """How many taps the subfilter with this first tap has."""
        left = (first.k.integer(self.axis.taps.count + self.tap_step - 1) - first).max(0)
        return (left // self.tap_step).min(self.m)

    def has_product(self, subfilter: Value, point: Value) -> Value:
        return (point < self.alpha - 1) | (self.valid_taps(self.first_tap(subfilter)) >= self.m)

    # ---- tiles

    @cached_property
    def tiles_per_residue(self) -> int:
        return ceil_div(ceil_div(self.axis.results, self.result_step), self.r)

    @cached_property
    def units_per_residue(self) -> int:
        return ceil_div(self.tiles_per_residue, self.unit_tiles)

    @cached_property
    def units(self) -> int:
        return min(self.result_step, self.axis.results) * self.units_per_residue

    @cached_property
    def tiles(self) -> int:
        """All tiles, those that fill up the last unit of a residue included."""
        return self.units * self.unit_tiles

    def first_result(self, unit: Value) -> Value:
        number = unit % self.units_per_residue
        return unit // self.units_per_residue + number * (self.unit_tiles * self.r * self.result_step)

    def first_position(self, unit: Value, subfilter: Value) -> Value:
        """The position in x of the first element that a unit reads for a subfilter; it may be outside."""
        taps = self.axis.taps
        return (
            self.first_result(unit) * self.axis.step + self.first_tap(subfilter) * self.dilation + taps.offset
        )


Axes = tuple[WgradAxis, WgradAxis, WgradAxis]


@dataclass(frozen=True)
class Reading:
    """What the tiles of a unit read of one tensor along an axis.

    A tile reads ``extent`` elements ``spacing`` apart, below ``bound``; ``tile_step`` elements on begins the next tile.
    """

    extent: int
    spacing: int
    bound: int
    tile_step: int
    unit_tiles: int

    @property
    def elements(self) -> int:
        """Elements of a unit."""
        return (self.unit_tiles - 1) * self.tile_step + self.extent


def x_reading(axis: WgradAxis) -> Reading:
    return Reading(axis.alpha, axis.spacing, axis.axis.positions, axis.r, axis.unit_tiles)


def dy_reading(axis: WgradAxis) -> Reading:
    return Reading(axis.r, axis.result_step, axis.axis.results, axis.r, axis.unit_tiles)
