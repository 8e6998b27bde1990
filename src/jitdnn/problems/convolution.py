"""Convolution: forward, the gradients of its data and its filter, and the gradient of the bias.

With x of (N, C, spatial), w of (K, C/groups, taps) and y of (N, K, out), per spatial axis

    out = floor((extent + before + after - (dilation * (taps - 1) + 1)) / stride) + 1
    y[n, k, o] = sum over c, t of w[k, c, t] * x[n, c, o * stride - before + dilation * t]

with x zero outside its extents and c over the channels of k's group. That is cross-correlation; the true
convolution takes tap `taps - 1 - t` in place of t. The two backward directions are the adjoints of this map,
linear in x and in w: <conv(x, w), dy> = <x, bwd_data(dy, w)> = <w, bwd_filter(x, dy)>.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice, padding_pairs, per_axis
from jitdnn.errors import InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import (
    BYTE_INTEGERS,
    Operand,
    Reals,
    as_descriptor,
    byte_dtypes,
    byte_types,
    byte_words,
    check_extents,
    check_spatial_rank,
    sum_dtype,
)
from jitdnn.problems.words import Words, axes_word, layout_words, pairs_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
OPERANDS = {"fwd": "xwy", "bwd_data": "ywx", "bwd_filter": "xyw"}
MODES = ("cross_correlation", "convolution")

_Index = tuple[EllipsisType | slice | int, ...]

DATA_LETTERS = "dhw"
FILTER_LETTERS = "trs"
OUTPUT_LETTERS = "opq"


@dataclass(frozen=True)
class Convolution(DirectedProblem, kinds=("conv_fwd", "conv_bwd_data", "conv_bwd_filter")):
    """A convolution in one of its three directions.

    `x`, `w` and `y` are the tensors of the forward convolution in every direction: x (N, C, spatial),
    w (K, C/groups, taps), y (N, K, out); 1 to 3 spatial axes; for "bwd_data" dx has the descriptor `x` and dy
    the descriptor `y`, for "bwd_filter" dw has the descriptor `w`. `stride` and `dilation` have a number and
    `padding` a (before, after) pair for each spatial axis.

    All tensors are of one real dtype; or, forward only, x is i8 or u8, w is i8, and y is i8, u8, i32 or f32: sums are
    exact, and rounded to the nearest and saturated where y holds integers; or both inputs are 8-bit reals, which may
    differ, and the result is f32, f16, bf16 or an 8-bit real: sums are made in f32.

    Raises InvalidShape if the extents do not fit, InvalidArgument for an attribute out of range, InvalidType
    for other dtypes or mixed ones.
    """

    direction: str
    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    mode: str = "cross_correlation"

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.mode, MODES, "mode")
        rank = check_spatial_rank(self.x.shape, "x")
        object.__setattr__(self, "stride", per_axis(self.stride, rank, "stride"))
        object.__setattr__(self, "padding", padding_pairs(self.padding, rank))
        object.__setattr__(self, "dilation", per_axis(self.dilation, rank, "dilation"))
        _check_shapes(self.x.shape, self.w.shape, self.groups, rank)
        y_shape = _output_shape(self.x.shape, self.w.shape, self.stride, self.padding, self.dilation)
        if self.y.shape != y_shape:
            raise InvalidShape(
                f"{self._named('y')} has shape {self.y.shape}: x {self.x.shape}, w {self.w.shape}, "
                f"stride {self.stride}, padding {self.padding} and dilation {self.dilation} give {y_shape}"
            )
        # a stride beyond the padded image leaves one result, as one as long as it does: kernels walk whole strides
        padded = (
            n + before + after for n, (before, after) in zip(self.x.shape[2:], self.padding, strict=True)
        )
        object.__setattr__(self, "stride", tuple(map(min, self.stride, padded)))
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        x_shape: TensorDescriptor | Sequence[int],
        w_shape: TensorDescriptor | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int | Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        mode: str = "cross_correlation",
        dtype: str = "f32",
        layout: str = "nchw",
        x_strides: Sequence[int] | None = None,
        w_strides: Sequence[int] | None = None,
        y_strides: Sequence[int] | None = None,
        y: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from shapes, y's by the shape rule; scalars stand for every axis.

        A descriptor in place of a shape is taken as it is; the others are packed in `layout` unless their
        strides (in elements) are given.
        """
        x = as_descriptor(x_shape, dtype, layout, x_strides)
        types = byte_dtypes(x.dtype)
        w = as_descriptor(w_shape, types.second_of(x.dtype) if types else x.dtype, layout, w_strides)
        rank = check_spatial_rank(x.shape, "x")
        stride = per_axis(stride, rank, "stride")
        pairs = padding_pairs(padding, rank)
        dilation = per_axis(dilation, rank, "dilation")
        if y is None:
            y_shape = output_shape(x.shape, w.shape, stride, pairs, dilation, groups)
            y_dtype = "f32" if direction == "fwd" and types else x.dtype
            y = as_descriptor(y_shape, y_dtype, layout, y_strides)
        return cls(direction, x, w, y, stride, pairs, dilation, groups, mode)

    @classmethod
    def make_transposed(
        cls,
        dy_shape: TensorDescriptor | Sequence[int],
        w_shape: TensorDescriptor | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int | Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        mode: str = "cross_correlation",
        dtype: str = "f32",
        layout: str = "nchw",
        x: TensorDescriptor | None = None,
    ) -> Self:
        """The "bwd_data" problem of a transposed convolution: dy (N, K, out) and w (K, C/groups, taps) give
        dx (N, C, spatial).

        Several extents lead to the output extents of dy; `output_padding`, less than the stride, picks one:

            extent = (out - 1) * stride + dilation * (taps - 1) + 1 - before - after + output_padding
        """
        dy = as_descriptor(dy_shape, dtype, layout)
        w = as_descriptor(w_shape, dy.dtype, layout)
        if x is None:
            x_shape = transposed_shape(dy.shape, w.shape, stride, padding, dilation, output_padding, groups)
            x = TensorDescriptor.packed(x_shape, "f32" if byte_dtypes(dy.dtype) else dy.dtype, layout)
        return cls.make("bwd_data", x, w, stride, padding, dilation, groups, mode, y=dy)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, w, y) forward, (dy, w, dx) for "bwd_data", (x, dy, dw) for "bwd_filter"."""
        order = OPERANDS[self.direction]
        tensors = [getattr(self, field) for field in order]
        first = tensors[0].dtype
        types = byte_dtypes(first) if self.is_integer or first not in BYTE_INTEGERS else None
        each = types or (None, None, None)
        return tuple(
            Operand(self._named(field), tensor, dtypes=dtypes)
            for field, tensor, dtypes in zip(order, tensors, each, strict=True)
        )

    @property
    def is_integer(self) -> bool:
        """True if 8-bit integers are convolved; sums of their products are exact."""
        return self.direction == "fwd" and self.x.dtype in BYTE_INTEGERS

    @cached_property  # asked for many times by every plan
    def dtype(self) -> str:
        """The type of all tensors; of 8-bit numbers the real type of their sums."""
        if not self.is_integer and not self.has_float8:
            return self.output.dtype
        return sum_dtype(self.inputs[0].descriptor.dtype, self.output.dtype, math.prod(self.w.shape[1:]))

    @property
    def n(self) -> int:
        """Images in the batch."""
        return self.x.shape[0]

    @property
    def c(self) -> int:
        """Channels of x, over all groups."""
        return self.x.shape[1]

    @property
    def k(self) -> int:
        """Channels of y, over all groups."""
        return self.w.shape[0]

    @property
    def spatial(self) -> tuple[int, ...]:
        """Spatial extents of x: (D, H, W), (H, W) or (W,)."""
        return self.x.shape[2:]

    @property
    def filter_spatial(self) -> tuple[int, ...]:
        """Taps of the filter: (T, R, S), (R, S) or (S,)."""
        return self.w.shape[2:]

    @property
    def output_spatial(self) -> tuple[int, ...]:
        """Spatial extents of y: (O, P, Q), (P, Q) or (Q,)."""
        return self.y.shape[2:]

    @property
    def flops(self) -> int:
        """A multiply and an add for every tap of every output, taps on the padding included."""
        return 2 * self.y.size * math.prod(self.w.shape[1:])

    @property
    def statements(self) -> int:
        return math.prod(self.filter_spatial)

    def _define(self, *inputs: Reals) -> Reals:
        """A sum over the taps: each pairs a strided view of the zero-extended x with one matrix a group."""
        if self.direction == "fwd":
            return self._forward(*inputs)
        if self.direction == "bwd_data":
            return self._backward_data(*inputs)
        return self._backward_filter(*inputs)

    def _forward(self, x: Reals, w: Reals) -> Reals:
        extended = self._by_group(self._extend(x))
        filters = self._by_group(w, axis=0)
        y = self._by_group(np.zeros(self.y.shape))
        for tap, view in self._taps():
            y += np.einsum("ngc...,gkc->ngk...", extended[view], filters[tap])
        return y.reshape(self.y.shape)

    def _backward_data(self, dy: Reals, w: Reals) -> Reals:
        extended = self._by_group(self._extend(np.zeros(self.x.shape)))
        filters = self._by_group(w, axis=0)
        for tap, view in self._taps():
            extended[view] += np.einsum("ngk...,gkc->ngc...", self._by_group(dy), filters[tap])
        inside = [slice(b, b + e) for e, (b, _) in zip(self.spatial, self.padding, strict=True)]
        whole = [slice(None)] * 3  # n, g, c
        return extended[tuple(whole + inside)].reshape(self.x.shape)

    def _backward_filter(self, x: Reals, dy: Reals) -> Reals:
        extended = self._by_group(self._extend(x))
        dw = self._by_group(np.zeros(self.w.shape), axis=0)
        space = OUTPUT_LETTERS[-len(self.spatial) :]
        for tap, view in self._taps():
            dw[tap] = np.einsum(f"ngc{space},ngk{space}->gkc", extended[view], self._by_group(dy))
        return dw.reshape(self.w.shape)

    def _extend(self, x: Reals) -> Reals:
        """x with its padding."""
        return np.pad(x, [(0, 0), (0, 0), *self.padding])

    def _by_group(self, tensor: Reals, axis: int = 1) -> Reals:
        """A view with the channels of `axis` split into (groups, channels of a group)."""
        shape = tensor.shape
        split = (self.groups, shape[axis] // self.groups)
        return tensor.reshape(*shape[:axis], *split, *shape[axis + 1 :])

    def _taps(self) -> Iterator[tuple[_Index, _Index]]:
        """Each tap's index into w (by group), and into the extended x, one element for every output."""
        for place in itertools.product(*map(range, self.filter_spatial)):
            view: list[slice] = [
                slice(t * d, t * d + s * (o - 1) + 1, s)
                for t, d, s, o in zip(place, self.dilation, self.stride, self.output_spatial, strict=True)
            ]
            flipped = tuple(e - 1 - t for e, t in zip(self.filter_spatial, place, strict=True))
            tap = flipped if self.mode == "convolution" else place
            in_filter: _Index = (..., *tap)
            in_extended: _Index = (..., *view)
            yield in_filter, in_extended

    def _named(self, field: str) -> str:
        """`y` is `dy` to the backward directions, and their result `dx` or `dw`."""
        gradients = {"fwd": "", "bwd_data": "xy", "bwd_filter": "wy"}[self.direction]
        return "d" + field if field in gradients else field

    def _body(self) -> list[str]:
        rank = len(self.spatial)
        words = [f"n{self.n}", f"c{self.c}"]
        words += extent_words(DATA_LETTERS, self.spatial)
        words += [f"k{self.k}", *extent_words(FILTER_LETTERS, self.filter_spatial)]
        words += [axes_word("stride", self.stride), pairs_word("pad", self.padding)]
        if self.dilation != (1,) * rank:
            words.append(axes_word("dil", self.dilation))
        if self.groups != 1:
            words.append(f"g{self.groups}")
        if self.mode == "convolution":
            words.append("flip")
        words += byte_words(self)
        return [*words, *layout_words([("x", self.x), ("w", self.w), ("y", self.y)])]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("fused_").removeprefix("conv_")
        rank = spatial_rank(words, FILTER_LETTERS)
        n, c, k = words.number("n"), words.number("c"), words.number("k")
        groups = words.number("g", 1)
        taps = words_extents(words, FILTER_LETTERS, rank)
        stride = words.numbers("stride", rank, 1)
        padding = words.pairs("pad", rank)
        dilation = words.numbers("dil", rank, 1)
        w_shape = (k, c // groups if groups > 0 and c % groups == 0 else c, *taps)
        if direction == "bwd_data" and words.has(OUTPUT_LETTERS[-1]):
            dy_shape = (n, k, *words_extents(words, OUTPUT_LETTERS, rank))
            extra = words.numbers("outpad", rank, 0)
            x_shape = transposed_shape(dy_shape, w_shape, stride, padding, dilation, extra, groups)
        else:
            x_shape = (n, c, *words_extents(words, DATA_LETTERS, rank))
        y_shape = output_shape(x_shape, w_shape, stride, padding, dilation, groups)
        layout = words.layout(rank + 2)
        shapes = {"x": x_shape, "w": w_shape, "y": y_shape}
        types = dict(zip(OPERANDS[direction], byte_types(words), strict=True))
        given = {
            name: words.descriptors({name: shape}, types[name], layout)[name]
            for name, shape in shapes.items()
        }
        mode = "convolution" if words.flag("flip") else "cross_correlation"
        return cls(direction, given["x"], given["w"], given["y"], stride, padding, dilation, groups, mode)


def output_shape(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> tuple[int, ...]:
    """The shape of y, (N, K, out), for x (N, C, spatial) and w (K, C/groups, taps).

    Raises InvalidShape if the channels, groups and extents do not fit, InvalidArgument for a stride or
    dilation below 1 or a negative padding.
    """
    rank = check_spatial_rank(x_shape, "x")
    _check_shapes(x_shape, w_shape, groups, rank)
    stride, dilation = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
    return _output_shape(x_shape, w_shape, stride, padding_pairs(padding, rank), dilation)


def _check_shapes(x_shape: Sequence[int], w_shape: Sequence[int], groups: int, rank: int) -> None:
    if len(w_shape) != rank + 2:
        raise InvalidShape(f"w has shape {tuple(w_shape)}, x has {tuple(x_shape)}: they need as many dims")
    check_extents(x_shape, "x", ["n", "c", *DATA_LETTERS[-rank:]])
    check_extents(w_shape, "w", ["k", "c/groups", *FILTER_LETTERS[-rank:]], empty=())
    _check_groups(x_shape[1], w_shape, groups)


def _output_shape(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    rank = len(stride)
    out = [
        _output_extent(axis - rank, *numbers)
        for axis, numbers in enumerate(zip(x_shape[2:], w_shape[2:], stride, pairs, dilation, strict=True))
    ]
    return (x_shape[0], w_shape[0], *out)


def transposed_shape(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
) -> tuple[int, ...]:
    """The shape (N, C, spatial) that a transposed convolution of dy (N, K, out) by w (K, C/groups, ...) has.

    Raises InvalidShape if K differs, if an extent would be below 1, or if an output padding is not less than
    its stride (the extent would belong to a larger dy).
    """
    rank = check_spatial_rank(dy_shape, "dy")
    if len(w_shape) != rank + 2:
        raise InvalidShape(f"w has shape {tuple(w_shape)}, dy has {tuple(dy_shape)}: they need as many dims")
    check_extents(dy_shape, "dy", ["n", "k", *OUTPUT_LETTERS[-rank:]])
    check_extents(w_shape, "w", ["k", "c/groups", *FILTER_LETTERS[-rank:]], empty=())
    if dy_shape[1] != w_shape[0]:
        raise InvalidShape(f"dy has {dy_shape[1]} channels, w has k={w_shape[0]}: they must be equal")
    stride, dilation = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
    pairs = padding_pairs(padding, rank)
    extra = per_axis(output_padding, rank, "output_padding", least=0)
    spatial = []
    for axis, (out, taps, s, (before, after), d, more) in enumerate(
        zip(dy_shape[2:], w_shape[2:], stride, pairs, dilation, extra, strict=True)
    ):
        letter = DATA_LETTERS[axis - rank]
        if more >= s:
            raise InvalidShape(
                f"output_padding {more} of axis {letter} must be less than its stride {s}: "
                "larger extents belong to a larger dy"
            )
        extent = (out - 1) * s + d * (taps - 1) + 1 - before - after + more
        if extent < 1:
            raise InvalidShape(
                f"axis {letter} of the result would have extent {extent}: the padding {before}:{after} takes "
                f"away all of the {extent + before + after} elements that {out} outputs reach"
            )
        spatial.append(extent)
    channels = w_shape[1] * groups
    _check_groups(channels, w_shape, groups)
    return (dy_shape[0], channels, *spatial)


def _check_groups(c: int, w_shape: Sequence[int], groups: int) -> None:
    k, per_group = w_shape[:2]
    if groups < 1:
        raise InvalidShape(f"groups is {groups}: it must be at least 1")
    for name, channels in (("x has c", c), ("w has k", k)):
        if channels % groups:
            raise InvalidShape(f"{name}={channels}, which groups={groups} does not divide")
    if per_group * groups != c:
        raise InvalidShape(
            f"w has {per_group} input channels, x has {c} and groups={groups}: "
            + ("they must be equal" if groups == 1 else f"w must have {c // groups}")
        )


def _output_extent(
    letter: int, extent: int, taps: int, stride: int, pair: tuple[int, int], dilation: int
) -> int:
    padded, reach = extent + sum(pair), dilation * (taps - 1) + 1
    if padded < reach:
        name, tap_name = DATA_LETTERS[letter], FILTER_LETTERS[letter]
        raise InvalidShape(
            f"the filter covers {reach} elements of axis {name} ({tap_name}={taps}, dilation {dilation}) and "
            f"the padded image has {padded} ({name}={extent}, padding {pair[0]}:{pair[1]}), so no output is "
            f"left: pad by {reach - padded} more or use a smaller filter"
        )
    return (padded - reach) // stride + 1


def extent_words(letters: str, extents: Sequence[int]) -> list[str]:
    """`h5 w7` for two extents under the letters "dhw"."""
    return [f"{letter}{e}" for letter, e in zip(letters[3 - len(extents) :], extents, strict=True)]


def words_extents(words: Words, letters: str, rank: int) -> tuple[int, ...]:
    """The extents of the last `rank` letters."""
    return tuple(words.number(letter) for letter in letters[3 - rank :])


def spatial_rank(words: Words, letters: str) -> int:
    """How many spatial axes the string speaks of: 3 if the first letter is there, and so on down to 0."""
    for axis, letter in enumerate(letters):
        if words.has(letter):
            return 3 - axis
    return 0
