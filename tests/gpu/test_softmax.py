"""Softmax on GPUs, forward and backward: rows along and across, short and long, of any layout."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged, make_case
from examples import examples
from harness import check, run
from jitdnn.kernels.formulas.softmax import RowSoftmax
from jitdnn.kernels.gpu.reduction.generator import RowLoops
from jitdnn.problems import Problem, Softmax, parse
from strategies import softmaxes

ROWS = RowSoftmax(RowLoops())


def kernel_of(problem: Softmax, device: Any) -> Any:
    """The kernel of the only step."""
    (step,) = ROWS.plan(problem, device, None).steps
    return ROWS.generator.kernel(step, device)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FIXTURES = (HealthCheck.function_scoped_fixture,)
ALGORITHMS = ("fast", "accurate", "log")
DIRECTIONS = ("fwd", "bwd")

SHAPES = [
    "shape1 axis0",
    "shape3x1 axis1",
    "shape7x10 axis1",
    "shape5x63 axis1 f16",
    "shape4x65 axis1 bf16",
    "shape2x1000 axis1",
    "shape2x1536 axis1 bf16",
    "shape3x2053 axis1 f16",
    "shape2x40960 axis1 bf16",
    "shape2x70001 axis1",  # does not fit into registers
    "shape7000x3 axis0",
    "shape67x3 axis1",
    "shape9x17 axis0",
    "shape257 axis0",
    "shape2x19x5x7 axis1",
    "shape2x19x5x8 axis1 bf16",
    "shape2x19x5x7 axis1 nhwc",
    "shape2x70x8x4 axis1",
    "shape3x5x4x7 axis1x2x3 nhwc",
    "shape2x3x70 axis2",
    "shape3x4x5x6 axis0x2",
    "shape2x2x2x2x2x2x2x3 axis1x7",
    "shape4x33 axis1 f64",
    "shape2x9x5x7 axis1x2x3 f64 nhwc",
    "shape0x10 axis1",
    "shape2x0x3 axis2",
]


def softmax(words: str, algorithm: str, direction: str) -> Problem:
    return parse(f"softmax_{direction} {algorithm} {words}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, direction: str, device: Any) -> None:
    algorithm = ALGORITHMS[SHAPES.index(words) % 3]
    assert "rows" in check(softmax(words, algorithm, direction), device)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("words", ["shape3x300 axis1 bf16", "shape2x30x12 axis1", "shape2x40000 axis1"])
def test_algorithms(words: str, algorithm: str, device: Any) -> None:
    for direction in DIRECTIONS:
        assert "rows" in check(softmax(words, algorithm, direction), device, scales=((1.5, 0.5),))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str, device: Any) -> None:
    assert "rows" in check(
        arranged(softmax("shape3x5x18 axis1x2", "accurate", direction), arrangement), device
    )


@settings(max_examples=examples(20), deadline=None, phases=PHASES, suppress_health_check=FIXTURES)
@given(problem=softmaxes())
def test_any_softmax(device: Any, problem: Problem) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_whole_rows_that_are_not_held(direction: str, device: Any) -> None:
    """Enough of them keep the device busy without being cut; the second sweep goes back."""
    count = 4 * device.multiprocessors
    if count > 32:
        pytest.skip("takes long where so many rows are needed")
    problem = softmax(f"shape{count}x70001 axis1", "accurate", direction)
    layout = kernel_of(problem, device).layout
    assert not layout.in_registers
    assert layout.parts == 1
    assert "rows" in check(problem, device)


def test_which_rows_are_held(device: Any) -> None:
    """A row of a few thousand elements is read once, and a longer one twice."""
    for words, in_registers in (("shape2x4096 axis1", True), ("shape2x70001 axis1", False)):
        kernel = kernel_of(softmax(words, "accurate", "fwd"), device)
        assert kernel.layout.in_registers is in_registers
        passes = [row_pass for row_pass in kernel.step.program.passes if row_pass.loops]
        assert len(passes) == (3 if in_registers else 2)


NUMBERS = {
    "large": ([1000.0, 1000, -1000], [0.5, 0.5, 0]),
    "equal": ([-1e30, -1e30, -1e30], [1 / 3, 1 / 3, 1 / 3]),
    "one": ([3e38, -3e38, 0.0], [1, 0, 0]),
    "masked": ([-np.inf, 0.0, 0.0], [0, 0.5, 0.5]),
    "nan": ([0.0, np.nan, 0.0], [np.nan] * 3),
}


@pytest.mark.parametrize("length", [3, 3 * 20000])
@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("row", NUMBERS)
def test_extremes(row: str, axis: int, length: int, device: Any) -> None:
    """ "accurate" and "log" stay in range for any finite numbers; a NaN spoils its own row only."""
    x, y = (np.repeat(np.array(values, np.float32), length // 3) for values in NUMBERS[row])
    y = y / np.float32(length // 3)
    rows = np.stack([x, np.zeros(length, np.float32), x])
    expected = np.stack([y, np.full(length, 1 / length, np.float32), y])
    if axis == 0:
        rows, expected = rows.T, expected.T
    words = f"shape{rows.shape[0]}x{rows.shape[1]} axis{axis}"
    for algorithm in ("accurate", "log"):
        problem = cast(Softmax, softmax(words, algorithm, "fwd"))
        kernel = ROWS.build(problem, device)
        case = make_case(problem, given=[rows])
        (ours,) = run(device, kernel, case, ROWS.workspace(problem, device))
        with np.errstate(under="ignore"):
            ours = np.exp(ours) if algorithm == "log" else ours
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-30, err_msg=algorithm)


@pytest.mark.parametrize(
    "words",
    ["shape64x4096 axis1 bf16", "shape4x32768 axis1", "shape4x65536 axis1", "shape8x21x64x64 axis1 f16"],
)
def test_compiles(words: str, architecture: Any) -> None:
    for direction in DIRECTIONS:
        ROWS.build(softmax(words, "accurate", direction), architecture)
