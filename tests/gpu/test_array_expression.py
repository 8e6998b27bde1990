"""Arithmetic of arrays on a GPU: values and dtypes against NumPy, one kernel an expression, and when it is computed."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jitdnn as jd
from examples import examples
from jitdnn.ops import array_expression
from jitdnn.tensor import DeviceArray, device_array

X = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)


def moved(device: Any, values: Any) -> DeviceArray:
    return jd.to_device(np.asarray(values), f"{device.target}:{device.index}")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of every kernel that an expression is computed by."""
    ran: list[str] = []
    whole = array_expression.evaluated

    def noted(form: Any, out: Any = None) -> Any:
        ran.append(" ".join(step for step, _, _ in form.steps))
        return whole(form, out)

    monkeypatch.setattr(array_expression, "evaluated", noted)
    return ran


def is_near(result: Any, expected: Any) -> None:
    assert result.shape == (expected.shape or (1,))
    assert result.dtype == expected.dtype
    found = result.numpy() if isinstance(result, DeviceArray) else result
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected.reshape(found.shape))
        return
    digits = 1e-2 if expected.dtype.itemsize == 2 else 2e-6
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64).reshape(found.shape), rtol=digits, atol=digits
    )


def test_an_expression_is_one_kernel(
    device: Any, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = moved(device, X), moved(device, Y)
    z = 2.5 * x + y
    assert (kernels, z.shape, z.dtype, z.ndim, z.size, z.nbytes) == ([], (5, 7), np.float32, 2, 35, 140)
    assert "not yet computed" in repr(z)
    is_near(z, 2.5 * X + Y)
    assert kernels == ["multiply add"]
    z.numpy(), z[0], z.T, np.asarray(z)
    assert len(kernels) == 1
    assert "not yet computed" not in repr(z)
    # another number is not another kernel
    out = jd.empty((5, 7), device=x.device)
    monkeypatch.delattr(array_expression, "ElementwiseKernel")
    out[...] = 3.5 * x + y
    is_near(out, 3.5 * X + Y)
    assert kernels[1:] == ["multiply add"]


FORMULAS: list[Callable[..., Any]] = [
    lambda x, y, f: -x * 2 + y / 3 - 1,
    lambda x, y, f: (x + y) * (x - y) / (1 + x * x),
    lambda x, y, f: abs(x) ** 0.5 + y**3 + 2**x,
    lambda x, y, f: x // 0.5 + y % 0.75,
    lambda x, y, f: f.exp(-(x**2)) * f.sin(y) + f.tanh(x),
    lambda x, y, f: f.maximum(x, y) - f.minimum(x, 0.25),
    lambda x, y, f: (x < y) & (x > -1) | ~(y >= 0.5),
    lambda x, y, f: (x == y) + (x != y) * 2.5 * x,
    lambda x, y, f: f.arctan2(x, y) + f.log1p(abs(x)) + f.square(y),
    lambda x, y, f: f.sqrt(f.fabs(x)) + f.rint(y) + f.floor(x) + f.trunc(y) + f.sign(x),
]


CASES = [(number, "float32") for number in range(len(FORMULAS))] + [
    (1, "float64"),
    (6, "float64"),
    (1, "float16"),
]


@pytest.mark.parametrize(("number", "dtype"), CASES)
def test_values_are_those_of_numpy(device: Any, number: int, dtype: str) -> None:
    if dtype == "float64" and not device.has_f64:
        pytest.skip("no f64")
    x, y = X.astype(dtype), Y.astype(dtype)
    formula = FORMULAS[number]
    is_near(formula(moved(device, x), moved(device, y), np), formula(x, y, np))


def test_functions_of_the_package(device: Any) -> None:
    x, y = moved(device, X), moved(device, Y)
    is_near(jd.where(x > y, x, 0.0), np.where(X > Y, X, np.float32(0)))
    is_near(jd.clip(x, -0.5, 0.5) * 2, np.clip(X, -0.5, 0.5) * 2)
    is_near(jd.fma(x, y, 1.0), X * Y + 1)
    is_near(jd.rsqrt(1 + x * x), 1 / np.sqrt(1 + X * X))
    is_near(jd.isnan(x / x), np.isnan(X / X))
    is_near(jd.exp(x) + jd.log1p(jd.absolute(y)), np.exp(X) + np.log1p(abs(Y)))
    # functions of arrays take what is not computed yet
    is_near(jd.relu(x - y), np.maximum(X - Y, 0))
    is_near(jd.matmul(x * 2, (y + 1).T), (X * 2) @ (Y + 1).T)
    is_near(x @ y.T, X @ Y.T)
    is_near(jd.elementwise("a, b: a * b")(x + 1, y), (X + 1) * Y)


def test_broadcasting_and_strides(device: Any) -> None:
    x, row, column = moved(device, X), moved(device, Y[0]), moved(device, Y[:, :1])
    is_near(x * row + column, X * Y[0] + Y[:, :1])
    is_near(row + column, Y[0] + Y[:, :1])
    is_near(x[::2, ::-1] * 2 - x[1::2, 3:4][:1], X[::2, ::-1] * 2 - X[1::2, 3:4][:1])
    is_near(x.T + 1, X.T + 1)
    is_near((x.T + 1).copy(), X.T + 1)
    empty = moved(device, X[:0])
    is_near(empty * 2 + row, X[:0] * 2 + Y[0])
    with pytest.raises(jd.InvalidShape, match=r"add of shapes \(5, 7\), \(5,\)"):
        x + moved(device, Y[:, 0])


DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float16",
    "float32",
    "float64",
)
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "eq", "ge")


