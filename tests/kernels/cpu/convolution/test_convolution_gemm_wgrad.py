"""wgrad as an implicit GEMM: every kind of blocking, and the pixels that remain when tiles are clipped."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conformance
from convolution_cases import convolution
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.algorithm import ImplicitGemmWgrad
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.cost import choose_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import ImplicitGemmWgradPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.rewrites import (
    image_range,
    valid_fraction,
    valid_pixels,
    without_padding_pixels,
)
from jitdnn.kernels.cpu.correlation import Axis, Taps
from jitdnn.kernels.cpu.lowering import lower_convolution


def plan_of(words: str) -> ImplicitGemmWgradPlan:
    (whole,) = lower_convolution(convolution(words, "bwd_filter"))
    return choose_plan(whole, host(1).isa)


# what each shape is there for, as the plan for 16 lanes says it
SHAPES: dict[str, Callable[[ImplicitGemmWgradPlan], bool]] = {
    "n3 c130 h7 w7 k70 r1 s1": lambda p: not p.accumulates and p.blocking.split_k == 1,
    "n2 c40 h33 w41 k24 r1 s1": lambda p: p.blocking.split_k > 1,
    "n2 c24 h33 w41 k40 r1 s1 nhwc": lambda p: p.blocking.split_k > 1,
    "n2 c70 h40 w32 k9 r1 s1 stride2": lambda p: p.tile.vectors == 1,
    "n2 c32 h40 w36 k13 r1 s1 stride2": lambda p: p.is_swapped,
    "n2 c32 h36 w36 k13 r1 s1 stride2 nhwc": lambda p: p.is_swapped,
    "n1 c9 h12 w40 k70 r1 s1 stride4 bf16": lambda p: True,
    "n2 c20 h7 w7 k33 r1 s1 stride2 pad3": lambda p: p.pixels[2:] == (3, 3),
    "n1 c35 h19 w17 k20 r3 s3 pad6 dil6": lambda p: p.clipped == p.unpadded == (False, True, True),
    "n1 c8 h20 w20 k16 r3 s3 pad5 dil5 stride2": lambda p: p.unpadded == (False, True, True),
    "n1 c35 h18 w17 k20 r3 s3 pad6 dil6 nhwc": lambda p: p.clipped == (False, True, True),
    "n2 c16 h5 w9 k18 r5 s5 pad2 g2": lambda p: p.clipped[1],
    "n1 c3 h9 w150 k20 r3 s3 pad1": lambda p: p.input_tile.extents[2] > 6 * 16,
    "n2 c40 h24 w20 k34 r3 s3 pad1 stride2": lambda p: p.channel_blocks > 1,
    "n2 c5 h9 w10 k6 r2 s2 stride2 w=nhwc": lambda p: True,
    "n1 c4 h3 w3 k5 r2 s2 pad4 dil5": lambda p: True,
    "n1 c3 d5 h6 w7 k18 t2 r3 s3 pad1 stride2 f64": lambda p: True,
    "n2 c3 h20 w40 k20 r3 s5 pad1x3 stride2 nhwc": lambda p: (
        p.input_tile.is_channels_last and p.input_tile.space[2] == 3
    ),
    "n2 c6 h9 w11 k20 r2 s3 pad1 nhwc g2": lambda p: p.input_tile.is_channels_last and p.c.x.space[2] == 6,
    "n0 c3 h5 w5 k4 r1 s1": lambda p: True,
}


@pytest.mark.parametrize("words", SHAPES)
def test_every_blocking(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarded memory, NaN around everything, bit equality for one and two threads: see conformance.py."""
    if host(1).isa.lanes("f32") == 16:
        assert SHAPES[words](plan_of(words)), "the shape no longer shows what it is there for"
    monkeypatch.setattr(conformance, "algorithms", lambda *_: [ImplicitGemmWgrad()])
    conformance.check(convolution(words, "bwd_filter"))


AXES = st.builds(
    lambda results, positions, step, count, offset, shift: Axis(
        results, positions, step, Taps(count, 0, 1, offset, shift)
    ),
    st.integers(0, 12), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(-9, 5),
    st.integers(1, 5),
)  # fmt: skip


def is_inside(axis: Axis, pixel: int, tap: int) -> bool:
    return 0 <= pixel * axis.step + axis.taps.offset + tap * axis.taps.shift < axis.positions


@given(AXES, st.data())
@settings(max_examples=300, deadline=None)
def test_pixels_whose_taps_read_inside(axis: Axis, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, axis.taps.count - 1))
    last = data.draw(st.integers(first, axis.taps.count - 1))
    taps = range(first, last + 1)
    begin, end = valid_pixels(axis, first, last)
    assert 0 <= begin <= end <= axis.results
    hits = [p for p in range(axis.results) if any(is_inside(axis, p, t) for t in taps)]
    assert all(begin <= p < end for p in hits)
    if first == last:
        assert end - begin == len(hits)


@given(AXES)
@settings(max_examples=200, deadline=None)
def test_fraction_of_single_taps(axis: Axis) -> None:
    hits = sum(is_inside(axis, p, t) for p in range(axis.results) for t in range(axis.taps.count))
    assert valid_fraction(axis, 1) == pytest.approx(hits / max(1, axis.results * axis.taps.count))


@given(AXES.filter(lambda axis: axis.results > 0))
@settings(max_examples=200, deadline=None)
def test_an_unpadded_input_tile_holds_all_that_is_read_inside(axis: Axis) -> None:
    found = image_range(axis, axis.results)
    packed = range(found.low, found.low + found.extent)
    for p in range(axis.results):
        for t in range(axis.taps.count):
            if is_inside(axis, p, t):
                assert p * axis.step + axis.taps.offset + t * axis.taps.shift in packed


def test_long_images_are_cut_into_blocks_that_fill_the_cache() -> None:
    plan = plan_of("n2 c32 d128 h128 w128 k4 t1 r1 s1")
    assert 200 < math.prod(plan.blocking.block) < 20_000


def test_pixels_that_read_only_padding_are_left_out() -> None:
    (whole,) = lower_convolution(convolution("conv_bwd_filter n1 c2 h7 w9 k3 r1 s3 stride2 pad3x0"))
    needed = without_padding_pixels(whole)
    assert [axis.results for axis in whole.axes] == [1, 7, 4]
    assert [axis.results for axis in needed.axes] == [1, 3, 4]
    assert needed.axes[1].taps.offset == 1
    assert needed.y.offset == 2 * whole.y.space[1]
