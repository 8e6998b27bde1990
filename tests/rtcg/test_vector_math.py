"""exp, log and their relatives as generated code: exactness, special values, every instruction set."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import INSTRUCTION_SETS
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import assembly
from jitdnn.rtcg.expression import Expression, Graph, apply, finish, functions, trace, where
from jitdnn.rtcg.isa import NAMES, isa
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.vector_math import economised
from jitdnn.tensor import TensorDescriptor

Array = np.ndarray[Any, Any]
WIDE = np.longdouble
DTYPES = {"f32": np.float32, "f64": np.float64}
has_wider_float = np.finfo(WIDE).nmant > np.finfo(np.float64).nmant


def compute(expression: Expression, *inputs: Array, cpu: str = "host") -> Array:
    """The expression over arrays of one length, by generated code."""
    dtype = {4: "f32", 8: "f64"}[inputs[0].itemsize]
    tensors = [TensorDescriptor.packed(x.shape, dtype) for x in (*inputs, inputs[0])]
    out = np.full_like(inputs[0], np.nan)
    kernel = build_elementwise(expression, tensors, host(1, cpu))
    kernel(None, [x.ctypes.data for x in (*inputs, out)], 1.0, 0.0, 0)
    return out


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1) / (1 + small))


@functools.cache
def _erf() -> Callable[[Array], Array]:
    return np.vectorize(math.erf, otypes=[np.float64])


# the function in a wider format, and the error that is allowed in units in the last place
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "exp": (np.exp, 1.1),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 1.0),
    "tanh": (np.tanh, 2.5),
    "sigmoid": (_sigmoid, 2.5),
    "sqrt": (np.sqrt, 0.5001),
    "erf": (lambda x: _erf()(x.astype(np.float64)), 2.5),
    "exp2": (np.exp2, 1.2),
    "log2": (np.log2, 1.5),
    "log10": (np.log10, 1.5),
    "log1pexp": (lambda x: np.logaddexp(x, np.zeros_like(x)), 3.0),
    "arctan": (np.arctan, 2.0),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "tan": (np.tan, 3.5),
    "sign": (np.sign, 0.0),
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "trunc": (np.trunc, 0.0),
    "rint": (np.rint, 0.0),
}


def samples(dtype: str, count: int) -> Array:
    """Numbers of every size and sign, and many where the functions bend."""
    rng = np.random.default_rng(7)
    kind = DTYPES[dtype]
    bits = rng.integers(0, 2**32 if dtype == "f32" else 2**64, count, dtype=np.uint64)
    anything = bits.astype(np.uint32).view(kind) if dtype == "f32" else bits.view(kind)
    limits = (-110, 95) if dtype == "f32" else (-750, 712)
    parts = [
        anything,
        rng.uniform(*limits, count),
        rng.uniform(-3, 3, count),
        1 + rng.normal(0, 0.1, count),
        10.0 ** rng.uniform(-12, 0, count) * rng.choice([-1, 1], count),
    ]
    return np.concatenate([np.asarray(part, kind) for part in parts])


def units_in_the_last_place(actual: Array, exact: Array) -> Array:
    """How many spacings of its own format ``actual`` is away; 0 where both are the same special value."""
    rounded = exact.astype(actual.dtype)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    distance = np.abs(actual.astype(WIDE) - exact.astype(WIDE)) / np.spacing(np.abs(rounded)).astype(WIDE)
    return np.where(same & ~np.isfinite(rounded), 0, distance)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_the_whole_range(name: str, dtype: str, cpu: str) -> None:
    if dtype == "f64" and not has_wider_float and name != "erf":
        pytest.skip("nothing more exact than f64 to compare with")
    function, allowed = FUNCTIONS[name]
    x = samples(dtype, 4000)
    with np.errstate(all="ignore"):
        exact = function(x.astype(WIDE))
        error = units_in_the_last_place(compute(trace(lambda v: apply(name, v)), x, cpu=cpu), exact)
    assert not np.isnan(error).any(), f"{name} is special where it should not be, at {x[np.isnan(error)][:5]}"
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) is off by {error[worst]}"


INF, NAN = math.inf, math.nan
# pairs of argument and result
SPECIAL = {
    "exp": ((0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (1e30, INF), (-1e30, 0)),
    "expm1": ((0.0, 0), (-0.0, -0.0), (INF, INF), (-INF, -1), (1e30, INF), (-1e30, -1)),
    "log": ((0.0, -INF), (-0.0, -INF), (1, 0), (INF, INF), (-INF, NAN), (-1, NAN)),
    "log1p": ((0.0, 0), (-0.0, -0.0), (-1, -INF), (INF, INF), (-INF, NAN), (-2, NAN)),
    "tanh": ((0.0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)),
    "sigmoid": ((0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0), (1e30, 1), (-1e30, 0)),
    "sqrt": ((0.0, 0), (-0.0, -0.0), (INF, INF), (-1, NAN), (-INF, NAN)),
    "erf": ((0.0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)),
    "exp2": ((0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (1e30, INF), (-1e30, 0), (10, 1024), (-3, 0.125)),
    "log2": ((0.0, -INF), (-0.0, -INF), (1, 0), (INF, INF), (-INF, NAN), (-1, NAN), (8, 3), (2.0**-30, -30)),
    "log10": ((0.0, -INF), (-0.0, -INF), (1, 0), (INF, INF), (-INF, NAN), (-1, NAN), (10, 1), (1000, 3)),
    "log1pexp": ((INF, INF), (-INF, 0), (1e30, 1e30), (-1e30, 0)),
    "arctan": ((0.0, 0), (-0.0, -0.0), (INF, np.pi / 2), (-INF, -np.pi / 2), (1e30, np.pi / 2)),
    "sin": ((0.0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)),
    "cos": ((0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)),
    "tan": ((0.0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)),
    "sign": ((0.0, 0), (-0.0, 0), (INF, 1), (-INF, -1), (-3, -1), (1e-30, 1)),
    "floor": ((0.0, 0), (-0.0, -0.0), (0.7, 0), (-0.3, -1), (INF, INF), (-INF, -INF), (1e30, 1e30)),
    "ceil": ((0.0, 0), (-0.0, -0.0), (0.3, 1), (-0.7, -0.0), (INF, INF), (-INF, -INF), (-1e30, -1e30)),
    "trunc": ((0.0, 0), (-0.0, -0.0), (0.7, 0), (-0.7, -0.0), (INF, INF), (-INF, -INF), (-2.5, -2)),
    "rint": ((0.5, 0), (-0.5, -0.0), (1.5, 2), (2.5, 2), (INF, INF), (-INF, -INF), (1e30, 1e30)),
}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, dtype: str, cpu: str) -> None:
    x, expected = np.array([*SPECIAL[name], (NAN, NAN)], DTYPES[dtype]).T.copy()
    actual = compute(trace(lambda v: apply(name, v)), x, cpu=cpu)
    np.testing.assert_array_equal(actual, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_of_the_range(dtype: str) -> None:
    """The largest argument without overflow, and results that are subnormal or nearly so."""
    kind = DTYPES[dtype]
    most = np.nextafter(kind(np.log(np.finfo(kind).max.astype(WIDE))), kind(0))
    subnormals = np.array([-88.5, -100, -103] if dtype == "f32" else [-709, -730, -745], kind)
    x = np.concatenate([np.array([most, np.nextafter(most, kind(INF)) * kind(1.001)], kind), subnormals])
    actual = compute(trace(lambda v: apply("exp", v)), x)
    assert np.isfinite(actual[0])
    assert actual[0] > np.finfo(kind).max / 2
    assert actual[1] == INF
    assert (actual[2:] > 0).all()
    assert (actual[2:] < np.finfo(kind).tiny * 2).all()
    tiny = np.finfo(kind).smallest_subnormal * np.array([1, 2, 3, 1001], kind)
    for name in ("expm1", "log1p", "tanh"):
        np.testing.assert_array_equal(compute(trace(lambda v, name=name: apply(name, v)), tiny), tiny)
    if has_wider_float:
        logs = compute(trace(lambda v: apply("log", v)), tiny)
        assert (units_in_the_last_place(logs, np.log(tiny.astype(WIDE))) < 1).all()


ODD = np.array([0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, 1e30, -1e30, 1e-30, INF, -INF, NAN])
PAIRS: dict[str, tuple[Callable[..., Array], float]] = {
    "power": (np.power, 3.0),
    "arctan2": (np.arctan2, 2.0),
    "fmod": (np.fmod, 0.0),
    "remainder": (np.remainder, 0.0),
    "floor_divide": (np.floor_divide, 0.0),
}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_numbers(name: str, dtype: str, cpu: str) -> None:
    function, allowed = PAIRS[name]
    kind = DTYPES[dtype]
    rng = np.random.default_rng(1)
    a, b = (np.concatenate([rng.normal(0, 3, 3000), rng.integers(-5, 6, 500)]).astype(kind) for _ in "ab")
    if name == "power":
        a[:3000] = np.abs(a[:3000])
    expression = trace(lambda x, y: apply(name, x, y))
    with np.errstate(all="ignore"):
        # whole numbers of it must be those of the format itself
        wide = kind if allowed == 0.0 else WIDE
        exact = function(a.astype(wide), b.astype(wide))
        error = units_in_the_last_place(compute(expression, a, b, cpu=cpu), exact)
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{name}({a[worst]!r}, {b[worst]!r}) is off by {error[worst]}"


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["power", "arctan2", "fmod"])
def test_functions_of_two_odd_numbers(name: str, dtype: str, cpu: str) -> None:
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(ODD, ODD))
    if name == "fmod":  # of huge quotients nothing is left
        keep = ~(np.abs(a) > 1e15 * np.abs(b)) | (b == 0) | np.isinf(a)
        a, b = a[keep], b[keep]
    a, b = a.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
    actual = compute(trace(lambda x, y: apply(name, x, y)), a, b, cpu=cpu)
    np.testing.assert_allclose(actual, expected, rtol=2e-6 if dtype == "f32" else 1e-14)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tail_of_the_normal_distribution(dtype: str) -> None:
    """Against C's erfc; digits are kept as far as there is a number."""
    x = np.linspace(0, 13 if dtype == "f32" else 37, 3001).astype(DTYPES[dtype])
    exact = np.array([0.5 * math.erfc(float(v) * math.sqrt(0.5)) for v in x])
    # erfc's own argument is rounded, and its error grows with its square
    allowed = 8 * np.finfo(x.dtype).eps + np.finfo(np.float64).eps * x.astype(np.float64) ** 2
    for cpu in INSTRUCTION_SETS:
        actual = compute(trace(lambda v: apply("upper_tail", v)), x, cpu=cpu).astype(np.float64)
        is_normal = exact > np.finfo(x.dtype).tiny
        assert (np.abs(actual - exact) <= allowed * exact)[is_normal].all()
    both = compute(trace(lambda v: apply("normal_cdf", v)), -x) - compute(
        trace(lambda v: apply("upper_tail", v)), x
    )
    assert (both == 0).all() or (x == 0)[both != 0].all()
    assert np.isnan(compute(trace(lambda v: apply("normal_cdf", v)), x * x.dtype.type(np.nan))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_density_of_the_normal_distribution(dtype: str) -> None:
    x = np.linspace(-12, 12, 3001).astype(DTYPES[dtype])
    exact = np.array([math.exp(-0.5 * float(v) ** 2) / math.sqrt(2.0 * math.pi) for v in x])
    density = trace(lambda v: apply("normal_density", v))
    for cpu in INSTRUCTION_SETS:
        # the square that Python's exp is given is rounded, and the error grows with it
        allowed = (6 * np.finfo(x.dtype).eps + np.finfo(np.float64).eps * x.astype(np.float64) ** 2) * exact
        assert (np.abs(compute(density, x, cpu=cpu) - exact) <= allowed).all()
        slope = compute(density.derivative(), x, cpu=cpu)
        assert (np.abs(slope + x * exact) <= np.abs(x) * allowed).all()
    ends = np.array([np.inf, -np.inf], x.dtype)
    assert (compute(density, ends) == 0).all()
    assert (compute(density.derivative(), ends) == 0).all()


@pytest.mark.parametrize("cpu", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_function_calls_a_library(dtype: str, cpu: str) -> None:
    """Not even where the processor has no instruction for it; NEON is compiled only."""
    module = Module("functions", isa(cpu))
    lanes = module.isa.lanes(dtype)
    several = {"clip": 3, "fma": 3, **{name: rule.arity for name, rule in OPERATIONS.items()}}
    conditions = ("where", "isnan", "isinf", "isfinite")
    for name in (name for name in functions() if name not in conditions):
        graph = Graph(["a", "b", "c"][: several.get(name, 1)])
        expression = finish(graph, apply(name, *(graph.input(i) for i in range(len(graph.inputs)))))
        with module.function(f"f_{name}", x=dtype, y=dtype) as (k, (x, y), _):
            y.store(lower(k, expression, [x.load(i * lanes, lanes) for i in range(expression.arity)]))
    code = assembly(module)
    assert "f_arctan2" in code
    assert re.findall(r"\b(?:callq?|bl)\s+(\S+)", code) == []


def test_economised_polynomials_beat_the_series_they_come_from() -> None:
    series = [Fraction(1, math.factorial(n)) for n in range(30)]
    x = np.linspace(-0.25, 1, 501)

    def error(coefficients: list[float]) -> float:
        return float(np.abs(np.polynomial.Polynomial(coefficients)(x) - np.exp(x)).max())

    short = economised(series, Fraction(-1, 4), Fraction(1), 6)
    assert len(short) == 7
    assert error(short) < error([float(c) for c in series[:7]]) / 50
    # no polynomial of degree 6 does better than (half / 2)^7 / 7! times 2 at exp's least 7th derivative
    assert error(short) < 2 * 2 * (0.625 / 2) ** 7 / math.factorial(7) * math.e


# ---- expressions: every operation as generated code, against NumPy

UNARY = {
    "abs": lambda a, b: abs(a),
    "neg": lambda a, b: -a,
    "tanh": lambda a, b: apply("tanh", a),
    "relu": lambda a, b: apply("relu", a),
    "half": lambda a, b: a / 2,
    "inverse": lambda a, b: 1 / (2 + a * a),
}
BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": lambda a, b: apply("maximum", a, b),
    "minimum": lambda a, b: apply("minimum", a, b),
    "where": lambda a, b: where((a > b) | ~(b <= 1.0), a, b),
    "between": lambda a, b: where((a >= b) & (a != 0.5), 1.0, where(a == b, 0.25, a)),
    "step": lambda a, b: where(a < 0.0, -1.0, 1.0) * b,
}
LEAVES = st.sampled_from([lambda a, b: a, lambda a, b: b, lambda a, b: apply("maximum", a, 0.75)])


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def combine(pair: Any) -> Any:
        f, g, name = pair
        return lambda a, b: {**UNARY, **BINARY}[name](f(a, b), g(a, b))

    return st.tuples(children, children, st.sampled_from([*UNARY, *BINARY])).map(combine)


@settings(max_examples=25, deadline=None)
@given(
    st.recursive(LEAVES, _grow, max_leaves=6),
    st.sampled_from(INSTRUCTION_SETS),
    st.sampled_from(["f32", "f64"]),
)
def test_any_expression_as_code_equals_its_evaluation(function: Any, cpu: str, dtype: str) -> None:
    expression = trace(function)
    values = np.array([-2, -1, -0.5, 0, 0.25, 0.5, 0.75, 1, 3, np.nan, np.inf, -np.inf], DTYPES[dtype])
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values))
    expected = expression.evaluate(a, b)
    actual = compute(expression, a, b, cpu=cpu)
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~is_finite], expected[~is_finite])
    np.testing.assert_allclose(
        actual[is_finite], expected[is_finite], rtol=1e-5 if dtype == "f32" else 1e-13, atol=1e-6
    )


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_extremes_as_code_propagate_nan(cpu: str) -> None:
    a, b = np.array([NAN, 1, NAN, 2, -0.0]), np.array([1, NAN, NAN, 3, -1.0])
    for name in ("maximum", "minimum"):
        expression = trace(lambda x, y, name=name: apply(name, x, y))
        for first, second in ((a, b), (b, a)):
            expected = getattr(np, name)(first, second)
            np.testing.assert_array_equal(compute(expression, first, second, cpu=cpu), expected)
    assert np.isnan(compute(trace(lambda x: apply("minimum", x, NAN)), a, cpu=cpu)).all()


def test_constant_expressions_as_code() -> None:
    x = np.zeros(5, np.float32)
    np.testing.assert_array_equal(compute(trace(lambda v: 2.5), x), np.full(5, 2.5, np.float32))
    # the derivative of a power has steps that depend on constants only
    slope = trace(lambda v: apply("exp", where(v > 1.0, v, 0.0) * 0.0) + 2.0)
    np.testing.assert_array_equal(compute(slope, x), np.full(5, 3, np.float32))
