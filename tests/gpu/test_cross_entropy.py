"""Cross-entropy on GPUs: classes and probabilities, weights and smoothing, rows along and across."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from cross_entropy_cases import cross_entropy, inputs_for
from examples import examples
from harness import check
from jitdnn.kernels.formulas.cross_entropy import RowCrossEntropy
from jitdnn.kernels.gpu.reduction.generator import RowLoops
from jitdnn.problems import Problem
from strategies import cross_entropies

ROWS = RowCrossEntropy(RowLoops())
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FIXTURES = (HealthCheck.function_scoped_fixture,)
DIRECTIONS = ("fwd", "bwd")

PROBLEMS = [
    "none shape1x1 classes64",
    "mean shape7x10 classes64 ignore3",
    "sum shape5x33 classes32 weighted",
    "mean shape3x1000 classes8 smoothing0.3 bf16",
    "none shape2x70001 classes64",
    "none shape40x9001 classes64 bf16",
    "mean shape2x19x5x7 classes64 weighted smoothing0.25",
    "mean shape2x19x5x8 classes64 nhwc f16",
    "mean shape4x7x3",
    "none shape4x18x3 weighted smoothing0.5 f64",
    "none shape0x4 classes64",
    "mean shape70x3 classes64 weighted",
]


def check_loss(problem: Problem, device: Any, **options: Any) -> None:
    assert "rows" in check(problem, device, inputs=inputs_for(problem), **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", PROBLEMS)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    check_loss(cross_entropy(words, direction), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, device: Any) -> None:
    for direction in DIRECTIONS:
        problem = cross_entropy("mean shape3x18x5 classes64 weighted", direction)
        check_loss(arranged(problem, arrangement), device, scales=((1.5, 0.5),))


@settings(max_examples=examples(10), deadline=None, phases=PHASES, suppress_health_check=FIXTURES)
@given(problem=cross_entropies())
def test_any_cross_entropy(device: Any, problem: Problem) -> None:
    check_loss(problem, device, scales=((1.5, 0.0),))


@pytest.mark.parametrize(
    "words", ["mean shape64x50257 classes64 bf16", "mean shape4x21x64x64 classes64 weighted"]
)
def test_compiles(words: str, architecture: Any) -> None:
    for direction in DIRECTIONS:
        ROWS.build(cross_entropy(words, direction), architecture)
