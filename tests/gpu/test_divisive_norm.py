"""Divisive normalization on GPUs, in any order in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem, parse
from strategies import divisive_norms
from window_cases import DIRECTIONS, DIVISIVE_SHAPES, divisive_norm


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", DIVISIVE_SHAPES)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    assert check(divisive_norm(words, direction), device)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_half_precision(layout: str, direction: str, dtype: str, device: Any) -> None:
    check(divisive_norm(f"means shape2x18x7x9 size3 alpha0.5 {dtype} {layout}", direction), device)


@pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str, device: Any) -> None:
    assert arrangement in ARRANGEMENTS
    check(arranged(divisive_norm("means shape2x5x7x18 size3 alpha0.5", direction), arrangement), device)


@settings(
    max_examples=examples(20),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=divisive_norms())
def test_any(problem: Problem, device: Any) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    for dtype in ("f64", "bf16"):
        problem = parse(f"divisive_norm_{direction} means shape2x16x8x8 {dtype}")
        for algorithm in algorithms(problem, "cuda"):
            algorithm.build(problem, architecture)
