"""Whole tensors, elementwise: sums and copies, pairs under one operation, filling; one pass over memory each."""

from __future__ import annotations

from jitdnn.kernels.formulas.elementwise import ElementwiseAlgorithm
from jitdnn.kernels.formulas.transform import COPY, constant
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.rtcg.expression import Expression, apply, trace

_ONE = constant(1.0)
_SUM = trace(lambda a, b: a + b)
_OPERATIONS = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum", "sqrt": "sqrt"}


class ElementwiseAdd(ElementwiseAlgorithm[AddTensor]):
    """Sums and copies, broadcast or in another order in memory."""

    problem = AddTensor

    def expression(self, problem: AddTensor) -> Expression:
        return COPY if problem.b is None else _SUM


class ElementwiseOp(ElementwiseAlgorithm[OpTensor]):
    """An operation on one tensor or two, scaled as they are read."""

    problem = OpTensor

    def expression(self, problem: OpTensor) -> Expression:
        if problem.operation == "not":
            return trace(lambda a: 1.0 - problem.a_scale * a)
        name = _OPERATIONS[problem.operation]
        if problem.b is None:
            return trace(lambda a: apply(name, problem.a_scale * a))
        return trace(lambda a, b: apply(name, problem.a_scale * a, problem.b_scale * b))


class ElementwiseFill(ElementwiseAlgorithm[Fill]):
    """A constant, blended with the old content."""

    problem = Fill

    def expression(self, problem: Fill) -> Expression:
        return _ONE
