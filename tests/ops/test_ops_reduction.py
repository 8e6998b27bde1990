"""Reductions and scans of one's own: against NumPy, over any dtype, stride, axis and fold."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import jitdnn as jd
from examples import examples
from jitdnn.tensor import DTYPES, numpy_dtype

RNG = np.random.default_rng(0)
LOG_ADD = jd.trace(lambda a, b: jd.maximum(a, b) + jd.log1p(jd.exp(-jd.absolute(a - b))))


def view(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Small whole numbers, exact in every type, in an order that data chooses."""
    x = RNG.integers(0, 4, [2 * n for n in shape]).astype(numpy_dtype(dtype))
    x = x[tuple(slice(None, None, data.draw(st.sampled_from([2, -2]))) for _ in shape)]
    if data.draw(st.booleans()):
        x = np.ascontiguousarray(x.T).T
    return x


shapes = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from(
    [dtype for dtype in DTYPES if dtype not in ("bool", "f16", "bf16", "f8e4m3", "f8e5m2")]
)


@given(shapes, dtypes, st.data())
@settings(max_examples=examples(60), deadline=None)
def test_reductions_over_any_axes(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = view(data, shape, dtype)
    axes = tuple(data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1)))
    keepdims = data.draw(st.booleans())
    made = jd.reduction(lambda x: (x + 1, x, x * x, x), reduce=("add", "max", "min", "argmax"))
    total, most, least, place = made(x, axes=axes, keepdims=keepdims)
    wide = x.astype(np.float64)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    rows = wide.transpose(*kept, *sorted(axes)).reshape([shape[axis] for axis in kept] + [-1])
    expected = total.shape
    np.testing.assert_array_equal(total, np.sum(wide + 1, axes).reshape(expected))
    np.testing.assert_array_equal(most, np.max(wide, axes).reshape(expected))
    np.testing.assert_array_equal(least, np.min(wide * wide, axes).reshape(expected))
    np.testing.assert_array_equal(place, rows.argmax(-1).reshape(expected))
    seen = tuple(1 if axis in axes else n for axis, n in enumerate(shape) if keepdims or axis not in axes)
    assert expected == (seen or (1,))


