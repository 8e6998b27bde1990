"""Products by warpgroups of whose results rows are neighbours in memory: the copy engine stores 64 of each column."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmul
from jitdnn.problems.matmul import MatMul
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

TILES = (Tile(2, 1, 1, 144), Tile(1, 1, 1, 32), Tile(1, 1, 1, 96), Tile(2, 1, 2, 64), Tile(1, 2, 1, 64))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_columns_are_stored(tile: Tile, dtype: str, cuda_device: Any) -> None:
    """B along K, of transposed matrices: rows of the product are columns of the result. Both end within a tile."""

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        seconds = 1e-6 if products.has_row_boxes else 1e-5
        return Blocking(tile, 3, 1, products.longest, 1, 2), seconds

    problem = MatMul.make((150, 200), (200, 264), dtype, b_strides=(1, 200))
    with blocked_by(blocking):
        sizes = WarpgroupMatmul().sizes(problem, cuda_device)
        assert not isinstance(sizes, str)
        orientation, plan = sizes
        assert orientation.name == "columns"
        assert plan.is_in_boxes
        assert plan.rows_first
        run_algorithm(WarpgroupMatmul(), make_case(problem), cuda_device)


LAYERS = {
    "conv_fwd n2 c72 h9 w11 k136 r1 s1 bf16 nhwc": Tile(2, 1, 1, 144),
    "conv_fwd n3 c64 h7 w5 k200 r1 s1 f16 nhwc": Tile(1, 1, 1, 32),
}


@pytest.mark.parametrize("words", LAYERS)
def test_pixels_are_columns(words: str, cuda_device: Any) -> None:
    """A convolution of one tap is a product of the filter and the pixels."""

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        seconds = 1e-6 if products.has_row_boxes else 1e-5
        return Blocking(LAYERS[words], 3, 1, products.longest, 1, 2), seconds

    problem = convolution(words)
    with blocked_by(blocking):
        plan = WarpgroupGemm().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.rows_first
        assert [one.operand for one in plan.tables.maps] == [1, 0, 2]
        run_algorithm(WarpgroupGemm(), make_case(problem), cuda_device)


DEEP = {
    # taps that end within a stage; B across; one stage, half of which is zeros; split, a part begins within a tap
    "conv_fwd n2 c136 h9 w11 k72 r3 s3 pad1 bf16 nhwc": 1,
    "conv_bwd_data n2 c72 h9 w11 k136 r3 s1 pad1x0 f16 nhwc": 1,
    "conv_fwd n2 c64 h9 w11 k72 r1 s1 bf16 nhwc": 1,
    "conv_fwd n1 c200 h9 w7 k72 r3 s3 bf16 nhwc": 3,
}


@pytest.mark.parametrize("words", DEEP)
def test_stages_of_two_rows(words: str, cuda_device: Any) -> None:
    """256 bytes of K in a stage."""
    tile = Tile(1, 1, 1, 64)

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        longest = products.in_stages(2).longest
        length = -(-longest // DEEP[words])
        return Blocking(tile, 3, -(-longest // length), length, 1, 2, row=2 * STAGE_ROW), 1e-5

    with blocked_by(blocking):
        plan = WarpgroupGemm().sizes(convolution(words), cuda_device)
        assert isinstance(plan, Plan)
        assert plan.row_bytes == STAGE_ROW
        run_algorithm(WarpgroupGemm(), make_case(convolution(words)), cuda_device)
