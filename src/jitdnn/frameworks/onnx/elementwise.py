"""Arithmetic, comparisons, logic and functions of every element: one traced line each.

Integers are computed as integers of 64 bits that wrap and are cut off at the bits of their type, real numbers as
`jitdnn.elementwise` says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx import text
from jitdnn.frameworks.onnx.operator import Array, Function, table
from jitdnn.frameworks.onnx.pointwise import is_real, pointwise
from jitdnn.graph import primitives as jd

_BOOL = np.dtype(bool)


def _unary(function: Callable[[Any], Any], dtype: np.dtype[Any] | None = None) -> Function:
    def run(x: Array, /) -> Array:
        return pointwise(function, x, dtype=dtype)

    return run


def _binary(function: Callable[[Any, Any], Any], dtype: np.dtype[Any] | None = None) -> Function:
    def run(x: Array, y: Array, /, *, axis: int | None = None, broadcast: int = 0) -> Array:
        return pointwise(function, x, aligned(x, y, axis, broadcast), dtype=dtype)

    return run


def aligned(x: Array, y: Array, axis: int | None, broadcast: int) -> Array:
    """y with its axes below those of x from `axis` on: how versions before 7 said what is broadcast."""
    if not broadcast or axis is None:
        return y
    return y.reshape(*y.shape, *(1,) * (x.ndim - axis % x.ndim - y.ndim))


def _variadic(function: Callable[[Any, Any], Any]) -> Function:
    """Any number of operands, two at a time."""

    def run(first: Array, /, *others: Array) -> Array:
        return functools.reduce(lambda x, y: pointwise(function, x, y), others, first)

    return run


def _truth(condition: Any) -> Any:
    """A condition as a number; conditions are not numbers in traced functions."""
    return jd.where(condition, 1.0, 0.0)


def mean(first: Array, /, *others: Array) -> Array:
    count = 1 + len(others)
    return pointwise(lambda total: total / count, _variadic(lambda x, y: x + y)(first, *others))


def divide(x: Array, y: Array, /, *, axis: int | None = None, broadcast: int = 0) -> Array:
    """Quotients of integers are cut off towards zero: what is a whole multiple is divided without a rest."""
    y = aligned(x, y, axis, broadcast)
    if is_real(x):
        return pointwise(lambda a, b: a / b, x, y)
    return pointwise(lambda a, b: (a - jd.fmod(a, b)) // b, x, y)


def equal(x: Array, y: Array, /, *, axis: int | None = None, broadcast: int = 0) -> Array:
    y = aligned(x, y, axis, broadcast)
    if text.is_text(x) and text.is_text(y):
        return text.equal(x, y)
    return pointwise(lambda a, b: _truth(a == b), x, y, dtype=_BOOL)


def power(x: Array, y: Array, /, *, axis: int | None = None, broadcast: int = 0) -> Array:
    """Of x's type, whatever y's is; an integer as the power of an integer stays one."""
    return pointwise(jd.power, x, aligned(x, y, axis, broadcast))


def modulo(x: Array, y: Array, /, *, fmod: int = 0) -> Array:
    return pointwise(jd.fmod if fmod else jd.remainder, x, y)


def where(condition: Array, x: Array, y: Array, /) -> Array:
    if text.is_text(x):
        return np.where(condition, x, y)
    return pointwise(lambda c, a, b: jd.where(c != 0.0, a, b), condition, x, y, dtype=x.dtype)


def clip(
    x: Array,
    low: Array | None = None,
    high: Array | None = None,
    /,
    *,
    min: float | None = None,
    max: float | None = None,
) -> Array:
    """The lower bound first, so that the upper one holds where they cross."""
    least = low if low is not None else None if min is None else np.array(min, x.dtype)
    most = high if high is not None else None if max is None else np.array(max, x.dtype)
    result = x
    if least is not None:
        result = pointwise(jd.maximum, result, least)
    return result if most is None else pointwise(jd.minimum, result, most)


def is_infinite(x: Array, /, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    chosen = [v for v, on in ((-math.inf, detect_negative), (math.inf, detect_positive)) if on]
    if not chosen:
        return np.zeros(x.shape, bool)
    low, high = chosen[0], chosen[-1]
    return pointwise(lambda v: _truth((v == low) | (v == high)), x, dtype=_BOOL)


def shrink(x: Array, /, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    return pointwise(lambda v: jd.where(v < -lambd, v + bias, jd.where(v > lambd, v - bias, 0.0)), x)


def _sign(x: Any) -> Any:
    """NaN stays NaN."""
    return jd.where(x > 0.0, 1.0, jd.where(x < 0.0, -1.0, x))


def _arcsin(x: Any) -> Any:
    """sqrt((1 - x)(1 + x)) has the digits near 1 that sqrt(1 - x x) loses."""
    return jd.arctan(x / jd.sqrt((1.0 - x) * (1.0 + x)))


def _sinh(x: Any) -> Any:
    grown = jd.expm1(abs(x))
    size = 0.5 * (grown + grown / (grown + 1.0))
    # from where exp overflows to infinity
    size = jd.where(abs(x) > 80.0, 0.5 * jd.exp(0.5 * abs(x)) * jd.exp(0.5 * abs(x)), size)
    return jd.where(x < 0.0, -size, size)


def _cosh(x: Any) -> Any:
    half = jd.exp(0.5 * abs(x))
    return 0.5 * half * half + 0.5 / half / half


def _arcsinh(x: Any) -> Any:
    size = abs(x)
    result = jd.log1p(size + size * size / (1.0 + jd.sqrt(size * size + 1.0)))
    return jd.where(x < 0.0, -result, result)


def _arccosh(x: Any) -> Any:
    rest = x - 1.0
    return jd.log1p(rest + jd.sqrt(rest * (x + 1.0)))


OPERATORS = table(
    Abs=_unary(jd.absolute),
    Acos=_unary(lambda x: math.pi / 2 - _arcsin(x)),
    Acosh=_unary(_arccosh),
    Add=_binary(lambda x, y: x + y),
    And=_binary(lambda x, y: _truth((x != 0.0) & (y != 0.0))),
    Asin=_unary(_arcsin),
    Asinh=_unary(_arcsinh),
    Atan=_unary(jd.arctan),
    Atanh=_unary(lambda x: 0.5 * (jd.log1p(x) - jd.log1p(-x))),
    Ceil=_unary(jd.ceil),
    Clip=clip,
    Cos=_unary(jd.cos),
    Cosh=_unary(_cosh),
    Div=divide,
    Equal=equal,
    Erf=_unary(jd.erf),
    Exp=_unary(jd.exp),
    Floor=_unary(jd.floor),
    Greater=_binary(lambda x, y: _truth(x > y), _BOOL),
    GreaterOrEqual=_binary(lambda x, y: _truth(x >= y), _BOOL),
    IsInf=is_infinite,
    IsNaN=_unary(lambda x: _truth(x != x), _BOOL),
    Less=_binary(lambda x, y: _truth(x < y), _BOOL),
    LessOrEqual=_binary(lambda x, y: _truth(x <= y), _BOOL),
    Log=_unary(np.log),
    Max=_variadic(jd.maximum),
    Mean=mean,
    Min=_variadic(jd.minimum),
    Mod=modulo,
    Mul=_binary(lambda x, y: x * y),
    Neg=_unary(lambda x: -x),
    Not=_unary(lambda x: _truth(x == 0.0)),
    Or=_binary(lambda x, y: _truth((x != 0.0) | (y != 0.0))),
    Pow=power,
    Reciprocal=_unary(lambda x: 1.0 / x),
    Round=_unary(jd.rint),
    Shrink=shrink,
    Sign=_unary(_sign),
    Sin=_unary(jd.sin),
    Sinh=_unary(_sinh),
    Sqrt=_unary(jd.sqrt),
    Sub=_binary(lambda x, y: x - y),
    Sum=_variadic(lambda x, y: x + y),
    Tan=_unary(lambda x: jd.sin(x) / jd.cos(x)),
    Where=where,
    Xor=_binary(lambda x, y: _truth(x != y)),
)
