"""The float64 references against PyTorch, against their definitions (adjoints, differences) and by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import (
    Activation,
    AddTensor,
    BiasGradient,
    Convolution,
    MatMul,
    Pooling,
    Problem,
    Softmax,
    parse,
)
from jitdnn.problems.activation import FUNCTIONS
from jitdnn.problems.pooling import output_shape
from jitdnn.tensor import TensorDescriptor
from strategies import convolutions, poolings

torch = pytest.importorskip("torch")

Reals = np.ndarray[Any, np.dtype[np.float64]]
SWEEP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def random_inputs(problem: Problem, seed: int = 0) -> list[Reals]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(operand.descriptor.shape) for operand in problem.inputs]


def tensors(*arrays: Reals) -> list[Any]:
    return [torch.tensor(array, requires_grad=True) for array in arrays]


def close(ours: Reals, theirs: Any) -> None:
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def dot(a: Reals, b: Reals) -> float:
    return float(np.sum(a * b))


# PyTorch's forward of a convolution or a pooling problem


def torch_padding(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [number for pair in reversed(pairs) for number in pair]


def torch_convolution(problem: Convolution, x: Any, w: Any) -> Any:
    call = (torch.conv1d, torch.conv2d, torch.conv3d)[len(problem.spatial) - 1]
    padded = torch.nn.functional.pad(x, torch_padding(problem.padding))
    if problem.mode == "convolution":
        w = w.flip(*range(2, w.ndim))
    return call(padded, w, stride=problem.stride, dilation=problem.dilation, groups=problem.groups)


CONVOLUTIONS = [
    "n2 c3 h7 w6 k4 r3 s2",
    "n1 c1 h1 w1 k1 r1 s1",
    "n2 c3 h9 w8 k4 r3 s3 stride2x1 pad1",
    "n2 c3 h9 w8 k4 r3 s2 stride3 pad0:2x1:0 dil2x3",
    "n3 c4 h5 w5 k6 r3 s3 pad1 g2",
    "n2 c5 h7 w7 k10 r3 s3 pad1 g5",
    "n2 c3 h2 w2 k2 r5 s4 pad2x2:1",
    "n2 c3 h5 w5 k2 r3 s3 pad1 flip",
    "n1 c2 h6 w6 k2 r2 s3 stride2 pad1:0x0:2 dil2x1 g2 flip",
    "n2 c3 w17 k5 s4 stride3 pad2:0 dil2",
    "n2 c4 w9 k4 s3 pad1 g4 flip",
    "n2 c2 d4 h5 w6 k3 t2 r3 s1 stride1x2x3 pad1x0x0:1",
    "n1 c4 d5 h4 w4 k2 t2 r2 s2 dil2x1x2 g2 pad1",
    "n2 c3 h10 w10 k2 r3 s3 stride4 pad0",
    "n0 c3 h5 w5 k2 r3 s3 pad1",
]


@pytest.mark.parametrize("words", CONVOLUTIONS)
def test_convolution_is_torchs(words: str) -> None:
    forward = parse(f"conv_fwd {words} f64")
    assert isinstance(forward, Convolution)
    x, w = random_inputs(forward)
    tx, tw = tensors(x, w)
    ty = torch_convolution(forward, tx, tw)
    close(forward.reference(x, w), ty)
    dy = np.random.default_rng(1).standard_normal(forward.y.shape)
    dx, dw = torch.autograd.grad(ty, (tx, tw), torch.tensor(dy))
    close(parse(f"conv_bwd_data {words} f64").reference(dy, w), dx)
    close(parse(f"conv_bwd_filter {words} f64").reference(x, dy), dw)


@SWEEP
@given(convolutions(directions=("fwd",), channels=(1, 2, 3)))
def test_any_convolution_is_torchs(problem: Convolution) -> None:
    x, w = random_inputs(problem)
    close(problem.reference(x, w), torch_convolution(problem, *tensors(x, w)))


@SWEEP
@given(convolutions(directions=("fwd",), channels=(1, 2, 3)))
def test_gradients_of_a_convolution_are_its_adjoints(problem: Convolution) -> None:
    x, w = random_inputs(problem)
    y = problem.reference(x, w)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    packed = (problem.x.shape, problem.w.shape, problem.stride, problem.padding, problem.dilation)
    dx = Convolution.make("bwd_data", *packed, problem.groups, problem.mode).reference(dy, w)
    dw = Convolution.make("bwd_filter", *packed, problem.groups, problem.mode).reference(x, dy)
    inner = dot(y, dy)
    scale = 1e-12 * (1 + float(np.linalg.norm(y) * np.linalg.norm(dy)))
    assert abs(dot(x, dx) - inner) <= scale
    assert abs(dot(w, dw) - inner) <= scale


def test_convolution_by_hand() -> None:
    forward = parse("conv_fwd n1 c1 w4 k1 s3 f64")
    x, w = np.array([[[1.0, 2, 3, 4]]]), np.array([[[1.0, 0, -2]]])
    # 1*1 - 2*3 and 2*1 - 2*4; flipped, -2*1 + 3 and -2*2 + 4
    assert forward.reference(x, w).ravel().tolist() == [-5, -6]
    assert parse("conv_fwd n1 c1 w4 k1 s3 f64 flip").reference(x, w).ravel().tolist() == [1, 0]
    assert parse("conv_fwd n1 c1 w4 k1 s3 pad1:0 f64").reference(x, w).ravel().tolist() == [-4, -5, -6]
    # dx[i] sums w[s] * dy[i - s]
    dx = parse("conv_bwd_data n1 c1 w4 k1 s3 f64").reference(np.array([[[1.0, 10]]]), w)
    assert dx.ravel().tolist() == [1, 10, -2, -20]
    dw = parse("conv_bwd_filter n1 c1 w4 k1 s3 f64").reference(x, np.array([[[1.0, 10]]]))
    assert dw.ravel().tolist() == [21, 32, 43]


def test_groups_and_dilation_by_hand() -> None:
    problem = parse("conv_fwd n1 c2 w5 k2 s2 dil3 stride1 g2 f64")
    x = np.array([[[1.0, 2, 3, 4, 5], [10, 20, 30, 40, 50]]])
    w = np.array([[[1.0, 1]], [[1, -1]]])
    assert problem.reference(x, w)[0].tolist() == [[5, 7], [-30, -30]]


@pytest.mark.parametrize(
    ("spatial", "taps", "stride", "padding", "dilation", "extra"),
    [
        ((4, 5), (3, 3), (1, 1), (0, 0), (1, 1), (0, 0)),
        ((4, 5), (3, 2), (2, 3), (1, 0), (1, 1), (1, 2)),
        ((4, 5), (3, 3), (2, 2), (1, 1), (2, 1), (1, 0)),
        ((7,), (4,), (3,), (2,), (1,), (2,)),
        ((2, 3, 4), (2, 1, 3), (2, 1, 3), (0, 0, 1), (1, 1, 1), (1, 0, 0)),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_is_torchs(
    spatial: tuple[int, ...], taps: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], extra: tuple[int, ...], groups: int,
) -> None:  # fmt: skip
    problem = Convolution.make_transposed(
        (2, 4, *spatial), (4, 3, *taps), stride, padding, dilation, extra, groups, dtype="f64"
    )
    dy, w = random_inputs(problem)
    call = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[len(spatial) - 1]
    theirs = call(
        *tensors(dy, w),
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=extra,
        groups=groups,
    )
    close(problem.reference(dy, w), theirs)


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 7), (2, 3, 4, 5), (1, 2, 3, 2, 2), (0, 3, 4, 4)])
def test_bias_gradient_is_torchs(shape: tuple[int, ...]) -> None:
    problem = BiasGradient.make(shape, dtype="f64")
    (dy,) = random_inputs(problem)
    (bias,) = tensors(np.zeros(shape[1]))
    y = torch.zeros(shape, dtype=torch.float64) + bias.reshape(-1, *[1] * (len(shape) - 2))
    (db,) = torch.autograd.grad(y, bias, torch.tensor(dy))
    close(problem.reference(dy), db)


# pooling


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


# softmax, activations, matrix products, sums


@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 7), (1,)), ((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (1, 2, 3)), ((5,), (0,)), ((2, 3), (0,)),
        ((2, 3, 4), (0, 2)), ((0, 3), (1,)), ((3, 1), (1,)),
    ],
)  # fmt: skip
def test_softmax_is_torchs(shape: tuple[int, ...], axis: tuple[int, ...], algorithm: str) -> None:
    forward = Softmax.make("fwd", shape, axis, algorithm, "f64")
    backward = Softmax.make("bwd", shape, axis, algorithm, "f64")
    (x,) = random_inputs(forward)
    (tx,) = tensors(x)
    total = torch.logsumexp(tx, axis, keepdim=True) if tx.numel() else tx.sum(axis, keepdim=True)
    ty = tx - total if algorithm == "log" else torch.exp(tx - total)
    y = forward.reference(x)
    close(y, ty)
    dy = np.random.default_rng(1).standard_normal(shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(dy))
    close(backward.reference(dy, y), dx)


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1000.0, 1000, -1000]])
    assert Softmax.make("fwd", (1, 3), dtype="f64").reference(x).tolist() == [[0.5, 0.5, 0]]
    log = Softmax.make("fwd", (1, 3), algorithm="log", dtype="f64").reference(x)
    np.testing.assert_allclose(log, [[-np.log(2), -np.log(2), -2000 - np.log(2)]], rtol=1e-15)


TORCH_ACTIVATIONS = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "selu": torch.selu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "mish": torch.nn.functional.mish,
    "hard_sigmoid": torch.nn.functional.hardsigmoid,
    "hard_swish": torch.nn.functional.hardswish,
    "identity": lambda x: x * 1.0,
    "clipped_relu": torch.nn.functional.relu6,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "swish": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_activations_are_torchs(function: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 481), [-700.0, 800.0, 1e-300, -1e-9]])
    (tx,) = tensors(x)
    ty = TORCH_ACTIVATIONS[function](tx)
    y = Activation.make("fwd", function, x.shape, dtype="f64").reference(x)
    # PyTorch loses the digits of lower tails, and takes softplus for x beyond 20
    # and for hard_sigmoid's gradient a sixth in single precision
    atol = {"softplus": 3e-9, "hard_sigmoid": 3e-8}.get(function, 1e-14)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-13, atol=atol)
    dy = np.random.default_rng(0).standard_normal(x.shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(dy))
    for saved, values in (("x", x), ("y", y)):
        if saved == "y" and FUNCTIONS[function].derivative_from_y is None:
            continue
        ours = Activation.make("bwd", function, x.shape, saved=saved, dtype="f64").reference(dy, values)
        np.testing.assert_allclose(ours, dx.numpy(), rtol=1e-9, atol=atol)


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_derivatives_of_activations_are_their_slopes(function: str) -> None:
    definition = FUNCTIONS[function]
    x = np.random.default_rng(0).uniform(-4, 4, 200)
    x = x[(np.abs(x) > 1e-3) & (np.abs(np.abs(x) - 3) > 1e-3)]  # away from the corners
    step = 1e-5
    slope = (definition.forward(x + step) - definition.forward(x - step)) / (2 * step)
    np.testing.assert_allclose(definition.derivative(x), slope, rtol=1e-6, atol=1e-9)
    if definition.derivative_from_y is not None:
        np.testing.assert_allclose(
            definition.derivative_from_y(definition.forward(x)),
            definition.derivative(x),
            rtol=1e-9,
            atol=1e-14,
        )


def test_activations_at_the_ends() -> None:
    x = np.array([-np.inf, -1e308, 0.0, 1e308, np.inf])
    assert FUNCTIONS["sigmoid"].forward(x).tolist() == [0, 0, 0.5, 1, 1]
    assert FUNCTIONS["relu"].forward(x).tolist() == [0, 0, 0, 1e308, np.inf]
    assert FUNCTIONS["tanh"].forward(x).tolist() == [-1, -1, 0, 1, 1]
    for function in FUNCTIONS.values():
        with np.errstate(all="ignore"):
            assert np.isnan(function.forward(np.array([np.nan]))).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((2, 0), (0, 4)),
     ((0, 2, 3), (0, 3, 4))],
)  # fmt: skip
def test_matmul_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    problem = MatMul.make(a, b, "f64")
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(a), rng.standard_normal(b)
    inputs = [
        np.broadcast_to(m, o.descriptor.shape) for m, o in zip((left, right), problem.inputs, strict=True)
    ]
    close(problem.reference(*inputs), left @ right)


def test_addition_broadcasts() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.array([10.0, 20, 30])
    problem = AddTensor.make((2, 3), (3,), "f64")
    expected = [[10, 21, 32], [13, 24, 35]]
    assert problem.reference(a, np.broadcast_to(b, (2, 3))).tolist() == expected
    copied = AddTensor.make((2, 3), dtype="f64").reference(a)
    assert copied.tolist() == a.tolist()
    assert not np.shares_memory(copied, a)


# gradients by differences: directions of each input of each differentiable forward problem

DIFFERENTIABLE = [
    ("conv_fwd n2 c4 h5 w4 k6 r3 s2 stride2 pad1:0 dil1x2 g2 f64", ["conv_bwd_data", "conv_bwd_filter"]),
    ("pool_fwd max n2 c3 h7 w6 window3 stride2 pad1 ceil f64", ["pool_bwd"]),
    ("pool_fwd avg exclude_pad n2 c3 h7 w6 window3 stride2 pad1 ceil f64", ["pool_bwd"]),
    ("softmax_fwd accurate shape2x5x3 axis1 f64", ["softmax_bwd"]),
    ("softmax_fwd log shape2x5x3 axis1x2 f64", ["softmax_bwd"]),
    ("activation_fwd tanh shape3x7 f64", ["activation_bwd"]),
    ("activation_fwd sigmoid shape3x7 f64", ["activation_bwd"]),
]


@pytest.mark.parametrize(("text", "kinds"), DIFFERENTIABLE)
def test_gradients_are_differences(text: str, kinds: list[str]) -> None:
    forward = parse(text)
    inputs = random_inputs(forward)
    rng = np.random.default_rng(1)
    dy = rng.standard_normal(forward.output.shape)
    for which, kind in enumerate(kinds):
        backward = parse(text.replace(text.split()[0], kind, 1))
        known = {"dy": dy, "y": forward.reference(*inputs)}
        known |= {operand.name: array for operand, array in zip(forward.inputs, inputs, strict=True)}
        gradient = backward.reference(*(known[operand.name] for operand in backward.inputs))
        direction = rng.standard_normal(inputs[which].shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[which] = inputs[which] + sign * step * direction
            ends.append(dot(forward.reference(*moved), dy))
        assert dot(gradient, direction) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_references_refuse_other_shapes() -> None:
    problem = parse("conv_fwd n1 c2 w5 k3 s3 f64")
    with pytest.raises(InvalidArgument, match=r"takes 2 inputs \(x, w\), got 1"):
        problem.reference(np.zeros((1, 2, 5)))
    with pytest.raises(InvalidShape, match=r"w has shape \(3, 2, 4\), the problem says \(3, 2, 3\)"):
        problem.reference(np.zeros((1, 2, 5)), np.zeros((3, 2, 4)))


@pytest.mark.parametrize(
    "text",
    [
        "conv_fwd n1 c2 w5 k3 s3 f64",
        "conv_bwd_data n1 c2 w5 k3 s3 f64",
        "conv_bwd_bias n2 k3 q4",
        "matmul m2 k3 n4",
        "pool_fwd avg n1 c2 w6 window3",
        "pool_fwd max n1 c2 w6 window3",
        "softmax_fwd accurate shape2x3 axis1",
        "softmax_fwd log shape2x3 axis1",
        "softmax_bwd accurate shape2x3 axis1",
        "activation_fwd tanh shape5",
        "activation_bwd sigmoid shape5",
        "add shape2x3",
    ],
)
def test_infinities_take_part_without_a_warning(text: str) -> None:
    problem = parse(text)
    inputs = [np.zeros(operand.descriptor.shape) for operand in problem.inputs]
    for array in inputs:
        array.flat[0], array.flat[1] = np.inf, -np.inf
    problem.reference(*inputs)  # warnings are errors
    assert [array.flat[0] for array in inputs] == [np.inf] * len(inputs)
