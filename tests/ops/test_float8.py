"""8-bit reals: conversions of every number, products of them in any combination, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import jitdnn as jd
from jitdnn.tensor import FLOAT8_DTYPES, FLOAT8_LARGEST, numpy_dtype

RNG = np.random.default_rng(5)
X, W = (2, 16, 9, 7), (8, 16, 3, 3)


def numbers(shape: tuple[int, ...], name: str) -> Any:
    return RNG.standard_normal(shape).astype(numpy_dtype(name))


@pytest.mark.parametrize("name", FLOAT8_DTYPES)
def test_every_number_is_read_and_written(name: str) -> None:
    dtype = numpy_dtype(name)
    x = np.arange(256, dtype=np.uint8).view(dtype)
    wide = jd.transform(x, dtype="f32")
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(
        jd.transform(wide, dtype=name).view(np.uint8)[finite], x.view(np.uint8)[finite]
    )


def nearest(x: Any, held: Any) -> Any:
    """The nearest of some numbers in order; of two the one with an even place, counted from 0, as its bits are."""
    above = np.clip(np.searchsorted(held, x), 1, len(held) - 1)
    low, high = held[above - 1], held[above]
    is_even = (above - np.searchsorted(held, 0.0)) % 2 == 0
    with np.errstate(invalid="ignore"):
        is_up = (high - x < x - low) | ((high - x == x - low) & is_even)
    return np.where(np.isnan(x), np.nan, np.where(is_up, high, low))


@pytest.mark.parametrize("name", FLOAT8_DTYPES)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_numbers_are_rounded_to_the_nearest(source: str, name: str) -> None:
    dtype, most = numpy_dtype(name), FLOAT8_LARGEST[name]
    held = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    held = np.unique(held[np.isfinite(held)])
    middle = (held[1:] + held[:-1]) / 2
    near = [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    far = np.array([most * 1.01, -most * 1.2, np.inf, -np.inf, np.nan, 1e30, 1e-30, -0.0])
    x = np.concatenate([*near, RNG.standard_normal(5000), 1e-3 * RNG.standard_normal(5000), far])
    with np.errstate(over="ignore"):
        x = x.astype(numpy_dtype(source))
    found = jd.transform(x, dtype=name)
    np.testing.assert_array_equal(found.astype(np.float64), nearest(x.astype(np.float64), held))
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(found.astype(np.float32))[is_number], np.signbit(x)[is_number])


def test_names_of_other_libraries() -> None:
    x = np.zeros(3, np.float32)
    for name in ("f8e4m3", "float8_e4m3fn", ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn):
        assert jd.transform(x, dtype=name).dtype == ml_dtypes.float8_e4m3fn
    with pytest.raises(jd.InvalidType, match="float8_e4m3fnuz"):
        jd.transform(x, dtype="float8_e4m3fnuz")


@pytest.mark.parametrize("result", ["f32", "f16", "bf16", *FLOAT8_DTYPES])
@pytest.mark.parametrize(("first", "second"), [("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e5m2")])
def test_convolutions(first: str, second: str, result: str) -> None:
    x, w = numbers(X, first), numbers(W, second)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(x.astype(np.float64)), torch.from_numpy(w.astype(np.float64)), padding=1
    )
    out = np.zeros(expected.shape, numpy_dtype(result))
    y = jd.conv(x, w, padding=1, alpha=0.25, out=out)
    unit = {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7, "f8e4m3": 2.0**-3, "f8e5m2": 2.0**-2}[result]
    np.testing.assert_allclose(y.astype(np.float64), 0.25 * expected.numpy(), rtol=unit, atol=unit / 8)


def test_results_are_f32_unless_said_otherwise() -> None:
    x, w, dy = numbers(X, "f8e4m3"), numbers(W, "f8e4m3"), numbers((2, 8, 9, 7), "f8e5m2")
    assert jd.conv(x, w, padding=1).dtype == np.float32
    dx, dw = jd.conv_backward_data(dy, w, X, padding=1), jd.conv_backward_filter(x, dy, W, padding=1)
    wide = [torch.from_numpy(a.astype(np.float32)) for a in (x, w, dy)]
    torch.testing.assert_close(
        torch.from_numpy(dx), torch.nn.grad.conv2d_input(X, wide[1], wide[2], padding=1)
    )
    torch.testing.assert_close(
        torch.from_numpy(dw),
        torch.nn.grad.conv2d_weight(wide[0], W, wide[2], padding=1),
        rtol=1e-5,
        atol=1e-5,
    )
    a, b = numbers((5, 33), "f8e4m3"), numbers((33, 7), "f8e5m2")
    np.testing.assert_allclose(
        jd.matmul(a, b), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5
    )
    assert jd.elementwise("a * 2.0")(a).dtype == np.float32


def test_products_of_integers() -> None:
    a, b = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((5, 70), (70, 7)))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(jd.matmul(a, b), exact)
    np.testing.assert_array_equal(jd.matmul(a, b, out=np.zeros((5, 7), np.int32)), exact)
    narrow = jd.matmul(a, b, alpha=0.001, out=np.zeros((5, 7), np.int8))
    np.testing.assert_array_equal(narrow, np.clip(np.rint(0.001 * exact), -128, 127))


def test_tensors_of_pytorch() -> None:
    x, w = torch.randn(X).to(torch.float8_e4m3fn), torch.randn(W).to(torch.float8_e5m2)
    out = torch.zeros((2, 8, 9, 7), dtype=torch.float8_e4m3fn)
    jd.conv(x, w, padding=1, alpha=0.1, out=out)
    expected = 0.1 * torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-3, atol=2.0**-9)
    scale = torch.full((1, 1, 1, 1), 0.5)
    scaled = jd.conv(x, w, None, scale, padding=1, epilogue=lambda total, s: total * s)
    torch.testing.assert_close(scaled.double(), 5 * expected, rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    x, w = numbers(X, "f8e4m3"), numbers(W, "f8e4m3")
    with pytest.raises(jd.InvalidType, match="transform"):
        jd.relu(x)
    with pytest.raises(jd.InvalidType, match="w is f32: it must be f8e4m3 or f8e5m2"):
        jd.conv(x, w.astype(np.float32))
    with pytest.raises(jd.InvalidType, match="w is f8e4m3"):
        jd.conv(x.astype(np.float32), w)
    with pytest.raises(jd.InvalidType, match="out is f64: it must be one of f32, f16, bf16, f8e4m3, f8e5m2"):
        jd.conv(x, w, out=np.zeros((2, 8, 7, 5)))
