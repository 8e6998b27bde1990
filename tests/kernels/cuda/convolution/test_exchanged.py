"""Which products may have their operands in each other's places, and what windows some pixels apart read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convolution_cases import convolution
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.exchanged import exchanged, filled
from jitdnn.kernels.cuda.warpgroup.plan import Products
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c64 h9 w8 k128 r3 s3 g2 bf16 nhwc",
        "conv_bwd_data n2 c64 h9 w8 k128 r3 s3 stride2 bf16 nhwc",
        "conv_fwd n2 c64 h9 w8 k128 r3 s3 bf16 nchw",
        "conv_fwd n2 c64 h9 w8 k128 r3 s3 i8 nhwc",
        "conv_bwd_data n2 c64 h9 w8 k128 r3 s3 f32 nhwc",
    ],
)
def test_pixels_are_no_columns(words: str) -> None:
    """Of several groups or stride phases, where operands are packed, and of results of one byte."""
    plan = plan_of(convolution(words), offline("sm_90a"), TILES, False, pixels_are_columns=True)
    assert isinstance(plan, str)


def test_nearly_all_rows_are_there() -> None:
    wide, tall = Tile(2, 1, 1, 256), Tile(3, 1, 1, 128)
    assert filled((wide, tall), 128) == (wide,)
    assert filled((wide, tall), 120) == (wide,)
    assert filled((wide, tall), 192) == (tall,)
    assert filled((wide, tall), 384) == (wide, tall)


def test_few_channels_of_dy_change_places() -> None:
    problem = convolution("conv_bwd_filter n2 c64 h9 w8 k24 r3 s3 pad1 bf16 nhwc")
    other = exchanged(problem)
    assert other
    assert (other.c, other.k, other.x, other.y) == (24, 64, problem.y, problem.x)


def test_windows_at_work_beyond_the_cache_are_read_again() -> None:
    """51 MB of data and windows of 2 KiB: 132 tiles of 192 pixels are all of them, of 96 pixels half."""
    one = Products((25088,), (36,), 128, 1, data_bytes=51_380_224, window_bytes=2048)
    l2 = 50 << 20
    assert 0 < one.read_again(Tile(3, 1, 1, 128), 132, l2) < one.data_bytes
    assert one.read_again(Tile(2, 1, 1, 128), 132, l2) == 0
    assert one.read_again(Tile(3, 1, 1, 64), 132, l2) == 0  # two tiles across share their pixels
    columns = replace(one, rows=(128,), n=25088, pixels_are_columns=True)
    assert columns.read_again(Tile(2, 1, 1, 192), 132, l2) > 0
    assert columns.read_again(Tile(2, 1, 1, 96), 132, l2) == 0
