"""Convolutions by warpgroups whose rows are channels of the result, and whose columns are pixels."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution
from warpgroup_cases import aligned, on_hopper  # noqa: F401

LAYERS = {
    "conv_fwd n2 c64 h9 w16 k136 r3 s3 pad1 bf16": Tile(2, 1, 1, 256),
    "conv_fwd n3 c40 h9 w7 k72 r3 s2 pad1x0 stride2x1 f16": Tile(2, 1, 1, 144),
    "conv_fwd n3 c36 h9 w11 k72 r3 s3 pad1 f32": Tile(2, 1, 1, 256),
    "conv_fwd n2 c20 d3 h5 w9 k200 t2 r3 s1 stride1x2x1 f32": Tile(1, 2, 1, 64),
    "conv_bwd_data n2 c136 h9 w16 k72 r3 s3 pad1 bf16": Tile(2, 1, 1, 256),
    "conv_bwd_data n2 c72 h7 w9 k24 r3 s2 pad1x0 f16": Tile(3, 1, 1, 96),
    "conv_bwd_data n2 c200 h7 w9 k64 r3 s3 pad1 bf16 flip": Tile(2, 1, 2, 128),
    "conv_fwd n2 c64 h9 w16 k16 r1 s1 f32": Tile(1, 1, 1, 144),
}


class PixelsAreColumns(WarpgroupGemm):
    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, False, pixels_are_columns=True)


@pytest.mark.parametrize("words", LAYERS)
def test_pixels_are_columns(words: str, cuda_device: Any) -> None:
    problem, algorithm = convolution(f"{words} nhwc"), PixelsAreColumns((LAYERS[words],))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.pixels_are_columns
    assert plan.is_in_boxes
    run_algorithm(algorithm, make_case(problem), cuda_device)
