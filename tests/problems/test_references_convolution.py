"""The float64 references of convolution: PyTorch's results, adjoints, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jitdnn.problems import BiasGradient, Convolution, parse
from strategies import convolutions
from torch_references import SWEEP, close, dot, random_inputs, tensors

torch = pytest.importorskip("torch")


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
