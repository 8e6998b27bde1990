"""Tensors filled with random numbers: uniform, normal and Bernoulli, in one pass."""

from __future__ import annotations

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.formulas.philox import PhiloxGenerator
from jitdnn.problems.random import Random

_STATE, _Y = range(2)  # numbers of the operands


class PhiloxFill(TypedAlgorithm[Random, Device]):
    """One pass over memory."""

    name = "philox"
    problem = Random
    deterministic = True
    takes_no_epilogue = "random numbers take no epilogue"

    def __init__(self, generator: PhiloxGenerator) -> None:
        self.generator = generator

    def refusal(self, problem: Random, device: Device, epilogue: Epilogue | None) -> str | None:
        return self.generator.refuse([problem.y], device)

    def seconds_of(self, plan: Random, device: Device) -> float:
        return self.generator.estimate([plan.y], plan.parts, device)

    def error_of(self, problem: Random) -> float:
        # of the logarithm's argument near 1 half a unit of its last place is lost, and its root taken
        return 16.0 * UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: Random, device: Device) -> Kernel:
        return self.generator.fill(plan, [(_Y, plan.y)], _STATE, device)
