"""Activation functions, forward and backward, as elementwise loops."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise, estimate_elementwise
from jitdnn.problems.activation import Activation
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.activations import ACTIVATIONS, activation
from jitdnn.rtcg.expression import Expression


def _expression(problem: Activation) -> Expression:
    known = activation(problem.function, problem.coef, problem.propagate_nan)
    return known.forward if problem.direction == "fwd" else known.backward(problem.saved)


class ElementwiseActivation(Algorithm):
    """One pass over memory, whatever the strides; dx = dy * f'(x) in the same pass."""

    name = "elementwise"
    problem = Activation
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "an activation takes no epilogue: it is one itself"
        function = cast(Activation, problem).function
        if function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return f"{function} is not written in the expression language: there are {known}"
        return None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        tensors = [operand.descriptor for operand in problem.operands]
        return estimate_elementwise(_expression(cast(Activation, problem)), tensors, device)

    def error_bound(self, problem: Problem) -> float:
        return 8.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        tensors = [operand.descriptor for operand in problem.operands]
        return build_elementwise(_expression(cast(Activation, problem)), tensors, device)
