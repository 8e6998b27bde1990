"""exp, log, tanh and their relatives on vectors of f32 or f64, traced into the kernel that uses them.

Each function takes a ``Value`` of any number of lanes and returns one of the same type. Errors stay within
2.5 units in the last place over the whole range; infinities, NaN, overflow and subnormal results come out as
IEEE 754 wants them. No function branches, so that every lane takes the same time.

The polynomials are Taylor series shortened to the interval on which they are used (``economised``), derived
here in long fractions rather than kept as tables of digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import llvmlite.ir as ir

from jitdnn.rtcg.builder import Builder, Value

_TERMS = 40  # of the Taylor series that are shortened: far beyond the precision of f64


def economised(series: Sequence[Fraction], low: Fraction, high: Fraction, degree: int) -> list[float]:
    """Coefficients, lowest first, of a polynomial of ``degree`` close to a power series on [low, high].

    The series is written in t, which runs over [-1, 1] there. The leading power of t is then replaced, again
    and again, by what differs from it by a multiple of a Chebyshev polynomial: of all changes that remove the
    power this is the one whose largest error is smallest (Lanczos, Applied Analysis, 1956).
    """
    middle, half = (low + high) / 2, (high - low) / 2
    in_t = _compose(series, middle, half)
    chebyshev = [[Fraction(1)], [Fraction(0), Fraction(1)]]
    while len(chebyshev) < len(in_t):
        last, before = chebyshev[-1], chebyshev[-2]
        twice = [Fraction(0), *(2 * c for c in last)]
        chebyshev.append([c - (before[i] if i < len(before) else 0) for i, c in enumerate(twice)])
    while len(in_t) > degree + 1:
        shape = chebyshev[len(in_t) - 1]
        ratio = in_t[-1] / shape[-1]
        in_t = [c - ratio * s for c, s in zip(in_t, shape, strict=True)][:-1]
    return [float(c) for c in _compose(in_t, -middle / half, 1 / half)]


def _compose(polynomial: Sequence[Fraction], constant: Fraction, slope: Fraction) -> list[Fraction]:
    """The coefficients of polynomial(constant + slope * t) in t."""
    result = [Fraction(0)]
    for coefficient in reversed(polynomial):
        shifted = [Fraction(0), *(slope * c for c in result)]
        for i, c in enumerate(result):
            shifted[i] += constant * c
        shifted[0] += coefficient
        result = [_short(c) for c in shifted]
    return result[: len(polynomial)]


def _short(x: Fraction) -> Fraction:
    """x rounded to 256 binary places, so that the digits do not grow without bound."""
    return Fraction(round(x * (1 << 256)), 1 << 256)


@dataclass(frozen=True)
class _Format:
    """What the functions must know of an IEEE 754 format."""

    dtype: str
    integer: str
    mantissa: int  # stored bits
    bias: int
    highest: float  # exp overflows above
    lowest: float  # exp is 0 below
    saturation: float  # tanh is 1 above
    erf_saturation: float  # erf is 1 above

    @property
    def magic(self) -> float:
        """Added and taken away again, it rounds to an integer, which is also in the sum's low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """Below this size f(x) = x in all but the last place, where f is expm1, log1p, tanh."""
        return 2.0 ** -(self.mantissa + 2)

    @functools.cached_property
    def ln2(self) -> tuple[float, float]:
        """ln 2 as a number short enough that its product with any exponent is exact, and the rest."""
        kept = self.mantissa - self.bias.bit_length() - 1
        # ln 2 in 80 decimals is beyond float: the sum of 1 / (k 2^k) in exact fractions is good to 2^-200
        exact = sum(Fraction(1, k << k) for k in range(1, 200))
        high = Fraction(int(exact * 2**kept), 2**kept)
        return float(high), float(exact - high)

    @functools.cached_property
    def exponential(self) -> list[float]:
        """(exp(r) - 1 - r) / r^2 for |r| up to ln(2) / 2."""
        series = [Fraction(1, math.factorial(k + 2)) for k in range(_TERMS)]
        return economised(series, Fraction(-347, 1000), Fraction(347, 1000), 4 if self.dtype == "f32" else 9)

    @functools.cached_property
    def logarithm(self) -> list[float]:
        """(2 atanh(s) - 2 s) / s^3 in z = s^2, for s = f / (2 + f) with 1 + f from 1/sqrt(2) to sqrt(2)."""
        series = [Fraction(2, 2 * k + 3) for k in range(_TERMS)]
        return economised(series, Fraction(0), Fraction(295, 10000), 3 if self.dtype == "f32" else 7)

    @functools.cached_property
    def near_logarithm(self) -> list[float]:
        """(2 atanh(s) - 2 s) / s^3 in z = s^2 for s from 0 to 1/3."""
        series = [Fraction(2, 2 * k + 3) for k in range(_TERMS)]
        return economised(series, Fraction(0), Fraction(1, 9), 3 if self.dtype == "f32" else 11)

    @functools.cached_property
    def erf_series(self) -> list[float]:
        """erf(x) / x in z = x^2 for |x| < 1."""
        series = [Fraction((-1) ** k, math.factorial(k) * (2 * k + 1)) for k in range(_TERMS)]
        short = economised(series, Fraction(0), Fraction(1), 6 if self.dtype == "f32" else 12)
        return [2.0 / math.sqrt(math.pi) * c for c in short]

    @functools.cached_property
    def erf_tail(self) -> list[float]:
        """exp(x^2) erfc(x) in t = (x - c) / (x + c), from 1 to where erf is 1.

        Let y be sqrt(pi) / 2 times it. From dy/dx = 2 x y - 1 and x = c (1 + t) / (1 - t) follows
        (1 - t)^3 dy/dt = 4 c^2 (1 + t) y - 2 c (1 - t), which gives the power series term by term; the first
        term, y(c), is the continued fraction 1 / (2 c + 2 / (2 c + 4 / (2 c + 6 / ...))).
        """
        c = self.erf_centre
        first = 2 * c
        for n in range(120, 0, -1):
            first = _short(2 * c + 2 * n / first)
        series = [_short(1 / first)]
        for n in range(80):
            known = [series[n - i] if n >= i else Fraction(0) for i in range(3)]
            right = 4 * c * c * (known[0] + known[1]) - 2 * c * ((n == 0) - (n == 1))
            left = -3 * n * known[0] + 3 * (n - 1) * known[1] - (n - 2) * known[2]
            series.append(_short((right - left) / (n + 1)))
        ends = [(x - c) / (x + c) for x in (Fraction(1), Fraction(self.erf_saturation))]
        short = economised(series, ends[0], ends[1], 7 if self.dtype == "f32" else 17)
        return [2.0 / math.sqrt(math.pi) * y for y in short]

    @property
    def erf_centre(self) -> Fraction:
        """Makes the two ends of the interval of ``erf_tail`` about opposite."""
        return Fraction(2) if self.dtype == "f32" else Fraction(5, 2)


