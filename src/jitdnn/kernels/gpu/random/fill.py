"""Tensors filled with random numbers: uniform, normal and Bernoulli, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.gpu.elementwise.generator import refuse_elementwise
from jitdnn.kernels.gpu.random.philox import Body, build_parts, estimate_parts
from jitdnn.problems.problem import Problem
from jitdnn.problems.random import FRACTION_BITS, Random
from jitdnn.rtcg.c_source import c_constant

_STATE, _Y = range(2)  # numbers of the operands


@dataclass(frozen=True)
class _Fill(Body):
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


class PhiloxFill(Algorithm):
    """One pass over memory."""

    name = "philox"
    problem = Random
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "random numbers take no epilogue"
        return refuse_elementwise([cast(Random, problem).y], device)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return estimate_parts([cast(Random, problem).y], device)

    def error_bound(self, problem: Problem) -> float:
        # of the logarithm's argument near 1 half a unit of its last place is lost, and its root taken
        return 16.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        random = cast(Random, problem)
        return build_parts(_Fill(random), [(_Y, random.y)], 0, _STATE, random.parts, device)
