"""The rectifier with a learned slope: elementwise forward; backward both gradients in one pass over the rows."""

from __future__ import annotations

from math import sqrt
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise, estimate_elementwise
from jitdnn.kernels.cpu.reduction.algorithm import Rows, Swept
from jitdnn.kernels.formulas.prelu import BACKWARD, FORWARD, prelu_tensors
from jitdnn.problems.prelu import PRelu
from jitdnn.problems.problem import Problem
from jitdnn.tensor import compute_dtype


class PReluForward(Algorithm):
    """One pass over memory, whatever the strides."""

    name = "elementwise"
    problem = PRelu
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "an activation takes no epilogue: it is one itself" if epilogue is not None else None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return estimate_elementwise(FORWARD, prelu_tensors(cast(PRelu, problem)), device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return build_elementwise(FORWARD, prelu_tensors(cast(PRelu, problem)), device)


class PReluBackward(Swept):
    """dx and dweight in one pass: a row is all that shares a weight."""

    name = "rows"
    problem = PRelu

    def rows(self, problem: Problem) -> Rows:
        prelu = cast(PRelu, problem)
        return Rows(BACKWARD, prelu_tensors(prelu), prelu.sums)

    def error_bound(self, problem: Problem) -> float:
        prelu = cast(PRelu, problem)
        terms = prelu.x.size / max(1, prelu.weight.size)
        return summation_bound(problem) + UNIT_ROUNDOFF[compute_dtype(problem.dtype)] * sqrt(terms)
