"""Uniform, normal and Bernoulli distributions from random words."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.gpu.random.philox import Body
from jitdnn.problems.random import FRACTION_BITS, Random
from jitdnn.rtcg.c_source import c_constant


@dataclass(frozen=True)
class Fill(Body):
    """The values of a distribution; see `problems/random.py`."""

    problem: Random

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.problem.threshold,) if self.problem.distribution == "bernoulli" else ()

    @property
    def reals(self) -> tuple[float, ...]:
        return () if self.problem.distribution == "bernoulli" else (self.problem.a, self.problem.b)

    def draw(self, dtype: str, part: int) -> str:
        if self.problem.distribution == "bernoulli":
            return f"r0[j] = (i64)w[j][{part}] < number0 ? ({dtype})1 : ({dtype})0;"
        first, second = f"({dtype})real0", f"({dtype})real1"
        if self.problem.distribution == "uniform":
            fraction = self._fraction(dtype, part, FRACTION_BITS[self.problem.dtype])
            return f"r0[j] = fma({second} - {first}, {fraction}, {first});"
        bits = 32 if self.problem.parts == 4 else 53
        pair = part // 2 * 2  # neighbouring parts have the two numbers of a pair
        u, v = (self._fraction(dtype, number, bits) for number in (pair, pair + 1))
        targets = "&r0[j], &other" if part % 2 == 0 else "&other, &r0[j]"
        half_bit = c_constant(2.0 ** -(bits + 1), dtype)
        return f"{dtype} other; normal_pair_{dtype}({u}, {v}, {half_bit}, {first}, {second}, {targets});"

    def _fraction(self, dtype: str, part: int, bits: int) -> str:
        """The leading bits of a word, or of two, as a number from 0 to below 1 (to 1, where 32 bits are rounded)."""
        scale = c_constant(2.0**-bits, dtype)
        if self.problem.parts == 4:
            return f"({dtype})(w[j][{part}] >> {32 - bits}) * {scale}"
        word = f"(((u64)w[j][{2 * part}] << 32) | w[j][{2 * part + 1}])"
        return f"({dtype})({word} >> {64 - bits}) * {scale}"
