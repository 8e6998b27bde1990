"""Reductions: what the elements over some axes come down to.

    add            sum(x)                 norm1          sum(|x|)
    mul            product(x)             norm2          sqrt(sum(x^2))
    min, max       least, greatest        avg            sum(x) / n
    amax           max(|x|)               mul_no_zeros   product(x where x is not 0)

over the axes, of n elements each time. "min" and "max" can give the indices of what they found as well. These are
the modes of cuDNN's ReduceTensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.problem import Operand, Problem, Reals, as_descriptor
from jitdnn.problems.softmax import normalize_axis
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor, packed_strides

OPS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")
INDEXED = ("min", "max")
INDEX_DTYPES = ("u32", "i32", "i64")
_NONEMPTY = ("min", "max", "amax", "avg")


@dataclass(frozen=True)
class Reduce(Problem, kinds=("reduce",)):
    """y = op(x) over the dims in `axes` (ascending), which y has with extent 1 if `keepdims`, else not at all.

    Where no dim would be left, y has shape (1,). `indices` is None, or for "min" and "max" describes what holds the
    position of y's elements among those they were taken from, counted in the order of the axes (the last one
    fastest), the first one of equals; it has y's shape and dtype u32, i32 or i64.

    With `propagate_nan` min, max and amax of elements with a NaN are NaN, and the index is that of the first NaN;
    without it a NaN counts as no element: if there is nothing else, y is inf, -inf or 0, and the index 0. The other
    ops always propagate NaN.

    Raises InvalidArgument for an op or axis that there is not and for indices of another op, InvalidShape for y or
    indices of another shape and for min, max, amax or avg over no element, InvalidType for dtypes.
    """

    op: str
    axes: tuple[int, ...]
    x: TensorDescriptor
    y: TensorDescriptor
    indices: TensorDescriptor | None = None
    keepdims: bool = False
    propagate_nan: bool = True

    def __post_init__(self) -> None:
        check_choice(self.op, OPS, "op")
        object.__setattr__(self, "axes", normalize_axis(self.axes, len(self.x.shape)))
        shape = output_shape(self.x.shape, self.axes, self.keepdims)
        for name, tensor in (("y", self.y), ("indices", self.indices)):
            if tensor is not None and tensor.shape != shape:
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: x of shape {self.x.shape} reduced over axes {self.axes} has "
                    f"{shape}"
                )
        if self.indices is not None and self.op not in INDEXED:
            raise InvalidArgument(f"{self.op} has no indices: only {' and '.join(INDEXED)} have them")
        if self.count == 0 and self.op in _NONEMPTY and self.y.size:
            raise InvalidShape(
                f"x has shape {self.x.shape}: {self.op} over axes {self.axes} needs at least one element"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        op: str,
        shape: TensorDescriptor | Sequence[int],
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        indices: str | TensorDescriptor | None = None,
        propagate_nan: bool = True,
        dtype: str = "f32",
        layout: str = "nchw",
        x_strides: Sequence[int] | None = None,
        y: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from a shape or x's descriptor; y and indices are dense with their axes in x's order.

        `axes`: numbers, negative ones from the end, or None for all. `indices`: None, a dtype, or a descriptor.
        """
        x = as_descriptor(shape, dtype, layout, x_strides)
        numbers = tuple(range(len(x.shape))) if axes is None else normalize_axis(axes, len(x.shape))
        result = output_shape(x.shape, numbers, keepdims)
        strides = packed_strides(result, _order(x, numbers, keepdims, len(result)))
        if isinstance(indices, str):
            check_choice(indices, INDEX_DTYPES, "indices")
            indices = TensorDescriptor(result, strides, indices)
        y = y or TensorDescriptor(result, strides, x.dtype)
        return cls(op, numbers, x, y, indices, bool(keepdims), bool(propagate_nan))

    @property
    def kind(self) -> str:
        return "reduce"

    @property
    def count(self) -> int:
        """Elements that come down to one."""
        return prod(self.x.shape[axis] for axis in self.axes)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y), or (x, y, indices)."""
        found = () if self.indices is None else (Operand("indices", self.indices, "saved", INDEX_DTYPES),)
        return Operand("x", self.x), Operand("y", self.y, "out"), *found

    @property
    def flops(self) -> int:
        """Two operations an element."""
        return 2 * self.x.size

    def _define(self, *inputs: Reals) -> Any:
        """The formulas above."""
        (x,) = inputs
        y = self._reduced(x).reshape(self.y.shape)
        if self.indices is None:
            return y
        if self.y.size == 0:
            return y, np.zeros(self.y.shape, np.int64)
        rows = np.moveaxis(self._counted(x), self.axes, range(-len(self.axes), 0))
        rows = rows.reshape(*rows.shape[: rows.ndim - len(self.axes)], -1)
        found: npt.NDArray[np.int64] = (np.argmin if self.op == "min" else np.argmax)(rows, axis=-1)
        return y, found.reshape(self.y.shape)

    def _counted(self, x: Reals) -> Reals:
        """x with what does not take part replaced by what makes no difference."""
        if self.op in ("norm1", "amax"):
            x = np.abs(x)
        if self.op == "mul_no_zeros":
            return np.where(x == 0, 1.0, x)
        if self.propagate_nan or self.op not in ("min", "max", "amax"):
            return x
        return np.where(np.isnan(x), {"min": np.inf, "max": -np.inf, "amax": 0.0}[self.op], x)

    def _reduced(self, x: Reals) -> Reals:
        x = self._counted(x)
        if self.op in ("min", "max", "amax"):
            extreme = np.min if self.op == "min" else np.max
            return np.asarray(extreme(x, axis=self.axes)) if self.y.size else np.zeros(self.y.shape)
        if self.op in ("mul", "mul_no_zeros"):
            return np.asarray(np.prod(x, axis=self.axes))
        if self.op == "norm2":
            return np.asarray(np.sqrt(np.sum(x * x, axis=self.axes)))
        total = np.asarray(np.sum(x, axis=self.axes))
        return total / self.count if self.op == "avg" else total

    def _body(self) -> list[str]:
        words = [self.op, shape_word(self.x.shape), "axis" + "x".join(map(str, self.axes))]
        words += ["keepdims"] if self.keepdims else []
        words += [f"indices_{self.indices.dtype}"] if self.indices is not None else []
        words += [] if self.propagate_nan else ["ignore_nan"]
        return [*words, self.x.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        # a word that ends in digits is a name and its number
        norm = f"norm{words.number('norm')}" if words.has("norm") else None
        op = norm or words.choice(tuple(op for op in OPS if not op.startswith("norm")))
        shape = words.shape("shape")
        rank = len(shape)
        axes = normalize_axis(words.shape("axis"), rank)
        keepdims, ignores = words.flag("keepdims"), words.flag("ignore_nan")
        found = next((f"{k}{words.number(f'indices_{k}')}" for k in "ui" if words.has(f"indices_{k}")), None)
        if found is not None:
            check_choice(found, INDEX_DTYPES, "indices")
        dtype, layout = words.dtype(), words.layout(rank)
        result = output_shape(shape, axes, keepdims)
        given = words.descriptors({"x": shape, "y": result}, dtype, layout)
        indices = words.descriptors({"indices": result}, found, layout)["indices"] if found else None
        return cls(op, axes, given["x"], given["y"], indices, keepdims, not ignores)


def output_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape of y: at least one dim."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes) or (1,)


def _order(x: TensorDescriptor, axes: Sequence[int], keepdims: bool, rank: int) -> tuple[int, ...]:
    """The order in memory of y's axes: that of x's."""
    if keepdims or rank == 1:
        return x.order if keepdims else (0,)
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    return tuple(kept.index(axis) for axis in x.order if axis in kept)
