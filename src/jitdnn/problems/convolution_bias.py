"""The gradient of a convolution's bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.problems.convolution import OUTPUT_LETTERS, extent_words, spatial_rank, words_extents
from jitdnn.problems.problem import MAX_SPATIAL, Operand, Problem, Reals, as_descriptor, check_extents
from jitdnn.problems.words import Words
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class BiasGradient(Problem, kinds=("conv_bwd_bias",)):
    """The gradient of a bias added to every channel: db[k] = sum over n and space of dy[n, k, ...].

    `dy` is (N, K) with up to 3 spatial dims, `db` is (K,). Raises as Convolution does.
    """

    dy: TensorDescriptor
    db: TensorDescriptor

    def __post_init__(self) -> None:
        shape = bias_shape(self.dy.shape)
        if self.db.shape != shape:
            raise InvalidShape(f"db has shape {self.db.shape}, dy has {self.dy.shape}: db must be {shape}")
        self._check_operands()

    @classmethod
    def make(
        cls,
        dy_shape: TensorDescriptor | Sequence[int],
        dtype: str = "f32",
        layout: str = "nchw",
        dy_strides: Sequence[int] | None = None,
        db_strides: Sequence[int] | None = None,
        db: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from dy's shape or descriptor; db packed unless its strides are given."""
        dy = as_descriptor(dy_shape, dtype, layout, dy_strides)
        return cls(dy, db or as_descriptor(bias_shape(dy.shape), dy.dtype, "nchw", db_strides))

    @property
    def kind(self) -> str:
        return "conv_bwd_bias"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(dy, db)."""
        return Operand("dy", self.dy), Operand("db", self.db)

    @property
    def flops(self) -> int:
        """One add an element of dy."""
        return self.dy.size

    def _define(self, *inputs: Reals) -> Reals:
        """The sum over all dims but the channels."""
        (dy,) = inputs
        # a contiguous sum is NumPy's pairwise one, whose rounding does not show beside any kernel's
        channels = np.ascontiguousarray(np.moveaxis(dy, 1, 0)).reshape(self.db.size, -1)
        return np.asarray(channels.sum(axis=1))

    def _body(self) -> list[str]:
        n, k, *space = self.dy.shape
        words = [f"n{n}", f"k{k}", *extent_words(OUTPUT_LETTERS, space), self.dtype]
        return words + self._layout_words()

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        rank = spatial_rank(words, OUTPUT_LETTERS)
        dy_shape = (words.number("n"), words.number("k"), *words_extents(words, OUTPUT_LETTERS, rank))
        dtype, layout = words.dtype(), words.layout(rank + 2)
        return cls(**words.descriptors({"dy": dy_shape, "db": dy_shape[1:2]}, dtype, layout))


def bias_shape(dy_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (K,) of the bias added to y (N, K) or (N, K, out). Raises InvalidShape."""
    rank = len(dy_shape) - 2
    if not 0 <= rank <= MAX_SPATIAL:
        raise InvalidShape(f"dy has shape {tuple(dy_shape)}: N, K and up to 3 spatial extents are needed")
    check_extents(dy_shape, "dy", ["n", "k", *OUTPUT_LETTERS[MAX_SPATIAL - rank :]])
    return (dy_shape[1],)
