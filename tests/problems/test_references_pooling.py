"""The float64 references of pooling: PyTorch's results, the definition, adjoints, Caffe's rule, and by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jitdnn.problems import Pooling, parse
from jitdnn.problems.pooling import output_shape
from jitdnn.tensor import TensorDescriptor
from strategies import poolings
from torch_references import SWEEP, Reals, close, dot, random_inputs, tensors

torch = pytest.importorskip("torch")


def torch_pooling(problem: Pooling, x: Any) -> Any:
    """PyTorch's, which takes only symmetric padding of at most half the window."""
    rank = len(problem.spatial)
    before = tuple(pair[0] for pair in problem.padding)
    is_ceil = problem.rounding != "floor"
    if problem.mode == "max":
        call: Callable[..., Any] = getattr(torch.nn.functional, f"max_pool{rank}d")
        return call(x, problem.window, problem.stride, before, 1, is_ceil)
    call = getattr(torch.nn.functional, f"avg_pool{rank}d")
    return call(x, problem.window, problem.stride, before, is_ceil, problem.count_include_pad)


POOLINGS = [
    ("n2 c3 h6 w6", "window2"),
    ("n2 c3 h7 w9", "window3x2 stride2x1"),
    ("n1 c2 h8 w7", "window3 stride2 pad1"),
    ("n1 c2 h8 w7", "window4x2 stride3x2 pad2x1"),
    ("n1 c2 h5 w5", "window5"),
    ("n1 c2 h7 w7", "window1 stride3"),
    ("n0 c2 h7 w7", "window3 stride2"),
    ("n2 c3 w13", "window4 stride3 pad1"),
    ("n2 c2 d5 h6 w7", "window2x3x2 stride2x2x1 pad1x1x0"),
]


@pytest.mark.parametrize("mode", ["max", "avg", "avg exclude_pad"])
@pytest.mark.parametrize("rounding", ["", "ceil", "caffe"])
@pytest.mark.parametrize(("shape", "attributes"), POOLINGS)
def test_pooling_is_torchs(shape: str, attributes: str, rounding: str, mode: str) -> None:
    words = f"{mode} {shape} {attributes} {rounding} f64"
    forward = parse(f"pool_fwd {words}")
    assert isinstance(forward, Pooling)
    (x,) = random_inputs(forward)
    (tx,) = tensors(x)
    ty = torch_pooling(forward, tx)
    if rounding == "caffe" and ty.shape != forward.y.shape:
        assert max(forward.stride) > max(forward.window)  # the one case in which Caffe keeps another window
        return
    y = forward.reference(x)
    close(y, ty)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(dy))
    backward = parse(f"pool_bwd {words}")
    close(backward.reference(dy, x, y) if mode == "max" else backward.reference(dy), dx)


def naive_pooling(problem: Pooling, x: Reals) -> tuple[Reals, Reals]:
    """Element by element, as the definition of the problem reads; and the indices of the maxima."""
    y, indices = np.empty(problem.y.shape), np.full(problem.y.shape, -1.0)
    assert isinstance(problem.dilation, tuple)
    for index in np.ndindex(*problem.y.shape):
        inside, size = [], 1
        axes = zip(
            index[2:], problem.window, problem.stride, problem.dilation, problem.padding, problem.spatial,
            problem.output_spatial, strict=True,
        )  # fmt: skip
        for o, k, s, d, (before, after), i, out in axes:
            reach = range(o * s - before, o * s - before + k * d, d)
            if problem.rounding == "adaptive":
                reach = range(math.floor(o * i / out), math.ceil((o + 1) * i / out))
            inside.append([e for e in reach if 0 <= e < i])
            size *= sum(1 for e in reach if e < i + after)
        places = list(itertools.product(*inside))
        elements = [x[index[:2] + place] for place in places]
        if elements:
            indices[index] = np.ravel_multi_index(places[int(np.argmax(elements))], problem.spatial)
        if problem.mode == "max":
            y[index] = max(elements, default=-np.finfo(np.float32).max)
        elif not elements:
            y[index] = 0.0
        else:
            y[index] = sum(elements) / (size if problem.count_include_pad else len(elements))
    return y, indices


def plain_pooling(problem: Pooling, direction: str, indices: str | None = None) -> Pooling:
    """The same windows over packed f64 tensors."""
    x, y = (TensorDescriptor.packed(tensor.shape, "f64") for tensor in (problem.x, problem.y))
    return Pooling(
        direction, problem.mode, x, y, problem.window, problem.stride, problem.padding, problem.count_include_pad,
        problem.rounding, dilation=problem.dilation,
        indices=TensorDescriptor.packed(y.shape, indices) if indices else None,
    )  # fmt: skip


@SWEEP
@given(poolings())
def test_any_pooling_is_its_definition(problem: Pooling) -> None:
    forward = plain_pooling(problem, "fwd", "i64" if problem.mode == "max" else None)
    (x,) = random_inputs(forward)
    results = forward.reference(x)
    for ours, naive in zip(
        results if problem.mode == "max" else [results], naive_pooling(forward, x), strict=False
    ):
        close(ours, naive)


