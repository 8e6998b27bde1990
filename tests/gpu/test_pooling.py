"""Pooling on GPUs, forward and backward: every algorithm on the sizes that hurt, ties, NaN and empty windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import cases
from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.gpu.pooling.geometry import Geometry
from jitdnn.kernels.gpu.pooling.per_block import form_of as form_of_groups
from jitdnn.kernels.gpu.pooling.sliding import form_of
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Pooling, Problem, parse
from jitdnn.tensor import TensorDescriptor
from strategies import poolings

MODES = ("max", "avg", "avg exclude_pad")
DIRECTIONS = ("fwd", "bwd")

SHAPES = [
    "n1 c1 h1 w1 window1",
    "n2 c3 h7 w9 window2",  # what is left over is dropped
    "n2 c17 h13 w15 window3 stride2",
    "n2 c17 h13 w15 window3 stride2 nhwc",
    "n1 c64 h14 w12 window3 stride2 ceil nhwc",
    "n1 c5 h14 w12 window3 stride2 caffe",
    "n1 c5 h9 w10 window3 stride1 pad1",
    "n1 c40 h9 w10 window3 stride1 pad1 nhwc",
    "n1 c3 h9 w11 window3x2 stride2x3 pad2:0x0:1 ceil",
    "n1 c16 h9 w11 window3x2 stride2x3 pad2:0x0:1 caffe nhwc",
    "n2 c3 h7 w7 window7",  # global
    "n2 c64 h7 w7 window7 nhwc",
    "n1 c5 h60 w61 window60x61",
    "n1 c18 h6 w7 window2 stride4x3 caffe nhwc",  # the last windows are empty
    "n1 c2 h3 w4 window5 stride2 pad2",  # window larger than the image
    "n2 c5 w37 window5 stride3 pad2",
    "n2 c19 w37 window5 stride3 pad2:1 ceil nhwc",
    "n1 c3 d5 h6 w7 window2x3x2 stride2x1x3 pad1x1x0",
    "n1 c16 d4 h5 w4 window3 stride2 pad1 ceil nhwc",
    "n2 c9 h9 w10 window3 stride2 pad1 f64",
    "n2 c8 h9 w10 window3 stride2 pad1 f64 nhwc",
    "n0 c3 h8 w8 window2",
    "n1 c2 h19 w41 window3x2 stride2x3 pad2:3x1:0 dil2x4 ceil",
    "n1 c16 h12 w11 window3 stride2 pad2 dil3x2 nhwc",
    "n1 c19 h2 w1 window2 stride1 pad3 dil4 nhwc",  # windows of nothing but padding, between others
    "n1 c2 d5 h6 w7 window2 stride1 dil3x2x1",
    "n2 c3 h13 w13 adaptive6",
    "n1 c24 h13 w10 adaptive6x5 nhwc",
    "n1 c2 h3 w5 adaptive7x9",
    "n1 c2 d5 h6 w7 adaptive2x6x3",
]


def pooling(words: str, mode: str, direction: str) -> Problem:
    if "adaptive" in words and "exclude_pad" in mode:
        mode = "avg"
    return parse(f"pool_{direction} {mode} {words}")


@pytest.fixture(params=["unaligned", "aligned"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tensors at addresses of any kind, or at multiples of 16 bytes, which are read as vectors."""
    if request.param == "aligned":
        monkeypatch.setattr(cases, "GUARD", 1024)
    return str(request.param)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, mode: str, direction: str, device: Any, alignment: str) -> None:
    ran = check(pooling(words, mode, direction), device)
    is_sliding = not any(
        word in words for word in ("adaptive", "dil", "window2x3x2", "d4", "7", "60", "pad2")
    )
    assert {"window", *(["sliding"] if is_sliding else [])} <= ran


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize(
    "words",
    [
        "n2 c16 h40 w50 window40x50",
        "n2 c16 h40 w50 window40x50 nhwc",
        "n1 c3 h31 w33 window31x33 f64",
        "n1 c8 h64 w64 window64 bf16",
        "n1 c24 h64 w64 window64 bf16 nhwc",
        "n5 c33 h7 w7 window7 bf16",  # planes that follow one another
        "n3 c70 h5 w9 window5x9",
    ],
)
def test_whole_planes(words: str, mode: str, direction: str, device: Any, alignment: str) -> None:
    assert "groups" in check(pooling(words, mode, direction), device)
    if direction == "fwd" and mode == "max":
        assert "groups" in check(parse(f"pool_fwd max indices32 {words}"), device)


