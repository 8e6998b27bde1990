"""Products by warpgroups whose thread blocks have equal parts of the K of all tiles (stream-K)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import launches_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.candidates import SearchSpace, blockings, whole_cut
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401


@contextmanager
def shared_by(sharers: int, tile: Tile, row: int = STAGE_ROW) -> Iterator[None]:
    """Plans within the block have equal parts of K for so many thread blocks."""

    def blocking(products: Products, traits: KernelTraits, *_: Any, **__: Any) -> tuple[Blocking, float]:
        of_row = products.in_stages(row // STAGE_ROW)
        in_step = math.gcd(sharers, of_row.tiles(tile))
        return Blocking(
            tile, 3, 1, of_row.longest, 1, traits.result_bytes, row=row, sharers=sharers, in_step=in_step
        ), 1e-5

    with blocked_by(blocking):
        yield


# words: the tile, thread blocks, the multiple of STAGE_ROW
CASES = {
    # one tile for all; two for three, each two of them with parts of both; fewer stages than thread blocks
    "conv_bwd_filter n3 c64 h17 w15 k64 r1 s1 bf16 nhwc": (Tile(1, 1, 1, 64), 5, 1),
    "conv_bwd_filter n3 c72 h17 w15 k64 r1 s1 pad0 bf16 nhwc": (Tile(1, 1, 1, 64), 3, 1),
    "conv_bwd_filter n1 c24 h17 w15 k72 r3 s1 pad1x0 bf16 nhwc": (Tile(2, 1, 1, 64), 7, 1),
    # thread blocks in step, and whole tiles between parts of others
    "conv_bwd_filter n2 c40 h13 w15 k200 r3 s3 pad1 bf16 nhwc": (Tile(1, 1, 1, 192), 4, 1),
    "conv_bwd_filter n2 c72 h13 w15 k72 r3 s3 pad1 f16 nhwc": (Tile(2, 1, 1, 128), 6, 2),
    "conv_bwd_filter n2 c72 d5 h7 w9 k72 t3 r1 s3 stride2 pad1x0x1 bf16 nhwc": (Tile(2, 1, 2, 64), 8, 1),
    # results that are no vectors, or that are f32
    "conv_bwd_filter n3 c20 h17 w15 k12 r1 s3 bf16 nhwc": (Tile(1, 1, 1, 64), 4, 1),
    # forward and to the data: in step, parts of two tiles, whole tiles between parts, several parts of a tile, volumes
    "conv_fwd n1 c136 h20 w17 k136 r3 s3 pad1 bf16 nhwc": (Tile(2, 1, 1, 128), 4, 1),
    "conv_fwd n2 c72 h13 w15 k200 r3 s1 stride2 pad1x0 dil2x1 f16 nhwc": (Tile(1, 1, 1, 192), 3, 1),
    "conv_fwd n2 c200 h13 w15 k40 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 64), 2, 1),
    "conv_fwd n1 c72 d3 h5 w9 k72 t3 r3 s3 pad1 bf16 nhwc": (Tile(2, 1, 2, 128), 5, 1),
    "conv_bwd_data n1 c136 h20 w17 k136 r3 s3 pad1 f16 nhwc": (Tile(2, 1, 1, 128), 4, 1),
    "conv_fwd n2 c72 h13 w15 k36 r3 s3 pad1 bf16 nhwc": (Tile(1, 1, 1, 64), 5, 1),
}  # fmt: skip


# words: the tile, thread blocks
LINES = {
    "conv_bwd_filter n2 c72 h5 w32 k72 r3 s3 pad1 bf16 nhwc": (Tile(1, 1, 1, 192), 4),
    "conv_bwd_filter n2 c64 d3 h5 w16 k136 t1 r2 s3 pad0x1x1 f16 nhwc": (Tile(2, 1, 1, 192), 3),
}


@pytest.mark.parametrize("words", LINES)
def test_in_lines(words: str, cuda_device: Any) -> None:
    tile, sharers = LINES[words]
    problem, algorithm = convolution(words), WarpgroupWgradInLines((tile,))
    with shared_by(sharers, tile):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert (plan.blocking.sharers, plan.segment > 0) == (sharers, True)
        run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("words", CASES)
def test_every_kind(words: str, cuda_device: Any) -> None:
    tile, sharers, depth = CASES[words]
    problem = convolution(words)
    algorithm = (WarpgroupWgrad if "filter" in words else WarpgroupGemm)((tile,))
    with shared_by(sharers, tile, depth * STAGE_ROW):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert plan.blocking.sharers == sharers
        run_algorithm(algorithm, make_case(problem), cuda_device, scales=((1.0, 0.0), (-0.75, 0.5)))


def test_epilogues(cuda_device: Any) -> None:
    """What stands behind a product is applied to the sums of all parts, once."""
    tile, problem = Tile(2, 1, 1, 128), convolution("conv_fwd n1 c136 h20 w17 k136 r3 s3 pad1 bf16 nhwc")
    epilogue = fused(problem, "residual")
    with shared_by(4, tile):
        run_algorithm(WarpgroupGemm((tile,)), make_case(problem, epilogue), cuda_device)


def test_parts_and_pieces() -> None:
    """What the model counts is what the kernel does: parts of a run of tiles, and who has stages of each tile."""
    tile = Tile(2, 1, 1, 128)
    for tiles, length, sharers in (
        (54, 128, 132),
        (72, 49, 132),
        (27, 196, 129),
        (1, 40, 5),
        (7, 9, 4),
        (5, 8, 3),
    ):
        products = Products((128,), (length,), 128 * tiles, 1)
        in_step = math.gcd(sharers, tiles)
        blocking = Blocking(tile, 4, 1, length, 1, 2, sharers=sharers, in_step=in_step)
        parts, stages = sharers // in_step, tiles // in_step * length
        holders = [
            {part for part in range(parts) for stage in range(part * stages // parts, (part + 1) * stages // parts)
             if stage // length == place}
            for place in range(stages // length)
        ]  # fmt: skip
        assert blocking.others(products) == max(map(len, holders)) - 1
        assert blocking.pieces(products) == max(sum(part in own for own in holders) for part in range(parts))
        assert blocking.works(products) == sharers * blocking.pieces(products)


def test_candidates() -> None:
    """Parts are in step with as many others as tiles and multiprocessors allow, and long enough."""
    tile = Tile(2, 1, 2, 128)

    def found(tiles: int, length: int, may_share: bool = True) -> list[tuple[int, int]]:
        products = Products((256,), (length,), 128 * tiles, 1)
        space = SearchSpace((tile,), shared=(tile,) if may_share else ())
        cut, traits, device = whole_cut(products, tile), KernelTraits(1, 2), cuda.offline("sm_90a")
        every = blockings(products, tile, cut, STAGE_ROW, traits, space, device)
        return [(one.sharers, one.in_step) for one in every if one.sharers]

    assert found(54, 128) == [(132, 6)]
    assert found(65, 128) == [(130, 65)]
    assert found(54, 16) == []  # 6.5 stages each
    assert found(132, 128) == []  # none is idle
    assert found(54, 128, may_share=False) == []


def test_signals_are_cleared_first() -> None:
    problem, tile = (
        convolution("conv_bwd_filter n2 c256 d16 h16 w16 k256 t3 r3 s3 pad1 bf16 nhwc"),
        Tile(2, 1, 1, 256),
    )
    with shared_by(132, tile):
        plan = WarpgroupWgrad((tile,)).sizes(problem, cuda.offline("sm_90a"))
    assert isinstance(plan, Plan)
    assert [(one.function, one.groups) for one in launches_of(plan, 132)] == [
        ("clear_signals", 1), ("multiply", 132),
    ]  # fmt: skip
    assert plan.workspace >= 132 * (4 * tile.m * tile.n + 4)
