"""Adaptive pooling, average and maximum, forward and backward: PyTorch's bins."""

from __future__ import annotations

import numpy as np
import pytest

import jitdnn as jd
from conformance import INSTRUCTION_SETS, arranged, check
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import Pooling, parse

KINDS = ("pool_fwd max", "pool_fwd avg", "pool_fwd max indices64", "pool_bwd max", "pool_bwd avg")
SHAPES = [
    "n2 c3 h13 w13 adaptive6",
    "n1 c19 h13 w10 adaptive6x5 nhwc",
    "n2 c3 h12 w40 adaptive4x8",  # bins of one size
    "n1 c2 h3 w5 adaptive7x9",  # more bins than elements
    "n1 c33 h3 w5 adaptive7x9 nhwc",
    "n1 c2 d5 h6 w7 adaptive2x6x3",
    "n1 c3 w50 adaptive7",
    "n2 c3 h13 w14 adaptive1x14",
    "n0 c3 h13 w14 adaptive2",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, kind: str) -> None:
    problem = parse(f"{kind} {words}")
    assert parse(problem.text) == problem
    check(problem)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_other_types(layout: str, kind: str, dtype: str) -> None:
    check(parse(f"{kind} n1 c9 h13 w10 adaptive6x5 {dtype} {layout}"))


@pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned"])
@pytest.mark.parametrize("kind", KINDS)
def test_orders_in_memory(kind: str, arrangement: str) -> None:
    check(arranged(parse(f"{kind} n2 c5 h9 w8 adaptive4x3"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check(parse(f"{kind} n1 c9 h9 w8 adaptive4x3 nhwc"), cpu=cpu)
    check(parse(f"{kind} n1 c2 h9 w8 adaptive4x3"), cpu=cpu)


@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize("windows", [(6, 5), (1, 1), (13, 17), (15, 20), 4])
def test_as_pytorch(windows: int | tuple[int, int], layout: str | None) -> None:
    torch = pytest.importorskip("torch")
    functional, random = torch.nn.functional, np.random.default_rng(0)
    x = random.standard_normal((2, 5, 13, 17)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    order, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout else ((0, 1, 2, 3),) * 2
    ours = np.ascontiguousarray(x.transpose(order))

    average = functional.adaptive_avg_pool2d(leaf, windows)
    y = jd.adaptive_avg_pool(ours, windows, layout=layout)
    np.testing.assert_allclose(y.transpose(back), average.detach(), rtol=1e-5, atol=1e-6)
    dy = random.standard_normal(average.shape).astype(np.float32)
    (gradient,) = torch.autograd.grad(average, leaf, torch.tensor(dy))
    given = np.ascontiguousarray(dy.transpose(order))
    dx = jd.adaptive_avg_pool_backward(given, ours.shape, layout=layout)
    np.testing.assert_allclose(dx.transpose(back), gradient, rtol=1e-5, atol=1e-6)

    maximum, places = functional.adaptive_max_pool2d(leaf, windows, return_indices=True)
    y, indices = jd.adaptive_max_pool(ours, windows, layout=layout, return_indices=True)
    np.testing.assert_array_equal(y.transpose(back), maximum.detach())
    np.testing.assert_array_equal(indices.transpose(back), places)
    np.testing.assert_array_equal(jd.adaptive_max_pool(ours, windows, layout=layout), y)
    (gradient,) = torch.autograd.grad(maximum, leaf, torch.tensor(dy))
    dx = jd.adaptive_max_pool_backward(given, ours, y, layout=layout)
    np.testing.assert_allclose(dx.transpose(back), gradient, rtol=1e-6, atol=1e-6)


def test_bins_of_one_size_are_ordinary_windows() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 12, 20)).astype(np.float32)
    np.testing.assert_array_equal(jd.adaptive_avg_pool(x, (4, 5)), jd.avg_pool(x, (3, 4)))
    np.testing.assert_array_equal(jd.adaptive_max_pool(x, 1), jd.global_max_pool(x))


def test_what_cannot_be() -> None:
    x = np.zeros((1, 2, 5, 5), np.float32)
    with pytest.raises(InvalidArgument, match="windows is 0: it must be at least 1"):
        jd.adaptive_avg_pool(x, 0)
    with pytest.raises(InvalidArgument, match="3 numbers for 2 spatial axes"):
        jd.adaptive_avg_pool(x, (1, 2, 3))
    with pytest.raises(InvalidShape, match="needs the same N and C"):
        jd.adaptive_avg_pool_backward(np.zeros((1, 3, 2, 2), np.float32), (1, 2, 5, 5))
    packed = parse("pool_fwd avg n1 c1 h4 w4 adaptive2")
    assert isinstance(packed, Pooling)
    with pytest.raises(InvalidArgument, match="adaptive pooling has none"):
        Pooling("fwd", "avg", packed.x, packed.y, (2, 2), (2, 2), ((1, 1), (0, 0)), rounding="adaptive")


def test_more_windows_than_memory_holds_are_refused_before_they_are_counted() -> None:
    with pytest.raises(jd.InvalidShape, match="1000000000 windows over 8 elements"):
        jd.adaptive_max_pool(np.ones((1, 1, 8), np.uint8), 10**9)
