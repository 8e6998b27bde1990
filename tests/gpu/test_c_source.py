"""Expressions printed as C: every operation and random ones against their NumPy meaning, on every device."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from examples import examples
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import InvalidType
from jitdnn.rtcg.activations import ACTIVATIONS
from jitdnn.rtcg.c_source import c_constant, c_function
from jitdnn.rtcg.expression import Expression, Graph, Traced, finish, trace
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.tensor import numpy_dtype

THREADS = 64
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, -1e-30, 1e30]
# units in the last place beside those of the functions of C that are used
BOUNDS = {"power": 20.0, "upper_tail": 12.0, "normal_density": 12.0, "erf": 20.0}


def source_of(expressions: list[Expression], dtype: str) -> Source:
    """One kernel that evaluates every expression of (a, b, c) for each element."""
    functions = "".join(c_function(e, f"value{number}", dtype) for number, e in enumerate(expressions))
    arguments = [", ".join(f"{name}[i]" for name in "abc"[: e.arity]) for e in expressions]
    calls = "".join(f"  y[{n} * n + i] = value{n}({a});\n" for n, a in enumerate(arguments))
    text = (
        f"{functions}KERNEL({THREADS}) void evaluate(GLOBAL const {dtype} *a, GLOBAL const {dtype} *b,\n"
        f"    GLOBAL const {dtype} *c, GLOBAL {dtype} *y, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 n) {{\n"
        f"  const i64 i = BLOCK_ID(0) * {THREADS} + THREAD_ID;\n  if (i >= n) return;\n{calls}}}\n"
    )
    return Source("expressions", text)


def evaluated(device: Any, expressions: list[Expression], arrays: list[np.ndarray], dtype: str) -> np.ndarray:
    """The values of each expression, by the device."""
    count = len(arrays[0])
    launch = Launch("evaluate", -(-count // THREADS), THREADS)
    kernel = device.kernel(source_of(expressions, dtype), [launch], 4, [count])
    result = np.zeros((len(expressions), count), numpy_dtype(dtype))
    memories = [device.allocate(array.nbytes) for array in (*arrays, result)]
    for memory, array in zip(memories, arrays, strict=False):
        device.write(memory.pointer, array)
    kernel(None, [memory.pointer for memory in memories], 1.0, 0.0, 0)
    device.synchronize()
    device.read(result, memories[-1].pointer)
    return result


def every_operation(dtype: str) -> list[Expression]:
    """Each operation of (a, b, c), conditions turned into numbers."""
    found = []
    for name, rule in OPERATIONS.items():
        graph = Graph(("a", "b", "c"))
        inputs: list[Traced] = [graph.input(n) for n in range(3)]
        if rule.takes_truth:
            inputs = [inputs[0] < inputs[1], inputs[1] < inputs[2], inputs[2] < inputs[0]]
        if name == "where":
            inputs[0] = inputs[0] < inputs[1]
        result = graph.apply(name, inputs[: rule.arity])
        expression = finish(graph, graph.apply("where", (result, 1.0, -2.0)) if rule.is_truth else result)
        try:
            c_function(expression, "f", dtype)
        except InvalidType:
            continue
        found.append(expression)
    return found


def numbers(dtype: str) -> list[np.ndarray]:
    """Three arrays: every pair of edges, and numbers of all sizes."""
    rng = np.random.default_rng(0)
    first, second = (edges.ravel() for edges in np.meshgrid(EDGES, EDGES))
    columns = []
    for edges in (first, second, -second):
        sizes = rng.standard_normal(4000) * 10.0 ** rng.integers(-3, 3, 4000)
        columns.append(np.concatenate([edges, sizes, rng.integers(-9, 9, 1000)]).astype(numpy_dtype(dtype)))
    return columns


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_operation(device: Any, dtype: str) -> None:
    if dtype == "f64" and not device.has_f64:
        pytest.skip("no double precision")
    arrays, expressions = numbers(dtype), every_operation(dtype)
    assert len(expressions) == len(OPERATIONS)
    for expression, actual in zip(expressions, evaluated(device, expressions, arrays, dtype), strict=True):
        wide = [array.astype(np.longdouble if dtype == "f64" else np.float64) for array in arrays]
        name = expression.instructions[-1].operation
        if dtype == "f64" and name in ("erf", "upper_tail", "normal_density"):  # defined in f64
            wide = list(arrays)
        with np.errstate(all="ignore"):
            meant = expression.evaluate(*wide)
            expected = meant.astype(numpy_dtype(dtype))
        if name == "upper_tail":  # it is defined for numbers that are not negative
            keep = arrays[0] >= 0
            actual, expected = actual[keep], expected[keep]
        if name in ("fmod", "remainder", "floor_divide"):  # NumPy's own arithmetic in this type
            expected = expression.evaluate(*arrays)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
        smallest = np.finfo(numpy_dtype(dtype)).tiny  # beneath it, devices may flush
        eps = np.finfo(numpy_dtype(dtype)).eps
        is_number = np.isfinite(expected)
        np.testing.assert_array_equal(actual[~is_number], expected[~is_number], err_msg=name)
        bound = BOUNDS.get(name, 6.0) * eps
        if (
            name in ("upper_tail", "normal_density") and dtype == "f64"
        ):  # of which NumPy's own argument is rounded
            bound = 1e-12
        np.testing.assert_allclose(
            actual[is_number], expected[is_number], rtol=bound, atol=smallest, err_msg=name
        )


def test_whole_numbers(device: Any) -> None:
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, -1, 2, -2, 7, -7, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**40 + 3])
    first, second = (values.ravel() for values in np.meshgrid(edges, edges))
    arrays = [np.concatenate([e, rng.integers(-99, 99, 500)]) for e in (first, second, second[::-1])]
    expressions = every_operation("i64")
    names = {expression.instructions[-1].operation for expression in expressions}
    assert names >= {"add", "floor_divide", "remainder", "fmod", "sign", "rint", "power", "where"}
    exact = {"floor_divide": np.floor_divide, "remainder": np.remainder, "fmod": np.fmod}
    for expression, actual in zip(expressions, evaluated(device, expressions, arrays, "i64"), strict=True):
        name = expression.instructions[-1].operation
        a, b, c = arrays
        if name in ("power", "divide"):
            small = (a > -100) & (a < 100) & (b > 0) & (b < 8)
            expected = a[small] ** b[small] if name == "power" else np.trunc(a[small] / b[small])
            np.testing.assert_array_equal(actual[small], expected, err_msg=name)
            continue
        with np.errstate(all="ignore"):
            function = exact.get(name)
            if function is not None:
                usable = (b != 0) & (b != -1)
                expected = np.where(usable, function(a, np.where(usable, b, 1)), 0)
                if name == "floor_divide":
                    expected = np.where(b == -1, -a, expected)
            else:
                values = expression.interpret([a, b, c], int, lambda n, v: OPERATIONS[n].numpy(*v))
                expected = np.asarray(values)
        np.testing.assert_array_equal(actual, expected, err_msg=name)


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """A few steps on three inputs and constants; nothing that blows errors up."""
    graph = Graph(("a", "b", "c"))
    values = [graph.input(n) for n in range(3)]
    for constant in draw(st.lists(st.floats(-4, 4, width=32), max_size=2)):
        values.append(graph.constant(constant))
    for name in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8)):
        arity = OPERATIONS[name].arity
        chosen: list[Any] = [draw(st.sampled_from(values)) for _ in range(arity)]
        if name == "where":
            chosen[0] = (chosen[0] < chosen[1]) | ~(chosen[2] >= 0.5)
        values.append(graph.apply(name, chosen))
    return finish(graph, values[-1])


STEPS = [
    "add", "subtract", "minimum", "maximum", "negative", "absolute", "tanh", "sigmoid", "log1pexp", "erf", "sin",
    "arctan", "where", "multiply",
]  # fmt: skip


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(expressions(), min_size=5, max_size=5))
def test_random_expressions(some: list[Expression]) -> None:
    from jitdnn.devices import opencl

    if not opencl.device_count():
        pytest.skip("no OpenCL device")
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(500).astype(np.float32) for _ in range(3)]
    found = evaluated(opencl.device(), some, arrays, "f32")
    for expression, actual in zip(some, found, strict=True):
        expected = expression.evaluate(*(array.astype(np.float64) for array in arrays))
        narrow = expression.evaluate(*arrays)
        # where rounding alone moves the result, as at a jump, nothing is asked
        steady = np.abs(narrow - expected) <= 1e-5 * (1 + np.abs(expected))
        error = np.abs(actual - expected)[steady]
        assert (error <= 1e-4 * (1 + np.abs(expected[steady]))).all(), str(expression)


def test_constants_are_exact(device: Any) -> None:
    values = [0.1, -1 / 3, 1e-44, 3.4e38, 1e300, 2.0**-1074, math.inf, -math.inf, math.nan, -0.0, 7.0]
    graphs = [Graph(()) for _ in values]
    made = [finish(graph, graph.constant(value)) for graph, value in zip(graphs, values, strict=True)]
    for dtype in ("f32", "f64") if device.has_f64 else ("f32",):
        arrays = [np.zeros(1, numpy_dtype(dtype))] * 3
        found = evaluated(device, made, arrays, dtype)[:, 0]
        with np.errstate(over="ignore"):
            expected = np.array(values).astype(numpy_dtype(dtype))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found)[:-2], np.signbit(expected)[:-2])
    assert c_constant(-(2.0**63), "i64") == "(-9223372036854775807 - 1)"


def test_compiles_for_every_architecture(any_architecture: Any) -> None:
    for dtype in ("f32", "f64", "i64"):
        launch = Launch("evaluate", 1, THREADS)
        some = every_operation(dtype)
        if dtype != "i64":
            some = [
                *some,
                *(a.forward for a in ACTIVATIONS.values()),
                *(a.from_x for a in ACTIVATIONS.values()),
            ]
        any_architecture.kernel(source_of(some, dtype), [launch], 4, [1])


def test_what_whole_numbers_lack() -> None:
    with pytest.raises(InvalidType, match="exp of integers is no integer"):
        c_function(trace(lambda x: np.exp(x)), "f", "i64")
