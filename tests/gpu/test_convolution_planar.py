"""Depthwise and grouped convolutions of channels first, planes in shared memory: every kind of plan."""

from __future__ import annotations

import random
from typing import Any

import pytest

import cases
import harness
from convolution_cases import convolution, fused
from jitdnn.kernels.cuda.convolution.planar.algorithm import Planar
from jitdnn.kernels.cuda.convolution.planar.plan import Plan, candidates, seconds
from jitdnn.problems import Convolution

WORDS = (
    "n3 c5 h9 w11 k5 r3 s3 pad1 g5 f32",
    "n2 c4 h14 w14 k4 r3 s3 pad1 g4 bf16",
    "n2 c3 h12 w24 k3 r5 s5 pad2 stride2 g3 f32",
    "n1 c4 h13 w17 k4 r3 s2 pad1:0x2:5 stride2x1 g4 flip f16",
    "n2 c7 h7 w7 k7 r7 s7 pad3 g7 bf16",
    "n2 c3 w40 k3 s4 pad3:0 g3 f32",
    "n1 c3 h8 w9 k3 r2 s3 stride3 pad0 g3 f16 w=s20,1,-3,1 y=nhwc",
    "n1 c2 h1 w5 k2 r3 s3 pad3 g2 f32",
    "n2 c12 h7 w9 k12 r3 s3 pad1 g3 f32",
    "n3 c10 h6 w5 k14 r3 s2 pad1 g2 bf16",
    "n1 c6 h10 w8 k9 r3 s3 stride2 pad1 g3 flip f32",
    "n2 c3 h9 w8 k5 r3 s3 pad1 f16",
    "n2 c4 h6 w6 k8 r1 s1 g4 f32",  # several results of a channel
)


class Prescribed(Planar):
    """The algorithm with its plan made by the test."""

    def __init__(self, plan: Plan) -> None:
        self.prescribed = plan

    def sizes(self, problem: Convolution, device: Any) -> Plan:
        return self.prescribed


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", [*WORDS, "n24 c96 h56 w56 k96 r3 s3 pad1 g96 f32"])
def test_nothing_faster_is_left_out(words: str, direction: str, cuda_device: Any) -> None:
    """What is not estimated, since it cannot be the fastest, is not."""
    problem = convolution(words, direction)
    if Planar().refuse(problem, cuda_device) is None:
        fastest = min(candidates(problem, cuda_device), key=lambda plan: seconds(plan, cuda_device))
        chosen = Planar().sizes(problem, cuda_device)
        assert chosen is not None
        assert seconds(chosen, cuda_device) == seconds(fastest, cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", WORDS)
def test_plans(words: str, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the plans, of aligned tensors and of such as begin anywhere."""
    problem = convolution(words, direction)
    reason = Planar().refuse(problem, cuda_device)
    if direction == "bwd_data" and (max(problem.stride) > 1 or " y=nhwc" in words):
        assert reason is not None
        return
    assert reason is None
    plans = list(candidates(problem, cuda_device))
    chosen = random.Random(str(problem)).sample(plans, min(2, len(plans)))
    for guard, plan in zip((1032, 1031), chosen, strict=False):
        monkeypatch.setattr(cases, "GUARD", guard)
        harness.run_algorithm(Prescribed(plan), cases.make_case(problem), cuda_device)
    harness.run_algorithm(Planar(), cases.make_case(problem), cuda_device)


@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_epilogues(direction: str, expression: str, cuda_device: Any) -> None:
    problem = convolution("n2 c6 h9 w10 k6 r3 s3 pad1 g3 bf16", direction)
    case = cases.make_case(problem, fused(problem, expression))
    assert Planar().refuse(problem, cuda_device, case.epilogue) is None
    harness.run_algorithm(Planar(), case, cuda_device)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_bwd_data n1 c4 h9 w9 k4 r3 s3 stride2 g4", "stride 1"),
        ("conv_bwd_filter n1 c4 h9 w9 k4 r3 s3 g4", "filter's gradient"),
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 dil2 g4", "dilation"),
        ("conv_fwd n0 c4 h9 w9 k4 r3 s3 g4", "empty"),
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 g4 f64", "f32"),
        ("conv_fwd n1 c4 h9 w9 k4 r3 s3 g4 nhwc", "one behind the other"),
        ("conv_fwd n1 c130 h9 w9 k4 r3 s3 g2", "65 channels"),
        ("conv_fwd n1 c4 d5 h9 w9 k4 t3 r3 s3 g4", "two axes"),
        ("conv_fwd n1 c4 h300 w300 k4 r3 s3 g4", "shared memory"),
        ("conv_fwd n1 c4 h40 w40 k4 r31 s31 g4", "registers"),
    ],
)
def test_refusals(words: str, reason: str, cuda_device: Any) -> None:
    assert reason in (Planar().refuse(convolution(words), cuda_device) or "")


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c576 h14 w14 k576 r3 s3 pad1 g576 f32",
        "conv_bwd_data n64 c96 h56 w56 k96 r7 s7 pad3 g96 bf16",
        "conv_fwd n64 c256 h28 w28 k256 r3 s3 pad1 g32 f32",
    ],
)
def test_layers_of_networks_compile(words: str, architecture: Any) -> None:
    Planar().build(convolution(words), architecture)
