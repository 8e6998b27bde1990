"""Shorter ways to compute what is rounded to half precision: for the ends of kernels whose results have 16 bits.

    x * (1 + erf(x / sqrt(2))) / 2      one function, `gelu_rough` of c_rough.h, off by 4e-6 of its value
    upper_tail(t)                       `upper_tail_rough`, the same polynomial
    x / constant                        a product
    maximum, minimum                    the GPU's own instruction

`shortcuts` finds them in an expression; `c_function` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.tracing import Instruction

_NEAR = 1e-6  # of constants that stand for numbers which have no end


@dataclass(frozen=True)
class Shortcuts:
    """Of the steps of an expression: those that are `gelu` of another, and the factors of those that are quotients;
    `functions`: operations of which c_rough.h has others."""

    gelu: dict[int, int]
    factors: dict[int, float]
    functions: frozenset[str] = frozenset()

    def uses(self, expression: Expression) -> tuple[list[tuple[int, ...]], list[int]]:
        """For each step those that it reads, and how many read it: none where a shortcut leaves it out."""
        reads: list[tuple[int, ...]] = []
        for position, step in enumerate(expression.instructions):
            if step.operation in ("input", "constant"):
                reads.append(())
            elif position in self.gelu:
                reads.append((self.gelu[position],))
            else:
                reads.append(tuple(step.arguments[:1] if position in self.factors else step.arguments))
        uses = [0] * len(reads)
        uses[-1] = 1
        for position in reversed(range(len(reads))):
            for argument in reads[position] if uses[position] else ():
                uses[argument] += 1
        return reads, uses

    def has_functions(self, expression: Expression) -> bool:
        """Whether functions of c_rough.h are called."""
        return bool(self.gelu) or any(step.operation in self.functions for step in expression.instructions)


NO_SHORTCUTS = Shortcuts({}, {})
_FUNCTIONS = frozenset({"maximum", "minimum", "upper_tail"})


def shortcuts(expression: Expression) -> Shortcuts:
    steps = expression.instructions
    gelu: dict[int, int] = {}
    factors: dict[int, float] = {}
    for position, step in enumerate(steps):
        if step.operation in ("multiply", "divide"):
            found = _gelu(steps, position)
            if found is not None:
                gelu[position] = found
        if step.operation == "divide":
            divisor = _number(steps, step.arguments[1])
            if divisor is not None and 2.0**-100 < abs(divisor) < 2.0**100:
                factors[position] = 1.0 / divisor
    return Shortcuts(gelu, factors, _FUNCTIONS)


def _number(steps: Sequence[Instruction], position: int) -> float | None:
    step = steps[position]
    return step.number if step.operation == "constant" else None


def _factors(steps: Sequence[Instruction], position: int) -> tuple[float, list[int]]:
    """A step as a number times other steps."""
    step = steps[position]
    if step.operation == "constant":
        return step.number, []
    if step.operation == "multiply":
        (a, of_first), (b, of_second) = (_factors(steps, one) for one in step.arguments)
        return a * b, of_first + of_second
    if step.operation == "divide":
        divisor = _number(steps, step.arguments[1])
        if divisor:
            number, others = _factors(steps, step.arguments[0])
            return number / divisor, others
    return 1.0, [position]


def _gelu(steps: Sequence[Instruction], position: int) -> int | None:
    """The x of which a step is x * (1 + erf(x / sqrt(2))) / 2."""
    number, others = _factors(steps, position)
    if number != 0.5 or len(others) != 2:
        return None
    for x, other in (others, others[::-1]):
        step = steps[other]
        if step.operation != "add":
            continue
        for one, root in (step.arguments, step.arguments[::-1]):
            if _number(steps, one) != 1.0 or steps[root].operation != "erf":
                continue
            scale, inner = _factors(steps, steps[root].arguments[0])
            if inner == [x] and abs(scale - math.sqrt(0.5)) < _NEAR:
                return x
    return None
