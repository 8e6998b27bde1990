"""What flows between layers: an array and, where it is needed, its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitdnn.errors import InvalidArgument

Array = NDArray[Any]
Shape = tuple[int, ...]


class Blob:
    """A packed array `data` and its gradient `diff` of the same shape, float32 or float64.

    Memory is taken once for a shape and kept, so that training allocates nothing in its steady state; `diff`
    is taken, full of zeros, when it is first asked for. A blob can be a view of another one (`share`).
    """

    __slots__ = ("_base", "_diff", "data", "name")

    def __init__(self, name: str, dtype: DTypeLike) -> None:
        self.name = name
        self.data: Array = np.zeros(0, dtype)
        self._diff: Array | None = None
        self._base: Blob | None = None

    @property
    def shape(self) -> Shape:
        """The extents, slowest first; () for a scalar."""
        return self.data.shape

    @property
    def diff(self) -> Array:
        """The gradient by `data`."""
        if self._diff is None:
            if self._base is not None:
                self._diff = self._base.diff.reshape(self.shape)
            else:
                self._diff = np.zeros(self.shape, self.data.dtype)
        return self._diff

    def reshape(self, shape: Shape) -> None:
        """Take this shape and memory of its own; contents are kept only if nothing changes."""
        if self.shape != shape or self._base is not None:
            self.data = np.zeros(shape, self.data.dtype)
            self._diff = None
            self._base = None

    def share(self, other: Blob, shape: Shape | None = None) -> None:
        """Become a view of the data and gradient of `other`, in `shape` (of the same size) if given."""
        self.data = other.data.reshape(other.shape if shape is None else shape)
        self._diff = None
        self._base = other

    def share_data(self, other: Blob) -> None:
        """Become a view of the data of `other`, with a gradient of its own."""
        if self.data is not other.data:
            self.data = other.data
            self._diff = None
        self._base = None

    def __repr__(self) -> str:
        return f"Blob({self.name!r}, {self.shape})"


def canonical_axis(axis: int, rank: int, what: str) -> int:
    """Return the axis counted from the front; InvalidArgument if the array has no such axis."""
    if not -rank <= axis < rank:
        raise InvalidArgument(f"{what}: axis {axis} does not exist in an array of {rank} axes")
    return axis % rank


def count(shape: Shape, start: int = 0, end: int | None = None) -> int:
    """Return the number of elements in the axes start .. end - 1."""
    return math.prod(shape[start:end])
