"""Algorithms that are one elementwise loop over all operands of a problem, for the generator of any target.

A subclass says the expression of one element of the output. Its tensors are the operands, inputs first, of one
shape; a broadcast axis has stride 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Device,
    Epilogue,
    Kernel,
    OwnProblem,
    PlannedAlgorithm,
)
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor, compute_dtype


def computing_dtype(dtypes: Sequence[str]) -> str:
    """The type that elements of these types are computed in: i64 if none is real."""
    return compute_dtype(*dtypes) if any(dtype in REAL_DTYPES for dtype in dtypes) else "i64"


def as_sequence(expressions: Expression | Sequence[Expression]) -> tuple[Expression, ...]:
    """One expression or several as several."""
    return (expressions,) if isinstance(expressions, Expression) else tuple(expressions)


class ElementwiseGenerator(Protocol):
    """What makes elementwise loops for a target."""

    function_error: float
    """Unit roundoffs by which a function such as tanh may be off, its gradient formula included."""

    def refuse(
        self, tensors: Sequence[TensorDescriptor], device: Device, computing: str | None = None
    ) -> str | None:
        """Why a device cannot run the loop; None if it can."""

    def estimate(self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device) -> float:
        """Expected seconds of the kernel."""

    def build(
        self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device, computing: str
    ) -> Kernel:
        """The kernel; `computing` is the type of the arithmetic."""


class ElementwiseLoop(NamedTuple):
    """An expression over tensors of one shape, inputs first, and the type that it is computed in."""

    expression: Expression
    tensors: Sequence[TensorDescriptor]
    computing: str


class ElementwiseAlgorithm(PlannedAlgorithm[OwnProblem, ElementwiseLoop, Device]):
    """One pass over memory, whatever the strides: a subclass has the expression."""

    name = "elementwise"
    deterministic = True
    takes_no_epilogue = "it takes no epilogue: use jd.elementwise instead"

    def __init__(self, generator: ElementwiseGenerator) -> None:
        self.generator = generator

    @abstractmethod
    def expression(self, problem: OwnProblem) -> Expression:
        """What one element of the output is made of."""

    def tensors(self, problem: OwnProblem) -> Sequence[TensorDescriptor]:
        """The operands, of one shape."""
        return [operand.descriptor for operand in problem.operands]

    def refusal(self, problem: OwnProblem, device: Device, epilogue: Epilogue | None) -> str | None:
        _, tensors, computing = self.plan(problem, device, epilogue)
        return self.generator.refuse(tensors, device, computing)

    def plan(self, problem: OwnProblem, device: Device, epilogue: Epilogue | None) -> ElementwiseLoop:
        tensors = self.tensors(problem)
        computing = compute_dtype(*(tensor.dtype for tensor in tensors))
        return ElementwiseLoop(self.expression(problem), tensors, computing)

    def seconds_of(self, plan: ElementwiseLoop, device: Device) -> float:
        return self.generator.estimate(plan.expression, plan.tensors, device)

    def error_of(self, problem: OwnProblem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: ElementwiseLoop, device: Device) -> Kernel:
        return self.generator.build(plan.expression, plan.tensors, device, computing=plan.computing)
