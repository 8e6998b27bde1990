"""The rectifier with a slope that is learned (PReLU, He et al. 2015), forward and backward.

    y = x where x > 0, else weight * x

with one weight for each index of an axis, or one for all. The gradients:

    dx = dy where x > 0, else weight * dy
    dweight = sum(dy * x where x <= 0) over all that share a weight
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.arguments import check_choice, integer_numbers
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")


@dataclass(frozen=True)
class PRelu(TwoWayProblem, kinds=("prelu_fwd", "prelu_bwd")):
    """y from x and weight, or dx and dweight from dy, x and weight; x has 1 to 8 dims.

    `weight` has the shape (x.shape[axis],), or (1,): then `axis` does not matter and is 0. For "bwd", `dx`, `dy` and
    `dweight` describe the gradients (x's, y's and weight's descriptors if None); y is no operand then.

    Raises InvalidShape if shapes do not fit, InvalidArgument for an axis that there is not, InvalidType for dtypes
    that are not real or mixed.
    """

    direction: str
    x: TensorDescriptor
    weight: TensorDescriptor
    y: TensorDescriptor
    axis: int = 1
    dx: TensorDescriptor | None = None
    dweight: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_same_shape("y", self.y, "x", self.x)
        rank = len(self.x.shape)
        if self.weight.shape == (1,):
            object.__setattr__(self, "axis", 0)
        elif not -rank <= integer_numbers((self.axis,), "axis")[0] < rank:
            raise InvalidArgument(f"axis {self.axis} of x with {rank} dims: it must be {-rank} to {rank - 1}")
        else:
            object.__setattr__(self, "axis", int(self.axis) % rank)
        if self.weight.shape not in ((1,), (self.x.shape[self.axis],)):
            raise InvalidShape(
                f"weight has shape {self.weight.shape} and x {self.x.shape}: it must be "
                f"({self.x.shape[self.axis]},), one for each index of axis {self.axis}, or (1,)"
            )
        if self.direction == "fwd":
            if self.dweight is not None:
                raise InvalidArgument("dweight is given, but a forward problem has no gradients")
        else:
            object.__setattr__(self, "dweight", self.dweight or self.weight)
            check_same_shape("dweight", self.dweight or self.weight, "weight", self.weight)
        self._settle_gradients(saved=("x",))
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        weight: TensorDescriptor | None = None,
        axis: int = 1,
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dweight: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given."""
        x = as_descriptor(shape, dtype, layout)
        y = y or TensorDescriptor.packed(x.shape, x.dtype, layout)
        if weight is None:
            rank = len(x.shape)
            if not -rank <= axis < rank:
                raise InvalidArgument(f"axis {axis} of x with {rank} dims: it must be {-rank} to {rank - 1}")
            weight = TensorDescriptor.packed((x.shape[axis],), x.dtype)
        if direction == "bwd":
            dweight = dweight or TensorDescriptor.packed(weight.shape, weight.dtype)
            dx, dy = (g or TensorDescriptor.packed(x.shape, x.dtype, layout) for g in (dx, dy))
        return cls(direction, x, weight, y, axis, dx, dweight, dy)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, weight, y) forward, (dy, x, weight, dx, dweight) backward."""
        x, weight = Operand("x", self.x), Operand("weight", self.weight)
        if self.direction == "fwd":
            return x, weight, Operand("y", self.y, "out")
        assert self.dweight is not None
        dy, dx = self.gradients
        return dy, x, weight, dx, Operand("dweight", self.dweight, "out")

    @property
    def sums(self) -> tuple[int, ...]:
        """The axes over which the weight is the same."""
        rank = len(self.x.shape)
        return tuple(a for a in range(rank) if self.weight.shape == (1,) or a != self.axis)

    def spread(self, weight: TensorDescriptor) -> TensorDescriptor:
        """The descriptor of weight or dweight with the shape of x: stride 0 where it is the same."""
        strides = [0 if a in self.sums else weight.strides[0] for a in range(len(self.x.shape))]
        return TensorDescriptor(self.x.shape, tuple(strides), weight.dtype)

    @property
    def flops(self) -> int:
        """One product an element forward, two products and a sum backward."""
        return self.x.size * (1 if self.direction == "fwd" else 3)

    def _define(self, *inputs: Reals) -> Any:
        """The formulas above."""
        x, weight = inputs[-2:]
        weight = weight.reshape([1 if a in self.sums else n for a, n in enumerate(self.x.shape)])
        if self.direction == "fwd":
            return np.where(x > 0.0, x, weight * x)
        dy = inputs[0]
        dweight = np.where(x > 0.0, 0.0, dy * x).sum(axis=self.sums)
        return np.where(x > 0.0, dy, weight * dy), dweight.reshape(self.weight.shape)

    def _body(self) -> list[str]:
        words = [shape_word(self.x.shape), "single" if self.weight.shape == (1,) else f"axis{self.axis}"]
        return [*words, self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, shape = words.kind.removeprefix("prelu_"), words.shape("shape")
        is_single, axis = words.flag("single"), 0
        if not is_single:
            axis = words.number("axis", min(1, len(shape) - 1))
        if not 0 <= axis < len(shape):
            raise InvalidArgument(
                f"axis {axis} of x with {len(shape)} dims: it must be 0 to {len(shape) - 1}"
            )
        dtype, layout = words.dtype(), words.layout(len(shape))
        size = (1,) if is_single else (shape[axis],)
        names = ("x", "weight", "y") if direction == "fwd" else ("dy", "x", "weight", "dx", "dweight")
        shapes = {name: size if "weight" in name else shape for name in names}
        given = words.descriptors(shapes, dtype, layout)
        y = given.get("y") or TensorDescriptor.packed(shape, dtype)
        return cls(
            direction, given["x"], given["weight"], y, axis,
            given.get("dx"), given.get("dweight"), given.get("dy"),
        )  # fmt: skip
