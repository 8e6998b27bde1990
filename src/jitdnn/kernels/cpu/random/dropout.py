"""Dropout in one pass, the mask made of random words on the way and kept nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.random.philox import Body, build_parts, double_bits, estimate_parts, low_words
from jitdnn.problems.dropout import PARTS, Dropout
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.tensor import TensorDescriptor

_X, _STATE, _Y, _MASK = range(4)  # numbers of the operands


@dataclass(frozen=True)
class _Drop(Body):
    """Keep what has a half word of at least the threshold; its two numbers are the threshold and the factor."""

    has_mask: bool
    keeps_none: bool  # p = 1

    @property
    def parameters(self) -> int:
        return 2

    def prepare(self, k: Builder, dtype: str, numbers: Sequence[Value]) -> Sequence[Value]:
        threshold, factor = numbers
        return threshold, k.convert(k.bitcast(factor, "f64"), dtype)

    def draw(
        self, k: Builder, dtype: str, scalars: Sequence[Value], words: Sequence[Value]
    ) -> Sequence[Value]:
        if self.keeps_none:
            return [k.mask(0, words[0].lanes)] * PARTS
        limit = k.splat(k.convert(scalars[0] << 16, "i32"), words[0].lanes)
        narrow = [low_words(k, word) for word in words]
        # the bits below a half do not change the comparison
        halves = [half for word in narrow for half in (word << 16, word)]
        return [Value(k, k.b.icmp_unsigned(">=", half.v, limit.v)) for half in halves]

    def finish(
        self, k: Builder, dtype: str, scalars: Sequence[Value], drawn: Value, x: Value | None
    ) -> Sequence[Value]:
        assert x is not None
        y = k.select(drawn, x * k.splat(scalars[1], x.lanes), 0.0)
        if not self.has_mask:
            return (y,)
        return y, k.select(drawn, k.constant(1.0, dtype, x.lanes), 0.0)


class PhiloxDropout(Algorithm):
    """One pass over memory, with the mask made anew from the state, forward and backward alike."""

    name = "philox"
    problem = Dropout
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "dropout takes no epilogue" if epilogue is not None else None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return estimate_parts([t for _, t in _tensors(cast(Dropout, problem))], PARTS, device)

    def error_bound(self, problem: Problem) -> float:
        return 4.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        dropout = cast(Dropout, problem)
        numbers = [dropout.threshold, double_bits(dropout.factor)]
        body = _Drop(dropout.mask is not None, dropout.p == 1)
        return build_parts(body, numbers, _tensors(dropout), 1, _STATE, PARTS, device)


def _tensors(dropout: Dropout) -> list[tuple[int, TensorDescriptor]]:
    mask = [] if dropout.mask is None else [(_MASK, dropout.mask)]
    return [(_X, dropout.x), *mask, (_Y, dropout.y)]
