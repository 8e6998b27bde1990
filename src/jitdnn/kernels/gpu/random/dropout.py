"""Dropout from random words."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.gpu.random.philox import Body


@dataclass(frozen=True)
class Drop(Body):
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
