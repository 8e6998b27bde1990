"""The rectifier with a learned slope, forward as an expression of (x, weight), backward as a program over rows."""

from __future__ import annotations

from jitdnn.kernels.formulas.row_programs import Program, Sweep
from jitdnn.problems.prelu import PRelu
from jitdnn.rtcg.expression import trace, where
from jitdnn.tensor import TensorDescriptor

FORWARD = trace(lambda x, weight: where(x > 0.0, x, weight * x))
BACKWARD = Program(
    sweeps=(
        Sweep(
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
