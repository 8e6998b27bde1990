"""Reductions on GPUs: every op along and across, long rows in parts, and reductions of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, Buffer, arranged, make_case
from examples import examples
from harness import check, run
from jitdnn.kernels.formulas.reduce import RowReduce, build_reduction, own_program
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.gpu.reduction.generator import RowLoops
from jitdnn.problems import Problem, parse
from jitdnn.problems.reduce import OPS
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.folds import Fold
from jitdnn.tensor import TensorDescriptor
from strategies import reductions

ROWS = RowReduce(RowLoops())
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FIXTURES = (HealthCheck.function_scoped_fixture,)

SHAPES = [
    "shape1 axis0",
    "shape3x1 axis1",
    "shape7x10 axis1",
    "shape5x63 axis1 keepdims",
    "shape2x70001 axis1",
    "shape7000x3 axis0",
    "shape3000x4 axis1",
    "shape2x19x5x7 axis1 nhwc",
    "shape3x5x4x7 axis0x2x3",
    "shape3x40x4x7 axis0x2x3 nhwc keepdims",
    "shape2x3x70 axis0x1x2",
    "shape2x2x2x2x2x2x2x3 axis1x7",
    "shape3x5x4 axis1 f16",
    "shape40x33 axis0 bf16",
    "shape2x3000 axis1 bf16",
    "shape2x9x5x7 axis1x2 f64 nhwc",
    "shape9000x64 axis0 bf16",
    "shape4x16x60x60 axis0x2x3 f16",
    "shape300000 axis0",
]


def inputs_of(problem: Problem, op: str) -> Any:
    if not op.startswith("mul"):  # the product of many normal numbers is 0
        return None
    rng = np.random.default_rng(0)
    shape = problem.inputs[0].descriptor.shape
    return [rng.uniform(0.99, 1.01, shape) * rng.choice([-1.0, 1.0], shape)]


@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str, device: Any) -> None:
    for op in (OPS[SHAPES.index(words) % len(OPS)], "add"):
        problem = parse(f"reduce {op} {words}")
        assert "rows" in check(problem, device, inputs=inputs_of(problem, op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "words", ["shape5x77 axis1", "shape200x9 axis0", "shape2x30000 axis1", "shape8000x12 axis0"]
)
def test_every_op(words: str, op: str, device: Any) -> None:
    problem = parse(f"reduce {op} {words}")
    assert "rows" in check(problem, device, inputs=inputs_of(problem, op))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("words", [*SHAPES[2:10], "shape300000 axis0", "shape5x30x40 axis0x2"])
def test_indices(words: str, op: str, device: Any) -> None:
    kind = ("u32", "i32", "i64")[SHAPES.index(words) % 3 if words in SHAPES else 0]
    problem = parse(f"reduce {op} {words} indices_{kind}")
    x = np.round(np.random.default_rng(1).standard_normal(problem.inputs[0].descriptor.shape) * 2)  # ties
    assert "rows" in check(problem, device, inputs=[x])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("op", ["add", "max indices_i32", "norm2"])
def test_orders_in_memory(op: str, arrangement: str, device: Any) -> None:
    assert "rows" in check(arranged(parse(f"reduce {op} shape3x18x5 axis1"), arrangement), device)


@settings(max_examples=examples(20), deadline=None, phases=PHASES, suppress_health_check=FIXTURES)
@given(problem=reductions())
def test_any_reduction(device: Any, problem: Problem) -> None:
    check(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


NUMBERS = np.array(
    [[1, np.nan, 3, -5], [np.nan] * 4, [0, 0, -0.0, 2], [-np.inf] * 4, [np.inf, 1, 2, 3]], np.float32
)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["add", "min", "max", "amax", "mul_no_zeros"])
def test_special_numbers(op: str, axis: int, device: Any) -> None:
    """NaN, infinities and zeros."""
    x = np.concatenate([NUMBERS] * 7)
    if axis == 0:
        x = np.ascontiguousarray(x.T)
    for nan in ("", " ignore_nan"):
        problem = parse(f"reduce {op} shape{x.shape[0]}x{x.shape[1]} axis{axis}{nan}")
        kernel = ROWS.build(problem, device)
        (ours,) = run(device, kernel, make_case(problem, given=[x]), ROWS.workspace(problem, device))
        np.testing.assert_allclose(ours, problem.reference(x), rtol=1e-6, err_msg=nan)


def test_accuracy_of_long_sums(device: Any) -> None:
    """Equal terms round alike: one accumulator would lose half of the digits."""
    problem = parse("reduce add shape3000000 axis0")
    x = np.full(3_000_000, 0.1, np.float32)
    kernel = ROWS.build(problem, device)
    (ours,) = run(device, kernel, make_case(problem, given=[x]), ROWS.workspace(problem, device))
    np.testing.assert_allclose(ours, 3_000_000 * np.float64(np.float32(0.1)), rtol=1e-6)


def own(
    device: Any, expressions: Sequence[Any], reduces: Sequence[Any], tensors: Sequence[TensorDescriptor],
    axes: Sequence[int], arrays: Sequence[Any], computing: str = "f32",
) -> list[Any]:  # fmt: skip
    """The results of a reduction of one's own."""
    kernel, room = build_reduction(RowLoops(), expressions, reduces, tensors, axes, device, computing)
    buffers = [Buffer(tensor) for tensor in tensors]
    for buffer, array in zip(buffers, arrays, strict=False):
        buffer.values[...] = array
    memories = [device.allocate(buffer.memory.nbytes) for buffer in buffers]
    for memory, buffer in zip(memories, buffers, strict=True):
        device.write(memory.pointer, buffer.memory)
    scratch = device.allocate(max(1, room))
    pointers = [m.pointer + b.pointer - b.memory.ctypes.data for m, b in zip(memories, buffers, strict=True)]
    kernel(None, pointers, 1.0, 0.0, scratch.pointer)
    device.synchronize()
    for memory, buffer in zip(memories, buffers, strict=True):
        device.read(buffer.memory, memory.pointer)
    return [buffer.values.copy() for buffer in buffers[len(arrays) :]]


