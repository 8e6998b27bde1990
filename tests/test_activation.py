"""Activations, forward and backward: every algorithm on the sizes that hurt and on numbers near the ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from jitdnn.problems import Problem, parse
from jitdnn.problems.activation import FUNCTIONS
from strategies import activations

KINDS = [
    *(f"activation_fwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name}" for name in FUNCTIONS),
    *(f"activation_bwd {name} saved_y" for name, f in FUNCTIONS.items() if f.derivative_from_y),
]

SHAPES = [
    "shape1",
    "shape17",
    "shape65 f64",
    "shape3x5x7",
    "shape2x3x4x5 nhwc",
    "shape2x19x6x5 f64 nhwc",
    "shape1x1x63x1",
    "shape100003",  # several tasks
    "shape0x5",
    "shape2x2x3x1x2x2x2x3",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, kind: str) -> None:
    check(parse(f"{kind} {words}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check(arranged(parse(f"{kind} shape2x5x3x18"), arrangement))


@pytest.mark.parametrize("kind", KINDS)
def test_between_layouts(kind: str) -> None:
    output = "y" if "fwd" in kind else "dx"
    check(parse(f"{kind} shape2x19x5x6 nchw {output}=nhwc"))
    check(parse(f"{kind} shape2x19x5x6 nhwc {output}=nchw"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check(parse(f"{kind} shape3x37"), cpu=cpu)
    check(parse(f"{kind} shape3x37 f64"), cpu=cpu)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_algorithm_is_reached(direction: str) -> None:
    kinds = [kind for kind in KINDS if direction in kind]
    assert unreached([parse(f"{kind} {words}") for kind in kinds for words in SHAPES]) == set()


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(activations())
def test_any_activation(problem: Problem) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


ENDS = np.array(
    [-np.inf, -3e38, -104.5, -88.8, -1e-30, -0.0, 0.0, 1e-45, 1e-30, 17.5, 88.8, 3e38, np.inf, np.nan]
)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_ends_of_the_range(function: str, dtype: str, cpu: str) -> None:
    problem = parse(f"activation_fwd {function} shape{len(ENDS)} {dtype}")
    x = ENDS.astype(np.float32 if dtype == "f32" else np.float64)
    expected = problem.reference(x)
    smallest = float(np.finfo(x.dtype).tiny)
    for name, ours in results_of(problem, x, cpu=cpu).items():
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=smallest, err_msg=name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_small_numbers_keep_their_digits(function: str) -> None:
    """The norm of a tensor hides errors of its small elements: here each is held to its own size."""
    problem = parse(f"activation_fwd {function} shape4000")
    x = (np.random.default_rng(0).choice([-1, 1], 4000) * np.logspace(-20, 1.9, 4000)).astype(np.float32)
    for name, ours in results_of(problem, x).items():
        expected = problem.reference(x)
        is_large = np.abs(expected) > 1e-30
        np.testing.assert_allclose(ours[is_large], expected[is_large], rtol=2e-6, err_msg=name)
