"""What elements of the results of problems on whole tensors are made of, for every target."""

from __future__ import annotations

from jitdnn.kernels.formulas.transform import COPY
from jitdnn.problems.tensor_ops import AddTensor, OpTensor
from jitdnn.rtcg.expression import Expression, apply, trace

_SUM = trace(lambda a, b: a + b)
_OPERATIONS = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum", "sqrt": "sqrt"}


def add_expression(problem: AddTensor) -> Expression:
    """Of a and b, or of a alone."""
    return COPY if problem.b is None else _SUM


def op_expression(problem: OpTensor) -> Expression:
    """Of a and b, or of a alone, each scaled first."""
    if problem.operation == "not":
        return trace(lambda a: 1.0 - problem.a_scale * a)
    name = _OPERATIONS[problem.operation]
    if problem.b is None:
        return trace(lambda a: apply(name, problem.a_scale * a))
    return trace(lambda a, b: apply(name, problem.a_scale * a, problem.b_scale * b))
