"""Blocks follow the caches of the processor that they are planned for, and stay within their shares of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convolution_cases import convolution
from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.winograd.algorithm import Winograd4
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.convolution.winograd_wgrad.algorithm import WinogradWgrad
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import WinogradWgradPlan
from jitdnn.rtcg.isa import ITEM_BYTES, isa
from jitdnn.rtcg.processor import Processor

PROCESSORS = {
    "Sapphire Rapids": ("avx512", Processor(64, 48 << 10, 2 << 20, 1920 << 10, 2, 2.6e9, 48.0, 8.0, 4.0)),
    "Zen 3": ("avx2", Processor(64, 32 << 10, 512 << 10, 2 << 20, 2, 3.5e9, 32.0, 16.0, 6.0)),
    "Graviton 3": ("neon", Processor(64, 64 << 10, 1 << 20, 512 << 10, 4, 2.6e9, 32.0, 10.0, 6.0)),
}
LAYERS = (
    "n1 c3 h224 w224 k64 r3 s3 pad1",
    "n1 c64 h56 w56 k64 r3 s3 pad1",
    "n8 c64 h56 w56 k64 r3 s3 pad1 nhwc",
    "n8 c64 h112 w112 k128 r3 s3 pad1",
    "n1 c128 h28 w28 k128 r3 s3 pad1",
    "n8 c128 h28 w28 k128 r3 s3 pad1 nhwc",
    "n1 c256 h14 w14 k256 r3 s3 pad1",
    "n16 c256 h14 w14 k256 r3 s3 pad1",
    "n1 c512 h7 w7 k512 r3 s3 pad1",
    "n8 c512 h7 w7 k512 r3 s3 pad1 nhwc",
    "n4 c512 h28 w28 k512 r3 s3 pad1",
    "n1 c64 h224 w224 k64 r3 s3 pad1",
    "n2 c32 h35 w35 k64 r5 s5 pad2",
    "n2 c48 h17 w17 k64 r7 s1 pad3x0",
    "n2 c16 h30 w31 k18 r5 s7 stride2x3",
    "n1 c64 h32 w32 k64 r3 s3 pad2 dil2",
    "n2 c128 h56 w56 k128 r3 s3 pad1 stride2",
    "n1 c64 h28 w28 k64 r3 s3 pad1 g2 nhwc",
    "n1 c32 d8 h28 w28 k32 t3 r3 s3 pad1",
    "n1 c64 h28 w28 k64 r3 s3 pad1 f64",
)


def device(name: str) -> CpuDevice:
    instructions, processor = PROCESSORS[name]
    return CpuDevice(replace(isa(instructions), processor=processor), 1)


def winograd_plans(name: str, words: str, prepacked: bool = False) -> list[WinogradPlan]:
    return Winograd4(prepacked).plans(convolution(words, "fwd"), device(name))


def winograd_wgrad_plan(name: str, words: str) -> WinogradWgradPlan:
    return WinogradWgrad().sizes(convolution(words, "bwd_filter"), device(name).isa)


# ---- Winograd


@pytest.mark.parametrize("prepacked", [False, True])
@pytest.mark.parametrize("name", PROCESSORS)
def test_winograd_stays_in_its_shares(name: str, prepacked: bool) -> None:
    processor = PROCESSORS[name][1]
    for words in LAYERS:
        for p in winograd_plans(name, words, prepacked):
            item = ITEM_BYTES[p.c.dtype]
            vector = p.lanes * item
            # what tiles read anew; neighbours share the rest
            row = p.tw * p.rows.alpha * p.packed_spacing * p.columns.m * vector
            assert p.tw == 1 or row <= processor.l1(cost.WINOGRAD_PACKED_INPUT_L1), words
            assert row <= processor.l2_bytes, words
            if p.packed_channels > 1:
                packed = p.packed_elements * item
                assert packed <= processor.l1(cost.WINOGRAD_PACKED_FILTER_L1) + processor.line_bytes, words
            if p.accumulates:  # Kc channels of V were cut to stay in L2, up to whole vectors of channels
                channels = p.points * p.mc * p.subfilter_count * item
                assert channels * (p.kc - p.lanes) <= processor.l2(cost.WINOGRAD_V_L2), words
            if not p.is_data_resident:
                assert p.v_elements * item <= processor.l3(cost.WINOGRAD_V_L3), words
                u = p.points * p.subfilter_count * p.nr * p.kc * item
                assert p.kc == p.packed_channels or u <= processor.l2(cost.WINOGRAD_U_L2), words
            if p.prefetches_next_kc:
                used = (p.u_panel_elements + p.m_elements) * item
                assert used < processor.l2(cost.WINOGRAD_PREFETCH_L2), words


def test_winograd_blocks_grow_with_the_caches() -> None:
    """Nothing but the L2 cache differs: more of V stays in the larger one."""
    large = PROCESSORS["Sapphire Rapids"][1]
    for words in ("n8 c128 h28 w28 k128 r3 s3 pad1 nhwc", "n8 c64 h56 w56 k64 r3 s3 pad1"):
        problem = convolution(words, "fwd")
        sizes = []
        for processor in (replace(large, l2_bytes=512 << 10), large):
            (plan,) = Winograd4().plans(problem, CpuDevice(replace(isa("avx512"), processor=processor), 1))
            assert plan.is_data_resident
            sizes.append(plan.v_elements)
        assert sizes[0] < sizes[1], words


def test_winograd_tile_rows_grow_with_the_l1_cache() -> None:
    words = "n1 c64 h224 w224 k64 r3 s3 pad1"
    (plan,) = winograd_plans("Sapphire Rapids", words)
    small = replace(plan.isa, processor=replace(plan.isa.processor, l1_bytes=16 << 10))
    assert replace(plan, isa=small).tw < plan.tw


def test_winograd_pitches_are_odd_numbers_of_the_cache_lines() -> None:
    (plan,) = winograd_plans("Graviton 3", "n1 c64 h56 w56 k64 r3 s3 pad1")
    long = replace(plan, isa=replace(plan.isa, processor=replace(plan.isa.processor, line_bytes=128)))
    for pitch in (long.v_pitch, long.u_pitch, long.m_pitch):
        lines, rest = divmod(pitch * ITEM_BYTES[plan.c.dtype], 128)
        assert rest == 0
        assert lines % 2 == 1


# ---- the filter's gradient by Winograd


@pytest.mark.parametrize("name", PROCESSORS)
def test_winograd_wgrad_stays_in_its_shares(name: str) -> None:
    processor = PROCESSORS[name][1]
    for words in LAYERS:
        p = winograd_wgrad_plan(name, words)
        item = ITEM_BYTES[p.c.dtype]
        rows, columns = ((a.unit_tiles - 1) * a.r + a.alpha for a in p.axes[1:])
        unit = rows * columns * p.lanes * item
        assert p.unit_tiles == 1 or unit <= processor.l1(cost.WINOGRAD_WGRAD_UNIT_L1), words
        if p.order == "sum-resident":
            assert p.operands_size * item <= processor.l3(cost.WINOGRAD_WGRAD_OPERANDS_L3), words


def test_winograd_wgrad_is_as_exact_with_all_caches() -> None:
    """The tiles of an instruction set, which the error comes from, are those of the reference processor."""
    for words in LAYERS:
        tiles = {tuple((a.m, a.r) for a in winograd_wgrad_plan(name, words).axes) for name in PROCESSORS}
        assert len(tiles) == 1, words


def test_winograd_wgrad_blocks_follow_the_caches() -> None:
    large = PROCESSORS["Sapphire Rapids"][1]
    small = replace(large, l1_bytes=32 << 10, l2_bytes=512 << 10)
    differing = 0
    for words in LAYERS:
        problem = convolution(words, "bwd_filter")
        plans = [
            WinogradWgrad().sizes(problem, replace(isa("avx512"), processor=processor))
            for processor in (small, large)
        ]
        sizes = [(p.order, p.unit_tiles, p.kc, p.mc_blocks, p.nc_panels, p.split_k) for p in plans]
        differing += sizes[0] != sizes[1]
    assert differing >= 3
