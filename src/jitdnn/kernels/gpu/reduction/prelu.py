"""The rectifier with a learned slope: elementwise forward; backward both gradients in one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, summation_bound
from jitdnn.kernels.formulas.prelu import BACKWARD, FORWARD, prelu_tensors
from jitdnn.kernels.gpu.elementwise.algorithm import Elementwise
from jitdnn.kernels.gpu.reduction.generator import Rows, RowsAlgorithm
from jitdnn.problems.prelu import PRelu
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import TensorDescriptor, compute_dtype


class PReluForward(Elementwise):
    """One pass over memory, whatever the strides."""

    problem = PRelu
    takes_no_epilogue = "an activation takes no epilogue: it is one itself"

    def expression(self, problem: Problem) -> Expression:
        return FORWARD

    def tensors(self, problem: Problem) -> Sequence[TensorDescriptor]:
        return prelu_tensors(cast(PRelu, problem))


class PReluBackward(RowsAlgorithm):
    """dx and dweight in one pass: a row is all that shares a weight."""

    problem = PRelu

    def rows(self, problem: Problem, device: Device) -> Rows:
        prelu = cast(PRelu, problem)
        return Rows(BACKWARD, prelu_tensors(prelu), prelu.sums)

    def error_bound(self, problem: Problem) -> float:
        prelu = cast(PRelu, problem)
        terms = prelu.x.size / max(1, prelu.weight.size)
        return summation_bound(problem) + UNIT_ROUNDOFF[compute_dtype(problem.dtype)] * sqrt(terms)
