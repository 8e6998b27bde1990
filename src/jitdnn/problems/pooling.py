"""Pooling: the maximum or the average of each window, forward and backward.

Per spatial axis, with the window k, the dilation d, the stride s and the padding (before, after) of an image
extent i, a window spans e = (k - 1) * d + 1 elements, and

    floor   out = floor((i + before + after - e) / s) + 1
    ceil    out = ceil(...) + 1, less one if the last window would start past the image
    caffe   as ceil, but that correction is made only if some axis is padded: without padding, a stride larger
            than the window may leave the last window empty

A window that spans more than the padded image is refused, but by "caffe" where it overhangs by less than a stride and
has no dilation: Caffe gives it one output, of the elements that there are.

Output o looks at the k elements o * s - before + t * d. The maximum is taken over those inside the image. The
average divides by their number, or with `count_include_pad` by the number inside the padded image: zeros of the
padding count, an overhang past the padding (ceil, caffe) does not.

The first maximum, in the order of the indices, is the one that a gradient goes to; a NaN is larger than every
number. Its index counts the elements of the image, (d * H + h) * W + w, in the logical order whatever the order
in memory. An empty window (of Caffe's rounding, or where all of a dilated one lies in the padding) has the
maximum -FLT_MAX, as Caffe says, the index -1, and the average 0 (Caffe divides by a size that may be zero there).

Of "adaptive" windows the number is given: output o looks at elements floor(o * i / out) to
ceil((o + 1) * i / out) - 1, PyTorch's rule; there is no padding and no dilation.

Integers of 8 bits are pooled forward only: the maximum exactly, the average rounded to the nearest (ties to
even).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import check_choice, padding_pairs, per_axis
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems.convolution import DATA_LETTERS, extent_words, spatial_rank, words_extents
from jitdnn.problems.directed import TwoWayProblem
from jitdnn.problems.problem import (
    Operand,
    Reals,
    as_descriptor,
    check_extents,
    check_same_shape,
    check_spatial_rank,
)
from jitdnn.problems.words import Words, axes_word, layout_forms, pairs_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
MODES = ("max", "avg")
ROUNDINGS = ("floor", "ceil", "caffe")
ADAPTIVE = "adaptive"
QUANTIZED = ("i8", "u8")
INDEX_DTYPES = ("i32", "i64")

#: that a window may have along an axis, unless the image has more
MOST_TAPS = 1 << 20
EMPTY_WINDOW_MAX = -float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Pooling(TwoWayProblem, kinds=("pool_fwd", "pool_bwd")):
    """Maximum or average pooling of x (N, C, spatial) to y (N, C, out), 1 to 3 spatial axes; or its gradient.

    `mode` is "max" or "avg"; `count_include_pad` is for the average, and True for the maximum whatever was
    given. `window`, `stride` and `dilation` have a number and `padding`, less than what the window spans, a
    (before, after) pair for each spatial axis; `rounding` is "floor", "ceil" or "caffe". With "adaptive" instead
    the extents of y are free, and window and stride become those of the largest and smallest bin, whatever was
    given. `indices`, of y's shape
    and i32 or i64, is a second result of the forward maximum. For "bwd", `dx` and `dy` describe the gradients
    (x's and y's descriptors if None). A tensor that is no operand (x and y in the gradient of the average) has
    its packed descriptor, whatever was given.

    Raises InvalidShape if the extents do not fit, InvalidArgument for an attribute out of range, InvalidType
    for dtypes that are not real (or, forward, i8 or u8) or mixed.
    """

    direction: str
    mode: str
    x: TensorDescriptor
    y: TensorDescriptor
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    count_include_pad: bool = True
    rounding: str = "floor"
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None
    dilation: tuple[int, ...] | int = 1
    indices: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.mode, MODES, "mode")
        rank = check_spatial_rank(self.x.shape, "x")
        object.__setattr__(self, "dilation", per_axis(self.dilation, rank, "dilation"))
        if self.rounding == ADAPTIVE:
            self._settle_bins(rank)
        object.__setattr__(self, "window", per_axis(self.window, rank, "window"))
        object.__setattr__(self, "stride", per_axis(self.stride, rank, "stride"))
        object.__setattr__(self, "padding", padding_pairs(self.padding, rank))
        shape = self.y.shape
        if self.rounding != ADAPTIVE:
            shape = output_shape(
                self.x.shape, self.window, self.stride, self.padding, self.rounding, self.dilation
            )
        if self.y.shape != shape:
            raise InvalidShape(
                f"y has shape {self.y.shape}: x {self.x.shape}, window {self.window}, stride {self.stride}, "
                f"padding {self.padding}, dilation {self.dilation} and rounding {self.rounding!r} give {shape}"
            )
        if self.indices is not None:
            if (self.direction, self.mode) != ("fwd", "max"):
                raise InvalidArgument(
                    f"indices is given, but only the forward maximum has indices, not {self.direction} {self.mode}"
                )
            check_same_shape("indices", self.indices, "y", self.y)
        if self.mode == "max":
            object.__setattr__(self, "count_include_pad", True)
        self._settle_gradients(saved=("x", "y") if self.mode == "max" else ())
        if self.x.dtype in QUANTIZED and self.direction == "fwd" and self.y.dtype != self.x.dtype:
            raise InvalidType(f"x is {self.x.dtype} and y is {self.y.dtype}: they must be of one dtype")
        self._check_operands()

    def _settle_bins(self, rank: int) -> None:
        """Window and stride of adaptive pooling, from the extents of x and y."""
        check_extents(self.x.shape, "x", ["n", "c", *DATA_LETTERS[-rank:]])
        if len(self.y.shape) != rank + 2 or self.y.shape[:2] != self.x.shape[:2] or min(self.y.shape[2:]) < 1:
            raise InvalidShape(
                f"y has shape {self.y.shape}: x {self.x.shape} needs the same N and C, and {rank} output extents of "
                "at least 1"
            )
        if any(sum(pair) for pair in padding_pairs(self.padding, rank)) or self.dilation != (1,) * rank:
            raise InvalidArgument(
                f"padding is {self.padding} and dilation {self.dilation}: adaptive pooling has none"
            )
        for i, out in zip(self.x.shape[2:], self.y.shape[2:], strict=True):
            if out > max(i, MOST_TAPS):
                raise InvalidShape(
                    f"y has {out} windows over {i} elements: there may be as many as elements, or {MOST_TAPS}"
                )
        bins = [_bins(i, out) for i, out in zip(self.x.shape[2:], self.y.shape[2:], strict=True)]
        object.__setattr__(self, "window", tuple(int((last - first).max()) for first, last in bins))
        strides = tuple(max(1, i // out) for i, out in zip(self.x.shape[2:], self.y.shape[2:], strict=True))
        object.__setattr__(self, "stride", strides)

    @classmethod
    def adaptive(
        cls,
        direction: str,
        mode: str,
        x_shape: TensorDescriptor | Sequence[int],
        out: int | Sequence[int],
        dtype: str = "f32",
        layout: str = "nchw",
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
        indices: TensorDescriptor | str | None = None,
    ) -> Self:
        """The problem of as many windows as `out` says, for each axis or all of them."""
        x = as_descriptor(x_shape, dtype, layout)
        rank = check_spatial_rank(x.shape, "x")
        y_shape = (*x.shape[:2], *per_axis(out, rank, "out"))
        packed = TensorDescriptor.packed(y_shape, x.dtype, layout)
        if isinstance(indices, str):
            indices = TensorDescriptor.packed(y_shape, indices, layout)
        if direction == "bwd":
            dx, dy = dx or TensorDescriptor.packed(x.shape, x.dtype, layout), dy or packed
        ones = (1,) * rank
        return cls(
            direction, mode, x, y or packed, ones, ones, ((0, 0),) * rank, True, ADAPTIVE, dx, dy, ones, indices
        )  # fmt: skip

    @classmethod
    def make(
        cls,
        direction: str,
        mode: str,
        x_shape: TensorDescriptor | Sequence[int],
        window: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int | Sequence[int]] = 0,
        count_include_pad: bool = True,
        rounding: str = "floor",
        dtype: str = "f32",
        layout: str = "nchw",
        x_strides: Sequence[int] | None = None,
        y_strides: Sequence[int] | None = None,
        dx_strides: Sequence[int] | None = None,
        dy_strides: Sequence[int] | None = None,
        y: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
        dy: TensorDescriptor | None = None,
        dilation: int | Sequence[int] = 1,
        indices: TensorDescriptor | str | None = None,
    ) -> Self:
        """The problem from x's shape or descriptor, y's shape by the rule; scalars stand for every axis.

        The stride is the window if None. Tensors are packed in `layout` unless their strides (in elements) or
        descriptors are given. `indices` may be their dtype.
        """
        x = as_descriptor(x_shape, dtype, layout, x_strides)
        rank = check_spatial_rank(x.shape, "x")
        window = per_axis(window, rank, "window")
        stride = window if stride is None else per_axis(stride, rank, "stride")
        pairs = padding_pairs(padding, rank)
        dilation = per_axis(dilation, rank, "dilation")
        y_shape = output_shape(x.shape, window, stride, pairs, rounding, dilation)
        y = y or as_descriptor(y_shape, x.dtype, layout, y_strides)
        if isinstance(indices, str):
            indices = TensorDescriptor.packed(y_shape, indices, layout)
        if direction == "bwd":
            dx = dx or as_descriptor(x.shape, x.dtype, layout, dx_strides)
            dy = dy or as_descriptor(y_shape, x.dtype, layout, dy_strides)
        return cls(
            direction, mode, x, y, window, stride, pairs, count_include_pad, rounding, dx, dy, dilation, indices
        )  # fmt: skip

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, y) and perhaps indices forward; backward (dy, x, y, dx) for the maximum, (dy, dx) for the
        average."""
        if self.direction == "fwd":
            dtypes = QUANTIZED if self.x.dtype in QUANTIZED else None
            results: tuple[Operand, ...] = (Operand("y", self.y, "out", dtypes),)
            if self.indices is not None:
                last = math.prod(self.spatial) - 1
                results += (Operand("indices", self.indices, "saved", INDEX_DTYPES, (-1, last)),)
            return Operand("x", self.x, "in", dtypes), *results
        dy, dx = self.gradients
        saved = (Operand("x", self.x), Operand("y", self.y)) if self.mode == "max" else ()
        return dy, *saved, dx

    @property
    def spatial(self) -> tuple[int, ...]:
        """Spatial extents of x: (D, H, W), (H, W) or (W,)."""
        return self.x.shape[2:]

    @property
    def output_spatial(self) -> tuple[int, ...]:
        """Spatial extents of y: (O, P, Q), (P, Q) or (Q,)."""
        return self.y.shape[2:]

    @property
    def flops(self) -> int:
        """One operation an element of each window."""
        return self.y.size * math.prod(self.window)

    @property
    def statements(self) -> int:
        return math.prod(self.window)

    def divisors(self) -> Reals:
        """What each window's sum is divided by, of the shape `output_spatial`; 1 for an empty window."""
        counts = np.ones(self.output_spatial)
        for axis, (k, s, d, (before, after), i, out) in enumerate(self._axes()):
            places = np.arange(out)[:, None] * s - before + np.arange(k) * d
            if self.rounding == ADAPTIVE:
                first, last = _bins(i, out)
                count = last - first
            elif self.count_include_pad:
                count = (places < i + after).sum(axis=1)
            else:
                count = ((places >= 0) & (places < i)).sum(axis=1)
            shape = [1] * counts.ndim
            shape[axis] = out
            counts = counts * np.maximum(count, 1).reshape(shape)
        return counts

    def _define(self, *inputs: Reals) -> Reals | tuple[Reals, Reals]:
        """Place by place through the window; at each, every output looks at one element."""
        if self.direction == "fwd":
            if self.mode == "avg":
                return self._average(inputs[0])
            maximum, chosen = self._maximum(inputs[0])
            return maximum if self.indices is None else (maximum, self._elements(chosen))
        if self.mode == "max":
            return self._maximum_gradient(inputs[0], inputs[1])
        return self._average_gradient(inputs[0])

    def _maximum(self, x: Reals) -> tuple[Reals, npt.NDArray[np.int64]]:
        """The maxima, and for each the index of its place in the window (-1 for an empty window)."""
        best = np.full(self.y.shape, EMPTY_WINDOW_MAX)
        chosen = np.full(self.y.shape, -1)
        for index, (outputs, elements) in enumerate(self._places()):
            value, so_far = x[elements], best[outputs]
            is_better = (value > so_far) | (np.isnan(value) & ~np.isnan(so_far)) | (chosen[outputs] < 0)
            best[outputs] = np.where(is_better, value, so_far)
            chosen[outputs] = np.where(is_better, index, chosen[outputs])
        return best, chosen

    def _elements(self, chosen: npt.NDArray[np.int64]) -> Reals:
        """Places in the windows as indices of elements of the image; -1 stays."""
        elements = np.zeros(self.y.shape)
        places = np.unravel_index(np.maximum(chosen, 0), self.window)
        for axis, (place, (_, s, d, (before, _), i, out)) in enumerate(
            zip(places, self._axes(), strict=True)
        ):
            start = _bins(i, out)[0] if self.rounding == ADAPTIVE else np.arange(out) * s - before
            elements = elements * i + (start.reshape(-1, *[1] * (len(self.window) - 1 - axis)) + place * d)
        return np.where(chosen < 0, -1.0, elements)

    def _maximum_gradient(self, dy: Reals, x: Reals) -> Reals:
        _, chosen = self._maximum(x)
        dx = np.zeros(self.x.shape)
        for index, (outputs, elements) in enumerate(self._places()):
            _add_at(dx, elements, np.where(chosen[outputs] == index, dy[outputs], 0.0))
        return dx

    def _average(self, x: Reals) -> Reals:
        total = np.zeros(self.y.shape)
        for outputs, elements in self._places():
            total[outputs] += x[elements]
        return total / self.divisors()

    def _average_gradient(self, dy: Reals) -> Reals:
        share = dy / self.divisors()
        dx = np.zeros(self.x.shape)
        for outputs, elements in self._places():
            _add_at(dx, elements, share[outputs])
        return dx

    def _places(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """For each place in the window: the outputs that have it in the image, and those elements of x."""
        for place in itertools.product(*map(range, self.window)):
            if self.rounding == ADAPTIVE:
                yield self._bin_places(place)
                continue
            outputs, elements = [], []
            for step, (_, s, d, (before, _), i, out) in zip(place, self._axes(), strict=True):
                # o * s - before + t lies in [0, i) for o in [first, last)
                t = step * d
                first = max(0, -((t - before) // s))
                last = max(first, min(out, (i - 1 + before - t) // s + 1))
                start = first * s - before + t
                outputs.append(slice(first, last))
                elements.append(
                    slice(start, start + (last - first - 1) * s + 1, s) if last > first else slice(0)
                )
            yield (slice(None), slice(None), *outputs), (slice(None), slice(None), *elements)

    def _bin_places(self, place: Sequence[int]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What `_places` gives for one place of adaptive windows."""
        images, channels = (np.arange(extent) for extent in self.x.shape[:2])
        outputs, elements = [images, channels], [images, channels]
        for t, i, out in zip(place, self.spatial, self.output_spatial, strict=True):
            first, last = _bins(i, out)
            has_place = np.flatnonzero(first + t < last)
            outputs.append(has_place)
            elements.append(first[has_place] + t)
        return np.ix_(*outputs), np.ix_(*elements)

    def _axes(self) -> list[tuple[int, int, int, tuple[int, int], int, int]]:
        """For each axis: window, stride, dilation, padding, extents of x and y."""
        assert isinstance(self.dilation, tuple)
        return list(
            zip(
                self.window, self.stride, self.dilation, self.padding, self.spatial, self.output_spatial,
                strict=True,
            )
        )  # fmt: skip

    def _body(self) -> list[str]:
        words = [self.mode] + (["exclude_pad"] if not self.count_include_pad else [])
        words += [f"n{self.x.shape[0]}", f"c{self.x.shape[1]}", *extent_words(DATA_LETTERS, self.spatial)]
        if self.rounding == ADAPTIVE:
            words += [axes_word(ADAPTIVE, self.output_spatial)]
        else:
            words += [
                axes_word("window", self.window),
                axes_word("stride", self.stride),
                pairs_word("pad", self.padding),
            ]
            assert isinstance(self.dilation, tuple)
            words += [axes_word("dil", self.dilation)] if max(self.dilation) > 1 else []
            words += [self.rounding] if self.rounding != "floor" else []
        words += [f"indices{self.indices.dtype[1:]}"] if self.indices is not None else []
        return [*words, self.dtype, *self._layout_words()]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        rank = spatial_rank(words, DATA_LETTERS)
        direction, mode = words.kind.removeprefix("pool_"), words.choice(MODES)
        count_include_pad = not (mode == "avg" and words.flag("exclude_pad"))
        x_shape = (words.number("n"), words.number("c"), *words_extents(words, DATA_LETTERS, rank))
        window = stride = dilation = (1,) * rank
        padding, rounding = ((0, 0),) * rank, ADAPTIVE
        if words.has(ADAPTIVE):
            y_shape = (*x_shape[:2], *words.numbers(ADAPTIVE, rank))
        else:
            window = words.numbers("window", rank)
            stride = words.numbers("stride", rank) if words.has("stride") else window
            padding, dilation = words.pairs("pad", rank), words.numbers("dil", rank, 1)
            rounding = words.choice(ROUNDINGS, default="floor")
            y_shape = output_shape(x_shape, window, stride, padding, rounding, dilation)
        index = f"i{words.number('indices')}" if words.has("indices") else None
        dtype, layout = words.dtype(), words.layout(rank + 2)
        shapes = {"x": x_shape, "y": y_shape, "dx": x_shape, "dy": y_shape}
        operands = {"fwd": ("x", "y"), "bwd": tuple(shapes) if mode == "max" else ("dx", "dy")}[direction]
        given = words.descriptors({name: shapes[name] for name in operands}, dtype, layout)
        x, y = (given.get(name) or TensorDescriptor.packed(shapes[name], dtype) for name in ("x", "y"))
        indices = None
        if index is not None:
            indices = words.descriptor("indices", y_shape, index, layout_forms(y_shape, index), layout)
        dx, dy = given.get("dx"), given.get("dy")
        return cls(
            direction, mode, x, y, window, stride, padding, count_include_pad, rounding, dx, dy, dilation, indices
        )  # fmt: skip


def _bins(extent: int, out: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the windows of adaptive pooling begin, and where they end."""
    outputs = np.arange(out, dtype=np.int64)
    return outputs * extent // out, -(-(outputs + 1) * extent // out)


def _add_at(array: Reals, index: tuple[Any, ...], values: Reals) -> None:
    """array[index] += values, adding up where an index repeats."""
    if all(isinstance(part, slice) for part in index):
        array[index] += values
    else:
        np.add.at(array, index, values)


def output_shape(
    x_shape: Sequence[int],
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int | Sequence[int]] = 0,
    rounding: str = "floor",
    dilation: int | Sequence[int] = 1,
) -> tuple[int, ...]:
    """The shape of y, (N, C, out), for x (N, C, spatial). The stride is the window if None.

    Raises InvalidShape if no output is left, InvalidArgument for a number out of range (the padding of a side
    must be less than what the window spans).
    """
    rank = check_spatial_rank(x_shape, "x")
    check_extents(x_shape, "x", ["n", "c", *DATA_LETTERS[-rank:]])
    check_choice(rounding, ROUNDINGS, "rounding")
    window = per_axis(window, rank, "window")
    stride = window if stride is None else per_axis(stride, rank, "stride")
    dilation = per_axis(dilation, rank, "dilation")
    pairs = padding_pairs(padding, rank)
    is_padded = any(sum(pair) for pair in pairs)
    spatial = []
    for letter, i, taps, s, d, (before, after) in zip(
        DATA_LETTERS[-rank:], x_shape[2:], window, stride, dilation, pairs, strict=True
    ):
        if taps > max(i, MOST_TAPS):
            raise InvalidArgument(
                f"window is {taps}: along axis {letter} of extent {i} it must be at most {max(i, MOST_TAPS)}"
            )
        k = (taps - 1) * d + 1
        if max(before, after) >= k:
            raise InvalidArgument(
                f"padding {before}:{after} of axis {letter} must be less than its window {k}"
                + (f" ({taps} taps {d} apart)" if d > 1 else "")
                + ", or a window would see nothing but padding"
            )
        free = i + before + after - k
        if free < 0 and (rounding != "caffe" or d > 1):
            raise InvalidShape(
                f"the window {k} is larger than axis {letter} of the padded image, {i + before + after} "
                f"({letter}={i}, padding {before}:{after}), so no output is left: pad by {-free} more or use a smaller "
                "window"
            )
        out = (free // s if rounding == "floor" else -(-free // s)) + 1
        if (rounding == "ceil" or (rounding == "caffe" and is_padded)) and (out - 1) * s >= i + before:
            out -= 1
        if out < 1:  # by Caffe's rounding alone
            raise InvalidShape(
                f"the window {k} is larger than axis {letter} of the padded image, {i + before + after}, by a stride "
                f"of {s} or more ({letter}={i}, padding {before}:{after}), so no output is left: use a smaller window"
            )
        spatial.append(out)
    return (x_shape[0], x_shape[1], *spatial)
