"""Implicit GEMM: every kind of plan, and what is left out because it reads padding only."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conformance
from convolution_cases import convolution, fused
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.convolution.implicit_gemm.algorithm import ImplicitGemm, make_plans
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm.prefetch_plan import plan_prefetch
from jitdnn.kernels.cpu.correlation import Axis, Correlation, Taps
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.microkernel.packing import input_range
from jitdnn.kernels.cpu.schedule.tap_clipping import inside_taps, unclipped_fraction
from jitdnn.problems import parse


def plans_of(words: str, prepacks: bool = False) -> tuple[ImplicitGemmPlan, ...]:
    return make_plans(convolution(words), host(1), None, prepacks)


def stride_phases(plan: ImplicitGemmPlan) -> int:
    return len(plan.stride_phases)


def clipped(plan: ImplicitGemmPlan) -> list[int]:
    return plan.clipped_axes(plan.stride_phases[0].c, plan.box)


def has_whole_axis(plan: ImplicitGemmPlan, axis: int) -> bool:
    """True if the input tile leaves out the padding that no register tile reads."""
    return plan.input_tile.lows[axis] > plan.c.axes[axis].taps.lowest


def prefetches_panels(plan: ImplicitGemmPlan) -> bool:
    """True if tiles prefetch the packed panel that follows, also from one block to the next."""
    lines = plan_prefetch(plan)
    return lines is not None and lines.is_panel and plan.blocks[3] > 1


def prefetches_pixels(plan: ImplicitGemmPlan) -> bool:
    """True if tiles prefetch the pixels of the next block's tile in the same place."""
    lines = plan_prefetch(plan)
    return lines is not None and lines.is_place and plan.blocks[3] > 1