def outcome(run: Callable[[], Any]) -> Any:
    with np.errstate(all="ignore"):
        try:
            return run()
        except (TypeError, ValueError, OverflowError) as error:
            return type(error)


@settings(
    max_examples=examples(18), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_dtypes_are_those_of_numpy(device: Any, data: st.DataObject) -> None:
    """Chains of two operators over small numbers of any types: dtype and value, wrapping as there."""
    pick = data.draw
    arrays = []
    for _ in range(3):
        dtype = np.dtype(pick(st.sampled_from(DTYPES)))
        low = 0 if dtype.kind in "ub" else -9
        numbers = pick(st.lists(st.integers(low, 1 if dtype.kind == "b" else 120), min_size=3, max_size=3))
        arrays.append(np.array(numbers).astype(dtype))
    first, second = (getattr(operator, pick(st.sampled_from(OPERATORS))) for _ in range(2))
    last: Any = (
        arrays[2]
        if pick(st.booleans())
        else pick(st.sampled_from([3, 0.5, True, np.float32(1.5), np.int8(2)]))
    )
    turned = pick(st.booleans())

    def run(a: Any, b: Any, c: Any) -> Any:
        return second(c, first(a, b)) if turned else second(first(a, b), c)

    expected = outcome(lambda: run(*arrays[:2], last))
    there = [moved(device, array) for array in arrays[:2]]
    found = outcome(lambda: run(*there, moved(device, last) if isinstance(last, np.ndarray) else last))
    if isinstance(expected, type):
        assert isinstance(found, type)
        return
    if isinstance(found, type):  # an integer beyond the type, or dtypes that arrays here have none of
        assert expected.dtype.name == "uint64"
        return
    assert found.dtype == expected.dtype
    if expected.dtype.kind == "f":
        finite = np.isfinite(expected) & (
            abs(expected.astype(np.float64)) < 60000
        )  # half precision is wider inside
        is_same = "f" in [array.dtype.kind for array in arrays] and expected.dtype.itemsize == 2
        digits = 5e-3 if is_same else 1e-5
        np.testing.assert_allclose(found.numpy()[finite], expected[finite], rtol=digits, atol=digits)
    else:
        np.testing.assert_array_equal(found.numpy(), expected)


def test_small_integers_wrap_where_numpy_has_them_wrap(device: Any) -> None:
    a = np.array([100, 120, -128, 7], np.int8)
    x = moved(device, a)
    with np.errstate(all="ignore"):
        for run in (
            lambda v: v * v + v, lambda v: (v + v) // 2, lambda v: (v * v) > v, lambda v: (v + v) * np.float32(2),
            lambda v: v**3 - v, lambda v: -v * 2, lambda v: abs(v + v),
        ):  # fmt: skip
            is_near(run(x), run(a))
    with pytest.raises(jd.InvalidArgument, match="no integers"):
        x**-1
    with pytest.raises(jd.InvalidType, match="power of int8 and int8"):
        x**x


def test_half_precision_keeps_its_type_with_numbers(device: Any) -> None:
    a = np.array([1.5, 2.25, -3], ml_dtypes.bfloat16)
    x = moved(device, a)
    assert (x * 2.0 + 1).dtype == (x * x).dtype == a.dtype
    assert (x + moved(device, a.astype(np.float32))).dtype == np.float32
    np.testing.assert_array_equal((x * 2 + 1).numpy().astype(np.float32), [4, 5.5, -5])


def test_what_is_read_is_read_before_it_is_written(device: Any, kernels: list[str]) -> None:
    x, y = moved(device, X), moved(device, Y)
    before = x * 2 + y
    x += 1
    is_near(x, X + 1)
    is_near(before, X * 2 + Y)
    later, part = x - y, x[1:3] * 3
    x[0] = 7.0
    is_near(later, X + 1 - Y)
    is_near(part, (X + 1)[1:3] * 3)
    filled = y * 2
    y.fill_from(X)
    is_near(filled, Y * 2)
    copied = y + 0.5
    jd.elementwise("a: a * a")(x, out=y)
    is_near(copied, X + np.float32(0.5))
    deep = (y + 1) * 2
    y *= deep  # which reads what is written
    value = x.numpy() ** 2
    is_near(y, value * ((value + 1) * 2))
    is_near(deep, (value + 1) * 2)


def test_expressions_that_nobody_wants_are_not_computed(device: Any, kernels: list[str]) -> None:
    x = moved(device, X)
    for _ in range(10):
        x * 2 + 1
    gc.collect()
    x += 1
    assert kernels == ["add"]
    device_array.compute_readers()
    assert not device_array._readers


def test_parts_of_the_same_memory(device: Any) -> None:
    for first, second in (
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None), slice(None, None, -1)),
    ):
        a, x = X[:, 0].copy(), moved(device, X[:, 0])
        a[first] += a[second]
        x[first] += x[second]
        is_near(x, a)
        a[first] = a[second] * 2 + 1
        x[first] = x[second] * 2 + 1
        is_near(x, a)
        a[first] = a[second]
        x[first] = x[second]
        is_near(x, a)


