"""Unpooling and its gradient over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, as_key, numbers, per_axis
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, packed_like
from jitdnn.problems.unpooling import Unpooling
from jitdnn.tensor import TensorDescriptor


def max_unpool(
    x: Any,
    indices: Any,
    space: int | Sequence[int],
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * y + beta * out, where y (N, C, space) has the values of x at their indices and zeros elsewhere.

    `x`: (N, C, output space) of a real type, what `max_pool` gives, and `indices`, int32 or int64 of x's shape, what
    it gives with `return_indices`. `space`: the extents of the image, or one for all its axes. `layout="NHWC"` takes
    (N, output space, C) and gives (N, space, C). Of several values for one element the last one stays; an index
    outside of the image is left out. The result lies in memory as x does, channels first or last.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    return call(_FORWARD, ("x", "indices"), (x, indices), (as_key(space), layout), out, alpha, beta, handle)


def max_unpool_backward(
    dy: Any,
    indices: Any,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the elements of dy at the indices) + beta * out, of the shape of `indices`.

    `dy`: (N, C, space); the gradient of an index outside of the image is 0. Where several values had one element,
    each is given the gradient of it, as PyTorch does. The result lies in memory as dy does, channels first or last.
    Raises as `max_unpool` does.
    """
    return call(_BACKWARD, ("dy", "indices"), (dy, indices), (layout,), out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    space: int | Sequence[int],
    layout: str | None,
) -> Recipe:
    x, indices = (logical(tensor, layout) for tensor in inputs)
    shape = (*x.shape[:2], *per_axis(space, len(x.shape) - 2, "space"))
    y = packed_like(x, shape) if out is None else logical(out, layout)
    return Recipe(Unpooling.make("fwd", x, y, indices), None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, layout: str | None
) -> Recipe:
    dy, indices = (logical(tensor, layout) for tensor in inputs)
    dx = packed_like(dy, indices.shape) if out is None else logical(out, layout)
    return Recipe(Unpooling.make("bwd", dx, dy, indices), None, callers_axes(layout, len(dy.shape)))


_FORWARD = Op(_make_forward, (numbers("space", 1), LAYOUT))
_BACKWARD = Op(_make_backward, (LAYOUT,))
