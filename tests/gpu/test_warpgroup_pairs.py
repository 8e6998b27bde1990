"""Data gradients by warpgroups whose stride phases along the last axis are halves of the columns."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.problems.convolution import Convolution
from warpgroup_cases import aligned, on_hopper  # noqa: F401

# by problem: the tile, stride phases that are left, taps of both halves, and where the first of them and the other are
LAYERS = {
    "n2 c64 h9 w16 k72 r3 s3 pad1 stride2 bf16": (Tile(2, 1, 1, 128), 2, (1, 0, 1)),
    "n1 c64 d5 h6 w14 k136 t3 r3 s3 pad1 stride2 bf16": (Tile(2, 1, 2, 128), 4, (1, 0, 1)),
    "n2 c64 h9 w18 k64 r2 s3 pad1x0 stride1x2 f16": (Tile(1, 1, 1, 128), 1, (1, 1, 0)),
    "n1 c64 w18 k64 s3 pad1 stride2 f16 flip": (Tile(2, 1, 1, 128), 1, (1, 0, 1)),
    "n3 c128 h7 w12 k64 r3 s5 pad1x2 stride2 bf16": (Tile(2, 1, 1, 256), 2, (2, 1, 0)),
    "n2 c64 h8 w20 k72 r2 s2 stride2 bf16 flip": (Tile(2, 1, 2, 128), 2, (1, 0, 1)),
    "n2 c64 h6 w17 k72 r5 s5 pad0 stride2 bf16 flip": (Tile(3, 1, 1, 128), 2, None),
    "n2 c64 h6 w18 k72 r3 s4 pad1 stride2 bf16": (Tile(3, 1, 1, 128), 2, None),
    "n2 c32 h6 w18 k72 r3 s3 pad1 stride2 bf16": (Tile(3, 1, 1, 128), 2, None),
    "n2 c64 h6 w18 k72 r1 s3 pad0x1 stride2 bf16": (Tile(3, 1, 1, 128), 2, None),
}


class Paired(WarpgroupGemm):
    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, False, is_paired=True)


@pytest.mark.parametrize("words", LAYERS)
def test_halves_of_the_columns(words: str, cuda_device: Any) -> None:
    tile, phases, pair = LAYERS[words]
    problem, algorithm = convolution(f"conv_bwd_data {words} nhwc"), Paired((tile,))
    plan = algorithm.sizes(problem, cuda_device)
    if pair is None:
        assert isinstance(plan, str)
        return
    assert isinstance(plan, Plan), plan
    assert (plan.is_paired, plan.phases) == (True, phases)
    assert plan.tables.numbers[-9:-6] == pair
    run_algorithm(algorithm, make_case(problem), cuda_device)


def test_few_columns_of_a_strided_gradient_are_paired(cuda_device: Any) -> None:
    problem = convolution("conv_bwd_data n2 c64 d64 h64 w64 k128 t3 r3 s3 pad1 stride2 bf16 nhwc")
    plan = WarpgroupGemm(TILES).sizes(problem, cuda_device)
    assert isinstance(plan, Plan)
    assert plan.is_paired
