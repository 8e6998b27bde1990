"""The rectifier with a learned slope, forward as an expression of (x, weight), backward as a program over rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue, summation_bound
from jitdnn.kernels.formulas.elementwise import ElementwiseAlgorithm
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowPlan, Step
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.problems.prelu import PRelu
from jitdnn.rtcg.expression import Expression, trace, where
from jitdnn.tensor import TensorDescriptor, compute_dtype

FORWARD = trace(lambda x, weight: where(x > 0.0, x, weight * x))
BACKWARD = Program(
    passes=(
        Pass(
            reductions=(("add", trace(lambda dy, x: where(x > 0.0, 0.0, dy * x))),),
            writes=((0, trace(lambda dy, x, weight: where(x > 0.0, dy, weight * dy))),),
        ),
    ),
    row_outputs=((1, 0),),
)


def prelu_tensors(problem: PRelu) -> list[TensorDescriptor]:
    """The operands with the shape of x."""
    return [
        problem.spread(operand.descriptor) if "weight" in operand.name else operand.descriptor
        for operand in problem.operands
    ]


class PReluForward(ElementwiseAlgorithm[PRelu]):
    """One pass over memory, whatever the strides."""

    problem = PRelu
    takes_no_epilogue = "an activation takes no epilogue: it is one itself"

    def expression(self, problem: PRelu) -> Expression:
        return FORWARD

    def tensors(self, problem: PRelu) -> Sequence[TensorDescriptor]:
        return prelu_tensors(problem)


class PReluBackward(RowAlgorithm[PRelu]):
    """dx and dweight in one pass: a row is all that shares a weight."""

    own_name = "rows"
    problem = PRelu

    def plan(self, problem: PRelu, device: Device, epilogue: Epilogue | None) -> RowPlan:
        return RowPlan([Step(BACKWARD, tuple(prelu_tensors(problem)), tuple(problem.sums))])

    def error_of(self, problem: PRelu) -> float:
        terms = problem.x.size / max(1, problem.weight.size)
        return summation_bound(problem) + UNIT_ROUNDOFF[compute_dtype(problem.dtype)] * sqrt(terms)
