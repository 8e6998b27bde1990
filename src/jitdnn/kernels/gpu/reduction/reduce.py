"""Reductions as programs over rows: one sweep, long rows in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jitdnn.kernels.algorithm import Device, Kernel, summation_bound
from jitdnn.kernels.formulas.reduce import own_program, program_of, with_axes
from jitdnn.kernels.gpu.reduction.generator import Rows, RowsAlgorithm
from jitdnn.problems.problem import Problem
from jitdnn.problems.reduce import Reduce
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.tensor import TensorDescriptor


class RowsReduce(RowsAlgorithm):
    """One sweep over every row: by a team of threads, or with a thread to some neighbouring rows."""

    problem = Reduce

    def rows(self, problem: Problem, device: Device) -> Rows:
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
    rows = Rows(own_program(expressions, reductions), tensors, axes)
    kernel = rows.kernel(device, computing)
    return kernel.build(), kernel.workspace()
