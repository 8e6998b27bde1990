"""The float64 definitions of the activation functions, written as their formulas read.

A definition is f, its derivative by x, and where f has an inverse good enough, the derivative by y, so that a
network may keep only one of the two. At a kink the derivative is that of the left side, and where the formula
gives infinity times zero it is the limit.

Sources: clipped ReLU, ELU and Swish as cuDNN has them (Clevert et al. 2016 for ELU, Ramachandran et al. 2017 for
Swish), SELU by Klambauer et al. 2017, GELU by Hendrycks and Gimpel 2016, Mish by Misra 2019, the hard functions as
in MobileNet v3 (Howard et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument
from jitdnn.problems.problem import Reals


@dataclass(frozen=True)
class ActivationFunction:
    """The float64 definition of an activation: the function, its derivative from x, and from y or None."""

    forward: Callable[[Reals], Reals]
    derivative: Callable[[Reals], Reals]
    derivative_from_y: Callable[[Reals], Reals] | None = None


SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

_ROOT_OF_HALF = math.sqrt(0.5)
_ROOT_OF_HALF_REST = float(Fraction(math.isqrt(2**319), 2**160) - Fraction(_ROOT_OF_HALF))

_HUGE = 1e300  # stands for infinity where that would be multiplied by zero


def _sigmoid(x: Reals) -> Reals:
    # exp of a negative number only, so that no x overflows
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _bell(x: Reals) -> Reals:
    """The derivative of the sigmoid."""
    return _sigmoid(x) * _sigmoid(-x)


def _where(condition: Any, yes: float, no: float) -> Reals:
    return np.asarray(np.where(condition, yes, no), dtype=np.float64)


def _step(x: Reals) -> Reals:
    return np.asarray(x > 0, dtype=np.float64)


def _low(x: Reals) -> Reals:
    return np.maximum(x, -_HUGE)


def _finite(x: Reals) -> Reals:
    return np.clip(x, -_HUGE, _HUGE)


def _clipped_relu(coef: float) -> ActivationFunction:
    def inside(v: Reals) -> Reals:
        return _where((v > 0) & (v < coef), 1.0, 0.0)

    return ActivationFunction(lambda x: np.minimum(np.maximum(x, 0.0), coef), inside, inside)


def _leaky_relu(coef: float) -> ActivationFunction:
    def slope(v: Reals) -> Reals:
        return _where(v > 0, 1.0, coef)

    return ActivationFunction(lambda x: x * slope(x), slope, slope if coef >= 0 else None)


def _elu(coef: float, scale: float = 1.0) -> ActivationFunction:
    return ActivationFunction(
        lambda x: scale * np.where(x > 0, x, coef * np.expm1(x)),
        lambda x: scale * np.where(x > 0, 1.0, coef * np.exp(x)),
        (lambda y: np.where(y > 0, scale, y + scale * coef)) if coef >= 0 else None,
    )


def _swish(coef: float) -> ActivationFunction:
    return ActivationFunction(
        lambda x: _low(x) * _sigmoid(coef * x),
        lambda x: _sigmoid(coef * x) + _finite(x) * coef * _bell(coef * x),
    )


def _softplus(coef: float) -> ActivationFunction:
    return ActivationFunction(
        lambda x: np.logaddexp(0.0, coef * x) / coef,
        lambda x: _sigmoid(coef * x),
        lambda y: -np.expm1(-coef * y),
    )


def normal_tail(x: Reals) -> Reals:
    """The probability that a standard normal number is above x: erfc(x / sqrt(2)) / 2.

    A rounding of erfc's argument t is multiplied by 2 t^2, which is 1400 where the tail ends: what it lost is made up
    by the slope of erfc.
    """
    if not x.size:
        return x
    x = np.clip(x, -60.0, 60.0)
    t = x * _ROOT_OF_HALF
    # Dekker's product: halves of 26 bits multiply without rounding
    x_high, c_high = _high_half(x), _high_half(np.float64(_ROOT_OF_HALF))
    x_low, c_low = x - x_high, _ROOT_OF_HALF - c_high
    lost = ((x_high * c_high - t) + x_high * c_low + x_low * c_high) + x_low * c_low + x * _ROOT_OF_HALF_REST
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return np.asarray(0.5 * erfc(t) - np.exp(-t * t) * (lost / math.sqrt(math.pi)))


def _high_half(x: Any) -> Any:
    grown = x * (2.0**27 + 1.0)
    return grown - (grown - x)


def _normal(x: Reals) -> Reals:
    """The distribution function of the normal distribution; its lower tail keeps its digits."""
    return normal_tail(-x)


def _gelu_slope(x: Reals) -> Reals:
    return _normal(x) + _finite(x) * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _inner(x: Reals) -> Reals:
    return np.asarray(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def _gelu_tanh_slope(x: Reals) -> Reals:
    x = np.clip(x, -1e4, 1e4)  # further out it is 0 or 1
    growth = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * x * x)
    return _sigmoid(2.0 * _inner(x)) + 2.0 * x * _bell(2.0 * _inner(x)) * growth


def _mish_slope(x: Reals) -> Reals:
    plus = np.logaddexp(0.0, x)
    return np.asarray(np.tanh(plus) + _finite(x) * _sigmoid(x) / np.cosh(plus) ** 2)


def _hard_sigmoid(x: Reals) -> Reals:
    return np.asarray(np.clip(x + 3.0, 0.0, 6.0) / 6.0)


def _hard_swish_slope(x: Reals) -> Reals:
    return np.asarray(np.where(x >= 3.0, 1.0, np.where(x <= -3.0, 0.0, x / 3.0 + 0.5)))


_PLAIN: dict[str, ActivationFunction] = {
    "sigmoid": ActivationFunction(_sigmoid, _bell, lambda y: y * (1.0 - y)),
    "relu": ActivationFunction(lambda x: np.maximum(x, 0.0), _step, _step),
    "tanh": ActivationFunction(np.tanh, lambda x: 1.0 / np.cosh(x) ** 2, lambda y: (1.0 - y) * (1.0 + y)),
    "selu": _elu(SELU_ALPHA, SELU_SCALE),
    "gelu": ActivationFunction(lambda x: _low(x) * _normal(x), _gelu_slope),
    "gelu_tanh": ActivationFunction(lambda x: _low(x) / (1.0 + np.exp(-2.0 * _inner(x))), _gelu_tanh_slope),
    "mish": ActivationFunction(lambda x: _low(x) * np.tanh(np.logaddexp(0.0, x)), _mish_slope),
    "hard_sigmoid": ActivationFunction(
        _hard_sigmoid,
        lambda x: _where(np.abs(x) < 3.0, 1.0 / 6.0, 0.0),
        lambda y: _where((y > 0.0) & (y < 1.0), 1.0 / 6.0, 0.0),
    ),
    "hard_swish": ActivationFunction(lambda x: _low(x) * _hard_sigmoid(x), _hard_swish_slope),
    "identity": ActivationFunction(np.copy, np.ones_like, np.ones_like),
}
_WITH_COEF: dict[str, Callable[[float], ActivationFunction]] = {
    "clipped_relu": _clipped_relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "swish": _swish,
    "softplus": _softplus,
}

COEFS: dict[str, float] = {"clipped_relu": 6.0, "leaky_relu": 0.01, "elu": 1.0, "swish": 1.0, "softplus": 1.0}
"""The functions that have a coefficient, and its default."""

ANY_COEF = ("leaky_relu", "elu")
"""Of these the functions whose coefficient may be 0 or negative."""

FUNCTIONS: dict[str, ActivationFunction] = {
    **_PLAIN,
    **{name: function(COEFS[name]) for name, function in _WITH_COEF.items()},
}
"""All functions, those with a coefficient for its default."""


def settled_coef(function: str, coef: float | None) -> float | None:
    """The coefficient of a function, its default if it is None; None for functions that have none.

    Raises InvalidArgument for an unknown function, a coefficient that the function does not take, or one that is
    not finite, or not positive where it has to be.
    """
    check_choice(function, tuple(FUNCTIONS), "function")
    if function not in COEFS:
        if coef is not None:
            known = ", ".join(COEFS)
            raise InvalidArgument(f"coef is {coef!r}: {function} has none, only {known} do")
        return None
    if coef is None:
        return COEFS[function]
    try:
        number = float(coef)
    except (TypeError, ValueError):
        raise InvalidArgument(f"coef of {function} is {coef!r}: it must be a number") from None
    if not math.isfinite(number) or (number <= 0.0 and function not in ANY_COEF):
        wanted = "a finite number" if function in ANY_COEF else "a positive finite number"
        raise InvalidArgument(f"coef of {function} is {coef!r}: it must be {wanted}")
    return number


def defined(function: str, coef: float | None = None) -> ActivationFunction:
    """The definition of a function with its coefficient. Raises as `settled_coef` does."""
    number = settled_coef(function, coef)
    return FUNCTIONS[function] if number is None else _WITH_COEF[function](number)
