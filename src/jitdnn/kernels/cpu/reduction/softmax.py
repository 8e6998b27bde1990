"""Softmax and its gradient as sweeps over rows, with vectors along a row or across many."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF
from jitdnn.kernels.cpu.reduction.algorithm import Rows, Swept
from jitdnn.kernels.formulas.softmax import PROGRAMS
from jitdnn.problems.problem import Problem
from jitdnn.problems.softmax import Softmax
from jitdnn.tensor import compute_dtype


class SweptSoftmax(Swept):
    """Two or three sweeps over every row, with vectors along it or across many."""

    name = "sweeps"
    problem = Softmax

    def rows(self, problem: Problem) -> Rows:
        softmax = cast(Softmax, problem)
        tensors = [operand.descriptor for operand in softmax.operands]
        return Rows(PROGRAMS[softmax.direction, softmax.algorithm], tensors, softmax.axis)

    def error_bound(self, problem: Problem) -> float:
        # the exponentials, and the roundings of their arguments, which may be large numbers
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
