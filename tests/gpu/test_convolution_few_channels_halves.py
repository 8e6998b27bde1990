"""First layers of f32 by products of halves: copies of three channels for one, and the stem on these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cases
from cases import make_case
from convolution_cases import convolution, fused
from harness import run, run_algorithm
from jitdnn.kernels.cuda.convolution.few_channels.halves import FewChannelsHalves

PROBLEMS = (
    "fwd n2 c3 h13 w17 k16 r3 s3 stride1 pad1 f32 nhwc",
    "fwd n2 c3 h20 w19 k24 r7 s7 stride2 pad3 f32 nchw",
    "fwd n1 c1 h9 w12 k8 r3 s3 stride1 pad1 f32 nhwc",
    "fwd n2 c4 h9 w9 k20 r4 s3 stride2x1 pad1:2x0:1 f32 nhwc",
    "fwd n1 c5 h8 w11 k9 r2 s2 stride1 pad0 flip f32 nchw",
    "fwd n1 c2 d5 h6 w7 k8 t3 r3 s3 stride1 pad1 f32 nhwc",
    "fwd n2 c3 w30 k8 s5 stride2 pad2 f32 nchw",
    "fwd n1 c3 h12 w9 k8 r3 s3 stride1 pad2 dil2x1 f32 nhwc",
    "bwd_data n2 c24 h9 w8 k3 r3 s3 stride1 pad1 f32 nhwc",  # the few channels are dy's
    "bwd_data n2 c3 h13 w17 k16 r3 s3 stride1 pad1 f32 nhwc",
    "bwd_data n2 c3 h20 w19 k24 r7 s7 stride2 pad3 f32 nhwc",
    "bwd_data n1 c8 h9 w12 k36 r3 s3 stride1 pad1 f32 nchw",  # channels of dy one by one, some of the last step
    "bwd_data n1 c2 d5 h6 w7 k8 t3 r3 s3 stride1 pad1 f32 nhwc",
    "bwd_data n2 c3 h8 w8 k40 r4 s4 stride2 pad1 f32 nhwc",
    "fwd n2 c24 h9 w8 k3 r3 s3 stride1 pad1 f32 nhwc",
    "bwd_filter n2 c3 h13 w17 k16 r3 s3 stride1 pad1 f32 nhwc",
    "bwd_filter n2 c3 h20 w19 k24 r7 s7 stride2 pad3 f32 nhwc",
    "bwd_filter n1 c8 h9 w12 k36 r3 s3 stride1 pad1 f32 nchw",
    "bwd_filter n1 c2 d5 h6 w7 k8 t3 r3 s3 stride1 pad1 f32 nhwc",
    "bwd_filter n2 c3 w30 k8 s5 stride2 pad2 f32 nchw",
    "bwd_filter n1 c5 h8 w11 k9 r2 s2 stride1 pad0 flip f32 nchw",
    "bwd_filter n2 c24 h9 w8 k3 r3 s3 stride1 pad1 f32 nhwc",  # the few channels are dy's
)


@pytest.mark.parametrize("guard", [None, 1024], ids=["anywhere", "aligned"])
@pytest.mark.parametrize("words", PROBLEMS)
def test_directions(words: str, guard: int | None, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if guard is not None:  # elements in front of a tensor, so that it begins at a multiple of 16 bytes
        monkeypatch.setattr(cases, "GUARD", guard)
    direction, _, rest = words.partition(" ")
    problem = convolution(rest, direction)
    assert FewChannelsHalves().refuse(problem, cuda_device) is None
    run_algorithm(FewChannelsHalves(), make_case(problem, None, 0, None), cuda_device)


@pytest.mark.parametrize("expression", ["activation", "bias", "residual"])
def test_epilogues(expression: str, cuda_device: Any) -> None:
    problem = convolution(PROBLEMS[0].removeprefix("fwd "), "fwd")
    run_algorithm(FewChannelsHalves(), make_case(problem, fused(problem, expression), 0, None), cuda_device)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_what_is_not_finite(direction: str, operand: int, value: float, cuda_device: Any) -> None:
    """Infinities and NaN give what they give in f32 where they are read, also beside what is far too small."""
    pad = (
        0 if direction == "fwd" else 2
    )  # no result reads zeros around the tensor, which infinity makes NaN of
    problem = convolution(f"n2 c3 h11 w9 k12 r3 s3 pad{pad} f32 nhwc", direction)
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.inputs]
    inputs[operand].reshape(-1)[5] = value
    inputs[1 - operand].reshape(-1)[:3] = 0.5, 2.0**-60, -(2.0**-60)  # without rest, and too small for halves
    algorithm = FewChannelsHalves()
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
    with np.errstate(invalid="ignore"):
        expected = problem.reference(*(one.astype(np.float64) for one in inputs))
    is_read = ~np.isfinite(expected)
    assert is_read.any()
    np.testing.assert_array_equal(actual[is_read], expected[is_read])
    if algorithm.spreads(problem, cuda_device) is None:
        np.testing.assert_allclose(actual[~is_read], expected[~is_read], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("exponents", [(0, 0), (-100, 60), (-126, 127), (-140, 100), (100, -60), (127, -120)])
def test_scales(exponents: tuple[int, int], direction: str, cuda_device: Any) -> None:
    """The largest numbers of both tensors may be any."""
    problem = convolution("n2 c3 h11 w9 k12 r3 s3 stride2 pad1 f32 nhwc", direction)
    rng = np.random.default_rng(7)
    inputs = [
        (rng.uniform(-1, 1, o.descriptor.shape) * 2.0**exponent).astype(np.float32)
        for o, exponent in zip(problem.inputs, exponents, strict=True)
    ]
    run_algorithm(FewChannelsHalves(), make_case(problem, None, 0, inputs), cuda_device, ((1.0, 0.0),))


def test_scales_that_change(cuda_device: Any) -> None:
    """What is staged later may be far larger, or smaller, than what was multiplied before: channels of dy."""
    problem = convolution("n2 c3 h11 w9 k80 r3 s3 pad1 f32 nhwc", "bwd_data")
    rng = np.random.default_rng(7)
    dy, w = (rng.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.inputs)
    for first, exponent in ((16, 30), (32, -40), (48, 60), (64, 50)):
        dy[:, first : first + 16] *= np.float32(2.0**exponent)
    dy[:, :16] = 0
    run_algorithm(FewChannelsHalves(), make_case(problem, None, 0, [dy, w]), cuda_device, ((1.0, 0.0),))


REFUSED = {
    "fwd n1 c6 h8 w8 k8 r3 s3 pad1 f32 nhwc": "up to 5",
    "fwd n1 c3 h8 w8 k8 r3 s3 pad1 bf16 nhwc": "f32 into halves",
    "fwd n1 c3 h8 w8 k8 r3 s3 pad2 dil2 f32 nhwc": "neighbours along w",
    "fwd n0 c3 h8 w8 k8 r3 s3 pad1 f32 nhwc": "empty",
    "bwd_data n1 c9 h8 w8 k24 r3 s3 pad1 f32 nhwc": "8 of gradients",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, cuda_device: Any) -> None:
    direction, _, rest = words.partition(" ")
    reason = FewChannelsHalves().refuse(convolution(rest, direction), cuda_device)
    assert reason is not None
    assert REFUSED[words] in reason
