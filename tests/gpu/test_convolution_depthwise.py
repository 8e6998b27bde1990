"""Depthwise convolutions on CUDA: every kind of plan, with the plan prescribed."""

from __future__ import annotations

import random
from typing import Any

import pytest

import cases
import harness
from convolution_cases import convolution, fused
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.depthwise import banded_cost, geometry, sliding_cost
from jitdnn.kernels.cuda.convolution.depthwise.algorithm import DepthwiseBanded, DepthwiseSliding
from jitdnn.kernels.cuda.convolution.depthwise.sliding_code import launch
from jitdnn.problems import Convolution

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
SLIDING = (
    "n2 c8 h9 w8 k8 r3 s3 pad1 g8 bf16 nhwc",
    "n3 c5 h9 w11 k5 r3 s3 pad1 g5 f32 nhwc",
    "n1 c8 h13 w11 k8 r5 s3 pad2x1 stride2 g8 f16 nhwc",
    "n2 c4 h13 w11 k4 r7 s7 pad3 g4 bf16 nhwc",
    "n2 c4 h13 w12 k4 r3 s2 pad0x3 dil3x2 stride2x3 g4 bf16 nhwc",
    "n1 c4 h14 w12 k4 r3 s2 pad1:0x2:5 stride2 g4 flip f32 nhwc",
    "n2 c3 h14 w12 k3 r3 s3 pad4 g3 f16",
    "n2 c3 h12 w16 k3 r3 s3 pad1 g3 bf16",
    "n2 c3 h12 w24 k3 r5 s5 pad2 stride2 g3 f32",
    "n1 c4 d5 h6 w7 k4 t3 r3 s3 pad1 stride2x1x2 g4 bf16 nhwc",
    "n1 c8 w40 k8 s4 pad3:0 g8 bf16 nhwc",
    "n1 c3 w40 k3 s2 pad0 stride5 g3 bf16 nhwc",
    "n2 c4 h8 w8 k4 r1 s1 stride3 g4 f32 nhwc",
    "n2 c4 h5 w5 k4 r3 s3 pad1 g4 f32 x=s500,1,40,8 y=s600,1,48,8 w=s100,1,-7,2",
)
BANDED = (
    "n2 c16 h20 w19 k16 r7 s7 pad3 g16 bf16 nhwc",
    "n5 c24 h7 w7 k24 r7 s7 pad3 g24 f16 nhwc",
    "n1 c5 h13 w21 k5 r5 s5 pad2 g5 bf16 nhwc",
    "n3 c8 h7 w7 k8 r13 s13 pad6 g8 bf16 nhwc",
    "n1 c8 h18 w28 k8 r29 s29 pad14 g8 bf16 nhwc",
    "n2 c8 h20 w11 k8 r5 s5 pad4:0x1:6 g8 flip bf16 nhwc",
    "n2 c8 h20 w31 k8 r3 s5 pad2x6 dil1x3 g8 bf16 nhwc",
    "n1 c8 w300 k8 s31 pad15 g8 bf16 nhwc",
    "n1 c8 w150 k8 s4 pad3:0 g8 bf16 nhwc",
    "n2 c8 h40 w3 k8 r31 s3 pad15x1 g8 bf16 nhwc",
    "n1 c16 h8 w8 k16 r5 s5 pad2 g16 bf16 x=s2000,1,200,20 y=s2100,1,200,24",
)


class Prescribed(DepthwiseSliding):
    """The algorithm with its plan made by the test."""

    def __init__(self, plan: Any) -> None:
        super().__init__()
        self.prescribed = plan
        self.name = f"prescribed {plan}"  # type: ignore[misc]

    def sizes(self, problem: Convolution, device: Any) -> Any:
        return self.prescribed


