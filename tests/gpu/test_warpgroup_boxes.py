"""Filter gradients by warpgroups: blocks of channels that one copy brings, deeper stages, how tiles are numbered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import wgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupWgradDivided,
    WarpgroupWgradDividedRows,
    WarpgroupWgradHalves,
    WarpgroupWgradRows,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupWgradScaled,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

CASES = {
    # both operands in blocks; tiles end outside; pixels end within a stage
    "conv_bwd_filter n3 c192 h7 w9 k192 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 128), 2, 3, WarpgroupWgrad),
    "conv_bwd_filter n2 c192 h7 w9 k128 r1 s1 f16 nhwc": (Tile(1, 1, 1, 64), 2, 1, WarpgroupWgrad),
    "conv_bwd_filter n3 c128 h7 w9 k192 r1 s1 bf16": (Tile(1, 2, 1, 64), 1, 2, WarpgroupWgrad),
    # blocks of dy alone, x in windows
    "conv_bwd_filter n3 c72 h7 w9 k128 r3 s3 pad1 bf16 nhwc": (Tile(2, 1, 1, 64), 2, 2, WarpgroupWgrad),
    "conv_bwd_filter n2 c64 h9 w11 k64 r2 s1 stride2 f16 nhwc": (Tile(1, 1, 1, 192), 2, 1, WarpgroupWgrad),
    # groups, whose blocks follow each other, and such that are no blocks
    "conv_bwd_filter n2 c256 h7 w9 k256 r1 s1 g2 bf16 nhwc": (Tile(1, 1, 2, 64), 2, 2, WarpgroupWgrad),
    "conv_bwd_filter n2 c64 h7 w9 k64 r1 s1 g2 bf16 nhwc": (Tile(1, 1, 1, 64), 2, 1, WarpgroupWgrad),
    # a cluster
    "conv_bwd_filter n5 c128 h7 w9 k192 r1 s1 bf16 nhwc": (Tile(1, 1, 1, 64, 2), 2, 2, WarpgroupWgrad),
    # f32, packed and divided
    "conv_bwd_filter n3 c128 h7 w9 k128 r1 s1 f32 nhwc": (Tile(2, 1, 1, 64), 1, 2, WarpgroupWgradHalves),
    "conv_bwd_filter n2 c64 h7 w9 k192 r1 s1 f32": (Tile(1, 1, 1, 64), 2, 1, WarpgroupWgradScaled),
    "conv_bwd_filter n4 c128 h7 w9 k128 r1 s1 f32 nhwc": (Tile(2, 1, 1, 64), 1, 3, WarpgroupWgradDivided),
    "conv_bwd_filter n4 c192 h7 w9 k64 r1 s1 f32 nhwc": (Tile(1, 1, 1, 128), 1, 3, WarpgroupWgradDividedRows),
    "conv_bwd_filter n4 c64 h7 w9 k128 r1 s1 f32 nhwc": (Tile(2, 1, 1, 64), 1, 2, WarpgroupWgradRows),
}


@pytest.mark.parametrize("strip", [1, 2, 9])
@pytest.mark.parametrize("words", CASES)
def test_boxes_of_blocks(words: str, strip: int, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tile, depth, splits, algorithm = CASES[words]

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        one: WarpgroupGemm = algorithm()
        count = tile.cluster if tile.cluster > 1 else splits
        length = -(-products.in_stages(depth).longest // count)
        splits_there = -(-products.in_stages(depth).longest // length) if tile.cluster == 1 else count
        rows = algorithm in (WarpgroupWgradRows, WarpgroupWgradDividedRows)
        size = 4 if "f32" in words else 2
        return Blocking(tile, 3, splits_there, length, one.parts, size, rows, False, STAGE_ROW * depth), 1e-5

    monkeypatch.setattr(wgrad, "_strip", lambda products, tile: min(strip, products.tiles_n(tile)))
    problem = convolution(words)
    with blocked_by(blocking):
        plan = algorithm().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        if "g2" not in words or "c256" in words:
            assert len(plan.tables.maps[0].extents) == 4
        run_algorithm(algorithm(), make_case(problem), cuda_device)


def test_tiles_are_numbered_along_the_shorter_axis() -> None:
    products = Products((512,), (98,), 1024, 1)
    tall, wide = Tile(1, 1, 1, 128), Tile(2, 1, 2, 64)
    assert wgrad._strip(products, tall) == 1  # 8 tiles down, 8 across
    assert wgrad._strip(replace(products, n=128), tall) == 1
    assert wgrad._strip(replace(products, n=256), tall) == 2
    assert wgrad._strip(products, wide) == 1
    assert wgrad._strip(products, replace(wide, cluster=2)) == 16


def test_neighbours_read_what_differs() -> None:
    products = Products((256,), (100,), 1024, 1)
    tile, narrow = Tile(2, 1, 1, 128), Tile(2, 1, 1, 96)
    assert products.read_share(tile) == (2 + 8) / (16 * 2)  # 2 tiles down, 8 across
    assert products.read_share(tile, 4) == (2 + 2) / (4 * 2)
    assert products.read_share(tile, 1) == products.read_share(Tile(2, 1, 2, 128), 1) == 1
    assert products.read_share(narrow, 1) == 1  # whole blocks of 64 columns are brought
    assert products.read_share(narrow) == (2 + 8) / (16 * 2)  # of 22 tiles 16 are neighbours
    tall = Products((2048,), (100,), 128, 1)
    assert tall.read_share(tile) == (16 + 1) / (16 * 2)


# words: the tile, splits
INSIDE = {
    "conv_bwd_filter n3 c200 h7 w9 k200 r1 s1 bf16 nhwc": (Tile(3, 1, 1, 96), 1),
    "conv_bwd_filter n3 c192 h7 w9 k72 r1 s1 f16 nhwc": (Tile(2, 1, 1, 96), 3),
    "conv_bwd_filter n2 c208 h7 w9 k144 r1 s1 g2 bf16 nhwc": (Tile(1, 1, 1, 96), 1),
    "conv_bwd_filter n2 c104 d3 h7 w9 k72 t1 r1 s1 stride2 bf16 nhwc": (Tile(1, 1, 1, 96), 1),
    "conv_bwd_filter n2 c100 h7 w9 k70 r1 s1 bf16": (Tile(2, 1, 1, 96), 1),
    "conv_bwd_filter n3 c160 h7 w9 k72 r3 s3 pad1 bf16 nhwc": (Tile(3, 1, 1, 160), 3),
    "conv_bwd_filter n2 c200 h7 w9 k136 r2 s3 pad1 stride2 f16 nhwc": (Tile(2, 1, 1, 96), 1),
    "conv_bwd_filter n1 c72 d3 h5 w6 k40 t2 r1 s2 bf16 nhwc": (Tile(1, 1, 1, 96), 1),
    "conv_bwd_filter n2 c320 h5 w5 k272 r2 s2 g2 bf16 nhwc": (Tile(2, 1, 2, 160), 2),
}


@pytest.mark.parametrize("words", INSIDE)
def test_tiles_end_inside_of_a_block(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channels of each tap are whole tiles."""
    tile, splits = INSIDE[words]

    monkeypatch.setattr(wgrad, "INSIDE", (tile,))

    def blocking(products: Products, _: Any, space: Any, *__: Any) -> tuple[Blocking, float]:
        assert tile in space.tiles
        length = -(-products.longest // splits)
        return Blocking(
            tile, 3, -(-products.longest // length), length, 1, 2, is_across=products.is_across
        ), 1e-5

    problem = convolution(words)
    with blocked_by(blocking):
        plan = WarpgroupWgrad((tile,)).sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        run_algorithm(
            WarpgroupWgrad((tile,)), make_case(problem), cuda_device, scales=((1.0, 0.0), (-0.75, 0.5))
        )
