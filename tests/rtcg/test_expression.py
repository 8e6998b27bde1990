"""The expression language: tracing, canonical form, evaluation, derivatives, and helpful errors."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.activations import ACTIVATIONS, activation
from jitdnn.rtcg.expression import Expression, apply, functions, is_traced, trace, where

F64 = np.float64


def test_values_equal_numpy_in_each_dtype() -> None:
    expression = trace(lambda a, b: apply("relu", a + b) * 2 - abs(a) / (1 + b * b) + apply("exp", -a))
    for dtype in (np.float32, np.float64):
        a = np.linspace(-3, 3, 35, dtype=dtype).reshape(5, 7)
        b = np.linspace(-1, 2, 7, dtype=dtype)
        expected = np.maximum(a + b, 0) * 2 - np.abs(a) / (1 + b * b) + np.exp(-a)
        result = expression.evaluate(a, b)
        assert result.dtype == dtype
        assert result.shape == (5, 7)
        np.testing.assert_array_equal(result, expected)


def test_unused_input_still_gives_the_shape() -> None:
    expression = trace(lambda a, b: b * 0 + 3)
    assert expression.evaluate(np.zeros((4, 1)), np.zeros(2)).shape == (4, 2)
    assert expression.used() == {1}


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_extremes_propagate_nan_as_numpy(name: str) -> None:
    a = np.array([np.nan, 1.0, np.nan, 2.0])
    b = np.array([1.0, np.nan, np.nan, 3.0])
    result = trace(lambda x, y: apply(name, x, y)).evaluate(a, b)
    np.testing.assert_array_equal(result, getattr(np, name)(a, b))


def test_relu_keeps_nan_and_where_is_not_spoilt_by_the_other_branch() -> None:
    assert math.isnan(trace(lambda x: apply("relu", x)).evaluate(np.nan))
    guarded = trace(lambda x: where(x > 0, apply("log", x), 0.0))
    np.testing.assert_array_equal(guarded.evaluate(np.array([-1.0, 0.0, 1.0])), [0.0, 0.0, 0.0])


def test_sigmoid_neither_overflows_nor_loses_small_values() -> None:
    x = np.array([-700.0, -40.0, 0.0, 40.0, 700.0, np.inf, -np.inf])
    result = trace(lambda v: apply("sigmoid", v)).evaluate(x)
    np.testing.assert_allclose(result[:5], [math.exp(-700), 1 / (1 + math.exp(40)), 0.5, 1, 1], rtol=1e-15)
    np.testing.assert_array_equal(result[5:], [1.0, 0.0])


def test_equality_ignores_names_but_not_structure() -> None:
    first, second = trace(lambda a, b: a * b + 1.0), trace(lambda x, y: x * y + 1)
    assert first == second
    assert hash(first) == hash(second)
    assert first.key == second.key
    assert str(first) == "a, b: (a * b) + 1.0"
    assert first != trace(lambda a, b: b * a + 1.0)
    assert first != trace(lambda a, b, c: a * b + 1.0)
    assert trace(lambda a: a * 0.0) != trace(lambda a: a * -0.0)
    assert trace(lambda a: a * math.nan) == trace(lambda b: b * math.nan)
    assert first != "a * b + 1.0"


def test_form_does_not_depend_on_the_order_of_construction() -> None:
    def early(a: Any, b: Any) -> Any:
        unused = a * b * 7
        right = b - 1
        left = a + 1
        return left * right if is_traced(unused) else None

    assert early.__name__ == "early"
    assert trace(early) == trace(lambda a, b: (a + 1) * (b - 1))


def test_common_steps_are_kept_once_and_the_text_stays_short() -> None:
    def doubling(x: Any) -> Any:
        for _ in range(40):
            x = x * x + x * x
        return x

    expression = trace(doubling)
    assert len(expression.instructions) == 81
    assert len(expression.key) < 4000
    assert expression.key.startswith("i0: t0 = i0 * i0; t1 = t0 + t0; ")


def test_pickle_round_trip() -> None:
    expression = trace(lambda a, b: apply("tanh", a) + b)
    hash(expression)
    again = pickle.loads(pickle.dumps(expression))
    assert again == expression
    assert again.inputs == ("a", "b")
    assert hash(again) == hash(expression)


@given(st.integers(-12, 12))
def test_powers_by_whole_numbers(exponent: int) -> None:
    x = np.array([-1.5, 0.75, 2.0])
    np.testing.assert_allclose(trace(lambda v: v**exponent).evaluate(x), x**exponent, rtol=1e-14)


def test_power_uses_few_products_and_half_is_a_root() -> None:
    products = [s for s in trace(lambda v: v**16).instructions if s.operation == "multiply"]
    assert len(products) == 4
    assert str(trace(lambda v: v**0.5)) == "v: sqrt(v)"


def test_numpy_functions_and_scalars_inside() -> None:
    expression = trace(lambda x: np.float32(2) * np.exp(x) + np.maximum(0.5, x) + np.abs(x) + np.float64(1))
    x = np.linspace(-2, 2, 9)
    np.testing.assert_array_equal(expression.evaluate(x), 2 * np.exp(x) + np.maximum(0.5, x) + np.abs(x) + 1)


def test_defaults_are_constants_and_an_expression_is_its_own_trace() -> None:
    def leaky(x: Any, slope: float = 0.1) -> Any:
        return where(x > 0, x, slope * x)

    expression = trace(leaky)
    assert expression.inputs == ("x",)
    assert trace(expression) is expression
    np.testing.assert_allclose(expression.evaluate(np.array([-1.0, 2.0])), [-0.1, 2.0])


def test_operators_and_functions_of_python() -> None:
    x = np.array([-3.75, -0.5, 0.0, 0.5, 1.5, 2.5, 7.0])
    expression = trace(lambda v: round(v) + 100 * math.floor(v) + 1e4 * math.ceil(v) + 1e6 * math.trunc(v))
    expected = np.rint(x) + 100 * np.floor(x) + 1e4 * np.ceil(x) + 1e6 * np.trunc(x)
    np.testing.assert_array_equal(expression.evaluate(x), expected)
    np.testing.assert_array_equal(trace(lambda v: v % 2 + v // 2 * 10).evaluate(x), x % 2 + x // 2 * 10)
    np.testing.assert_allclose(trace(lambda v: abs(v) ** 1.7).evaluate(x), np.abs(x) ** 1.7, rtol=1e-15)
    np.testing.assert_allclose(trace(lambda v: 2.0**v).evaluate(x), 2.0**x, rtol=1e-15)


def test_numpy_functions_made_of_operations() -> None:
    x = np.array([-0.9, -0.25, 0.0, 0.3, 0.99])
    for function in (np.arcsin, np.arccos, np.sinh, np.cosh, np.arcsinh, np.arctanh, np.square, np.sign):
        np.testing.assert_allclose(trace(lambda v, f=function: f(v)).evaluate(x), function(x), rtol=1e-14)
    for function in (np.reciprocal, np.arccosh, np.log2, np.log10, np.exp2, np.tan, np.rint):
        expected = function(x + 2.5)
        np.testing.assert_allclose(trace(lambda v, f=function: f(v + 2.5)).evaluate(x), expected, rtol=1e-14)
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    for condition in (np.isnan, np.isinf, np.isfinite):
        expression = trace(lambda v, c=condition: where(c(v), 1.0, 0.0))
        np.testing.assert_array_equal(expression.evaluate(special), condition(special))
    np.testing.assert_array_equal(trace(lambda v: jd.clip(v, -0.5, 0.5)).evaluate(x), np.clip(x, -0.5, 0.5))
    np.testing.assert_allclose(trace(jd.normal_cdf).evaluate(np.array([-1.0, 0.0, 2.0])),
                               [0.15865525393145707, 0.5, 0.9772498680518208], rtol=1e-14)  # fmt: skip
    assert jd.square(3.0) == 9.0


def test_powers_of_zero_change_finitely() -> None:
    power = trace(lambda a, b: a**b)
    a, b = np.array([0.0, 0.0, 2.0]), np.array([3.0, 0.0, 0.0])
    np.testing.assert_array_equal(power.derivative("a").evaluate(a, b), [0.0, 0.0, 0.0])
    np.testing.assert_allclose(power.derivative("b").evaluate(a, b), [0.0, 0.0, math.log(2.0)])


def test_conditions_combine() -> None:
    inside = trace(lambda x: where((x > -1) & ~(x >= 1) | (x == 5), 1.0, 0.0))
    np.testing.assert_array_equal(inside.evaluate(np.array([-2.0, 0.0, 1.0, 5.0])), [0, 1, 0, 1])
    assert trace(lambda x: where(x != x, 1.0, 0.0)).evaluate(np.nan) == 1.0


def test_apply_on_plain_numbers_is_a_number() -> None:
    assert apply("exp", 0.0) == 1.0
    assert apply("relu", -2.0) == 0.0
    assert where(True, 1.0, 2.0) == 1.0
    assert where(np.bool_(False), 1.0, 2.0) == 2.0


# functions of several numbers, with all of them changing
SEVERAL: dict[str, Any] = {
    "power": lambda v: apply("power", v + 0.5, v * 1.5),
    "fmod": lambda v: apply("fmod", v * 7.0 - 8.0, v),
    "remainder": lambda v: apply("remainder", v * 7.0 - 8.0, v),
    "floor_divide": lambda v: apply("floor_divide", v, v + 10.0),
    "arctan2": lambda v: apply("arctan2", v, v * v - 0.4),
    "clip": lambda v: apply("clip", v * v, 0.2 * v, 0.9 * v),
    "fma": lambda v: apply("fma", v, v, v),
}


def test_every_function_has_a_derivative() -> None:
    x = np.linspace(0.31, 0.91, 7)  # inside of every domain, off every kink
    for name in functions():
        if name in ("minimum", "maximum", "where", "isnan", "isinf", "isfinite"):
            continue
        # arccosh begins at 1
        call = SEVERAL.get(name) or (lambda v, name=name: apply(name, v + 1.0 if name == "arccosh" else v))
        expression = trace(call)
        step = 1e-6
        numeric = (expression.evaluate(x + step) - expression.evaluate(x - step)) / (2 * step)
        slope = expression.derivative().evaluate(x)
        np.testing.assert_allclose(slope, numeric, rtol=2e-8, atol=1e-12, err_msg=name)


LEAVES = st.sampled_from([lambda a, b: a, lambda a, b: b, lambda a, b: 1.5])


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def binary(pair: Any) -> Any:
        f, g, sign = pair
        return {
            "+": lambda a, b: f(a, b) + g(a, b),
            "-": lambda a, b: f(a, b) - g(a, b),
            "*": lambda a, b: f(a, b) * g(a, b),
            "/": lambda a, b: f(a, b) / (2 + g(a, b) * g(a, b)),
            "max": lambda a, b: np.maximum(f(a, b), g(a, b)),
            "min": lambda a, b: np.minimum(f(a, b), g(a, b)),
            "tanh": lambda a, b: np.tanh(f(a, b) - g(a, b)),
        }[sign]

    return st.tuples(children, children, st.sampled_from(["+", "-", "*", "/", "max", "min", "tanh"])).map(
        binary
    )


@given(st.recursive(LEAVES, _grow, max_leaves=8), st.floats(-1.7, 1.7), st.floats(-1.7, 1.7))
def test_any_function_evaluates_as_numpy_and_differentiates(function: Any, a: float, b: float) -> None:
    expression = trace(function)
    # not where arguments of an extreme are equal: of max(b, min(a, b)) either branch is taken there
    point = [np.array(a + 0.0123456789), np.array(b - 0.0345678901)]
    value = np.asarray(function(*point), dtype=F64)
    np.testing.assert_allclose(expression.evaluate(*point), value, rtol=1e-14, atol=1e-300)
    for position in range(2):
        step = 1e-6

        def at(shift: float, position: int = position) -> Any:
            return expression.evaluate(*(p + (shift if i == position else 0) for i, p in enumerate(point)))

        left, right = (value - at(-step)) / step, (at(step) - value) / step
        slope = expression.derivative(position).evaluate(*point)
        low, high = min(left, right), max(left, right)  # at a kink any slope between the two will do
        slack = 1e-3 * (1 + abs(low) + abs(high))
        assert low - slack <= slope <= high + slack


def test_derivative_by_name_and_at_the_kink() -> None:
    product = trace(lambda a, b: a * a * b)
    assert product.derivative("b").evaluate(3.0, 5.0) == 9.0
    assert str(trace(lambda a, b: b + 1).derivative("a")) == "a, b: 0.0"
    assert activation("relu").from_x.evaluate(0.0) == 0.0
    with pytest.raises(InvalidArgument, match="the inputs are a, b"):
        product.derivative("c")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_slopes_agree(name: str) -> None:
    known = activation(name)
    x = np.concatenate([np.linspace(-6, 6, 101), [0.0]])
    y = known.forward.evaluate(x)
    dy = np.cos(x)
    np.testing.assert_allclose(known.backward("x").evaluate(dy, x), dy * known.from_x.evaluate(x), rtol=1e-15)
    if known.from_y is None:
        with pytest.raises(InvalidArgument, match="does not follow from y"):
            known.backward("y")
        return
    np.testing.assert_allclose(known.from_y.evaluate(y), known.from_x.evaluate(x), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(known.backward("y").evaluate(dy, y), dy * known.from_y.evaluate(y), rtol=1e-15)


def test_unknown_activation_lists_the_known() -> None:
    with pytest.raises(InvalidArgument, match="relu, sigmoid, tanh"):
        activation("swosh")
    with pytest.raises(InvalidArgument, match="'x' or 'y'"):
        activation("relu").backward("z")


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda x: 1 if x > 0 else 2, "jd.where"),
        (lambda x: 0 < x < 1, "chained comparisons"),
        (lambda x: max(x, 0), "jd.maximum"),
        (lambda x: math.exp(x), "jd.exp"),
        (lambda x: float(x), "jd.exp"),
        (lambda x: round(x, 2), "only to integers"),
        (lambda x: x > 0, "returns a condition"),
        (lambda x: (x > 0) * x, "jd.where"),
        (lambda x: where(x, 1.0, 2.0), "needs a condition"),
        (lambda x: ~x, "needs a condition"),
        (lambda x: x + np.ones(3), "operands of the kernel"),
        (lambda x: np.ones(3) * x, "operands of the kernel"),
        (lambda x: x + True, "1.0 or 0.0"),
        (lambda x: np.cbrt(x), "jd.exp"),
        (lambda x: jd.isnan(x), "returns a condition"),
        (lambda x: x @ x, "cannot be traced"),
        (lambda x: apply("softmax", x), "no function 'softmax'"),
        (lambda x: apply("exp", x, x), "takes 1"),
        (lambda *x: x[0], "positional parameters"),
        (lambda: 1.0, "no parameter"),
        (lambda x: "text", "only numbers"),
        (3, "give a Python function"),
    ],
)
def test_what_cannot_be_traced_says_what_to_write(function: Any, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=advice):
        trace(function)


def test_a_traced_value_does_not_leave_its_function() -> None:
    kept = []
    trace(lambda x: kept.append(x) or x)
    with pytest.raises(InvalidArgument, match="outside of the function"):
        trace(lambda x: x + kept[0])


def test_wrong_number_of_inputs() -> None:
    expression: Expression = trace(lambda a, b: a + b)
    with pytest.raises(InvalidArgument, match="takes 2 inputs, got 1"):
        expression.evaluate(1.0)
