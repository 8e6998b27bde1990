"""Convolutions and data gradients by warpgroups whose taps along the last axis share what is copied of the data."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import choose, correlation
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupGemmInLines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import maximum
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import aligned, on_hopper  # noqa: F401

NARROW, WIDE = Tile(2, 1, 2, 32), Tile(2, 1, 2, 64)
# by problem: the tile, bytes of a row, whether a thread block brings the filter once, and is it read across
LAYERS: dict[str, tuple[Tile, int, bool, bool]] = {
    "conv_fwd n2 c64 h9 w16 k64 r3 s3 pad1 bf16": (WIDE, 128, True, False),
    "conv_bwd_data n2 c64 h9 w16 k64 r3 s3 pad1 bf16": (WIDE, 128, True, True),
    "conv_fwd n1 c32 d3 h5 w33 k32 t3 r3 s3 pad1 f16": (NARROW, 64, True, False),
    "conv_bwd_data n1 c32 d3 h5 w33 k32 t3 r3 s3 pad1 f16": (NARROW, 64, True, True),
    "conv_fwd n3 c16 h7 w11 k24 r1 s2 bf16": (NARROW, 32, True, False),
    "conv_bwd_data n2 c24 h6 w13 k16 r5 s5 pad2 bf16": (Tile(3, 1, 1, 64), 32, True, True),
    "conv_fwd n2 c136 h9 w21 k72 r3 s5 pad1 stride2x1 dil1x2 bf16": (Tile(1, 1, 1, 64), 128, False, False),
    "conv_bwd_data n2 c40 h9 w8 k96 r4 s3 pad1 stride2x1 bf16": (Tile(1, 1, 1, 64), 128, False, True),
    "conv_fwd n1 c64 h5 w9 k96 r3 s3 pad2 dil1x3 g2 bf16 flip": (Tile(2, 1, 1, 32), 64, False, False),
    "conv_fwd n2 c20 h5 w1 k9 r3 s3 pad1 f32": (Tile(2, 1, 1, 32), 128, True, False),
    "conv_bwd_data n2 c20 h5 w6 k48 r3 s3 pad0x2 f32": (Tile(1, 2, 1, 64), 128, False, False),
    "conv_bwd_data n2 c32 h9 w19 k32 r3 s6 pad1x2 stride2 bf16": (NARROW, 64, False, True),
    "conv_bwd_data n1 c16 h5 w22 k16 r2 s6 stride1x3 bf16": (NARROW, 32, False, True),
    "conv_fwd n2 c32 h9 w23 k32 r3 s6 pad1x2 stride2 bf16": (NARROW, 64, True, False),
    "conv_fwd n1 c16 h5 w25 k40 r2 s6 stride1x3 bf16 flip": (WIDE, 32, True, False),
    "conv_fwd n1 c32 d5 h5 w21 k32 t3 r3 s3 pad1 stride2 bf16": (NARROW, 64, True, False),
    "conv_fwd n2 c64 h7 w30 k64 r3 s5 pad2 stride1x3 f16": (Tile(2, 1, 1, 32), 128, False, False),
    "conv_fwd n1 c40 h5 w6 k16 r2 s7 pad3 i8": (Tile(1, 1, 1, 64), 64, True, False),
}


class OfAllTaps(WarpgroupGemmInLines):
    """Without phases that leave out what reads padding alone."""

    def _inside(self, *_: Any) -> None:
        return None


def planned(words: str, device: Any, tile: Tile) -> tuple[Any, Any, Plan]:
    problem, algorithm = convolution(f"{words} nhwc"), OfAllTaps((tile,))
    plan = algorithm.sizes(problem, device)
    assert isinstance(plan, Plan), plan
    return problem, algorithm, plan


@pytest.mark.parametrize("words", LAYERS)
def test_every_kind_of_line(words: str, cuda_device: Any) -> None:
    """Rows of all lengths; taps some pixels apart; strides and dilations of other axes; tiles that end within one."""
    tile, *expected = LAYERS[words]
    problem, algorithm, plan = planned(words, cuda_device, tile)
    row_bytes, keeps_b, is_across = expected
    assert plan.row_bytes in (
        row_bytes,
        max(row_bytes // 2, 64),
    )  # half of it where that is expected to be faster
    assert [plan.blocking.keeps_b, plan.is_b_mn_major] == [keeps_b, is_across]
    assert plan.blocking.lines.pixels == 1
    assert plan.blocking.lines.taps == -(-problem.filter_spatial[-1] // problem.stride[-1])
    run_algorithm(algorithm, make_case(problem), cuda_device)


NEIGHBOURS: dict[str, tuple[Tile, int, int]] = {
    # with the pixels of a row of the data, and which of them the first tap reads
    "n2 c32 h9 w22 k32 r3 s3 pad1 stride2 bf16": (NARROW, 2, 1),
    "n1 c16 h5 w24 k40 r2 s6 pad0x1 stride1x4 f16": (WIDE, 4, 3),
    "n2 c16 h7 w11 k24 r1 s4 stride1x2 bf16": (Tile(3, 1, 1, 64), 2, 0),
    "n2 c32 d3 h5 w8 k72 t2 r3 s3 pad1 stride2 f16": (Tile(2, 1, 1, 96), 2, 1),
    "n1 c32 h5 w6 k40 r3 s5 pad2 stride1x2 bf16": (Tile(1, 1, 1, 64), 2, 0),
}


@pytest.mark.parametrize("words", NEIGHBOURS)
def test_neighbours_in_one_row(words: str, cuda_device: Any) -> None:
    """Windows some pixels apart, of few channels: as many pixels are a row of the data, of which a tap reads a part."""
    tile, *expected = NEIGHBOURS[words]
    problem, algorithm, plan = planned(f"conv_fwd {words}", cuda_device, tile)
    lines = plan.blocking.lines
    assert [lines.pixels, lines.first] == expected
    assert lines.taps == problem.filter_spatial[-1]
    run_algorithm(algorithm, make_case(problem), cuda_device)


def test_a_row_that_is_not_whole_is_not_read(cuda_device: Any) -> None:
    """Behind the last pixel of a line there is the next line: where a window ends there, taps are of two classes."""
    words = "conv_fwd n1 c32 h5 w21 k32 r3 s3 pad1 stride2 bf16"
    assert planned(words, cuda_device, NARROW)[2].blocking.lines.pixels == 1
    assert planned(words.replace("w21", "w22"), cuda_device, NARROW)[2].blocking.lines.pixels == 2


@pytest.mark.parametrize(
    "words", ["fwd n1 c64 h5 w12 k128", "bwd_data n1 c128 h5 w12 k96", "fwd n1 c128 h4 w9 k104"]
)
def test_half_rows_leave_room_for_stages(words: str, cuda_device: Any) -> None:
    """The filter of three taps by 128 columns is long: of rows that hold 64 channels there is room for two stages."""
    problem, algorithm, plan = planned(f"conv_{words} r3 s3 pad1 bf16", cuda_device, Tile(3, 1, 1, 128))
    assert plan.row_bytes == 64
    assert plan.blocking.stages >= 3
    run_algorithm(algorithm, make_case(problem), cuda_device)


def test_channels_first_are_packed(cuda_device: Any) -> None:
    problem = convolution("conv_fwd n2 c32 h6 w9 k40 r3 s3 pad1 bf16")
    run_algorithm(WarpgroupGemmInLines((NARROW,)), make_case(problem), cuda_device)


def test_an_epilogue_leaves_out_what_is_no_result(cuda_device: Any) -> None:
    problem, algorithm, _ = planned("conv_fwd n2 c32 h6 w9 k32 r3 s3 pad1 f16", cuda_device, NARROW)
    residual = TensorDescriptor.packed(problem.output.shape, "f16", "nhwc")
    bias = TensorDescriptor(problem.output.shape, (0, 1, 0, 0), "f16")
    epilogue = Epilogue(trace(lambda acc, b, r: maximum(acc + b + r, 0.0)), (bias, residual))
    run_algorithm(algorithm, make_case(problem, epilogue), cuda_device)


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str) -> str:
        return str(WarpgroupGemmInLines().refuse(convolution(f"{words} nhwc"), cuda_device))

    for words in (
        "conv_fwd n1 c64 h9 w16 k64 r3 s3 stride1x3 bf16",
        "conv_bwd_data n1 c64 h9 w16 k64 r3 s3 stride1x2 bf16",
        "conv_bwd_data n1 c64 h9 w16 k64 r3 s2 stride1x2 bf16",
        "conv_fwd n1 c64 h9 w16 k64 r3 s4 stride1x2 dil1x3 bf16",
        "conv_fwd n1 c64 h9 w16 k64 r3 s1 bf16",
    ):
        assert "no two taps" in reason(words)
    assert "behind each 128" in reason("conv_fwd n1 c64 h5 w9 k24 r3 s3 f8e4m3 by_f8e5m2 to_bf16")
    assert "several stages" in reason("conv_fwd n1 c128 h9 w16 k64 r3 s3 stride1x2 bf16")


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_few_channels_are_expected_to_gain(direction: str) -> None:
    """What limits them are the copies of pixels; many columns have fewer of these for each product."""

    def seconds(words: str) -> tuple[float, float]:
        problem, device = convolution(f"conv_{direction} {words} bf16 nhwc"), offline("sm_90a")
        plans = [one().sizes(problem, device) for one in (WarpgroupGemm, WarpgroupGemmInLines)]
        assert all(isinstance(plan, Plan) for plan in plans)
        plain, lines = (plan.seconds for plan in plans if isinstance(plan, Plan))
        return plain, lines

    plain, lines = seconds("n2 c32 d128 h128 w128 k32 t3 r3 s3 pad1")
    assert lines < 0.7 * plain
    plain, lines = seconds("n64 c256 h56 w56 k256 r3 s3 pad1")
    assert lines > plain


def test_compiles(architecture: Any) -> None:
    """The tiles of most registers and the filters of most taps, without spilling."""
    for words, tile in (
        ("conv_fwd n16 c32 h56 w56 k64 r7 s7 pad3 bf16", WIDE),
        ("conv_bwd_data n16 c64 h56 w56 k64 r3 s3 pad1 bf16", Tile(3, 1, 1, 64)),
        ("conv_fwd n16 c32 h28 w28 k256 r3 s3 pad1 bf16", Tile(2, 1, 1, 256)),
    ):
        problem, _, plan = planned(words, architecture, tile)
        architecture.compile(source_of(plan, problem.output, None))


@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_data n3 c40 h22 w26 k24 r3 s3 pad1 stride2 bf16 nhwc",
        "conv_bwd_data n3 c136 h9 w26 k24 r1 s2 stride1x2 f16 nhwc",
        "conv_bwd_data n2 c40 d6 h8 w10 k24 t3 r3 s3 pad1 stride2 bf16 nhwc",
        "conv_bwd_data n2 c40 h16 w21 k24 r2 s3 pad0x1 stride2x3 bf16 nhwc",
    ],
)
def test_stride_phases_take_turns(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a few tiles, and at last those that are left."""
    problem, algorithm = convolution(words), WarpgroupGemm((Tile(1, 1, 1, 64),))
    monkeypatch.setattr(correlation, "_TURNS_SHARE", 0.0)
    choose.plan_of.cache_clear()
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.tables.numbers[-1] > 0
    run_algorithm(algorithm, make_case(problem), cuda_device)
    choose.plan_of.cache_clear()
