"""2^x in traced code, for softmax: exact at 0, and short, since x is never positive."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.vector_math import economised

LOG2E = 1.0 / math.log(2.0)


@functools.cache
def _power_series(real: str) -> tuple[float, ...]:
    """(2^f - 1) / f for |f| <= 1/2: with the 1 added at last, 2^0 is exactly 1."""
    series = [_ln2()]
    for n in range(2, 30):
        series.append(series[-1] * _ln2() / n)
    half = Fraction(1, 2)
    return tuple(economised(series, -half, half, 5 if real == "f32" else 11))


@functools.cache
def _ln2() -> Fraction:
    return sum((Fraction(1, n << n) for n in range(1, 120)), Fraction(0))


def power_of_two(k: Builder, x: Value, real: str) -> Value:
    """2^x for x <= 0, within 2 units in the last place; 0 below the exponents of normal numbers; NaN stays."""
    mantissa, bias, integer = (23, 127, "i32") if real == "f32" else (52, 1023, "i64")
    magic = k.constant(1.5 * 2.0**mantissa, real, x.lanes)
    bounded = k.select(x < -float(bias), -float(bias), x)
    shifted = bounded + magic
    rest = bounded - (shifted - magic)
    coefficients = _power_series(real)
    result = k.constant(coefficients[-1], real, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, rest, k.constant(coefficient, real, x.lanes))
    result = k.fma(result, rest, k.constant(1.0, real, x.lanes))
    # the whole part stands in the low bits of the sum: moved up they are the exponent, and 0 at -bias
    exponent = (k.bitcast(shifted, integer) - (k.bitcast(magic, integer) - bias)) << mantissa
    return result * k.bitcast(exponent, real)
