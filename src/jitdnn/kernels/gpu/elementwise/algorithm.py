"""Algorithms that are one elementwise loop over all operands of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.gpu.elementwise.generator import (
    build_elementwise,
    estimate_elementwise,
    refuse_elementwise,
)
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import TensorDescriptor, compute_dtype


class Elementwise(Algorithm):
    """One pass over memory, whatever the strides: a subclass has the expression."""

    name = "elementwise"
    deterministic = True
    takes_no_epilogue: ClassVar[str] = "it takes no epilogue: use jd.elementwise instead"

    def expression(self, problem: Problem) -> Expression:
        """What one element of the output is made of."""
        raise NotImplementedError

    def tensors(self, problem: Problem) -> Sequence[TensorDescriptor]:
        """The operands, of one shape."""
        return [operand.descriptor for operand in problem.operands]

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return self.takes_no_epilogue
        return refuse_elementwise(self.tensors(problem), device, self._computing(problem))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return estimate_elementwise(self.expression(problem), self.tensors(problem), device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return build_elementwise(
            self.expression(problem), self.tensors(problem), device, computing=self._computing(problem)
        )

    def _computing(self, problem: Problem) -> str:
        return compute_dtype(*(tensor.dtype for tensor in self.tensors(problem)))