# what each shape tests, as a property of the plan for 16 lanes
SHAPES: dict[str, Callable[[ImplicitGemmPlan], bool]] = {
    # the stride phases of a strided backward data
    "conv_bwd_data n2 c21 h13 w11 k18 r3 s3 pad1 stride2": lambda p: stride_phases(p) == 4,
    "conv_bwd_data n1 c21 h14 w11 k33 r3 s3 pad1 stride2 nhwc f16": lambda p: stride_phases(p) == 4,
    "conv_bwd_data n1 c20 h12 w15 k34 r5 s3 pad2x1 stride2x3 bf16 g2": lambda p: stride_phases(p) == 6,
    "conv_bwd_data n2 c17 h9 w8 k20 r1 s1 stride2": lambda p: (
        stride_phases(p) == 1 and p.interleaved.has_phases_without_taps
    ),
    "conv_bwd_data n1 c3 d6 h7 w8 k17 t3 r3 s2 pad1x1x0 stride2": lambda p: stride_phases(p) == 8,
    "conv_bwd_data n2 c18 h12 w12 k19 r2 s2 stride2 f64": lambda p: stride_phases(p) == 4,
    # filters that fit into their stride: channels and taps that are one run in memory are the results' channels
    "conv_bwd_data n3 c3 h17 w18 k70 r5 s6 stride6": lambda p: p.c.width == 6 and 3 in p.c.groups,
    "conv_bwd_data n2 c3 h21 w18 k41 r5 s6 stride7x6 nhwc f16": lambda p: p.c.width == 18,
    "conv_bwd_data n2 c6 h20 w25 k34 r5 s5 stride5 g2 bf16 flip": lambda p: p.c.group_count >= 10,
    "conv_bwd_data n2 c6 h20 w25 k34 r5 s5 stride5 g2 nhwc": lambda p: (
        p.c.width == 3 and p.c.group_count == 50
    ),
    "conv_bwd_data n2 c3 d5 h6 w35 k20 t5 r3 s7 stride5x3x7": lambda p: p.c.width == 7,
    "conv_bwd_data n2 c2 h18 w18 k20 r3 s3 stride9 dil3 nhwc": lambda p: p.c.width in (2, 3),
    # an empty batch, of so many channels that they do not fit one block's input tile
    "conv_fwd n0 c512 d2 h7 w16 k1024 t5 r3 s2 stride3x12x2 pad3:0x2:3x0:3 dil1x1x2 bf16": lambda p: (
        p.block[0] == 1
    ),
    # taps that read only padding
    "conv_fwd n1 c18 h6 w33 k40 r3 s3 pad18 dil18": lambda p: 2 in clipped(p),
    "conv_fwd n1 c35 h15 w14 k20 r3 s3 pad6 dil6 nhwc": lambda p: 1 in clipped(p) and has_whole_axis(p, 1),
    "conv_fwd n2 c36 h15 w14 k34 r3 s3 pad6 dil6 g2 bf16": lambda p: 1 in clipped(p) and has_whole_axis(p, 1),
    "conv_fwd n1 c6 d7 h8 w9 k17 t3 r3 s3 pad4 dil4": lambda p: 0 in clipped(p) and has_whole_axis(p, 0),
    "conv_bwd_data n2 c20 h13 w13 k18 r7 s7": lambda p: 1 in clipped(p) and has_whole_axis(p, 1),
    "conv_bwd_data n1 c20 h13 w13 k18 r7 s7 nhwc f16 flip": lambda p: 1 in clipped(p),
    # sums that are spilled between passes over the channels
    "conv_fwd n1 c900 h15 w14 k40 r3 s3 pad6 dil6": lambda p: p.spills,
    "conv_fwd n1 c900 h15 w14 k24 r3 s3 pad6 dil6 nhwc": lambda p: p.spills and p.input_tile.is_channels_last,
    "conv_bwd_data n2 c34 h14 w13 k901 r3 s3 pad5 dil5 g1": lambda p: p.spills and p.c.depth % p.kc > 0,
    "conv_fwd n1 c901 h15 w14 k20 r3 s3 pad6 dil6 f16": lambda p: p.spills,
    # results that read only padding
    "conv_fwd n2 c20 h7 w6 k33 r1 s1 stride2 pad3": lambda p: p.c.axes[1].results == 3,
    "conv_fwd n2 c20 h7 w6 k34 r1 s1 stride2 pad3 nhwc g2 bf16": lambda p: p.c.axes[1].results == 3,
    "conv_fwd n1 c5 h4 w5 k6 r3 s2 pad9x4": lambda p: p.c.axes[1].results == 6,
    # unpacked input; partial tiles at the end of an axis are moved back
    "conv_fwd n3 c19 h13 w11 k70 r1 s1": lambda p: (
        p.is_input_unpacked and p.has_partial_tiles and p.vectorizes_pixels
    ),
    "conv_fwd n2 c33 h17 w19 k24 r1 s1 g3 f64": lambda p: p.is_input_unpacked and p.has_partial_tiles,
    "conv_fwd n2 c300 h5 w23 k160 r1 s1": lambda p: (
        p.is_input_unpacked and p.has_partial_tiles and not p.vectorizes_pixels
    ),
    "conv_bwd_data n5 c128 h4 w7 k190 r1 s1": lambda p: p.is_input_unpacked and not p.has_partial_tiles,
    "conv_fwd n4 c300 h23 w29 k33 r1 s1": lambda p: (
        p.is_input_unpacked and p.blocks[3] > 1 and plan_prefetch(p) is not None
    ),
    "conv_fwd n1 c130 h7 w7 k200 r1 s1": lambda p: (
        p.is_input_unpacked and p.packs_in_task and plan_prefetch(p) is not None
    ),
    "conv_fwd n2 c40 h9 w9 k20 r1 s1 bf16": lambda p: not p.is_input_unpacked,
    "conv_fwd n2 c1030 h64 w64 k16 r1 s1": lambda p: not p.is_input_unpacked,
    # panels that are packed by the tasks that use them, or before
    "conv_fwd n1 c70 h7 w6 k66 r3 s3 pad1 g2": lambda p: p.packs_in_task,
    "conv_fwd n1 c70 h7 w6 k40 r1 s1 nhwc f16": lambda p: p.packs_in_task,
    "conv_fwd n1 c40 h60 w61 k20 r3 s3 pad1": lambda p: not p.packs_in_task,
    # packed panels that tiles prefetch, since the L2 cache does not hold all of them
    "conv_fwd n1 c500 h13 w41 k420 r1 s1 nhwc": prefetches_panels,
    # pixels of an image that the L2 cache does not hold
    "conv_fwd n3 c130 h37 w29 k70 r1 s1 nhwc": prefetches_pixels,
    "conv_fwd n1 c1301 h13 w11 k420 r1 s1 nhwc": lambda p: p.spills and p.is_input_unpacked,
}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_regrouped_channels_and_taps_make_the_same_results(layout: str) -> None:
    (part,) = lower_convolution(convolution(f"conv_bwd_data n1 c3 h8 w10 k6 r4 s5 stride4x5 {layout}"))
    variants = list(part.regrouped())
    assert {variant.width for variant in variants} == ({3, 4, 5} if layout == "nchw" else {15, 4})

    def made(c: Correlation) -> dict[int, int]:
        """The element of w by the element of y, for the first channel read and the first pixel."""
        found = {}
        for *groups, k in itertools.product(*map(range, (*c.groups, c.width))):
            y, w = k * c.y.channels, k * c.w.results
            for index, to, of in zip(groups, c.y.groups, c.w.groups, strict=True):
                y, w = y + index * to, w + index * of
            assert y not in found
            found[y] = w
        return found

    expected = made(part)
    assert len(expected) == 3 * 4 * 5
    for variant in variants:
        assert made(variant) == expected
        assert variant.group_count * variant.width == part.group_count * part.width


