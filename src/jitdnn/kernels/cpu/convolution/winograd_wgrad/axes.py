"""How a filter's gradient is cut along one axis of space for minimal filtering.

    dw[tap] = sum over results p of  dy[p] * x[step * p + offset + shift * tap]

Taken `taps` of the filter and `tile` results at a time this is F(taps, tile) with the tile of dy as its filter. It
wants neighbouring results and neighbouring taps to lie equally far apart in x. Where they do not (a stride, a
dilation) every so-manieth of them does, at their least common multiple:

    part  : up to `taps` taps that lie one such distance apart; each part is its own set of sums
    field : the results that lie one such distance apart, a row of tiles; fields are summed
    unit  : `run` neighbouring tiles of a field, transformed together
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.convolution.winograd.matrices import MinimalFiltering, from_points, minimal_filtering
from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Value

_PLAIN = from_points(1, 1, ())


@dataclass(frozen=True)
class FilterAxis:
    """An axis cut into parts of ``taps`` taps and units of ``run`` tiles of ``tile`` results."""

    axis: Axis
    taps: int = 1
    tile: int = 1
    run: int = 1

    @cached_property
    def is_plain(self) -> bool:
        """True if nothing is saved here: every tap is a part, every result a tile."""
        return self.places == 1

    @cached_property
    def places(self) -> int:
        """Multiplications of a tile."""
        return self.taps + self.tile - 1

    @cached_property
    def filtering(self) -> MinimalFiltering:
        return _PLAIN if self.is_plain else minimal_filtering(self.taps, self.tile)

    @property
    def shift(self) -> int:
        """Positions of x from tap to tap."""
        return self.axis.taps.shift if self.axis.taps.count > 1 else 1

    @cached_property
    def unit(self) -> int:
        """Positions of x from one element of a data tile to the next."""
        return self.axis.step if self.is_plain else math.lcm(self.axis.step, self.shift)

    @cached_property
    def tap_step(self) -> int:
        """Taps from one of a part to the next."""
        return 1 if self.is_plain else self.unit // self.shift

    @cached_property
    def result_step(self) -> int:
        """Results from one of a tile to the next."""
        return self.unit // self.axis.step

    @cached_property
    def segments(self) -> int:
        """Parts that begin with taps one or more parts apart."""
        return ceil_div(ceil_div(self.axis.taps.count, self.tap_step), self.taps)

    @cached_property
    def parts(self) -> int:
        return min(self.tap_step, self.axis.taps.count) * self.segments

    @cached_property
    def short_parts(self) -> int:
        """Parts that lack taps. What they have needs no product at the last place, that of infinity."""
        firsts = [
            i // self.segments + i % self.segments * self.taps * self.tap_step for i in range(self.parts)
        ]
        count = self.axis.taps.count
        return sum(len(range(first, count, self.tap_step)) < self.taps for first in firsts)

    @cached_property
    def products(self) -> int:
        """Places of all parts that are multiplied."""
        return self.parts * self.places - self.short_parts

    def is_needed(self, part: Value, place: Value) -> Value:
        """Whether a part has a product at a place."""
        return (place < self.places - 1) | (self.valid_taps(self.first_tap(part)) >= self.taps)

    @cached_property
    def tiles_per_field(self) -> int:
        return ceil_div(ceil_div(self.axis.results, self.result_step), self.tile)

    @cached_property
    def units_per_field(self) -> int:
        return ceil_div(self.tiles_per_field, self.run)

    @cached_property
    def units(self) -> int:
        return min(self.result_step, self.axis.results) * self.units_per_field

    @cached_property
    def tiles(self) -> int:
        """All tiles, those that fill up the last unit of a field included."""
        return self.units * self.run

    def first_tap(self, part: Value) -> Value:
        return part // self.segments + (part % self.segments) * (self.taps * self.tap_step)

    def valid_taps(self, first: Value) -> Value:
        """How many of a part's taps there are."""
        left = (first.k.integer(self.axis.taps.count + self.tap_step - 1) - first).max(0)
        return (left // self.tap_step).min(self.taps)

    def first_result(self, unit: Value) -> Value:
        within = unit % self.units_per_field
        return unit // self.units_per_field + within * (self.run * self.tile * self.result_step)


@dataclass(frozen=True)
class Reading:
    """What one tensor's tiles read along an axis: ``extent`` elements ``spacing`` apart, below ``bound``."""

    extent: int
    spacing: int
    bound: int
    tile: int
    run: int

    @property
    def elements(self) -> int:
        """Elements of a unit."""
        return (self.run - 1) * self.tile + self.extent


def data_reading(axis: FilterAxis) -> Reading:
    return Reading(axis.places, axis.unit, axis.axis.positions, axis.tile, axis.run)


def gradient_reading(axis: FilterAxis) -> Reading:
    return Reading(axis.tile, axis.result_step, axis.axis.results, axis.tile, axis.run)


def data_origin(axis: FilterAxis, unit: Value, part: Value) -> Value:
    """The position in x of the first element that a unit reads for a part; it may be outside."""
    taps = axis.axis.taps
    return axis.first_result(unit) * axis.axis.step + axis.first_tap(part) * axis.shift + taps.offset


def within(k: Builder, position: Value, bound: int) -> Value:
    return (position >= 0) & (position < k.integer(bound))