@SWEEP
@given(poolings())
def test_gradients_of_pooling_are_its_adjoints(problem: Pooling) -> None:
    forward, backward = plain_pooling(problem, "fwd"), plain_pooling(problem, "bwd")
    (x,) = random_inputs(forward)
    # away from a tie the maximum is linear: the empty windows' constant -FLT_MAX is no part of that
    y = np.where(forward.reference(x) == -np.finfo(np.float32).max, 0.0, forward.reference(x))
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx = backward.reference(dy, x, y) if problem.mode == "max" else backward.reference(dy)
    assert dot(x, dx) == pytest.approx(dot(y, dy), rel=1e-10, abs=1e-10)


# Caffe's outputs for an extent, a window and a stride without padding; thrice PyTorch's ceil has one less
@pytest.mark.parametrize(
    ("i", "k", "s", "caffe", "ceil"), [(5, 1, 3, 3, 2), (7, 2, 4, 3, 2), (6, 2, 3, 3, 2), (32, 3, 2, 16, 16)]
)
def test_caffes_rule_without_padding(i: int, k: int, s: int, caffe: int, ceil: int) -> None:
    assert output_shape((1, 1, i), k, s, rounding="caffe") == (1, 1, caffe)
    assert output_shape((1, 1, i), k, s, rounding="ceil") == (1, 1, ceil)


def test_caffes_rule_clips_every_axis_once_one_is_padded() -> None:
    assert output_shape((1, 1, 6, 6), (2, 2), 3, rounding="caffe") == (1, 1, 3, 3)
    # the padding of the other axis is enough to drop the empty windows of this one
    assert output_shape((1, 1, 6, 6), (2, 2), 3, (0, 1), rounding="caffe") == (1, 1, 2, 3)


# the pooling layers of GoogLeNet and of the CIFAR-10 nets, whose sizes depend on rounding up
@pytest.mark.parametrize(("i", "out"), [(112, 56), (56, 28), (28, 14), (14, 7), (32, 16), (16, 8), (8, 4)])
def test_known_nets_round_up(i: int, out: int) -> None:
    assert output_shape((1, 1, i, i), 3, 2, rounding="caffe") == (1, 1, out, out)
    assert output_shape((1, 1, i, i), 3, 2, rounding="ceil") == (1, 1, out, out)
    assert output_shape((1, 1, i, i), 3, 2) == (1, 1, out - 1, out - 1)


def test_empty_windows_of_caffe() -> None:
    x = np.arange(1.0, 7.0).reshape(1, 1, 6)
    maximum = parse("pool_fwd max n1 c1 w6 window2 stride3 caffe f64").reference(x)
    assert maximum.ravel().tolist() == [2, 5, -3.4028234663852886e38]
    assert parse("pool_fwd avg n1 c1 w6 window2 stride3 caffe f64").reference(x).ravel().tolist() == [
        1.5,
        4.5,
        0,
    ]
    dy = np.array([[[1.0, 10, 100]]])
    backward = parse("pool_bwd max n1 c1 w6 window2 stride3 caffe f64")
    assert backward.reference(dy, x, maximum).ravel().tolist() == [0, 1, 0, 0, 10, 0]
    average = parse("pool_bwd avg n1 c1 w6 window2 stride3 caffe f64")
    assert average.reference(dy).ravel().tolist() == [0.5, 0.5, 0, 5, 5, 0]


def test_averages_by_hand() -> None:
    x = np.array([[[1.0, 2, 3, 4]]])
    # windows (0 1 2), (2 3 4), and (4 0 -): the last overhangs the padded image by one
    words = "n1 c1 w4 window3 stride2 pad1 ceil f64"
    included = parse(f"pool_fwd avg {words}").reference(x).ravel()
    assert included.tolist() == pytest.approx([1.0, 3.0, 2.0])
    assert parse(f"pool_fwd avg exclude_pad {words}").reference(x).ravel().tolist() == [1.5, 3.0, 4.0]


def test_the_first_maximum_wins_and_nan_is_the_largest() -> None:
    forward, backward = parse("pool_fwd max n1 c1 w6 window3 f64"), parse("pool_bwd max n1 c1 w6 window3 f64")
    x = np.array([[[7.0, 7, 1, np.nan, 9, np.nan]]])
    y = forward.reference(x)
    np.testing.assert_array_equal(y, [[[7, np.nan]]])
    assert backward.reference(np.array([[[1.0, 10]]]), x, y).ravel().tolist() == [1, 0, 0, 10, 0, 0]
    low = np.full((1, 1, 6), -np.inf)
    np.testing.assert_array_equal(forward.reference(low), np.full((1, 1, 2), -np.inf))
    assert backward.reference(np.ones((1, 1, 2)), low, low[..., :2]).ravel().tolist() == [1, 0, 0, 1, 0, 0]
