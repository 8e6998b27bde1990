"""x to the power of y on vectors of f32 or f64, with the special values of C's pow.

f32 is computed in f64, as exp(y log|x|). In f64 the logarithm is a sum of two numbers, so that its error,
which y multiplies, stays small: results are within 50 units in the last place up to the ends of the range, and within
1 or 2 for moderate exponents.
"""

from __future__ import annotations

import math

from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.vector_math import absolute, element_of
from jitdnn.rtcg.vector_rounding import rint


def power(k: Builder, x: Value, y: Value) -> Value:
    if element_of(x) == "f32":
        return k.convert(power(k, k.convert(x, "f64"), k.convert(y, "f64")), "f32")
    size = absolute(k, x)
    result = _of_positive(k, size, y)
    whole = rint(k, y)
    half = y * 0.5
    is_odd = (whole == y) & (rint(k, half) != half)
    result = k.select((size == 1.0) & (absolute(k, y) == math.inf), 1.0, result)
    # a zero keeps its sign where y is odd: bits tell -0 from 0
    is_negative = k.bitcast(x, "i64") < 0
    result = k.select(is_negative & is_odd, -result, result)
    result = k.select((x < 0.0) & (size != math.inf) & (whole != y) & (y == y), math.nan, result)
    return k.select((y == 0.0) | (x == 1.0), 1.0, result)


def _of_positive(k: Builder, x: Value, y: Value) -> Value:
    """exp(y log(x)) with the logarithm in two parts; those of 0, infinity and NaN have one."""
    high, low = vector_math.log_parts(k, x)
    product = y * high
    rest = vector_math.lost_product(k, y, high, product) + y * low
    # where the product is out of range, the rest is none
    rest = k.select(absolute(k, product) < 800.0, rest, 0.0)
    power_ = vector_math.exp(k, product)
    return k.select(power_ < math.inf, k.fma(power_, rest, power_), power_)
