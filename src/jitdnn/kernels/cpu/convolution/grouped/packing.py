"""Packing blocks of channels-last images unit by unit, so that the channels of whole groups fill vectors.

A *unit* is the work unit along the channels: as many whole groups as fill a vector, or one group that fills several.
In memory the pixels of one unit are as far apart as a pixel has channels in all groups, too far for the caches to keep
them; packed they are neighbours. Neighbouring units are packed together, so that whole cache lines are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


@dataclass(frozen=True)
class GroupPacking:
    """The packed block of a unit: ``channels`` of each of ``groups_per_unit`` groups, in vectors of ``lanes``.

    With ``is_vector_major`` it is [vector][row][column][lanes], else [row][column][vector][lanes]. ``positions`` are
    rows and columns of a slice of the tensor, ``extents`` those of a block; the tensor has ``groups`` groups.
    """

    dtype: str
    lanes: int
    view: View
    channels: int
    groups: int
    groups_per_unit: int
    positions: tuple[int, int]
    extents: tuple[int, int]
    is_vector_major: bool

    @property
    def vectors(self) -> int:
        """Vectors of a unit's pixel."""
        return ceil_div(self.groups_per_unit * self.channels, self.lanes)

    @property
    def elements(self) -> int:
        """Elements of a unit's block."""
        return math.prod(self.extents) * self.vectors * self.lanes

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from one vector of a pixel to the next, from pixel to pixel, and from row to row."""
        if self.is_vector_major:
            return math.prod(self.extents) * self.lanes, self.lanes, self.extents[1] * self.lanes
        pixel = self.vectors * self.lanes
        return self.lanes, pixel, self.extents[1] * pixel


def groups_per_unit(c: Correlation, lanes: int) -> int:
    """Groups whose channels, of x or of y, fit into a vector together; at least one."""
    return max(1, lanes // max(c.depth, c.width))


def has_contiguous_channels(c: Correlation) -> bool:
    """True if all channels of x are neighbours in memory, group by group, and all of y."""
    tensors = ((c.x, c.depth), (c.y, c.width))
    return all(v.groups == (each,) and (each == 1 or v.channels == 1) for v, each in tensors)


def broadcast_in_groups(
    k: Builder, vector: Value, groups: int, channels: int, channel: int, lanes_per_group: int
) -> Value:
    """Channel ``channel`` of each of a vector's ``groups`` groups of ``channels``, in ``lanes_per_group`` lanes each;
    lanes that are left over repeat the last group."""
    group_of = [min(lane // lanes_per_group, groups - 1) for lane in range(vector.lanes)]
    return k.shuffle(vector, vector, [group * channels + channel for group in group_of])


def trace_pack(module: Module, name: str, packing: GroupPacking) -> Function:
    """Trace ``name(source, target, row, column, rows, columns, first, count)``: pack a block of pixels for ``count``
    units from the ``first`` on.

    ``source`` points to a slice, ``row`` and ``column`` say where the block begins in it. Columns outside of the slice
    become zeros; rows outside are left as they are.
    """
    names = ("row", "column", "rows", "columns", "first", "count")
    with module.function(name, source=packing.view.dtype, target=packing.dtype, **dict.fromkeys(names)) as (
        k, (source, target, row, column, rows, columns, first, count), function,
    ):  # fmt: skip
        vector_stride, pixel_stride, row_stride = packing.strides
        unit_channels, lanes = packing.groups_per_unit * packing.channels, packing.lanes
        zero = k.constant(0, packing.dtype, lanes)
        needs_no_mask = unit_channels % lanes == 0 and packing.groups % packing.groups_per_unit == 0

        def fill(pixel: Pointer | None, target_pixel: Pointer) -> None:
            """All units of a pixel; zeros if there is none."""
            for unit in k.range(count):
                for v in range(packing.vectors):
                    offset = unit * packing.elements + v * vector_stride
                    if pixel is None:
                        target_pixel.store(zero, offset)
                        continue
                    begin = (first + unit) * unit_channels
                    left = (k.integer(packing.groups * packing.channels) - begin).min(
                        unit_channels
                    ) - v * lanes
                    mask = None if needs_no_mask else k.mask(left, lanes)
                    target_pixel.store(pixel.load(begin + v * lanes, lanes, mask), offset)

        before = (-column).max(0).min(columns)
        after = (k.integer(packing.positions[1]) - column).max(before).min(columns)
        for i in k.range(rows):
            at, target_row = row + i, target + i * row_stride
            pixels = source + (at * packing.view.space[1] + column * packing.view.space[2])
            with k.when((at >= 0) & (at < packing.positions[0])):
                for j in k.range(before):
                    fill(None, target_row + j * pixel_stride)
                for j in k.range(before, after):
                    fill(pixels + j * packing.view.space[2], target_row + j * pixel_stride)
                for j in k.range(after, columns):
                    fill(None, target_row + j * pixel_stride)
    return function
