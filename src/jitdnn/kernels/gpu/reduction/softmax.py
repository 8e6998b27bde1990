"""Softmax and its gradient as programs over rows: a row that fits into registers is read once, a longer one twice."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device
from jitdnn.kernels.formulas.softmax import JOINT_PROGRAMS, PROGRAMS
from jitdnn.kernels.gpu.reduction.generator import Rows, RowsAlgorithm
from jitdnn.problems.problem import Problem
from jitdnn.problems.softmax import Softmax
from jitdnn.tensor import compute_dtype


class RowsSoftmax(RowsAlgorithm):
    """A team of threads to a row, or a thread to some neighbouring rows."""

    problem = Softmax

    def rows(self, problem: Problem, device: Device) -> Rows:
        softmax = cast(Softmax, problem)
        tensors = [operand.descriptor for operand in softmax.operands]
        rows = Rows(PROGRAMS[softmax.direction, softmax.algorithm], tensors, softmax.axis)
        if softmax.direction == "fwd" and not rows.kernel(device).layout.is_held:
            joint = JOINT_PROGRAMS.get(softmax.algorithm)
            return rows if joint is None else rows._replace(program=joint)
        return rows

    def error_bound(self, problem: Problem) -> float:
        # the exponentials, and the roundings of their arguments, which may be large numbers
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
