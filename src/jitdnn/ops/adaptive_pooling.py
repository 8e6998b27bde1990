"""Adaptive pooling and its gradients over anybody's arrays: the number of windows is given, not their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, as_key, extents, index_dtype, numbers, per_axis, settled_before
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, logical_shape, packed_like
from jitdnn.problems.pooling import INDEX_DTYPES, Pooling
from jitdnn.tensor import TensorDescriptor

PerAxis = int | Sequence[int]


def adaptive_avg_pool(
    x: Any,
    windows: PerAxis,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the averages of `windows` bins along each axis of space: alpha * average + beta * out.

    `x`: (N, C, space) with 1 to 3 axes of space, of a real type, int8 or uint8; `layout="NHWC"` takes and gives
    (N, space, C). Bin o of an axis of extent i has the elements floor(o * i / windows) to
    ceil((o + 1) * i / windows) - 1. The result lies in memory as x does, channels first or last.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    return call(_FORWARD, ("x",), (x,), ("avg", as_key(windows), layout), out, alpha, beta, handle)


def adaptive_max_pool(
    x: Any,
    windows: PerAxis,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    return_indices: bool | str = False,
) -> Any:
    """Return the maxima of `windows` bins along each axis of space: alpha * max + beta * out.

    The bins are those of `adaptive_avg_pool`, `return_indices` is that of `max_pool`. Raises as these do.
    """
    dtype = None if return_indices is False else index_dtype(return_indices, "return_indices", INDEX_DTYPES)
    if dtype is None:
        return call(_FORWARD, ("x",), (x,), ("max", as_key(windows), layout), out, alpha, beta, handle)
    arguments = (as_key(windows), layout, dtype)
    return call(_WITH_INDICES, ("x",), (x,), arguments, out, alpha, beta, handle, results=2)


def adaptive_avg_pool_backward(
    dy: Any,
    x_shape: Sequence[int],
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `adaptive_avg_pool`) + beta * out, of the shape `x_shape`.

    `dy`: (N, C, windows), `x_shape`: (N, C, space), in the order of `layout`. The result lies in memory as dy does,
    channels first or last. Raises as the forward call does.
    """
    return call(_BACKWARD, ("dy",), (dy,), ("avg", as_key(x_shape), layout), out, alpha, beta, handle)


def adaptive_max_pool_backward(
    dy: Any,
    x: Any,
    y: Any,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `adaptive_max_pool`) + beta * out, of x's shape and dy's order in memory.

    `dy` and `y` (what the forward call gave): (N, C, windows); `x`: (N, C, space). Each element of dy goes to the
    first maximum of its bin. Raises as the forward call does.
    """
    arguments = ("max", None, layout)
    return call(_BACKWARD_OF_MAXIMUM, ("dy", "x", "y"), (dy, x, y), arguments, out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    windows: PerAxis,
    layout: str | None,
) -> Recipe:
    x = logical(inputs[0], layout)
    y = None if out is None else logical(out, layout)
    problem = Pooling.adaptive("fwd", mode, x, windows, layout=x.nearest_layout, y=y)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_with_indices(
    inputs: Sequence[TensorDescriptor],
    outs: Sequence[TensorDescriptor | None],
    windows: PerAxis,
    layout: str | None,
    dtype: str,
) -> Recipe:
    x = logical(inputs[0], layout)
    y, indices = (None if out is None else logical(out, layout) for out in outs)
    problem = Pooling.adaptive(
        "fwd", "max", x, windows, layout=x.nearest_layout, y=y, indices=indices or dtype
    )
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    x_shape: tuple[int, ...] | None,
    layout: str | None,
) -> Recipe:
    dy, *saved = (logical(tensor, layout) for tensor in inputs)
    if x_shape is not None:
        shape = logical_shape(x_shape, layout)
        saved = [packed_like(dy, shape), packed_like(dy, dy.shape)]
    x, y = saved
    dx = packed_like(dy, x.shape) if out is None else logical(out, layout)
    windows = per_axis(dy.shape[2:], len(x.shape) - 2, "the space of dy")
    problem = Pooling.adaptive("bwd", mode, x, windows, y=y, dx=dx, dy=dy)
    return Recipe(problem, None, callers_axes(layout, len(dy.shape)))


_MODE, _WINDOWS = settled_before("mode"), numbers("windows", 1)

_FORWARD = Op(_make_forward, (_MODE, _WINDOWS, LAYOUT))
_BACKWARD = Op(_make_backward, (_MODE, extents("x_shape"), LAYOUT))
_BACKWARD_OF_MAXIMUM = Op(_make_backward, (_MODE, settled_before("x_shape"), LAYOUT))
_WITH_INDICES = Op(_make_with_indices, (_WINDOWS, LAYOUT, settled_before("return_indices")))
