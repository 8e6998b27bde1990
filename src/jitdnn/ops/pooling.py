"""Pooling and its gradients over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, logical_shape, packed_like
from jitdnn.problems.pooling import Pooling, output_shape
from jitdnn.tensor import TensorDescriptor

PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


def max_pool(
    x: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    rounding: str = "floor",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the maximum of every window of x: alpha * max + beta * out, (N, C, output space).

    `x`: (N, C, space) with 1 to 3 axes of space, float32 or float64; `layout="NHWC"` takes and gives (N,
    space, C). `window`, `stride` (None: the window): one number, or one for each axis; `padding`: the same,
    or (before, after) pairs, less than the window; in elements. `rounding` of the output extent: "floor",
    "ceil", or "caffe" for Caffe's exact rule (`jitdnn.problems.pooling` has the formulas). A NaN in the
    window is the maximum. The result lies in memory as x does, channels first or last.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    arguments = ("max", window, stride, padding, True, rounding, layout)
    return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)


def avg_pool(
    x: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    rounding: str = "floor",
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
    arguments = ("avg", window, stride, padding, bool(count_include_pad), rounding, layout)
    return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)


def max_pool_backward(
    dy: Any,
    x: Any,
    y: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    rounding: str = "floor",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `max_pool`) + beta * out, of x's shape and dy's order in memory.

    `dy` and `y` (what `max_pool(x, ...)` gave): (N, C, output space); `x`: (N, C, space). Each element of dy
    goes to the first maximum of its window. The other arguments are those of the forward call. Raises as
    `max_pool` does.
    """
    arguments = ("max", None, window, stride, padding, True, rounding, layout)
    return call(_BACKWARD, ("dy", "x", "y"), (dy, x, y), arguments, out, alpha, beta, handle)


def avg_pool_backward(
    dy: Any,
    x_shape: Sequence[int],
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    rounding: str = "floor",
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
    shape = tuple(x_shape) if isinstance(x_shape, (tuple, list)) else x_shape
    arguments = ("avg", shape, window, stride, padding, bool(count_include_pad), rounding, layout)
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
    )
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    x_shape: Sequence[int] | None,
    window: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    count_include_pad: bool,
    rounding: str,
    layout: str | None,
) -> Recipe:
    dy, *saved = (logical(tensor, layout) for tensor in inputs)
    if x_shape is not None:
        shape = logical_shape(x_shape, layout, "x_shape")
        y_shape = output_shape(shape, window, stride, padding, rounding)
        saved = [packed_like(dy, shape), packed_like(dy, y_shape)]
    x, y = saved
    dx = packed_like(dy, x.shape) if out is None else logical(out, layout)
    problem = Pooling.make(
        "bwd", mode, x, window, stride, padding, count_include_pad, rounding, y=y, dx=dx, dy=dy
    )
    return Recipe(problem, None, callers_axes(layout, len(dy.shape)))


def _make_global(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, mode: str, layout: str | None
) -> Recipe:
    space = logical(inputs[0], layout).shape[2:]
    return _make_forward(inputs, out, mode, space, None, 0, True, "floor", layout)


_FORWARD = Op(_make_forward)
_BACKWARD = Op(_make_backward)
_GLOBAL = Op(_make_global)
