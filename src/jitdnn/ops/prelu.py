"""The rectifier with a learned slope over anybody's arrays, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import integer
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.prelu import PRelu
from jitdnn.rtcg.expression import is_traced, where
from jitdnn.tensor import TensorDescriptor


def prelu(
    x: Any,
    weight: Any,
    axis: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * (x where x > 0, else weight * x) + beta * out, of x's shape and order in memory (PReLU).

    `x`: 1 to 8 dimensions, float16, bfloat16, float32 or float64; `weight`, of the same dtype: (x.shape[axis],), one
    for each index of the axis (-1: the last one), or (1,) for one for all. Both may be values of a function that is
    being traced. `out` may be x itself.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    if is_traced(x, weight):
        return where(x > 0.0, x, weight * x)
    return call(_FORWARD, ("x", "weight"), (x, weight), (axis,), out, alpha, beta, handle)


def prelu_backward(
    dy: Any,
    x: Any,
    weight: Any,
    axis: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight) of `prelu`: alpha * gradient + beta * what `out` holds.

    `dy`: the gradient of what `prelu(x, weight, axis)` returned. dweight is summed over all elements that share a
    weight; the slope at 0 is the weight. dx lies in memory as dy does. `out`: None or a pair, with None for what is
    to be allocated; out for dx may be dy or x. Raises as `prelu` does.
    """
    return call(
        _BACKWARD, ("dy", "x", "weight"), (dy, x, weight), (axis,), out, alpha, beta, handle, results=2
    )


def _make_forward(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, axis: int) -> Recipe:
    x, weight = inputs
    return Recipe(PRelu.make("fwd", x, weight, axis, y=out or same_order(x)))


def _make_backward(
    inputs: Sequence[TensorDescriptor], outs: Sequence[TensorDescriptor | None], axis: int
) -> Recipe:
    dy, x, weight = inputs
    dx, dweight = outs
    problem = PRelu.make(
        "bwd", x, weight, axis, y=same_order(x), dx=dx or same_order(dy), dweight=dweight, dy=dy
    )
    return Recipe(problem)


_AXIS = integer("axis")

_FORWARD = Op(_make_forward, (_AXIS,), in_place=(0,))
_BACKWARD = Op(_make_backward, (_AXIS,), in_place=(0, 1))
