"""Pooling: every branch of the generators is taken, and right."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import INSTRUCTION_SETS, check
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.pooling import algorithm
from jitdnn.kernels.cpu.pooling.algorithm import PoolingRows
from jitdnn.kernels.cpu.pooling.cost import divide_channels
from jitdnn.kernels.cpu.pooling.geometry import Axis, Geometry
from jitdnn.kernels.cpu.pooling.plan import ChannelPlan, RowPlan, WindowPlan
from jitdnn.problems import Pooling, parse
from jitdnn.rtcg.isa import isa

KINDS = ("pool_fwd max", "pool_fwd avg", "pool_fwd avg exclude_pad", "pool_bwd max", "pool_bwd avg")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans that code is generated from, in order."""
    seen: list[Any] = []
    load = algorithm.load

    def note(name: str, plan: Any, *rest: Any) -> Any:
        seen.append(plan)
        return load(name, plan, *rest)

    monkeypatch.setattr(algorithm, "load", note)
    return seen


def rows(plans: list[Any]) -> list[RowPlan]:
    return [plan for plan in plans if isinstance(plan, RowPlan)]


def channels(plans: list[Any]) -> list[ChannelPlan]:
    return [plan for plan in plans if isinstance(plan, ChannelPlan)]


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(plans: list[Any], kind: str, cpu: str) -> None:
    """Blocks in the middle of a row are whole, those at its ends masked."""
    check(parse(f"{kind} n1 c2 h4 w150 window3 stride1 pad1"), cpu=cpu)
    check(parse(f"{kind} n1 c2 h3 w301 window2x3 stride2 pad0:1 ceil"), cpu=cpu)
    assert all(plan.row is None for plan in rows(plans))
    assert {plan.is_clipped for plan in rows(plans)} == {True}


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows_without_padding(plans: list[Any], kind: str) -> None:
    check(parse(f"{kind} n1 c3 h4 w140 window2"))
    check(parse(f"{kind} n1 c1 h4 w203 window3 stride2"))
    assert {(plan.is_clipped, plan.unrolled[1] > 0) for plan in rows(plans)} == {(False, True)}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_taps_are_selected_at_every_stride(plans: list[Any], kind: str, cpu: str) -> None:
    for window, stride, dilation in (
        (1, 1, 1),
        (5, 1, 1),
        (5, 2, 1),
        (2, 3, 1),
        (7, 4, 1),
        (8, 8, 1),
        (4, 2, 4),
    ):
        words = f"{kind} n1 c2 h13 w41 window{window} stride{stride} dil{dilation}"
        check(parse(words), cpu=cpu, threads=(1,))
    assert {len(plan.tap_groups) * plan.stride for plan in rows(plans)} == {1, 5, 6, 3, 8}
    assert {plan.dilation for plan in rows(plans)} == {1, 4}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_beyond_a_short_row(plans: list[Any], kind: str) -> None:
    """A window of which whole vectors of taps lie outside of the image."""
    check(parse(f"{kind} n2 c3 h5 w2 window3x7 stride1 pad1x6"))
    assert all(plan.row is not None for plan in rows(plans))


def test_rows_say_what_they_cannot_keep() -> None:
    wide = parse("pool_fwd max n1 c1 h20 w20 window9 stride1 f32 nchw")
    assert "9 vectors of a row" in str(PoolingRows().refuse(wide, host(1)))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_channels(plans: list[Any], kind: str, cpu: str) -> None:
    lanes = isa(cpu).lanes("f32")
    for count in (1, lanes, lanes + 1, 6 * lanes, 9 * lanes, 23 * lanes + 3):
        check(parse(f"{kind} n2 c{count} h5 w4 window3 stride2 pad1 nhwc"), cpu=cpu, threads=(1,))
    assert {plan.has_tail for plan in channels(plans)} == {True, False}
    assert len({plan.vectors for plan in channels(plans)}) > 2


def test_one_image_is_shared_by_its_channels() -> None:
    """With too few rows to go round, the channels are cut; so many that there is work to share."""
    for kind in KINDS:
        check(parse(f"{kind} n1 c3001 h16 w16 window16 nhwc"), threads=(1, 2))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("words", "is_partition"),
    [
        ("h6 w8 window2", True),
        ("h7 w8 window2", False),  # a row that belongs to no window
        ("h7 w8 window2 ceil", True),
        ("h6 w8 window2 stride3", False),
        ("h6 w8 window3 stride2", False),
        ("h5 w7 window5x7", True),
        ("h6 w8 window2 pad1", True),
    ],
)
def test_windows_that_partition_the_image(
    plans: list[Any], words: str, is_partition: bool, layout: str
) -> None:
    problem = parse(f"pool_bwd avg n2 c18 {words} {layout}")
    assert isinstance(problem, Pooling)
    assert Geometry.of(problem).is_partition is is_partition
    check(problem, scales=((1.0, 0.0), (0.5, 2.0)))
    check(parse(f"pool_bwd max n2 c18 {words} {layout}"))
    assert {plan.is_partition for plan in plans if not isinstance(plan, WindowPlan)} == {is_partition}


def test_geometry_joins_what_one_window_covers() -> None:
    def of(text: str) -> Geometry:
        problem = parse(f"pool_fwd max {text}")
        assert isinstance(problem, Pooling)
        return Geometry.of(problem)

    nothing, whole = Axis(1, 1, 1, 1, 0, 0), Axis(49, 1, 49, 49, 0, 0)
    assert of("n2 c3 h7 w7 window7").axes == (nothing, nothing, whole)
    assert of("n2 c3 h7 w7 window7").strides == ((147, 49, 0, 0, 1), (3, 1, 0, 0, 1))
    assert of("n2 c3 h7 w7 window7 nhwc").axes == (nothing, nothing, whole)
    side = Axis(7, 1, 7, 7, 0, 0)
    assert of("n2 c3 h7 w7 window7 x=s200,60,8,1").axes == (side, nothing, side)  # rows with gaps
    assert of("n2 c3 d4 h7 w7 window2x7x7").axes == (nothing, nothing, Axis(196, 2, 98, 98, 0, 0))
    # a single axis is the last one, whichever it was; two are the first and the last
    assert of("n2 c3 h8 w1 window2x1").axes == (nothing, nothing, Axis(8, 4, 2, 2, 0, 0))
    assert of("n2 c3 h8 w6 window2").axes == (Axis(8, 4, 2, 2, 0, 0), nothing, Axis(6, 3, 2, 2, 0, 0))


def test_all_channels_of_a_pixel_go_together_if_they_fit() -> None:
    assert divide_channels(20, 8, 8) == (3, True)
    assert divide_channels(64, 8, 8) == (8, False)
    assert divide_channels(96, 8, 8) == (6, False)


@pytest.mark.parametrize("kind", ["pool_fwd max", "pool_bwd max", "pool_fwd avg"])
def test_later_windows_are_prefetched(plans: list[Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm, "stream_bytes", lambda processor: 0)
    check(parse(f"{kind} n2 c40 h9 w7 window3x2 stride2 pad1 nhwc"))
    assert any(plan.prefetches for plan in channels(plans))
