"""Activation functions by name, forward and backward, each elementwise: y = f(x), dx = dy * f'(x).

The functions are those of `activation_functions`: f, its derivative by x, and where f has an inverse good enough,
the derivative by y, so that a network may keep only one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument
from jitdnn.problems.activation_functions import COEFS, FUNCTIONS, ActivationFunction, defined, settled_coef
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
SAVED = ("x", "y")

__all__ = ["FUNCTIONS", "Activation", "ActivationFunction"]


@dataclass(frozen=True)
class Activation(TwoWayProblem, kinds=("activation_fwd", "activation_bwd")):
    """y = f(x), or dx = dy * f'(x); all tensors of one shape, 1 to 8 dims.

    `function` is a name of `FUNCTIONS`, `coef` its coefficient: where clipped_relu ends, the slope of leaky_relu
    below 0, the factor of elu, and of x in swish and softplus (None: its default, if it has one). For "bwd", `saved`
    says which of "x" and "y" the derivative is taken from; `dx` and `dy` describe the gradients (x's and y's
    descriptors if None), and the tensor that is not saved is no operand and has its packed descriptor.

    A NaN in x leads to NaN in y, unless `propagate_nan` is False: then it is taken as 0, so that relu of it is 0.

    Raises InvalidShape if shapes differ, InvalidArgument for an unknown function, one without a derivative from y,
    or a coefficient that does not fit, InvalidType for dtypes that are not real or mixed.
    """

    direction: str
    function: str
    x: TensorDescriptor
    y: TensorDescriptor
    saved: str = "x"
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None
    coef: float | None = None
    propagate_nan: bool = True

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        object.__setattr__(self, "coef", settled_coef(self.function, self.coef))
        check_choice(self.saved, SAVED, "saved")
        if self.saved == "y" and self.direction == "fwd":
            raise InvalidArgument("saved is 'y': only a backward problem keeps one of x and y")
        if self.saved == "y" and self.definition.derivative_from_y is None:
            coef = "" if self.coef is None else f" with coef {self.coef:g}"
            raise InvalidArgument(f"the derivative of {self.function}{coef} does not follow from y: save x")
        check_same_shape("y", self.y, "x", self.x)
        self._settle_gradients(saved=(self.saved,))
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
        coef: float | None = None,
        propagate_nan: bool = True,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given."""
        x = as_descriptor(shape, dtype, layout, x_strides)
        y = y or as_descriptor(x.shape, x.dtype, layout, y_strides)
        if direction == "bwd":
            dx = dx or as_descriptor(x.shape, x.dtype, layout, dx_strides)
            dy = dy or as_descriptor(x.shape, x.dtype, layout, dy_strides)
        return cls(direction, function, x, y, saved, dx, dy, coef, propagate_nan)

    @property
    def definition(self) -> ActivationFunction:
        """The function in float64, with its coefficient; NaN is not looked at."""
        return defined(self.function, self.coef)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) forward, (dy, x or y as saved, dx) backward."""
        if self.direction == "fwd":
            return Operand("x", self.x), Operand("y", self.y)
        dy, dx = self.gradients
        kept = Operand("x", self.x) if self.saved == "x" else Operand("y", self.y)
        return dy, kept, dx

    @property
    def flops(self) -> int:
        """One operation an element forward, two backward (the derivative and the product)."""
        return self.y.size * (1 if self.direction == "fwd" else 2)

    def _define(self, *inputs: Reals) -> Reals:
        """The function's definition."""
        definition, kept = self.definition, inputs[-1]
        if not self.propagate_nan and self.saved == "x":
            kept = np.where(np.isnan(kept), 0.0, kept)
        if self.direction == "fwd":
            return definition.forward(kept)
        if self.saved == "x":
            return inputs[0] * definition.derivative(kept)
        assert definition.derivative_from_y is not None
        return inputs[0] * definition.derivative_from_y(kept)

    def _body(self) -> list[str]:
        words = [self.function, "saved_y"] if self.saved == "y" else [self.function]
        if self.coef is not None and self.coef != COEFS[self.function]:
            words.append(f"coef{self.coef!r}")
        if not self.propagate_nan:
            words.append("nan_as_zero")
        return [*words, shape_word(self.y.shape), self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, function = words.kind.removeprefix("activation_"), words.choice(tuple(FUNCTIONS))
        saved = "y" if direction == "bwd" and words.flag("saved_y") else "x"
        coef = words.real("coef", COEFS[function]) if function in COEFS else None
        propagate_nan = not words.flag("nan_as_zero")
        shape = words.shape("shape")
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("x", "y") if direction == "fwd" else ("dy", saved, "dx")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        x, y = (given.get(name) or TensorDescriptor.packed(shape, dtype) for name in ("x", "y"))
        return cls(direction, function, x, y, saved, given.get("dx"), given.get("dy"), coef, propagate_nan)
