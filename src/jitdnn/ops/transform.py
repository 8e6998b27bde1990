"""Copies into other layouts and types, with borders, folded, joined or cut, over anybody's arrays."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import (
    LAYOUT,
    MOST,
    MOST_EXTENT,
    MOST_INDEX,
    MOST_NUMBERS,
    as_key,
    integer,
    integer_number,
    numbers,
    one_or_each,
    padding_pairs,
    pads,
    per_axis,
    real,
    sequence,
    settled_before,
    shown,
    word,
)
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, logical, logical_axes, packed_like, same_order
from jitdnn.problems.transform import ORDERS, Concatenate, Transform, joined_shape, output_shape
from jitdnn.tensor import Array, TensorDescriptor, borrow, dtype_of, packed_strides

_MOST_PARTS = 1 << 16
Padding = int | Sequence[int | Sequence[int]]


def transform(
    x: Any,
    layout: str | None = None,
    dtype: Any = None,
    pad: Padding = 0,
    value: float = 0.0,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * x + beta * out in another order in memory, of another type, or with a border.

    `x`: 1 to 8 dimensions, any dtype. `layout`: "nchw" or "nhwc", the order in memory of the result, whose axes stay
    N, C, space; None for that of x. `dtype`: a name such as "bf16", or a NumPy dtype; None for that of x. Reals are
    rounded to the nearest and saturated where the result holds integers. `pad`: elements before and after, one number,
    or one or a pair for each axis; they hold alpha * `value`. Where `out` is given it decides layout and type.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    name = None if dtype is None else dtype_of(dtype)
    arguments = (layout, name, as_key(pad), value)
    return call(_TRANSFORM, ("x",), (x,), arguments, out, alpha, beta, handle)


def _make_transform(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    layout: str | None,
    dtype: str | None,
    pad: Padding,
    value: float,
) -> Recipe:
    (x,) = inputs
    pairs = padding_pairs(pad, len(x.shape))
    shape = output_shape("transform", x.shape, pairs, ())
    if out is None:
        like = TensorDescriptor(x.shape, x.strides, dtype or x.dtype)
        out = TensorDescriptor.packed(shape, like.dtype, layout) if layout else same_order(like, shape)
    return Recipe(Transform("transform", x, out, pairs, value))


def fold(
    x: Any,
    factors: int | Sequence[int],
    order: str = "crd",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return x (N, C, space) with blocks of space put into the channels: (N, C * prod(factors), space / factors).

    `factors`: one number, or one for each of 1 to 3 axes of space, which it must divide. `order`: "crd", where the
    elements of a block are neighbours among the channels (PyTorch's pixel_unshuffle), or "dcr", where the channels of
    x are (ONNX's SpaceToDepth). `layout="NHWC"` takes and gives (N, space, C). Any dtype.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    return call(_FOLD, ("x",), (x,), ("fold", factors, order, layout), out, alpha, beta, handle)


def unfold(
    x: Any,
    factors: int | Sequence[int],
    order: str = "crd",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the inverse of `fold` (pixel_shuffle, DepthToSpace); arguments and errors are those of `fold`."""
    return call(_FOLD, ("x",), (x,), ("unfold", factors, order, layout), out, alpha, beta, handle)


def _make_fold(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    how: str,
    factors: int | Sequence[int],
    order: str,
    layout: str | None,
) -> Recipe:
    x = logical(inputs[0], layout)
    rank = len(x.shape) - 2
    each = (factors,) * max(1, rank) if isinstance(factors, int) else tuple(factors)
    shape = output_shape(how, x.shape, (), each)
    y = packed_like(x, shape) if out is None else logical(out, layout)
    return Recipe(Transform(how, x, y, (), 0.0, each, order), None, _callers(layout, len(shape)))


def _callers(layout: str | None, rank: int) -> tuple[int, ...] | None:
    return None if logical_axes(layout, rank) is None else (0, *range(2, rank), 1)


