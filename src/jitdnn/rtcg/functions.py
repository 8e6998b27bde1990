"""The functions of the expression language by name, for functions that are traced.

NumPy's functions of these names can be traced too; for `log` that is the way, as `jitdnn.log` is what logs.
"""

from __future__ import annotations

from typing import Any

from jitdnn.rtcg.expression import apply, trace, where

__all__ = [
    "absolute",
    "arctan",
    "ceil",
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "fmod",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "power",
    "remainder",
    "rint",
    "sin",
    "sqrt",
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
    """The largest whole number that is not above x."""
    return apply("floor", x)


def ceil(x: Any) -> Any:
    """The smallest whole number that is not below x."""
    return apply("ceil", x)


def trunc(x: Any) -> Any:
    """x without its fraction."""
    return apply("trunc", x)


def rint(x: Any) -> Any:
    """The nearest whole number, of two the even one."""
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
