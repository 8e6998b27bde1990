"""Softmax, forward and backward: every algorithm on the sizes that hurt and on numbers near the ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.problems import Problem, parse
from strategies import softmaxes

ALGORITHMS = ("fast", "accurate", "log")
DIRECTIONS = ("fwd", "bwd")

SHAPES = [
    "shape1 axis0",
    "shape1x1 axis1",
    "shape3x1 axis1",
    "shape7x10 axis1",
    "shape5x63 axis1",
    "shape4x65 axis1",
    "shape2x1000 axis1",
    "shape2x70001 axis1",
    "shape7000x3 axis0",
    "shape67x3 axis1",
    "shape9x17 axis0",
    "shape257 axis0",
    "shape2x19x5x7 axis1",
    "shape2x19x5x7 axis1 nhwc",
    "shape2x3x16x33 axis1",
    "shape1x65x3x4 axis1 nhwc",
    "shape3x5x4x7 axis1x2x3",  # instance
    "shape3x5x4x7 axis1x2x3 nhwc",
    "shape2x3x70 axis2",
    "shape3x4x5x6 axis0x2",
    "shape2x3x4x5x6 axis1",
    "shape2x2x2x2x2x2x2x3 axis1x7",
    "shape4x33 axis1 f64",
    "shape2x9x5x7 axis1 f64",
    "shape2x9x5x7 axis1x2x3 f64 nhwc",
    "shape0x10 axis1",
    "shape2x0x3 axis2",
]


def softmax(words: str, algorithm: str, direction: str) -> Problem:
    return parse(f"softmax_{direction} {algorithm} {words}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, algorithm: str, direction: str) -> None:
    check(softmax(words, algorithm, direction))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", ["shape3x18x5 axis1", "shape3x5x18 axis1x2"])
def test_orders_in_memory(words: str, direction: str, arrangement: str) -> None:
    # a y whose elements share memory is no softmax, but the gradient is defined for any y
    check(arranged(softmax(words, "accurate", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("words", ["shape3x37 axis1", "shape2x7x5x5 axis1"])
def test_narrower_instruction_sets(words: str, algorithm: str, direction: str, cpu: str) -> None:
    check(softmax(words, algorithm, direction), cpu=cpu)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    problems = [softmax(words, algorithm, direction) for words in SHAPES for algorithm in ALGORITHMS]
    assert unreached(problems) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(softmaxes())
def test_any_softmax(problem: Problem) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


ROWS = {
    "large": ([1000.0, 1000, -1000], [0.5, 0.5, 0]),
    "equal": ([-1e30, -1e30, -1e30], [1 / 3, 1 / 3, 1 / 3]),
    "one": ([3e38, -3e38, 0.0], [1, 0, 0]),
    "masked": ([-np.inf, 0.0, 0.0], [0, 0.5, 0.5]),
    "nan": ([0.0, np.nan, 0.0], [np.nan] * 3),
}


@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("row", ROWS)
def test_extremes(row: str, axis: int) -> None:
    """ "accurate" and "log" stay in range for any finite numbers; a NaN spoils its own row only."""
    x, y = (np.array(values, np.float32) for values in ROWS[row])
    rows = np.stack([x, np.zeros(3, np.float32), x])
    expected = np.stack([y, np.full(3, 1 / 3, np.float32), y])
    if axis == 0:
        rows, expected = rows.T, expected.T
    for name, ours in results_of(parse(f"softmax_fwd accurate shape3x3 axis{axis}"), rows).items():
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-30, err_msg=name)
    for name, ours in results_of(parse(f"softmax_fwd log shape3x3 axis{axis}"), rows).items():
        with np.errstate(under="ignore"):
            np.testing.assert_allclose(np.exp(ours), expected, rtol=1e-6, atol=1e-30, err_msg=name)


@pytest.mark.parametrize("words", ["shape6x41 axis1", "shape2x41x3 axis1"])
def test_sums_to_one(words: str) -> None:
    problem = parse(f"softmax_fwd accurate {words}")
    x = np.random.default_rng(0).uniform(-80, 80, problem.output.shape).astype(np.float32)
    for name, ours in results_of(problem, x).items():
        np.testing.assert_allclose(ours.sum(axis=1), 1, rtol=1e-5, err_msg=name)
        assert (ours >= 0).all(), name


@pytest.mark.parametrize("words", ["shape6x41 axis1", "shape2x41x3 axis1"])
def test_log_keeps_digits_where_probabilities_vanish(words: str) -> None:
    problem = parse(f"softmax_fwd log {words}")
    x = np.zeros(problem.output.shape, np.float32)
    x[:, 0] = -500
    expected = problem.reference(x)
    assert expected[:, 0].max() < -500
    for name, ours in results_of(problem, x).items():
        np.testing.assert_allclose(ours, expected, rtol=1e-6, err_msg=name)
