"""Group and instance normalization, and their gradients.

The channels of x (N, C, space) are cut into groups of neighbours; mean and variance are those of one group of
one image, weight and bias belong to a channel:

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias

With as many groups as channels it is instance normalization. The gradients are those of
`jitdnn.problems.normalization`. An activation may stand behind the bias; backward, what it was of is computed once
more, from x, weight and bias, and dy is first multiplied by its slope there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from jitdnn.arguments import check_choice, integer_numbers
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.activation import FUNCTIONS
from jitdnn.problems.normalization import EPSILON, LIKE_X, Normalization
from jitdnn.problems.problem import Operand, as_descriptor
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import MAX_DIMENSIONS, TensorDescriptor

ACTIVATIONS = ("identity", "relu", "leaky_relu", "clipped_relu", "swish")


@dataclass(frozen=True, kw_only=True)
class GroupNorm(Normalization, kinds=("group_norm_fwd", "group_norm_bwd")):
    """Group normalization of x (N, C, up to five axes of space): "fwd" or "bwd".

    `groups` divides C. weight and bias have the shape (C,), mean and rstd (N, groups). The grid is (N, groups,
    C / groups, space). y and dy may be of f32 where x is of f16 or bf16. With an `activation`, one of `ACTIVATIONS`
    with its default coefficient, a backward problem has `weight` and `bias` for operands.
    """

    may_widen = True

    groups: int = 1
    activation: str = "identity"  # type: ignore[misc]

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        groups: int,
        absent: Sequence[str] = (),
        epsilon: float = EPSILON,
        dtype: str = "f32",
        layout: str = "nchw",
        is_narrow: bool = False,
        is_wide: bool = False,
        activation: str = "identity",
    ) -> Self:
        """The problem from a shape or x's descriptor, the other tensors packed.

        `absent`: names of tensors that there are not. `is_narrow`: parameters are of x's dtype. `is_wide`: y and dy are
        of f32.
        """
        x = as_descriptor(shape, dtype, layout)
        absent = absent if direction != "bwd" or activation != "identity" else (*absent, "bias")
        return cls.describe(
            direction, x, None, absent, is_narrow, layout, is_wide,
            groups=groups, epsilon=epsilon, activation=activation,
        )  # fmt: skip

    def _check_attributes(self) -> None:
        super()._check_attributes()
        if not 2 <= len(self.x.shape) < MAX_DIMENSIONS:
            raise InvalidShape(
                f"x has shape {self.x.shape}: N, C and at most {MAX_DIMENSIONS - 3} axes of space are needed"
            )
        channels, (groups,) = self.x.shape[1], integer_numbers((self.groups,), "groups")
        if groups < 1 or channels % groups:
            raise InvalidArgument(f"groups is {groups}: it must divide the {channels} channels")
        object.__setattr__(self, "groups", groups)
        check_choice(self.activation, ACTIVATIONS, "activation")

    def _settle(self) -> None:
        bias = self.bias
        super()._settle()
        if self.direction == "bwd" and self.activation != "identity":
            if bias is None or self.weight is None:
                raise InvalidArgument(
                    f"activation is {self.activation}: a backward problem needs weight and bias to compute anew what "
                    "it was of"
                )
            object.__setattr__(self, "bias", bias)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:2]

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        return self.x.shape[0], self.groups

    @property
    def grid(self) -> tuple[int, ...]:
        n, c, *space = self.x.shape
        return n, self.groups, c // self.groups, *space

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(range(2, len(self.grid)))

    @property
    def sums(self) -> tuple[int, ...]:
        return 0, *range(3, len(self.grid))

    def on_grid(self, name: str) -> TensorDescriptor:
        tensor: TensorDescriptor = getattr(self, name)
        members, space = self.grid[2], len(self.grid) - 3
        if name in LIKE_X:
            n, c, *rest = tensor.strides
            strides = (n, c * members, c, *rest)
        elif self._is_parameter(name):
            strides = (0, tensor.strides[0] * members, tensor.strides[0], *(0,) * space)
        else:
            strides = (*tensor.strides, 0, *(0,) * space)
        return TensorDescriptor(self.grid, strides, tensor.dtype)

    def _operands(self) -> Iterator[Operand]:
        """As all have them; with an activation (dy, x, weight, bias, mean, rstd, dx, dweight, dbias) backward."""
        if self.direction == "bwd":
            yield from self._some("in", "dy", "x", "weight", "bias", "mean", "rstd")
            yield from self._some("out", "dx", "dweight", "dbias")
        else:
            yield from super()._operands()

    def _is_used(self, name: str, direction: str) -> bool:
        return name == "bias" or super()._is_used(name, direction)

    def _forward(self, given: dict[str, Any]) -> dict[str, Any]:
        found = super()._forward(given)
        if self.activation != "identity":
            found["y"] = FUNCTIONS[self.activation].forward(found["y"])
        return found

    def _backward(self, given: dict[str, Any]) -> dict[str, Any]:
        if self.activation != "identity":
            xhat = (given["x"] - given["mean"]) * given["rstd"]
            slope = FUNCTIONS[self.activation].derivative
            given["dy"] = given["dy"] * slope(xhat * given["weight"] + given["bias"])
        return super()._backward(given)

    def _body(self) -> list[str]:
        words = [self.activation] * (self.activation != "identity")
        return [*words, shape_word(self.x.shape), f"groups{self.groups}", *self._tail()]

    @classmethod
    def _absent(cls, words: Words) -> set[str]:
        """Backward "no_bias" says that its gradient is not wanted; with an activation there is one to read."""
        found = super()._absent(words)
        return found - {"bias"} if words.kind.endswith("_bwd") else found

    @classmethod
    def _attributes(cls, words: Words, rank: int) -> dict[str, Any]:
        return {"groups": words.number("groups"), "activation": words.choice(ACTIVATIONS, "identity")}
