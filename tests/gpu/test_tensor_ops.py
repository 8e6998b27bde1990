"""Sums, copies, operations, filling and the learned slope on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.problems import AddTensor, Problem, parse
from strategies import additions

ADDITIONS = [
    AddTensor.make((7, 1), (1, 9)),
    AddTensor.make((2, 19, 5, 6), (19, 1, 1)),  # a bias
    AddTensor.make((2, 19, 5, 6), (19, 1, 1), layout="nhwc"),
    AddTensor.make((63, 65), (63, 1)),
    AddTensor.make((1,), (3, 4, 5)),
    AddTensor.make((2, 1, 3, 1, 2, 1, 2, 5), (2, 1, 3, 1, 2, 1, 1)),
    AddTensor.make((100003,), (100003,)),
    AddTensor.make((0, 5), (5,)),
    AddTensor.make((65, 63), a_strides=(1, 65)),  # a transpose
    AddTensor.make((1,), out=(3, 17), dtype="f64"),
    parse("copy shape2x19x6x5 nchw out=nhwc"),
    parse("copy shape2x3x4x5x6 f64 nhwc out=nchw"),
]
OPERATIONS = [
    "op_tensor add shape3x5x7 ascale0.5 bscale-2.0 f32",
    "op_tensor mul shape3x5x37 bscale3.0 f16 b=s0,37,1",
    "op_tensor min shape33x5 f64 b=s0,1",
    "op_tensor max shape2x19x6x5 bf16 nhwc b=nchw",
    "op_tensor not shape3x5 ascale2.0",
    "fill shape3x5x7 f32",
    "fill shape100003 bf16",
    "fill shape3x5 i8 nchw out=s1,3",
]


@pytest.mark.parametrize("problem", ADDITIONS, ids=str)
def test_sums_and_copies(device: Any, problem: Problem) -> None:
    assert check(problem, device, scales=((1.0, 0.0), (-0.75, 0.5), (2.0, 1.0))) == {"elementwise"}


@pytest.mark.parametrize("text", OPERATIONS)
def test_operations_and_filling(device: Any, text: str) -> None:
    assert check(parse(text), device) == {"elementwise"}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(device: Any, arrangement: str) -> None:
    check(arranged(parse("add shape2x5x3x18"), arrangement), device)
    check(arranged(parse("copy shape2x5x3x18 bf16"), arrangement), device)


@settings(
    max_examples=examples(8), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(problem=additions())
def test_any_sum(device: Any, problem: AddTensor) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize(
    "words", ["shape3x19x5 f32", "shape2x8x40 single bf16", "shape40x7 axis0 f64", "shape0x3"]
)
def test_learned_slopes(device: Any, words: str) -> None:
    assert check(parse(f"prelu_fwd {words}"), device) == {"elementwise"}
    assert check(parse(f"prelu_bwd {words}"), device)


def test_learned_slopes_in_other_orders(device: Any) -> None:
    for arrangement in ("gaps", "backwards", "turned"):
        for kind in ("prelu_fwd", "prelu_bwd"):
            check(arranged(parse(f"{kind} shape3x9x5"), arrangement), device)
