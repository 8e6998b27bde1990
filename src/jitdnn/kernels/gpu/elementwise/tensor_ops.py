"""Whole tensors, elementwise: sums and copies, pairs under one operation, filling; one pass over memory each."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.formulas.tensor_ops import add_expression, op_expression
from jitdnn.kernels.formulas.transform import constant
from jitdnn.kernels.gpu.elementwise.algorithm import Elementwise
from jitdnn.problems.problem import Problem
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.rtcg.expression import Expression

_ONE = constant(1.0)


class ElementwiseAdd(Elementwise):
    """Sums and copies, broadcast or in another order in memory."""

    problem = AddTensor

    def expression(self, problem: Problem) -> Expression:
        return add_expression(cast(AddTensor, problem))


class ElementwiseOp(Elementwise):
    """An operation on one tensor or two, scaled as they are read."""

    problem = OpTensor

    def expression(self, problem: Problem) -> Expression:
        return op_expression(cast(OpTensor, problem))


class ElementwiseFill(Elementwise):
    """A constant, blended with what is there."""

    problem = Fill

    def expression(self, problem: Problem) -> Expression:
        return _ONE
