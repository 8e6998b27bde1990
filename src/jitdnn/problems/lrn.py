"""Local response normalization: every element divided by a power of the squares around it.

    s = k + alpha / size^axes * sum over the window of x^2        y = x * s^(-beta)

"across": the window lies along the channels (Krizhevsky et al. 2012; cuDNN's CROSS_CHANNEL_DIM1, ONNX's LRN), and
axes is 1. "within": it lies along all axes of space, in each channel by itself (Caffe's WITHIN_CHANNEL), and axes
is their number. The window of element i begins (size - 1) // 2 before it and ends size - 1 - (size - 1) // 2 behind
it; outside of the tensor there are zeros, which count in the divisor. The gradient, with the window mirrored:

    dx = dy * s^(-beta) - 2 * alpha * beta / size^axes * x * sum(dy * x * s^(-beta - 1))
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice, integer_number
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.normalization import finite
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_same_shape, check_spatial_rank
from jitdnn.problems.words import Words, axes_word, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
MODES = ("across", "within")
DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "k": 2.0}
"""cuDNN's; alpha is divided by the number of elements of a window."""

MOST_TAPS = 1 << 20


class WindowNorm(TwoWayProblem):
    """Every element divided by a power of k and the scaled squares of a window around it; all tensors of one shape."""

    size: int
    alpha: float
    beta: float
    k: float

    @property
    @abstractmethod
    def window_axes(self) -> tuple[int, ...]:
        """The axes along which the window lies."""

    @property
    def scale(self) -> float:
        """What the sum of squares is multiplied by."""
        return float(self.alpha / self.size ** len(self.window_axes))

    def _settle(self) -> None:
        """Checks the shapes, makes alpha, beta and k finite Python floats, and settles the gradients."""
        check_spatial_rank(self.x.shape, "x")
        integer_number(self.size, "size", 1, MOST_TAPS)
        for name in DEFAULTS:
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        check_same_shape("y", self.y, "x", self.x)
        self._settle_gradients(saved=("x",))

    def _window_sum(self, array: Reals, is_mirrored: bool = False) -> Reals:
        """The sums of all windows, with zeros outside of the array."""
        behind = (self.size - 1) // 2
        before = self.size - 1 - behind if is_mirrored else behind
        widths = [
            (before, self.size - 1 - before) if axis in self.window_axes else (0, 0)
            for axis in range(array.ndim)
        ]
        padded = np.pad(array, widths)
        total = np.zeros(array.shape)
        for place in itertools.product(range(self.size), repeat=len(self.window_axes)):
            window = [slice(None)] * array.ndim
            for axis, t in zip(self.window_axes, place, strict=True):
                window[axis] = slice(t, t + array.shape[axis])
            total += padded[tuple(window)]
        return total

    def _number_words(self) -> list[str]:
        """The words of size, alpha, beta and k; numbers that have their default are left out."""
        numbers = {name: getattr(self, name) for name in DEFAULTS}
        changed = [f"{name}{value!r}" for name, value in numbers.items() if value != DEFAULTS[name]]
        return [axes_word("size", [self.size]), *changed]


def words_numbers(words: Words) -> tuple[int, float, float, float]:
    """size, alpha, beta and k from the words."""
    size = words.number("size", 5)
    alpha, beta, k = (words.real(name, default) for name, default in DEFAULTS.items())
    return size, alpha, beta, k


@dataclass(frozen=True)
class LRN(WindowNorm, kinds=("lrn_fwd", "lrn_bwd")):
    """y from x, or dx from dy and x; all of one shape (N, C, spatial), 1 to 3 spatial axes.

    `mode` is "across" or "within"; `size`, at least 1, the extent of the window along each of its axes. For "bwd",
    `dx` and `dy` describe the gradients (x's descriptor if None), and y is no operand.

    Raises InvalidShape if shapes differ, InvalidArgument for an attribute out of range, InvalidType for dtypes
    that are not real or mixed.
    """

    direction: str
    mode: str
    x: TensorDescriptor
    y: TensorDescriptor
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.mode, MODES, "mode")
        self._settle()
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        mode: str,
        shape: TensorDescriptor | Sequence[int],
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 2.0,
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given."""
        x = as_descriptor(shape, dtype, layout)
        packed = TensorDescriptor.packed(x.shape, x.dtype, layout)
        if direction == "bwd":
            dx, dy = dx or packed, dy or packed
        return cls(direction, mode, x, y or packed, size, alpha, beta, k, dx, dy)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) forward, (dy, x, dx) backward."""
        if self.direction == "fwd":
            return Operand("x", self.x), Operand("y", self.y)
        dy, dx = self.gradients
        return dy, Operand("x", self.x), dx

    @property
    def window_axes(self) -> tuple[int, ...]:
        """The axes along which the window lies."""
        return (1,) if self.mode == "across" else tuple(range(2, len(self.x.shape)))

    @property
    def flops(self) -> int:
        """A multiply and an add for every element of every window, twice as many and more backward."""
        taps: int = self.size ** len(self.window_axes)
        return self.x.size * (2 * taps + 4) * (1 if self.direction == "fwd" else 2)

    def _define(self, *inputs: Reals) -> Reals:
        """The formulas above."""
        x = inputs[-1]
        s = self.k + self.scale * self._window_sum(x * x)
        if self.direction == "fwd":
            return np.asarray(x * s**-self.beta)
        dy = inputs[0]
        parts = self._window_sum(dy * x * s ** (-self.beta - 1), is_mirrored=True)
        return np.asarray(dy * s**-self.beta - 2 * self.scale * self.beta * x * parts)

    def _body(self) -> list[str]:
        return [self.mode, shape_word(self.x.shape), *self._number_words(), self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, mode = words.kind.removeprefix("lrn_"), words.choice(MODES, "across")
        shape, numbers = words.shape("shape"), words_numbers(words)
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("x", "y") if direction == "fwd" else ("dy", "x", "dx")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        y = given.get("y") or TensorDescriptor.packed(shape, dtype)
        return cls(direction, mode, given["x"], y, *numbers, given.get("dx"), given.get("dy"))
