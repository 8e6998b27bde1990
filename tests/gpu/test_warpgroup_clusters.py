"""Products by warpgroups whose K is split over the thread blocks of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import launches_of, source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmHalves,
    WarpgroupWgradBlockwise,
    WarpgroupWgradDivided,
    WarpgroupWgradHalves,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, Tile
from warpgroup_cases import aligned, blocked_by, check_not_finite, on_hopper  # noqa: F401


@contextmanager
def in_clusters(tile: Tile) -> Iterator[None]:
    """Plans within the block have this tile; of their splits the last may have fewer stages, or none."""

    def blocking(products: Any, traits: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        stages = 4 if tile.m * tile.n > 128 * 128 else 3 if tile.m * tile.n > 64 * 128 else 2
        return Blocking(
            tile,
            stages,
            tile.cluster,
            -(-products.longest // tile.cluster),
            traits.parts,
            traits.result_bytes,
        ), 1e-5

    with blocked_by(blocking):
        yield


CASES = {
    "conv_fwd n1 c96 h11 w12 k72 r3 s3 bf16 nhwc": (Tile(2, 1, 1, 64, 2), WarpgroupGemm),
    "conv_fwd n1 c96 h11 w12 k71 r1 s1 f16 nhwc": (Tile(1, 1, 1, 32, 3), WarpgroupGemm),
    "conv_bwd_data n1 c72 h9 w11 k96 r3 s3 pad1 bf16 nhwc": (Tile(1, 2, 1, 64, 4), WarpgroupGemm),
    "conv_fwd n1 c96 h9 w7 k40 r3 s3 f32 nhwc": (Tile(2, 1, 1, 32, 2), WarpgroupGemm),
    "conv_fwd n1 c72 h7 w6 k40 r2 s2 f32 nhwc flip": (Tile(1, 1, 1, 64, 4), WarpgroupGemmHalves),
    "conv_fwd n1 c96 h9 w7 k40 r3 s3 f32 nhwc g2": (Tile(1, 1, 2, 32, 2), WarpgroupGemmScaled),
    "conv_fwd n2 c160 h5 w7 k24 r3 s3 pad1 i8 to_i8 nhwc": (Tile(1, 1, 1, 64, 4), WarpgroupGemm),
    "conv_fwd n2 c160 h5 w7 k24 r3 s3 pad1 i8 to_f32 nhwc": (Tile(1, 1, 1, 32, 2), WarpgroupGemm),
    "conv_fwd n2 c160 h5 w7 k24 r3 s3 pad1 f8e4m3 to_bf16 nhwc": (Tile(1, 1, 1, 32, 2), WarpgroupGemm),
    "conv_bwd_filter n3 c24 h17 w15 k72 r3 s1 pad1x0 bf16 nhwc": (Tile(2, 1, 1, 128, 8), WarpgroupWgrad),
    "conv_bwd_filter n3 c32 h17 w15 k144 r3 s1 pad1x0 g2 f16 nhwc": (Tile(2, 1, 2, 64, 4), WarpgroupWgrad),
    "conv_bwd_filter n3 c20 h17 w15 k12 r3 s1 pad1x0 bf16": (Tile(1, 1, 1, 64, 2), WarpgroupWgrad),
    "conv_bwd_filter n1 c20 h9 w7 k12 r3 s3 f32 nhwc": (Tile(1, 1, 1, 64, 2), WarpgroupWgradHalves),
    "conv_bwd_filter n2 c40 h9 w16 k72 r1 s1 f32 nhwc": (Tile(2, 1, 1, 64, 4), WarpgroupWgradDivided),
    "conv_bwd_filter n2 c72 h9 w17 k72 r1 s1 f32 nhwc": (Tile(1, 1, 1, 128, 3), WarpgroupWgradBlockwise),
}


@pytest.mark.parametrize("words", CASES)
def test_every_kind(words: str, cuda_device: Any) -> None:
    tile, family = CASES[words]
    problem, algorithm = convolution(words), family((tile,))
    with in_clusters(tile):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert plan.blocking.tile.cluster > 1
        assert not plan.blocking.is_split
        run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("tile", CLUSTERS, ids=str)
def test_every_tile(tile: Tile, cuda_device: Any) -> None:
    if cuda_device.name.startswith("emulated") and CLUSTERS.index(tile) % 4:
        pytest.skip("the emulator takes every fourth one")
    for words in (
        "conv_fwd n1 c72 h20 w17 k288 r3 s1 pad1 bf16 nhwc",
        "conv_bwd_filter n3 c72 h17 w20 k264 r1 s1 bf16 nhwc",
    ):
        if "filter" in words and tile.wn % 64:
            continue  # its columns come in blocks of 64, which the planner knows
        family = WarpgroupWgrad if "filter" in words else WarpgroupGemm
        with in_clusters(tile):
            if isinstance(family((tile,)).sizes(convolution(words), cuda_device), Plan):
                run_algorithm(
                    family((tile,)), make_case(convolution(words)), cuda_device, scales=((-0.75, 0.5),)
                )


def test_clusters_of_all_sizes_share_code() -> None:
    problem = convolution("conv_bwd_filter n32 c1024 h14 w14 k512 r1 s1 bf16 nhwc")
    device, texts, launched = cuda.offline("sm_90a"), set(), set()
    for blocks in (2, 4, 8):
        tile = Tile(1, 1, 1, 64, blocks)
        with in_clusters(tile):
            plan = WarpgroupWgrad((tile,)).sizes(problem, device)
            assert isinstance(plan, Plan), plan
            texts.add(source_of(plan, problem.output, None))
            launched |= {one.cluster for one in launches_of(plan, 132) if one.sets_cluster}
    assert len(texts) == 1
    assert launched == {2, 4, 8}


def test_few_tiles_are_shared_by_clusters() -> None:
    """By the estimate: products with few tiles and long sums, where one launch does what took two, and no others."""
    device = cuda.offline("sm_90a")
    for words, is_shared in {
        "conv_bwd_filter n32 c256 h14 w14 k256 r3 s3 pad1 bf16 nhwc": True,
        "conv_bwd_filter n32 c1024 h14 w14 k512 r1 s1 bf16 nhwc": False,
        "conv_fwd n1 c512 h7 w7 k512 r3 s3 pad1 bf16 nhwc": True,
        "conv_bwd_filter n32 c512 h7 w7 k2048 r1 s1 bf16 nhwc": False,
        "conv_fwd n64 c256 h56 w56 k256 r3 s3 pad1 bf16 nhwc": False,
        "conv_bwd_data n32 c1024 h14 w14 k2048 r1 s1 stride2 bf16 nhwc": False,
    }.items():
        family = WarpgroupWgrad if "filter" in words else WarpgroupGemm
        plan = family().sizes(convolution(words), device)
        assert isinstance(plan, Plan), plan
        assert (plan.blocking.tile.cluster > 1) == is_shared, f"{words}: {plan.blocking}"
        assert not is_shared or plan.workspace == 0


@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
def test_epilogues(expression: str, cuda_device: Any) -> None:
    problem = convolution("conv_fwd n1 c512 h3 w2 k24 r3 s3 pad1 bf16 nhwc")
    tile = Tile(1, 1, 1, 64, 2)
    with in_clusters(tile):
        epilogue = fused(problem, expression)
        run_algorithm(WarpgroupGemm((tile,)), make_case(problem, epilogue), cuda_device)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("words", [words for words, (_, family) in CASES.items() if family.parts == 2])
def test_what_is_not_finite(words: str, value: float, cuda_device: Any) -> None:
    tile, family = CASES[words]
    with in_clusters(tile):
        check_not_finite(convolution(words), family((tile,)), cuda_device, value, 1e-5)
