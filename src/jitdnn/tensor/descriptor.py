"""Descriptors: where the elements of a tensor lie in memory, in elements, whoever owns them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitdnn.arguments import MOST_EXTENT, integer_number, integer_numbers, shown
from jitdnn.arguments import shape as extents_of
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.tensor.dtypes import DTYPES

MAX_DIMENSIONS: Final = 8
MOST_ELEMENTS: Final = MOST_EXTENT  # so that sizes in bytes, and sums of a few of them, fit into 64 bits

_FARTHEST: Final = 1 << 58  # elements from the pointer: their bytes, and differences of two, fit into 64 bits
_CHANNELS_FIRST: Final = ("nchw", "ncw", "ncdhw", "nc")
_CHANNELS_LAST: Final = ("nhwc", "nwc", "ndhwc")
# above this many elements, overlap that no simple rule decides is assumed rather than searched for
_SEARCHED_ELEMENTS: Final = 1 << 22


def canonical_layout(layout: str, dimensions: int) -> str:
    """Return `nchw` for a channels-first name of this rank and `nhwc` for a channels-last one.

    `nchw` and `nhwc` stand for every rank; `ncw`, `ncdhw`, `nc`, `nwc` and `ndhwc` only for their own. Case
    does not matter. Raises InvalidArgument.
    """
    name = layout.lower() if isinstance(layout, str) else ""
    known = (name in _CHANNELS_FIRST or name in _CHANNELS_LAST) and (
        name in ("nchw", "nhwc") or len(name) == dimensions
    )
    if not known:
        raise InvalidArgument(
            f"layout {shown(layout)} does not fit {dimensions} dimensions: use nchw or nhwc"
        )
    return "nchw" if name in _CHANNELS_FIRST else "nhwc"


def layout_order(layout: str, dimensions: int) -> tuple[int, ...]:
    """Return the axes from outermost to innermost in memory: (0, 1, 2, 3) for nchw, (0, 2, 3, 1) for nhwc."""
    if canonical_layout(layout, dimensions) == "nchw" or dimensions < 3:
        return tuple(range(dimensions))
    return (0, *range(2, dimensions), 1)


def packed_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor with its axes in `order`, outermost first.

    An extent of 0 counts as 1, so that the strides of an empty tensor are those of its neighbours.
    """
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _is_plain(values: object) -> bool:
    return type(values) is tuple and all(type(value) is int for value in values)


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """Where the elements of a tensor lie in memory.

    `shape`: 1 to 8 extents, each 0 or more, in logical order (N, C, then space). `strides`: one for each
    axis, in elements, of any sign; 0 repeats an element. `dtype`: a name of `DTYPES`. `offset`: the element,
    counted from the pointer that comes with the descriptor, that has index 0 on every axis. Raises
    InvalidShape and InvalidType.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0

    def __post_init__(self) -> None:
        if not _is_plain(self.shape) or not _is_plain(self.strides) or type(self.offset) is not int:
            object.__setattr__(self, "shape", extents_of(self.shape))
            strides = integer_numbers(self.strides, "strides", most=_FARTHEST)
            object.__setattr__(self, "strides", strides)
            object.__setattr__(self, "offset", integer_number(self.offset, "offset", most=_FARTHEST))
        if not 1 <= len(self.shape) <= MAX_DIMENSIONS:
            raise InvalidShape(f"shape {self.shape} has {len(self.shape)} dimensions: it must have 1 to 8")
        if len(self.strides) != len(self.shape):
            raise InvalidShape(f"strides {self.strides} and shape {self.shape}: they must be equally long")
        if min(self.shape) < 0:
            raise InvalidShape(f"shape {self.shape}: every extent must be 0 or more")
        if math.prod(self.shape) > MOST_ELEMENTS or max(self.shape) > MOST_ELEMENTS:
            raise InvalidShape(
                f"shape {self.shape} has more than {MOST_ELEMENTS} elements, which no memory holds"
            )
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise InvalidType(f"{shown(self.dtype)} is no dtype: there are {', '.join(DTYPES)}")
        low, high = self.span()
        if low < -_FARTHEST or high > _FARTHEST:
            raise InvalidShape(
                f"shape {self.shape}, strides {self.strides} and offset {shown(self.offset)} reach elements "
                f"{shown(low)} to {shown(high)}: addresses of 64 bits hold {_FARTHEST} on either side"
            )

    @classmethod
    def packed(cls, shape: Sequence[int], dtype: str, layout: str = "nchw") -> TensorDescriptor:
        """Return the descriptor of a dense tensor; `canonical_layout` says which names a layout has."""
        extents = extents_of(shape)
        return cls(extents, packed_strides(extents, layout_order(layout, len(extents))), dtype)

    def is_packed(self, layout: str) -> bool:
        """True if the tensor is dense in exactly this order, `nchw` or `nhwc`; extents of 1 may leave it open."""
        return self.strides == packed_strides(self.shape, layout_order(layout, len(self.shape)))

    @property
    def layout(self) -> str | None:
        """`nchw` or `nhwc` if the tensor is dense in exactly that order, else None; `nchw` below rank 3."""
        return next((layout for layout in ("nchw", "nhwc") if self.is_packed(layout)), None)

    @property
    def nearest_layout(self) -> str:
        """The one of `nchw` and `nhwc` that is closer to the order in memory.

        `nhwc` where neighbours along the channel axis are closer than along every axis of space.
        """
        if self.layout is not None:
            return self.layout
        if len(self.shape) < 3 or self.shape[1] <= 1 or self.strides[1] == 0:
            return "nchw"
        space = [abs(s) for n, s in zip(self.shape[2:], self.strides[2:], strict=True) if n > 1 and s != 0]
        return "nhwc" if space and abs(self.strides[1]) < min(space) else "nchw"

    @property
    def order(self) -> tuple[int, ...]:
        """The axes from outermost to innermost in memory; the logical order where strides repeat or tie."""
        if self.layout is not None:
            return layout_order(self.layout, len(self.shape))
        if any(s == 0 and n > 1 for n, s in zip(self.shape, self.strides, strict=True)):
            return tuple(range(len(self.shape)))
        return tuple(sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis])))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements themselves, without gaps."""
        return self.size * DTYPES[self.dtype]

    @property
    def is_dense(self) -> bool:
        """Tell whether the elements fill one run of memory, each place once, whatever the order of axes."""
        low, high = self.span()
        return high - low + 1 == self.size and not self.is_overlapping()

    def span(self) -> tuple[int, int]:
        """Return the lowest and highest element index that is touched, relative to the pointer.

        For an empty tensor that is (offset, offset - 1).
        """
        if 0 in self.shape:
            return self.offset, self.offset - 1
        low = high = self.offset
        for n, s in zip(self.shape, self.strides, strict=True):
            if s < 0:
                low += (n - 1) * s
            else:
                high += (n - 1) * s
        return low, high

    def is_overlapping(self) -> bool:
        """Tell whether two indices share an element of memory.

        Exact for broadcast axes, for everything made by slicing and transposing, and for every tensor of up
        to 2^22 elements. A larger one with interleaved strides that no simple rule clears counts as
        overlapping.
        """
        axes = sorted((abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1)
        if 0 in self.shape or not axes:
            return False
        if axes[0][0] == 0:
            return True
        reach = 0
        for stride, extent in axes:
            if stride <= reach:
                break
            reach += stride * (extent - 1)
        else:
            return False
        low, high = self.span()
        if high - low + 1 < self.size or self.size > _SEARCHED_ELEMENTS:
            return True
        places = np.zeros(1, dtype=np.int64)
        for stride, extent in axes:
            places = (places[:, None] + stride * np.arange(extent)).ravel()
        return np.unique(places).size < places.size

    def coincides(self, other: TensorDescriptor) -> bool:
        """Tell whether every index is at the same place in both: strides of axes of extent 1 may differ."""
        if (self.shape, self.dtype, self.offset) != (other.shape, other.dtype, other.offset):
            return False
        strides = zip(self.shape, self.strides, other.strides, strict=True)
        return 0 in self.shape or all(n == 1 or s == t for n, s, t in strides)

    def transpose(self, axes: Sequence[int]) -> TensorDescriptor:
        """Return the descriptor with its axes permuted, as `numpy.transpose` does. Raises InvalidArgument."""
        axes = integer_numbers(axes, "axes")
        if sorted(axes) != list(range(len(self.shape))):
            raise InvalidArgument(f"axes {axes}: they must be a permutation of 0 to {len(self.shape) - 1}")
        return TensorDescriptor(
            tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes), self.dtype, self.offset
        )

    def slice(self, *ranges: slice | None) -> TensorDescriptor:
        """Return the descriptor of a sub-region: a slice, or None for all, for each axis from the first on.

        Steps may be negative and bounds are clipped, as in NumPy. Raises InvalidArgument for too many ranges.
        """
        if len(ranges) > len(self.shape):
            raise InvalidArgument(f"{len(ranges)} ranges for {len(self.shape)} dimensions")
        shape, strides, offset = list(self.shape), list(self.strides), self.offset
        for axis, part in enumerate(ranges):
            if part is None:
                continue
            try:
                taken = range(*part.indices(shape[axis]))
            except Exception:  # what is no slice, or one of other things than numbers, or with a step of 0
                raise InvalidArgument(
                    f"range {axis} is {shown(part)}: it must be a slice of integers, its step not 0, or None"
                ) from None
            if len(taken):
                offset += taken.start * strides[axis]
            shape[axis], strides[axis] = len(taken), strides[axis] * taken.step
        return TensorDescriptor(tuple(shape), tuple(strides), self.dtype, offset)

    def broadcast_to(self, shape: Sequence[int]) -> TensorDescriptor:
        """Return the descriptor broadcast to `shape` as in NumPy: axes repeated (stride 0) or added in front.

        Raises InvalidShape where an extent is neither 1 nor that of `shape`.
        """
        target = extents_of(shape)
        missing = len(target) - len(self.shape)
        if missing < 0:
            raise InvalidShape(
                f"shape {self.shape} cannot be broadcast to {target}, which has fewer dimensions"
            )
        strides = [0] * missing
        for have, want, stride in zip(self.shape, target[missing:], self.strides, strict=True):
            if have not in (1, want):
                raise InvalidShape(
                    f"shape {self.shape} cannot be broadcast to {target}: {have} is neither 1 nor {want}"
                )
            strides.append(stride if have == want else 0)
        return TensorDescriptor(target, tuple(strides), self.dtype, self.offset)

    def insert_axis(self, axis: int) -> TensorDescriptor:
        """Return the descriptor with an axis of extent 1 put before `axis`, which may be the rank."""
        if not 0 <= integer_number(axis, "axis") <= len(self.shape):
            raise InvalidArgument(f"axis {axis}: it must be 0 to {len(self.shape)}")
        # the stride of a unit axis is never used; the extent times stride of what follows keeps a dense
        # tensor dense
        stride = self.shape[axis] * self.strides[axis] if axis < len(self.shape) else 1
        return TensorDescriptor(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            (*self.strides[:axis], stride, *self.strides[axis:]),
            self.dtype,
            self.offset,
        )

    def normalized(self) -> TensorDescriptor:
        """Return an equivalent descriptor, with packed strides if only unit or empty axes stand in the way.

        Strides of axes of extent 1 carry no meaning, and libraries fill them differently: without this, equal
        problems would have different names.
        """
        if self.layout is not None:
            return self
        for layout in ("nchw", "nhwc"):
            packed = packed_strides(self.shape, layout_order(layout, len(self.shape)))
            if 0 in self.shape or all(
                n == 1 or s == p for n, s, p in zip(self.shape, self.strides, packed, strict=True)
            ):
                return TensorDescriptor(self.shape, packed, self.dtype, self.offset)
        return self
