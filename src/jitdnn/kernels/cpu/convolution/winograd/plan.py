"""Winograd's minimal filtering of a correlation: tiles of two axes, and how they are blocked.

    tile   : outputs[0] x outputs[1] results, from places[0] x places[1] data            (matrices.py)
    strip  : a run of tiles along the last of the two axes; the unit of copying in and out
    block  : strips whose data are transformed together: V [place][tile][depth]
    panel  : a filter transformed for some vectors of results' channels: U [panel][place][depth][lanes]
    product: M [panel][place][tile][lanes] = V U, a matrix product for each place            (product.py)

The depth is all that is summed besides the tiled taps: channels, taps of the third axis, and, where the data are read
with a step, their phases: a filter at step s is the sum of s filters with every s-th tap, each reading every s-th
position. A long filter is the sum of parts with a few neighbouring taps each, which read data further on; tiles of few
taps round less and are written out in less code. An axis with a single tap is tiled one by one, by the identity.

Either the tiles stay, and the filter, transformed in a phase of its own, streams by (the filter may then be kept); or
the filter stays: all data are transformed in a phase of their own, and each task transforms its panel of the filter
piece by piece and multiplies it at once, so that it never goes through memory. That is for large filters of small
images. Where the tiles stay and have few results' channels, a block's data are transformed a portion of their
channels at a time, which is multiplied while it is in the cache; the sums wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from jitdnn.kernels.cpu.convolution.winograd.matrices import (
    MinimalFiltering,
    minimal_filtering,
    reaches_beyond,
)
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.constant_matrix import Matrix
from jitdnn.kernels.cpu.microkernel.packing import Panels, plan_panels
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile, choose_tile
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines
from jitdnn.rtcg.builder import Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

MOST_TERMS = 512  # summed one after the other; the error of longer sums is that of sums of so many
_STRIP_BYTES = 24 << 10  # of laid out data, of the L1 cache
_STAGED_BYTES = 48 << 10
_CHUNK_BYTES = 320 << 10  # of a transformed filter, of the L2 cache
_EARLY_BYTES = 640 << 10
_FOLDED = 4  # vectors of channels and phases together, at most
_IDENTITY = ((Fraction(1),),)


@dataclass(frozen=True)
class TileAxis:
    """One axis as tiles of ``outputs`` results.

    Result i of tile ``turn * spread + r`` is (turn * outputs + i) * spread + r: with dilation a tile takes every
    ``spread``-th position, so that its taps are neighbours. ``parts``: into how many the taps are cut where the step
    is one; such parts are phases too.
    """

    axis: Axis
    outputs: int
    parts: int = 1

    @property
    def phases(self) -> int:
        """Into how many filters the taps fall: parts, or those that read the same positions modulo the step."""
        count = self.axis.taps.count
        return self.parts if self.axis.step == 1 else min(self.axis.step, count) if count > 1 else 1

    @property
    def tap_step(self) -> int:
        """From one tap of a phase to the next."""
        return 1 if self.axis.step == 1 else self.phases

    @property
    def spread(self) -> int:
        return self.axis.taps.shift if self.axis.taps.count > 1 and self.axis.step == 1 else 1

    @property
    def gap(self) -> int:
        """Positions from one datum of a tile to the next."""
        return self.axis.step * self.spread

    @property
    def taps(self) -> int:
        """Taps of the longest phase."""
        return ceil_div(self.axis.taps.count, self.phases)

    @property
    def places(self) -> int:
        return self.outputs + self.taps - 1

    @property
    def turns(self) -> int:
        """Tiles of each stride phase modulo the spread."""
        return ceil_div(ceil_div(self.axis.results, self.spread), self.outputs)

    @property
    def tiles(self) -> int:
        return self.turns * self.spread

    def filtering(self) -> MinimalFiltering:
        if self.places == 1:
            return MinimalFiltering(1, 1, _IDENTITY, _IDENTITY, _IDENTITY)
        return minimal_filtering(self.outputs, self.taps)

    @property
    def full_phases(self) -> int:
        """Phases, the first ones, with ``taps`` taps; the rest have one fewer.

        With the last tap the last place drops out, that of infinity: its product is that of the last tap alone.
        """
        return self.axis.taps.count - (self.taps - 1) * self.phases

    @property
    def spreads(self) -> bool:
        """Whether a NaN or an infinity reaches results of its tile that do not read it.

        Phases that lack a tap take the maps of those that have it, or zero in its place.
        """
        if self.full_phases < self.phases:
            return True
        filtering = self.filtering()
        return reaches_beyond(filtering.result, filtering.data, self.taps)

    def first_tap(self, phase: Value) -> Value:
        """The number of a phase's first tap."""
        if self.axis.step > 1 or self.parts == 1:
            return phase
        return phase * self.taps - (phase - self.full_phases).max(0)

    def first_position(self, phase: Value) -> Value:
        """Where a phase reads, from where the first does."""
        return self.first_tap(phase) * self.spread

    @property
    def positions(self) -> list[int]:
        """The same for all phases."""
        if self.axis.step > 1 or self.parts == 1:
            return list(range(self.phases))
        return [(i * self.taps - max(0, i - self.full_phases)) * self.spread for i in range(self.phases)]

    @property
    def last_position(self) -> int:
        """The first position of the last phase."""
        return self.positions[-1]

    @property
    def phase_kinds(self) -> list[tuple[int, int, bool]]:
        """Phases as (first, end, whether they lack the last place)."""
        kinds = [(0, self.full_phases, False), (self.full_phases, self.phases, True)]
        return [kind for kind in kinds if kind[0] < kind[1]]

    def filter_matrix(self, is_short: bool) -> Matrix:
        """G [places, taps] for a phase."""
        return _without_last(self.filtering().filter, is_short)

    def data_matrix(self, is_short: bool) -> Matrix:
        """B^T [places, places] for a phase."""
        return _without_last(self.filtering().data, is_short)


