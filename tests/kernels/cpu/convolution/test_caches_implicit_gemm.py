"""Blocks of implicit GEMM fit the caches of the processor that they are planned for, and differ where these do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.algorithm import make_plans
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm.unpacked_input import bytes_in_cache, may_be_unpacked
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed
from jitdnn.kernels.cpu.schedule.offsets import whole_lines
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import ITEM_BYTES, isa
from jitdnn.rtcg.processor import REFERENCE
from processors import MACHINES

KIB = 1 << 10
LAYERS = (
    "conv_fwd n8 c64 h56 w56 k64 r3 s3 pad1",
    "conv_fwd n8 c128 h28 w28 k128 r3 s3 pad1",
    "conv_fwd n8 c256 h14 w14 k256 r3 s3 pad1",
    "conv_fwd n8 c512 h7 w7 k512 r3 s3 pad1",
    "conv_fwd n4 c3 h224 w224 k64 r7 s7 pad3 stride2",
    "conv_fwd n8 c256 h56 w56 k64 r1 s1",
    "conv_fwd n8 c1024 h14 w14 k256 r1 s1",
    "conv_fwd n8 c512 h28 w28 k1024 r1 s1 stride2",
    "conv_fwd n8 c2048 h7 w7 k512 r1 s1",
    "conv_fwd n2 c64 h112 w112 k128 r3 s3 pad1 nhwc",
    "conv_fwd n2 c256 h28 w28 k256 r3 s3 pad1 nhwc",
    "conv_fwd n1 c512 h65 w65 k512 r3 s3 pad2 dil2",
    "conv_fwd n1 c2048 h33 w33 k256 r3 s3 pad12 dil12",
    "conv_fwd n1 c900 h15 w14 k40 r3 s3 pad6 dil6",
    "conv_bwd_data n8 c128 h56 w56 k256 r3 s3 pad1 stride2",
    "conv_bwd_data n8 c256 h28 w28 k512 r3 s3 pad1",
    "conv_bwd_data n4 c64 h64 w64 k128 r4 s4 pad1 stride2",
    "conv_fwd n2 c64 d16 h28 w28 k64 t3 r3 s3 pad1",
    "conv_fwd n8 c192 h27 w27 k256 r5 s5 pad2 f64",
    "conv_fwd n16 c480 h14 w14 k192 r1 s1 nhwc",
)
LARGE = LAYERS[0]
WHOLE_AXIS = 1.6  # an input tile that covers an axis may be so much larger


def device_of(name: str) -> CpuDevice:
    return CpuDevice(MACHINES[name], 4)


def gemm_plans(words: str, device: CpuDevice) -> tuple[ImplicitGemmPlan, ...]:
    problem = parse(words)
    assert isinstance(problem, Convolution)
    return make_plans(problem, device, None, False)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("layer", LAYERS)
def test_blocks_of_implicit_gemm_fit_the_caches(layer: str, name: str) -> None:
    device = device_of(name)
    processor = device.isa.processor
    for plan in gemm_plans(layer, device):
        item = ITEM_BYTES[plan.c.dtype]
        input_tile, sums = plan.input_tile_elements * item, plan.sums_elements * item
        panel = (
            plan.panels.panel_size * item * plan.kc // plan.c.depth
        )  # what one input tile is multiplied with
        assert input_tile <= WHOLE_AXIS * processor.l2(cost.GEMM_INPUT_TILE_L2)
        assert sums <= processor.l2(cost.GEMM_SPILLED_SUMS_L2)
        if plan.is_input_unpacked:
            read = bytes_in_cache(plan.c, plan.block, plan.kc, processor.line_bytes)
            assert read <= processor.l2(cost.GEMM_UNPACKED_INPUT_L2)
            input_tile = read
        assert input_tile + panel <= processor.l2_bytes
        # of each channel, a register tile's part of the panel is read from the L1 cache
        assert panel // plan.kc <= processor.l1(cost.GEMM_PANEL_L1)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("channels", "results"), [(64, 256), (128, 256), (256, 512)])
def test_results_of_a_block_stay_near_where_each_panel_returns_to_them(
    channels: int, results: int, name: str
) -> None:
    device = device_of(name)
    limit = device.isa.processor.l2(cost.GEMM_BLOCK_RESULTS_L2)
    for layout in ("nhwc", "nchw"):
        (plan,) = gemm_plans(f"conv_fwd n8 c{channels} h56 w56 k{results} r1 s1 {layout}", device)
        positions = math.prod(plan.block)
        is_near = positions <= math.prod(plan.box) or positions * results * plan.item <= limit
        # with channels first a panel's results lie apart from all others: it returns to none of them
        assert is_near or layout == "nchw"


def test_a_larger_l2_cache_has_larger_blocks() -> None:
    """With the same instruction set, so that nothing but the cache differs."""
    small = device_of("Zen 3")
    facts = replace(small.isa.processor, l2_bytes=2 << 20)
    large = CpuDevice(replace(small.isa, processor=facts), small.threads)
    (few,), (many,) = gemm_plans(LARGE, small), gemm_plans(LARGE, large)
    assert few.input_tile_elements < few.c.depth * 58 * 58
    assert many.input_tile_elements > 2 * few.input_tile_elements
    # sums are spilled only where an input tile with all channels has too few results
    words = "conv_fwd n1 c512 h65 w65 k512 r3 s3 pad2 dil2"
    (few,), (many,) = gemm_plans(words, small), gemm_plans(words, large)
    assert few.spills
    assert few.kc < many.kc


def test_what_is_read_unpacked_follows_the_sets_of_the_l2_cache() -> None:
    """Channels 64 x 64 elements apart fall into few sets: a larger cache has more of them."""
    (plan,) = gemm_plans("conv_fwd n2 c200 h64 w64 k16 r1 s1", device_of("Zen 3"))
    fits = {
        l2: may_be_unpacked(plan.c, replace(REFERENCE, l2_bytes=l2 * KIB), plan.box)
        for l2 in (512, 1024, 1280, 16384)
    }
    assert fits == {512: False, 1024: False, 1280: False, 16384: True}


def test_large_results_are_streamed_past_the_last_cache() -> None:
    result = parse("conv_fwd n8 c64 h56 w56 k64 r3 s3 pad1").output  # 6.1 MiB
    assert is_streamed(result, device_of("Graviton 3").isa.processor)
    assert not is_streamed(result, replace(REFERENCE, l3_bytes=4 << 20))
    assert is_streamed(result, replace(REFERENCE, l3_bytes=0)), "without an L3 cache, that of L2 counts"


def test_workspaces_are_divided_at_lines() -> None:
    long_lines = replace(isa("neon"), processor=replace(REFERENCE, line_bytes=128))
    assert whole_lines(33, "f32", isa("neon")) == 48
    assert whole_lines(33, "f32", long_lines) == 64