_FORMATS = {
    "float": _Format("f32", "i32", 23, 127, 89.0, -105.0, 10.0, 4.0),
    "double": _Format("f64", "i64", 52, 1023, 710.0, -746.0, 22.0, 6.0),
}


def _format(x: Value) -> _Format:
    kind = x.v.type
    return _FORMATS[str(kind.element if x.lanes > 1 else kind)]


def element_of(x: Value) -> str:
    """The element type of a floating-point value: "f32" or "f64"."""
    return _format(x).dtype


def _horner(k: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    form = _format(x)
    result = k.constant(coefficients[-1], form.dtype, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = k.fma(result, x, k.constant(coefficient, form.dtype, x.lanes))
    return result


def absolute(k: Builder, x: Value) -> Value:
    return k.intrinsic("llvm.fabs", x)


def lost_product(k: Builder, a: Value, b: Value, product: Value) -> Value:
    """What the product of a and b lost by rounding."""
    if k.isa.has_fma:
        return k.fma(a, b, -product)
    # Dekker's halves, whose products are exact
    split = float(2 ** ((_format(a).mantissa + 2) // 2) + 1)
    parts = []
    for x in (a, b):
        grown = x * split
        high = grown - (grown - x)
        parts.append((high, x - high))
    (high_a, low_a), (high_b, low_b) = parts
    return ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def at_least(k: Builder, x: Value, bound: float) -> Value:
    """max(x, bound), where NaN stays NaN."""
    return k.select(x < bound, bound, x)


def at_most(k: Builder, x: Value, bound: float) -> Value:
    """min(x, bound), where NaN stays NaN."""
    return k.select(x > bound, bound, x)


def maximum(k: Builder, a: Value, b: Value) -> Value:
    """The greater one; NaN if either is."""
    return k.select((a > b) | (a != a), a, b)


def minimum(k: Builder, a: Value, b: Value) -> Value:
    """The smaller one; NaN if either is."""
    return k.select((a < b) | (a != a), a, b)


def _power_of_two(k: Builder, n: Value) -> Value:
    """2^n for whole n (as integers) within the exponents of normal numbers."""
    form = _FORMATS["float" if str(n.v.type).endswith(("i32", "i32>")) else "double"]
    return k.bitcast((n + form.bias) << form.mantissa, form.dtype)


def _reduce(k: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x = n ln 2 + r with |r| <= ln(2) / 2: returns n as integers, r, and what r lost by rounding."""
    form = _format(x)
    high, low = form.ln2
    shifted, whole = _quotient(x)
    magic = k.constant(form.magic, form.dtype, x.lanes)
    n = k.bitcast(shifted, form.integer) - k.bitcast(magic, form.integer)
    rest, correction = x - whole * high, whole * low
    r = rest - correction
    return n, r, (rest - r) - correction


def _quotient(x: Value) -> tuple[Value, Value]:
    """x / ln 2 rounded to the nearest integer: as the low bits of a number, and as a number."""
    form = _format(x)
    shifted = x * (1.0 / math.log(2.0)) + form.magic
    return shifted, shifted - form.magic


def _curve(k: Builder, r: Value) -> Value:
    """exp(r) - 1 - r."""
    return r * r * _horner(k, r, _format(r).exponential)


def exp(k: Builder, x: Value) -> Value:
    return exp_below(k, at_most(k, x, _format(x).highest))


def exp_below(k: Builder, x: Value) -> Value:
    """exp(x) for x that are known not to be large, in one instruction less."""
    form = _format(x)
    x = at_least(k, x, form.lowest)
    high, low = form.ln2
    shifted, whole = _quotient(x)
    r = (x - whole * high) - whole * low
    if k.isa.has_fma:
        power = _horner(k, r, [1.0, 1.0, *form.exponential])
    else:  # the sum rounds less often
        power = r + _curve(k, r) + 1.0
    return scaled(k, power, shifted, whole)


def scaled(k: Builder, x: Value, shifted: Value, whole: Value) -> Value:
    """x times 2^n, with n as ``_quotient`` gives it."""
    form = _format(x)
    lanes = k.lanes(form.dtype)
    if k.isa.name == "avx512" and x.lanes > lanes:
        parts = zip(*(k.split(value, lanes) for value in (x, shifted, whole)), strict=True)
        return k.join([scaled(k, *part) for part in parts])
    if k.isa.name == "avx512" and x.lanes == lanes:
        kind = x.v.type
        mask, mode = ir.IntType(max(8, x.lanes)), ir.IntType(32)
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if form.dtype == 'f32' else 'pd'}.512"
        function = k.declare(name, kind, [kind, kind, kind, mask, mode])
        every, as_is = ir.Constant(mask, (1 << x.lanes) - 1), ir.Constant(mode, 4)
        return Value(k, k.b.call(function, [x.v, whole.v, x.v, every, as_is]))
    magic = k.constant(form.magic, form.dtype, x.lanes)
    n = k.bitcast(shifted, form.integer) - k.bitcast(magic, form.integer)
    half = n >> 1  # 2^n alone may be out of range where the product is not
    return x * _power_of_two(k, half) * _power_of_two(k, n - half)


def reciprocal(k: Builder, x: Value) -> Value:
    """1 / x to one unit in the last place, for x of moderate size: neither 0, nor infinite, nor subnormal.

    A division of a whole vector of f32 keeps AVX-512's multiply-add unit busy for ten cycles; an approximation to 14
    bits and one step of Newton's method, which doubles them, for four.
    """
    form = _format(x)
    lanes = k.lanes(form.dtype)
    if k.isa.name != "avx512" or form.dtype != "f32" or x.lanes < lanes:
        return 1.0 / x
    if x.lanes > lanes:
        return k.join([reciprocal(k, part) for part in k.split(x, lanes)])
    kind, mask = x.v.type, ir.IntType(max(8, lanes))
    function = k.declare("llvm.x86.avx512.rcp14.ps.512", kind, [kind, kind, mask])
    every = ir.Constant(mask, (1 << lanes) - 1)
    near = Value(k, k.b.call(function, [x.v, x.v, every]))
    return k.fma(near, k.fma(-x, near, k.constant(1.0, form.dtype, lanes)), near)


def expm1(k: Builder, x: Value) -> Value:
    form = _format(x)
    n, r, lost = _reduce(k, at_least(k, at_most(k, x, form.highest), -2.0 * form.mantissa))
    scale = _power_of_two(k, n - 1)  # half of 2^n, which itself may overflow
    result = k.fma(scale, r + (_curve(k, r) + lost), scale - 0.5) * 2.0
    return k.select(absolute(k, x) < form.tiny, x, result)


def tanh(k: Builder, x: Value) -> Value:
    form = _format(x)
    n, r, lost = _reduce(k, at_most(k, absolute(k, x), form.saturation) * 2.0)
    scale = _power_of_two(k, n)
    grown = k.fma(scale, r + (_curve(k, r) + lost), scale - 1.0)  # exp(2 |x|) - 1
    return k.intrinsic("llvm.copysign", grown * reciprocal(k, grown + 2.0), x)


def sigmoid(k: Builder, x: Value) -> Value:
    small = exp_below(k, -absolute(k, x))  # at most 1: nothing overflows, and small results keep their digits
    return k.select(x < 0.0, small, 1.0) * reciprocal(k, small + 1.0)


def log1pexp(k: Builder, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), and log(1 + e) = 2 atanh(e / (2 + e))."""
    small = exp_below(k, -absolute(k, x))
    s = small / (small + 2.0)
    return k.fma(s, _horner(k, s * s, [2.0, *_format(x).near_logarithm]), at_least(k, x, 0.0))


def erf(k: Builder, x: Value) -> Value:
    """x P(x^2) below 1; above it 1 - exp(-x^2) Q, where Q is smooth in t = (|x| - c) / (|x| + c)."""
    form = _format(x)
    size = absolute(k, x)
    bounded = at_most(k, size, form.erf_saturation)
    centre = float(form.erf_centre)
    t = (bounded - centre) / (bounded + centre)
    tail = exp(k, -(bounded * bounded)) * _horner(k, t, form.erf_tail)
    large = k.intrinsic("llvm.copysign", 1.0 - tail, x)
    return k.select(size < 1.0, x * _horner(k, x * x, form.erf_series), large)


def log(k: Builder, x: Value) -> Value:
    n, f = _exponent_and_fraction(k, x)
    return _log_edges(k, x, _log_of(k, n, f, None), 0.0)


def log1p(k: Builder, x: Value) -> Value:
    form = _format(x)
    sum_ = x + 1.0
    n, m = _mantissa(k, sum_)
    in_place = (
        n == 0
    )  # 1 + x is within the interval of the series: x itself is its argument, without rounding
    lost = k.select(x < 1.0, x - (sum_ - 1.0), 1.0 - (sum_ - x))  # what the rounding of the sum took away
    result = _log_of(k, n, k.select(in_place, x, m - 1.0), k.select(in_place, 0.0, lost / sum_))
    result = _log_edges(k, x, result, -1.0)
    return k.select(absolute(k, x) < form.tiny, x, result)


def _mantissa(k: Builder, x: Value) -> tuple[Value, Value]:
    """A positive normal x = 2^n m with m from 1/sqrt(2) to sqrt(2): returns n as integers, and m."""
    form = _format(x)
    bits = k.bitcast(x, form.integer)
    lowest = k.bitcast(k.constant(math.sqrt(0.5), form.dtype, x.lanes), form.integer)
    n = (bits - lowest) >> form.mantissa
    return n, k.bitcast(bits - (n << form.mantissa), form.dtype)


def _exponent_and_fraction(k: Builder, x: Value) -> tuple[Value, Value]:
    """A positive x = 2^n (1 + f), subnormal ones too: returns n as integers, and f."""
    form = _format(x)
    smallest = 2.0 ** (1 - form.bias)
    subnormal = x < smallest
    shift = form.mantissa + 2
    n, m = _mantissa(k, k.select(subnormal, x * 2.0**shift, x))
    return k.select(subnormal, n - shift, n), m - 1.0


def _log_of(k: Builder, n: Value, f: Value, correction: Value | None) -> Value:
    """log(2^n (1 + f)) + correction.

    With s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2 s + s^3 P(s^2). Here 2 s = f - h + s h with h = f^2 / 2,
    so that the largest term, f, is exact and the errors are those of the smaller ones.
    """
    exponent, h, small = _log_terms(k, n, f)
    if correction is not None:
        small = small + correction
    return exponent * _format(f).ln2[0] + (f - (h - small))


def _log_terms(k: Builder, n: Value, f: Value) -> tuple[Value, Value, Value]:
    """n as a real number, h, and s h + s^3 P(s^2) with the low part of n log(2), of the sum in `_log_of`."""
    form = _format(f)
    magic = k.constant(form.magic, form.dtype, f.lanes)
    exponent = k.bitcast(n + k.bitcast(magic, form.integer), form.dtype) - magic
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return exponent, h, k.fma(s, k.fma(z, _horner(k, z, form.logarithm), h), exponent * form.ln2[1])


def log_parts(k: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) as the sum of two numbers, the second far below the first's last place; (log(x), 0) at the edges."""
    n, f = _exponent_and_fraction(k, x)
    exponent, h, small = _log_terms(k, n, f)
    small = small - lost_product(k, f * 0.5, f, h)
    # n log(2) + f - h, with what each of the two sums lost by rounding
    whole = exponent * _format(x).ln2[0]
    first = whole + f
    part = first - whole
    error = (whole - (first - part)) + (f - part)
    second = first - h
    part = second - first
    error = error + ((first - (second - part)) - (h + part))
    rest = small + error
    result = second + rest
    rest = (second - result) + rest
    is_number = (x > 0.0) & (x < math.inf)
    return _log_edges(k, x, result, 0.0), k.select(is_number, rest, 0.0)


def _log_edges(k: Builder, x: Value, result: Value, pole: float) -> Value:
    """-infinity at the pole, NaN below it and for NaN, infinity at infinity."""
    result = k.select(x == pole, -math.inf, result)
    result = k.select(x == math.inf, math.inf, result)
    return k.select(x >= pole, result, math.nan)


def sqrt(k: Builder, x: Value) -> Value:
    return k.intrinsic("llvm.sqrt", x)
