"""One sweep over every row, with vectors along it or across many; long rows are shared in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jitdnn.kernels.algorithm import Device, Kernel, summation_bound
from jitdnn.kernels.cpu.reduction.algorithm import Rows, Swept
from jitdnn.kernels.cpu.reduction.generator import build_sweeps, workspace_sweeps
from jitdnn.kernels.formulas.reduce import own_program, program_of, with_axes
from jitdnn.problems.problem import Problem
from jitdnn.problems.reduce import Reduce
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.tensor import TensorDescriptor


class SweptReduce(Swept):
    """One sweep over every row, with vectors along it or across many; long rows are shared in parts."""

    name = "sweeps"
    problem = Reduce

    def rows(self, problem: Problem) -> Rows:
        reduce = cast(Reduce, problem)
        outputs = [with_axes(reduce, operand.descriptor) for operand in reduce.outputs]
        return Rows(program_of(reduce), (reduce.x, *outputs), reduce.axes, (1,))

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)


def build_reduction(
    expressions: Sequence[Expression],
    reductions: Sequence[Reduction],
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel that reduces each expression of the inputs, and the bytes of workspace that it needs."""
    program = own_program(expressions, reductions)
    kernel = build_sweeps(program, tensors, axes, device, compute=computing)
    return kernel, workspace_sweeps(program, tensors, axes, device, computing)
