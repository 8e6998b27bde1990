"""What the functions of the expression language mean over 64-bit integers, which wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitdnn.errors import InvalidType
from jitdnn.rtcg import vector_power
from jitdnn.rtcg.builder import Builder, Value


def _quotient(k: Builder, x: Value, y: Value) -> Value:
    """x / y cut off towards zero, 0 where y is: the processor would end the program for it, and for the quotient
    of the smallest number by -1, which wraps here."""
    safe = k.select((y == 0) | (y == -1), 1, y)
    return k.select(y == 0, 0, k.select(y == -1, -x, x / safe))


def _fmod(k: Builder, x: Value, y: Value) -> Value:
    return k.select(y == 0, 0, x - _quotient(k, x, y) * y)


def _remainder(k: Builder, x: Value, y: Value) -> Value:
    left = _fmod(k, x, y)
    return k.select((left != 0) & ((left ^ y) < 0), left + y, left)


def _floor_quotient(k: Builder, x: Value, y: Value) -> Value:
    return _quotient(k, x - _remainder(k, x, y), y)


def _sign(k: Builder, x: Value) -> Value:
    return k.select(x > 0, 1, x >> 63)


def _power(k: Builder, x: Value, y: Value) -> Value:
    """By way of f64, rounded: exact up to 2^53 or nearly so."""
    result = vector_power.power(k, k.convert(x, "f64"), k.convert(y, "f64"))
    # conversions of what is out of range have no meaning
    limit = 2.0**62
    bounded = k.select(result > limit, limit, k.select(result < -limit, -limit, result))
    whole = k.select(bounded < 0.0, bounded - 0.5, bounded + 0.5)
    return k.convert(whole, "i64")


def _absolute(k: Builder, x: Value) -> Value:
    return k.select(x < 0, -x, x)


def _same(_: Builder, x: Value) -> Value:
    return x


_FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "absolute": _absolute,
    "ceil": _same,
    "divide": _quotient,
    "floor": _same,
    "floor_divide": _floor_quotient,
    "fmod": _fmod,
    "power": _power,
    "remainder": _remainder,
    "rint": _same,
    "sign": _sign,
    "trunc": _same,
}


def takes(name: str) -> bool:
    """True if the operation is another one over integers than over real numbers."""
    return name in _FUNCTIONS


def apply(k: Builder, name: str, arguments: list[Value]) -> Value:
    """One operation over vectors of integers. Raises InvalidType for those that only real numbers have."""
    function = _FUNCTIONS.get(name)
    if function is None:
        raise InvalidType(f"{name} of integers is no integer: give operands or a result of a real type")
    return function(k, *arguments)
