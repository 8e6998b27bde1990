"""Sums and copies between any two orders in memory, with broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from examples import examples
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


@settings(max_examples=examples(40), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(additions())
def test_any_sum(problem: AddTensor) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


OPERATIONS = [
    parse("op_tensor add shape3x5x7 ascale0.5 bscale-2.0 f32"),
    parse("op_tensor mul shape3x5x37 bscale3.0 f16 b=s0,37,1"),
    parse("op_tensor min shape33x5 f64 b=s0,1"),
    parse("op_tensor max shape2x19x6x5 bf16 nhwc b=nchw"),
    parse("op_tensor not shape3x5 ascale2.0"),
    parse("fill shape3x5x7 f32"),
    parse("fill shape100003 bf16"),
    parse("fill shape3x5 i8 nchw out=s1,3"),
]


@pytest.mark.parametrize("problem", OPERATIONS, ids=str)
def test_operations_and_filling(problem: Problem) -> None:
    assert parse(str(problem)) == problem
    assert check(problem) == {"elementwise", "reference"}


def test_square_roots() -> None:
    problem = parse("op_tensor sqrt shape7x35 ascale4.0")
    check(problem, inputs=[np.random.default_rng(0).random((7, 35))])


@pytest.mark.parametrize("operation", ["add", "mul", "min", "max"])
def test_op_tensor_is_numpys(operation: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 1, 9)).astype("f"), rng.standard_normal((4, 1)).astype("f")
    function = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[operation]
    np.testing.assert_allclose(jd.op_tensor(a, b, operation), function(a, b), rtol=1e-6)
    out = np.ones((5, 4, 9), np.float32)
    jd.op_tensor(a, b, operation, a_scale=2.0, b_scale=-1.0, alpha=0.5, beta=3.0, out=out)
    np.testing.assert_allclose(out, 0.5 * function(2 * a, -b) + 3, rtol=1e-5, atol=1e-6)


def test_filling_and_scaling_in_place() -> None:
    x = np.full((6, 9), 2, np.float32)
    part = x[::2, 1::3]
    assert jd.fill(part, 7.5) is part
    assert jd.scale(x.T, -2.0) is not None
    expected = np.full((6, 9), -4.0)
    expected[::2, 1::3] = -15
    np.testing.assert_array_equal(x, expected)
    ages = np.array([3, 200, 255], np.uint8)
    jd.scale(ages, 1.5)
    assert ages.tolist() == [4, 255, 255]  # 4.5 to the even neighbour
    jd.fill(ages, 300)
    assert ages.tolist() == [255, 255, 255]
    with pytest.raises(jd.InvalidArgument, match="read-only"):
        jd.fill(np.broadcast_to(x, (2, 6, 9)), 1.0)


def test_bad_operations_are_refused() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(jd.InvalidArgument, match="operation is 'pow'"):
        jd.op_tensor(x, x, "pow")
    with pytest.raises(jd.InvalidArgument, match="sqrt takes 1 operands, got 2"):
        jd.op_tensor(x, x, "sqrt")
    with pytest.raises(jd.InvalidArgument, match="mul takes 2 operands, got 1"):
        jd.op_tensor(x, operation="mul")
