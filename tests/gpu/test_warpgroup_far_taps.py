"""Convolutions of one axis by warpgroups whose taps are farther apart than maps of images take."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from warpgroup_cases import SMALL, aligned, on_hopper  # noqa: F401

LAYERS = {
    "conv_fwd n2 c64 w700 k72 s2 dil300 bf16": 3,
    "conv_fwd n2 c32 w401 k64 s3 pad300 dil150 stride2 f16": 3,
    "conv_bwd_data n2 c64 w700 k72 s3 pad150 dil256 bf16": 3,
    "conv_fwd n2 c64 w400 k72 s2 dil255 bf16": 3,
    "conv_fwd n2 c64 w400 k72 s2 dil127 bf16": 4,
    "conv_fwd n2 c64 h2 w700 k72 r1 s2 dil1x300 bf16": None,
}


@pytest.mark.parametrize("words", LAYERS)
def test_taps_that_are_far_apart(words: str, cuda_device: Any) -> None:
    problem, algorithm = convolution(f"{words} nhwc"), WarpgroupGemm((SMALL,))
    plan = algorithm.sizes(problem, cuda_device)
    if LAYERS[words] is None:
        assert plan == "taps are farther apart than the copy engine takes"
        return
    assert isinstance(plan, Plan), plan
    assert plan.rank == LAYERS[words]
    run_algorithm(algorithm, make_case(problem), cuda_device)
