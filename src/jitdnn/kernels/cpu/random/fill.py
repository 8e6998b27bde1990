"""What uniform, normal and Bernoulli distributions make of random words."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from jitdnn.kernels.cpu.random.philox import Body, low_words
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.types import constant_of

_TERMS = 30  # of the series that are shortened


@dataclass(frozen=True)
class Fill(Body):
    """The values of a distribution; its numbers are a and b, and for "bernoulli" the threshold."""

    distribution: str
    bits: int  # of a fraction
    parts: int

    @property
    def parameters(self) -> int:
        return 1 if self.distribution == "bernoulli" else 2

    def prepare(self, k: Builder, dtype: str, numbers: Sequence[Value]) -> Sequence[Value]:
        if self.distribution == "bernoulli":
            return numbers
        return [k.convert(k.bitcast(number, "f64"), dtype) for number in numbers]

    def draw(
        self, k: Builder, dtype: str, scalars: Sequence[Value], words: Sequence[Value]
    ) -> Sequence[Value]:
        lanes = words[0].lanes
        if self.distribution == "bernoulli":
            one, limit = k.constant(1.0, dtype, lanes), k.splat(scalars[0], lanes)
            return [k.select((word & 0xFFFFFFFF) < limit, one, 0.0) for word in words]
        first, second = (k.splat(scalar, lanes) for scalar in scalars)
        if self.distribution == "uniform":
            return [k.fma(second - first, u, first) for u in self._fractions(k, dtype, words)]
        results = []
        fractions = self._fractions(k, dtype, words)
        for u, v in zip(fractions[::2], fractions[1::2], strict=True):
            # a fraction of all 32 bits may round to 1, and ln 1 to a zero of either sign
            above = k.fma(u, k.constant(1.0, dtype, lanes), k.constant(2.0 ** -(self.bits + 1), dtype, lanes))
            squared = vector_math.log(k, above) * -2.0
            size = vector_math.sqrt(k, vector_math.at_least(k, squared, 0.0)) * second
            results += [k.fma(size, wave, first) for wave in _waves(k, dtype, v)]
        return results

    def _fractions(self, k: Builder, dtype: str, words: Sequence[Value]) -> list[Value]:
        """Leading bits of a word, or of two, as numbers from 0 to below 1 (to 1, where 32 bits are rounded)."""
        scale = 2.0**-self.bits
        if self.parts == 2:
            wide = [
                (high << 32) | (low & 0xFFFFFFFF) for high, low in zip(words[::2], words[1::2], strict=True)
            ]
            return [k.convert(_shifted(k, word, 64 - self.bits), dtype) * scale for word in wide]
        narrow = [_shifted(k, low_words(k, word), 32 - self.bits) for word in words]
        if self.bits < 32:
            return [k.convert(word, dtype) * scale for word in narrow]
        return [
            k.convert(word, dtype) * scale + k.select(word < 0, k.constant(1.0, dtype), 0.0)
            for word in narrow
        ]


def _shifted(k: Builder, word: Value, places: int) -> Value:
    return Value(k, k.b.lshr(word.v, constant_of(word.v.type, places))) if places else word


@functools.cache
def _series(dtype: str) -> tuple[list[float], list[float]]:
    """sin(pi r / 2) / r and cos(pi r / 2) in z = r^2 for |r| up to 1/2."""
    degree = 4 if dtype == "f32" else 8
    quarter = Fraction(math.pi) / 2 + Fraction(1.2246467991473532e-16) / 2  # pi in two doubles: 106 bits
    sine = [(-1) ** i * quarter ** (2 * i + 1) / math.factorial(2 * i + 1) for i in range(_TERMS)]
    cosine = [(-1) ** i * quarter ** (2 * i) / math.factorial(2 * i) for i in range(_TERMS)]
    low, high = Fraction(0), Fraction(1, 4)
    return (
        vector_math.economised(sine, low, high, degree),
        vector_math.economised(cosine, low, high, degree),
    )


def _waves(k: Builder, dtype: str, turns: Value) -> tuple[Value, Value]:
    """The cosine and the sine of an angle in turns, from 0 to 1.

    Four times the angle is n quarters and a rest r of at most half a quarter; sine and cosine of the rest change
    places where n is odd, and signs as the quarter wants.
    """
    lanes, integer = turns.lanes, "i32" if dtype == "f32" else "i64"
    quarters = turns * 4.0
    magic = 1.5 * 2.0 ** (23 if dtype == "f32" else 52)
    shifted = quarters + magic
    n = k.bitcast(shifted, integer)  # its low bits; the magic number's own are zero there
    r = quarters - (shifted - magic)
    z = r * r
    sine, cosine = (_horner(k, dtype, z, series) for series in _series(dtype))
    sine = sine * r
    odd = (n & 1) == 1
    zero = k.constant(0.0, dtype, lanes)
    first, second = k.select(odd, sine, cosine), k.select(odd, cosine, sine)
    cos_negative, sin_negative = ((n + 1) & 2) == 2, (n & 2) == 2
    return k.select(cos_negative, zero - first, first), k.select(sin_negative, zero - second, second)


def _horner(k: Builder, dtype: str, x: Value, coefficients: Sequence[float]) -> Value:
    result = k.constant(coefficients[-1], dtype, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, x, k.constant(coefficient, dtype, x.lanes))
    return result
