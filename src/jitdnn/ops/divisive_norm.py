"""Divisive normalization and its gradients over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, integer, real
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, same_order
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.lrn import MOST_TAPS
from jitdnn.tensor import TensorDescriptor


def divisive_norm(
    x: Any,
    means: Any = None,
    size: int = 5,
    norm_alpha: float = 1e-4,
    norm_beta: float = 0.75,
    k: float = 2.0,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * x * s^(-norm_beta) + beta * out, with s = k + norm_alpha / elements * sum((x - means)^2).

    The sum goes over a window of `size` elements along each axis of space, in the channel of the element, which
    `elements` counts whole: zeros outside of the tensor count. `x`: (N, C, space) with 1 to 3 axes of space, of a
    real type; `layout="NHWC"` takes and gives (N, space, C). `means`: None for zeros, or numbers of x's shape,
    usually the averages of the same windows. The result lies in memory as x does.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    arguments = (size, norm_alpha, norm_beta, k, layout)
    if means is None:
        return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)
    return call(_FORWARD, ("x", "means"), (x, means), arguments, out, alpha, beta, handle)


def divisive_norm_backward(
    dy: Any,
    x: Any,
    means: Any = None,
    size: int = 5,
    norm_alpha: float = 1e-4,
    norm_beta: float = 0.75,
    k: float = 2.0,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx, or with means (dx, dmeans): alpha * (the gradients of `divisive_norm`) + beta * out.

    With means, `out` is a tuple of two. The means are taken as independent of x: who made them from x adds to dx
    what dmeans leads to on that way. `dy` and `x` are of the shape of x; the other arguments are those of the
    forward call. Raises as `divisive_norm` does.
    """
    arguments = (size, norm_alpha, norm_beta, k, layout)
    if means is None:
        return call(_BACKWARD, ("dy", "x"), (dy, x), arguments, out, alpha, beta, handle)
    names, arrays = ("dy", "x", "means"), (dy, x, means)
    return call(_WITH_MEANS, names, arrays, arguments, out, alpha, beta, handle, results=2)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    layout: str | None,
) -> Recipe:
    x, *means = (logical(tensor, layout) for tensor in inputs)
    y = same_order(x) if out is None else logical(out, layout)
    problem = DivisiveNorm.make("fwd", x, means[0] if means else None, size, alpha, beta, k, y=y)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    layout: str | None,
) -> Recipe:
    return _make_with_means(inputs, (out,), size, alpha, beta, k, layout)


def _make_with_means(
    inputs: Sequence[TensorDescriptor],
    outs: Sequence[TensorDescriptor | None],
    size: int,
    alpha: float,
    beta: float,
    k: float,
    layout: str | None,
) -> Recipe:
    dy, x, *means = (logical(tensor, layout) for tensor in inputs)
    dx, *dmeans = (same_order(dy) if out is None else logical(out, layout) for out in outs)
    problem = DivisiveNorm.make(
        "bwd", x, means[0] if means else None, size, alpha, beta, k, dx=dx, dy=dy,
        dmeans=dmeans[0] if dmeans else None,
    )  # fmt: skip
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


_TAKES = (integer("size", 1, MOST_TAPS), real("norm_alpha"), real("norm_beta"), real("k"), LAYOUT)

_FORWARD = Op(_make_forward, _TAKES)
_BACKWARD = Op(_make_backward, _TAKES)
_WITH_MEANS = Op(_make_with_means, _TAKES)
