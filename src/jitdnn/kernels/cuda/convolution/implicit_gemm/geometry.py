"""Convolution forward and backward to the data, and the matrix product, as one form for the tensor cores.

    result[pixel, column] = sum over (tap, channel) of data[pixel moved by tap, channel] * filter[column, tap, channel]

Rows of the product are pixels of the result, columns its channels; K runs over taps, with the channels of the data
inside. A strided backward data falls into stride phases, one for each remainder of a result's position modulo the
stride. A phase meets its own taps only, so nothing is multiplied by the zeros between the pixels of dy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.gemm.plan import Pack, Work, three
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

_Three = tuple[int, int, int]
MASK_BITS = 30  # of a row's mask, for the taps of all axes together


@dataclass(frozen=True)
class ClassAxis:
    """One axis of a class: its results begin at `residue`; `taps` of them, the first at `start` of the filter and at
    `offset` of the data from the result's place."""

    results: int
    residue: int
    taps: int
    offset: int
    start: int


@dataclass(frozen=True)
class FormAxis:
    """One axis of space, of `extent` places of the data.

    From tap to tap the data moves by `shift` and the filter by `filter_step`; from result to result the data moves by
    `move`, and results of a class lie `spread` apart.
    """

    classes: tuple[ClassAxis, ...]
    shift: int
    filter_step: int
    move: int
    spread: int
    extent: int

    @property
    def most_taps(self) -> int:
        return max(one.taps for one in self.classes)

    @property
    def is_masked(self) -> bool:
        """True if some tap of some result lies outside of the data."""
        for one in self.classes:
            if one.taps:
                span = (one.taps - 1) * self.shift
                lowest = one.offset + min(0, span)
                highest = one.offset + max(0, span) + (one.results - 1) * self.move
                if lowest < 0 or highest >= self.extent:
                    return True
        return False


@dataclass(frozen=True)
class Batch:
    """A product that is repeated: `count` times, with these distances between tensors in elements.

    The problem beside it is one of the products, and `tensors` are the whole ones.
    """

    count: int
    data: int
    filter: int
    result: int
    tensors: tuple[TensorDescriptor, ...]

    @property
    def nbytes(self) -> int:
        """Of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)


_NO_AXIS = FormAxis((ClassAxis(1, 0, 1, 0, 0),), 0, 0, 1, 1, 1)


@dataclass(frozen=True)
class View:
    """Strides in elements: of images, groups, channels within a group, and the axes of space."""

    image: int
    group: int
    channel: int
    space: _Three

    @staticmethod
    def of(pack: Pack) -> View:
        """A packed tensor."""
        image, group, space = pack.strides
        return View(image, group, 1, space)


@dataclass(frozen=True)
class FilterView:
    """Strides of the filter in elements: of groups, columns (channels of the result), channels, and taps."""

    group: int
    column: int
    channel: int
    space: _Three


@dataclass(frozen=True)
class Form:
    """The product: `depth` channels are summed over and `width` made, in each of `groups`."""

    images: int
    groups: int
    depth: int
    width: int
    axes: tuple[FormAxis, FormAxis, FormAxis]
    data: View
    filter: FilterView
    result: View

    def repeated(self, batch: Batch) -> Form:
        """The same for every product of a batch."""
        return replace(
            self,
            groups=batch.count,
            data=replace(self.data, group=batch.data),
            filter=replace(self.filter, group=batch.filter),
            result=replace(self.result, group=batch.result),
        )

    @property
    def classes(self) -> tuple[tuple[ClassAxis, ...], ...]:
        """All classes, those with most taps first: so that the long blocks do not come last."""
        every = itertools.product(*(axis.classes for axis in self.axes))
        return tuple(sorted(every, key=lambda one: -math.prod(axis.taps for axis in one)))

    @property
    def most_taps(self) -> int:
        return math.prod(axis.most_taps for axis in self.axes)

    @property
    def has_mask(self) -> bool:
        """True if the taps that lie inside of the data fit into the bits of a mask."""
        return sum(axis.most_taps for axis in self.axes if axis.is_masked) <= MASK_BITS

    @property
    def works(self) -> tuple[Work, ...]:
        """What the classes come to, for the cost model."""
        return tuple(
            Work(
                self.images * math.prod(axis.results for axis in one),
                self.width,
                self.depth * math.prod(axis.taps for axis in one),
                self.groups,
            )
            for one in self.classes
        )


def form_of(problem: Convolution) -> Form:
    """The form of a convolution forward or backward to its data."""
    is_forward = problem.direction == "fwd"
    data, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    axes = [_axis(problem, number) for number in range(len(problem.spatial))]
    a, b, c = [_NO_AXIS] * (3 - len(axes)) + axes
    groups = problem.groups
    k, channel, *taps = problem.w.strides
    group = problem.k // groups * k
    column, channel = (k, channel) if is_forward else (channel, k)
    return Form(
        images=result.shape[0],
        groups=groups,
        depth=data.shape[1] // groups,
        width=result.shape[1] // groups,
        axes=(a, b, c),
        data=view_of(data, groups),
        filter=FilterView(group, column, channel, three(taps, 0)),
        result=view_of(result, groups),
    )


def view_of(tensor: TensorDescriptor, groups: int) -> View:
    """An (N, C, space) tensor whose channels fall into groups."""
    n, c, *space = tensor.strides
    return View(n, tensor.shape[1] // groups * c, c, three(space, 0))


def _axis(problem: Convolution, number: int) -> FormAxis:
    """One axis of a convolution. dx[i] gets dy[o] by tap t where o * stride - before + dilation * t = i."""
    taps, stride = problem.filter_spatial[number], problem.stride[number]
    dilation, before = problem.dilation[number], problem.padding[number][0]
    is_flipped = problem.mode == "convolution"

    def place(tap: int) -> int:
        return taps - 1 - tap if is_flipped else tap

    sign = -1 if is_flipped else 1
    if problem.direction == "fwd":
        one = ClassAxis(problem.output_spatial[number], 0, taps, -before, place(0))
        return FormAxis((one,), dilation, sign, stride, 1, problem.spatial[number])
    extent, common = problem.spatial[number], math.gcd(stride, dilation)
    increment = stride // common
    classes = []
    for residue in range(min(stride, extent)):
        met = [tap for tap in range(taps) if (residue + before - dilation * tap) % stride == 0]
        first = met[0] if met else 0
        offset = (residue + before - dilation * first) // stride if met else 0
        results = -(-(extent - residue) // stride)
        classes.append(ClassAxis(results, residue, len(met), offset, place(first)))
    extents = problem.output_spatial
    return FormAxis(tuple(classes), -dilation // common, sign * increment, 1, stride, extents[number])


def alignments(view: View, depth: int, extents: Sequence[int]) -> tuple[int, ...]:
    """The numbers of elements of which all addresses of neighbouring channels are sums."""
    return (depth, view.image, view.group, *(s for s, n in zip(view.space, extents, strict=True) if n > 1))


def rows_of(view: View, images: int, extents: Sequence[int]) -> list[int]:
    """The distances between the places of a tensor in elements, along the axes that it has."""
    axes = ((view.image, images), *zip(view.space, extents, strict=True))
    return [stride for stride, extent in axes if extent > 1]
