"""Resizing of images along one to three axes: nearest, linear and cubic interpolation, and the gradients.

An output o along one axis stands at the place x of the input (in elements, from 0):

    half_pixel            x = (o + 1/2) / scale - 1/2
    pytorch_half_pixel    the same, but 0 where there is only one output
    align_corners         x = o (n - 1) / (m - 1) for n inputs and m outputs; 0 for a single output
    asymmetric            x = o / scale

with scale = m / n unless it is given. Its value is that of one element near x ("nearest", x rounded as `rounding`
says), or of two or four around it, weighted by their distance ("linear"; "cubic", Keys 1981, with the coefficient
`cubic`). Places beyond the ends have the value of the end. The names are those of ONNX's Resize.

Along every axis this is a product with a matrix that has a few numbers in a row, the taps; the gradient is the product
with the transposed one. Places are computed in exact fractions, so that no rounding decides between neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_extents, check_spatial_rank
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
CUBIC = -0.75
_LETTERS = ("d", "h", "w")


@dataclass(frozen=True)
class Taps:
    """The matrix of one axis: row i has `weights[i]` in the columns from `start[i]` on, and zeros elsewhere."""

    start: npt.NDArray[np.int64]
    weights: Reals
    columns: int

    @staticmethod
    def of(rows: Sequence[dict[int, float]], columns: int) -> Taps:
        """From the numbers of each row by their columns; rows are made equally long, and stay inside."""
        width = max((max(row) - min(row) + 1 for row in rows if row), default=1)
        start, weights = np.zeros(len(rows), np.int64), np.zeros((len(rows), width))
        for number, row in enumerate(rows):
            first = min(min(row, default=0), columns - width)
            start[number] = first
            for column, weight in row.items():
                weights[number, column - first] = weight
        return Taps(start, weights, columns)

    @property
    def width(self) -> int:
        return int(self.weights.shape[1])

    def transposed(self) -> Taps:
        """The matrix with rows and columns exchanged."""
        rows: list[dict[int, float]] = [{} for _ in range(self.columns)]
        for number, (start, weights) in enumerate(zip(self.start, self.weights, strict=True)):
            for tap, weight in enumerate(weights):
                if weight != 0:
                    rows[int(start) + tap][number] = float(weight)
        return Taps.of(rows, len(self.start))

    def apply(self, array: Reals, axis: int) -> Reals:
        """The product of the matrix with every line of the array along `axis`."""
        lines = np.moveaxis(array, axis, -1)
        result = np.zeros((*lines.shape[:-1], len(self.start)))
        for tap in range(self.width):
            result += lines[..., self.start + tap] * self.weights[:, tap]
        return np.moveaxis(result, -1, axis)


@dataclass(frozen=True)
class Resize(TwoWayProblem, kinds=("resize_fwd", "resize_bwd")):
    """y = x resized along all axes behind N and C, to y's extents; or dx from dy.

    `scales`: one number an axis that says where outputs stand, or None for the quotient of the extents.
    `rounding` is for "nearest" alone, `cubic` for "cubic". For "bwd", x and y are no operands: `dx` and `dy` describe
    the gradients.

    Raises InvalidShape if N or C differ or an extent is 0, InvalidArgument for unknown names or scales that are not
    positive, InvalidType.
    """

    direction: str
    mode: str
    x: TensorDescriptor
    y: TensorDescriptor
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    scales: tuple[float, ...] | None = None
    cubic: float = CUBIC
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.mode, MODES, "mode")
        check_choice(self.coordinates, COORDINATES, "coordinates")
        check_choice(self.rounding, ROUNDINGS, "rounding")
        rank = check_spatial_rank(self.x.shape, "x")
        if len(self.y.shape) != rank + 2 or self.y.shape[:2] != self.x.shape[:2]:
            raise InvalidShape(
                f"y has shape {self.y.shape} and x {self.x.shape}: they must have as many axes, and equal N and C"
            )
        letters = ("n", "c", *_LETTERS[-rank:])
        check_extents(self.x.shape, "x", letters)
        check_extents(self.y.shape, "y", letters)
        scales = (1.0,) * rank if self.scales is None else self.scales
        if len(scales) != rank or not all(0 < s < math.inf for s in scales):
            raise InvalidArgument(
                f"scales is {scales}: it must be {rank} positive numbers, one for each axis behind N and C"
            )
        if not math.isfinite(self.cubic):
            raise InvalidArgument(f"cubic is {self.cubic}: the coefficient must be finite")
        self._settle_gradients(saved=())
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        mode: str,
        shape: TensorDescriptor | Sequence[int],
        size: Sequence[int],
        coordinates: str = "half_pixel",
        rounding: str = "round_prefer_floor",
        scales: Sequence[float] | None = None,
        cubic: float = CUBIC,
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor and the extents behind N and C of the result."""
        x = as_descriptor(shape, dtype, layout)
        check_spatial_rank(x.shape, "x")
        y = y or as_descriptor((*x.shape[:2], *size), x.dtype, layout)
        factors = None if scales is None else tuple(float(s) for s in scales)
        return cls(direction, mode, x, y, coordinates, rounding, factors, float(cubic), dx, dy)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) forward, (dy, dx) backward."""
        if self.direction == "fwd":
            return Operand("x", self.x), Operand("y", self.y)
        return self.gradients

    @property
    def flops(self) -> int:
        """Two operations for each tap of an element of y."""
        taps = {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]
        return 2 * self.y.size * prod([taps] * (len(self.x.shape) - 2))

    @cached_property
    def taps(self) -> tuple[Taps, ...]:
        """The matrices by which the input is multiplied, one for each axis behind N and C."""
        forward = [self._axis(axis) for axis in range(len(self.x.shape) - 2)]
        return tuple(taps.transposed() if self.direction == "bwd" else taps for taps in forward)

    def _axis(self, axis: int) -> Taps:
        inputs, outputs = self.x.shape[2 + axis], self.y.shape[2 + axis]
        rows = []
        for output in range(outputs):
            row: dict[int, float] = {}
            for column, weight in self._weights(self._place(axis, inputs, outputs, output)):
                clamped = min(max(column, 0), inputs - 1)
                row[clamped] = row.get(clamped, 0.0) + float(weight)
            rows.append(row)
        return Taps.of(rows, inputs)

    def _place(self, axis: int, inputs: int, outputs: int, output: int) -> Fraction:
        step = Fraction(inputs, outputs) if self.scales is None else 1 / Fraction(self.scales[axis])
        if self.coordinates == "align_corners":
            return Fraction(output * (inputs - 1), outputs - 1) if outputs > 1 else Fraction(0)
        if self.coordinates == "asymmetric":
            return output * step
        if self.coordinates == "pytorch_half_pixel" and outputs == 1:
            return Fraction(0)
        return (output + Fraction(1, 2)) * step - Fraction(1, 2)

    def _weights(self, x: Fraction) -> list[tuple[int, Fraction | float]]:
        """The columns that a place takes its value from, which may be beyond the ends, and their weights."""
        if self.mode == "nearest":
            nearest = {
                "floor": math.floor(x),
                "ceil": math.ceil(x),
                "round_prefer_floor": math.ceil(x - Fraction(1, 2)),
                "round_prefer_ceil": math.floor(x + Fraction(1, 2)),
            }
            return [(nearest[self.rounding], 1.0)]
        first = math.floor(x)
        rest = x - first
        if self.mode == "linear":
            return [(first, 1 - rest), (first + 1, rest)]
        return [(first + tap, _keys(abs(rest - tap), Fraction(self.cubic))) for tap in (-1, 0, 1, 2)]

    def _define(self, *inputs: Reals) -> Reals:
        """The product with the matrix of every axis."""
        (result,) = inputs
        for axis, taps in enumerate(self.taps):
            result = taps.apply(result, 2 + axis)
        return np.array(result)

    def _body(self) -> list[str]:
        words = [self.mode, self.coordinates]
        if self.rounding != "round_prefer_floor":
            words.append(self.rounding)
        words += [shape_word(self.x.shape), "out" + "x".join(map(str, self.y.shape[2:]))]
        letters = _LETTERS[5 - len(self.x.shape) :]
        words += [f"scale_{a}{s!r}" for a, s in zip(letters, self.scales or (), strict=False)]
        if self.cubic != CUBIC:
            words.append(f"cubic_a{self.cubic!r}")
        return [*words, self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, mode = words.kind.removeprefix("resize_"), words.choice(MODES)
        coordinates = words.choice(COORDINATES, COORDINATES[0])
        rounding = words.choice(ROUNDINGS, ROUNDINGS[0])
        shape, size = words.shape("shape"), words.shape("out")
        letters = _LETTERS[-check_spatial_rank(shape, "shape") :]
        scales = (
            tuple(words.real(f"scale_{a}") for a in letters) if words.has(f"scale_{letters[0]}") else None
        )
        cubic = words.real("cubic_a", CUBIC)
        dtype, layout = words.dtype(), words.layout(len(shape))
        y_shape = (*shape[:2], *size)
        names = {"fwd": {"x": shape, "y": y_shape}, "bwd": {"dy": y_shape, "dx": shape}}[direction]
        given = words.descriptors(names, dtype, layout)
        x, y = (
            given.get(name) or TensorDescriptor.packed(extents, dtype)
            for name, extents in (("x", shape), ("y", y_shape))
        )
        return cls(
            direction, mode, x, y, coordinates, rounding, scales, cubic, given.get("dx"), given.get("dy")
        )


def _keys(distance: Fraction, a: Fraction) -> Fraction:
    """Keys' cubic convolution kernel at a distance from 0 to 2."""
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
