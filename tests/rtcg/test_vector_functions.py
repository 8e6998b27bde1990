"""Rounding, remainders, powers, angles and integers as generated code, on every instruction set."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import INSTRUCTION_SETS
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidType
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise
from jitdnn.problems.activation_functions import normal_tail
from jitdnn.rtcg import functions
from jitdnn.rtcg.expression import Expression, apply, trace, where
from jitdnn.tensor import TensorDescriptor, numpy_dtype
from jitdnn.tensor.dtypes import dtype_name

Array = np.ndarray[Any, Any]
WIDE = np.longdouble
DTYPES = {"f32": np.float32, "f64": np.float64}
INF, NAN = np.inf, np.nan


def compute(expression: Expression, *inputs: Array, cpu: str = "host") -> Array:
    """The expression over arrays of one length, by generated code."""
    name = dtype_name(inputs[0].dtype)
    assert name is not None
    out = np.full_like(inputs[0], 99)
    tensors = [TensorDescriptor.packed(x.shape, name) for x in (*inputs, out)]
    kernel = build_elementwise(expression, tensors, host(1, cpu))
    kernel(None, [x.ctypes.data for x in (*inputs, out)], 1.0, 0.0, 0)
    return out


def unary(name: str) -> Expression:
    return trace(lambda x: apply(name, x))


def binary(name: str) -> Expression:
    return trace(lambda x, y: apply(name, x, y))


def same(actual: Array, expected: Array) -> None:
    """Equal in every bit that counts: values, NaN, and the signs of zeros."""
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers]))


def units(actual: Array, exact: Array) -> Array:
    """Distance in spacings of the format of `actual`, 0 where both are the same special value."""
    rounded = exact.astype(actual.dtype)
    is_same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    distance = np.abs(actual.astype(WIDE) - exact) / np.spacing(np.abs(rounded)).astype(WIDE)
    return np.where(is_same, 0, distance)


def wide_pairs(kind: type) -> tuple[Array, Array]:
    """Pairs of every sign and of sizes up to 2^40 apart, whole numbers among them."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, 3000) * 2.0 ** rng.integers(-20, 21, 3000)
    y = rng.uniform(-1, 1, 3000) * 2.0 ** rng.integers(-20, 21, 3000)
    x[:500], y[:500] = np.rint(x[:500] * 64), np.rint(y[:500] * 8) + 0.0
    return x.astype(kind), y.astype(kind)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "rint"])
def test_rounding_is_exact(name: str, dtype: str, cpu: str) -> None:
    kind = DTYPES[dtype]
    edge = 2.0 ** (23 if dtype == "f32" else 52)
    points = [0.0, 0.3, 0.5, 1.5, 2.5, 0.9999999, 1.0, edge - 1, edge - 0.5, edge, edge + 1, 1e30, INF, NAN]
    values = np.array([*points, *wide_pairs(kind)[0][:200]], kind)
    x = np.concatenate([values, -values])
    same(compute(unary(name), x, cpu=cpu), getattr(np, name)(x))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide"])
