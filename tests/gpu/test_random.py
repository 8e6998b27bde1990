"""Random fills and dropout on GPUs: the very numbers of the definition, whatever the order in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cases
from cases import arranged, make_case
from harness import check, run
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.formulas.dropout import PhiloxDropout
from jitdnn.kernels.formulas.random import PhiloxFill
from jitdnn.kernels.gpu.random.generator import PhiloxLoops
from jitdnn.problems import parse
from jitdnn.rtcg.expression import trace

FILLS = ["random bernoulli p0.3", "random uniform low-1.5 high2.25", "random normal mean0.5 std2.0"]
SHAPES = ["shape1", "shape8x5x7", "shape5x9x7", "shape3x16x4x5 nhwc", "shape10003", "shape0x5", "shape4096"]


@pytest.fixture(params=[1031, 1024], ids=["odd", "aligned"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointers at odd elements, or at multiples of 16 bytes."""
    monkeypatch.setattr(cases, "GUARD", request.param)


@pytest.mark.parametrize("kind", [*FILLS, "dropout p0.3"])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_awkward_shapes(device: Any, guard: None, kind: str, number: int) -> None:
    for dtype in {"f32", ("f64", "f16", "bf16")[number % 3]}:
        assert check(parse(f"{kind} {SHAPES[number]} {dtype}"), device) == {"philox"}


@pytest.mark.parametrize(
    "words", ["p0.5 shape16x33 mask", "p0.25 shape9x40 byte_mask bf16", "p0.0 shape33", "p1.0 shape2048"]
)
def test_dropout(device: Any, guard: None, words: str) -> None:
    check(parse(f"dropout {words}"), device)


@pytest.mark.parametrize("kind", ["dropout p0.3", FILLS[2]])
@pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned"])
def test_orders_in_memory(device: Any, arrangement: str, kind: str) -> None:
    check(arranged(parse(f"{kind} shape2x5x3x18"), arrangement), device)


def test_words_are_those_of_the_definition(device: Any) -> None:
    """Bit by bit, where no rounding comes between."""
    for words in ("uniform low0.0 high1.0 shape3x5x70", "bernoulli p0.5 shape4x50 f64"):
        problem = parse(f"random {words}")
        case = make_case(problem)
        (found,) = run(device, PhiloxFill(PhiloxLoops()).build(problem, device), case, 0)
        np.testing.assert_array_equal(found.astype(np.float64), case.results[0])


def test_refusals(device: Any) -> None:
    epilogue = Epilogue(trace(lambda a: a))
    assert "no epilogue" in str(
        PhiloxFill(PhiloxLoops()).refuse(parse(f"{FILLS[0]} shape3"), device, epilogue)
    )
    assert "no epilogue" in str(
        PhiloxDropout(PhiloxLoops()).refuse(parse("dropout p0.5 shape3"), device, epilogue)
    )


def test_compiles_for_every_architecture(architecture: Any) -> None:
    for dtype in ("f32", "bf16", "f64"):
        PhiloxDropout(PhiloxLoops()).build(parse(f"dropout p0.5 shape1048576 {dtype} mask"), architecture)
        PhiloxFill(PhiloxLoops()).build(parse(f"{FILLS[2]} shape1048576 {dtype}"), architecture)
