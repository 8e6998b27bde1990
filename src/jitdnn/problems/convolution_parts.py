"""A convolution as several smaller ones over the same memory.

`cut` divides a problem along one axis: images, groups, channels of y or x, or rows of the result in space. Each
piece is a problem of its own whose operands are parts of the whole's, so that any algorithm can run it: only the
pointers differ. Pieces either write disjoint parts of the output, or, where the axis is one that is summed over,
add up in it: then those after the first are run with beta 1.

Rows in space need more of the other tensor than their share (the filter reaches over the edge), and what lies
outside of it is the padding of the piece, which thus differs from piece to piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor, layout_order

AXES = ("n", "g", "k", "c", "d", "h", "w")
_SPACE = ("d", "h", "w")
_FIELDS = ("x", "w", "y")
# the dimension of x, w and y that an axis outside of space divides
_DIMENSIONS = {
    "n": {"x": 0, "y": 0},
    "g": {"x": 1, "w": 0, "y": 1},
    "k": {"w": 0, "y": 1},
    "c": {"x": 1, "w": 1},
}
# the channels of y or x that are summed over; bwd_filter sums over images and space
_SUMMED = {"fwd": ("c",), "bwd_data": ("k",), "bwd_filter": ("n", *_SPACE)}
_WHAT = {"n": "images", "g": "groups", "k": "channels of y", "c": "channels of x"}


@dataclass(frozen=True)
class Piece:
    """A part of a convolution.

    `starts`: for each of the problem's operands the index at which it begins in the whole's. `is_added`: the piece
    adds to what the pieces before it left in the output, so its beta is 1 and not the caller's.
    """

    problem: Convolution
    starts: tuple[tuple[int, ...], ...]
    is_added: bool


def extent(problem: Convolution, axis: str) -> int:
    """How much there is to divide along `axis`; 0 if the problem cannot be divided along it.

    Rows in space are those of y, or of dx for "bwd_data". The channels of grouped convolutions are divided by
    groups only.
    """
    _check_axis(axis)
    if axis == "n":
        return problem.n
    if axis == "g":
        return problem.groups
    if axis in _SPACE:
        dimension = _dimension(problem, axis)
        return 0 if dimension is None else _result_side(problem).shape[dimension]
    if problem.groups != 1 or (axis == "c" and not _sums_of_parts_are_exact(problem)):
        return 0
    return problem.k if axis == "k" else problem.c


def is_summed(problem: Convolution, axis: str) -> bool:
    """Whether the pieces along `axis` add up in the output, instead of writing parts of it."""
    _check_axis(axis)
    return axis in _SUMMED[problem.direction]


def whole(problem: Convolution) -> Piece:
    """The problem as the one piece of itself."""
    starts = tuple((0,) * len(operand.descriptor.shape) for operand in problem.operands)
    return Piece(problem, starts, False)


def cut(problem: Convolution, axis: str, sizes: Sequence[int]) -> tuple[Piece, ...]:
    """The pieces of these sizes along `axis`, in order.

    Raises InvalidArgument for an unknown axis and for sizes that do not add up to the extent, NotSupported if the
    problem cannot be divided along the axis.
    """
    total = extent(problem, axis)
    if total == 0:
        raise NotSupported(f"{problem} cannot be divided along {axis}: {_why_not(problem, axis)}")
    if min(sizes, default=0) < 1 or sum(sizes) != total:
        what = _WHAT.get(axis, f"rows of the result along {axis}")
        raise InvalidArgument(
            f"sizes {tuple(sizes)} along {axis}: they must be 1 or more and add up to the {total} {what}"
        )
    if len(sizes) == 1:
        return (whole(problem),)
    ends = list(itertools.accumulate(sizes))
    divide = _rows if axis in _SPACE else _share
    made: dict[_Shares, Convolution] = {}
    summed = is_summed(problem, axis)
    pieces = []
    for size, end in zip(sizes, ends, strict=True):
        shares, starts = divide(problem, axis, end - size, end)
        # equal pieces are one object: what is known of a problem is then found without comparing
        smaller = made.get(shares) or made.setdefault(shares, _smaller(problem, shares))
        named = tuple(starts[operand.name[-1]] for operand in problem.operands)
        pieces.append(Piece(smaller, named, summed and end > size))
    return tuple(pieces)


def within(outer: Piece, inner: Piece) -> Piece:
    """The piece of the whole that `inner`, a piece of `outer.problem`, is."""
    starts = tuple(
        tuple(a + b for a, b in zip(one, other, strict=True))
        for one, other in zip(outer.starts, inner.starts, strict=True)
    )
    return Piece(inner.problem, starts, outer.is_added or inner.is_added)


def byte_offsets(piece: Piece, whole: Convolution) -> tuple[int, ...]:
    """How far the operands of the piece begin behind those of the whole, in bytes."""
    return tuple(
        byte_offset(operand.descriptor, start)
        for operand, start in zip(whole.operands, piece.starts, strict=True)
    )


def byte_offset(descriptor: TensorDescriptor, start: Sequence[int]) -> int:
    """The distance in bytes from index 0 to index `start`."""
    return DTYPES[descriptor.dtype] * sum(i * s for i, s in zip(start, descriptor.strides, strict=True))


def result_start(piece: Piece) -> tuple[int, ...]:
    """The index in the output at which the piece begins, and so in every operand that has the output's shape."""
    return piece.starts[-1]


