"""The coordinates of the outputs of a resized axis, as fractions of integers that a kernel computes with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from jitdnn.problems.resize import Resize
from jitdnn.tensor import compute_dtype

_MOST = 2**62
_HALF = Fraction(1, 2)
_TOLERANCE = {"f32": Fraction(1, 2**36), "f64": Fraction(1, 2**56)}
_DENOMINATORS = (2**20, 2**24, 2**28, 2**32, 2**36, 2**40)
# a step of few digits stands for one next to it
_NUDGES = (Fraction(0), *(Fraction(sign, 2**digits) for digits in (24, 32, 40, 48) for sign in (-1, 1)))


@dataclass(frozen=True)
class Coordinates:
    """Output o stands at (a * o + b) / q, and looks at `taps` elements; with one, at that rounded down."""

    a: int
    b: int
    q: int
    taps: int

    def largest(self, inputs: int, outputs: int) -> int:
        """No number that a kernel comes by is larger."""
        return abs(self.a) * outputs + abs(self.b) + (inputs + 3) * self.q

    def element(self, output: int) -> int:
        """The place rounded down."""
        return (self.a * output + self.b) // self.q


def coordinates_of(problem: Resize, axis: int) -> Coordinates | None:
    """Those of an axis behind N and C; None if 62 bits are not enough for them."""
    inputs, outputs = problem.x.shape[2 + axis], problem.y.shape[2 + axis]
    for places in _candidates(problem, axis, inputs, outputs):
        if places.largest(inputs, outputs) < _MOST:
            return places
    return None


def _candidates(problem: Resize, axis: int, inputs: int, outputs: int) -> Iterator[Coordinates]:
    """The exact coordinates, and, of scales that have too many digits, others that come to the same."""
    step = Fraction(inputs, outputs)
    if problem.scales is not None:
        step = 1 / Fraction(problem.scales[axis])
    exact = _coordinates(problem, step, inputs, outputs)
    yield exact
    if exact.taps > 1:
        # coordinates between elements may be off by less than what is rounded anyway
        tolerance = _TOLERANCE[compute_dtype(problem.dtype)]
        for denominator in _DENOMINATORS:
            near = step.limit_denominator(denominator)
            if abs(near - step) * outputs <= tolerance:
                yield _coordinates(problem, near, inputs, outputs)
        return
    wanted = [_clamped(exact.element(output), inputs) for output in range(outputs)]
    for denominator in _DENOMINATORS:
        for nudge in _NUDGES:
            places = _coordinates(problem, step.limit_denominator(denominator) + nudge, inputs, outputs)
            if [_clamped(places.element(output), inputs) for output in range(outputs)] == wanted:
                yield places


def _clamped(element: int, inputs: int) -> int:
    return min(max(element, 0), inputs - 1)


def _coordinates(problem: Resize, step: Fraction, inputs: int, outputs: int) -> Coordinates:
    """With `step` elements from one output to the next, but for aligned corners."""
    slope, start = step, Fraction(0)
    if problem.coordinates == "align_corners":
        slope = Fraction(inputs - 1, outputs - 1) if outputs > 1 else Fraction(0)
    elif problem.coordinates == "pytorch_half_pixel" and outputs == 1:
        slope = Fraction(0)
    elif problem.coordinates != "asymmetric":
        start = step / 2 - _HALF
    if outputs == 1:
        slope = Fraction(0)
    if slope == 1 and start == 0 and inputs == outputs:
        return Coordinates(1, 0, 1, 1)
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[problem.mode]
    if problem.mode != "nearest":
        q = math.lcm(slope.denominator, start.denominator)
        return Coordinates(int(slope * q), int(start * q), q, taps)
    if problem.rounding.startswith("round"):
        start += _HALF if problem.rounding == "round_prefer_ceil" else -_HALF
    q = math.lcm(slope.denominator, start.denominator)
    # rounding up is rounding down of a quotient with q - 1 more above
    more = q - 1 if problem.rounding in ("ceil", "round_prefer_floor") else 0
    return Coordinates(int(slope * q), int(start * q) + more, q, taps)
