"""fprop, dgrad and the matrix product as one form for the tensor cores.

    result[pixel, column] = sum over (tap, channel) of data[pixel moved by tap, channel] * filter[column, tap, channel]

Rows of the product are pixels of the result, columns its channels; K runs over taps, with the channels of the data
inside. A strided dgrad consists of stride phases, one for each remainder of a result's position modulo the stride. A
phase meets its own taps only, so nothing is multiplied by the zeros between the pixels of dy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from jitdnn.kernels.cuda.gemm.plan import GemmSize, Pack, three
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

_Three = tuple[int, int, int]
MASK_BITS = 30
"""Of a pixel's mask, for the taps of all axes together; see taps.cuh."""


@dataclass(frozen=True)
class PhaseAxis:
    """One axis of a stride phase: it has `results`, the first of which is number `first_result` along the axis.

    Each meets `taps` taps: the first is number `first_tap` of the filter, and lies `data_offset` positions of the data
    from the result's position in the phase times the input stride.
    """

    results: int
    first_result: int
    taps: int
    data_offset: int
    first_tap: int


@dataclass(frozen=True)
class GeometryAxis:
    """One axis of space, of `extent` positions of the data.

    From one tap of a phase to the next the position in the data changes by `dilation`, that in the filter by
    `filter_step`; both may be negative. From one result of a phase to the next it changes by `input_stride` in the data
    and by `output_stride` in the result.
    """

    phases: tuple[PhaseAxis, ...]
    dilation: int
    filter_step: int
    input_stride: int
    output_stride: int
    extent: int

    @property
    def max_taps(self) -> int:
        return max(one.taps for one in self.phases)

    @property
    def is_masked(self) -> bool:
        """True if some tap of some result lies outside of the data."""
        for one in self.phases:
            if one.taps:
                span = (one.taps - 1) * self.dilation
                lowest = one.data_offset + min(0, span)
                highest = one.data_offset + max(0, span) + (one.results - 1) * self.input_stride
                if lowest < 0 or highest >= self.extent:
                    return True
        return False


