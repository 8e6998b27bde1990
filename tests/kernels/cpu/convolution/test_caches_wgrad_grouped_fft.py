"""Block sizes derive from the caches of the processor that a plan is for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from convolution_cases import convolution
from jitdnn.kernels.cpu.convolution.fft.cost import choose_plan as fft_plan
from jitdnn.kernels.cpu.convolution.fft.plan import FftPlan
from jitdnn.kernels.cpu.convolution.grouped.cost import choose_plan as grouped_plan
from jitdnn.kernels.cpu.convolution.grouped.plan import GroupedPlan
from jitdnn.kernels.cpu.convolution.grouped.wgrad_cost import choose_plan as grouped_wgrad_plan
from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.cost import choose_plan as gemm_wgrad_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import ImplicitGemmWgradPlan
from jitdnn.kernels.cpu.correlation import InterleavedPhases
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.rtcg.isa import Isa
from processors import MACHINES

ON_EACH = pytest.mark.parametrize("isa", MACHINES.values(), ids=MACHINES)
LARGE_L2 = replace(MACHINES["Zen 3"], processor=MACHINES["Sapphire Rapids"].processor)


# ---- wgrad as an implicit GEMM

GEMM_WGRAD_LAYERS = [
    "n8 c3 h64 w64 k64 r7 s7 stride2 pad3",
    "n8 c3 h224 w224 k64 r7 s7 stride2 pad3 nhwc",
    "n4 c64 h56 w56 k64 r1 s1",
    "n4 c64 h56 w56 k64 r3 s3 pad1",
    "n4 c64 h56 w56 k64 r3 s3 pad1 nhwc",
    "n4 c128 h28 w28 k128 r3 s3 pad1 stride2",
    "n4 c256 h14 w14 k256 r3 s3 pad1",
    "n4 c256 h14 w14 k1024 r1 s1",
    "n4 c512 h7 w7 k512 r3 s3 pad1",
    "n4 c1024 h14 w14 k2048 r1 s1 stride2",
    "n4 c192 h28 w28 k96 r5 s5 pad2 nhwc",
    "n2 c64 h112 w112 k128 r3 s3 pad1 f64",
    "n16 c40 h33 w41 k24 r1 s1",
    "n2 c32 h300 w300 k32 r3 s3 pad1",
    "n1 c16 h512 w512 k16 r3 s3 pad1",
    "n1 c1 h512 w512 k8 r11 s11 pad5",
    "n32 c512 h1 w1 k1000 r1 s1",
    "n2 c64 w4000 k64 s9 pad4",
    "n1 c32 d16 h28 w28 k32 t3 r3 s3 pad1",
    "n4 c96 h27 w27 k256 r5 s5 pad2 g2",
]


def gemm_wgrad(words: str, isa: Isa) -> ImplicitGemmWgradPlan:
    (c,) = lower_convolution(convolution(words, "bwd_filter"))
    return gemm_wgrad_plan(c, isa)


@ON_EACH
@pytest.mark.parametrize("words", GEMM_WGRAD_LAYERS)
def test_the_blocks_of_a_gemm_wgrad_fit_the_l2_cache(words: str, isa: Isa) -> None:
    plan = gemm_wgrad(words, isa)
    used = (plan.input_tile_elements + plan.panel_elements) * plan.item
    assert used <= isa.processor.l2(0.5)


def test_a_larger_l2_cache_has_larger_blocks_of_a_gemm_wgrad() -> None:
    words = "n1 c16 h512 w512 k16 r3 s3 pad1"
    small, large = (gemm_wgrad(words, each) for each in (MACHINES["Zen 3"], LARGE_L2))
    assert small.input_tile_elements + small.panel_elements < large.input_tile_elements + large.panel_elements


# ---- grouped

GROUPED_LAYERS = [
    "n4 c128 h56 w56 k128 r3 s3 pad1 g32 nhwc",
    "n4 c256 h56 w56 k256 r3 s3 pad1 stride2 g32 nhwc",
    "n4 c256 h28 w28 k256 r3 s3 pad1 g32 nhwc",
    "n4 c512 h14 w14 k512 r3 s3 pad1 g32 nhwc",
    "n4 c1024 h7 w7 k1024 r3 s3 pad1 g32 nhwc",
    "n1 c1024 h14 w14 k1024 r3 s3 pad1 g64 nhwc",
    "n2 c24 h112 w112 k24 r3 s3 pad1 g3 nhwc",
    "n2 c48 h112 w112 k96 r3 s3 pad1 g6 nhwc",
    "n2 c96 h112 w112 k96 r5 s5 pad2 g48 nhwc",
    "n8 c336 h28 w28 k336 r3 s3 pad1 g6 nhwc",
    "n1 c64 h300 w300 k64 r3 s3 pad1 g8 nhwc",
    "n1 c2048 h14 w14 k2048 r3 s3 pad1 g32 nhwc",
    "n1 c32 h512 w512 k32 r7 s7 pad3 g4 nhwc",
    "n4 c240 h14 w14 k480 r1 s1 g3 nhwc",
    "n2 c120 h28 w28 k120 r1 s1 g5 nhwc",
    "n1 c64 h128 w128 k64 r3 s3 pad2 dil2 g16 nhwc",
    "n16 c16 h28 w28 k16 r3 s3 pad1 g8 nhwc",
    "n2 c384 h17 w17 k384 r1 s7 g12 nhwc",
    "n1 c128 h64 w64 k128 r3 s3 pad1 g4 f64 nhwc",
    "n2 c512 h28 w28 k512 r3 s3 pad1 g64 nhwc",
]


def grouped(words: str, isa: Isa) -> GroupedPlan:
    (c,) = lower_convolution(convolution(words, "fwd"))
    return grouped_plan(InterleavedPhases.single(c), isa)


def grouped_wgrad(words: str, isa: Isa) -> GroupedWgradPlan:
    (c,) = lower_convolution(convolution(words, "bwd_filter"))
    return grouped_wgrad_plan(c.merged(), isa)


@ON_EACH
@pytest.mark.parametrize("words", GROUPED_LAYERS)
def test_the_blocks_of_grouped_convolutions_fit_the_caches(words: str, isa: Isa) -> None:
    processor = isa.processor
    plan = grouped(words, isa)
    item = isa.vector_bytes // plan.lanes
    if plan.block != (1, 1):
        assert plan.packing.elements * plan.slices * item <= processor.l1(1.0)
    if plan.units_per_task > 1:
        assert plan.packed_elements * item <= processor.l2(0.5)
    wgrad = grouped_wgrad(words, isa)
    if wgrad.block != (1, 1):
        assert (wgrad.x_packing.elements + wgrad.dy_packing.elements) * item <= processor.l1(1.25)
    if wgrad.units_per_task > 1:
        assert wgrad.thread_elements * item <= processor.l2(0.5)


def test_larger_caches_have_larger_blocks_of_grouped_convolutions() -> None:
    words = "n1 c2048 h64 w64 k2048 r3 s3 pad1 g64 nhwc"
    small, large = MACHINES["Zen 3"], LARGE_L2
    assert math.prod(grouped(words, small).block) < math.prod(grouped(words, large).block)
    assert grouped(words, small).packed_elements < grouped(words, large).packed_elements
    assert math.prod(grouped_wgrad(words, small).block) < math.prod(grouped_wgrad(words, large).block)
    assert grouped_wgrad(words, small).thread_elements < grouped_wgrad(words, large).thread_elements


# ---- FFT

FFT_LAYERS = [
    "n2 c768 w8191 k768 s4096 g768",
    "n2 c64 w2048 k64 s128 pad64 g64",
    "n2 c64 w100000 k64 s1000 g64",
    "n1 c1 w3000000 k1 s5000",
    "n16 c16 w4096 k16 s64",
    "n4 c64 h64 w64 k64 r9 s9 pad4",
    "n4 c64 h64 w64 k64 r9 s9 pad4 f64",
    "n4 c96 h56 w56 k96 r31 s31 pad15 g96",
    "n4 c384 h28 w28 k384 r27 s27 pad13 g384",
    "n1 c3 h512 w512 k3 r33 s33 pad16",
]


def fft(words: str, isa: Isa) -> FftPlan:
    return fft_plan(convolution(words, "fwd"), isa.processor)


@ON_EACH
@pytest.mark.parametrize("words", FFT_LAYERS)
def test_what_an_fft_has_in_memory_at_once_fits_the_caches(words: str, isa: Isa) -> None:
    plan = fft(words, isa)
    if plan.signals_at_once > 16:
        assert plan.signals_at_once * plan.item * plan.transforms.points <= isa.processor.l2(0.5)
    if plan.groups_at_once > 1 or plan.images_at_once > 1:
        assert sum(plan.spectra_at_once) * plan.spectrum_bytes <= isa.processor.l3(0.25)


def test_larger_caches_have_more_spectra_at_once() -> None:
    words = "n2 c64 w2048 k64 s128 pad64 g64"
    small, large = fft(words, MACHINES["Graviton 3"]), fft(words, MACHINES["Sapphire Rapids"])
    assert sum(small.spectra_at_once) < sum(large.spectra_at_once)
    assert small.signals_at_once < large.signals_at_once
