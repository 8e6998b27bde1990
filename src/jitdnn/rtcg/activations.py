"""Activation functions, each written once in the expression language, with its derivatives.

A backward pass has the forward's input x, its output y, or both. The derivative from x is derived from the
function; the one from y is stated beside it, where it exists (a test holds the two against each other).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.expression import Expression, apply, define, trace, where


@dataclass(frozen=True)
class Activation:
    """``forward(x)``, ``from_x(x)`` = forward'(x), and ``from_y(y)`` = the same from y = forward(x)."""

    name: str
    forward: Expression
    from_x: Expression
    from_y: Expression

    def backward(self, saved: str = "x") -> Expression:
        """dx = dy * f'(x) as an expression of (dy, x), or of (dy, y) if ``saved`` is "y"."""
        slope = {"x": self.from_x, "y": self.from_y}.get(saved)
        if slope is None:
            raise InvalidArgument(f"saved is {saved!r}: the backward pass needs 'x' or 'y'")
        return trace(
            lambda dy, v: dy * slope.interpret([v], float, lambda name, values: apply(name, *values))
        )


ACTIVATIONS: dict[str, Activation] = {}


def _activation(function: Callable[..., Any], from_y: Callable[..., Any]) -> None:
    forward = trace(function)
    name = function.__name__
    ACTIVATIONS[name] = Activation(name, forward, forward.derivative(), trace(from_y))


@define
def relu(x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    return apply("maximum", x, 0.0)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return apply("tanh", x)


_activation(relu, from_y=lambda y: where(y > 0.0, 1.0, 0.0))
_activation(sigmoid, from_y=lambda y: y * (1.0 - y))
_activation(tanh, from_y=lambda y: (1.0 - y) * (1.0 + y))  # 1 - y * y loses all digits near 1


def activation(name: str) -> Activation:
    """The activation called ``name``; InvalidArgument lists the known ones."""
    if name not in ACTIVATIONS:
        raise InvalidArgument(f"no activation {name!r}: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
