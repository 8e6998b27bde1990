"""Between what an element is in memory and what it is computed in: widening loads, rounding stores.

f16 and bf16 are moved as 16 bits. Where the processor converts f16 itself LLVM is asked to; elsewhere, and for
bf16 and 8-bit reals, a few integer operations do it: LLVM would call a library that is not there.
"""

from __future__ import annotations

from typing import NamedTuple

import llvmlite.ir as ir

from jitdnn.rtcg.types import ELEMENTS, STORED, constant_of, scalar_type, suffix, vector_type
from jitdnn.rtcg.values import Emitter, Value

_UNSIGNED = ("u8", "u16", "u32", "u64", "bool")
_CONVERTING = ("avx512", "avx2", "neon")  # instruction sets with conversions from and to f16
_F16_BIAS = 2.0**112  # between the exponents of f32 and f16
_F16_SMALLEST = 2.0**-14  # a normal number
_F16_OVERFLOW = 65520.0  # from here on the nearest f16 is infinity


class _Float8(NamedTuple):
    """A format of 8 bits: of its fraction, between its exponent and that of f32, and of special numbers."""

    fraction: int
    bias: int
    largest: float
    largest_bits: int
    has_infinity: bool


_FLOAT8 = {
    "f8e4m3": _Float8(3, 120, 448.0, 0x7E, False),
    "f8e5m2": _Float8(2, 112, 57344.0, 0x7B, True),
}


def widen(k: Emitter, stored: Value, dtype: str, real: str) -> Value:
    """Elements of type ``dtype`` as values of the type ``real`` (f32, f64 or i64)."""
    if dtype == "bf16":
        return k.convert(k.bitcast(_grow(k, stored, "i32") << 16, "f32"), real)
    if dtype == "f16":
        return k.convert(_from_f16(k, stored), real)
    if dtype in _FLOAT8:
        return k.convert(_from_float8(k, stored, _FLOAT8[dtype]), real)
    if stored.is_float or dtype not in _UNSIGNED:
        return k.convert(stored, real)
    if real == "i64":
        return _grow(k, stored, "i64")
    return Value(k, k.b.uitofp(stored.v, vector_type(ELEMENTS[real], stored.lanes)))


def narrow(k: Emitter, value: Value, dtype: str) -> Value:
    """Values of f32, f64 or i64 as elements of type ``dtype``."""
    if dtype in STORED:
        if not value.is_float:
            value = k.convert(value, "f32")
        # f64 goes through f32 rounded to odd, so that it is rounded to the nearest only once
        single = _to_odd(k, value) if _is_double(value) else value
        if dtype in _FLOAT8:
            return _to_float8(k, single, _FLOAT8[dtype])
        return _to_bf16(k, single) if dtype == "bf16" else _to_f16(k, single)
    if dtype in ("f32", "f64"):
        return k.convert(value, dtype)
    if dtype == "bool":
        return _grow(k, value != 0, "u8")
    if not value.is_float:
        return k.convert(value, dtype)
    return _to_integer(k, value, dtype)


def _grow(k: Emitter, value: Value, dtype: str) -> Value:
    """Integers with zeros in front."""
    kind = vector_type(ELEMENTS[dtype], value.lanes)
    return value if value.v.type == kind else Value(k, k.b.zext(value.v, kind))


def _is_double(value: Value) -> bool:
    return isinstance(scalar_type(value.v.type), ir.DoubleType)


def _to_odd(k: Emitter, value: Value) -> Value:
    """f64 cut to f32, with the last bit set where digits were lost."""
    near = k.convert(value, "f32")
    back = k.convert(near, "f64")
    bits = k.bitcast(near, "i32")
    even = (bits & 1) == 0
    # the neighbour between the value and zero, or beyond it, has the other parity
    beyond = k.intrinsic("llvm.fabs", back) > k.intrinsic("llvm.fabs", value)
    odd = k.select(beyond, bits - 1, bits + 1)
    inexact = (back != value) & (value == value) & (k.intrinsic("llvm.fabs", back) != float("inf"))
    return k.bitcast(k.select(inexact & even, odd, bits), "f32")


def _to_bf16(k: Emitter, value: Value) -> Value:
    bits = k.bitcast(value, "i32")
    # to the nearest, ties to even: add half of the last place less one, and that one where it is odd
    nearest = bits + ((_logical(k, bits, 16) & 1) + 0x7FFF)
    quiet = bits | 0x400000
    return k.convert(_logical(k, k.select(value != value, quiet, nearest), 16), "i16")


def _logical(k: Emitter, bits: Value, places: int) -> Value:
    return Value(k, k.b.lshr(bits.v, constant_of(bits.v.type, places)))