def concat(
    arrays: Sequence[Any],
    axis: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return arrays joined along an axis, the channels by default; all of one dtype, any, and of one rank.

    They may differ in extent on that axis only. The result lies in memory as the first one does. Raises InvalidShape,
    InvalidType and InvalidArgument for what does not fit.
    """
    arrays = sequence(arrays, "arrays", _MOST_PARTS)
    if not arrays:
        raise InvalidArgument("there is nothing to join: give at least one array")
    names = [f"array {number}" for number in range(len(arrays))]
    return call(_CONCAT, names, arrays, (axis,), out, alpha, beta, handle)


def _make_concat(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, axis: int) -> Recipe:
    shape = joined_shape([tensor.shape for tensor in inputs], axis)
    return Recipe(Concatenate(axis, tuple(inputs), out or same_order(inputs[0], shape)))


def slice(
    x: Any,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int] | int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return a copy of a part of x: on each axis from start to stop (exclusive) by step, as NumPy's slices.

    One entry for each axis from the first on; None for an end, negative numbers count from the end, and bounds are
    clipped. `steps` may be negative, not 0. Any dtype. Raises InvalidArgument for other entries or more than there
    are axes.
    """
    starts, stops = _bounds(starts, "starts"), _bounds(stops, "stops")
    each = per_axis(steps, len(starts), "steps", -MOST)
    if not len(starts) == len(stops) == len(each):
        raise InvalidArgument(
            f"{len(starts)} starts, {len(stops)} stops and {len(each)} steps: give as many of each"
        )
    array = borrow(x, False, "x")
    rank = len(array.descriptor.shape)
    if len(starts) > rank or 0 in each:
        raise InvalidArgument(
            f"{len(starts)} ranges with steps {each} for {rank} axes: at most {rank}, no step of 0"
        )
    part = array.part(*(builtins.slice(*range_) for range_ in zip(starts, stops, each, strict=True)))
    return _copy(part, array, alpha, beta, out, handle)


def _bounds(values: Any, name: str) -> tuple[int | None, ...]:
    entries = sequence(values, name, MOST_NUMBERS)
    return tuple(None if value is None else integer_number(value, name, most=MOST_INDEX) for value in entries)


def split(x: Any, sections: int | Sequence[int], axis: int = 1, handle: Handle | None = None) -> list[Any]:
    """Return x cut along an axis: into `sections` equal parts, or into parts of these extents, as copies.

    Any dtype. Raises InvalidArgument for an axis that there is not, or extents that do not add up.
    """
    array = borrow(x, False, "x")
    shape = array.descriptor.shape
    axis = integer_number(axis, "axis")
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgument(f"axis is {axis}: it must be {-len(shape)} to {len(shape) - 1}")
    axis %= len(shape)
    extent = shape[axis]
    sections = one_or_each(sections, "sections", 0, most=MOST_EXTENT, count=_MOST_PARTS)
    if isinstance(sections, int):
        if not 1 <= sections <= _MOST_PARTS or extent % sections:
            raise InvalidArgument(
                f"{extent} elements on axis {axis} cannot be cut into {sections} equal parts"
            )
        sections = (extent // sections,) * sections
    if sum(sections) != extent:
        raise InvalidArgument(
            f"sections {shown(sections)} do not add up to the {extent} elements of axis {axis}"
        )
    parts, start = [], 0
    for size in sections:
        part = array.part(*(None,) * axis, builtins.slice(start, start + size))
        parts.append(_copy(part, array, 1.0, 0.0, None, handle))
        start += size
    return parts


def _copy(part: Array, whole: Array, alpha: float, beta: float, out: Any, handle: Handle | None) -> Any:
    """A copy of a part, in the order in memory of the whole."""
    order = whole.descriptor.order
    return call(_PART, ("x",), (part,), (order,), out, alpha, beta, handle)


def _make_part(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, order: tuple[int, ...]
) -> Recipe:
    (x,) = inputs
    y = out or TensorDescriptor(x.shape, packed_strides(x.shape, order), x.dtype)
    return Recipe(Transform("transform", x, y))


_TRANSFORM = Op(_make_transform, (LAYOUT, settled_before("dtype"), pads("pad"), real("value", finite=False)))
_FOLD = Op(_make_fold, (settled_before("how"), numbers("factors", 1), word("order", ORDERS), LAYOUT))
_CONCAT = Op(_make_concat, (integer("axis"),))
_PART = Op(_make_part, (settled_before("order"),))
