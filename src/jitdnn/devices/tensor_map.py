"""Tensor maps: what the copy engine of sm_90 and later (TMA) is told of a tensor in memory; tables that hold them.

A kernel of the "hopper" dialect takes `Tables` as its first argument: the maps, one after the other, then integers. In
C they are one structure:

    struct Tables { TensorMap maps[count]; i64 numbers[count]; };
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jitdnn.tensor import DTYPES

MAP_BYTES = 128
"""Of a tensor map."""
ALIGNMENT = 16
"""What addresses and strides must be multiples of, in bytes."""
WORKSPACE = -1
"""In place of an operand's number."""


@dataclass(frozen=True)
class TensorMap:
    """Boxes of a tensor as they are copied to shared memory, in rows of 128, 64 or 32 bytes, each with its swizzle.

    Axes are innermost first. `operand`: its number among the kernel's pointers, or `WORKSPACE`; the tensor begins
    `offset` bytes behind it. `strides`: bytes, of all axes but the innermost, which is contiguous. `steps`: elements
    from one that is copied to the next.

    `box`: elements of a box along each axis; or, of an im2col map, channels and pixels. Its `corners`, along the axes
    between the innermost and the outermost: the lowest position at which a window begins, and the highest, counted from
    the last position of the tensor. `is_rounded`: f32 is rounded to tf32 on the way to shared memory.
    """

    operand: int
    offset: int
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    is_rounded: bool = False

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def row_bytes(self) -> int:
        """Of a box: 128, 64 or 32."""
        return self.box[0] * DTYPES[self.dtype]


@dataclass(frozen=True)
class Tables:
    """The first argument of every kernel of a source: maps and integers."""

    maps: tuple[TensorMap, ...]
    numbers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the structure, up to a multiple of its alignment."""
        return -(-(MAP_BYTES * len(self.maps) + 8 * len(self.numbers)) // 64) * 64

    @property
    def record(self) -> dict[str, Any]:
        """What `tables_of` makes them of again, and JSON can hold."""
        return {"maps": [vars(one) for one in self.maps], "numbers": self.numbers}

    @property
    def packed_numbers(self) -> bytes:
        """The integers, as they lie behind the maps."""
        return struct.pack(f"{len(self.numbers)}q", *self.numbers)


def tables_of(record: Mapping[str, Any]) -> Tables:
    """Tables of their `record`, with lists for tuples, as JSON has them."""
    return Tables(tuple(_map_of(one) for one in record["maps"]), tuple(record["numbers"]))


def _map_of(record: Mapping[str, Any]) -> TensorMap:
    lists = {name: tuple(record[name]) for name in ("extents", "strides", "box", "steps")}
    corners = record["corners"]
    if corners is not None:
        corners = (tuple(corners[0]), tuple(corners[1]))
    return TensorMap(**{**record, **lists, "corners": corners})
