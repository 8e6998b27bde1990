"""Local response normalization on GPUs, in any order in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem, parse
from strategies import lrns
from window_cases import DIRECTIONS, LRN_SHAPES, lrn, lrn_of_halves


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", LRN_SHAPES)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    assert check(lrn(words, direction), device)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_half_precision(layout: str, direction: str, dtype: str, device: Any) -> None:
    for problem in lrn_of_halves(layout, direction, dtype):
        check(problem, device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ["across", "within"])
def test_orders_in_memory(mode: str, direction: str, arrangement: str, device: Any) -> None:
    check(arranged(lrn(f"{mode} shape2x5x7x18 size3 alpha0.5", direction), arrangement), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_offsets(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for tensors beyond 2^31 elements."""
    for module in ("lrn", "lrn_across"):
        monkeypatch.setattr(f"jitdnn.kernels.gpu.normalization.{module}.offset_type", lambda tensors: "i64")
    check(lrn("across shape2x7x5x9 size5 alpha0.3", direction), device)


@settings(
    max_examples=examples(20),
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