def _without_last(matrix: Matrix, is_short: bool) -> Matrix:
    return tuple(row[:-1] for row in matrix[:-1]) if is_short else matrix


def forwards(c: Correlation) -> Correlation:
    """The same with taps that read from low positions to high ones."""
    axes = []
    for axis in c.axes:
        taps = axis.taps
        axes.append(_reversed(axis) if taps.count > 1 and taps.shift < 0 else axis)
    return replace(c, axes=(axes[0], axes[1], axes[2]))


def _reversed(axis: Axis) -> Axis:
    """The same with its last tap first."""
    taps, last = axis.taps, axis.taps.count - 1
    start, offset = taps.start + last * taps.increment, taps.offset + last * taps.shift
    taps = replace(taps, start=start, increment=-taps.increment, offset=offset, shift=-taps.shift)
    return replace(axis, taps=taps)


@dataclass(frozen=True)
class WinogradPlan:
    """One correlation, its taps in order, cut into tiles. Sizes are in elements of its type unless said otherwise."""

    c: Correlation
    isa: Isa
    tiled: tuple[int, int]  # the numbers of the two axes
    outputs: tuple[int, int]
    is_filter_first: bool  # the filter is transformed once and streams by; else the data are
    block: int  # strips
    parts: tuple[int, int] = (1, 1)  # of the taps of each of the two
    portion: int = 0  # channels of a block whose data are transformed at a time; 0: all of them

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def rows(self) -> TileAxis:
        return TileAxis(self.c.axes[self.tiled[0]], self.outputs[0], self.parts[0])

    @cached_property
    def columns(self) -> TileAxis:
        return TileAxis(self.c.axes[self.tiled[1]], self.outputs[1], self.parts[1])

    @property
    def third(self) -> int:
        """The axis that is not tiled."""
        return 3 - sum(self.tiled)

    @property
    def slices(self) -> Axis:
        return self.c.axes[self.third]

    @cached_property
    def places(self) -> int:
        return self.rows.places * self.columns.places

    @cached_property
    def sources(self) -> tuple[int, int, int]:
        """What is summed besides channels: taps of the third axis, phases of the rows and of the columns."""
        return self.slices.taps.count, self.rows.phases, self.columns.phases

    @cached_property
    def source_count(self) -> int:
        return math.prod(self.sources)

    @property
    def depth(self) -> int:
        """Products summed for each place."""
        return self.source_count * self.c.depth

    # ---- strips and blocks

    @cached_property
    def run(self) -> int:
        """Turns of the columns in one strip."""
        vector = self.lanes * ITEM_BYTES[self.c.dtype]
        row = self.rows.places * self.laid_gap * self.columns.outputs * vector
        most = max(1, _STRIP_BYTES // row)
        return ceil_div(self.columns.turns, ceil_div(self.columns.turns, most))

    @property
    def strip_tiles(self) -> int:
        return self.run * self.columns.spread

    @cached_property
    def strip_axes(self) -> tuple[int, int, int, int]:
        """What strips are counted by: images, results of the third axis, rows of tiles, runs."""
        return (
            self.c.batch,
            self.slices.results,
            self.rows.tiles,
            ceil_div(self.columns.turns, self.run),
        )

    @cached_property
    def strips(self) -> int:
        return math.prod(self.strip_axes)

    @cached_property
    def blocks(self) -> int:
        return ceil_div(self.strips, self.block)

    @cached_property
    def block_tiles(self) -> int:
        return self.block * self.strip_tiles

    @property
    def read_positions(self) -> int:
        """Positions of the columns that a whole strip reads."""
        tiles = self.columns.gap * (self.columns.outputs * (self.run - 1) + self.columns.places)
        return tiles + (self.columns.last_position if self.columns.axis.step == 1 else 0)

    @property
    def laid_gap(self) -> int:
        """From one datum of a tile to the next in a strip as it is laid out."""
        return self.columns.spread if self.folds else self.columns.gap

    @property
    def laid_positions(self) -> int:
        """Columns of a strip as it is laid out."""
        if not self.folds:
            return self.read_positions
        return self.columns.spread * (self.columns.outputs * (self.run - 1) + self.columns.places)

    @cached_property
    def read_pitch(self) -> int:
        return ceil_div(self.laid_positions, self.lanes) * self.lanes

    @cached_property
    def write_pitch(self) -> int:
        results = self.run * self.columns.outputs * self.columns.spread
        return ceil_div(results, self.lanes) * self.lanes

    @cached_property
    def reads_channels(self) -> bool:
        """True if vectors of channels are loaded as they are, False if squares of positions are transposed."""
        return _is_along_channels(
            self.c.x.channels, self.c.x.space[self.tiled[1]], self.columns.axis.positions
        )

    @cached_property
    def writes_channels(self) -> bool:
        return _is_along_channels(self.c.y.channels, self.c.y.space[self.tiled[1]], self.columns.axis.results)

    @cached_property
    def reads_directly(self) -> bool:
        """True if a tile that lies inside is transformed from where it is."""
        return self.c.x.channels == 1 and self.c.depth >= self.lanes

    @cached_property
    def folds(self) -> bool:
        """True if the lanes of a vector are few channels of several phases (few_channels.py)."""
        phases = self.rows.phases * self.columns.phases
        is_small = 2 * self.c.depth <= self.lanes and phases * self.c.depth <= _FOLDED * self.lanes
        return is_small and phases > 1 and self.is_filter_first and not self.reads_channels

    @property
    def folded(self) -> int:
        """Channels and phases together."""
        return self.rows.phases * self.columns.phases * self.c.depth

    # ---- panels and products

    @cached_property
    def tile(self) -> RegisterTile:
        return choose_tile([self.block_tiles], self.c.width, self.isa, self.c.dtype)

    @cached_property
    def row_groups(self) -> tuple[tuple[int, int], ...]:
        """(rows, how many groups of so many) that make up a block's tiles; at most two sizes."""
        return even_groups(self.block_tiles, self.tile.rows)

    @property
    def panel_lanes(self) -> int:
        return self.tile.vectors * self.lanes

    @cached_property
    def panels(self) -> Panels:
        """The filter as it is laid out before it is transformed."""
        return plan_panels(self.c, self.panel_lanes)

    @cached_property
    def as_it_lies(self) -> Correlation:
        """The correlation with taps in the order of memory, in which they are laid out fastest."""
        axes = [_reversed(axis) if self._lies_backwards(i) else axis for i, axis in enumerate(self.c.axes)]
        return replace(self.c, axes=(axes[0], axes[1], axes[2]))

    def _lies_backwards(self, axis: int) -> bool:
        return self.c.axes[axis].taps.increment * self.c.w.space[axis] < 0

    @cached_property
    def tap_strides(self) -> tuple[int, int, int]:
        """Elements from one tap to the next of a filter that is laid out so."""
        a, b, c = (-s if self._lies_backwards(i) else s for i, s in enumerate(self.panels.tap_strides))
        return a, b, c

    @property
    def first_tap(self) -> int:
        """Where the first tap is then."""
        return -sum(
            min(0, s) * (axis.taps.count - 1) for s, axis in zip(self.tap_strides, self.c.axes, strict=True)
        )

    @cached_property
    def channel_pitch(self) -> int:
        """Elements of one source in a row of V."""
        return self.c.depth if self.folds else ceil_div(self.portion or self.c.depth, self.lanes) * self.lanes

    @cached_property
    def slice_pitch(self) -> int:
        """Elements of the sources of one tap of the third axis."""
        sources = self.rows.phases * self.columns.phases * self.channel_pitch
        return ceil_div(sources, self.lanes) * self.lanes

    @cached_property
    def row_pitch(self) -> int:
        return odd_lines(self.sources[0] * self.slice_pitch, self.c.dtype)

    @cached_property
    def data_pitch(self) -> int:
        """Elements of one place of V."""
        return odd_lines(self.block_tiles * self.row_pitch, self.c.dtype)

    @cached_property
    def sum_pitch(self) -> int:
        """Elements of one place of M."""
        return odd_lines(self.block_tiles * self.panel_lanes, self.c.dtype)

    @cached_property
    def chunk(self) -> int:
        """Channels whose transformed filter is there at a time."""
        if self.is_filter_first:
            return self.c.depth
        row = self.places * self.source_count * self.panel_lanes * ITEM_BYTES[self.c.dtype]
        step = self.staged
        most = max(step, _CHUNK_BYTES // row // step * step)
        pieces = ceil_div(self.c.depth, most)
        return min(self.c.depth, ceil_div(ceil_div(self.c.depth, pieces), step) * step)

    @cached_property
    def filter_pitch(self) -> int:
        """Elements of one place of U."""
        return odd_lines(self.source_count * self.chunk * self.panel_lanes, self.c.dtype)

    @cached_property
    def terms(self) -> int:
        """Channels whose products are summed one after the other before they are added to the rest."""
        most = self.portion or self.chunk
        return ceil_div(most, ceil_div(most, MOST_TERMS))

    # ---- memory

    @property
    def data_elements(self) -> int:
        """V of a block."""
        return self.places * self.data_pitch

    @property
    def panel_sums(self) -> int:
        """M of a panel."""
        return self.places * self.sum_pitch

    @property
    def sum_elements(self) -> int:
        """M of a panel, or of all of them where they wait for further channels."""
        return self.panel_sums * (self.panels.count if self.portion else 1)

    @property
    def panel_elements(self) -> int:
        """U of one panel."""
        return self.places * self.filter_pitch

    @property
    def filter_elements(self) -> int:
        """U of all panels of all groups."""
        return self.c.group_count * self.panels.count * self.panel_elements

    @cached_property
    def shared_elements(self) -> int:
        """At the start of the workspace: the transformed filter, or the transformed data."""
        return self.filter_elements if self.is_filter_first else self.c.group_count * self.data_elements

    @cached_property
    def staged(self) -> int:
        """Channels of a filter that are laid out at once before they are transformed."""
        row = math.prod(self.panels.taps) * self.panel_lanes * ITEM_BYTES[self.c.dtype]
        return min(16, max(1, _STAGED_BYTES // row))

    @cached_property
    def staged_elements(self) -> int:
        """A laid out piece of the filter."""
        taps = math.prod(self.panels.taps)
        return whole_lines(self.staged * taps * self.panel_lanes, self.c.dtype)

    @cached_property
    def asks_early(self) -> bool:
        """True if the next chunk of the filter may come into the L2 cache while this one is multiplied."""
        if self.is_filter_first:
            return False
        chunk = self.chunk * math.prod(self.panels.taps) * self.panel_lanes
        return (chunk + self.panel_elements + self.sum_elements) * ITEM_BYTES[self.c.dtype] <= _EARLY_BYTES

    @cached_property
    def copied_elements(self) -> int:
        """A strip as it is laid out, read or written. The last square of a row may reach beyond it."""
        read = self.rows.places * self.read_pitch + self.lanes
        write = self.outputs[0] * self.write_pitch
        return whole_lines(max(read, write) * self.lanes, self.c.dtype)

    @cached_property
    def own_elements(self) -> int:
        """Scratch of one thread: a strip, sums, and V of a block or U of a chunk."""
        inner = self.data_elements if self.is_filter_first else self.panel_elements
        return self.copied_elements + self.sum_elements + inner


def _is_along_channels(channels: int, columns: int, extent: int) -> bool:
    return extent == 1 or columns == 0 or (channels != 0 and abs(channels) <= abs(columns))


def even_groups(rows: int, most: int) -> tuple[tuple[int, int], ...]:
    """``rows`` as (size, count) of groups of at most ``most`` whose sizes differ by one at most."""
    count = ceil_div(rows, most)
    size, larger = divmod(rows, count)
    groups = ((size + 1, larger), (size, count - larger))
    return tuple(group for group in groups if group[0] and group[1])


def odd_lines(elements: int, dtype: str) -> int:
    """Rounded up to an odd number of cache lines: what lies so far apart falls into different sets of a cache."""
    line = 64 // ITEM_BYTES[dtype]
    return (ceil_div(elements, line) | 1) * line
