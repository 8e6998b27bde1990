"""Layers that copy parts of blobs: Concat, Slice, Crop, Tile, Permute, BatchReindex."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jitdnn.caffe.blob import Array, Blob, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import check_labels, whole_numbers
from jitdnn.caffe.layouts import by_pixel
from jitdnn.ops.embedding import embedding, embedding_backward
from jitdnn.ops.reduce import reduce
from jitdnn.ops.tensor_ops import add, fill
from jitdnn.ops.transform import concat, transform


class _Movement(Layer):
    """A layer whose tops are copies: gradients need no data."""

    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    def axis_of(self, message: str, old: str, rank: int) -> int:
        """The axis that the layer's message gives as `axis`, or by its old name."""
        parameter = getattr(self.parameter, message)
        if parameter.has("axis") and parameter.has(old):
            raise self.invalid(
                f"axis {parameter.axis} and {old} {getattr(parameter, old)}: keep axis", message
            )
        axis: int = getattr(parameter, old) if parameter.has(old) else parameter.axis
        return self.front_axis(axis, rank)


class ConcatLayer(_Movement):
    """The bottoms, which may differ in extent along `axis` (1, old name concat_dim) only, one behind another."""

    type = "Concat"
    bottoms = (1, None)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = self.axis_of("concat_param", "concat_dim", len(shape))
        for blob in bottom[1:]:
            other = blob.shape
            if (
                len(other) != len(shape)
                or other[:axis] != shape[:axis]
                or other[axis + 1 :] != shape[axis + 1 :]
            ):
                raise self.invalid(
                    f"bottom {blob.name!r} has shape {other}, the first has {shape}: they may differ in axis "
                    f"{axis} only"
                )
        total = sum(blob.shape[axis] for blob in bottom)
        top[0].reshape((*shape[:axis], total, *shape[axis + 1 :]))
        self.axis, self.outer = axis, count(shape, 0, axis)
        self.widths = [count(blob.shape, axis) for blob in bottom]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        views = [
            by_pixel(blob.values, (self.outer, width))
            for blob, width in zip(bottom, self.widths, strict=True)
        ]
        concat(views, axis=1, out=by_pixel(top[0].values, (self.outer, sum(self.widths))))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = by_pixel(top[0].gradient, (self.outer, sum(self.widths)))
        widths = [blob.shape[1] for blob in bottom] if dy.shape[0] != self.outer else self.widths
        for part, blob, is_wanted in zip(_parts(dy, widths), bottom, propagate, strict=True):
            if is_wanted:
                transform(part, out=by_pixel(blob.gradient, part.shape))

    def layout_rule(self) -> str | None:
        return "same" if self.axis == 1 else None


class SliceLayer(_Movement):
    """The bottom cut along `axis` (1, old name slice_dim): before each slice_point, or into equal parts."""

    type = "Slice"
    tops = (1, None)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.slice_param, bottom[0].shape
        axis = self.axis_of("slice_param", "slice_dim", len(shape))
        extent, points = shape[axis], list(parameter.slice_point)
        if points:
            if len(points) != len(top) - 1:
                raise self.invalid(
                    f"{len(points)} slice_point for {len(top)} tops: give {len(top) - 1}", "slice_param"
                )
            ends = [0, *points, extent]
            if any(end <= start for start, end in itertools.pairwise(ends)):
                raise self.invalid(
                    f"slice_point {points} must rise, from above 0 to below the {extent} of axis {axis}",
                    "slice_param",
                )
            extents = [end - start for start, end in itertools.pairwise(ends)]
        else:
            if extent % len(top):
                raise self.invalid(
                    f"{extent} elements in axis {axis} cannot be cut into {len(top)} equal parts"
                )
            extents = [extent // len(top)] * len(top)
        for blob, part in zip(top, extents, strict=True):
            blob.reshape((*shape[:axis], part, *shape[axis + 1 :]))
        self.outer = count(shape, 0, axis)
        self.widths = [part * count(shape, axis + 1) for part in extents]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].values.reshape(self.outer, sum(self.widths))
        for part, blob in zip(_parts(x, self.widths), top, strict=True):
            transform(part, out=blob.values.reshape(part.shape))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            views = [
                blob.gradient.reshape(self.outer, width) for blob, width in zip(top, self.widths, strict=True)
            ]
            concat(views, axis=1, out=bottom[0].gradient.reshape(self.outer, sum(self.widths)))


def _parts(array: Array, widths: Sequence[int]) -> list[Array]:
    """The array (outer, columns) as views of so many columns each."""
    ends = [0, *itertools.accumulate(widths)]
    return [array[:, start:end] for start, end in itertools.pairwise(ends)]


