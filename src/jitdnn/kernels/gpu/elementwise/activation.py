"""Activation functions, forward and backward, as elementwise loops."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue
from jitdnn.kernels.gpu.elementwise.algorithm import Elementwise
from jitdnn.problems.activation import Activation
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.activations import ACTIVATIONS, activation
from jitdnn.rtcg.expression import Expression


class ElementwiseActivation(Elementwise):
    """One pass over memory, whatever the strides; dx = dy * f'(x) in the same pass."""

    problem = Activation
    takes_no_epilogue = "an activation takes no epilogue: it is one itself"

    def expression(self, problem: Problem) -> Expression:
        one = cast(Activation, problem)
        known = activation(one.function, one.coef, one.propagate_nan)
        return known.forward if one.direction == "fwd" else known.backward(one.saved)

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        function = cast(Activation, problem).function
        if function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return f"{function} is not written in the expression language: there are {known}"
        return super().refuse(problem, device, epilogue)

    def error_bound(self, problem: Problem) -> float:
        # functions of OpenCL may be off by 16 units in the last place, those of CUDA by 2
        return 24.0 * UNIT_ROUNDOFF[problem.dtype]
