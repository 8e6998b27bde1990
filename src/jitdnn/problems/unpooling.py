"""Unpooling: values put back to where the maxima came from, with zeros elsewhere.

    forward    y = 0;  y[n, c, indices[n, c, o]] = x[n, c, o]        over the outputs o of a pooling, in their order
    backward   dx[n, c, o] = dy[n, c, indices[n, c, o]]

Indices count the elements of the image as those of `pooling` do, (d * H + h) * W + w. Of several values for one
element the last one stays (PyTorch leaves open which). An index that names no element, as -1 of an empty window, is
left out: its value goes nowhere, and its gradient is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidShape
from jitdnn.problems.convolution import DATA_LETTERS
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.pooling import DIRECTIONS, INDEX_DTYPES
from jitdnn.problems.problem import (
    Operand,
    Reals,
    as_descriptor,
    check_extents,
    check_same_shape,
    check_spatial_rank,
)
from jitdnn.problems.words import Words, layout_forms, layout_words, shape_word
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class Unpooling(DirectedProblem, kinds=("unpool_fwd", "unpool_bwd")):
    """`large` (N, C, spatial) from `small` and `indices` (N, C, out); or backward `small` from `large` and indices.

    The values are `small`, x forward and dx backward; the image is `large`, y forward and dy backward. `indices` are
    i32 or i64.

    Raises InvalidShape if shapes do not fit, InvalidType for values that are not real or mixed.
    """

    direction: str
    small: TensorDescriptor
    indices: TensorDescriptor
    large: TensorDescriptor

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        names = self.names
        rank = check_spatial_rank(self.large.shape, names[1])
        check_extents(self.large.shape, names[1], ["n", "c", *DATA_LETTERS[-rank:]])
        check_same_shape("indices", self.indices, names[0], self.small)
        if len(self.small.shape) != rank + 2 or self.small.shape[:2] != self.large.shape[:2]:
            raise InvalidShape(
                f"{names[0]} has shape {self.small.shape} and {names[1]} {self.large.shape}: N, C and the number of "
                "axes must be equal"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        small: TensorDescriptor | Sequence[int],
        large: TensorDescriptor | Sequence[int],
        indices: TensorDescriptor | str = "i64",
        dtype: str = "f32",
        layout: str = "nchw",
    ) -> Self:
        """The problem from shapes or descriptors; what is not given is packed in `layout`."""
        small = as_descriptor(small, dtype, layout)
        large = as_descriptor(large, small.dtype, layout)
        if isinstance(indices, str):
            indices = TensorDescriptor.packed(small.shape, indices, layout)
        return cls(direction, small, indices, large)

    @property
    def names(self) -> tuple[str, str]:
        """What the values and the image are called."""
        return ("x", "y") if self.direction == "fwd" else ("dx", "dy")

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, indices, y) forward, (dy, indices, dx) backward."""
        last = math.prod(self.large.shape[2:]) - 1
        indices = Operand("indices", self.indices, "in", INDEX_DTYPES, (-1, last))
        if self.direction == "fwd":
            return Operand("x", self.small), indices, Operand("y", self.large, "out")
        return Operand("dy", self.large), indices, Operand("dx", self.small, "out")

    @property
    def flops(self) -> int:
        """One operation for each value."""
        return self.small.size

    def _define(self, *inputs: Reals) -> Reals:
        """The formulas above, plane by plane."""
        values, picked = inputs
        planes = math.prod(self.small.shape[:2])
        count, size = math.prod(self.small.shape[2:]), math.prod(self.large.shape[2:])
        indices: npt.NDArray[np.int64] = picked.reshape(planes, count).astype(np.int64)
        is_inside = (indices >= 0) & (indices < size)
        if self.direction == "bwd":
            gradients = np.take_along_axis(
                values.reshape(planes, size), np.where(is_inside, indices, 0), axis=1
            )
            return np.where(is_inside, gradients, 0.0).reshape(self.small.shape)
        image = np.zeros((planes, size))
        for plane in range(planes):
            for place in np.flatnonzero(is_inside[plane]):
                image[plane, indices[plane, place]] = values.reshape(planes, count)[plane, place]
        return image.reshape(self.large.shape)

    def _body(self) -> list[str]:
        small, large = self.names
        named = [(small, self.small), (large, self.large), ("indices", self.indices)]
        return [
            shape_word(self.small.shape), "to" + "x".join(map(str, self.large.shape[2:])),
            f"indices{self.indices.dtype[1:]}", self.small.dtype, *layout_words(named),
        ]  # fmt: skip

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("unpool_")
        shape = words.shape("shape")
        large = (*shape[:2], *words.shape("to"))
        index = f"i{words.number('indices', 64)}"
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("x", "y") if direction == "fwd" else ("dx", "dy")
        given = words.descriptors({names[0]: shape, names[1]: large}, dtype, layout)
        indices = words.descriptor("indices", shape, index, layout_forms(shape, index), layout)
        return cls(direction, given[names[0]], indices, given[names[1]])
