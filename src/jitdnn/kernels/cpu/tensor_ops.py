"""Sums and copies of tensors, broadcast or in another order in memory, as elementwise loops."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.elementwise import build_elementwise, estimate_elementwise
from jitdnn.problems.problem import Problem
from jitdnn.problems.tensor_ops import AddTensor
from jitdnn.rtcg.expression import trace

_SUM, _COPY = trace(lambda a, b: a + b), trace(lambda a: a)


class ElementwiseAdd(Algorithm):
    """One pass over memory, whatever the strides."""

    name = "elementwise"
    problem = AddTensor
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "add takes no epilogue: use a traced expression instead" if epilogue is not None else None

    def estimate(self, problem: Problem, device: Device) -> float:
        tensors = [operand.descriptor for operand in problem.operands]
        return estimate_elementwise(_SUM if len(tensors) == 3 else _COPY, tensors, device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        tensors = [operand.descriptor for operand in cast(AddTensor, problem).operands]
        return build_elementwise(_SUM if len(tensors) == 3 else _COPY, tensors, device)
