"""What is fused into the end of a convolution: bias, residual, and functions of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import jitdnn as jd

AnyArray = np.ndarray[Any, Any]
SCALE = 2.0


def close(got: Any, expected: Any) -> bool:
    return np.allclose(np.asarray(got), np.asarray(expected), rtol=2e-5, atol=2e-5)


@pytest.fixture
def data() -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """x, w, a bias and a residual for a padded 3 x 3 convolution of 3 to 4 channels."""
    generator = np.random.default_rng(7)
    shapes = ((2, 3, 6, 5), (4, 3, 3, 3), (4,), (2, 4, 6, 5))
    x, w, b, r = (generator.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, b, r


def plain(x: AnyArray, w: AnyArray) -> AnyArray:
    return F.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()


def columns(b: AnyArray) -> AnyArray:
    return b[:, None, None]


def test_operands_without_an_epilogue_are_added(data: Any) -> None:
    x, w, b, r = data
    acc = plain(x, w)
    assert close(jd.conv(x, w, b, padding=1), acc + columns(b))
    assert close(jd.conv(x, w, b, r, padding=1), acc + columns(b) + r)
    assert close(jd.conv(x, w, residual=r, padding=1), acc + r)
    assert close(jd.conv(x, w, bias=b, padding=1), acc + columns(b))


def test_the_epilogue_gets_the_operands_that_are_given_in_order(data: Any) -> None:
    x, w, b, r = data
    acc = plain(x, w)
    assert close(jd.conv(x, w, padding=1, epilogue=lambda a: jd.relu(a)), np.maximum(acc, 0))
    got = jd.conv(x, w, b, r, padding=1, epilogue=lambda a, b, r: jd.relu(a + b) + r)
    assert close(got, np.maximum(acc + columns(b), 0) + r)
    got = jd.conv(x, w, None, r, padding=1, epilogue=lambda a, r: a - 2 * r)
    assert close(got, acc - 2 * r)
    got = jd.conv(x, w, b, r, b, padding=1, epilogue=lambda a, b, r, s: (a + b) * r / jd.exp(s))
    assert close(got, (acc + columns(b)) * r / np.exp(columns(b)))
    traced = jd.trace(lambda a, b: jd.tanh(a) * b)
    assert close(jd.conv(x, w, b, padding=1, epilogue=traced), np.tanh(acc) * columns(b))


def test_alpha_and_beta_act_after_the_epilogue(data: Any) -> None:
    x, w, b, r = data
    out = r.copy()
    jd.conv(x, w, b, padding=1, epilogue=lambda a, b: jd.relu(a + b), alpha=2.0, beta=-1.0, out=out)
    assert close(out, 2 * np.maximum(plain(x, w) + columns(b), 0) - r)


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (1, 4, 1, 1), (4, 1, 1), (6, 5), (2, 1, 6, 1), (1,), (4,)])
def test_operands_are_broadcast(data: Any, shape: tuple[int, ...]) -> None:
    x, w, _, _ = data
    operand = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    seen = operand.reshape(-1, 1, 1) if operand.ndim == 1 else operand
    assert close(jd.conv(x, w, residual=operand, padding=1), plain(x, w) + seen)


def test_one_dimension_means_channels_even_if_another_axis_is_as_long() -> None:
    x, w = np.ones((1, 1, 1, 4), np.float32), np.ones((4, 1, 1, 1), np.float32)
    b = np.arange(4, dtype=np.float32)
    assert close(jd.conv(x, w, b), 1 + columns(b) + np.zeros((1, 4, 1, 4)))


def test_operands_in_channels_last_order(data: Any) -> None:
    x, w, b, r = data
    last = [np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, w, r)]
    got = jd.conv(last[0], last[1], b, last[2], padding=1, layout="NHWC")
    assert close(np.moveaxis(got, -1, 1), plain(x, w) + columns(b) + r)
    row = np.arange(5, dtype=np.float32)
    got = jd.conv(last[0], last[1], residual=row[:, None], padding=1, layout="NHWC")
    assert close(np.moveaxis(got, -1, 1), plain(x, w) + row)


def test_a_residual_may_be_the_output_itself(data: Any) -> None:
    x, w, b, r = data
    out = r.copy()
    jd.conv(x, w, b, out, padding=1, out=out)
    assert close(out, plain(x, w) + columns(b) + r)


def test_functions_that_read_variables_follow_them(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _, _ = data
    acc = plain(x, w)
    factor = 2.0

    def scaled(a: Any) -> Any:
        return a * factor

    assert close(jd.conv(x, w, padding=1, epilogue=scaled), 2 * acc)
    factor = 3.0
    assert close(jd.conv(x, w, padding=1, epilogue=scaled), 3 * acc)

    def by_module(a: Any) -> Any:
        return a * SCALE

    assert close(jd.conv(x, w, padding=1, epilogue=by_module), 2 * acc)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert close(jd.conv(x, w, padding=1, epilogue=by_module), 5 * acc)

    factors = [2.0]

    def by_list(a: Any) -> Any:
        return a * factors[0]

    assert close(jd.conv(x, w, padding=1, epilogue=by_list), 2 * acc)
    factors[0] = 7.0
    assert close(jd.conv(x, w, padding=1, epilogue=by_list), 7 * acc)

    def nested(a: Any) -> Any:
        return (lambda v: v * factors[0])(a)

    assert close(jd.conv(x, w, padding=1, epilogue=nested), 7 * acc)
    factors[0] = 1.0
    assert close(jd.conv(x, w, padding=1, epilogue=nested), acc)


def helper(a: Any) -> Any:
    return a * SCALE


class Scales:
    ONE = 2.0


def test_variables_behind_functions_modules_and_classes_are_followed(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, _, _ = data
    acc = plain(x, w)

    def by_helper(a: Any) -> Any:
        return helper(a) + 1

    def by_module(a: Any) -> Any:
        return a * math.tau

    def by_class(a: Any) -> Any:
        return a * Scales.ONE

    def recursive(a: Any, depth: int = 2) -> Any:
        return a if depth == 0 else recursive(a, depth - 1) * SCALE

    for scale in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setattr(Scales, "ONE", scale)
        monkeypatch.setattr(math, "tau", scale)
        for epilogue in (by_module, by_class):
            assert close(jd.conv(x, w, padding=1, epilogue=epilogue), scale * acc)
        assert close(jd.conv(x, w, padding=1, epilogue=by_helper), scale * acc + 1)
        assert close(jd.conv(x, w, padding=1, epilogue=recursive), scale**2 * acc)


def test_functions_of_one_code_are_told_apart(data: Any) -> None:
    x, w, _, _ = data
    acc = plain(x, w)

    def times(factor: float) -> Callable[[Any], Any]:
        return lambda a: a * factor

    for factor in (1.0, -1.0, 2.0):
        assert close(jd.conv(x, w, padding=1, epilogue=times(factor)), factor * acc)
        assert close(jd.conv(x, w, padding=1, epilogue=lambda a, factor=factor: a * factor), factor * acc)
    # equal numbers that are not the same
    zeros = jd.conv(np.abs(x), np.abs(w), padding=1, epilogue=times(0.0))
    assert not np.signbit(zeros).any()
    zeros = jd.conv(np.abs(x), np.abs(w), padding=1, epilogue=times(-0.0))
    assert np.signbit(zeros).all()


def test_a_lambda_in_a_loop_is_planned_once(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, _ = data
    handle = jd.Handle()
    for turn in range(3):
        got = jd.conv(x, w, b, padding=1, epilogue=lambda a, b: jd.relu(a + b), handle=handle)
        assert close(got, np.maximum(plain(x, w) + columns(b), 0))
        if turn == 0:
            monkeypatch.setattr(jd.Handle, "plan", None)
    assert len(handle.calls) == 1


def test_other_callables_are_traced(data: Any) -> None:
    x, w, _, _ = data
    acc = plain(x, w)

    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, a: Any) -> Any:
            return a * self.factor

        def method(self, a: Any) -> Any:
            return a + self.factor

    scaled = Scaled(2.0)
    assert close(jd.conv(x, w, padding=1, epilogue=scaled), 2 * acc)
    assert close(jd.conv(x, w, padding=1, epilogue=scaled.method), 2 + acc)
    scaled.factor = 4.0
    assert close(jd.conv(x, w, padding=1, epilogue=scaled), 4 * acc)
    assert close(jd.conv(x, w, padding=1, epilogue=scaled.method), 4 + acc)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"bias": np.zeros(3, np.float32)},
            jd.InvalidShape,
            "a bias has 3 elements, the result has 4 channels: they must be equal",
        ),
        (
            {"residual": np.zeros((2, 4, 6, 4), np.float32)},
            jd.InvalidShape,
            r"an operand of the epilogue does not fit the result: shape \(2, 4, 6, 4\) cannot be broadcast",
        ),
        (
            {"bias": np.zeros(4, np.float32), "epilogue": lambda a: a},
            jd.InvalidArgument,
            r"the epilogue takes 1 values \(a\) and gets 2: the sum and 1 operands",
        ),
        (
            {"epilogue": lambda a, bias: a + bias},
            jd.InvalidArgument,
            r"the epilogue takes 2 values \(a, bias\) and gets 1",
        ),
        ({"epilogue": lambda a: 1 if a > 0 else 0}, jd.InvalidArgument, r"jd\.where"),
        ({"epilogue": "relu"}, jd.InvalidArgument, "cannot be traced"),
        ({"bias": np.zeros(4)}, jd.InvalidType, "the result is f32 and an operand of the epilogue is f64"),
        ({"residual": [0.0]}, jd.InvalidType, "residual: list cannot be borrowed"),
    ],
)
def test_what_does_not_fit_is_refused(
    data: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    x, w, _, _ = data
    with pytest.raises(error, match=message):
        jd.conv(x, w, padding=1, **options)


def test_three_operands_need_an_epilogue(data: Any) -> None:
    x, w, b, r = data
    with pytest.raises(jd.InvalidArgument, match="3 operands and no epilogue"):
        jd.conv(x, w, b, r, b, padding=1)