def test_assignment(device: Any) -> None:
    a, x = X.copy(), moved(device, X)
    row = moved(device, Y[0])
    for array, other in ((a, Y[0]), (x, row)):
        array[...] = other * 2
        array[1:3, ::2] = 5
        array[0] = other
        array[4, 6] = -1.5
        array[-1, -2] = np.float64(2.5)
        array[2:4] = [[1], [2]]
        array[3, :3] = np.array([7, 8, 9])
        array[1] = True
    is_near(x, a)
    numbers, i = np.arange(6, dtype=np.int16), moved(device, np.arange(6, dtype=np.int16))
    for array, other in ((numbers, Y[0, :6]), (i, row[:6])):
        array[...] = other * 10  # without the fraction
        array[2] = 3.9
    is_near(i, numbers)
    for value, error in (
        (moved(device, X[:, :3]), jd.InvalidShape),
        (np.ones(3), jd.InvalidShape),
        ("a", jd.InvalidType),
    ):
        with pytest.raises(error):
            x[...] = value
    with pytest.raises(jd.InvalidArgument, match="index 5 is beyond an axis of 5"):
        x[5, 0] = 1
    is_near(x, a)


def test_in_place_operators_cast_as_numpy(device: Any) -> None:
    a, x = np.arange(6, dtype=np.int32), moved(device, np.arange(6, dtype=np.int32))
    for array in (a, x):
        array += 3
        array *= 2
        array //= 4
        array %= 3
        array **= 2
    is_near(x, a)
    for wrong in (0.5, moved(device, X[0, :6])):
        with pytest.raises(jd.InvalidType, match="the result of add is float64, and the array is int32"):
            x += wrong
    with pytest.raises(jd.InvalidShape, match=r"a result of shape \(5, 6\) does not fit into \(6,\)"):
        x += moved(device, np.ones((5, 6), np.int32))
    is_near(x, a)
    truth = moved(device, np.array([True, False]))
    truth &= moved(device, np.array([True, True]))
    truth |= False
    np.testing.assert_array_equal(truth.numpy(), [True, False])


