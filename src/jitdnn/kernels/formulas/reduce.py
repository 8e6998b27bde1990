"""Reductions as programs over rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.kernels.algorithm import Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowGenerator, RowPlan, Step
from jitdnn.kernels.formulas.row_programs import ARGS, Pass, Program
from jitdnn.problems.reduce import Reduce
from jitdnn.rtcg.expression import Expression, apply, trace
from jitdnn.rtcg.folds import Reduction
from jitdnn.tensor import TensorDescriptor

# the reduction, what is reduced, and what becomes of the result (None: nothing)
_OPS: dict[str, tuple[str, Callable[[Any], Any], Callable[..., Any] | None]] = {
    "add": ("add", lambda x: x, None),
    "mul": ("multiply", lambda x: x, None),
    "min": ("min", lambda x: x, None),
    "max": ("max", lambda x: x, None),
    "amax": ("max", abs, None),
    "avg": ("add", lambda x: x, lambda n, total: total * n),
    "norm1": ("add", abs, None),
    "norm2": ("add", lambda x: x * x, lambda total: apply("sqrt", total)),
    "mul_no_zeros": ("multiply", lambda x: apply("where", x == 0.0, 1.0, x), None),
}
_NAN_BECOMES = {"min": float("inf"), "max": -float("inf"), "amax": 0.0}


def program_of(problem: Reduce) -> Program:
    """The reduction as a program; its outputs are y, then the indices."""
    reduction, element, finish = _OPS[problem.op]
    if not problem.propagate_nan and problem.op in _NAN_BECOMES:
        counted = trace(lambda x: apply("where", x == x, element(x), _NAN_BECOMES[problem.op]))
    else:
        counted = trace(lambda x: element(x))
    if problem.indices is not None:
        return Program((Pass((("arg" + reduction, counted),)),), ((0, 0), (1, 1)))
    parameters = (1.0 / problem.count,) if problem.op == "avg" and problem.count else ()
    scalars = () if finish is None else (trace(finish),)
    result = len(parameters) + len(scalars)
    return Program((Pass(((reduction, counted),), scalars),), ((0, result),), parameters)


def with_axes(problem: Reduce, tensor: TensorDescriptor) -> TensorDescriptor:
    """y or indices with the reduced axes in place."""
    if problem.keepdims:
        return tensor
    if len(problem.axes) == len(problem.x.shape):
        return TensorDescriptor((1,) * len(problem.x.shape), (0,) * len(problem.x.shape), tensor.dtype)
    for axis in problem.axes:
        tensor = tensor.insert_axis(axis)
    return tensor


def own_program(expressions: Sequence[Expression], reductions: Sequence[Reduction]) -> Program:
    """The program that reduces each expression; its outputs are the results, of "argmax" and "argmin" the positions."""
    results, value = [], 0
    for reduction in reductions:
        is_position = reduction in ARGS
        results.append(value + is_position)
        value += 1 + is_position
    row_pass = Pass(tuple(zip(reductions, expressions, strict=True)))
    return Program((row_pass,), tuple(enumerate(results)))


class RowReduce(RowAlgorithm[Reduce]):
    """One pass over every row; long rows are shared in parts."""

    problem = Reduce

    def plan(self, problem: Reduce, device: Device, epilogue: Epilogue | None) -> RowPlan:
        outputs = [with_axes(problem, operand.descriptor) for operand in problem.outputs]
        indices = (1,)
        return RowPlan([Step(program_of(problem), (problem.x, *outputs), tuple(problem.axes), indices)])

    def error_of(self, problem: Reduce) -> float:
        return summation_bound(problem)


def build_reduction(
    generator: RowGenerator,
    expressions: Sequence[Expression],
    reductions: Sequence[Reduction],
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel that reduces each expression of the inputs, and the bytes of workspace that it needs."""
    program = own_program(expressions, reductions)
    kernel = generator.kernel(Step(program, tuple(tensors), tuple(axes), compute=computing), device)
    return kernel.build(), kernel.workspace()


def build_rows(generator: RowGenerator, step: Step, device: Device) -> tuple[Kernel, int]:
    """The kernel of a program over rows, and the bytes of workspace that it needs."""
    kernel = generator.kernel(step, device)
    return kernel.build(), kernel.workspace()
