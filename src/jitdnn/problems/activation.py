"""Activation functions by name, forward and backward, each elementwise: y = f(x), dx = dy * f'(x).

A function is one entry of `FUNCTIONS`: f, its derivative by x, and where f has an inverse good enough, the
derivative by y, so that a network may keep only one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.problems.problem import (
    Operand,
    Problem,
    Reals,
    as_descriptor,
    check_choice,
    check_same_shape,
    settle_gradients,
)
from jitdnn.problems.words import Words, layout_words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
SAVED = ("x", "y")


@dataclass(frozen=True)
class ActivationFunction:
    """The float64 definition of an activation: the function, its derivative from x, and from y or None."""

    forward: Callable[[Reals], Reals]
    derivative: Callable[[Reals], Reals]
    derivative_from_y: Callable[[Reals], Reals] | None = None


def _sigmoid(x: Reals) -> Reals:
    # exp of a negative number only, so that no x overflows
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _step(x: Reals) -> Reals:
    return np.asarray(x > 0, dtype=np.float64)


FUNCTIONS: dict[str, ActivationFunction] = {
    "sigmoid": ActivationFunction(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), lambda y: y * (1.0 - y)),
    "relu": ActivationFunction(lambda x: np.maximum(x, 0.0), _step, _step),
    "tanh": ActivationFunction(np.tanh, lambda x: 1.0 / np.cosh(x) ** 2, lambda y: (1.0 - y) * (1.0 + y)),
}


@dataclass(frozen=True)
class Activation(Problem, kinds=("activation_fwd", "activation_bwd")):
    """y = f(x), or dx = dy * f'(x); all tensors of one shape, 1 to 8 dims.

    `function` is a name of `FUNCTIONS`. For "bwd", `saved` says which of "x" and "y" the derivative is taken
    from; `dx` and `dy` describe the gradients (x's and y's descriptors if None), and the tensor that is not
    saved is no operand and has its packed descriptor.

    Raises InvalidShape if shapes differ, InvalidArgument for an unknown function or one without a derivative
    from y, InvalidType for dtypes other than f32 or f64 or mixed ones.
    """

    direction: str
    function: str
    x: TensorDescriptor
    y: TensorDescriptor
    saved: str = "x"
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.function, tuple(FUNCTIONS), "function")
        check_choice(self.saved, SAVED, "saved")
        if self.saved == "y" and self.direction == "fwd":
            raise InvalidArgument("saved is 'y': only a backward problem keeps one of x and y")
        if self.saved == "y" and FUNCTIONS[self.function].derivative_from_y is None:
            raise InvalidArgument(f"the derivative of {self.function} does not follow from y: save x")
        check_same_shape("y", self.y, "x", self.x)
        settle_gradients(self, saved=(self.saved,))
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        function: str,
        shape: TensorDescriptor | Sequence[int],
        saved: str = "x",
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
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given."""
        x = as_descriptor(shape, dtype, layout, x_strides)
        y = y or as_descriptor(x.shape, x.dtype, layout, y_strides)
        if direction == "bwd":
            dx = dx or as_descriptor(x.shape, x.dtype, layout, dx_strides)
            dy = dy or as_descriptor(x.shape, x.dtype, layout, dy_strides)
        return cls(direction, function, x, y, saved, dx, dy)

    @property
    def kind(self) -> str:
        return f"activation_{self.direction}"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) forward, (dy, x or y as saved, dx) backward."""
        if self.direction == "fwd":
            return Operand("x", self.x), Operand("y", self.y)
        assert self.dx is not None
        assert self.dy is not None
        kept = Operand("x", self.x) if self.saved == "x" else Operand("y", self.y)
        return Operand("dy", self.dy), kept, Operand("dx", self.dx)

    @property
    def flops(self) -> int:
        """One operation an element forward, two backward (the derivative and the product)."""
        return self.y.size * (1 if self.direction == "fwd" else 2)

    def _define(self, *inputs: Reals) -> Reals:
        """The function's definition."""
        definition = FUNCTIONS[self.function]
        if self.direction == "fwd":
            return definition.forward(inputs[0])
        if self.saved == "x":
            return inputs[0] * definition.derivative(inputs[1])
        assert definition.derivative_from_y is not None
        return inputs[0] * definition.derivative_from_y(inputs[1])

    def _body(self) -> list[str]:
        words = [self.function, "saved_y"] if self.saved == "y" else [self.function]
        named = [(operand.name, operand.descriptor) for operand in self.operands]
        return [*words, shape_word(self.y.shape), self.dtype, *layout_words(named)]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, function = words.kind.removeprefix("activation_"), words.choice(tuple(FUNCTIONS))
        saved = "y" if direction == "bwd" and words.flag("saved_y") else "x"
        shape = words.shape("shape")
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("x", "y") if direction == "fwd" else ("dy", saved, "dx")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        x, y = (given.get(name) or TensorDescriptor.packed(shape, dtype) for name in ("x", "y"))
        return cls(direction, function, x, y, saved, given.get("dx"), given.get("dy"))
