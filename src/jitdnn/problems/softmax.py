"""Softmax over any axes, forward and backward.

    y = exp(x) / sum(exp(x))                  "fast"
    y = exp(x - max) / sum(exp(x - max))      "accurate"
    y = x - max - log(sum(exp(x - max)))      "log"

with sum and max over the axes. The first two differ in range, not in mathematics: "fast" overflows where
exp(x) does. The gradients, from y alone:

    dx = y * (dy - sum(dy * y))        "fast", "accurate"
    dx = dy - exp(y) * sum(dy)         "log"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice, integer_numbers
from jitdnn.errors import InvalidArgument
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
ALGORITHMS = ("fast", "accurate", "log")


@dataclass(frozen=True)
class Softmax(TwoWayProblem, kinds=("softmax_fwd", "softmax_bwd")):
    """The softmax of x over the dims in `axis` (ascending); or its gradient dx from dy and y.

    All tensors have one shape. `algorithm` is "fast", "accurate" or "log". For "bwd", `dx` and `dy` describe
    the gradients (x's and y's descriptors if None); x is no operand then and has its packed descriptor.

    Raises InvalidShape if shapes differ, InvalidArgument for an axis out of range, InvalidType for dtypes
    other than f32 or f64 or mixed ones.
    """

    direction: str
    algorithm: str
    axis: tuple[int, ...]
    x: TensorDescriptor
    y: TensorDescriptor
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.algorithm, ALGORITHMS, "algorithm")
        check_same_shape("y", self.y, "x", self.x)
        object.__setattr__(self, "axis", normalize_axis(self.axis, len(self.x.shape)))
        self._settle_gradients(saved=("y",))
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        axis: str | int | Sequence[int] = "channel",
        algorithm: str = "accurate",
        dtype: str = "f32",
        layout: str = "nchw",
        x_strides: Sequence[int] | None = None,
        y_strides: Sequence[int] | None = None,
        dx_strides: Sequence[int] | None = None,
        dy_strides: Sequence[int] | None = None,
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given.

        `axis`: numbers, negative ones from the end, or "channel" (axis 1), or "instance" (all but axis 0).
        """
        x = as_descriptor(shape, dtype, layout, x_strides)
        y = y or as_descriptor(x.shape, x.dtype, layout, y_strides)
        if direction == "bwd":
            dx = dx or as_descriptor(x.shape, x.dtype, layout, dx_strides)
            dy = dy or as_descriptor(x.shape, x.dtype, layout, dy_strides)
        return cls(direction, algorithm, normalize_axis(axis, len(x.shape)), x, y, dx, dy)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) forward, (dy, y, dx) backward."""
        if self.direction == "fwd":
            return Operand("x", self.x), Operand("y", self.y)
        dy, dx = self.gradients
        return dy, Operand("y", self.y), dx

    @property
    def flops(self) -> int:
        """Four operations an element: forward maximum, exponential, sum and quotient; backward two products
        and two sums."""
        return 4 * self.y.size

    def _define(self, *inputs: Reals) -> Reals:
        """The formulas above; "fast" is computed as "accurate", which is what it approximates."""
        if self.y.size == 0:
            return np.zeros(self.y.shape)
        if self.direction == "fwd":
            (x,) = inputs
            shifted: Reals = x - x.max(axis=self.axis, keepdims=True)
            total = self._sum(np.exp(shifted))
            return shifted - np.log(total) if self.algorithm == "log" else np.exp(shifted) / total
        dy, y = inputs
        if self.algorithm == "log":
            return dy - np.exp(y) * self._sum(dy)
        return y * (dy - self._sum(dy * y))

    def _sum(self, array: Reals) -> Reals:
        return np.asarray(array.sum(axis=self.axis, keepdims=True))

    def _body(self) -> list[str]:
        words = [self.algorithm, shape_word(self.y.shape), "axis" + "x".join(map(str, self.axis)), self.dtype]
        return words + self._layout_words()

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, algorithm = words.kind.removeprefix("softmax_"), words.choice(ALGORITHMS, "accurate")
        shape = words.shape("shape")
        axis = words.shape("axis")
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = {"fwd": ("x", "y"), "bwd": ("dy", "y", "dx")}[direction]
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        x = given.get("x") or TensorDescriptor.packed(shape, dtype)
        return cls(direction, algorithm, axis, x, given["y"], given.get("dx"), given.get("dy"))


def normalize_axis(axis: str | int | Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes as ascending numbers of 0 to rank - 1.

    Raises InvalidArgument for a number out of range, a repeated or no axis, an unknown name.
    """
    if isinstance(axis, str):
        check_choice(axis, ("channel", "instance"), "axis")
        if rank < 2:
            raise InvalidArgument(f"axis {axis!r} needs at least the dims N and C, the tensor has {rank}")
        return (1,) if axis == "channel" else tuple(range(1, rank))
    numbers = integer_numbers(axis if isinstance(axis, Iterable) else (axis,), "axis")
    for number in numbers:
        if not -rank <= number < rank:
            raise InvalidArgument(
                f"axis {number} of a tensor of {rank} dims: it must be {-rank} to {rank - 1}"
            )
    axes = sorted({int(number) % rank for number in numbers})
    if not axes or len(axes) != len(numbers):
        raise InvalidArgument(f"axis is {tuple(numbers)}: it must name at least one axis, and none twice")
    return tuple(axes)