@pytest.mark.parametrize("shape", [(5, 40), (3, 70001), (1, 1)])
def test_several_results_of_ones_own(shape: tuple[int, int], device: Any) -> None:
    """A dot product, the place of its greatest term, and a sum of whole numbers, in one pass."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, shape), rng.standard_normal(shape).astype(np.float32)
    expressions = [trace(lambda a, b: a * b), trace(lambda a, b: b), trace(lambda a, b: a)]
    row = (shape[0], 1)
    tensors = [
        TensorDescriptor.packed(s, d)
        for s, d in ((shape, "i8"), (shape, "f32"), (row, "f32"), (row, "i64"), (row, "i64"))
    ]
    dot, place, total = own(device, expressions, ["add", "argmax", "add"], tensors, (1,), [a, b])
    np.testing.assert_allclose(dot.ravel(), (a * b.astype(np.float64)).sum(1), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(place.ravel(), b.argmax(1))
    np.testing.assert_array_equal(total.ravel(), a.sum(1))


@pytest.mark.parametrize("shape", [(4, 37), (2, 50000), (37, 4), (20000, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_fold_that_does_not_commute(shape: tuple[int, int], axis: int, device: Any) -> None:
    """The last number that is not 0: elements are taken in order."""
    x = np.random.default_rng(0).integers(0, 5, shape).astype(np.float32)
    x.flat[-3:] = 0
    last = Fold(trace(lambda a, b: __import__("jitdnn").where(b == 0.0, a, b)), 0.0)
    row = tuple(1 if a == axis else n for a, n in enumerate(shape))
    tensors = [TensorDescriptor.packed(shape, "f32"), TensorDescriptor.packed(row, "f32")]
    (ours,) = own(device, [trace(lambda x: x)], [last], tensors, (axis,), [x])
    lines = np.moveaxis(x, axis, -1)
    expected = [next((v for v in line[::-1] if v), 0.0) for line in lines]
    np.testing.assert_array_equal(ours.ravel(), expected)


def test_long_rows_are_cut(device: Any) -> None:
    x, row = TensorDescriptor.packed((1, 1 << 20), "f32"), TensorDescriptor.packed((1, 1), "f32")
    program = own_program([trace(lambda x: x)], ["add"])
    assert RowLoops().kernel(Step(program, (x, row), (1,)), device).layout.parts > 1


@pytest.mark.parametrize(
    "words", ["shape64x100000 axis1", "shape100000x64 axis0 bf16", "shape64x64x56x56 axis0x2x3 f16"]
)
def test_compiles(words: str, architecture: Any) -> None:
    for op in ("add", "max indices_i64", "norm2"):
        ROWS.build(parse(f"reduce {op} {words}"), architecture)


@pytest.mark.parametrize("shape", [(3, 6, 5), (4, 70, 2)])
def test_bytes_in_short_runs(shape: tuple[int, int, int], device: Any) -> None:
    """Two neighbouring bytes are no word."""
    x = np.random.default_rng(0).integers(0, 200, shape)
    row = (shape[0], 1, 1)
    strides = (shape[1] * (shape[2] + 2), shape[2] + 2, 1)
    tensors = [TensorDescriptor(shape, strides, "u8"), TensorDescriptor.packed(row, "f32")]
    (ours,) = own(device, [trace(lambda x: x)], ["add"], tensors, (1, 2), [x])
    np.testing.assert_array_equal(ours.ravel(), x.sum((1, 2)))
