"""Sums and copies between any two orders in memory, with broadcast."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from jitdnn.problems import AddTensor, Problem, parse
from strategies import additions

ADDITIONS = [
    AddTensor.make((1,), (1,)),
    AddTensor.make((7, 1), (1, 9)),
    AddTensor.make((2, 19, 5, 6), (19, 1, 1)),  # a bias
    AddTensor.make((2, 19, 5, 6), (19, 1, 1), layout="nhwc"),
    AddTensor.make((63, 65), (65,)),
    AddTensor.make((63, 65), (63, 1)),
    AddTensor.make((3, 4, 5), (1,), "f64"),
    AddTensor.make((1,), (3, 4, 5)),
    AddTensor.make((2, 1, 3, 1, 2, 1, 2, 5), (2, 1, 3, 1, 2, 1, 1)),
    AddTensor.make((100003,), (100003,)),
    AddTensor.make((0, 5), (5,)),
]

COPIES = [
    AddTensor.make((1,)),
    AddTensor.make((65, 63), a_strides=(1, 65)),  # a transpose
    AddTensor.make((19, 1, 1), out=(2, 19, 5, 6)),
    AddTensor.make((1,), out=(3, 17), dtype="f64"),
    parse("copy shape2x19x6x5 nchw out=nhwc"),
    parse("copy shape2x19x6x5 nhwc out=nchw"),
    parse("copy shape2x3x4x5x6 f64 nhwc out=nchw"),
    AddTensor.make((100003,)),
    AddTensor.make((0, 5)),
]


@pytest.mark.parametrize("problem", ADDITIONS + COPIES, ids=str)
def test_awkward_shapes(problem: Problem) -> None:
    # AddTensor of the legacy interfaces is the last pair: out += alpha * a
    check(problem, scales=((1.0, 0.0), (-0.75, 0.5), (2.0, 1.0)))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("text", ["add shape2x5x3x18", "copy shape2x5x3x18", "add shape3x35 f64"])
def test_orders_in_memory(text: str, arrangement: str) -> None:
    check(arranged(parse(text), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("text", ["add shape3x37 b=s0,1", "copy shape3x37 f64", "copy shape2x9x7 out=nhwc"])
def test_narrower_instruction_sets(text: str, cpu: str) -> None:
    check(parse(text), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    assert unreached([*ADDITIONS, *COPIES]) == set()


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(additions())
def test_any_sum(problem: AddTensor) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))
