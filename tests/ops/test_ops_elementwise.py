"""Elementwise kernels of one's own: against NumPy, over any dtype, stride and number of results."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import jitdnn as jd
from examples import examples
from jitdnn.rtcg.formulas import formula, is_whole, parse_formula
from jitdnn.tensor import DTYPES, numpy_dtype

RNG = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return RNG.random(shape) < 0.5
    return (
        (RNG.standard_normal(shape) * 8 + (8 if kind.kind == "u" else 0))
        .clip(-20 * (kind.kind != "u"))
        .astype(kind)
    )


WHERE = (jd.where, np.where)
FORMULAS = {
    "a: a": lambda a: a,
    "a * x + y": lambda a, x, y: a * x + y,
    "x, y: exp(-(x - y) * (x - y))": lambda x, y: np.exp(-(x - y) * (x - y)),
    "where(x > y, minimum(x, 2.0), -y)": lambda x, y: WHERE[isinstance(x, np.ndarray)](
        x > y, np.minimum(x, 2.0), -y
    ),
    "x, y: t = sqrt(x * x + y * y + 1.0); t / (1 + abs(x))": lambda x, y: (
        np.sqrt(x * x + y * y + 1) / (1 + abs(x))
    ),
}


@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_formulas_as_text_and_as_functions(text: str, dtype: str) -> None:
    made, truth = jd.elementwise(text), FORMULAS[text]
    arrays = [numbers((5, 37), dtype) for _ in made.inputs]
    expected = truth(*(a.astype(np.float64) for a in arrays))
    bound = {"f32": 1e-5, "f64": 1e-13}[dtype]
    for kernel in (made, jd.elementwise(truth)):
        found = kernel(*arrays)
        assert found.dtype == arrays[0].dtype
        np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_dtypes_strides_and_broadcasting(data: st.DataObject) -> None:
    """Sums and products of small numbers, exact in every type but the halves."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    arrays = []
    for _ in range(3):
        dtype = data.draw(st.sampled_from([d for d in DTYPES if d != "bool"]))
        own = [data.draw(st.sampled_from([n, 1])) for n in shape][data.draw(st.integers(0, len(shape) - 1)) :]
        x = (RNG.integers(0, 5, [2 * n for n in own])).astype(numpy_dtype(dtype))
        x = x[tuple(slice(None, None, 2) for _ in own)]
        if data.draw(st.booleans()):
            x = np.ascontiguousarray(x.T).T
        arrays.append(x[::-1] if data.draw(st.booleans()) else x)
    total, is_less = jd.elementwise(lambda a, b, c: (a * b + c, a < c))(*arrays)
    a, b, c = (x.astype(np.float64) for x in arrays)
    np.testing.assert_array_equal(total.astype(np.float64), a * b + c)
    np.testing.assert_array_equal(is_less, np.broadcast_to(a < c, total.shape))
    assert is_less.dtype == bool


def test_numbers_are_read_at_every_call() -> None:
    made = jd.elementwise(lambda x, a: a * x)
    x = numbers((7,), "f32")
    for factor in (2.0, 0.1, -3):
        np.testing.assert_allclose(made(x, factor), np.float32(factor) * x, rtol=1e-6)


def test_results_of_integers() -> None:
    x = np.array([1, 200, 255], np.uint8)
    assert jd.elementwise("a + b")(x, x).tolist() == (x + x).tolist()  # wraps, as in NumPy
    assert jd.elementwise("a + b", dtype="i32")(x, x).tolist() == [2, 400, 510]
    halves = jd.elementwise("a / 2")(np.arange(5))
    assert (halves.dtype, halves.tolist()) == (np.float64, [0, 0.5, 1, 1.5, 2])
    big = np.array([2**62 + 1, -5])
    assert jd.elementwise("a - 1")(big).tolist() == [2**62, -6]
    rounded = jd.elementwise("a * 100.0", dtype="i8")(np.array([0.015, 0.025, 9.0, -9.0, np.nan], np.float64))
    assert rounded.tolist() == [2, 2, 127, -128, 0]


def test_several_results_into_given_arrays() -> None:
    made = jd.elementwise(lambda x: (x + 1, x * x), dtype=("f64", None))
    x = numbers((4, 6), "f32").T
    square = np.full((12, 4), np.nan, np.float16)[::2]
    plus, same = made(x, out=(None, square))
    assert (plus.dtype, same is square) == (np.float64, True)
    np.testing.assert_allclose(plus, x.astype(np.float64) + 1)
    np.testing.assert_allclose(square, x * x, rtol=1e-3)
    with pytest.raises(jd.InvalidArgument, match="two results share memory"):
        made(x, out=(square, square))


def test_results_come_from_the_library_and_the_order_of_the_input() -> None:
    x = torch.randn(3, 5, 4).permute(2, 0, 1)
    found = jd.elementwise("x * 2")(x)
    assert isinstance(found, torch.Tensor)
    assert found.stride() == x.stride()
    assert torch.equal(found, x * 2)