def test_reductions_take_the_expression_in(device: Any, kernels: list[str]) -> None:
    x, y = moved(device, X), moved(device, Y)
    is_near((x * y + 1).sum(), (X * Y + 1).sum())
    is_near((x * y).sum(axis=0), (X * Y).sum(axis=0))
    is_near(abs(x).max(axis=1, keepdims=True), abs(X).max(axis=1, keepdims=True))
    is_near((x - y).min(axis=(0, 1)), (X - Y).min())
    is_near((x > y).sum(), (X > Y).sum())
    is_near(((x > 0) & (y > 0)).sum(axis=0), ((X > 0) & (Y > 0)).sum(axis=0))
    is_near((x * 2).argmax(axis=1), (X * 2).argmax(axis=1))
    is_near((x[0] * 2).prod(), (X[0] * 2).prod())
    is_near(x[0].dot(y[0]), X[0] @ Y[0])
    is_near(np.sum(x * 2, axis=1), (X * 2).sum(axis=1))
    assert kernels == []
    is_near((x * 3).mean(axis=0), (X * 3).mean(axis=0))
    is_near((x.astype("f16") * 2).mean(), (X.astype("f2") * 2).mean())
    numbers = np.arange(-3, 9, dtype=np.int8).reshape(3, 4) * 10
    i = moved(device, numbers)
    is_near(i.sum(axis=0), numbers.sum(axis=0))
    is_near((i * i).sum(), (numbers * numbers).sum())
    is_near(i.max(), numbers.max())
    is_near(i.mean(axis=1), numbers.mean(axis=1))
    out = jd.empty(7, device=x.device)
    assert (x * 2).sum(axis=0, out=out) is out
    is_near(out, (X * 2).sum(axis=0))


def test_numbers(device: Any) -> None:
    x = moved(device, X)
    total = (x * 2).sum()
    assert float(total) == pytest.approx(float((X * 2).sum()), rel=1e-5)
    assert int(moved(device, [3])) == 3
    assert (x[0, :1] == x[0, :1]).item() is True
    assert bool((x == x).min())
    with pytest.raises(jd.InvalidShape, match="neither true nor false"):
        bool(x == x)
    assert len({x, x, moved(device, X)}) == 2
    assert (x == "text") is False
    assert x is not None


def test_large_expressions_are_computed_in_parts(device: Any, kernels: list[str]) -> None:
    arrays = [moved(device, X + n) for n in range(20)]
    total: Any = arrays[0]
    for array in arrays[1:]:
        total = total + array
    is_near(total, np.sum([X + np.float32(n) for n in range(20)], axis=0, dtype=np.float32))
    assert 2 <= len(kernels) <= 4
    x, value = arrays[0], X
    for _ in range(100):
        x, value = x * np.float32(0.5) + 1, value * np.float32(0.5) + 1
    is_near(x, value)


def test_what_cannot_be_combined_is_named(device: Any) -> None:
    x = moved(device, X)
    for run, error, words in (
        (lambda: x + X, jd.DeviceError, "add of an array on a GPU and one of NumPy"),
        (lambda: X + x, jd.DeviceError, "add of an array on a GPU and one of NumPy"),
        (lambda: x & x, jd.InvalidType, "only conditions can be combined"),
        (lambda: jd.where(x, x, x), jd.InvalidType, "it must be a condition"),
        (lambda: (x > 0) - (x > 1), jd.InvalidType, "boolean subtract"),
        (lambda: x @ X, jd.InvalidType, "both must be there"),
        (lambda: x[0].dot(x[0, :3]), jd.InvalidShape, "the dot product of shapes"),
        (lambda: jd.maximum(x, "a"), jd.InvalidType, "operands are arrays on a GPU and numbers"),
        (lambda: moved(device, np.ones(3, np.uint64)) < 3, jd.InvalidType, "uint64 cannot be compared"),
    ):
        with pytest.raises(error, match=words):
            run()
    for run in (
        lambda: x + "a",
        lambda: None * x,
        lambda: x < [1],
        lambda: np.hypot(x, x),
        lambda: np.add.reduce(x),
    ):
        with pytest.raises(TypeError):
            run()


def test_out_of_numpys_functions(device: Any) -> None:
    x, out = moved(device, X), jd.empty((5, 7), device=f"{device.target}:{device.index}")
    assert np.exp(x, out=out) is out
    is_near(out, np.exp(X))
    np.multiply(out, 2.0, out=out)
    is_near(out, np.exp(X) * 2)
    with pytest.raises(jd.InvalidType, match="and out is"):
        np.exp(x, out=jd.empty((5, 7), "i32", out.device))


def test_memory_that_others_have_is_read_at_once(device: Any, kernels: list[str]) -> None:
    x = moved(device, X)
    waiting = x * 2
    device_array.lend(x.memory)  # what handing it out does
    assert kernels == ["multiply"]
    at_once = x * 3
    assert kernels == ["multiply", "multiply"]
    assert "not yet" not in repr(at_once)
    is_near(waiting, X * 2)
