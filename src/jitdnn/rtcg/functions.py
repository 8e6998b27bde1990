"""The functions of the expression language by name, for functions that are traced.

NumPy's functions of these names can be traced too; for `log` that is the way, as `jitdnn.log` is what logs.
"""

from __future__ import annotations

import math
from typing import Any

from jitdnn.rtcg.expression import apply, define, trace, where

__all__ = [
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fma",
    "fmod",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log1pexp",
    "log2",
    "log10",
    "maximum",
    "minimum",
    "normal_cdf",
    "normal_tail",
    "power",
    "reciprocal",
    "remainder",
    "rint",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "trace",
    "trunc",
    "where",
]


def absolute(x: Any) -> Any:
    """|x|."""
    return apply("absolute", x)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of x and y; NaN if either is."""
    return apply("minimum", x, y)


def maximum(x: Any, y: Any) -> Any:
    """The larger of x and y; NaN if either is."""
    return apply("maximum", x, y)


def sqrt(x: Any) -> Any:
    """The square root."""
    return apply("sqrt", x)


def exp(x: Any) -> Any:
    """e to the power of x."""
    return apply("exp", x)


def expm1(x: Any) -> Any:
    """exp(x) - 1, exact for small x."""
    return apply("expm1", x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return apply("log", x)


def log1p(x: Any) -> Any:
    """log(1 + x), exact for small x."""
    return apply("log1p", x)


def erf(x: Any) -> Any:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""
    return apply("erf", x)


def floor(x: Any) -> Any:
    """The largest integer that is not above x."""
    return apply("floor", x)


def ceil(x: Any) -> Any:
    """The smallest integer that is not below x."""
    return apply("ceil", x)


def trunc(x: Any) -> Any:
    """x without its fraction."""
    return apply("trunc", x)


def rint(x: Any) -> Any:
    """The nearest integer, of two the even one."""
    return apply("rint", x)


def sin(x: Any) -> Any:
    """The sine of an angle in radians."""
    return apply("sin", x)


def cos(x: Any) -> Any:
    """The cosine of an angle in radians."""
    return apply("cos", x)


def arctan(x: Any) -> Any:
    """The angle from -pi / 2 to pi / 2 whose tangent is x."""
    return apply("arctan", x)


def power(x: Any, y: Any) -> Any:
    """x to the power of y; NaN for a fraction as the power of a negative number."""
    return apply("power", x, y)


def fmod(x: Any, y: Any) -> Any:
    """The rest of x / y with the sign of x, as C's fmod. Exact for quotients up to 2^52, 0 beyond."""
    return apply("fmod", x, y)


def remainder(x: Any, y: Any) -> Any:
    """The rest of x / y with the sign of y, as Python's %. Exact for quotients up to 2^52, 0 beyond."""
    return apply("remainder", x, y)


def exp2(x: Any) -> Any:
    """2 to the power of x."""
    return apply("exp2", x)


def log2(x: Any) -> Any:
    """The logarithm to the base 2."""
    return apply("log2", x)


def log10(x: Any) -> Any:
    """The logarithm to the base 10."""
    return apply("log10", x)


def log1pexp(x: Any) -> Any:
    """log(1 + exp(x)), which neither overflows nor loses small values."""
    return apply("log1pexp", x)


def sign(x: Any) -> Any:
    """1, 0 or -1; NaN stays NaN."""
    return apply("sign", x)


def tan(x: Any) -> Any:
    """The tangent of an angle in radians."""
    return apply("tan", x)


def arctan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), from -pi to pi."""
    return apply("arctan2", y, x)


def floor_divide(x: Any, y: Any) -> Any:
    """The largest integer that is not above x / y, as Python's //."""
    return apply("floor_divide", x, y)


@define
def normal_tail(x: Any) -> Any:
    """The probability that a standard normal number is above x."""
    tail = apply("upper_tail", absolute(x))
    return where(x < 0.0, 1.0 - tail, tail)


@define
def normal_cdf(x: Any) -> Any:
    """The probability that a standard normal number is below x."""
    tail = apply("upper_tail", absolute(x))
    return where(x < 0.0, tail, 1.0 - tail)


@define
def clip(x: Any, low: Any, high: Any) -> Any:
    """x, but no less than low and no more than high; NaN stays NaN."""
    return minimum(maximum(x, low), high)


@define
def square(x: Any) -> Any:
    """x * x."""
    return apply("multiply", x, x)


@define
def reciprocal(x: Any) -> Any:
    """1 / x."""
    return apply("divide", 1.0, x)


@define
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return apply("divide", 1.0, sqrt(x))


@define
def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once where the processor can."""
    return apply("add", apply("multiply", x, y), z)


@define
def isnan(x: Any) -> Any:
    """The condition that x is NaN."""
    return apply("not_equal", x, x)


@define
def isinf(x: Any) -> Any:
    """The condition that x is infinity or -infinity."""
    return apply("equal", absolute(x), math.inf)


@define
def isfinite(x: Any) -> Any:
    """The condition that x is neither infinite nor NaN."""
    return apply("less", absolute(x), math.inf)


@define
def arcsin(x: Any) -> Any:
    """The angle from -pi / 2 to pi / 2 whose sine is x."""
    return arctan2(x, sqrt((1.0 - x) * (1.0 + x)))


@define
def arccos(x: Any) -> Any:
    """The angle from 0 to pi whose cosine is x."""
    return arctan2(sqrt((1.0 - x) * (1.0 + x)), x)


@define
def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    grown, root = expm1(absolute(x)), exp(absolute(x) * 0.5)
    # exp(|x|) itself overflows before half of it does
    size = where(absolute(x) > 22.0, (0.5 * root) * root, 0.5 * (grown + grown / (grown + 1.0)))
    return where(x == 0.0, x, where(x < 0.0, -size, size))


@define
def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    root = exp(absolute(x) * 0.5)
    return (0.5 * root) * root + 0.5 / (root * root)


@define
def arcsinh(x: Any) -> Any:
    """The number whose hyperbolic sine is x."""
    size = absolute(x)
    near = log1p(size + size * size / (1.0 + sqrt(1.0 + size * size)))
    found = where(size > 1e9, log(size) + math.log(2.0), near)
    return where(x == 0.0, x, where(x < 0.0, -found, found))


@define
def arccosh(x: Any) -> Any:
    """The number, not negative, whose hyperbolic cosine is x; NaN below 1."""
    rest = where(x < 1.0, math.nan, x - 1.0)  # the product below is positive again from -1 down
    return where(x > 1e9, log(x) + math.log(2.0), log1p(rest + sqrt(rest * (rest + 2.0))))


@define
def arctanh(x: Any) -> Any:
    """The number whose hyperbolic tangent is x."""
    size = absolute(x)
    found = 0.5 * log1p(2.0 * size / (1.0 - size))
    return where(x == 0.0, x, where(x < 0.0, -found, found))
