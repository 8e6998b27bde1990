"""Products by warpgroups of one operand that lies across, along their rows or their columns, and one along K."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupGemmInLines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.matmul import orientation_of
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmul
from jitdnn.problems.matmul import MatMul
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

TILES = (
    Tile(2, 1, 1, 144),
    Tile(3, 1, 1, 96),
    Tile(1, 1, 1, 32),
    Tile(2, 1, 2, 64),
    Tile(1, 2, 1, 64),
    Tile(2, 1, 1, 64, cluster=2),
)


def planned(tile: Tile, splits: int = 1, depth: int = 1, prefers_across: bool = False) -> Any:
    """A blocking of such a tile, whatever the product; of two orientations that with rows across, or columns."""

    def blocking(products: Any, traits: Any, space: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        longest = products.in_stages(depth).longest
        parts = max(splits, tile.cluster)
        length = -(-longest // parts)
        seconds = 1e-4 if products.is_across != prefers_across or traits.is_wgrad else 1e-6
        return Blocking(
            tile,
            3,
            -(-longest // length),
            length,
            1,
            2,
            row=depth * space.row,
            lines=traits.lines,
            is_across=products.is_across,
        ), seconds

    return blocked_by(blocking)


@pytest.mark.parametrize("m", [192, 200], ids=["blocks", "rows"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_across(tile: Tile, m: int, cuda_device: Any) -> None:
    """A along M: blocks of 64 rows come at once, or one by one; both matrices and K end within a tile or a stage."""
    # columns in multiples of 16 leave where rows of the result are neighbours
    c_strides = (150, 1) if tile.has_chunks(2) else (1, m)
    problem = MatMul.make(
        (m, 200), (200, 150), "bf16", a_strides=(1, m), b_strides=(1, 200), c_strides=c_strides
    )
    with planned(tile):
        sizes = WarpgroupMatmul().sizes(problem, cuda_device)
        assert not isinstance(sizes, str)
        orientation, plan = sizes
        assert orientation.name == "rows"
        assert plan.is_a_mn_major
        assert not plan.is_b_mn_major
        assert not any(plan.packs)
        run_algorithm(WarpgroupMatmul(), make_case(problem), cuda_device)


@pytest.mark.parametrize(("splits", "depth"), [(1, 2), (2, 1), (3, 2)])
def test_columns_of_a_product(splits: int, depth: int, cuda_device: Any) -> None:
    """B along N, of transposed matrices: split, and in stages of twice as much of K."""
    problem = MatMul.make((150, 400), (400, 136), "f16")
    with planned(Tile(1, 1, 1, 64), splits, depth):
        sizes = WarpgroupMatmul().sizes(problem, cuda_device)
        assert not isinstance(sizes, str)
        orientation, plan = sizes
        assert orientation.name == "columns"
        assert plan.is_a_mn_major
        run_algorithm(WarpgroupMatmul(), make_case(problem), cuda_device)


@pytest.mark.parametrize("k", [16, 96])
def test_a_batch(k: int, cuda_device: Any) -> None:
    """Products of few terms, in short stages."""
    problem = MatMul.make((3, 72, k), (3, k, 40), "bf16", b_strides=(40 * k, 1, k), a_strides=(72 * k, 1, 72))
    with planned(Tile(1, 1, 1, 32)):
        sizes = WarpgroupMatmul().sizes(problem, cuda_device)
        assert not isinstance(sizes, str)
        assert sizes[1].is_a_mn_major
        run_algorithm(WarpgroupMatmul(), make_case(problem), cuda_device)


LAYERS = {
    "conv_bwd_data n2 c136 h9 w11 k72 r1 s1 bf16 nhwc": Tile(2, 1, 1, 144),
    "conv_bwd_data n3 c128 h7 w5 k200 r1 s1 f16 nhwc": Tile(1, 1, 1, 32),
}


@pytest.mark.parametrize("words", LAYERS)
def test_data_gradients(words: str, cuda_device: Any) -> None:
    """A data gradient of one tap is a product of the filter, which lies across, and the pixels."""
    problem = convolution(words)
    with planned(LAYERS[words]):
        plan = WarpgroupGemm().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.is_a_mn_major
        assert plan.rows_first
        assert [one.operand for one in plan.tables.maps] == [1, 0, 2]
        run_algorithm(WarpgroupGemm(), make_case(problem), cuda_device)


def test_planes_of_an_image(cuda_device: Any) -> None:
    """Channels first: the pixels of an image are neighbours, and nothing is packed."""
    problem = convolution("conv_fwd n1 c72 h8 w11 k40 r1 s1 bf16 nchw")
    with planned(Tile(1, 1, 1, 64)):
        plan = WarpgroupGemm().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.is_a_mn_major
        assert not any(plan.packs)
        run_algorithm(WarpgroupGemm(), make_case(problem), cuda_device)


WHOLE = {
    # taps of images and of volumes, in stride phases, mirrored, in groups; columns that end within a tile
    "conv_bwd_data n2 c192 h9 w11 k72 r3 s3 pad1 bf16 nhwc": Tile(2, 1, 1, 128),
    "conv_bwd_data n1 c192 d3 h5 w4 k40 t2 r3 s2 stride2 f16 nhwc": Tile(1, 1, 1, 192),
    "conv_bwd_data n1 c128 h6 w5 k72 r2 s3 pad1 flip bf16 nhwc": Tile(1, 2, 1, 64),
    "conv_bwd_data n2 c256 h6 w5 k128 r3 s1 g2 bf16 nhwc": Tile(1, 1, 1, 128),
}


@pytest.mark.parametrize("words", WHOLE)
def test_columns_in_one_copy(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B across, of which one copy brings all blocks of 64 columns."""
    monkeypatch.setattr(algorithm, "_FASTER", 0.0)  # pixels are rows
    problem = convolution(words)
    with planned(WHOLE[words]):
        plan = WarpgroupGemm().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.is_b_mn_major
        assert any(one.extents[0] == 64 and one.rank == 4 for one in plan.tables.maps)
        run_algorithm(WarpgroupGemm(), make_case(problem), cuda_device)


def test_columns_of_taps_in_lines(cuda_device: Any) -> None:
    """Each tap of a line has a copy of its own of all columns."""
    problem = convolution("conv_bwd_data n2 c128 h6 w9 k64 r3 s3 pad1 bf16 nhwc")
    with planned(Tile(1, 1, 1, 128)):
        plan = plan_of(problem, cuda_device, (Tile(1, 1, 1, 128),), True, is_in_lines=True)
        assert isinstance(plan, Plan)
        assert plan.blocking.lines.taps == 3
        run_algorithm(WarpgroupGemmInLines(), make_case(problem), cuda_device)


def test_columns_of_a_batch(cuda_device: Any) -> None:
    """The products of a batch are in the place of taps."""
    problem = MatMul.make((3, 72, 200), (3, 200, 128), "bf16")
    plan = None
    with planned(Tile(2, 1, 1, 128)):
        orientation = orientation_of(problem, "rows")
        plan = plan_of(orientation.problem, cuda_device, TILES, True, 1, orientation.batch)
        assert isinstance(plan, Plan)
        assert plan.is_b_mn_major
        assert any(one.extents == (64, 3, 200, 2) for one in plan.tables.maps)
    with planned(Tile(2, 1, 1, 128), prefers_across=True):
        run_algorithm(WarpgroupMatmul(), make_case(problem), cuda_device)