def test_in_place_and_beside() -> None:
    x = numbers((40,), "f32")
    made = jd.elementwise("x + 1")
    expected = x + 1
    assert made(x, out=x) is x
    np.testing.assert_array_equal(x, expected)
    with pytest.raises(jd.InvalidArgument, match="shares memory with an input"):
        made(x[:-1], out=x[1:])


@pytest.mark.parametrize("size", [3, 5, 8, 63, 1000, 40_003])
@pytest.mark.parametrize("order", ["packed", "strided", "transposed"])
def test_every_result_may_be_an_input(size: int, order: str) -> None:
    """Results in the place of inputs, each of another one, also where rows are gathered or transposed."""
    made = jd.elementwise("w, g, h: d = 0.5 * h + g; w - d, w * d, d")
    w, g, h = (numbers((size, 3), "f32") for _ in range(3))
    if order == "strided":
        w, g, h = (np.repeat(array, 2, axis=0)[::2] for array in (w, g, h))
    if order == "transposed":
        w, h = (np.asfortranarray(array) for array in (w, h))
    d = np.float32(0.5) * h + g
    expected = w - d, w * d, d
    kept = h.copy()
    made(w, g, kept, out=(w, kept, g))
    for found, wanted in zip((w, kept, g), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(jd.InvalidArgument, match="shares memory"):
        jd.elementwise("a, b: a + b, a - b")(w[1:], g[1:], out=(g[1:], w[:-1]))


def test_filling() -> None:
    out = np.zeros((3, 50), np.int16)
    jd.elementwise(lambda: 7.0)(out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jd.elementwise("a + b")(np.zeros(3)), jd.InvalidArgument, r"takes 2 arrays \(a, b\), got 1"),
        (
            lambda: jd.elementwise("a + b")(np.zeros(3), np.zeros(4)),
            jd.InvalidShape,
            r"\(3,\), \(4,\) do not",
        ),
        (lambda: jd.elementwise("a")(np.zeros(3), out=np.zeros(4)), jd.InvalidShape, r"out has shape \(4,\)"),
        (lambda: jd.elementwise("a + b")(1, 2), jd.InvalidArgument, "every argument is a number"),
        (lambda: jd.elementwise("a")([1.0]), jd.InvalidType, "a: list cannot be borrowed"),
        (lambda: jd.elementwise("a", dtype="f8x"), jd.InvalidType, "'f8x' is no dtype"),
        (lambda: jd.elementwise("a", dtype=("f32", "f32")), jd.InvalidArgument, "2 dtypes for 1 results"),
        (lambda: jd.elementwise("a +"), jd.ParseError, "column 4"),
        (lambda: jd.elementwise("foo(a)"), jd.ParseError, "none of the operations"),
        (lambda: jd.elementwise("x: x + y"), jd.ParseError, "y is not known here"),
        (lambda: jd.elementwise("x.real"), jd.ParseError, "cannot be part of a formula"),
        (lambda: jd.elementwise(""), jd.ParseError, "empty"),
        (lambda: jd.elementwise(lambda *x: x), jd.InvalidArgument, "only positional parameters"),
        (lambda: jd.elementwise(lambda x: ()), jd.InvalidArgument, "no result"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_texts_of_expressions_are_read_back() -> None:
    """What an expression prints is a formula of the same expression."""
    for function in (
        lambda x, y: jd.where((x > y) & ~(x < 0.5), jd.exp(x) / (1.0 + jd.exp(x)), -y),
        lambda x: (x + 1.0) ** 3 * x,
        lambda a, b: jd.maximum(a, b) - jd.erf(a * b),
    ):
        expression = formula(function).results[0]
        assert parse_formula(str(expression)).results[0] == expression
        assert parse_formula(expression.key).results[0] == expression


def test_which_formulas_keep_integers() -> None:
    assert is_whole(parse_formula("where(a < 3, a * b, -a)").results[0])
    assert not is_whole(parse_formula("a / 2").results[0])
    assert not is_whole(parse_formula("a * 0.5").results[0])


@pytest.mark.parametrize("number", [math.nan, math.inf, 1.5, 1e300, 2**63, -(2**63) - 1])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_integer_arithmetic_refuses_numbers_that_it_would_have_to_change(number: float, dtype: Any) -> None:
    add = jd.elementwise(lambda x, y: x + y)
    with pytest.raises(jd.InvalidArgument, match=r"y is .* arithmetic is too, in int64"):
        add(np.ones(3, dtype), number)


def test_numbers_beyond_single_precision_are_infinite_in_it() -> None:
    add = jd.elementwise(lambda x, y: x + y)
    assert np.isposinf(add(np.ones(3, np.float32), 1e300)).all()
    assert (add(np.ones(3, np.int64), 2.0) == 3).all()
