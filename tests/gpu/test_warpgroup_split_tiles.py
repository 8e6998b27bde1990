"""Tiles of filter gradients that have no registers beside their sums, for which K is split."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import SPLIT, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401


def in_two(tile: Tile) -> Any:
    """Plans whose K is in two parts, of which the second is shorter where it is odd."""

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        return Blocking(tile, 2, 2, -(-products.longest // 2), 1, 2, is_across=True), 1e-5

    return blocked_by(blocking)


@pytest.mark.parametrize(
    "words", ["n3 c200 h9 w8 k208 r1 s1 bf16 nhwc", "n2 c72 h7 w9 k200 r1 s2 pad0x1 stride1x2 f16 nhwc"]
)
@pytest.mark.parametrize("tile", SPLIT, ids=str)
def test_several_parts_of_k(tile: Tile, words: str, cuda_device: Any) -> None:
    problem = convolution(words, "bwd_filter")
    with in_two(tile):
        plan = WarpgroupWgrad().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.blocking.tile == tile
        assert plan.blocking.is_split
        run_algorithm(WarpgroupWgrad(), make_case(problem), cuda_device)
