"""Reductions: every op on the sizes that hurt, against the definition, NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Problem, parse
from jitdnn.problems.reduce import OPS
from strategies import reductions

SHAPES = [
    "shape1 axis0",
    "shape3x1 axis1",
    "shape7x10 axis1",
    "shape5x63 axis1 keepdims",
    "shape2x70001 axis1",
    "shape7000x3 axis0",
    "shape3000x4 axis1",
    "shape2x19x5x7 axis1 nhwc",
    "shape3x5x4x7 axis0x2x3",
    "shape3x5x4x7 axis0x2x3 nhwc",
    "shape3x40x4x7 axis0x2x3 nhwc keepdims",
    "shape2x3x70 axis0x1x2",
    "shape2x2x2x2x2x2x2x3 axis1x7",
    "shape3x5x4 axis1 f16",
    "shape40x33 axis0 bf16",
    "shape2x3000 axis1 bf16",
    "shape2x9x5x7 axis1x2 f64 nhwc",
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, op: str) -> None:
    problem = parse(f"reduce {op} {words}")
    inputs = None
    if op.startswith("mul"):  # the product of many normal numbers is 0
        rng = np.random.default_rng(0)
        shape = problem.inputs[0].descriptor.shape
        inputs = [rng.uniform(0.99, 1.01, shape) * rng.choice([-1.0, 1.0], shape)]
    assert "sweeps" in check(problem, inputs=inputs)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("words", SHAPES)
@pytest.mark.parametrize("dtype", ["u32", "i64"])
def test_indices(words: str, op: str, dtype: str) -> None:
    problem = parse(f"reduce {op} {words} indices_{dtype}")
    x = np.round(np.random.default_rng(1).standard_normal(problem.inputs[0].descriptor.shape) * 2)  # ties
    assert "sweeps" in check(problem, inputs=[x])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("op", ["add", "max indices_i32", "norm2"])
@pytest.mark.parametrize("words", ["shape3x18x5 axis1", "shape3x5x18 axis1x2"])
def test_orders_in_memory(words: str, op: str, arrangement: str) -> None:
    check(arranged(parse(f"reduce {op} {words}"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("op", ["add", "min indices_u32", "mul_no_zeros", "amax"])
@pytest.mark.parametrize("words", ["shape3x37 axis1", "shape2x7x5x5 axis1"])
def test_narrower_instruction_sets(words: str, op: str, cpu: str) -> None:
    check(parse(f"reduce {op} {words}"), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    assert unreached([parse("reduce add shape3x4 axis1")]) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(reductions())
def test_any_reduction(problem: Problem) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))
    assert parse(str(problem)) == problem


ROWS = np.array(
    [[1, np.nan, 3, -5], [np.nan] * 4, [0, 0, -0.0, 2], [-np.inf] * 4, [np.inf, 1, 2, 3]], np.float32
)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", OPS)
def test_special_numbers(op: str, axis: int) -> None:
    """NaN, infinities and zeros, with vectors along the row and across."""
    x = np.concatenate([ROWS] * 7)
    if axis == 0:
        x = np.ascontiguousarray(x.T)
    for nan in ("", " ignore_nan"):
        problem = parse(f"reduce {op} shape{x.shape[0]}x{x.shape[1]} axis{axis}{nan}")
        for name, ours in results_of(problem, x).items():
            np.testing.assert_allclose(ours, problem.reference(x), rtol=1e-6, err_msg=f"{name}{nan}")


def test_the_first_nan_is_found() -> None:
    values, at = jd.reduce(ROWS, "max", 1, indices=True)
    np.testing.assert_array_equal(values, [np.nan, np.nan, 2, -np.inf, np.inf])
    np.testing.assert_array_equal(at, [1, 0, 3, 0, 0])
    values, at = jd.reduce(ROWS, "min", 1, indices="u32", propagate_nan=False)
    np.testing.assert_array_equal(values, [-5, np.inf, 0, -np.inf, 1])
    np.testing.assert_array_equal(at, [3, 0, 0, 0, 1])
    assert at.dtype == np.uint32


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [1, (0, 2), -1, (0, 1, 2, 3)])
def test_against_torch(axes: Any, keepdims: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((3, 4, 5, 6)).astype(np.float32))
    expected: dict[str, Any] = {
        "add": x.sum(axes, keepdim=keepdims),
        "avg": x.mean(axes, keepdim=keepdims),
        "max": x.amax(axes, keepdim=keepdims),
        "min": x.amin(axes, keepdim=keepdims),
        "amax": x.abs().amax(axes, keepdim=keepdims),
        "norm1": x.abs().sum(axes, keepdim=keepdims),
        "norm2": torch.linalg.vector_norm(x, 2, axes, keepdim=keepdims),
    }
    for op, wanted in expected.items():
        for order in (x, x.contiguous(memory_format=torch.channels_last)):
            ours = jd.reduce(order, op, axes, keepdims)
            assert isinstance(ours, torch.Tensor)
            torch.testing.assert_close(ours, wanted.reshape(ours.shape), rtol=1e-5, atol=1e-5)
            assert wanted.ndim == 0 or ours.shape == wanted.shape


def test_results_keep_the_order_in_memory() -> None:
    x = np.zeros((2, 5, 4, 3), np.float32).transpose(0, 3, 1, 2)  # channels last
    assert jd.reduce(x, axes=2).strides == np.zeros((2, 4, 3), np.float32).transpose(0, 2, 1).strides
    assert jd.reduce(x, axes=0, keepdims=True).strides[1] == 4


def test_scaling_and_out() -> None:
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    out, at = np.ones(3), np.zeros(3, np.int32)
    result = jd.reduce(x, "max", 1, indices="i32", alpha=2.0, beta=10.0, out=(out, at))
    assert result[0] is out
    assert result[1] is at
    np.testing.assert_array_equal(out, [16, 24, 32])
    np.testing.assert_array_equal(at, [3, 3, 3])


def test_sums_of_halves_are_exact_enough() -> None:
    """2048 + 1 is 2048 in float16: the sum is not kept there."""
    x = np.ones((4096,), np.float16)
    assert jd.reduce(x)[0] == 4096


def test_empty() -> None:
    x = np.zeros((3, 0), np.float32)
    np.testing.assert_array_equal(jd.reduce(x, "add", 1), np.zeros(3))
    np.testing.assert_array_equal(jd.reduce(x, "mul", 1), np.ones(3))
    assert jd.reduce(x, "max", 0).shape == (0,)
    with pytest.raises(InvalidShape, match="at least one element"):
        jd.reduce(x, "max", 1)


def test_refused_in_words() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(InvalidArgument, match="'mean'"):
        jd.reduce(x, "mean")
    with pytest.raises(InvalidArgument, match="axis 2"):
        jd.reduce(x, axes=2)
    with pytest.raises(InvalidArgument, match="add has no indices"):
        jd.reduce(x, "add", indices=True)
    with pytest.raises(InvalidArgument, match="'f32'"):
        jd.reduce(x, "max", indices="f32")
    with pytest.raises(InvalidShape, match=r"\(4,\)"):
        jd.reduce(x, axes=1, out=np.zeros(4, np.float32))
    with pytest.raises(InvalidType, match="indices is f32"):
        jd.reduce(x, "max", 1, indices=True, out=(np.zeros(3, np.float32), np.zeros(3, np.float32)))
