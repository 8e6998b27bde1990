"""Dropout in one pass; the mask is computed from random words on the fly and not stored."""

from __future__ import annotations

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.formulas.philox import Numbered, PhiloxGenerator
from jitdnn.problems.dropout import PARTS, Dropout

_X, _STATE, _Y, _MASK = range(4)  # numbers of the operands


class PhiloxDropout(TypedAlgorithm[Dropout, Device]):
    """One pass over memory, with the mask made anew from the state, forward and backward alike."""

    name = "philox"
    problem = Dropout
    deterministic = True
    takes_no_epilogue = "dropout takes no epilogue"

    def __init__(self, generator: PhiloxGenerator) -> None:
        self.generator = generator

    def refusal(self, problem: Dropout, device: Device, epilogue: Epilogue | None) -> str | None:
        return self.generator.refuse([tensor for _, tensor in _tensors(problem)], device)

    def seconds_of(self, plan: Dropout, device: Device) -> float:
        return self.generator.estimate([tensor for _, tensor in _tensors(plan)], PARTS, device)

    def error_of(self, problem: Dropout) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: Dropout, device: Device) -> Kernel:
        return self.generator.dropout(plan, _tensors(plan), _STATE, device)


def _tensors(problem: Dropout) -> Numbered:
    mask = [] if problem.mask is None else [(_MASK, problem.mask)]
    return [(_X, problem.x), *mask, (_Y, problem.y)]
