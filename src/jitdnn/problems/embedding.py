"""Rows of a table by their numbers, and the gradient by the table: the sum of what came to each row.

    y[i..., :] = weight[indices[i...], :]
    dweight[r, :] = sum of dy[i..., :] over all i with indices[i...] = r, and 0 for r = padding

An index that is no row of the table stands for a row of zeros, and its gradient goes nowhere; the public functions
refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
INDEX_DTYPES = ("i32", "i64")


@dataclass(frozen=True)
class Embedding(DirectedProblem, kinds=("embedding_fwd", "embedding_bwd")):
    """y = the rows of `weight` (rows, columns) that `indices` (any shape, 1 to 7 dims) name; or dweight from dy.

    For "bwd", `weight` and `y` describe the gradients dweight and dy. `padding` is a row whose gradient is zero, or
    None; the forward problem has none.

    Raises InvalidShape if shapes do not belong together or the table is empty, InvalidArgument for a padding that is
    no row, InvalidType.
    """

    direction: str
    weight: TensorDescriptor
    indices: TensorDescriptor
    y: TensorDescriptor
    padding: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        if len(self.weight.shape) != 2 or 0 in self.weight.shape:
            raise InvalidShape(
                f"weight has shape {self.weight.shape}: it must be (rows, columns), both at least 1"
            )
        wanted = (*self.indices.shape, self.weight.shape[1])
        if self.y.shape != wanted:
            raise InvalidShape(
                f"y has shape {self.y.shape}: indices of shape {self.indices.shape} into a table of "
                f"{self.weight.shape} give {wanted}"
            )
        if self.padding is not None and (self.direction == "fwd" or not 0 <= self.padding < self.rows):
            raise InvalidArgument(
                f"padding is {self.padding}: it must be a row of the table, 0 to {self.rows - 1}, in the gradient"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        weight_shape: TensorDescriptor | Sequence[int],
        indices_shape: TensorDescriptor | Sequence[int],
        padding: int | None = None,
        dtype: str = "f32",
        index_dtype: str = "i64",
        y: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from shapes or descriptors; y is packed if not given."""
        weight = as_descriptor(weight_shape, dtype, "nchw")
        indices = as_descriptor(indices_shape, index_dtype, "nchw")
        y = y or as_descriptor((*indices.shape, weight.shape[-1]), weight.dtype, "nchw")
        return cls(direction, weight, indices, y, padding)

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.weight.shape[0]

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(weight, indices, y) forward, (dy, indices, dweight) backward."""
        indices = Operand("indices", self.indices, "in", INDEX_DTYPES, (0, self.rows - 1))
        if self.direction == "fwd":
            return Operand("weight", self.weight), indices, Operand("y", self.y, "out")
        return Operand("dy", self.y), indices, Operand("dweight", self.weight, "out")

    @property
    def flops(self) -> int:
        """None forward, one addition for each element of dy backward."""
        return 0 if self.direction == "fwd" else self.y.size

    def _define(self, *inputs: Reals) -> Reals:
        """The formulas above."""
        values, indices = inputs[0], inputs[1].astype(np.int64)
        inside = (indices >= 0) & (indices < self.rows)
        if self.direction == "fwd":
            found: Reals = values[np.where(inside, indices, 0)]
            return np.where(inside[..., None], found, 0.0)
        if self.padding is not None:
            inside &= indices != self.padding
        result = np.zeros(self.weight.shape)
        np.add.at(result, indices[inside], values[inside])
        return result

    def _body(self) -> list[str]:
        words = [f"rows{self.rows}", f"columns{self.weight.shape[1]}", shape_word(self.indices.shape)]
        words.append("indices" + self.indices.dtype.removeprefix("i"))
        if self.padding is not None:
            words.append(f"padding{self.padding}")
        return [*words, self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("embedding_")
        table, shape = (words.number("rows"), words.number("columns")), words.shape("shape")
        bits = words.number("indices", 64)
        if f"i{bits}" not in INDEX_DTYPES:
            raise InvalidArgument(f"indices{bits}: indices have 32 or 64 bits")
        padding = words.number("padding") if words.has("padding") else None
        dtype, layout = words.dtype(), words.layout(len(shape) + 1)
        names = ("weight", "y") if direction == "fwd" else ("dweight", "dy")
        given = words.descriptors({names[0]: table, names[1]: (*shape, table[1])}, dtype, layout)
        indices = words.descriptors({"indices": shape}, f"i{bits}", layout)["indices"]
        return cls(direction, given[names[0]], indices, given[names[1]], padding)
