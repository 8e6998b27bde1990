"""Activation functions and their gradients over anybody's arrays, or traced inside of an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.activation import Activation
from jitdnn.rtcg.expression import apply, is_traced
from jitdnn.tensor import TensorDescriptor


def relu(x: Any, alpha: float = 1.0, beta: float = 0.0, out: Any = None, handle: Handle | None = None) -> Any:
    """Return alpha * max(x, 0) + beta * out, of x's shape and order in memory. NaN stays NaN.

    `x`: 1 to 8 dimensions, float32 or float64; or a value of a function that is being traced, such as an
    epilogue. `out` may be x itself. Raises InvalidShape, InvalidType and InvalidArgument for what does not
    fit.
    """
    return _forward("relu", x, alpha, beta, out, handle)


def sigmoid(
    x: Any, alpha: float = 1.0, beta: float = 0.0, out: Any = None, handle: Handle | None = None
) -> Any:
    """Return alpha / (1 + exp(-x)) + beta * out; arguments and errors as for `relu`."""
    return _forward("sigmoid", x, alpha, beta, out, handle)


def tanh(x: Any, alpha: float = 1.0, beta: float = 0.0, out: Any = None, handle: Handle | None = None) -> Any:
    """Return alpha * tanh(x) + beta * out; arguments and errors as for `relu`."""
    return _forward("tanh", x, alpha, beta, out, handle)


def relu_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * dy * relu'(x) + beta * out, of dy's shape and order in memory.

    Exactly one of `x`, what `relu` was given, and `y`, what it returned, is needed. The derivative at 0 is 0.
    `out` may be either input itself. Raises as `relu` does.
    """
    return _backward("relu", dy, x, y, alpha, beta, out, handle)


def sigmoid_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * dy * y * (1 - y) + beta * out, y = sigmoid(x); arguments as for `relu_backward`."""
    return _backward("sigmoid", dy, x, y, alpha, beta, out, handle)


def tanh_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * dy * (1 - y * y) + beta * out, y = tanh(x); arguments as for `relu_backward`."""
    return _backward("tanh", dy, x, y, alpha, beta, out, handle)


def _forward(function: str, x: Any, alpha: float, beta: float, out: Any, handle: Handle | None) -> Any:
    if is_traced(x):
        return apply(function, x)
    return call(_FORWARD, ("x",), (x,), (function,), out, alpha, beta, handle)


def _backward(
    function: str, dy: Any, x: Any, y: Any, alpha: float, beta: float, out: Any, handle: Handle | None
) -> Any:
    if (x is None) == (y is None):
        raise InvalidArgument(f"{function}_backward needs x or y, and not both")
    saved, kept = ("x", x) if y is None else ("y", y)
    return call(_BACKWARD, ("dy", saved), (dy, kept), (function, saved), out, alpha, beta, handle)


def _make_forward(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, function: str) -> Recipe:
    (x,) = inputs
    return Recipe(Activation.make("fwd", function, x, y=out or same_order(x)))


def _make_backward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, function: str, saved: str
) -> Recipe:
    dy, kept = inputs
    return Recipe(Activation.make("bwd", function, kept, saved, y=kept, dx=out or same_order(dy), dy=dy))


_FORWARD = Op(_make_forward, in_place=(0,))
_BACKWARD = Op(_make_backward, in_place=(0, 1))
