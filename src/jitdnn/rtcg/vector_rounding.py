"""Rounding to integers and remainders on vectors of f32 or f64.

Where the processor has no instruction for it: from 2^mantissa on every number is whole, and below it the sum with
that power leaves no place for a fraction. Signs are kept, also those of zeros.
"""

from __future__ import annotations

import math

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.vector_math import absolute, element_of

_WHOLE_FROM = {"f32": 2.0**23, "f64": 2.0**52}
_ROUNDING = ("avx512", "avx2", "neon")  # instruction sets that round; elsewhere LLVM would call the C library


def rint(k: Builder, x: Value) -> Value:
    """The nearest integer, of two the even one."""
    if k.isa.name in _ROUNDING:
        return k.intrinsic("llvm.roundeven", x)
    limit = _WHOLE_FROM[element_of(x)]
    size = absolute(k, x)
    rounded = (size + limit) - limit
    return k.intrinsic("llvm.copysign", k.select(size < limit, rounded, size), x)


def floor(k: Builder, x: Value) -> Value:
    if k.isa.name in _ROUNDING:
        return k.intrinsic("llvm.floor", x)
    near = rint(k, x)
    return k.intrinsic("llvm.copysign", k.select(near > x, near - 1.0, near), x)


def ceil(k: Builder, x: Value) -> Value:
    if k.isa.name in _ROUNDING:
        return k.intrinsic("llvm.ceil", x)
    near = rint(k, x)
    return k.intrinsic("llvm.copysign", k.select(near < x, near + 1.0, near), x)


def trunc(k: Builder, x: Value) -> Value:
    if k.isa.name in _ROUNDING:
        return k.intrinsic("llvm.trunc", x)
    return k.intrinsic("llvm.copysign", floor(k, absolute(k, x)), x)


def sign(k: Builder, x: Value) -> Value:
    """1, -1, or 0 for either zero; NaN stays NaN."""
    one = k.constant(1.0, element_of(x), x.lanes)
    return k.select(x != 0.0, k.select(x == x, k.intrinsic("llvm.copysign", one, x), x), 0.0)


def fmod(k: Builder, x: Value, y: Value) -> Value:
    """What is left of x when y is taken away as often as it goes in, with the sign of x, as C's fmod.

    Exact where x / y is below 2^52: there the quotient is off by one at most, and what is left is a number of the
    format, so that the multiply-add does not round. f32 is computed in f64. Beyond it, 0.
    """
    if element_of(x) == "f32":
        return k.convert(fmod(k, k.convert(x, "f64"), k.convert(y, "f64")), "f32")
    a, b = absolute(k, x), absolute(k, y)
    quotient = a / b
    left = _exact_rest(k, floor(k, quotient), a, b)
    left = k.select(left < 0.0, left + b, left)
    left = k.select(left >= b, left - b, left)
    is_number = (a < math.inf) & (b > 0.0)  # a quotient that overflowed says nothing of that
    beyond = k.select(is_number, k.constant(0.0, "f64", a.lanes), math.nan)
    left = k.select(quotient < _WHOLE_FROM["f64"], left, beyond)
    # nothing is taken from what is less, even of an infinite y; an infinite x has no rest, nor is there one of 0
    left = k.select(a < b, a, left)
    return k.intrinsic("llvm.copysign", left, x)


def _exact_rest(k: Builder, q: Value, a: Value, b: Value) -> Value:
    """a - q b, as if rounded once."""
    if k.isa.has_fma:
        return k.fma(-q, b, a)
    # Dekker's product: halves of 26 bits multiply without rounding
    high_q, high_b = _high_half(q), _high_half(b)
    low_q, low_b = q - high_q, b - high_b
    rest = a - high_q * high_b
    return ((rest - high_q * low_b) - low_q * high_b) - low_q * low_b


def floor_divide(k: Builder, x: Value, y: Value) -> Value:
    """floor(x / y) of the exact quotient, as Python's //: what the remainder leaves is a whole multiple of y."""
    if element_of(x) == "f32":
        return k.convert(floor_divide(k, k.convert(x, "f64"), k.convert(y, "f64")), "f32")
    quotient, left = x / y, remainder(k, x, y)
    whole = k.intrinsic("llvm.copysign", rint(k, (x - left) / y), quotient)
    # next to an infinite y every x is nothing, but its sign; of an infinite x there is no quotient but by 0
    whole = k.select(absolute(k, y) == math.inf, k.select(left == x, quotient, -1.0), whole)
    result = k.select(absolute(k, quotient) < _WHOLE_FROM["f64"], whole, quotient)
    return k.select((absolute(k, x) == math.inf) & (y != 0.0), math.nan, result)


def _high_half(x: Value) -> Value:
    grown = x * (2.0**27 + 1.0)
    return grown - (grown - x)


def remainder(k: Builder, x: Value, y: Value) -> Value:
    """x - floor(x / y) y, with the sign of y, as Python's %."""
    left = fmod(k, x, y)
    differs = ((left < 0.0) & (y > 0.0)) | ((left > 0.0) & (y < 0.0))
    result = k.select(differs, left + y, left)
    return k.select(left == 0.0, k.intrinsic("llvm.copysign", left, y), result)
