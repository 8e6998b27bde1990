"""Softmax and its gradient over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import Argument, one_or_each, word
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.softmax import ALGORITHMS, Softmax
from jitdnn.tensor import TensorDescriptor

Axis = str | int | Sequence[int]


def softmax(
    x: Any,
    axis: Axis = 1,
    algorithm: str = "accurate",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * softmax(x) + beta * out, of x's shape and order in memory; float16, bfloat16, 32 or 64.

    `axis`: the axes that sum to 1, as numbers (negative from the end), "channel" (axis 1), or "instance" (all
    but axis 0). `algorithm`: "accurate" subtracts the maximum first, "fast" does not and may overflow, "log"
    gives the logarithm of the accurate one. `out` may be x itself.

    Raises InvalidShape, InvalidType, and InvalidArgument for an axis or a name that there is not.
    """
    return call(_FORWARD, ("x",), (x,), (axis, algorithm), out, alpha, beta, handle)


def softmax_backward(
    dy: Any,
    y: Any,
    axis: Axis = 1,
    algorithm: str = "accurate",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `softmax`) + beta * out, of dy's shape and order in memory.

    `y` is what `softmax(x, axis, algorithm)` gave, for the same axis and algorithm. `out` may be dy itself.
    Raises as `softmax` does.
    """
    return call(_BACKWARD, ("dy", "y"), (dy, y), (axis, algorithm), out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, axis: Axis, algorithm: str
) -> Recipe:
    (x,) = inputs
    return Recipe(Softmax.make("fwd", x, axis, algorithm, y=out or same_order(x)))


def _make_backward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, axis: Axis, algorithm: str
) -> Recipe:
    dy, y = inputs
    return Recipe(Softmax.make("bwd", y, axis, algorithm, y=y, dx=out or same_order(dy), dy=dy))


def _axis(value: Any, name: str) -> Axis:
    return value if isinstance(value, str) else one_or_each(value, name)


_TAKES = (Argument("axis", _axis), word("algorithm", ALGORITHMS))

_FORWARD = Op(_make_forward, _TAKES, in_place=(0,))
_BACKWARD = Op(_make_backward, _TAKES, in_place=(0,))
