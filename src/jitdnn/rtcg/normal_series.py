"""The polynomial of the normal distribution's tail, derived in long fractions; any code generator may print it.

Beyond a there is exp(-a^2 / 2) M(a) / sqrt(2 pi) of the distribution, with Mills' ratio M. That falls as 1 / a, so that
M(a) (a + c) is smooth in t = (a - c) / (a + c) from 0 to infinity: one polynomial serves the whole line, and the
tail keeps its digits as far as it is above 0.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

FARTHEST = 39.0  # exp(-x^2 / 2) is 0 from here on
_BITS = 400
# c, the largest a of which the tail is above 0, and the degree of the polynomial
_SHAPE = {"f32": (Fraction(11, 4), Fraction(29, 2), 8), "f64": (Fraction(3), Fraction(39), 24)}


def tail_centre(dtype: str) -> float:
    """The c above."""
    return float(_SHAPE[dtype][0])


@functools.cache
def tail_polynomial(dtype: str) -> list[float]:
    """M(a) (a + c) / sqrt(2 pi) in t, through its values at the zeros of a Chebyshev polynomial; lowest power first."""
    centre, farthest, degree = _SHAPE[dtype]
    high = (farthest - centre) / (farthest + centre)
    middle, half = (high - 1) / 2, (high + 1) / 2
    cosines = [math.cos(math.pi * (2 * i + 1) / (2 * degree + 2)) for i in range(degree + 1)]
    nodes = [middle + half * Fraction(cosine) for cosine in cosines]
    values = [_scaled_tail(centre * (1 + t) / (1 - t), centre) for t in nodes]
    # Newton's divided differences, then the powers of t
    for order in range(1, degree + 1):
        for i in range(degree, order - 1, -1):
            values[i] = _short((values[i] - values[i - 1]) / (nodes[i] - nodes[i - order]))
    powers = [Fraction(0)]
    for value, node in zip(reversed(values), reversed(nodes), strict=True):
        raised = [Fraction(0), *powers]
        for i, power in enumerate(powers):
            raised[i] -= node * power
        raised[0] += value
        powers = [_short(power) for power in raised]
    return [float(power) for power in powers[: degree + 1]]


def _scaled_tail(a: Fraction, centre: Fraction) -> Fraction:
    root = _root_of_two_pi()
    if a > 4:  # Laplace's continued fraction 1 / (a + 1 / (a + 2 / (a + 3 / ...)))
        ratio = a
        for n in range(300, 0, -1):
            ratio = _short(a + n / ratio)
        return _short((a + centre) / (ratio * root))
    # exp(a^2 / 2) (1 / 2 - the integral of the density from 0 to a), term by term
    growth = term = Fraction(1)
    for n in range(1, 120):
        term = _short(term * a * a / (2 * n))
        growth += term
    term = total = a
    for n in range(1, 160):
        term = _short(term * a * a / (2 * n + 1))
        total += term
    return _short((growth / 2 - total / root) * (a + centre))


@functools.cache
def _root_of_two_pi() -> Fraction:
    """sqrt(2 pi) to 380 bits or so; pi by Machin's formula."""

    def arctan(n: int) -> Fraction:
        return sum((Fraction((-1) ** i, (2 * i + 1) * n ** (2 * i + 1)) for i in range(100)), Fraction(0))

    pi = 16 * arctan(5) - 4 * arctan(239)
    return Fraction(math.isqrt(int(2 * pi * (1 << 2 * _BITS))), 1 << _BITS)


def _short(x: Fraction) -> Fraction:
    """x rounded to 400 binary places, so that the digits do not grow without bound."""
    return Fraction(round(x * (1 << _BITS)), 1 << _BITS)