@pytest.mark.parametrize("words", SHAPES)
def test_every_kind_of_plan(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarded memory, NaN around everything, bit equality for one and two threads: see conformance.py."""
    if host(1).isa.lanes("f32") == 16:
        assert any(SHAPES[words](plan) for plan in plans_of(words)), "it no longer tests what it is there for"
    monkeypatch.setattr(conformance, "algorithms", lambda problem, target: (ImplicitGemm(),))
    conformance.check(convolution(words))


def test_prepacked_weights_are_packed_in_a_phase_of_their_own() -> None:
    words = "conv_fwd n1 c70 h7 w6 k40 r1 s1"
    (in_task,), (before,) = plans_of(words), plans_of(words, prepacks=True)
    assert in_task.packs_in_task
    assert in_task.panel_elements == 0
    assert not before.packs_in_task
    assert before.panel_elements >= 70 * 40


axes = st.builds(
    Axis,
    results=st.integers(1, 12),
    positions=st.integers(1, 12),
    step=st.integers(1, 3),
    taps=st.builds(
        Taps,
        count=st.integers(1, 5),
        start=st.just(0),
        increment=st.just(1),
        offset=st.integers(-14, 6),
        shift=st.sampled_from([-5, -3, -2, -1, 1, 2, 3, 5]),
    ),
)


def positions_read(axis: Axis, result: int) -> list[int]:
    return [result * axis.step + axis.taps.offset + i * axis.taps.shift for i in range(axis.taps.count)]


@settings(max_examples=300, deadline=None)
@given(axes, st.integers(1, 6))
def test_clipped_taps_read_only_padding(axis: Axis, side: int) -> None:
    for result in range(0, axis.results, side):
        first, last = inside_taps(axis, result, side)
        for p in range(result, result + side):
            for i, q in enumerate(positions_read(axis, p)):
                assert first <= i < last or not 0 <= q < axis.positions


@settings(max_examples=300, deadline=None)
@given(axes, st.integers(1, 9))
def test_the_fraction_that_clipping_leaves_counts_the_taps_of_all_tiles(axis: Axis, side: int) -> None:
    tiles = range(0, axis.results, side)
    kept = [inside_taps(axis, first, side) for first in tiles]
    left = sum(max(0, last - first) for first, last in kept)
    assert unclipped_fraction(axis, side) * max(1, len(tiles) * axis.taps.count) == pytest.approx(left)


@settings(max_examples=300, deadline=None)
@given(axes, st.integers(1, 6))
def test_input_tile_of_a_whole_axis_has_all_that_clipped_tiles_read(axis: Axis, side: int) -> None:
    found = input_range(axis, axis.results, side, is_clipped=axis.taps.count > 1)
    for result in range(0, axis.results, side):
        first, last = (0, 1) if axis.taps.count == 1 else inside_taps(axis, result, side)
        for p in range(result, result + side):
            read = positions_read(axis, p)[max(0, first) : max(0, last)]
            for q in read if axis.taps.count > 1 else []:
                assert found.low <= q < found.low + found.extent_of_tiles
                if p < axis.results:
                    assert q < found.low + found.extent


@pytest.mark.parametrize(
    "words", ["h7 w6 r1 s1 stride2 pad3", "h4 w5 r3 s2 pad9x4", "h4 w5 r3 s2 pad9:1x0:4 dil2"]
)
def test_cropped_results_read_something(words: str) -> None:
    (whole,) = lower_convolution(
        convolution(f"conv_fwd n1 c3 {words.split(' r')[0]} k4 r{words.split(' r')[1]}")
    )
    part = whole.cropped()
    for i, (every, some) in enumerate(zip(whole.axes, part.axes, strict=True)):
        reading = [
            p for p in range(every.results) if any(0 <= q < every.positions for q in positions_read(every, p))
        ]
        assert some.results == len(reading)
        shift = some.taps.offset - every.taps.offset
        assert shift == reading[0] * every.step
        assert i == 0 or every.results >= some.results
    offset = sum(
        (b.taps.offset - a.taps.offset) // a.step * s
        for a, b, s in zip(whole.axes, part.axes, whole.y.space, strict=True)
    )
    assert part.y.offset - whole.y.offset == offset


# a filter that meets its image once and covers it


@pytest.mark.parametrize(
    "words",
    [
        "n5 c12 h4 w4 k10 r4 s4",
        "n40 c3 d2 h5 w6 k33 t2 r5 s6 stride2x5x6",
        "n3 c6 h3 w5 k9 r3 s5 g3",
        "n9 c4 h3 w3 k5 r3 s3 nhwc",  # channels and positions that are not contiguous
        "n6 c4 h3 w3 k5 r3 s3 flip",
        "n33 c20 w7 k18 s7 f64",
    ],
)
def test_single_positions(words: str) -> None:
    assert "implicit_gemm" in conformance.check(convolution(words, "bwd_data"))


@pytest.mark.parametrize(
    ("expression", "is_taken"), [("activation", True), ("bias", False), ("scalar", True)]
)
def test_epilogues_of_single_positions(expression: str, is_taken: bool) -> None:
    problem = convolution("n5 c12 h4 w4 k10 r4 s4", "bwd_data")
    names = conformance.check(problem, fused(problem, expression))
    assert ("implicit_gemm" in names) == is_taken


def test_taps_of_a_broadcast_filter_are_not_contiguous() -> None:
    """Backward data with a stride packs the filter for all stride phases at once, if each tap has an offset of its
    own."""
    conformance.check(
        parse("conv_bwd_data n2 c3 h7 w16 k4 r4 s7 stride1x3 pad0:1x2:1 flip f32 nchw w=s0,0,0,1")
    )
