"""Activation functions, forward and backward, as elementwise loops."""

from __future__ import annotations

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue
from jitdnn.kernels.formulas.elementwise import ElementwiseAlgorithm
from jitdnn.problems.activation import Activation
from jitdnn.rtcg.activations import ACTIVATIONS, activation
from jitdnn.rtcg.expression import Expression


class ElementwiseActivation(ElementwiseAlgorithm[Activation]):
    """One pass over memory, whatever the strides; dx = dy * f'(x) in the same pass."""

    problem = Activation
    takes_no_epilogue = "an activation takes no epilogue: it is one itself"

    def expression(self, problem: Activation) -> Expression:
        known = activation(problem.function, problem.coef, problem.propagate_nan)
        return known.forward if problem.direction == "fwd" else known.backward(problem.saved)

    def refusal(self, problem: Activation, device: Device, epilogue: Epilogue | None) -> str | None:
        if problem.function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return f"{problem.function} is not written in the expression language: there are {known}"
        return super().refusal(problem, device, epilogue)

    def error_of(self, problem: Activation) -> float:
        return self.generator.function_error * UNIT_ROUNDOFF[problem.dtype]
