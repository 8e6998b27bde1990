"""Matrix multiplication: c[..., m, n] = sum over k of a[..., m, k] * b[..., k, n].

A transposed matrix is one with exchanged strides, a broadcast batch one with stride 0.
"""

from __future__ import annotations

import math
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
    byte_dtypes,
    byte_types,
    byte_words,
    sum_dtype,
)
from jitdnn.problems.words import Words, order_word
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class MatMul(Problem, kinds=("matmul",)):
    """c = a @ b for a (..., M, K), b (..., K, N) and c (..., M, N), with the same batch dims in all three.

    `make` broadcasts batch dims. Any extent may be 0; with K = 0 the product is 0.
    All are of one real dtype; or a is i8 or u8, b is i8, and c is i8, u8, i32 or f32: sums are exact, and rounded to
    the nearest and saturated where c holds integers; or a and b are 8-bit reals, which may differ, and c is f32, f16,
    bf16 or an 8-bit real: sums are made in f32.

    Raises InvalidShape if the extents do not fit, InvalidType for other dtypes or mixed ones.
    """

    a: TensorDescriptor
    b: TensorDescriptor
    c: TensorDescriptor

    def __post_init__(self) -> None:
        shape = output_shape(self.a.shape, self.b.shape)
        for name, tensor in (("a", self.a), ("b", self.b)):
            if tensor.shape[:-2] != shape[:-2]:
                raise InvalidShape(
                    f"{name} has batch dims {tensor.shape[:-2]}, c has {shape[:-2]}: broadcast {name} with "
                    "stride 0"
                )
        if self.c.shape != shape:
            raise InvalidShape(
                f"c has shape {self.c.shape}: a {self.a.shape} and b {self.b.shape} give {shape}"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        a_shape: TensorDescriptor | Sequence[int],
        b_shape: TensorDescriptor | Sequence[int],
        dtype: str = "f32",
        a_strides: Sequence[int] | None = None,
        b_strides: Sequence[int] | None = None,
        c_strides: Sequence[int] | None = None,
        c: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from shapes or descriptors, batch dims broadcast; row-major if no strides are given."""
        a = as_descriptor(a_shape, dtype, "nchw", a_strides)
        types = byte_dtypes(a.dtype)
        b = as_descriptor(b_shape, types.second_of(a.dtype) if types else a.dtype, "nchw", b_strides)
        shape = output_shape(a.shape, b.shape)
        a = a.broadcast_to((*shape[:-2], *a.shape[-2:]))
        b = b.broadcast_to((*shape[:-2], *b.shape[-2:]))
        dtype = "f32" if types else a.dtype
        return cls(a, b, c or as_descriptor(shape, dtype, "nchw", c_strides))

    @property
    def kind(self) -> str:
        return "matmul"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(a, b, c)."""
        first, second, result = byte_dtypes(self.a.dtype) or (None, None, None)
        return (
            Operand("a", self.a, dtypes=first),
            Operand("b", self.b, dtypes=second),
            Operand("c", self.c, dtypes=result),
        )

    @property
    def dtype(self) -> str:
        """The type of all matrices; of 8-bit numbers the real type of their sums."""
        return sum_dtype(self.a.dtype, self.c.dtype, self.k) if byte_dtypes(self.a.dtype) else self.c.dtype

    @property
    def m(self) -> int:
        """Rows of a and c."""
        return self.c.shape[-2]

    @property
    def n(self) -> int:
        """Columns of b and c."""
        return self.c.shape[-1]

    @property
    def k(self) -> int:
        """Columns of a, rows of b."""
        return self.a.shape[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """The dims before the last two."""
        return self.c.shape[:-2]

    @property
    def flops(self) -> int:
        """A multiply and an add for each of batch * M * N * K."""
        return 2 * math.prod(self.batch) * self.m * self.n * self.k

    def _define(self, *inputs: Reals) -> Reals:
        """A sum of K outer products."""
        a, b = inputs
        c = np.zeros(self.c.shape)
        for k in range(self.k):
            c += a[..., :, k, None] * b[..., None, k, :]
        return c

    def _body(self) -> list[str]:
        words = ["batch" + "x".join(map(str, self.batch))] if self.batch else []
        words += [f"m{self.m}", f"k{self.k}", f"n{self.n}", *byte_words(self)]
        for name, tensor in (("a", self.a), ("b", self.b), ("c", self.c)):
            words += order_word(name, tensor, _orders(tensor.shape, tensor.dtype), "rows")
        return words

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        batch = words.shape("batch") if words.has("batch") else ()
        m, k, n = words.number("m"), words.number("k"), words.number("n")
        shapes = ("a", (*batch, m, k)), ("b", (*batch, k, n)), ("c", (*batch, m, n))
        a, b, c = (
            words.descriptor(name, shape, dtype, _orders(shape, dtype), "rows")
            for (name, shape), dtype in zip(shapes, byte_types(words), strict=True)
        )
        return cls(a, b, c)


def _orders(shape: Sequence[int], dtype: str) -> dict[str, TensorDescriptor]:
    """The packed orders of a matrix: by rows, and by columns, which is the transpose of a packed matrix."""
    *batch, rows, columns = shape
    turned = TensorDescriptor.packed((*batch, columns, rows), dtype)
    swapped = (*range(len(batch)), len(batch) + 1, len(batch))
    return {"rows": TensorDescriptor.packed(shape, dtype), "columns": turned.transpose(swapped)}


def output_shape(a_shape: Sequence[int], b_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (..., M, N) of a @ b, batch dims broadcast as NumPy does. Raises InvalidShape."""
    for name, shape in (("a", a_shape), ("b", b_shape)):
        if len(shape) < 2:
            raise InvalidShape(f"{name} has shape {tuple(shape)}: a matrix needs at least 2 dims")
    if a_shape[-1] != b_shape[-2]:
        raise InvalidShape(
            f"a has shape {tuple(a_shape)} and b {tuple(b_shape)}: a's columns ({a_shape[-1]}) must be as "
            f"many as b's rows ({b_shape[-2]})"
        )
    try:
        batch = np.broadcast_shapes(tuple(a_shape[:-2]), tuple(b_shape[:-2]))
    except ValueError:
        raise InvalidShape(
            f"the batch dims {tuple(a_shape[:-2])} of a and {tuple(b_shape[:-2])} of b do not broadcast: "
            "from the last one on, extents must be equal or 1"
        ) from None
    return (*batch, a_shape[-2], b_shape[-1])
