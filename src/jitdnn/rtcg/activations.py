"""Activation functions, each written once in the expression language, with its derivatives.

A backward pass has the forward's input x, its output y, or both. The derivative from x is derived from the
function, or stated beside it where another form is shorter or keeps infinities apart from zeros; the one from y is
stated, where it exists (tests hold all of them against each other and against their definitions).

Functions that go to 0 as x goes to -infinity multiply by an x that is bounded below where the other factor is 0
already, so that they are 0 there and not infinity times zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.problems.activation_functions import SELU_ALPHA, SELU_SCALE, settled_coef
from jitdnn.rtcg.expression import Expression, apply, define, trace, where
from jitdnn.rtcg.operations import OPERATIONS

_FAR = 1000.0  # exp(-1000) is 0 in every format
_SELU = SELU_SCALE, SELU_ALPHA
_GELU = math.sqrt(2.0 / math.pi), 0.044715


@dataclass(frozen=True)
class Activation:
    """``forward(x)``, ``from_x(x)`` = forward'(x), and ``from_y(y)`` = the same from y = forward(x), or None."""

    name: str
    forward: Expression
    from_x: Expression
    from_y: Expression | None

    def backward(self, saved: str = "x") -> Expression:
        """dx = dy * f'(x) as an expression of (dy, x), or of (dy, y) if ``saved`` is "y"."""
        if saved not in ("x", "y"):
            raise InvalidArgument(f"saved is {saved!r}: the backward pass needs 'x' or 'y'")
        slope = self.from_x if saved == "x" else self.from_y
        if slope is None:
            raise InvalidArgument(f"the derivative of {self.name} does not follow from y: save x")
        return trace(lambda dy, v: dy * slope.of(v))


@dataclass(frozen=True)
class _Row:
    """A function of x, or of x and its coefficient, with what is stated of its slope."""

    function: Callable[..., Any]
    slope: Callable[..., Any] | None = None
    from_y: Callable[..., Any] | None = None


def _least(x: Any, bound: float) -> Any:
    return apply("maximum", x, bound)


def _clip(x: Any, low: float, high: float) -> Any:
    return apply("minimum", apply("maximum", x, low), high)


def relu(x: Any) -> Any:
    """max(x, 0); NaN stays NaN."""
    return _least(x, 0.0)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def _sigmoid_and_slope(x: Any) -> tuple[Any, Any]:
    """Both with one division. The slope keeps its digits far from 0, unlike y (1 - y)."""
    small = apply("exp", -abs(x))
    q = 1.0 / (1.0 + small)
    return where(x < 0.0, small, 1.0) * q, small * q * q


def _swish_slope(x: Any, c: float) -> Any:
    y, slope = _sigmoid_and_slope(c * x)
    return y + c * _clip(x, -_FAR / c, _FAR / c) * slope


def _inner(x: Any) -> Any:
    """Twice the argument of the hyperbolic tangent in GELU: 1 + tanh(u) is 2 sigmoid(2 u)."""
    return x * (2.0 * _GELU[0] + (2.0 * _GELU[0] * _GELU[1]) * (x * x))


def _inner_slope(x: Any) -> Any:
    return 2.0 * _GELU[0] + (6.0 * _GELU[0] * _GELU[1]) * (x * x)


def _gelu_slope(a: Any) -> Any:
    y, slope = _sigmoid_and_slope(_inner(a))
    return y + a * slope * _inner_slope(a)


def _mish(x: Any, e: Any) -> Any:
    """x tanh(log(1 + e)) with e = exp(x), as a quotient of polynomials."""
    return x * (e * (e + 2.0) / (e * (e + 2.0) + 2.0))


def _mish_slope(x: Any, e: Any) -> Any:
    q = 1.0 / (e * (e + 2.0) + 2.0)
    return e * (e + 2.0) * q + x * (4.0 * e * (e + 1.0) * q) * q


def _size(x: Any) -> Any:
    """|x|, bounded where the tail of the normal distribution is 0 already."""
    return apply("minimum", abs(x), 39.0)


def _normal_cdf(x: Any) -> Any:
    tail = apply("upper_tail", _size(x))
    return where(x < 0.0, tail, 1.0 - tail)


def _unbent(x: Any) -> Any:
    """6 times the hard sigmoid."""
    return _clip(x + 3.0, 0.0, 6.0)


