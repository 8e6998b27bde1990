"""What dropout makes of random words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu.random.philox import Body, low_words
from jitdnn.problems.dropout import PARTS
from jitdnn.rtcg.builder import Builder, Value


@dataclass(frozen=True)
class Drop(Body):
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