def test_remainders_are_exact(name: str, dtype: str, cpu: str) -> None:
    kind = DTYPES[dtype]
    x, y = wide_pairs(kind)
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -7.0, INF, -INF, NAN], kind)
    a, b = (grid.ravel() for grid in np.meshgrid(special, special))
    x, y = np.concatenate([x, a]), np.concatenate([y, b])
    with np.errstate(all="ignore"):
        # the rests of f32 are numbers of f32; quotients are rounded once
        expected = getattr(np, name)(x.astype(np.float64), y.astype(np.float64)).astype(kind)
    # an infinite divisor of the other sign: Python's % has the divisor itself, which is x - floor(-0) y
    same(compute(binary(name), x, y, cpu=cpu), expected)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_powers(dtype: str, cpu: str) -> None:
    kind = DTYPES[dtype]
    special = np.array(
        [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, -2.5, INF, -INF, NAN, 1e30, -1e30], kind
    )
    x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    actual = compute(binary("power"), x, y, cpu=cpu)
    plain = (np.abs(expected) == INF) | (expected == 0) | np.isnan(expected) | (expected == 1)
    same(actual[plain], expected[plain])
    if np.finfo(WIDE).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("nothing more exact than f64 to compare with")
    rng = np.random.default_rng(4)
    base = np.exp(rng.uniform(-4, 4, 4000)).astype(kind)
    most = 80 if dtype == "f32" else 700
    for span, allowed in ((3, 1.0 if dtype == "f32" else 2.0), (most, 1.0 if dtype == "f32" else 50.0)):
        exponent = (rng.uniform(-span, span, 4000) / np.maximum(np.abs(np.log(base)), 0.01)).astype(kind)
        exact = np.power(base.astype(WIDE), exponent.astype(WIDE))
        # without a multiply-add the product y log(x) is rounded: an error that grows with it
        slack = 1.0 if cpu != "plain" or dtype == "f32" else span
        assert units(compute(binary("power"), base, exponent, cpu=cpu), exact).max() <= allowed * slack


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "arctan"])
def test_angles(name: str, dtype: str, cpu: str) -> None:
    kind = DTYPES[dtype]
    rng = np.random.default_rng(5)
    far = 1e6 if name != "arctan" else 1e30
    x = np.concatenate(
        [
            rng.uniform(-far, far, 2000),
            rng.uniform(-7, 7, 2000),
            np.arange(-64, 65) * np.pi / 4,
            10.0 ** rng.uniform(-12, 1, 500),
            [0.4142135, 2.414214, 0.0],
        ]
    ).astype(kind)
    if np.finfo(WIDE).nmant > np.finfo(np.float64).nmant:
        exact = getattr(np, name)(x.astype(WIDE))
        # the long double of some libraries has its own trouble next to zeros of far angles
        error = units(compute(unary(name), x, cpu=cpu), exact)
        assert error.max() <= (1.0 if dtype == "f32" else 3.0)
    special = np.array([0.0, -0.0, INF, -INF, NAN], kind)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(special)
    np.testing.assert_allclose(compute(unary(name), special, cpu=cpu), expected, rtol=1e-6)
    huge = np.array([1e25, -3e37], kind)
    assert (np.abs(compute(unary(name), huge, cpu=cpu)) <= (1.0 if name != "arctan" else 1.571)).all()


WHOLE = {
    "divide": lambda x, y: np.where(y == 0, 0, np.trunc(x / np.where(y == 0, 1, y))),
    "fmod": lambda x, y: np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y))),
    "remainder": lambda x, y: np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y))),
    "floor_divide": lambda x, y: np.where(y == 0, 0, x // np.where(y == 0, 1, y)),
    "maximum": np.maximum,
    "add": np.add,
    "multiply": np.multiply,
}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", WHOLE)
def test_integers_are_computed_as_integers(name: str, cpu: str) -> None:
    """Division by zero is 0: the processor would end the program."""
    values = np.array([0, 1, -1, 2, 3, -3, 7, -8, 100, -1000], np.int32)
    x, y = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(values, values))
    actual = compute(binary(name), x, y, cpu=cpu)
    np.testing.assert_array_equal(
        actual, WHOLE[name](x.astype(np.int64), y.astype(np.int64)).astype(np.int32)
    )


def test_integers_at_the_ends_of_their_range() -> None:
    x = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 5], np.int64)
    y = np.array([-1, -1, 0], np.int64)
    lowest = np.iinfo(np.int64).min
    np.testing.assert_array_equal(
        compute(trace(lambda a, b: a / b), x, y), [lowest, -np.iinfo(np.int64).max, 0]
    )
    np.testing.assert_array_equal(compute(binary("remainder"), x, y), [0, 0, 0])
    np.testing.assert_array_equal(compute(trace(abs), np.array([-3, 4, 0])), [3, 4, 0])
    for name in ("floor", "ceil", "trunc", "rint"):
        np.testing.assert_array_equal(compute(unary(name), x), x)
    base, exponent = np.array([2, -3, 10, 7, 0]), np.array([10, 3, 9, 0, 2])
    np.testing.assert_array_equal(compute(binary("power"), base, exponent), base**exponent)
    with pytest.raises(InvalidType, match="exp of integers is no integer"):
        compute(unary("exp"), base)


def test_functions_of_two_numbers_have_derivatives() -> None:
    x, y = np.linspace(1.3, 2.9, 7), np.linspace(0.7, 0.9, 7)
    for name in ("power", "fmod", "remainder", "floor_divide"):
        expression, step = binary(name), 1e-6
        for position in (0, 1):
            shift = [step * (position == 0), step * (position == 1)]
            ahead = expression.evaluate(x + shift[0], y + shift[1])
            behind = expression.evaluate(x - shift[0], y - shift[1])
            slope = expression.derivative(position).evaluate(x, y)
            np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-7, err_msg=name)
    both = trace(lambda v: apply("power", v, v)).derivative()
    np.testing.assert_allclose(both.evaluate(x), x**x * (np.log(x) + 1), rtol=1e-12)


