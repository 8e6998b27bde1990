"""Elementwise work on whole tensors: out = a, or out = a + b, operands broadcast to the output.

With the scale factors of every problem, out = alpha * (a + b) + beta * out; with one operand this is cuDNN's
AddTensor and, between two orders in memory, its TransformTensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.problems.problem import (
    Operand,
    Problem,
    Reals,
    as_descriptor,
    check_same_shape,
)
from jitdnn.problems.words import Words, layout_words, shape_word
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class AddTensor(Problem, kinds=("add", "copy")):
    """out = a + b ("add"), or out = a if `b` is None ("copy").

    All descriptors have the shape of out, 1 to 8 dims; a broadcast operand has stride 0, as `make` gives it.

    Raises InvalidShape if shapes differ, InvalidType for dtypes other than f32 or f64 or mixed ones.
    """

    a: TensorDescriptor
    b: TensorDescriptor | None
    out: TensorDescriptor

    def __post_init__(self) -> None:
        for operand in self.inputs:
            check_same_shape(operand.name, operand.descriptor, "out", self.out)
        self._check_operands()

    @classmethod
    def make(
        cls,
        a_shape: TensorDescriptor | Sequence[int],
        b_shape: TensorDescriptor | Sequence[int] | None = None,
        dtype: str = "f32",
        layout: str = "nchw",
        a_strides: Sequence[int] | None = None,
        b_strides: Sequence[int] | None = None,
        out_strides: Sequence[int] | None = None,
        out: TensorDescriptor | Sequence[int] | None = None,
    ) -> Self:
        """The problem from shapes or descriptors, broadcast as NumPy does, to `out` or the common shape."""
        a = as_descriptor(a_shape, dtype, layout, a_strides)
        b = None if b_shape is None else as_descriptor(b_shape, a.dtype, layout, b_strides)
        if out is None:
            out = output_shape(a.shape, None if b is None else b.shape)
        result = as_descriptor(out, a.dtype, layout, out_strides)
        return cls(a.broadcast_to(result.shape), None if b is None else b.broadcast_to(result.shape), result)

    @property
    def kind(self) -> str:
        return "copy" if self.b is None else "add"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(a, b, out), or (a, out) without b."""
        second = () if self.b is None else (Operand("b", self.b),)
        return Operand("a", self.a), *second, Operand("out", self.out)

    @property
    def flops(self) -> int:
        """One operation an element."""
        return self.out.size

    def _define(self, *inputs: Reals) -> Reals:
        """The sum of the inputs."""
        total = np.zeros(self.out.shape)
        for array in inputs:
            total = total + array
        return total

    def _body(self) -> list[str]:
        named = [(operand.name, operand.descriptor) for operand in self.operands]
        return [shape_word(self.out.shape), self.dtype, *layout_words(named)]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        shape = words.shape("shape")
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("a", "b", "out") if words.kind == "add" else ("a", "out")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        return cls(given["a"], given.get("b"), given["out"])


def output_shape(a_shape: Sequence[int], b_shape: Sequence[int] | None = None) -> tuple[int, ...]:
    """The shape that both broadcast to. Raises InvalidShape if there is none."""
    if b_shape is None:
        return tuple(a_shape)
    try:
        return np.broadcast_shapes(tuple(a_shape), tuple(b_shape))
    except ValueError:
        raise InvalidShape(
            f"a has shape {tuple(a_shape)} and b {tuple(b_shape)}, which do not broadcast: from the last dim "
            "on, extents must be equal or 1"
        ) from None
