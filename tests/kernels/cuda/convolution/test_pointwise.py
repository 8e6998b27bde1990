"""Convolutions of one tap as products of the filter and the pixels, and how tiles are numbered."""

from __future__ import annotations

import numpy as np
import pytest

from convolution_cases import convolution
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import geometry_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pointwise import transposed
from jitdnn.kernels.cuda.warpgroup.plan import Products
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution


def test_the_transposed_convolution_is_the_same_product() -> None:
    problem = convolution("conv_fwd n2 c5 h3 w4 k6 r1 s1 f16 nhwc")
    other = transposed(problem)
    assert isinstance(other, Convolution)
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(one.shape) for one in (problem.x, problem.w))
    pixels = np.moveaxis(x, 1, -1).reshape(24, 5)
    expected = np.moveaxis(problem.reference(x, w), 1, -1).reshape(24, 6)
    found = other.reference(w.reshape(6, 5).T[None], pixels[:, :, None])
    np.testing.assert_allclose(found[0], expected)
    assert other.y.strides[1:] == (6, 1)


def test_so_is_that_of_a_data_gradient() -> None:
    problem = convolution("conv_bwd_data n2 c5 h3 w4 k6 r1 s1 f16 nhwc")
    other = transposed(problem)
    assert isinstance(other, Convolution)
    rng = np.random.default_rng(1)
    dy, w = (rng.standard_normal(one.shape) for one in (problem.y, problem.w))
    pixels = np.moveaxis(dy, 1, -1).reshape(24, 6)
    expected = np.moveaxis(problem.reference(dy, w), 1, -1).reshape(24, 5)
    found = other.reference(w.reshape(6, 5)[None], pixels[:, :, None])
    np.testing.assert_allclose(found[0], expected)
    # the filter's channels are neighbours in memory: rows of the product
    assert other.x.strides[1:] == (5, 1)
    assert other.y.strides[1:] == (5, 1)


@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_data n2 c64 h3 w4 k64 r1 s1 stride2 f16 nhwc",
        "conv_bwd_data n2 c64 h3 w4 k64 r1 s1 f16",
        "conv_bwd_filter n2 c64 h3 w4 k64 r1 s1 f16 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r3 s1 f16 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r1 s1 stride2 f16 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r1 s1 pad1 f16 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r1 s1 g2 f16 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r1 s1 f32 nhwc",
        "conv_fwd n2 c64 h3 w4 k64 r1 s1 f16",
        "conv_fwd n1 c64 h1 w1 k64 r1 s1 f16 nhwc",
    ],
)
def test_what_is_no_such_product(words: str) -> None:
    assert transposed(convolution(words)) is None


def test_pixels_are_columns_where_tiles_fill_the_device_so() -> None:
    """8712 pixels and 256 channels: 128 x 128 makes 138 tiles for 132 multiprocessors, 128 x 144 pixels 122."""
    device = cuda.offline("sm_90a")
    plan = WarpgroupGemm().sizes(convolution("conv_fwd n8 c2048 h33 w33 k256 r1 s1 bf16 nhwc"), device)
    assert isinstance(plan, Plan)
    assert plan.blocking.tile == Tile(2, 1, 1, 144)
    assert plan.rows_first
    assert plan.is_in_boxes
    # what threads store is for rows of 32 columns
    assert Tile(2, 1, 1, 144).chunk_bytes(2) == 96
    assert not Tile(2, 1, 1, 144).has_chunks(2)


def test_tiles_are_numbered_along_the_smaller_operand() -> None:
    products = Products((512,), (8,), 4096, 1)
    assert products.strip(Tile(2, 1, 1, 128)) == 1
    assert products.strip(Tile(1, 1, 1, 256)) == 1
    tall = Products((4096,), (8,), 512, 1)
    assert tall.strip(Tile(2, 1, 1, 128)) == 4
    # of 16 neighbours across two lines of tiles are asked for, of as many down eight, which is less for short tiles
    assert tall.strip(Tile(1, 1, 1, 64)) == 8
    assert Products((2048,), (8,), 4096, 1).strip(Tile(1, 1, 1, 256)) == 1
    # stride phases follow each other
    assert Products((512, 512), (8, 8), 4096, 1).strip(Tile(2, 1, 1, 128)) == 32


def test_columns_that_are_not_there() -> None:
    tile = Tile(1, 1, 1, 96)
    assert Products((64,), (8,), 320, 1).outside(tile) == 16  # of four tiles the last has 32
    assert Products((64,), (8,), 384, 1).outside(tile) == 0
    # across, columns come in blocks of 64, of which the last begins with column 352
    assert Products((64,), (8,), 384, 1, is_across=True).outside(tile) == 8
    assert tile.brought(True) == 128
    assert tile.brought(False) == 96


def test_taps_that_read_the_padding() -> None:
    def inside(words: str) -> list[int]:
        problem = convolution(words)
        geometry = geometry_of(problem)
        (phase,) = geometry.phases
        axes = [Axis.of(axis, one) for axis, one in zip(geometry.axes, phase, strict=True)]
        extents = problem.x.shape[2:]
        return [axis.inside(extent) for axis, extent in zip(axes[1:], extents, strict=True)]

    # of 7 results three taps each, one of which is outside at either end
    assert inside("conv_fwd n1 c8 h7 w9 k8 r3 s1 pad1x0 f16 nhwc") == [19, 9]
    # 3 results, windows that begin at -2, 0 and 2 of 5 pixels, taps 0, 2 and 4 behind
    assert inside("conv_fwd n1 c8 h5 w5 k8 r3 s1 dil2x1 pad2x0 stride2x1 f16 nhwc") == [7, 5]


def test_rows_that_no_tile_has() -> None:
    assert Products((16,), (8,), 4096, 1).outside_rows(Tile(1, 1, 1, 64)) == 48
    assert Products((200,), (8,), 4096, 1).outside_rows(Tile(1, 1, 1, 64)) == 56
    assert Products((256,), (8,), 4096, 1).outside_rows(Tile(1, 1, 1, 64)) == 0