_ROWS: dict[str, _Row] = {
    "relu": _Row(
        relu,
        from_y=lambda y: where(y > 0.0, 1.0, 0.0),
    ),
    "sigmoid": _Row(
        sigmoid,
        from_y=lambda y: y * (1.0 - y),
    ),
    "tanh": _Row(
        tanh,
        from_y=lambda y: (1.0 - y) * (1.0 + y),  # 1 - y * y loses all digits near 1
    ),
    "clipped_relu": _Row(
        lambda x, c: _clip(x, 0.0, c),
        slope=lambda x, c: where((x > 0.0) & (x < c), 1.0, 0.0),
        from_y=lambda y, c: where((y > 0.0) & (y < c), 1.0, 0.0),
    ),
    "leaky_relu": _Row(
        lambda x, c: where(x > 0.0, x, c * x),
        from_y=lambda y, c: where(y > 0.0, 1.0, c),
    ),
    "elu": _Row(
        lambda x, c: where(x > 0.0, x, c * apply("expm1", x)),
        slope=lambda x, c: where(x > 0.0, 1.0, c * apply("exp", x)),
        from_y=lambda y, c: where(y > 0.0, 1.0, y + c),
    ),
    "selu": _Row(
        lambda x: _SELU[0] * where(x > 0.0, x, _SELU[1] * apply("expm1", x)),
        slope=lambda x: _SELU[0] * where(x > 0.0, 1.0, _SELU[1] * apply("exp", x)),
        from_y=lambda y: where(y > 0.0, _SELU[0], y + _SELU[0] * _SELU[1]),
    ),
    "swish": _Row(
        lambda x, c: _least(x, -_FAR / c) * sigmoid(c * x),
        slope=_swish_slope,
    ),
    "gelu": _Row(
        lambda x: relu(x) - _size(x) * apply("upper_tail", _size(x)),
        slope=lambda x: _normal_cdf(x) + _clip(x, -40.0, 40.0) * apply("normal_density", x),
    ),
    "gelu_tanh": _Row(
        lambda x: _least(x, -40.0) * sigmoid(_inner(x)),
        slope=lambda x: _gelu_slope(_clip(x, -40.0, 40.0)),
    ),
    "softplus": _Row(
        # beyond 40 it is x to the last bit of f64, also where c * x is more than the type holds
        lambda x, c: where(c * x > 40.0, x, apply("log1pexp", c * x) * (1.0 / c)),
        slope=lambda x, c: sigmoid(c * x),
        from_y=lambda y, c: -apply("expm1", -c * y),
    ),
    "mish": _Row(
        lambda x: _mish(_least(x, -_FAR), apply("exp", apply("minimum", x, 40.0))),
        slope=lambda x: _mish_slope(_clip(x, -_FAR, 40.0), apply("exp", apply("minimum", x, 40.0))),
    ),
    "hard_sigmoid": _Row(
        lambda x: _unbent(x) * (1.0 / 6.0),
        slope=lambda x: where(abs(x) < 3.0, 1.0 / 6.0, 0.0),
        from_y=lambda y: where((y > 0.0) & (y < 1.0), 1.0 / 6.0, 0.0),
    ),
    "hard_swish": _Row(
        lambda x: _least(x, -3.0) * (_unbent(x) * (1.0 / 6.0)),
        slope=lambda x: where(x >= 3.0, 1.0, where(x <= -3.0, 0.0, x * (1.0 / 3.0) + 0.5)),
    ),
    "identity": _Row(
        lambda x: x,
        from_y=lambda y: 1.0,
    ),
}


def _in_language(name: str, row: _Row) -> Callable[..., Any]:
    """The function as traced code calls it by name, the coefficient optional."""

    def function(x: Any, coef: float | None = None) -> Any:
        return row.function(x, *_coefs(name, coef))

    function.__name__ = name
    return function


def _coefs(name: str, coef: float | None) -> tuple[float, ...]:
    settled = settled_coef(name, coef)
    return () if settled is None else (settled,)


for _name, _row in _ROWS.items():
    if _name not in OPERATIONS:  # there is no need to define what the language has
        define(_in_language(_name, _row))


@functools.lru_cache(maxsize=256)
def activation(name: str, coef: float | None = None, propagate_nan: bool = True) -> Activation:
    """The activation called ``name`` with its coefficient (None: the default); InvalidArgument lists the known ones.

    Without ``propagate_nan`` a NaN in x is taken as 0.
    """
    row = _ROWS.get(name)
    if row is None:
        raise InvalidArgument(f"no activation {name!r}: there are {', '.join(_ROWS)}")
    coefs = _coefs(name, coef)
    derived = trace(lambda x: row.function(x, *coefs)).derivative()
    slope = row.slope or (lambda x, *_: derived.of(x))
    from_y = row.from_y

    def of_x(function: Callable[..., Any]) -> Expression:
        if propagate_nan:
            return trace(lambda x: function(x, *coefs))
        return trace(lambda x: function(where(x == x, x, 0.0), *coefs))

    # where the function falls and rises again, y does not tell the side
    is_invertible = from_y is not None and not (coefs and coefs[0] < 0.0)
    return Activation(
        name,
        of_x(row.function),
        of_x(slope),
        trace(lambda y: from_y(y, *coefs)) if from_y is not None and is_invertible else None,
    )


ACTIVATIONS: dict[str, Activation] = {name: activation(name) for name in _ROWS}
"""All of them, those with a coefficient for its default."""
