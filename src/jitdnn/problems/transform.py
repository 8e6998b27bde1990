"""Copies that change where elements lie, how many there are, or their type: layouts, padding, folding, joining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice, integer_numbers, padding_pairs
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.problem import Operand, Problem, Reals, as_descriptor
from jitdnn.problems.words import Words, axes_word, pairs_word, shape_word
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype

ORDERS = ("crd", "dcr")
_ANY = tuple(DTYPES)


@dataclass(frozen=True)
class Transform(Problem, kinds=("transform", "fold", "unfold")):
    """y = x in another layout, of another type, with a border, or with blocks of space folded into the channels.

    "transform": y has `padding` (before, after) more elements on each axis, which hold `value` (before alpha).
    "fold": x is (N, C, space) and each block of `factors` elements of space becomes that many channels of one element:
    y is (N, C * prod(factors), space / factors). In the order "crd" neighbours in the block are neighbours among the
    channels (PyTorch's pixel_unshuffle), in "dcr" the channels of x are (ONNX's SpaceToDepth). "unfold" is the inverse.

    x and y are of any dtypes. Reals are rounded to the nearest and saturated where y holds integers, and integers
    are saturated if y holds shorter ones. Raises InvalidShape if shapes do not fit, InvalidArgument for an attribute
    that is out of range.
    """

    how: str
    x: TensorDescriptor
    y: TensorDescriptor
    padding: tuple[tuple[int, int], ...] = ()
    value: float = 0.0
    factors: tuple[int, ...] = ()
    order: str = "crd"

    def __post_init__(self) -> None:
        check_choice(self.how, ("transform", "fold", "unfold"), "how")
        check_choice(self.order, ORDERS, "order")
        if self.how == "transform":
            pairs = padding_pairs(self.padding or 0, len(self.x.shape))
            object.__setattr__(self, "padding", pairs)
        elif any(sum(pair) for pair in self.padding):
            raise InvalidArgument(f"padding {self.padding} with {self.how}: pad first, then {self.how}")
        shape = output_shape(self.how, self.x.shape, self.padding, self.factors)
        if self.y.shape != shape:
            raise InvalidShape(f"y has shape {self.y.shape}: x {self.x.shape} gives {shape}")
        if math.isnan(self.value):
            raise InvalidArgument(
                "value is NaN: a border of NaN cannot be told from a mistake, give a number"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        how: str,
        x_shape: TensorDescriptor | Sequence[int],
        padding: Sequence[int | Sequence[int]] | int = 0,
        value: float = 0.0,
        factors: Sequence[int] = (),
        order: str = "crd",
        y: TensorDescriptor | None = None,
        dtype: str = "f32",
        layout: str = "nchw",
    ) -> Self:
        """The problem from a shape or descriptor; y is packed in `layout` if it is not given."""
        x = as_descriptor(x_shape, dtype, layout)
        pairs = padding_pairs(padding, len(x.shape)) if how == "transform" else ()
        shape = output_shape(how, x.shape, pairs, factors)
        y = y or TensorDescriptor.packed(shape, x.dtype, layout)
        return cls(how, x, y, pairs, float(value), integer_numbers(factors, "factors"), order)

    @property
    def kind(self) -> str:
        return self.how

    @property
    def dtype(self) -> str:
        """The type of y if it is real, else the real type that would hold it."""
        return self.y.dtype if self.y.dtype in REAL_DTYPES else compute_dtype(self.x.dtype, self.y.dtype)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y)."""
        return Operand("x", self.x, "in", _ANY), Operand("y", self.y, "out", _ANY)

    @property
    def flops(self) -> int:
        """One operation an element."""
        return self.y.size

    def _define(self, *inputs: Reals) -> Reals:
        (x,) = inputs
        if self.how == "transform":
            return np.pad(x, self.padding, constant_values=self.value)
        many = self.x if self.how == "fold" else self.y
        n, c, *space = many.shape
        split = [part for e, f in zip(space, self.factors, strict=True) for part in (e // f, f)]
        rank = len(space)
        outer, inner = [2 + 2 * i for i in range(rank)], [3 + 2 * i for i in range(rank)]
        channels = [1, *inner] if self.order == "crd" else [*inner, 1]
        axes = [0, *channels, *outer]
        if self.how == "fold":
            return x.reshape(n, c, *split).transpose(axes).reshape(self.y.shape)
        folded = [(n, c, *split)[axis] for axis in axes]
        return x.reshape(folded).transpose(np.argsort(axes)).reshape(self.y.shape)

    def _body(self) -> list[str]:
        words = [shape_word(self.x.shape)]
        if self.how == "transform":
            words.append(pairs_word("pad", self.padding))
            if self.value:
                words.append(f"value{self.value!r}" if math.isfinite(self.value) else f"fill_{self.value}")
        else:
            words += [axes_word("by", self.factors), self.order]
        words.append(self.x.dtype)
        if self.y.dtype != self.x.dtype:
            words.append(f"to_{self.y.dtype}")
        return [*words, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        shape, how = words.shape("shape"), words.kind
        dtype, layout = words.dtype(), words.layout(len(shape))
        y_dtype = words.choice([f"to_{name}" for name in DTYPES], f"to_{dtype}").removeprefix("to_")
        padding: tuple[tuple[int, int], ...] = ()
        factors: tuple[int, ...] = ()
        value, order = 0.0, "crd"
        if how == "transform":
            padding = words.pairs("pad", len(shape))
            infinite = words.choice(("fill_inf", "fill_-inf"), "none")
            value = words.real("value", 0.0) if infinite == "none" else float(infinite.removeprefix("fill_"))
        else:
            factors, order = words.numbers("by", len(shape) - 2), words.choice(ORDERS, "crd")
        x = words.descriptors({"x": shape}, dtype, layout)["x"]
        y = words.descriptors({"y": output_shape(how, shape, padding, factors)}, y_dtype, layout)["y"]
        return cls(how, x, y, padding, value, factors, order)


def output_shape(
    how: str, shape: Sequence[int], padding: Sequence[tuple[int, int]], factors: Sequence[int]
) -> tuple[int, ...]:
    """The shape of y. Raises InvalidShape where blocks do not fit, InvalidArgument for factors out of range."""
    if how == "transform":
        return tuple(
            extent + before + after
            for extent, (before, after) in zip(shape, padding or ((0, 0),) * len(shape), strict=True)
        )
    if not 3 <= len(shape) <= 5 or len(factors) != len(shape) - 2:
        raise InvalidShape(
            f"x has shape {tuple(shape)} and factors are {tuple(factors)}: N, C, 1 to 3 axes of space and a factor for "
            "each of these are needed"
        )
    if min(factors) < 1:
        raise InvalidArgument(f"factors are {tuple(factors)}: each must be at least 1")
    n, c, *space = shape
    block = math.prod(factors)
    if how == "fold":
        if any(extent % factor for extent, factor in zip(space, factors, strict=True)):
            raise InvalidShape(
                f"space {tuple(space)} cannot be cut into blocks of {tuple(factors)}: pad it first"
            )
        return n, c * block, *(extent // factor for extent, factor in zip(space, factors, strict=True))
    if c % block:
        raise InvalidShape(
            f"{c} channels cannot be unfolded into blocks of {tuple(factors)}: {block} must divide them"
        )
    return n, c // block, *(extent * factor for extent, factor in zip(space, factors, strict=True))


@dataclass(frozen=True)
class Concatenate(Problem, kinds=("concat",)):
    """out = the parts one after the other along an axis; all of one dtype, any.

    Raises InvalidShape if extents on other axes differ, InvalidArgument for an axis that there is not.
    """

    axis: int
    parts: tuple[TensorDescriptor, ...]
    out: TensorDescriptor

    def __post_init__(self) -> None:
        shape = joined_shape([part.shape for part in self.parts], self.axis)
        if self.out.shape != shape:
            raise InvalidShape(f"out has shape {self.out.shape}: the parts give {shape}")
        object.__setattr__(self, "axis", self.axis % len(shape))
        self._check_operands()

    @property
    def kind(self) -> str:
        return "concat"

    @property
    def dtype(self) -> str:
        return self.out.dtype if self.out.dtype in REAL_DTYPES else compute_dtype(self.out.dtype)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(part0, part1, ..., out)."""
        same = (self.out.dtype,)
        parts = (Operand(f"part{i}", part, "in", same) for i, part in enumerate(self.parts))
        return *parts, Operand("out", self.out, "out", same)

    @property
    def flops(self) -> int:
        """One operation an element."""
        return self.out.size

    def _define(self, *inputs: Reals) -> Reals:
        return np.concatenate(inputs, self.axis)

    def _body(self) -> list[str]:
        extents = "x".join(str(part.shape[self.axis]) for part in self.parts)
        return [
            shape_word(self.out.shape),
            f"axis{self.axis}",
            f"parts{extents}",
            self.out.dtype,
            *self._layout_words(),
        ]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        shape, axis, extents = words.shape("shape"), words.number("axis"), words.shape("parts")
        dtype, layout = words.dtype(), words.layout(len(shape))
        shapes = {f"part{i}": (*shape[:axis], extent, *shape[axis + 1 :]) for i, extent in enumerate(extents)}
        given = words.descriptors(shapes | {"out": shape}, dtype, layout)
        return cls(axis, tuple(given[name] for name in shapes), given["out"])


def joined_shape(shapes: Sequence[Sequence[int]], axis: int) -> tuple[int, ...]:
    """The shape of parts put together along `axis`. Raises InvalidShape and InvalidArgument."""
    if not shapes:
        raise InvalidArgument("there is nothing to join: give at least one part")
    first = tuple(shapes[0])
    (axis,) = integer_numbers((axis,), "axis")
    if not -len(first) <= axis < len(first):
        raise InvalidArgument(f"axis is {axis}: it must be {-len(first)} to {len(first) - 1}")
    axis %= len(first)
    for number, shape in enumerate(shapes):
        if len(shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise InvalidShape(
                f"part 0 has shape {first} and part {number} {tuple(shape)}: they may differ on axis {axis} only"
            )
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])