def check_plans(problem: Convolution, device: Any, plans: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two of the plans, of aligned tensors and of such as begin anywhere."""
    chosen = random.Random(str(problem)).sample(plans, min(2, len(plans)))
    for guard, plan in zip((1032, 1031), chosen, strict=False):
        monkeypatch.setattr(cases, "GUARD", guard)
        harness.run_algorithm(Prescribed(plan), cases.make_case(problem), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SLIDING)
def test_sliding(words: str, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = convolution(words, direction)
    window = geometry.lower(problem)
    plans: list[Any] = list(
        sliding_cost.wgrad_candidates(window, cuda_device)
        if direction == "bwd_filter"
        else sliding_cost.candidates(window, cuda_device)
    )
    check_plans(problem, cuda_device, plans, monkeypatch)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", BANDED)
def test_banded(words: str, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = convolution(words, direction)
    window = geometry.lower(problem)
    plans: list[Any] = list(
        banded_cost.wgrad_candidates(window, cuda_device)
        if direction == "bwd_filter"
        else banded_cost.candidates(window, cuda_device)
    )
    check_plans(problem, cuda_device, plans, monkeypatch)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words", [*SLIDING, "n32 c96 h56 w56 k96 r3 s3 pad1 g96 bf16 nhwc", "n8 c64 h28 w28 k64 r7 s7 pad3 g64"]
)
def test_nothing_faster_is_left_out(words: str, direction: str, cuda_device: Any) -> None:
    """What is not estimated, since it cannot be the fastest, is not."""
    problem = convolution(words, direction)
    window = geometry.lower(problem)
    is_wgrad = direction == "bwd_filter"
    for algorithm, cost in ((DepthwiseSliding(), sliding_cost), (DepthwiseBanded(), banded_cost)):
        if algorithm.refuse(problem, cuda_device) is not None:
            continue
        plans: list[Any] = list((cost.wgrad_candidates if is_wgrad else cost.candidates)(window, cuda_device))
        fastest = min(plans, key=lambda plan: cost.seconds(plan, cuda_device))
        assert algorithm.sizes(problem, cuda_device) == fastest


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_table_has_them(direction: str, cuda_device: Any) -> None:
    problem = convolution("n2 c16 h10 w12 k16 r5 s5 pad2 g16 bf16 nhwc", direction)
    names = harness.check(problem, cuda_device, only=["depthwise_sliding", "depthwise_banded"])
    assert names >= {"depthwise_sliding"}


@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c16 h10 w12 k16 r5 s5 pad2 g16 bf16 nhwc",
        "conv_bwd_data n1 c8 h9 w19 k8 r3 s3 pad1 dil2 g8 f16 nhwc",
        "conv_bwd_data n1 c8 h9 w19 k8 r3 s3 pad1 stride2 g8 f32 nhwc",
        "conv_fwd n1 c8 w150 k8 s31 pad15 g8 bf16 nhwc",
        "conv_fwd n1 c4 d4 h5 w6 k4 t3 r3 s3 pad1 g4 f32",
    ],
)
def test_epilogues(words: str, expression: str, cuda_device: Any) -> None:
    problem = convolution(words)
    case = cases.make_case(problem, fused(problem, expression))
    for algorithm in (DepthwiseSliding(), DepthwiseBanded()):
        if algorithm.refuse(problem, cuda_device, case.epilogue) is None:
            harness.run_algorithm(algorithm, case, cuda_device)


def test_a_multiplier_forward(cuda_device: Any) -> None:
    for direction in ("fwd", "bwd_filter"):
        problem = convolution("n2 c3 h8 w8 k12 r3 s3 pad1 g3 f32 nhwc", direction)
        assert "depthwise_sliding" in harness.check(problem, cuda_device, only=["depthwise_sliding"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_fwd n1 c4 h5 w5 k4 r3 s3", "one channel"),
        ("conv_fwd n1 c4 h5 w5 k4 r3 s3 g4 f64", "f32"),
        ("conv_fwd n0 c4 h5 w5 k4 r3 s3 g4", "empty"),
        ("conv_bwd_data n1 c4 h9 w9 k4 r3 s3 stride2 dil2 g4", "share a factor"),
        ("conv_bwd_data n1 c4 h9 w9 k8 r3 s3 g4", "one result"),
        ("conv_fwd n1 c4 h40 w40 k4 r21 s21 g4", "registers"),
    ],
)
def test_what_sliding_refuses(words: str, reason: str, cuda_device: Any) -> None:
    assert reason in (DepthwiseSliding().refuse(convolution(words), cuda_device) or "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 g4 f32 nhwc", "half precision"),
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 g4 bf16", "nhwc"),
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 stride2 g4 bf16 nhwc", "stride"),
        ("conv_fwd n1 c4 d5 h9 w9 k4 t3 r3 s3 g4 bf16 nhwc", "depth"),
        ("conv_fwd n1 c4 w900 k4 s400 g4 bf16 nhwc", "127"),
    ],
)
def test_what_banded_refuses(words: str, reason: str, cuda_device: Any) -> None:
    assert reason in (DepthwiseBanded().refuse(convolution(words), cuda_device) or "")


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c144 h56 w56 k144 r3 s3 pad1 g144 bf16 nhwc",
        "conv_bwd_data n64 c144 h56 w56 k144 r3 s3 stride2 pad1 g144 bf16 nhwc",
        "conv_bwd_filter n64 c96 h56 w56 k96 r7 s7 pad3 g96 bf16 nhwc",
        "conv_fwd n8 c54 d16 h56 w56 k54 t3 r3 s3 pad1 g54 bf16 nhwc",
        "conv_fwd n64 c96 h56 w56 k96 r7 s7 pad3 g96 bf16 nhwc",
        "conv_fwd n32 c128 h56 w56 k128 r31 s31 pad15 g128 bf16 nhwc",
        "conv_fwd n16 c768 w1000 k768 s31 pad15 g768 bf16 nhwc",
    ],
)
def test_layers_of_networks_compile(words: str, architecture: Any) -> None:
    problem = convolution(words)
    for algorithm in (DepthwiseSliding(), DepthwiseBanded()):
        if algorithm.refuse(problem, architecture) is None:
            algorithm.build(problem, architecture)


@pytest.mark.parametrize("dtype", ["f32", "bf16 nhwc"])
def test_directions_share_code(dtype: str) -> None:
    """Backward to the data of stride 1 is forward with mirrored taps, which are a number of the launch."""
    device, texts, mirrored = cuda.offline("sm_90a"), set(), set()
    for direction in ("fwd", "bwd_data"):
        problem = convolution(f"n32 c96 h28 w28 k96 r3 s3 pad1 g96 {dtype}", direction)
        source, _, (is_mirrored, *_) = launch(DepthwiseSliding().sizes(problem, device))
        texts.add(source)
        mirrored.add(is_mirrored)
    assert len(texts) == 1
    assert mirrored == {0, 1}
