"""The tail and the density of the normal distribution on vectors of f32 or f64, by `normal_series`."""

from __future__ import annotations

import math

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.normal_series import FARTHEST, tail_centre, tail_polynomial
from jitdnn.rtcg.vector_math import absolute, at_most, element_of, exp_below, lost_product, reciprocal


def normal_tail(k: Builder, x: Value) -> Value:
    """The probability of more than x, for x that are not negative."""
    dtype = element_of(x)
    centre = tail_centre(dtype)
    a = at_most(k, x, FARTHEST)
    w = reciprocal(k, a + centre)
    t = k.fma(w, k.constant(-2.0 * centre, dtype, x.lanes), k.constant(1.0, dtype, x.lanes))
    coefficients = tail_polynomial(dtype)
    smooth = k.constant(coefficients[-1], dtype, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        smooth = k.fma(smooth, t, k.constant(coefficient, dtype, x.lanes))
    return _bell(k, a) * (w * smooth)


def normal_density(k: Builder, x: Value) -> Value:
    """exp(-x^2 / 2) / sqrt(2 pi); beside the tail of |x| it costs next to nothing."""
    return _bell(k, at_most(k, absolute(k, x), FARTHEST)) * (1.0 / math.sqrt(2.0 * math.pi))


def _bell(k: Builder, a: Value) -> Value:
    """exp(-a^2 / 2)."""
    square = a * a
    near = exp_below(k, square * -0.5)
    # what the square lost by rounding counts: exp multiplies it
    return k.fma(near, lost_product(k, a, a, square) * -0.5, near)
