"""What flows between layers: an array and, where it is needed, its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.settings import check_bytes

Array = NDArray[Any]
Shape = tuple[int, ...]
MAX_AXES = 32  # Caffe's


class Blob:
    """A packed array `data` and its gradient `diff` of the same shape, float32 or float64.

    Memory is taken, full of zeros, when it is first asked for, and kept, so that training allocates nothing in its
    steady state; under a limit on memory (memory.py) it is released where nobody needs it, and taken again. A blob can
    be a view of another one (`share`).
    """

    __slots__ = ("_base", "_diff", "_is_released", "_shape", "_source", "data", "dtype", "name")

    data: Array

    def __init__(self, name: str, dtype: DTypeLike) -> None:
        self.name = name
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape: Shape = (0,)
        self._diff: Array | None = None
        self._base: Blob | None = None  # whose gradient this one views
        self._source: Blob | None = None  # whose data this one views
        self._is_released = False

    def __getattr__(self, name: str) -> Any:
        # Called only where a slot is empty, so that data costs nothing once it is there.
        if name != "data":
            raise AttributeError(f"a Blob has no {name!r}")
        if self._source is not None:
            self.data = self._source.data.reshape(self._shape)
        elif self._is_released:
            raise InvalidArgument(
                f"blob {self.name!r} has no data now: the net runs under a limit on memory, which keeps only inputs "
                "and outputs after a pass; copy it in the net's observer, or call limit_memory(None)"
            )
        else:
            self.data = np.zeros(self._shape, self.dtype)
        return self.data

    @property
    def shape(self) -> Shape:
        """The extents, slowest first; () for a scalar."""
        return self._shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """The bytes of `data`, or of `diff`."""
        return self.size * self.dtype.itemsize

    @property
    def diff(self) -> Array:
        """The gradient by `data`."""
        if self._diff is None:
            if self._base is not None:
                self._diff = self._base.diff.reshape(self._shape)
            else:
                self._diff = np.zeros(self._shape, self.dtype)
        return self._diff

    @property
    def owner(self) -> Blob:
        """The blob whose memory `data` is."""
        return self if self._source is None else self._source.owner

    @property
    def gradient_owner(self) -> Blob:
        """The blob whose memory `diff` is."""
        return self if self._base is None else self._base.gradient_owner

    def reshape(self, shape: Shape) -> None:
        """Take this shape and memory of its own; contents are kept only if nothing changes."""
        if self._shape != shape:
            check_bytes(
                f"blob {self.name!r} of shape {shape}", math.prod(shape) * self.dtype.itemsize, InvalidShape
            )
            if len(shape) > MAX_AXES:
                raise InvalidShape(
                    f"blob {self.name!r} has {len(shape)} axes: at most {MAX_AXES} are allowed"
                )
        if self._shape != shape or self._source is not None or self._base is not None:
            self._forget()
            self._shape = shape
            self._diff = None
            self._base = self._source = None

    def share(self, other: Blob, shape: Shape | None = None) -> None:
        """Become a view of the data and gradient of `other`, in `shape` (of the same size) if given."""
        self._forget()
        self._shape = other.shape if shape is None else shape
        assert self.size == other.size, (self, other)
        self._diff = None
        self._base = self._source = other

    def share_data(self, other: Blob) -> None:
        """Become a view of the data of `other`, with a gradient of its own."""
        if self._source is not other or self._shape != other.shape or self._base is not None:
            self._diff = None
        self._forget()
        self._shape = other.shape
        self._source, self._base = other, None

    # ---- memory, for memory.py

    def release(self) -> None:
        """Give the memory of `data` back; until `take` or `lift` reading it is an error. Of a view: let go of it."""
        self._forget()
        self._is_released = True

    def ensure(self) -> None:
        """Have memory for `data`, zeros if there was none."""
        _ = self.data

    def take(self) -> None:
        """Have memory for `data`, with any contents."""
        if self._source is None and not self.has_data:
            self.data = empty(self._shape, self.dtype)

    def lift(self) -> None:
        """Undo `release`: memory is taken when it is asked for."""
        self._is_released = False

    def release_diff(self) -> None:
        """Give the memory of `diff` back; it is zeros when it is asked for again."""
        self._diff = None

    def swap_diff(self, diff: Array | None) -> Array | None:
        """Put another array in the place of `diff`, and return the one that was there, if any."""
        before, self._diff = self._diff, diff
        return before

    @property
    def has_data(self) -> bool:
        """Whether `data` has memory now."""
        try:
            object.__getattribute__(self, "data")
        except AttributeError:
            return False
        return True

    def _forget(self) -> None:
        if self.has_data:
            del self.data

    def __repr__(self) -> str:
        return f"Blob({self.name!r}, {self.shape})"


def empty(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return new memory of any contents."""
    return np.empty(shape, dtype)


def canonical_axis(axis: int, rank: int, what: str) -> int:
    """Return the axis counted from the front; InvalidArgument if the array has no such axis."""
    if not -rank <= axis < rank:
        raise InvalidArgument(f"{what}: axis {axis} does not exist in an array of {rank} axes")
    return axis % rank


def count(shape: Shape, start: int = 0, end: int | None = None) -> int:
    """Return the number of elements in the axes start .. end - 1."""
    return math.prod(shape[start:end])