@given(shapes, dtypes, st.data())
@settings(max_examples=examples(60), deadline=None)
def test_scans_along_any_axis(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = view(data, shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    flip = data.draw(st.booleans())
    wide = x.astype(np.float64)
    turned = np.flip(wide, axis) if flip else wide
    back = (lambda a: np.flip(a, axis)) if flip else (lambda a: a)
    total = jd.scan(dtype="f64")(x, axis=axis, reverse=flip)
    np.testing.assert_array_equal(total, back(np.cumsum(turned, axis)))
    before = jd.scan(exclusive=True, dtype="f64")(x, axis=axis, reverse=flip)
    np.testing.assert_array_equal(before, total - wide)
    most = jd.scan("x: x * 2", reduce="max")(x, axis=axis, reverse=flip)
    np.testing.assert_array_equal(most.astype(np.float64), back(np.maximum.accumulate(turned * 2, axis)))


@pytest.mark.parametrize("shape", [(300_007,), (3, 150_001), (70_000, 5), (2, 65_536), (1, 65_537)])
@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows_are_cut_into_parts(shape: tuple[int, ...], threads: int) -> None:
    x = RNG.standard_normal(shape)
    with jd.settings(threads=threads):
        np.testing.assert_allclose(jd.scan()(x), x.cumsum(-1), atol=1e-9)
        np.testing.assert_allclose(jd.reduction()(x), [x.sum()], atol=1e-8)
        running = jd.scan(reduce=lambda a, b: b, neutral=0.0)(x)
        np.testing.assert_array_equal(running, x)
        integers = np.arange(np.prod(shape)).reshape(shape)
        np.testing.assert_array_equal(jd.scan()(integers), integers.cumsum(-1))


def test_results_do_not_depend_on_threads() -> None:
    x = RNG.standard_normal((5, 200_003)).astype(np.float32)
    found = []
    for threads in (1, 2):
        with jd.settings(threads=threads):
            found.append((jd.scan()(x).tobytes(), jd.reduction()(x, axes=1).tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_fold_of_ones_own(axis: int) -> None:
    x = RNG.standard_normal((6, 35, 19))
    expected = np.logaddexp.accumulate(x, axis)
    np.testing.assert_allclose(jd.scan(reduce=LOG_ADD, neutral=-1e30)(x, axis=axis), expected, rtol=1e-11)
    last = np.take(expected, -1, axis)
    np.testing.assert_allclose(jd.reduction(reduce=LOG_ADD, neutral=-1e30)(x, axes=axis), last, rtol=1e-11)


def test_the_order_of_elements_is_kept() -> None:
    """`b` where it is not 0, else what was before: associative, but not commutative."""
    latest = jd.trace(lambda a, b: jd.where(b != 0.0, b, a))
    for shape, axis in (((9, 300), 1), ((300, 9), 0), ((200_000,), 0)):
        x = RNG.integers(0, 3, shape).astype(np.float64) * RNG.random(shape)
        steps = np.where(x != 0, np.indices(shape)[axis], 0)
        at = np.maximum.accumulate(steps, axis)
        expected = np.take_along_axis(x, at, axis)
        np.testing.assert_array_equal(jd.scan(reduce=latest, neutral=0.0)(x, axis=axis), expected)


def test_several_arrays_and_numbers() -> None:
    x, y = RNG.standard_normal((40, 33)).astype(np.float32), RNG.standard_normal((33,)).astype(np.float32)
    dot = jd.reduction(lambda x, y, scale: scale * x * y)
    for scale in (2.0, -3.0):
        np.testing.assert_allclose(dot(x, y, scale, axes=1), scale * (x @ y), rtol=1e-4, atol=1e-4)
    out = np.full((33,), np.nan, np.float64)
    assert jd.reduction("x, y: x * y")(x, y, axes=0, out=out) is out
    np.testing.assert_allclose(out, (x * y).sum(0), rtol=1e-4, atol=1e-5)
    tensor = jd.scan("x, y: x * y")(torch.from_numpy(x), torch.from_numpy(y), axis=0)
    torch.testing.assert_close(tensor, torch.from_numpy(x * y).cumsum(0), rtol=1e-4, atol=1e-4)


def test_extremes_of_nan_and_ties() -> None:
    x = np.array([[1, 3, 3, 2], [1, np.nan, 9, np.nan]], np.float32)
    found = jd.reduction(reduce=("argmax",))(x, axes=1)
    assert found.tolist() == [1, 1]
    assert np.isnan(jd.reduction(reduce="min")(x, axes=1)[1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: jd.reduction(reduce="sum"), jd.InvalidArgument, "reduce is 'sum': it must be one of add"),
        (lambda x: jd.reduction(reduce=lambda a, b: a + b), jd.InvalidArgument, "say by neutral="),
        (lambda x: jd.reduction(reduce=lambda a: a, neutral=0), jd.InvalidArgument, "takes 1 numbers"),
        (lambda x: jd.reduction(reduce=("add", "max")), jd.InvalidArgument, "2 reductions for 1 results"),
        (lambda x: jd.reduction()(x, axes=2), jd.InvalidArgument, r"axes are \(2,\)"),
        (lambda x: jd.reduction()(x, axes=(0, -2)), jd.InvalidArgument, "must be different"),
        (lambda x: jd.reduction(reduce="max")(x[:0], axes=0), jd.InvalidArgument, "nothing to take"),
        (lambda x: jd.reduction()(x, axes=0, out=np.zeros(3)), jd.InvalidShape, r"out has shape \(3,\)"),
        (lambda x: jd.reduction()(1.0), jd.InvalidArgument, "every argument is a number"),
        (lambda x: jd.scan(reduce="argmax"), jd.InvalidArgument, "of a scan it must be"),
        (lambda x: jd.scan(lambda x: (x, x)), jd.InvalidArgument, "a scan has one"),
        (lambda x: jd.scan()(x, axis=3), jd.InvalidArgument, "axis is 3"),
        (lambda x: jd.scan()(x, out=x), jd.InvalidArgument, "shares memory"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(np.zeros((4, 5), np.float32))


def test_empty_arrays() -> None:
    assert jd.reduction()(np.zeros((0, 3)), axes=0).tolist() == [0, 0, 0]
    assert jd.scan()(np.zeros((3, 0))).shape == (3, 0)
