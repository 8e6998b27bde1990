"""Elementwise work on whole tensors: sums, copies, pairs of tensors under one operation, and filling.

With the scale factors of every problem, out = alpha * (a + b) + beta * out is cuDNN's AddTensor, and
out = alpha + beta * out its SetTensor and ScaleTensor. OpTensor is cuDNN's too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.problem import Operand, Problem, Reals, as_descriptor, check_same_shape
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype


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
        return [shape_word(self.out.shape), self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        shape = words.shape("shape")
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("a", "b", "out") if words.kind == "add" else ("a", "out")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        return cls(given["a"], given.get("b"), given["out"])


BINARY: dict[str, Callable[[Reals, Reals], Reals]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
UNARY: dict[str, Callable[[Reals], Reals]] = {"sqrt": np.sqrt, "not": lambda a: 1.0 - a}


@dataclass(frozen=True)
class OpTensor(Problem, kinds=("op_tensor",)):
    """out = operation(a_scale * a, b_scale * b), or operation(a_scale * a) for "sqrt" and "not" (1 - a).

    All descriptors have the shape of out; a broadcast operand has stride 0. The minimum and the maximum are NaN where
    an operand is. Raises InvalidShape if shapes differ, InvalidArgument for an unknown operation or another number of
    operands than it takes, InvalidType for dtypes that are not real or mixed.
    """

    operation: str
    a: TensorDescriptor
    b: TensorDescriptor | None
    out: TensorDescriptor
    a_scale: float = 1.0
    b_scale: float = 1.0

    def __post_init__(self) -> None:
        check_choice(self.operation, (*BINARY, *UNARY), "operation")
        if (self.operation in BINARY) != (self.b is not None):
            count = 2 if self.operation in BINARY else 1
            raise InvalidArgument(f"{self.operation} takes {count} operands, got {1 + (self.b is not None)}")
        for operand in self.inputs:
            check_same_shape(operand.name, operand.descriptor, "out", self.out)
        self._check_operands()

    @classmethod
    def make(
        cls,
        operation: str,
        a_shape: TensorDescriptor | Sequence[int],
        b_shape: TensorDescriptor | Sequence[int] | None = None,
        a_scale: float = 1.0,
        b_scale: float = 1.0,
        out: TensorDescriptor | None = None,
        dtype: str = "f32",
        layout: str = "nchw",
    ) -> Self:
        """The problem from shapes or descriptors, broadcast as NumPy does to `out` or the common shape."""
        added = AddTensor.make(a_shape, b_shape, dtype, layout, out=out)
        return cls(operation, added.a, added.b, added.out, float(a_scale), float(b_scale))

    @property
    def kind(self) -> str:
        return "op_tensor"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(a, b, out), or (a, out) without b."""
        second = () if self.b is None else (Operand("b", self.b),)
        return Operand("a", self.a), *second, Operand("out", self.out)

    @property
    def flops(self) -> int:
        """One operation an element, and one for each scale that is not 1."""
        return self.out.size * (1 + (self.a_scale != 1.0) + (self.b_scale != 1.0))

    def _define(self, *inputs: Reals) -> Reals:
        a = self.a_scale * inputs[0]
        if self.operation in UNARY:
            return UNARY[self.operation](a)
        return BINARY[self.operation](a, self.b_scale * inputs[1])

    def _body(self) -> list[str]:
        scales = {"ascale": self.a_scale, "bscale": self.b_scale}
        words = [f"{name}{scale!r}" for name, scale in scales.items() if scale != 1.0]
        return [self.operation, shape_word(self.out.shape), *words, self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        operation, shape = words.choice((*BINARY, *UNARY)), words.shape("shape")
        a_scale, b_scale = words.real("ascale", 1.0), words.real("bscale", 1.0)
        dtype, layout = words.dtype(), words.layout(len(shape))
        names = ("a", "b", "out") if operation in BINARY else ("a", "out")
        given = words.descriptors(dict.fromkeys(names, shape), dtype, layout)
        return cls(operation, given["a"], given.get("b"), given["out"], a_scale, b_scale)


@dataclass(frozen=True)
class Fill(Problem, kinds=("fill",)):
    """out = 1, so that with the scale factors out = alpha + beta * out: filling and scaling in place; any dtype."""

    out: TensorDescriptor

    def __post_init__(self) -> None:
        self._check_operands()

    @property
    def kind(self) -> str:
        return "fill"

    @property
    def dtype(self) -> str:
        return self.out.dtype if self.out.dtype in REAL_DTYPES else compute_dtype(self.out.dtype)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(out,)."""
        return (Operand("out", self.out, "out", tuple(DTYPES)),)

    @property
    def flops(self) -> int:
        """One operation an element."""
        return self.out.size

    def _define(self, *inputs: Reals) -> Reals:
        return np.ones(self.out.shape)

    def _body(self) -> list[str]:
        return [shape_word(self.out.shape), self.out.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        shape = words.shape("shape")
        return cls(words.descriptors({"out": shape}, words.dtype(), words.layout(len(shape)))["out"])


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
