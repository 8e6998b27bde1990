"""Blocks of a channels-last image, copied for neighbouring groups together: channels of whole groups in vectors.

A unit is as many whole groups as fill a vector, or one group that fills several. *Straight* the packed block is
[vector][row][column][lanes], else [row][column][vector][lanes]. The pixels of one group are so far apart in memory
that the caches cannot keep them; packed they are neighbours, and what is read on the way is whole lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


@dataclass(frozen=True)
class GroupPacking:
    """How blocks of one tensor are packed: ``each`` channels of a group, ``together`` groups of a unit."""

    dtype: str
    lanes: int
    view: View
    each: int
    groups: int
    together: int
    positions: tuple[int, int]  # rows and columns of a slice
    extents: tuple[int, int]  # rows and columns of a block
    is_straight: bool

    @property
    def vectors(self) -> int:
        """Of a unit's pixel."""
        return ceil_div(self.together * self.each, self.lanes)

    @property
    def elements(self) -> int:
        """Of the block of one unit."""
        return math.prod(self.extents) * self.vectors * self.lanes

    @property
    def pitches(self) -> tuple[int, int, int]:
        """Elements from one vector of a pixel to the next, to the next pixel, and to the next row."""
        if self.is_straight:
            return math.prod(self.extents) * self.lanes, self.lanes, self.extents[1] * self.lanes
        pixel = self.vectors * self.lanes
        return self.lanes, pixel, self.extents[1] * pixel


def follow(c: Correlation) -> bool:
    """True if the channels of either tensor follow each other, those of a group and from group to group."""
    sides = ((c.x, c.depth), (c.y, c.width))
    return all(v.groups == (each,) and (each == 1 or v.channels == 1) for v, each in sides)


def spread(k: Builder, vector: Value, together: int, each: int, apart: int, channel: int) -> Value:
    """Channel ``channel`` of a vector's ``together`` groups, ``apart`` lanes apart, in ``each`` lanes for every group;
    lanes that are left over repeat the last group."""
    groups = [min(lane // each, together - 1) for lane in range(vector.lanes)]
    return k.shuffle(vector, vector, [group * apart + channel for group in groups])


def trace_pack(module: Module, name: str, pack: GroupPacking) -> Function:
    """Trace ``name(source, target, row, column, rows, columns, first, count)``: a block of pixels of ``count`` units
    from the first on, with zeros for columns outside of the slice that ``source`` points to; rows outside are left.

    ``row`` and ``column`` say where the block begins in the slice.
    """
    names = ("row", "column", "rows", "columns", "first", "count")
    with module.function(name, source=pack.view.dtype, target=pack.dtype, **dict.fromkeys(names)) as (
        k, (source, target, row, column, rows, columns, first, count), function,
    ):  # fmt: skip
        vector_pitch, pixel_pitch, row_pitch = pack.pitches
        run, lanes = pack.together * pack.each, pack.lanes
        zero = k.constant(0, pack.dtype, lanes)
        is_whole = run % lanes == 0 and pack.groups % pack.together == 0

        def fill(pixel: Pointer | None, own: Pointer) -> None:
            for unit in k.range(count):
                for v in range(pack.vectors):
                    place = unit * pack.elements + v * vector_pitch
                    if pixel is None:
                        own.store(zero, place)
                        continue
                    begin = (first + unit) * run
                    left = (k.integer(pack.groups * pack.each) - begin).min(run) - v * lanes
                    mask = None if is_whole else k.mask(left, lanes)
                    own.store(pixel.load(begin + v * lanes, lanes, mask), place)

        before = (-column).max(0).min(columns)
        after = (k.integer(pack.positions[1]) - column).max(before).min(columns)
        for i in k.range(rows):
            at, own = row + i, target + i * row_pitch
            pixels = source + (at * pack.view.space[1] + column * pack.view.space[2])
            with k.when((at >= 0) & (at < pack.positions[0])):
                for j in k.range(before):
                    fill(None, own + j * pixel_pitch)
                for j in k.range(before, after):
                    fill(pixels + j * pack.view.space[2], own + j * pixel_pitch)
                for j in k.range(after, columns):
                    fill(None, own + j * pixel_pitch)
    return function