def test_vectors() -> None:
    """What one thread does, by the order in memory and the extents."""
    for words, expected in (
        ("fwd max n2 c64 h16 w16 window3 stride1 pad1 bf16 nhwc", (8, 1, 1, 1)),
        ("fwd max n2 c64 h16 w16 window3 stride1 pad1 bf16", (1, 8, 8, 8)),
        ("fwd avg n2 c64 h16 w16 window2 bf16", (1, 4, 8, 4)),
        ("fwd avg n2 c64 h16 w14 window2 bf16", (1, 1, 2, 1)),
        ("fwd avg n2 c64 h16 w15 window2", (1, 1, 1, 1)),
        ("bwd avg n2 c64 h16 w16 window3 stride2 pad1 f32", (1, 2, 4, 2)),
        ("bwd max n2 c64 h16 w16 window2 bf16 nhwc", (8, 1, 1, 1)),
        ("bwd max n2 c64 h16 w16 window3 stride1 pad1 bf16 nhwc", (1, 4, 1, 1)),
        ("bwd max n2 c64 h16 w16 window3 stride1 pad1 bf16", (1, 4, 4, 4)),
    ):
        problem = parse(f"pool_{words}")
        form = form_of(problem, Geometry.of(problem))
        assert form is not None
        assert (form.lanes, form.columns, form.vector, form.vector_out) == expected, words


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("words", SHAPES)
def test_indices(words: str, bits: int, device: Any) -> None:
    check(parse(f"pool_fwd max indices{bits} {words}"), device, scales=((1.0, 0.0),))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_orders_in_memory(mode: str, direction: str, arrangement: str, device: Any) -> None:
    check(
        arranged(pooling("n2 c5 h9 w8 window3 stride2 pad1:0x1 ceil", mode, direction), arrangement), device
    )


@pytest.mark.parametrize(("dtype", "layout"), [("f16", "nchw"), ("bf16", "nchw"), ("bf16", "nhwc")])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "words",
    ["n2 c16 h9 w16 window3 stride1 pad1", "n1 c24 h12 w16 window2", "n2 c8 h11 w8 window3 stride2 pad1"],
)
def test_half_precision(
    words: str, mode: str, direction: str, layout: str, dtype: str, device: Any, alignment: str
) -> None:
    check(pooling(f"{words} {dtype} {layout}", mode, direction), device)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", ["n2 c19 h9 w10 window3 stride2 pad1", "n1 c3 h6 w40 window6x40"])
def test_integers_of_8_bits(words: str, mode: str, dtype: str, device: Any) -> None:
    for layout in ("nchw", "nhwc"):
        check(pooling(f"{words} {dtype} {layout}", mode, "fwd"), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_wide_offsets(mode: str, direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    for name in ("offset_type", "position_type"):
        monkeypatch.setattr(Geometry, name, "i64")
    for words in (
        "n2 c8 h9 w10 window3 stride2 pad1",
        "n2 c8 h9 w10 window9x10",
        "n1 c8 h9 w10 adaptive4x3 nhwc",
    ):
        check(pooling(words, mode, direction), device)


@settings(
    max_examples=examples(30),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(problem=poolings())
def test_any_pooling(problem: Problem, device: Any) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


SPECIAL = np.array([7.0, 7, 1, np.nan, 9, np.nan, -np.inf, -np.inf, -np.inf, np.inf, np.inf, 3], np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("bits", [None, 64])
def test_the_first_maximum_wins_and_nan_is_the_largest(bits: int | None, layout: str, device: Any) -> None:
    x = np.broadcast_to(SPECIAL, (2, 40, 12))
    for words in ("n2 c40 w12 window3", "n2 c40 w12 window3 stride1 pad1", "n2 c40 w12 window2 stride3 pad1"):
        forward = f"pool_fwd max {words} {layout}" + (f" indices{bits}" if bits else "")
        check(parse(forward), device, inputs=[x], scales=((1.0, 0.0),))
        problem = parse(f"pool_bwd max {words} {layout}")
        y = parse(f"pool_fwd max {words} {layout}").reference(x)
        dy = np.arange(y.size).reshape(y.shape) % 7
        check(problem, device, inputs=[dy, x, y], scales=((1.0, 0.0),))


@pytest.mark.parametrize("words", ["n1 c8 h9 w8 window3 stride2", "n1 c8 h9 w8 window3 stride2 nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_compiles(words: str, mode: str, direction: str, architecture: Any) -> None:
    for dtype in ("f32", "bf16"):
        problem = pooling(f"{words} {dtype}", mode, direction)
        for algorithm in algorithms(problem, "cuda"):
            if algorithm.refuse(problem, architecture) is None:
                algorithm.build(problem, architecture)


def test_strides_of_single_indices(device: Any) -> None:
    """Where there is only one index its stride is anything, and vectors are accessed all the same."""
    packed = parse("pool_fwd avg n2 c16 h8 w8 window8 bf16 nhwc")
    assert isinstance(packed, Pooling)
    problem = replace(packed, y=TensorDescriptor((2, 16, 1, 1), (16, 1, 1, 1), "bf16"))
    assert form_of_groups(problem, device).lanes == 8
    assert "groups" in check(problem, device)
