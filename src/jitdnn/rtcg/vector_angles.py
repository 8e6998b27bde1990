"""sin, cos, tan, arctan and arctan2 on vectors of f32 or f64. f32 is computed in f64: right to the last place.

The errors of f64 stay within 3 units in the last place, for angles of any size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.vector_lanes import lane_by_lane, quarter_turns
from jitdnn.rtcg.vector_math import absolute, economised, element_of

_MAGIC = 1.5 * 2.0**52  # rounds to an integer, which is then in the low bits of the sum
_EASY = 2.0**20  # an angle up to which the products of its quarter turns are exact
_NEAR = 2.0**-30
_EIGHTH = math.tan(math.pi / 8)


@functools.cache
def _pi() -> Fraction:
    """pi to 200 bits, by Machin's formula."""

    def arctan(n: int) -> Fraction:
        return sum((Fraction((-1) ** i, (2 * i + 1) * n ** (2 * i + 1)) for i in range(100)), Fraction(0))

    return 16 * arctan(5) - 4 * arctan(239)


@functools.cache
def _parts() -> tuple[float, ...]:
    """pi / 2 in pieces of 32 bits, whose products with integers up to 2^20 are exact; the last is the rest."""
    pieces, left = [], _pi() / 2
    for bits in (31, 63):
        piece = Fraction(int(left * 2**bits), 2**bits)
        pieces.append(float(piece))
        left -= piece
    return (*pieces, float(left))


@functools.cache
def _series(name: str) -> list[float]:
    """(sin(r) - r) / r^3, (cos(r) - 1 + r^2 / 2) / r^4, (arctan(t) - t) / t^3 in the square."""
    if name == "arctan":
        terms = [Fraction((-1) ** (i + 1), 2 * i + 3) for i in range(40)]
        return economised(terms, Fraction(0), Fraction(1717, 10000), 11)
    first = 3 if name == "sin" else 4
    sign = -1 if name == "sin" else 1
    terms = [Fraction(sign * (-1) ** i, math.factorial(2 * i + first)) for i in range(20)]
    return economised(terms, Fraction(0), Fraction(618, 1000), 6)


def _polynomial(k: Builder, x: Value, name: str) -> Value:
    coefficients = _series(name)
    result = k.constant(coefficients[-1], "f64", x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, x, k.constant(coefficient, "f64", x.lanes))
    return result


def _in_f64(function: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    @functools.wraps(function)
    def widened(k: Builder, x: Value) -> Value:
        wide = k.convert(x, "f64")
        result = function(k, wide)
        return result if wide is x else k.convert(result, "f32")

    return widened


def _turned(k: Builder, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi / 2): x = n pi / 2 + r, and the polynomial of sin(r) or cos(r) that n asks for."""
    n, sine, cosine = _sine_and_cosine(k, x)
    n = n + quarters
    size = k.select((n & 1) == 0, sine, cosine)
    return k.select((n & 2) == 0, size, -size)


def _sine_and_cosine(k: Builder, x: Value) -> tuple[Value, Value, Value]:
    """n, sin(r) and cos(r) for x = n pi / 2 + r."""
    shifted = x * (2.0 / math.pi) + _MAGIC
    whole = shifted - _MAGIC
    magic = k.constant(_MAGIC, "f64", x.lanes)
    n = k.bitcast(shifted, "i64") - k.bitcast(magic, "i64")
    first, second, last = _parts()
    r = ((x - whole * first) - whole * second) - whole * last
    size = absolute(k, x)
    # what is left of huge angles, and of those near a multiple of pi / 2, is not exact so
    is_hard = ((size > _EASY) | ((absolute(k, r) < _NEAR) & (whole != 0.0))) & (size < math.inf)
    n, r = lane_by_lane(k, is_hard, x, (n, r), ("i64", "f64"), quarter_turns)
    z = r * r
    sine = k.fma(r * z, _polynomial(k, z, "sin"), r)
    half = z * 0.5
    cosine = 1.0 - half
    # what the difference lost by rounding, and the smaller terms
    cosine = cosine + (((1.0 - cosine) - half) + z * z * _polynomial(k, z, "cos"))
    return n, sine, cosine


@_in_f64
def sin(k: Builder, x: Value) -> Value:
    return k.select(absolute(k, x) < 2.0**-27, x, _turned(k, x, 0))


@_in_f64
def cos(k: Builder, x: Value) -> Value:
    return _turned(k, x, 1)


@_in_f64
def tan(k: Builder, x: Value) -> Value:
    n, sine, cosine = _sine_and_cosine(k, x)
    is_odd = (n & 1) != 0
    result = k.select(is_odd, -cosine, sine) / k.select(is_odd, sine, cosine)
    return k.select(absolute(k, x) < 2.0**-27, x, result)


def arctan2(k: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y): that of the smaller over the larger, turned and mirrored to its place."""
    if element_of(y) == "f32":
        return k.convert(arctan2(k, k.convert(y, "f64"), k.convert(x, "f64")), "f32")
    a, b = absolute(k, x), absolute(k, y)
    is_steep = b > a
    low, high = k.select(is_steep, a, b), k.select(is_steep, b, a)
    ratio = low / high
    # 0 / 0 is 0 here, and infinity over infinity 1
    ratio = k.select(low == 0.0, low, k.select(low == math.inf, 1.0, ratio))
    angle = arctan(k, ratio)
    lost = float(_pi() / 2 - Fraction(math.pi / 2))
    angle = k.select(is_steep, (math.pi / 2 - angle) + lost, angle)
    angle = k.select(k.bitcast(x, "i64") < 0, (math.pi - angle) + 2.0 * lost, angle)
    return k.select((x == x) & (y == y), k.intrinsic("llvm.copysign", angle, y), x + y)


@_in_f64
def arctan(k: Builder, x: Value) -> Value:
    """arctan(t) for |t| <= tan(pi / 8), after a turn by pi / 2 or pi / 4."""
    size = absolute(k, x)
    far, near = size > 1.0 / _EIGHTH, size > _EIGHTH
    t = k.select(far, -1.0 / size, k.select(near, (size - 1.0) / (size + 1.0), size))
    z = t * t
    quarter = k.select(near, k.constant(math.pi / 4, "f64", x.lanes), 0.0)
    turn = k.select(far, k.constant(math.pi / 2, "f64", x.lanes), quarter)
    # what pi / 2 lost when it became a number
    lost = float(_pi() / 2 - Fraction(math.pi / 2))
    rest = k.fma(t * z, _polynomial(k, z, "arctan"), turn * (lost / (math.pi / 2)))
    return k.intrinsic("llvm.copysign", turn + (t + rest), x)
