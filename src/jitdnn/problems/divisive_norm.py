"""Divisive normalization: every element divided by a power of the spread around it, in its own channel.

    s = k + alpha / size^axes * sum over the window of (x - means)^2        y = x * s^(-beta)

The window lies along all axes of space, as that of `lrn` "within" does, and without means the two are the same
thing: cuDNN's DivisiveNormalization with PRECOMPUTED_MEANS, which with beta = 1/2 and k = 0 is the second half of
local contrast normalization (Jarrett et al., What is the best multi-stage architecture for object recognition?,
ICCV 2009). The means are any numbers, usually the averages of the same windows; they are taken as independent of x,
so that a caller who made them from x adds what their gradient leads to:

    dmeans = 2 * alpha * beta / size^axes * (x - means) * sum(dy * x * s^(-beta - 1))        windows mirrored
    dx     = dy * s^(-beta) - dmeans
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument
from jitdnn.problems.lrn import DIRECTIONS, WindowNorm, words_numbers
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class DivisiveNorm(WindowNorm, kinds=("divisive_norm_fwd", "divisive_norm_bwd")):
    """y from x and perhaps means, or dx and, with means, dmeans from dy, x and means.

    All tensors have one shape (N, C, spatial), 1 to 3 spatial axes; `size`, at least 1, is the extent of the window
    along each of these. For "bwd", `dx` and `dy` describe the gradients (x's descriptor if None), `dmeans` that of
    the means (theirs if None), and y is no operand.

    Raises InvalidShape if shapes differ, InvalidArgument for an attribute out of range or a gradient of means that
    there are none of, InvalidType for dtypes that are not real or mixed.
    """

    direction: str
    x: TensorDescriptor
    y: TensorDescriptor
    means: TensorDescriptor | None = None
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None
    dmeans: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        self._settle()
        if self.means is not None:
            check_same_shape("means", self.means, "x", self.x)
        wants_dmeans = self.direction == "bwd" and self.means is not None
        if self.dmeans is not None and not wants_dmeans:
            raise InvalidArgument("dmeans is given, but only a backward problem with means has it")
        if wants_dmeans:
            object.__setattr__(self, "dmeans", self.dmeans or self.means)
            assert self.dmeans is not None
            check_same_shape("dmeans", self.dmeans, "x", self.x)
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        means: TensorDescriptor | bool | None = None,
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 2.0,
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
        dmeans: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given.

        `means` is a descriptor, or whether there are any.
        """
        x = as_descriptor(shape, dtype, layout)
        packed = TensorDescriptor.packed(x.shape, x.dtype, layout)
        if isinstance(means, bool):
            means = packed if means else None
        if direction == "bwd":
            dx, dy = dx or packed, dy or packed
            dmeans = (dmeans or packed) if means is not None else dmeans
        return cls(direction, x, y or packed, means, size, alpha, beta, k, dx, dy, dmeans)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) or (x, means, y) forward; (dy, x, dx) or (dy, x, means, dx, dmeans) backward."""
        means = () if self.means is None else (Operand("means", self.means),)
        if self.direction == "fwd":
            return Operand("x", self.x), *means, Operand("y", self.y, "out")
        dy, dx = self.gradients
        dmeans = () if self.dmeans is None else (Operand("dmeans", self.dmeans, "out"),)
        return dy, Operand("x", self.x), *means, dx, *dmeans

    @property
    def window_axes(self) -> tuple[int, ...]:
        """The axes along which the window lies."""
        return tuple(range(2, len(self.x.shape)))

    @property
    def flops(self) -> int:
        """A multiply and an add for every element of every window, twice as many and more backward."""
        taps: int = self.size ** len(self.window_axes)
        return self.x.size * (2 * taps + 5) * (1 if self.direction == "fwd" else 2)

    def _define(self, *inputs: Reals) -> Reals | tuple[Reals, Reals]:
        """The formulas above."""
        x = inputs[0 if self.direction == "fwd" else 1]
        deviations = x if self.means is None else x - inputs[-1]
        s = self.k + self.scale * self._window_sum(deviations**2)
        if self.direction == "fwd":
            return np.asarray(x * s**-self.beta)
        dy = inputs[0]
        parts = self._window_sum(dy * x * s ** (-self.beta - 1), is_mirrored=True)
        dmeans = 2 * self.scale * self.beta * deviations * parts
        dx = np.asarray(dy * s**-self.beta - dmeans)
        return dx if self.means is None else (dx, np.asarray(dmeans))

    def _body(self) -> list[str]:
        words = ["means"] if self.means is not None else []
        return [*words, shape_word(self.x.shape), *self._number_words(), self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("divisive_norm_")
        means = ("means",) if words.flag("means") else ()
        shape, numbers = words.shape("shape"), words_numbers(words)
        dtype, layout = words.dtype(), words.layout(len(shape))
        names: tuple[str, ...] = ("x", *means, "y")
        if direction == "bwd":
            names = ("dy", "x", *means, "dx", *(("dmeans",) if means else ()))
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        y = given.get("y") or TensorDescriptor.packed(shape, dtype)
        gradients = (given.get(name) for name in ("dx", "dy", "dmeans"))
        return cls(direction, given["x"], y, given.get("means"), *numbers, *gradients)
