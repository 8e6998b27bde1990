"""Powers and logarithms of the bases 2 and 10 on vectors of f32 or f64, by way of those of e."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.vector_math import at_least, at_most, economised, element_of, log_parts, scaled

_LIMITS = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}  # 2^x is 0 below and infinite above
_MAGIC = {"f32": 1.5 * 2.0**23, "f64": 1.5 * 2.0**52}


@functools.cache
def _powers(dtype: str) -> list[float]:
    """2^r for |r| up to 1/2."""
    # ln 2 to 200 binary places
    ln2 = sum((Fraction(1, k << k) for k in range(1, 200)), Fraction(0))
    term, series = Fraction(1), [Fraction(1)]
    for k in range(1, 40):
        term = Fraction(round(term * ln2 / k * (1 << 300)), 1 << 300)
        series.append(term)
    half = Fraction(1, 2)
    return [1.0, *economised(series, -half, half, 6 if dtype == "f32" else 11)[1:]]


def exp2(k: Builder, x: Value) -> Value:
    dtype = element_of(x)
    low, high = _LIMITS[dtype]
    x = at_least(k, at_most(k, x, high), low)
    shifted = x + _MAGIC[dtype]
    whole = shifted - _MAGIC[dtype]
    r = x - whole
    coefficients = _powers(dtype)
    result = k.constant(coefficients[-1], dtype, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, r, k.constant(coefficient, dtype, x.lanes))
    return scaled(k, result, shifted, whole)


def log2(k: Builder, x: Value) -> Value:
    return _to_base(k, x, 2.0)


def log10(k: Builder, x: Value) -> Value:
    return _to_base(k, x, 10.0)


def _to_base(k: Builder, x: Value, base: float) -> Value:
    """log(x) / log(base) in f64, from the logarithm in two parts; f32 is widened."""
    if element_of(x) == "f32":
        return k.convert(_to_base(k, k.convert(x, "f64"), base), "f32")
    high, low = log_parts(k, x)
    scale = 1.0 / math.log(base)
    # what the factor lost when it became a number, from log(base) in long fractions
    lost = float(1 / _logarithm(int(base)) - Fraction(scale))
    rest = k.fma(high, k.constant(lost, "f64", x.lanes), low * scale)
    result = k.fma(high, k.constant(scale, "f64", x.lanes), rest)
    return k.select((x > 0.0) & (x < math.inf), result, high)


@functools.cache
def _logarithm(base: int) -> Fraction:
    """log(base) to 200 binary places: log(10) = 3 log(2) + log(1 + 1/4)."""
    ln2 = sum((Fraction(1, k << k) for k in range(1, 200)), Fraction(0))
    if base == 2:
        return ln2
    quarter = sum((Fraction((-1) ** (k + 1), k * 4**k) for k in range(1, 120)), Fraction(0))
    return 3 * ln2 + quarter
