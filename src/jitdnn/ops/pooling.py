"""Pooling and its gradients over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import (
    LAYOUT,
    as_key,
    extents,
    index_dtype,
    numbers,
    optional,
    pads,
    settled_before,
    word,
    yes,
)
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, logical_shape, packed_like
from jitdnn.problems.pooling import INDEX_DTYPES, ROUNDINGS, Pooling, output_shape
from jitdnn.tensor import TensorDescriptor

PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


def max_pool(
    x: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    rounding: str = "floor",
    dilation: PerAxis = 1,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    return_indices: bool | str = False,
) -> Any:
    """Return the maximum of every window of x: alpha * max + beta * out, (N, C, output space).

    `x`: (N, C, space) with 1 to 3 axes of space, of a real type, int8 or uint8; `layout="NHWC"` takes and gives
    (N, space, C). `window`, `stride` (None: the window), `dilation` (the distance of the elements of a window):
    one number, or one for each axis; `padding`: the same, or (before, after) pairs, less than what the window
    spans; in elements. `rounding` of the output extent: "floor", "ceil", or "caffe" for Caffe's exact rule
    (`jitdnn.problems.pooling` has the formulas). A NaN in the window is the maximum. The result lies in memory as
    x does, channels first or last.

    With `return_indices` the result is (y, indices), and `out` a tuple of two: for each maximum the number of its
    element in the image, d * H * W + h * W + w, the first one of several (-1: the window is empty); int64, or the
    type that `return_indices` names, "i32" or "i64". `max_unpool` takes them.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    dtype = None if return_indices is False else index_dtype(return_indices, "return_indices", INDEX_DTYPES)
    if dtype is None:
        arguments = ("max", window, stride, padding, True, rounding, dilation, layout)
        return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)
    with_indices = (window, stride, padding, rounding, dilation, layout, dtype)
    return call(_WITH_INDICES, ("x",), (x,), with_indices, out, alpha, beta, handle, results=2)


def avg_pool(
    x: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    rounding: str = "floor",
    dilation: PerAxis = 1,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the average of every window of x: alpha * average + beta * out, (N, C, output space).

    With `count_include_pad` the zeros of the padding count as elements. The other arguments and the errors
    are those of `max_pool`.
    """
    arguments = ("avg", window, stride, padding, count_include_pad, rounding, dilation, layout)
    return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)


def max_pool_backward(
    dy: Any,
    x: Any,
    y: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    rounding: str = "floor",
    dilation: PerAxis = 1,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `max_pool`) + beta * out, of x's shape and dy's order in memory.

    `dy` and `y` (what `max_pool(x, ...)` gave): (N, C, output space); `x`: (N, C, space). Each element of dy
    goes to the first maximum of its window, and where windows overlap the terms of an element are added in one
    fixed order: the result is the same to the last bit on any number of threads. The other arguments
    are those of the forward call. Raises as `max_pool` does.
    """
    arguments = ("max", None, window, stride, padding, True, rounding, dilation, layout)
    return call(_BACKWARD_OF_MAXIMUM, ("dy", "x", "y"), (dy, x, y), arguments, out, alpha, beta, handle)


def avg_pool_backward(
    dy: Any,
    x_shape: Sequence[int],
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    rounding: str = "floor",
    dilation: PerAxis = 1,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `avg_pool`) + beta * out, of the shape `x_shape`.

    It lies in memory as dy does, channels first or last.

    `dy`: (N, C, output space), `x_shape`: (N, C, space), in the order of `layout`. The other arguments are
    those of the forward call. Raises as `max_pool` does.
    """
    arguments = (
        "avg",
        as_key(x_shape),
        window,
        stride,
        padding,
        count_include_pad,
        rounding,
        dilation,
        layout,
    )
    return call(_BACKWARD, ("dy",), (dy,), arguments, out, alpha, beta, handle)


def global_max_pool(
    x: Any,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the maximum over all of space, alpha * max + beta * out: (N, C, 1, ...) of x (N, C, space).

    `layout="NHWC"` takes (N, space, C) and gives (N, 1, ..., C). Raises as `max_pool` does.
    """
    return call(_GLOBAL, ("x",), (x,), ("max", layout), out, alpha, beta, handle)


def global_avg_pool(
    x: Any,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the average over all of space, alpha * average + beta * out: (N, C, 1, ...) of x (N, C, space).

    `layout="NHWC"` takes (N, space, C) and gives (N, 1, ..., C). Raises as `max_pool` does.
    """
    return call(_GLOBAL, ("x",), (x,), ("avg", layout), out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    window: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    count_include_pad: bool,
    rounding: str,
    dilation: PerAxis,
    layout: str | None,
) -> Recipe:
    x = logical(inputs[0], layout)
    y = None if out is None else logical(out, layout)
    problem = Pooling.make(
        "fwd",
        mode,
        x,
        window,
        stride,
        padding,
        count_include_pad,
        rounding,
        layout=x.nearest_layout,
        y=y,
        dilation=dilation,
    )
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_with_indices(
    inputs: Sequence[TensorDescriptor],
    outs: Sequence[TensorDescriptor | None],
    window: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    rounding: str,
    dilation: PerAxis,
    layout: str | None,
    dtype: str,
) -> Recipe:
    x = logical(inputs[0], layout)
    y, indices = (None if out is None else logical(out, layout) for out in outs)
    problem = Pooling.make(
        "fwd", "max", x, window, stride, padding, rounding=rounding, layout=x.nearest_layout, y=y,
        dilation=dilation, indices=indices or dtype,
    )  # fmt: skip
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    x_shape: tuple[int, ...] | None,
    window: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    count_include_pad: bool,
    rounding: str,
    dilation: PerAxis,
    layout: str | None,
) -> Recipe:
    dy, *saved = (logical(tensor, layout) for tensor in inputs)
    if x_shape is not None:
        shape = logical_shape(x_shape, layout)
        y_shape = output_shape(shape, window, stride, padding, rounding, dilation)
        saved = [packed_like(dy, shape), packed_like(dy, y_shape)]
    x, y = saved
    dx = packed_like(dy, x.shape) if out is None else logical(out, layout)
    problem = Pooling.make(
        "bwd", mode, x, window, stride, padding, count_include_pad, rounding, y=y, dx=dx, dy=dy,
        dilation=dilation,
    )  # fmt: skip
    return Recipe(problem, None, callers_axes(layout, len(dy.shape)))


def _make_global(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, mode: str, layout: str | None
) -> Recipe:
    space = logical(inputs[0], layout).shape[2:]
    return _make_forward(inputs, out, mode, space, None, 0, True, "floor", 1, layout)


_WINDOW = (numbers("window", 1), optional(numbers("stride", 1)), pads())
_LAST = (word("rounding", ROUNDINGS), numbers("dilation", 1), LAYOUT)
_MODE, _COUNTS = settled_before("mode"), yes("count_include_pad")

_FORWARD = Op(_make_forward, (_MODE, *_WINDOW, _COUNTS, *_LAST))
_BACKWARD = Op(_make_backward, (_MODE, extents("x_shape"), *_WINDOW, _COUNTS, *_LAST))
_BACKWARD_OF_MAXIMUM = Op(_make_backward, (_MODE, settled_before("x_shape"), *_WINDOW, _COUNTS, *_LAST))
_GLOBAL = Op(_make_global, (_MODE, LAYOUT))
_WITH_INDICES = Op(_make_with_indices, (*_WINDOW, *_LAST, settled_before("return_indices")))