class CropLayer(_Movement):
    """From `axis` (2) on, the part of the first bottom that has the second one's extents and starts at `offset`:
    one for all those axes, or one each (0). The second bottom has no gradient.
    """

    type = "Crop"
    bottoms = (2, 2)
    forced_bottoms = 1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape, wanted = self.parameter.crop_param, bottom[0].shape, bottom[1].shape
        axis = self.front_axis(parameter.axis, len(shape))
        if len(wanted) != len(shape):
            raise self.invalid(f"bottoms of shapes {shape} and {wanted} must have as many axes")
        axes, offsets = len(shape) - axis, list(parameter.offset) or [0]
        if len(offsets) not in (1, axes):
            raise self.invalid(
                f"{len(offsets)} offset for the {axes} axes from {axis} on: give one, or one each",
                "crop_param",
            )
        offsets = offsets * (axes if len(offsets) == 1 else 1)
        for index, start in enumerate(offsets, axis):
            if start + wanted[index] > shape[index]:
                raise self.invalid(
                    f"offset {start} and extent {wanted[index]} of {bottom[1].name!r} exceed the {shape[index]} of "
                    f"{bottom[0].name!r} in axis {index}",
                    "crop_param",
                )
        starts = [(start, start + wanted[index]) for index, start in enumerate(offsets, axis)]
        self.part = (slice(None),) * axis + tuple(slice(start, end) for start, end in starts)
        top[0].reshape((*shape[:axis], *wanted[axis:]))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        transform(bottom[0].values[self.part], out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, is_wanted in zip(bottom, propagate, strict=True):
            if is_wanted:
                fill(blob.gradient, 0.0)
        if propagate[0]:
            transform(top[0].gradient, out=bottom[0].gradient[self.part])


class TileLayer(_Movement):
    """`tiles` copies of the bottom one behind another along `axis` (1)."""

    type = "Tile"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.tile_param, bottom[0].shape
        axis = self.front_axis(parameter.axis, len(shape))
        if parameter.tiles < 1:
            raise self.invalid(f"tiles is {parameter.tiles}: it must be positive", "tile_param")
        top[0].reshape((*shape[:axis], shape[axis] * parameter.tiles, *shape[axis + 1 :]))
        self.view = (count(shape, 0, axis), parameter.tiles, count(shape, axis))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        outer, _, inner = self.view
        add(bottom[0].values.reshape(outer, 1, inner), out=top[0].values.reshape(self.view))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            outer, _, inner = self.view
            reduce(top[0].gradient.reshape(self.view), axes=1, out=bottom[0].gradient.reshape(outer, inner))


class PermuteLayer(_Movement):
    """The axes in another `order`; those that it does not name follow as they were. Of SSD's fork."""

    type = "Permute"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, order = bottom[0].shape, list(self.parameter.permute_param.order)
        if len(set(order)) != len(order) or any(axis >= len(shape) for axis in order):
            raise self.invalid(
                f"order {order} must name each of the {len(shape)} axes of the bottom once at most",
                "permute_param",
            )
        self.order = (*order, *(axis for axis in range(len(shape)) if axis not in order))
        self.back = tuple(self.order.index(axis) for axis in range(len(shape)))
        top[0].reshape(tuple(shape[axis] for axis in self.order))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        transform(bottom[0].values.transpose(self.order), out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            transform(top[0].gradient.transpose(self.back), out=bottom[0].gradient)


class ShuffleChannelLayer(_Movement):
    """The channels of the bottom (N, C, ...) as those of `group` groups, one of each in turn: channel g C / group + i
    becomes i group + g. Of ShuffleNet's fork.
    """

    type = "ShuffleChannel"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, groups = bottom[0].shape, self.parameter.shuffle_channel_param.group
        if len(shape) < 2 or groups < 1 or shape[1] % groups:
            raise self.invalid(
                f"group {groups} must divide the channels of the bottom, which has shape {shape}",
                "shuffle_channel_param",
            )
        top[0].reshape(shape)
        self.view = (shape[0], groups, shape[1] // groups, count(shape, 2))
        self.shuffled = (shape[0], shape[1] // groups, groups, count(shape, 2))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].values.reshape(self.view).transpose(0, 2, 1, 3)
        transform(x, out=top[0].values.reshape(self.shuffled))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            dy = top[0].gradient.reshape(self.shuffled).transpose(0, 2, 1, 3)
            transform(dy, out=bottom[0].gradient.reshape(self.view))


class BatchReindexLayer(_Movement):
    """The images of the first bottom (N, ...) whose numbers the second one (M) has: (M, ...). The numbers have no
    gradient; one that no image has is an error.
    """

    undivided = "it takes images of the whole batch by their numbers"
    type = "BatchReindex"
    bottoms = (2, 2)
    forced_bottoms = 1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        images, numbers = bottom[0].shape, bottom[1].shape
        if not images or len(numbers) != 1:
            raise self.invalid(f"bottoms have shapes {images} and {numbers}: (N, ...) and (M) are needed")
        self.rows = images[0]
        top[0].reshape((numbers[0], *images[1:]))

    def prepare(self, bottom: Sequence[Blob]) -> None:
        check_labels(self, bottom[1], self.rows, None)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.is_captured:
            self.prepare(bottom)
        self.numbers = whole_numbers(bottom[1].values)
        y = top[0].values.reshape(bottom[1].size, -1)
        embedding(self.numbers, bottom[0].values.reshape(self.rows, -1), out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[1]:
            raise self.invalid(
                "the numbers of images have no gradient: they must not depend on trained weights"
            )
        if propagate[0]:
            dy = top[0].gradient.reshape(len(self.numbers), -1)
            embedding_backward(dy, self.numbers, self.rows, out=bottom[0].gradient.reshape(self.rows, -1))
