"""The functions of the expression language by name, for functions that are traced.

NumPy's functions of these names can be traced too; for `log` that is the way, as `jitdnn.log` is what logs.
"""

from __future__ import annotations

from typing import Any

from jitdnn.rtcg.expression import apply, trace, where

__all__ = [
    "absolute",
    "erf",
    "exp",
    "expm1",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "sqrt",
    "trace",
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
