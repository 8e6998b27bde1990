"""Whole tensors, elementwise: sums and copies, pairs under one operation, filling; one pass over memory each."""

from __future__ import annotations

from typing import ClassVar, cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise, estimate_elementwise
from jitdnn.kernels.formulas.tensor_ops import add_expression, op_expression
from jitdnn.kernels.formulas.transform import constant
from jitdnn.problems.problem import Problem
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import compute_dtype

_ONE = constant(1.0)


class _Elementwise(Algorithm):
    name = "elementwise"
    deterministic = True
    takes_no_epilogue: ClassVar[str] = "it takes no epilogue: use jd.elementwise instead"

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return self.takes_no_epilogue if epilogue is not None else None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        tensors = [operand.descriptor for operand in problem.operands]
        return estimate_elementwise(self._expression(problem), tensors, device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        tensors = [operand.descriptor for operand in problem.operands]
        computing = compute_dtype(*(tensor.dtype for tensor in tensors))
        return build_elementwise(self._expression(problem), tensors, device, computing=computing)

    def _expression(self, problem: Problem) -> Expression:
        raise NotImplementedError


class ElementwiseAdd(_Elementwise):
    """Sums and copies, broadcast or in another order in memory."""

    problem = AddTensor

    def _expression(self, problem: Problem) -> Expression:
        return add_expression(cast(AddTensor, problem))


class ElementwiseOp(_Elementwise):
    """An operation on one tensor or two, scaled as they are read."""

    problem = OpTensor

    def _expression(self, problem: Problem) -> Expression:
        return op_expression(cast(OpTensor, problem))


class ElementwiseFill(_Elementwise):
    """A constant, blended with what is there."""

    problem = Fill

    def _expression(self, problem: Problem) -> Expression:
        return _ONE
