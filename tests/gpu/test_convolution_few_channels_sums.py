"""First layers with sums by channel of their results: strips, phases, channels and images that fill nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.few_channels.summed import FewChannelsSummed
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems import FusedConvolution, parse
from warpgroup_cases import aligned  # noqa: F401

SEPARATE = next(one for one in ALGORITHMS[FusedConvolution, "fwd"] if one.name == "separate_kernels")
LAYERS = (
    "n2 c1 d5 h9 w17 k32 t3 r3 s3 pad1 bf16",
    "n5 c3 h23 w19 k64 r7 s7 stride2 pad3 bf16",
    "n3 c2 h7 w40 k16 r3 s3 pad1 f16",
    "n2 c3 d4 h6 w18 k96 t1 r3 s3 stride1x2x2 pad0x1x1 bf16",
    "n7 c1 w50 k8 s5 pad2 bf16",
)


@pytest.mark.parametrize("sums", ["sums", "image_sums"])
@pytest.mark.parametrize("words", LAYERS)
def test_sums(words: str, sums: str, cuda_device: Any) -> None:
    problem = parse(f"fused_conv_fwd {words} nhwc {sums}")
    assert isinstance(problem, FusedConvolution)
    algorithm = FewChannelsSummed(SEPARATE)
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("n2 c32 h9 w9 k32 r3 s3 pad1 bf16 nhwc sums", "input channels"),
        ("n2 c3 h9 w9 k32 r3 s3 pad1 bf16 nhwc prologue=relu sums", "no prologue"),
        ("n2 c3 h9 w9 k32 r3 s3 pad1 bf16 nhwc sums squares=s2", "side by side"),
        ("n2 c3 h9 w9 k30 r3 s3 pad1 bf16 nchw sums", "shared memory"),
    ],
)
def test_what_is_refused(words: str, reason: str, cuda_device: Any) -> None:
    problem = parse(f"fused_conv_fwd {words}")
    assert reason in (FewChannelsSummed(SEPARATE).refuse(problem, cuda_device) or pytest.fail("it is taken"))
