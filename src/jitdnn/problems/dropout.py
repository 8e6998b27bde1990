"""Dropout: every element is kept with probability 1 - p and scaled so that the mean stays, or else is 0.

    y = x / (1 - p)    where word >= p * 2^16        (rounded to the nearest integer)
    y = 0              elsewhere

`word` is the element's own random number of 16 bits (`philox`): it follows from the element's index and the state,
so that nothing needs to be kept for the backward pass, which is the same operation on dy with the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.problems.philox import STATE, joined, part_words
from jitdnn.problems.problem import Operand, Problem, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, layout_words, shape_word
from jitdnn.tensor import TensorDescriptor

STATE_OPERAND = Operand("state", STATE, "in", ("u32",), (0, 2**32 - 1))
PARTS = 8  # elements of one block of random words
MASK_WORDS = {"bool": "mask", "u8": "byte_mask"}  # a mask of this type in problem strings


@dataclass(frozen=True)
class Dropout(Problem, kinds=("dropout",)):
    """y = x * mask / (1 - p) with the mask that `state` stands for; `mask` (1 where kept) is saved if given.

    x, y and mask have one shape of 1 to 8 dims; The operand
    `state` is four numbers of 32 bits. Where an element
    is dropped y is 0, even if x is not a number. With p = 1 all of them are.

    Raises InvalidShape if shapes differ, InvalidArgument for a `p` that is not from 0 to 1, InvalidType.
    """

    p: float
    x: TensorDescriptor
    y: TensorDescriptor
    mask: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_same_shape("y", self.y, "x", self.x)
        if self.mask is not None:
            check_same_shape("mask", self.mask, "x", self.x)
        self._check_operands()

    @classmethod
    def make(
        cls,
        shape: TensorDescriptor | Sequence[int],
        p: float = 0.5,
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        mask: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; tensors are packed in `layout` if not given."""
        x = as_descriptor(shape, dtype, layout)
        return cls(float(p), x, y or as_descriptor(x.shape, x.dtype, layout), mask)

    @property
    def kind(self) -> str:
        return "dropout"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, state, y), and the mask if it is wanted."""
        saved = () if self.mask is None else (Operand("mask", self.mask, "saved", tuple(MASK_WORDS)),)
        return Operand("x", self.x), STATE_OPERAND, Operand("y", self.y, "out"), *saved

    @property
    def flops(self) -> int:
        """One product an element."""
        return self.y.size

    @property
    def threshold(self) -> int:
        """Elements with smaller words are dropped: 0 to 2^16, and that only for p = 1."""
        return min(round(self.p * 2**16), 2**16 - (self.p < 1))

    @property
    def factor(self) -> float:
        """What elements that are kept are multiplied by."""
        return 1.0 / (1.0 - self.p) if self.p < 1 else 0.0

    def _define(self, *inputs: Reals) -> Any:
        """The words' comparison with the threshold, and the products."""
        x, state = inputs
        words = part_words(self.x.shape, state, PARTS)
        halves = [half for word in words for half in (word & np.uint32(0xFFFF), word >> np.uint32(16))]
        kept = joined(halves, self.x.shape) >= self.threshold
        y = np.where(kept, x * self.factor, 0.0)
        return y if self.mask is None else (y, kept.astype(np.float64))

    def _body(self) -> list[str]:
        named = [("x", self.x), ("y", self.y)]
        words = [f"p{self.p!r}", shape_word(self.x.shape), self.dtype]
        if self.mask is not None:
            named.append(("mask", self.mask))
            words.append(MASK_WORDS[self.mask.dtype])
        return [*words, *layout_words(named)]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        p, shape, dtype = words.real("p"), words.shape("shape"), words.dtype()
        layout = words.layout(len(shape))
        given = words.descriptors({"x": shape, "y": shape}, dtype, layout)
        mask = None
        for mask_dtype, word in MASK_WORDS.items():
            if words.flag(word):
                mask = words.descriptors({"mask": shape}, mask_dtype, layout)["mask"]
        return cls(p, given["x"], given["y"], mask)


def check_probability(p: float) -> None:
    """A number from 0 to 1, or InvalidArgument."""
    if not 0.0 <= p <= 1.0:
        raise InvalidArgument(f"p is {p}: a probability must be from 0 to 1")
