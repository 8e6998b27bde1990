"""Dropout in one pass, the mask made of random words on the way and kept nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.gpu.elementwise.generator import refuse_elementwise
from jitdnn.kernels.gpu.random.philox import Body, build_parts, estimate_parts
from jitdnn.problems.dropout import PARTS, Dropout
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

_X, _STATE, _Y, _MASK = range(4)  # numbers of the operands


@dataclass(frozen=True)
class _Drop(Body):
    """Keep what has a half word of at least the threshold."""

    threshold: int
    factor: float
    has_mask: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.threshold,)

    @property
    def reals(self) -> tuple[float, ...]:
        return (self.factor,)

    def draw(self, dtype: str, part: int) -> str:
        half = f"w[j][{part // 2}] >> 16" if part % 2 else f"w[j][{part // 2}] & 0xffffu"
        kept = f"const int kept = ({half}) >= (u32)number0;"
        result = f"r0[j] = kept ? x * ({dtype})real0 : ({dtype})0;"
        return f"{kept} {result}" + (f" r1[j] = ({dtype})kept;" if self.has_mask else "")


class PhiloxDropout(Algorithm):
    """One pass over memory, with the mask made anew from the state, forward and backward alike."""

    name = "philox"
    problem = Dropout
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "dropout takes no epilogue"
        return refuse_elementwise([t for _, t in _tensors(cast(Dropout, problem))], device, "f32")

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return estimate_parts([t for _, t in _tensors(cast(Dropout, problem))], device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        dropout = cast(Dropout, problem)
        body = _Drop(dropout.threshold, dropout.factor, dropout.mask is not None)
        return build_parts(body, _tensors(dropout), 1, _STATE, PARTS, device)


def _tensors(dropout: Dropout) -> list[tuple[int, TensorDescriptor]]:
    mask = [] if dropout.mask is None else [(_MASK, dropout.mask)]
    return [(_X, dropout.x), *mask, (_Y, dropout.y)]