def _from_f16(k: Emitter, stored: Value) -> Value:
    lanes = stored.lanes
    if k.isa.name in _CONVERTING:
        half = k.b.bitcast(stored.v, vector_type(ir.HalfType(), lanes))
        return Value(k, k.b.fpext(half, vector_type(ELEMENTS["f32"], lanes)))
    bits = _grow(k, stored, "i32")
    size = (bits & 0x7FFF) << 13
    finite = k.bitcast(k.bitcast(size, "f32") * _F16_BIAS, "i32")  # exact, for subnormal numbers too
    special = size | 0x7F800000
    return k.bitcast(k.select((bits & 0x7C00) == 0x7C00, special, finite) | ((bits & 0x8000) << 16), "f32")


def _to_f16(k: Emitter, value: Value) -> Value:
    lanes = value.lanes
    if k.isa.name in _CONVERTING:
        half = k.b.fptrunc(value.v, vector_type(ir.HalfType(), lanes))
        return Value(k, k.b.bitcast(half, vector_type(ELEMENTS["i16"], lanes)))
    bits = k.bitcast(value, "i32")
    sign = _logical(k, bits, 16) & 0x8000
    size_bits = bits & 0x7FFFFFFF
    size = k.bitcast(size_bits, "f32")
    normal = _logical(k, size_bits + ((_logical(k, size_bits, 13) & 1) + 0xFFF - (112 << 23)), 13)
    # adding 1/2 puts the last place of a subnormal f16 where that of an f32 is rounded
    subnormal = k.bitcast(size + 0.5, "i32") - 0x3F000000
    result = k.select(size < _F16_SMALLEST, subnormal, normal)
    result = k.select(size >= _F16_OVERFLOW, 0x7C00, result)
    result = k.select(value != value, 0x7E00, result)
    return k.convert(result | sign, "i16")


def _from_float8(k: Emitter, stored: Value, form: _Float8) -> Value:
    bits = _grow(k, stored, "i32")
    size = (bits & 0x7F) << (23 - form.fraction)
    # exact, for subnormal numbers too
    finite = k.bitcast(k.bitcast(size, "f32") * 2.0**form.bias, "i32")
    if form.has_infinity:
        wide = k.select((bits & 0x7C) == 0x7C, size | 0x7F800000, finite)
    else:
        wide = k.select((bits & 0x7F) == 0x7F, 0x7FC00000, finite)
    return k.bitcast(wide | ((bits & 0x80) << 24), "f32")


def _to_float8(k: Emitter, value: Value, form: _Float8) -> Value:
    """To the nearest, ties to even; beyond the range the largest number."""
    bits = k.bitcast(value, "i32")
    size_bits = bits & 0x7FFFFFFF
    size = k.bitcast(size_bits, "f32")
    places = 23 - form.fraction
    half = (1 << (places - 1)) - 1
    normal = _logical(
        k, size_bits + ((_logical(k, size_bits, places) & 1) + half - (form.bias << 23)), places
    )
    # the last place of this power of two in f32 is that of the smallest numbers
    power = 2.0 ** (form.bias - 127 + 1 - form.fraction + 23)
    subnormal = k.bitcast(size + power, "i32") - ((int(form.bias + 1 - form.fraction + 23)) << 23)
    result = k.select(size < 2.0 ** (form.bias - 126), subnormal, normal)
    result = k.select(size >= form.largest, form.largest_bits, result)
    result = k.select(value != value, 0x7F, result)
    return k.convert(result | (_logical(k, bits, 24) & 0x80), "i8")


def _to_integer(k: Emitter, value: Value, dtype: str) -> Value:
    """Round to the nearest, ties to even, and saturate."""
    wide, mantissa = ("i64", 52) if _is_double(value) else ("i32", 23)
    bits = ELEMENTS[dtype].width
    if bits < mantissa - 1:
        least, most = (0, 2**bits - 1) if dtype in _UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if least < 0:
            value = k.select(value == value, value, 0.0)
        value = value.max(float(least)).min(
            float(most)
        )  # NaN becomes the first bound, which is 0 if it is still there
        # the sum with this power of two is rounded where an integer ends, which is then in its last bits
        whole = k.bitcast(value + 1.5 * 2.0**mantissa, wide)
        return Value(k, k.b.trunc(whole.v, vector_type(ELEMENTS[dtype], value.lanes)))
    places = 2.0**52 if _is_double(value) else 2.0**23  # numbers from here on are whole
    size = k.intrinsic("llvm.fabs", value)
    whole = k.intrinsic("llvm.copysign", (size + places) - places, value)
    whole = k.select(size < places, whole, value)
    kind = vector_type(ELEMENTS[dtype], value.lanes)
    name = "llvm.fptoui.sat" if dtype in _UNSIGNED else "llvm.fptosi.sat"
    function = k.declare(f"{name}.{suffix(kind)}.{suffix(value.v.type)}", kind, [value.v.type])
    return Value(k, k.b.call(function, [whole.v]))
