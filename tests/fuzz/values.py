"""Numbers for operands, and whether results are what they must be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fuzz.problem import Array, Expected, roundoff

NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8,
    "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
    "bool": np.bool_,
}  # fmt: skip
_TINY = {"f16": 6e-8, "bf16": 9.2e-41, "f32": 1.4e-45, "f64": 5e-324}
_HALF = {"f16": 2.0**-11, "bf16": 2.0**-8}  # unit roundoffs of types that only store
_LARGEST = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028234e38, "f64": 1.7976931348623157e308}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(NUMPY[name])


def specials(dtype: str) -> Array:
    """Numbers that formulas forget."""
    tiny, large = _TINY[dtype], _LARGEST[dtype]
    some = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        tiny,
        -tiny,
        large,
        -large,
        1.0,
        -1.0,
        0.5,
        1e-3,
        88.8,
        -88.8,
        709.8,
    ]
    return np.array(some)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, flavour: str) -> Array:
    """Numbers of a flavour: "normal", "whole" (small whole numbers, which make ties and exact sums), "special" (a few
    that are no ordinary numbers), "extreme" (from the whole range of the type), "infinite" (a few infinities and NaN),
    "constant"."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype[0] in "iu":
        limits = np.iinfo(NUMPY[dtype])
        if flavour == "normal" or flavour == "extreme":
            return rng.integers(limits.min, limits.max, shape, NUMPY[dtype], endpoint=True)
        return rng.integers(max(limits.min, -9), 9, shape, endpoint=True)
    if flavour == "whole":
        return rng.integers(-4, 4, shape, endpoint=True).astype(np.float64)
    if flavour == "constant":
        return np.full(shape, rng.choice([0.0, 1.0, -2.5, 0.1]))
    if flavour == "extreme":
        exponents = {"f16": (-24, 15), "bf16": (-133, 127), "f32": (-149, 127), "f64": (-1074, 1023)}[dtype]
        return np.ldexp(rng.uniform(-2, 2, shape), rng.integers(*exponents, shape))
    made = rng.standard_normal(shape)
    if flavour in ("special", "infinite"):
        some = specials(dtype) if flavour == "special" else np.array([np.nan, np.inf, -np.inf])
        mask = rng.random(shape) < (0.2 if flavour == "special" else min(0.3, 2.0 / max(1, made.size)))
        made = np.where(mask, rng.choice(some, shape), made)
    return made


def stored(values: Array, dtype: str) -> Array:
    """Values rounded to a type; integers saturate."""
    if dtype[0] in "iu" and values.dtype.kind == "f":
        return whole(values, dtype)
    with np.errstate(all="ignore"):
        return values.astype(NUMPY[dtype])


def whole(values: Array, dtype: str) -> Array:
    """Real numbers as integers of a type: the nearest, of two the even one, saturated; NaN is 0."""
    limits = np.iinfo(NUMPY[dtype])
    wide = np.rint(
        np.nan_to_num(np.asarray(values, np.longdouble), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    )
    wide = np.clip(wide, np.longdouble(limits.min), np.longdouble(limits.max))
    # a 64-bit integer is whole in a long double, but NumPy converts one beyond 2^63 only from unsigned
    return (
        wide.astype(np.uint64).astype(NUMPY[dtype])
        if dtype == "u64"
        else wide.astype(np.int64).astype(NUMPY[dtype])
    )


def wrong(
    actual: Array, expected: Expected, dtype: str, alpha: float, beta: float, previous: Array | None
) -> str | None:
    """What is wrong with a result of type `dtype`; None if nothing is. `previous`: what `out` held."""
    value = np.asarray(expected.value)
    if actual.shape != value.shape:
        return f"shape {actual.shape}, must be {value.shape}"
    if not value.size:
        return None
    # double precision is scaled in more than itself, so that sums of what overflows alone are known
    kind = np.longdouble if dtype == "f64" or value.dtype == np.longdouble else np.float64
    with np.errstate(all="ignore"):
        total = value.astype(kind)
        error = np.broadcast_to(np.asarray(expected.error, kind), value.shape)
        is_open = np.isinf(error)
        if (alpha, beta) != (1.0, 0.0):
            scaled = kind(alpha) * total
            kept = kind(beta) * previous.astype(kind) if beta != 0 and previous is not None else kind(0.0)
            unit = roundoff(dtype)
            error = abs(alpha) * error + unit * (4 * np.abs(scaled) + expected.additions * np.abs(kept))
            if expected.adds_in_place:
                error = error + expected.additions * _HALF.get(dtype, 0.0) * np.abs(kept)
            if dtype in _LARGEST:  # what is more than the arithmetic holds before it is scaled is infinite
                most = _LARGEST["f64" if dtype == "f64" else "f32"]
                parts = np.maximum(np.abs(scaled), np.abs(kept))
                is_open = is_open | (np.isfinite(value) & (np.abs(value) > most))
                # whether a product is rounded before it is added is left to the kernel
                is_open = is_open | (np.isfinite(parts) & (parts > most) & (np.abs(scaled + kept) <= most))
            total = scaled + kept
        else:
            error = error + 2 * roundoff(dtype) * np.abs(total)
        if dtype == "bool":
            bad = actual != (total != 0)
        elif dtype[0] in "iu":
            low, high = whole(total - error, dtype), whole(total + error, dtype)
            bad = ~((low <= actual) & (actual <= high))
        else:
            smallest = _TINY[
                "f64" if dtype == "f64" else "f32"
            ]  # what comes of numbers that are no longer normal
            error = error + 2 * smallest * (1 + abs(alpha) + abs(beta))
            low, high = (np.asarray(one).astype(NUMPY[dtype]) for one in (total - error, total + error))
            got = actual
            if dtype == "bf16":  # whose comparisons are slow
                low, high, got = (one.astype(np.float32) for one in (low, high, got))
            # an error beyond the type's range on both sides: sums on the way there may have been infinite
            is_open = is_open | (np.isneginf(low) & np.isposinf(high))
            is_number = np.isfinite(total)
            within = (low <= got) & (got <= high)
            same = np.where(np.isnan(total), np.isnan(got), got == total)
            if expected.infinities_alike:
                same = ~np.isfinite(got)
            bad = ~np.where(is_number, within, same)
        bad &= ~is_open
        if expected.other is not None:
            bad &= actual != expected.other
    if not bad.any():
        return None
    where = np.unravel_index(np.flatnonzero(bad)[0], bad.shape)
    count = int(bad.sum())
    return (
        f"{count} of {bad.size} wrong, first at {tuple(map(int, where))}: {actual[where]!r}, must be "
        f"{total[where]!r} +- {float(error[where]):.3g}"
    )
