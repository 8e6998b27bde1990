"""Offsets: flat indices as digits, offsets of groups and elements, points of boxes, sizes in whole cache lines."""

from __future__ import annotations

import itertools

from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def scale(k: Builder, args: Pointer, pointers: int) -> Pointer:
    """The two doubles alpha and beta in the argument block, as a pointer."""
    return Pointer(k, (args + (pointers + 1)).v, "f64")


def points(box: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every point of a box, the last axis fastest."""
    return list(itertools.product(*(range(side) for side in box)))


def split_index(index: Value, extents: tuple[int, ...]) -> list[Value]:
    """A flat index as one index for each extent, the last fastest."""
    parts: list[Value] = []
    for extent in reversed(extents):
        is_axis = not isinstance(extent, int) or extent > 1  # what is known when the code runs is divided by
        parts.append(index % extent if is_axis else index * 0)
        index = index // extent if is_axis else index
    return parts[::-1]


def group_offset(group: Value, extents: tuple[int, ...], strides: tuple[int, ...]) -> Value:
    """Offset of a group whose number is a flat index of ``extents``."""
    offset = group * 0
    for i, stride in zip(split_index(group, extents), strides, strict=True):
        offset = offset + i * stride
    return offset


def view_offset(
    c: Correlation,
    view: View,
    group: Value,
    channel: int | Value,
    position: tuple[int | Value, ...] | list[Value],
) -> Value:
    """Offset of an element of a view: its group, its channel within the group, its position (batch, axes)."""
    offset = group_offset(group, c.groups, view.groups) + view.offset
    offset = offset + channel * view.channels
    for i, stride in zip(position, (view.batch, *view.space), strict=True):
        offset = offset + i * stride
    return offset


def whole_lines(elements: int, dtype: str, isa: Isa) -> int:
    """``elements`` rounded up to whole cache lines."""
    line = isa.processor.line_bytes // ITEM_BYTES[dtype]
    return ceil_div(elements, line) * line
