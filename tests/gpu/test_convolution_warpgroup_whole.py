"""Products by warpgroups of 16 bits whose results leave before the next tile's products, and those whose thread blocks
keep the filter of one of several tiles across."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupGemmInPlace
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import launches_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup import best
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import WHOLE, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

OF_LARGE_TILES = [
    "conv_fwd n1 c72 h41 w30 k424 r1 s1 bf16 nhwc",
    "conv_fwd n1 c72 h33 w30 k200 r3 s1 pad1x0 f16 nhwc",
    "conv_bwd_data n1 c392 h31 w40 k72 r1 s1 bf16 nhwc",
    "conv_fwd n1 c24 h33 w30 k201 r1 s1 bf16 nhwc",
]


@pytest.mark.parametrize("words", OF_LARGE_TILES)
@pytest.mark.parametrize("tile", WHOLE, ids=str)
def test_results_that_leave_first(words: str, tile: Tile, cuda_device: Any) -> None:
    problem = convolution(words)
    algorithm = WarpgroupGemmInPlace((tile,))  # which splits no K, whatever the device
    if reason := algorithm.refuse(problem, cuda_device):
        assert "bwd_data" in words, reason
        assert tile.wn % tile.block, reason  # columns across come in whole blocks
        return
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan)
    assert plan.blocking.leaves_at_once
    run_algorithm(algorithm, make_case(problem), cuda_device)


def kept(across: int) -> Callable[..., tuple[Blocking, float] | None]:
    """The blocking that keeps B of one of so many tiles across."""

    def blocking(*given: Any, **words: Any) -> tuple[Blocking, float] | None:
        found: list[Blocking] = []

        def only(*given: Any, **words: Any) -> Sequence[Blocking]:
            those = [one for one in original(*given, **words) if one.kept_across == across and one.keeps_b]
            found.extend(those)
            return those

        original = best.blockings
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best, "blockings", only)
            return best.best_blocking(*given, **words)

    return blocking


@pytest.mark.parametrize(
    ("words", "tile", "across"),
    [
        ("conv_fwd n1 c136 h41 w30 k200 r1 s1 bf16 nhwc", Tile(2, 1, 1, 128), 2),
        ("conv_fwd n1 c72 h41 w30 k264 r3 s1 pad1x0 f16 nhwc", Tile(2, 1, 1, 96), 3),
        ("conv_bwd_data n1 c200 h41 w30 k136 r1 s1 bf16 nhwc", Tile(1, 1, 1, 64), 4),
        ("conv_fwd n1 c136 h41 w30 k200 r1 s1 bf16 nhwc", Tile(3, 1, 1, 160), 2),
    ],
)
def test_one_of_several_tiles_across_is_kept(words: str, tile: Tile, across: int, cuda_device: Any) -> None:
    """Thread blocks are a multiple of these tiles, and each has the tiles below one of them."""
    is_large = cuda_device.multiprocessors > 8
    problem = convolution(words.replace("n1 ", "n40 ") if is_large else words)
    algorithm = WarpgroupGemm((tile,))
    with blocked_by(kept(across)):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert plan.blocking.kept_across == across
        launch = launches_of(plan, cuda_device.multiprocessors)[-1]
        assert launch.groups % across == 0
        assert plan.works > launch.groups
        run_algorithm(algorithm, make_case(problem), cuda_device)
