"""Pooling: each way in which a generator may shape its code is taken, and right."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import INSTRUCTION_SETS, check
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.pooling import over_channels as pooling_channels
from jitdnn.kernels.cpu.pooling import over_rows as pooling_rows
from jitdnn.kernels.cpu.pooling import over_window as pooling_window
from jitdnn.kernels.cpu.pooling.geometry import Axis, Geometry
from jitdnn.kernels.cpu.pooling.over_rows import PoolingRows
from jitdnn.kernels.cpu.pooling.over_rows_code import RowCode
from jitdnn.problems import Pooling, parse
from jitdnn.rtcg.isa import isa

KINDS = ("pool_fwd max", "pool_fwd avg", "pool_fwd avg exclude_pad", "pool_bwd max", "pool_bwd avg")


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, in order."""
    seen: list[Any] = []
    for module in (pooling_rows, pooling_channels, pooling_window):
        load = module.load

        def note(name: str, code: Any, *rest: Any, load: Any = load) -> Any:
            seen.append(code)
            return load(name, code, *rest)

        monkeypatch.setattr(module, "load", note)
    return seen


def rows(codes: list[Any]) -> list[RowCode]:
    return [code for code in codes if isinstance(code, RowCode)]


def channels(codes: list[Any]) -> list[pooling_channels._Code]:
    return [code for code in codes if isinstance(code, pooling_channels._Code)]


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(codes: list[Any], kind: str, cpu: str) -> None:
    """Blocks in the middle of a row are whole, those at its ends masked."""
    check(parse(f"{kind} n1 c2 h4 w150 window3 stride1 pad1"), cpu=cpu)
    check(parse(f"{kind} n1 c2 h3 w301 window2x3 stride2 pad0:1 ceil"), cpu=cpu)
    assert all(code.row is None for code in rows(codes))
    assert {code.is_clipped for code in rows(codes)} == {True}


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows_without_padding(codes: list[Any], kind: str) -> None:
    check(parse(f"{kind} n1 c3 h4 w140 window2"))
    check(parse(f"{kind} n1 c1 h4 w203 window3 stride2"))
    assert {(code.is_clipped, code.unrolled[1] > 0) for code in rows(codes)} == {(False, True)}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_taps_are_picked_at_every_stride(codes: list[Any], kind: str, cpu: str) -> None:
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
    assert {len(code.groups) * code.stride for code in rows(codes)} == {1, 5, 6, 3, 8}
    assert {code.dilation for code in rows(codes)} == {1, 4}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_beyond_a_short_row(codes: list[Any], kind: str) -> None:
    """A window of which whole vectors of taps lie outside of the image."""
    check(parse(f"{kind} n2 c3 h5 w2 window3x7 stride1 pad1x6"))
    assert all(code.row is not None for code in rows(codes))


def test_rows_say_what_they_cannot_keep() -> None:
    wide = parse("pool_fwd max n1 c1 h20 w20 window9 stride1 f32 nchw")
    assert "9 vectors of a row" in str(PoolingRows().refuse(wide, host(1)))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_channels(codes: list[Any], kind: str, cpu: str) -> None:
    lanes = isa(cpu).lanes("f32")
    for count in (1, lanes, lanes + 1, 6 * lanes, 9 * lanes, 23 * lanes + 3):
        check(parse(f"{kind} n2 c{count} h5 w4 window3 stride2 pad1 nhwc"), cpu=cpu, threads=(1,))
    assert {code.has_tail for code in channels(codes)} == {True, False}
    assert len({code.vectors for code in channels(codes)}) > 2


def test_one_image_is_shared_by_its_channels() -> None:
    """With too few rows to go round, the channels are cut; so many that there is work to share."""
    for kind in KINDS:
        check(parse(f"{kind} n1 c3001 h16 w16 window16 nhwc"), threads=(1, 2))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("words", "tiles"),
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
def test_windows_that_tile_the_image(codes: list[Any], words: str, tiles: bool, layout: str) -> None:
    problem = parse(f"pool_bwd avg n2 c18 {words} {layout}")
    assert isinstance(problem, Pooling)
    assert Geometry.of(problem).tiles is tiles
    check(problem, scales=((1.0, 0.0), (0.5, 2.0)))
    check(parse(f"pool_bwd max n2 c18 {words} {layout}"))
    assert {code.tiles for code in codes if not isinstance(code, pooling_window._Code)} == {tiles}


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
    assert pooling_channels._cut(20, 8, 8) == (3, True)
    assert pooling_channels._cut(64, 8, 8) == (8, False)
    assert pooling_channels._cut(96, 8, 8) == (6, False)


@pytest.mark.parametrize("kind", ["pool_fwd max", "pool_bwd max", "pool_fwd avg"])
def test_windows_that_are_asked_for_ahead(
    codes: list[Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling_channels, "STREAM_BYTES", 0)
    check(parse(f"{kind} n2 c40 h9 w7 window3x2 stride2 pad1 nhwc"))
    assert any(code.asks_ahead for code in channels(codes))
