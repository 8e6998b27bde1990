"""Operators that compute nothing: other shapes of the same elements, shapes as values, constants, casts.

They are NumPy views where a view does it. Elements that have to move and are real numbers are moved by this
library (`movement.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.text import as_text, from_text, is_text
from jitdnn.settings import check_bytes


def bounded(shape: tuple[int, ...], like: Array) -> tuple[int, ...]:
    """The shape of a result that a model asks for by numbers in it: of elements of the type of `like` it must fit into
    the setting `load_limit`, before memory is taken. Raises InvalidShape."""
    check_bytes(f"a result of shape {shape}", math.prod(shape) * like.itemsize, InvalidShape)
    return shape


def whole(values: Any) -> tuple[int, ...]:
    """A tensor of integers (or an attribute) as Python numbers."""
    return tuple(int(value) for value in np.asarray(values).ravel())


def chosen_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes as numbers from 0; negative ones count from the end."""
    return tuple(axis % rank if rank else axis for axis in whole(axes))


def identity(x: Any, /) -> Any:
    return x


def reshape(x: Array, shape: Any = None, /, *, allowzero: int = 0) -> Array:
    extents = whole(shape)
    if not allowzero:
        extents = tuple(x.shape[axis] if n == 0 else n for axis, n in enumerate(extents))
    return x.reshape(extents)


def flatten(x: Array, /, *, axis: int = 1) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, int(np.prod(x.shape[axis:], dtype=np.int64)))


def squeeze(x: Array, given: Any = None, /, *, axes: Sequence[int] | None = None) -> Array:
    which = given if given is not None else axes
    if which is None:
        return x.squeeze()
    return x.squeeze(chosen_axes(which, x.ndim))


def unsqueeze(x: Array, given: Any = None, /, *, axes: Sequence[int] | None = None) -> Array:
    return np.expand_dims(x, whole(given if given is not None else axes))


def transpose(x: Array, /, *, perm: Sequence[int] | None = None) -> Array:
    return x.transpose(perm)


def shape(x: Array, /, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[slice(start, end)], np.int64)


def size(x: Array, /) -> Array:
    return np.array(x.size, np.int64)


def constant(
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value
    integer_numbers = value_int if value_int is not None else value_ints
    if integer_numbers is not None:
        return np.array(integer_numbers, np.int64)
    real_numbers = value_float if value_float is not None else value_floats
    if real_numbers is not None:
        return np.array(real_numbers, np.float32)
    return np.array(value_string if value_string is not None else value_strings, object)


def constant_of_shape(extents: Array, /, *, value: Array | None = None) -> Array:
    filled = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(filled, bounded(whole(extents), filled))


def expand(x: Array, extents: Array, /) -> Array:
    return np.broadcast_to(x, bounded(np.broadcast_shapes(x.shape, whole(extents)), x))


def slice_(
    x: Array,
    first: Any = None,
    last: Any = None,
    along: Any = None,
    by: Any = None,
    /,
    *,
    starts: Sequence[int] = (),
    ends: Sequence[int] = (),
    axes: Sequence[int] | None = None,
) -> Array:
    begins = whole(starts if first is None else first)
    stops = whole(ends if last is None else last)
    which = along if along is not None else axes
    numbers = chosen_axes(which, x.ndim) if which is not None else tuple(range(len(begins)))
    steps = whole(by) if by is not None else (1,) * len(begins)
    index = [slice(None)] * x.ndim
    for axis, begin, stop, step in zip(numbers, begins, stops, steps, strict=True):
        n = x.shape[axis]
        # ONNX clamps to the extent; a stop before the first element is none at all, where Python would
        # count it from the end
        clamped: int | None = stop
        if step < 0 and stop < -n:
            clamped = None
        index[axis] = slice(begin if begin >= -n else (0 if step > 0 else -n - 1), clamped, step)
    return x[tuple(index)]


def split(
    x: Array,
    sizes: Any = None,
    /,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int | None = None,
    site: Site,
) -> tuple[Array, ...]:
    extents = whole(sizes if sizes is not None else split) if sizes is not None or split is not None else None
    if num_outputs not in (None, len(site.wanted)):
        raise InvalidArgument(
            f"Split: num_outputs is {num_outputs}, and the node has {len(site.wanted)} outputs"
        )
    if extents is None:
        parts = len(site.wanted)
        # equal ones, only the last may be smaller
        each = -(-x.shape[axis] // parts)
        ends = [min(each * part, x.shape[axis]) for part in range(1, parts)]
    else:
        ends = np.cumsum(extents)[:-1].tolist()
    return tuple(np.split(x, ends, axis))


def eye_like(x: Array, /, *, dtype: int | None = None, k: int = 0) -> Array:
    rows, columns = x.shape
    return np.eye(rows, columns, k, dtype=x.dtype if dtype is None else element_type(dtype))


def range_(start: Array, limit: Array, delta: Array, /) -> Array:
    first, last, step = start.item(), limit.item(), delta.item()
    bounded((max(0, math.ceil((last - first) / step)),), start)
    return np.arange(first, last, step, dtype=start.dtype)


def element_type(number: int) -> np.dtype[Any]:
    """The NumPy dtype of a type number of ONNX."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def cast(x: Array, /, *, to: int, saturate: int = 1, round_mode: str = "up", site: Site) -> Array:
    return converted(x, element_type(to), bool(saturate), round_mode, site)


def cast_like(x: Array, like: Array, /, *, saturate: int = 1, round_mode: str = "up", site: Site) -> Array:
    return converted(x, like.dtype, bool(saturate), round_mode, site)


_BYTE_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def converted(x: Array, dtype: np.dtype[Any], saturate: bool, round_mode: str, site: Site) -> Array:
    """As NumPy and ml_dtypes convert; what is out of a float of 8 bits becomes its greatest if it shall saturate."""
    if is_text(x) or dtype.kind in "OU":
        return as_text(x) if dtype.kind in "OU" else from_text(x, dtype, site)
    if dtype.name == "float8_e8m0fnu" and x.dtype != dtype:
        powers = numpy_helper.to_float8e8m0(x.astype(np.float32), saturate, round_mode)
        return np.asarray(powers.astype(dtype))
    with np.errstate(all="ignore"):
        if saturate and dtype.name in _BYTE_FLOATS:
            return np.asarray(numpy_helper.saturate_cast(x, dtype))
        return x.astype(dtype, copy=False)


def bit_cast(x: Array, /, *, to: int, site: Site) -> Array:
    """The same bits as elements of another type of as many."""
    dtype = element_type(to)
    if x.dtype.kind == "O" or dtype.kind == "O" or x.dtype.itemsize != dtype.itemsize:
        raise site.refuse(f"bits of {x.dtype.name} as {dtype.name} are not covered")
    return x.view(dtype)


def checked_indices(indices: Array, extent: int, site: Site) -> Array:
    """Indices from 0; negative ones count from the end. Raises InvalidArgument for those that are outside."""
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise InvalidArgument(
            f"{site.operator}: indices from {indices.min()} to {indices.max()} are outside of an extent of {extent}"
        )
    return np.where(indices < 0, indices + extent, indices)


OPERATORS = table(
    BitCast=bit_cast,
    Cast=cast,
    CastLike=cast_like,
    Constant=constant,
    ConstantOfShape=constant_of_shape,
    Expand=expand,
    EyeLike=eye_like,
    Flatten=flatten,
    Identity=identity,
    Range=range_,
    Reshape=reshape,
    Shape=shape,
    Size=size,
    Slice=slice_,
    Split=split,
    Squeeze=squeeze,
    Transpose=transpose,
    Unsqueeze=unsqueeze,
)