@dataclass(frozen=True)
class Batch:
    """A batch of `count` products, each a convolution of one image: elements from one product's tensors to the next's.

    `tensors` are those of the whole batch. Products come in runs of `inner`: `outer` are the elements from the first of
    a run to the first of the next one, in data, filter and result. With `inner` 0 all are one run.
    """

    count: int
    data: int
    filter: int
    result: int
    tensors: tuple[TensorDescriptor, ...]
    inner: int = 0
    outer: _Three = (0, 0, 0)

    @property
    def nbytes(self) -> int:
        """Of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)


_NO_AXIS = GeometryAxis((PhaseAxis(1, 0, 1, 0, 0),), 0, 0, 1, 1, 1)


@dataclass(frozen=True)
class TensorStrides:
    """Strides of a tensor in elements: of images, groups, channels within a group, and the axes of space."""

    image: int
    group: int
    channel: int
    space: _Three

    @staticmethod
    def of(pack: Pack) -> TensorStrides:
        """Those of a packed tensor."""
        image, group, space = pack.strides
        return TensorStrides(image, group, 1, space)


@dataclass(frozen=True)
class FilterStrides:
    """Strides of the filter in elements: groups, columns (channels of the result), channels of the data, taps."""

    group: int
    column: int
    channel: int
    space: _Three


@dataclass(frozen=True)
class Geometry:
    """The product: each of `groups` sums over `in_channels` of the data and makes `out_channels` of the result.

    `inner`, `outer`: of a batch that takes the place of the groups, as in `Batch`.
    """

    images: int
    groups: int
    in_channels: int
    out_channels: int
    axes: tuple[GeometryAxis, GeometryAxis, GeometryAxis]
    data: TensorStrides
    filter: FilterStrides
    result: TensorStrides
    inner: int = 0
    outer: _Three = (0, 0, 0)

    def repeated(self, batch: Batch) -> Geometry:
        """The geometry of a batch of such products, which takes the place of the groups."""
        return replace(
            self,
            groups=batch.count,
            data=replace(self.data, group=batch.data),
            filter=replace(self.filter, group=batch.filter),
            result=replace(self.result, group=batch.result),
            inner=batch.inner,
            outer=batch.outer,
        )

    @cached_property
    def phases(self) -> tuple[tuple[PhaseAxis, ...], ...]:
        """All stride phases, those with most taps first, so that the longest thread blocks do not run last."""
        every = itertools.product(*(axis.phases for axis in self.axes))
        return tuple(sorted(every, key=lambda one: -math.prod(axis.taps for axis in one)))

    @property
    def max_taps(self) -> int:
        return math.prod(axis.max_taps for axis in self.axes)

    @property
    def has_mask(self) -> bool:
        """True if the taps of all axes that may lie outside of the data fit into the bits of a mask."""
        return sum(axis.max_taps for axis in self.axes if axis.is_masked) <= MASK_BITS

    @cached_property
    def gemms(self) -> tuple[GemmSize, ...]:
        """The matrix product of each stride phase."""
        return tuple(
            GemmSize(
                self.images * math.prod(axis.results for axis in one),
                self.out_channels,
                self.in_channels * math.prod(axis.taps for axis in one),
                self.groups,
            )
            for one in self.phases
        )


@lru_cache(64)  # of the algorithms that look at one problem
def geometry_of(problem: Convolution) -> Geometry:
    """The geometry of a convolution forward or backward to its data."""
    is_forward = problem.direction == "fwd"
    data, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    axes = [_axis(problem, number) for number in range(len(problem.spatial))]
    a, b, c = [_NO_AXIS] * (3 - len(axes)) + axes
    groups = problem.groups
    k, channel, *taps = problem.w.strides
    group = problem.k // groups * k
    column, channel = (k, channel) if is_forward else (channel, k)
    return Geometry(
        images=result.shape[0],
        groups=groups,
        in_channels=data.shape[1] // groups,
        out_channels=result.shape[1] // groups,
        axes=(a, b, c),
        data=strides_of(data, groups),
        filter=FilterStrides(group, column, channel, three(taps, 0)),
        result=strides_of(result, groups),
    )


def strides_of(tensor: TensorDescriptor, groups: int) -> TensorStrides:
    """The strides of an (N, C, space) tensor whose channels fall into groups."""
    n, c, *space = tensor.strides
    return TensorStrides(n, tensor.shape[1] // groups * c, c, three(space, 0))


def _axis(problem: Convolution, number: int) -> GeometryAxis:
    """One axis of a convolution. dx[i] gets dy[o] by tap t where o * stride - before + dilation * t = i."""
    taps, stride = problem.filter_spatial[number], problem.stride[number]
    dilation, before = problem.dilation[number], problem.padding[number][0]
    is_flipped = problem.mode == "convolution"

    def in_filter(tap: int) -> int:
        return taps - 1 - tap if is_flipped else tap

    sign = -1 if is_flipped else 1
    if problem.direction == "fwd":
        one = PhaseAxis(problem.output_spatial[number], 0, taps, -before, in_filter(0))
        return GeometryAxis((one,), dilation, sign, stride, 1, problem.spatial[number])
    extent, common = problem.spatial[number], math.gcd(stride, dilation)
    increment = stride // common
    phases = []
    for first_result in range(min(stride, extent)):
        met = [tap for tap in range(taps) if (first_result + before - dilation * tap) % stride == 0]
        first = met[0] if met else 0
        offset = (first_result + before - dilation * first) // stride if met else 0
        results = -(-(extent - first_result) // stride)
        phases.append(PhaseAxis(results, first_result, len(met), offset, in_filter(first)))
    extents = problem.output_spatial
    return GeometryAxis(tuple(phases), -dilation // common, sign * increment, 1, stride, extents[number])


def alignments(strides: TensorStrides, in_channels: int, extents: Sequence[int]) -> tuple[int, ...]:
    """The numbers of elements that the offsets of all pixels, groups and images are sums of."""
    return (
        in_channels,
        strides.image,
        strides.group,
        *(s for s, n in zip(strides.space, extents, strict=True) if n > 1),
    )


def pixel_strides(strides: TensorStrides, images: int, extents: Sequence[int]) -> list[int]:
    """The distances between neighbouring pixels in elements, along the axes of more than one."""
    axes = ((strides.image, images), *zip(strides.space, extents, strict=True))
    return [stride for stride, extent in axes if extent > 1]
