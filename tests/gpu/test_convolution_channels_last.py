"""Algorithms of channels last between copies, for tensors of channels first."""

from __future__ import annotations

from typing import Any

import pytest

import cases
import harness
from convolution_cases import convolution, fused
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems import Convolution


def algorithm_of(problem: Convolution, name: str) -> Algorithm:
    return next(one for one in ALGORITHMS[Convolution, problem.direction] if one.name == name)


@pytest.mark.parametrize("expression", [None, "bias", "residual"])
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("conv_fwd n2 c32 h9 w7 k32 r3 s3 pad1 stride2 g8 bf16", "grouped_copied"),
        ("conv_bwd_data n1 c32 h6 w5 k32 r3 s3 pad1 g4 f16", "grouped_copied"),
        ("conv_fwd n2 c32 h6 w7 k32 r3 s3 pad1 g8 bf16 x=nhwc y=nchw", "grouped_copied"),
        ("conv_bwd_data n1 c16 h10 w12 k16 r5 s5 pad2 g16 bf16", "depthwise_banded_copied"),
    ],
)
def test_copies(words: str, name: str, expression: str | None, cuda_device: Any) -> None:
    problem = convolution(words)
    epilogue = fused(problem, expression) if expression else None
    algorithm = algorithm_of(problem, name)
    assert algorithm.refuse(problem, cuda_device, epilogue) is None
    harness.run_algorithm(algorithm, cases.make_case(problem, epilogue), cuda_device)


def test_first_layers_of_f32(cuda_device: Any) -> None:
    problem = convolution("conv_bwd_data n2 c3 h9 w8 k24 r3 s3 pad1 f32")
    harness.run_algorithm(
        algorithm_of(problem, "stem_3xf16_copied"), cases.make_case(problem, None), cuda_device
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_fwd n2 c32 h9 w7 k32 r3 s3 pad1 g8 bf16 nhwc", "neighbours already"),
        ("conv_bwd_filter n2 c32 h9 w7 k32 r3 s3 pad1 g8 bf16", ""),
        ("conv_fwd n2 c32 h9 w7 k32 r3 s3 pad1 g8 f32", "bf16"),
        ("conv_fwd n2 c32 h9 w7 k32 r3 s3 pad1 g8 i8", "reals"),
    ],
)
def test_refusals(words: str, reason: str, cuda_device: Any) -> None:
    problem = convolution(words)
    if problem.direction == "bwd_filter":
        assert not any(one.name == "grouped_copied" for one in ALGORITHMS[Convolution, "bwd_filter"])
        return
    refused = algorithm_of(problem, "grouped_copied").refuse(problem, cuda_device)
    assert refused is not None
    assert reason in refused
