"""Products whose stages have as many bytes as their few channels want, and thread blocks that bring the filter once."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupGemmHalves
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from warpgroup_cases import aligned, on_hopper  # noqa: F401

# by problem: the tile, bytes of a row, of K in a stage, and whether a thread block brings the filter once
CASES = {
    "conv_fwd n9 c16 h19 w17 k40 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 64), 32, 32, True),
    "conv_fwd n9 c24 h19 w17 k144 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 160), 64, 64, True),
    "conv_bwd_data n9 c32 h19 w17 k16 r1 s1 f16 nhwc": (Tile(2, 1, 2, 32), 32, 32, True),
    "conv_bwd_data n9 c24 h19 w17 k144 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 64), 128, 128, True),
    "conv_bwd_data n5 c96 h19 w17 k40 r1 s1 bf16 nhwc": (Tile(3, 1, 1, 96), 128, 128, True),
    "conv_bwd_data n1 c200 h19 w17 k40 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 128), 128, 128, False),
    "conv_fwd n5 c128 h19 w17 k200 r1 s1 bf16 nhwc": (Tile(1, 2, 1, 128), 128, 128, True),
    "conv_fwd n9 c16 h19 w17 k32 r1 s1 f32 nhwc": (Tile(2, 1, 1, 32), 64, 64, True),
    "conv_fwd n4 c16 h19 w17 k32 r3 s3 pad1 bf16 nhwc": (Tile(2, 1, 2, 32), 32, 96, True),
    "conv_bwd_data n4 c24 h19 w17 k32 r3 s3 pad1 bf16 nhwc": (Tile(1, 1, 1, 64), 64, 192, True),
    "conv_bwd_data n4 c16 h19 w17 k16 r5 s5 pad2 bf16 nhwc": (Tile(1, 1, 1, 32), 32, 160, True),
    "conv_fwd n1 c32 d5 h9 w7 k72 t3 r3 s3 pad1 stride2 f16 nhwc": (Tile(2, 1, 1, 128), 64, 192, False),
    "conv_bwd_data n2 c32 h13 w11 k16 r3 s3 pad1 stride2 bf16 nhwc": (Tile(2, 1, 1, 32), 32, 128, False),
}


@pytest.mark.parametrize("words", CASES)
def test_stages_of_few_channels(words: str, cuda_device: Any) -> None:
    problem, (tile, *expected) = convolution(words), CASES[words]
    algorithm = WarpgroupGemm((tile,))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert [plan.row_bytes, plan.blocking.row, plan.blocking.keeps_b] == expected
    run_algorithm(algorithm, make_case(problem, None), cuda_device)


def test_halves_keep_the_filter_too(cuda_device: Any) -> None:
    problem = convolution("conv_fwd n9 c32 h19 w17 k32 r1 s1 f32 nhwc")
    algorithm = WarpgroupGemmHalves((Tile(2, 1, 1, 32),))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.blocking.keeps_b
    run_algorithm(algorithm, make_case(problem, None), cuda_device)