def _log1pexp(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


NAMES = (
    "absolute arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh exp exp2 expm1 floor log log1p log2 log10 "
    "reciprocal rint sign sin sinh sqrt square tan trunc"
)
FUNCTIONS = {
    **{name: getattr(np, name) for name in NAMES.split()},
    "log1pexp": _log1pexp,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.parametrize(
    ("dtype", "cpu"),
    [
        ("f16", "host"),
        ("bf16", "host"),
        *itertools.product(DTYPES, dict.fromkeys(("host", INSTRUCTION_SETS[-1]))),
    ],
)
def test_functions_at_the_edges_of_their_domains_and_beyond(dtype: str, cpu: str) -> None:
    """NaN, infinities, and the signs of zeros, where NumPy's functions have them; and all other values nearby."""
    kind = numpy_dtype(dtype)
    limits = ml_dtypes.finfo(kind)
    tiny, most, eps = (float(n) for n in (limits.smallest_subnormal, limits.max, limits.eps))
    near = [
        1 - eps,
        1 - eps / 2,
        1,
        1 + eps,
        1.5,
        2,
        3,
        10,
        1e3,
        6e4,
        1e5,
        2e9,
        1e10,
        1e19,
        1e30,
        1e155,
        1e300,
    ]
    points = np.array([0, tiny, float(limits.smallest_normal), eps, 0.5, *near, most / 2, most, INF, NAN])
    with np.errstate(all="ignore"):
        x = np.concatenate([points, -points]).astype(kind)
        for name, reference in FUNCTIONS.items():
            expected = reference(x.astype(np.float64)).astype(kind).astype(np.float64)
            found = compute(trace(getattr(functions, name)), x, cpu=cpu).astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol=4 * eps, atol=4 * tiny, err_msg=f"{name} of {x}")
            zeros = expected == 0
            np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]), name)


def test_the_derivative_is_nan_where_the_function_is() -> None:
    x = np.array([-1e10, -2.0, 0.5, NAN])
    assert np.isnan(compute(trace(functions.arccosh).derivative(), x)).all()


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_remainders_of_quotients_that_overflow(cpu: str) -> None:
    x = np.array([1e308, -1e308, 1e308, INF, 1.0, INF, NAN])
    y = np.array([0.5, 5e-324, -0.25, 2.0, 0.0, 0.0, 1.0])
    same(compute(binary("fmod"), x, y, cpu=cpu), np.array([0.0, -0.0, 0.0, NAN, NAN, NAN, NAN]))
    same(compute(binary("remainder"), x, y, cpu=cpu), np.array([0.0, 0.0, -0.0, NAN, NAN, NAN, NAN]))


# by mpmath in 60 digits: erfc(mpf(x) / sqrt(2)) / 2
TAILS = {
    0.0: 0.5,
    0.7: 0.24196365222307303,
    1.3: 0.09680048458561033,
    4.0: 3.1671241833119924e-05,
    6.555511022044088: 2.7725826539861875e-11,
    9.9: 2.081375219493206e-23,
    17.3: 2.3519444588092324e-67,
    25.1: 2.4866601882523463e-139,
    31.7: 7.768349074351506e-221,
    36.3: 8.089590659350848e-289,
    37.5: 4.605353009581955e-308,
}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_the_tail_of_the_normal_distribution_keeps_its_digits(cpu: str) -> None:
    x, exact = np.array(list(TAILS)), np.array(list(TAILS.values()))
    found = (
        compute(unary("normal_tail"), x, cpu=cpu),
        compute(trace(functions.normal_cdf), -x, cpu=cpu),
        normal_tail(x),  # the float64 reference, by another way
        unary("normal_tail").evaluate(x),
    )
    for tail in found:
        assert (np.abs(tail - exact) <= 4 * np.spacing(exact)).all()
    gelu = compute(trace(lambda v: apply("gelu", v)), -x, cpu=cpu)
    np.testing.assert_allclose(gelu, -x * exact, rtol=2e-15, atol=5e-323)


def test_constants_stand_for_every_lane() -> None:
    x = np.linspace(0.5, 3, 21)
    np.testing.assert_allclose(compute(trace(lambda v: 2.0**v), x), 2.0**x, rtol=1e-15)
    np.testing.assert_array_equal(compute(trace(lambda v: (7 // v) + (7 % v)), x), 7 // x + 7 % x)
    np.testing.assert_allclose(compute(trace(lambda v: v**1.5 + v**-2), x), x**1.5 + x**-2, rtol=1e-15)
    np.testing.assert_allclose(
        compute(trace(lambda v: where(apply("floor", v) == v, 0.0, apply("fmod", v, 0.75))), x),
        np.where(np.floor(x) == x, 0, np.fmod(x, 0.75)), rtol=1e-15,
    )  # fmt: skip