def narrowed(descriptor: TensorDescriptor, shape: tuple[int, ...]) -> TensorDescriptor:
    """A part of a tensor: the strides stay, but for those of unit extents, which say nothing.

    They become what makes the part packed if it can be, and otherwise what they would be if the rest was dense:
    so equal parts of different tensors have equal descriptors.
    """
    part = TensorDescriptor(shape, descriptor.strides, descriptor.dtype).normalized()
    if part.layout is not None or 1 not in shape:
        return part
    strides = list(part.strides)
    step = 1
    for axis in reversed(layout_order(part.nearest_layout, len(shape))):
        if shape[axis] == 1:
            strides[axis] = step
        step = strides[axis] * shape[axis]
    return replace(part, strides=tuple(strides))


class _Shares(NamedTuple):
    """What distinguishes pieces: the shapes of x, w and y, and the geometry of the axis that is divided."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    groups: int


_Divided = tuple[_Shares, dict[str, tuple[int, ...]]]


def _smaller(problem: Convolution, shares: _Shares) -> Convolution:
    return replace(
        problem,
        x=narrowed(problem.x, shares.x),
        w=narrowed(problem.w, shares.w),
        y=narrowed(problem.y, shares.y),
        stride=shares.stride,
        padding=shares.padding,
        groups=shares.groups,
    )


def _share(problem: Convolution, axis: str, begin: int, end: int) -> _Divided:
    """Images, groups or channels `begin` to `end`."""
    shapes: dict[str, tuple[int, ...]] = {}
    starts: dict[str, tuple[int, ...]] = {}
    for field in _FIELDS:
        shape = list(getattr(problem, field).shape)
        start = [0] * len(shape)
        dimension = _DIMENSIONS[axis].get(field)
        if dimension is not None:
            # an axis of w that holds the channels of one group is not divided by groups
            each = shape[dimension] // problem.groups if axis == "g" else 1
            start[dimension] = begin * each
            shape[dimension] = (end - begin) * each
        shapes[field], starts[field] = tuple(shape), tuple(start)
    groups = end - begin if axis == "g" else problem.groups
    return _Shares(**shapes, stride=problem.stride, padding=problem.padding, groups=groups), starts


class _Window(NamedTuple):
    """One axis of a piece in space: rows of x and of y, and the stride and padding between them."""

    x: range
    y: range
    stride: int
    padding: tuple[int, int]


def _rows(problem: Convolution, axis: str, begin: int, end: int) -> _Divided:
    """Rows `begin` to `end` of the result along an axis of space."""
    dimension = _dimension(problem, axis)
    assert dimension is not None
    i = dimension - 2
    find = _needed_of_y if problem.direction == "bwd_data" else _needed_of_x
    window = find(problem, i, begin, end)
    rows = {"x": window.x, "y": window.y}
    shapes: dict[str, tuple[int, ...]] = {}
    starts: dict[str, tuple[int, ...]] = {}
    for field in _FIELDS:
        shape = list(getattr(problem, field).shape)
        start = [0] * len(shape)
        if field in rows:
            shape[dimension], start[dimension] = len(rows[field]), rows[field].start
        shapes[field], starts[field] = tuple(shape), tuple(start)
    stride, padding = list(problem.stride), list(problem.padding)
    stride[i], padding[i] = window.stride, window.padding
    shares = _Shares(**shapes, stride=tuple(stride), padding=tuple(padding), groups=problem.groups)
    return shares, starts


def _needed_of_x(problem: Convolution, i: int, begin: int, end: int) -> _Window:
    """Rows of y, and the rows of x under their filters."""
    stride, before = problem.stride[i], problem.padding[i][0]
    height, reach = problem.spatial[i], _reach(problem, i)
    first, last = begin * stride - before, (end - 1) * stride - before + reach
    rows = range(max(first, 0), min(last, height))
    if rows:
        return _Window(rows, range(begin, end), stride, (max(-first, 0), max(last - height, 0)))
    # all filters lie in the padding. A tensor has a row at least: one behind the last filter, where the stride
    # does not lead to another result. The stride is free, for every row of the result is the same
    stride = max(stride, 2)
    covered = (end - begin - 1) * stride + reach
    row = 0 if last <= 0 else height - 1
    return _Window(range(row, row + 1), range(begin, end), stride, (covered, 0))


def _needed_of_y(problem: Convolution, i: int, begin: int, end: int) -> _Window:
    """Rows of dx, and the rows of dy whose filters reach them."""
    stride, before = problem.stride[i], problem.padding[i][0]
    reach, count = _reach(problem, i), problem.output_spatial[i]
    low, high = (
        begin + before,
        end + before,
    )  # in the extended image, where filters begin at multiples of stride
    firsts, lasts = [], []
    for tap in range(0, reach, problem.dilation[i]):
        first, last = max(-(-(low - tap) // stride), 0), min((high - 1 - tap) // stride, count - 1)
        if first <= last:
            firsts.append(first)
            lasts.append(last)
    if not firsts:
        # no filter reaches these rows (they lie between those of a large stride or dilation, or behind the last one):
        # they lie behind the only filter of the piece, where a stride as large leads to no other one
        row = min(low // stride, count - 1)
        size = end - begin
        return _Window(range(begin, end), range(row, row + 1), max(stride, size + 1), (reach, 0))
    # filters of a piece begin within it or its padding: rows before the first one that reaches it take one more
    first, last = min(*firsts, low // stride), max(lasts)
    padding = low - first * stride
    # fewer than `stride` rows can be left over: another filter that ended among them would have been counted
    behind = max((last - first) * stride + reach - padding - (end - begin), 0)
    return _Window(range(begin, end), range(first, last + 1), stride, (padding, behind))


def _reach(problem: Convolution, i: int) -> int:
    """Rows from the first to the last tap of the filter."""
    return problem.dilation[i] * (problem.filter_spatial[i] - 1) + 1


def _dimension(problem: Convolution, axis: str) -> int | None:
    """The dimension of x and y that an axis of space is; None if they have none."""
    dimension = len(problem.x.shape) - len(_SPACE) + _SPACE.index(axis)
    return dimension if dimension >= 2 else None


def _result_side(problem: Convolution) -> TensorDescriptor:
    return problem.x if problem.direction == "bwd_data" else problem.y


def _sums_of_parts_are_exact(problem: Convolution) -> bool:
    """Whether a sum over channels may be stored and added to.

    Integers are rounded and saturated when stored, once and at the end; f32 holds the sums that the problem
    itself counts as exact in it.
    """
    return not problem.is_integer or (problem.y.dtype == "f32" and problem.dtype == "f32")


def _check_axis(axis: str) -> None:
    if axis not in AXES:
        raise InvalidArgument(f"axis is {axis!r}: it must be one of {', '.join(map(repr, AXES))}")


def _why_not(problem: Convolution, axis: str) -> str:
    if axis == "n":
        return "it has no images"
    if axis in _SPACE:
        return f"its axes in space are {', '.join(_SPACE[3 - len(problem.spatial) :])}"
    if problem.groups != 1:
        return f"it has {problem.groups} groups, divide along g"
    return f"its exact sums would be rounded to {problem.y.dtype} before they are complete"
