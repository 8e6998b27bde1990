"""Results of four bytes: tiles that have no registers for them beside the next tile's sums leave before its products.

And with an epilogue sums of two slabs are read behind all of their products.
"""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
    WarpgroupWgradScaled,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

LARGE = tuple(tile for tile in TILES if tile.leaves_at_once(4))
TWO_SLABS = tuple(tile for tile in TILES if tile.rows == 2 and tile not in LARGE)


def planned(tile: Tile) -> Any:
    def blocking(products: Any, traits: Any, space: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        row, lines = space.row, traits.lines
        return Blocking(tile, 3, 1, products.longest, 1, 4, row=row, lines=lines), 1e-6

    return blocked_by(blocking)


@pytest.mark.parametrize("epilogue", ["", "bias", "residual"])
@pytest.mark.parametrize("algorithm", [WarpgroupGemm(), WarpgroupGemmScaled()], ids=lambda one: str(one.name))
@pytest.mark.parametrize("tile", LARGE, ids=str)
def test_several_tiles_of_a_block(tile: Tile, algorithm: Any, epilogue: str, cuda_device: Any) -> None:
    problem: Any = convolution("conv_fwd n3 c12 h31 w33 k260 r1 s2 f32 nhwc")
    given = fused(problem, epilogue) if epilogue else None
    with planned(tile):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.blocking.leaves_at_once
        run_algorithm(algorithm, make_case(problem, given), cuda_device)


@pytest.mark.parametrize("epilogue", ["activation", "residual"])
@pytest.mark.parametrize("tile", TWO_SLABS, ids=str)
def test_two_slabs(tile: Tile, epilogue: str, cuda_device: Any) -> None:
    problem: Any = convolution("conv_fwd n2 c40 h15 w17 k100 r1 s2 f32 nhwc")
    with planned(tile):
        run_algorithm(WarpgroupGemm(), make_case(problem, fused(problem, epilogue)), cuda_device)


def test_filter_gradients_do_not() -> None:
    """They take tiles that have registers beside their results; convolutions do with an epilogue, too."""
    device = offline("sm_90a")

    def blocking(words: str, epilogue: str = "") -> Blocking:
        problem: Any = convolution(words)
        algorithm = WarpgroupWgradScaled() if "bwd_filter" in words else WarpgroupGemm()
        plan = algorithm.sizes(problem, device, fused(problem, epilogue) if epilogue else None)
        assert isinstance(plan, Plan)
        return plan.blocking

    layer = "n64 c256 h28 w28 k256 r3 s3 pad1 f32 nhwc"
    assert blocking(f"conv_fwd {layer}").leaves_at_once
    assert blocking(f"conv_fwd {layer}", "bias").leaves_at_once
    assert not blocking("conv_bwd_filter n2 c960 h64 w64 k320 r3 s3 pad1 f32 nhwc").leaves_at_once


@pytest.mark.parametrize("epilogue", ["activation", "bias", "residual"])
def test_sums_are_read_behind_their_products(epilogue: str, architecture: Any) -> None:
    """Where the bits of results leave the compiler would copy sums of several slabs while their products run, as the
    assembler finds (C7517): an error, since results were wrong."""
    problem: Any = convolution("conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc")
    for tile in (*LARGE, *TWO_SLABS):
        WarpgroupGemm((tile,)).build(problem, architecture, fused(problem, epilogue))


def test_halves_have_room() -> None:
    assert LARGE
    assert not any(tile.leaves_at_once(2) for tile in TILES)
