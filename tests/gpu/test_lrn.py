"""Local response normalization on GPUs, in any order in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from harness import check
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem, parse
from strategies import lrns

DIRECTIONS = ("fwd", "bwd")
SHAPES = [
    "across shape1x1x1 size1 beta1.0",
    "across shape2x7x5x9 size5 alpha0.3",
    "across shape2x7x5x9 size5 alpha0.3 nhwc",
    "across shape1x64x3x33 size3 alpha0.5 k1.0",
    "across shape3x70x5 size4 alpha0.5 k1.0 nhwc",  # an even window looks further behind
    "across shape2x3x2x40 size9 alpha0.5 beta0.5",  # larger than the channels
    "across shape2x3x2x40 size9 alpha0.5 beta0.5 nhwc",
    "across shape2x40x90 size17 alpha1.0 beta0.6",  # more than is unrolled
    "across shape1x3x100x3 size20 alpha2.0 nhwc",
    "across shape1x20x600 size5 alpha1.0",
    "within shape2x5x9x40 size3 alpha1.0 k1.0",
    "within shape1x19x6x7 size5 alpha0.5 beta0.6 nhwc",
    "within shape2x3x4x5x6 size2 alpha1.0",
    "within shape1x3x3x2x17 size4 alpha1.0 nhwc",
    "within shape2x3x70 size5 alpha1.0 beta1.0",
    "within shape1x2x20x3 size19 alpha30.0",
    "across shape2x37x4x9 size5 alpha0.5 f64 nhwc",
    "within shape2x3x9x11 size5 alpha0.5 f64",
    "across shape0x3x5 size3",
]


def lrn(words: str, direction: str) -> Problem:
    return parse(f"lrn_{direction} {words}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    assert check(lrn(words, direction), device)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_half_precision(layout: str, direction: str, dtype: str, device: Any) -> None:
    check(lrn(f"across shape2x37x3x9 size5 alpha0.5 {dtype} {layout}", direction), device)
    check(lrn(f"within shape2x18x7x9 size3 alpha0.5 {dtype} {layout}", direction), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["across", "within"])
def test_orders_in_memory(mode: str, direction: str, arrangement: str, device: Any) -> None:
    check(arranged(lrn(f"{mode} shape2x5x7x18 size3 alpha0.5", direction), arrangement), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_offsets(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    monkeypatch.setattr("jitdnn.kernels.gpu.normalization.lrn.offset_type", lambda tensors: "i64")
    check(lrn("across shape2x7x5x9 size5 alpha0.3", direction), device)


@settings(
    max_examples=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=lrns())
def test_any(problem: Problem, device: Any) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    for dtype in ("f64", "bf16"):
        problem = parse(f"lrn_{direction} across shape2x16x8x8 {dtype} nhwc")
        for algorithm in algorithms(problem, "cuda"):
            algorithm.build(problem, architecture)
