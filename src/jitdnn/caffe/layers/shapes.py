"""Layers that only name data anew: Flatten, Reshape, Silence, and the Split that the net puts behind a blob with
several readers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.ops.elementwise import ElementwiseKernel, elementwise
from jitdnn.ops.tensor_ops import fill


class _ViewLayer(Layer):
    """The top is the bottom in another shape: a view, or a copy where a later layer works in place on the top."""

    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    @abstractmethod
    def top_shape(self, shape: Shape) -> Shape:
        """Return the shape of the top of a bottom of this shape."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = self.top_shape(bottom[0].shape)
        if self.is_overwritten:
            top[0].reshape(shape)
        else:
            top[0].share(bottom[0], shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_overwritten:
            copy(bottom[0].values.reshape(-1), top[0].values.reshape(-1))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.is_overwritten and propagate[0]:
            copy(top[0].gradient.reshape(-1), bottom[0].gradient.reshape(-1))


class FlattenLayer(_ViewLayer):
    """The axes from `axis` (1) to `end_axis` (-1) become one. The top is a view of the bottom."""

    type = "Flatten"

    def top_shape(self, shape: Shape) -> Shape:
        parameter = self.parameter.flatten_param
        start = self.front_axis(parameter.axis, len(shape))
        end = self.front_axis(parameter.end_axis, len(shape))
        if end < start:
            raise self.invalid(
                f"end_axis {end} is before axis {start} for a bottom of shape {shape}", "flatten_param"
            )
        return (*shape[:start], count(shape, start, end + 1), *shape[end + 1 :])


class ReshapeLayer(_ViewLayer):
    """The `num_axes` axes (-1: all) from `axis` (0) on become those of `shape`, where 0 stands for the extent of the
    same place among them and one -1 for what is left. A negative axis counts from behind the last one: -1 adds axes
    there. The top is a view of the bottom.
    """

    type = "Reshape"

    def top_shape(self, shape: Shape) -> Shape:
        parameter, rank = self.parameter.reshape_param, len(shape)
        start = parameter.axis if parameter.axis >= 0 else rank + parameter.axis + 1
        if not 0 <= start <= rank:
            raise self.invalid(
                f"axis {parameter.axis} does not exist for a bottom of shape {shape}", "reshape_param"
            )
        end = rank if parameter.num_axes == -1 else start + parameter.num_axes
        if not start <= end <= rank:
            raise self.invalid(
                f"num_axes {parameter.num_axes} from axis {start} on: a bottom of shape {shape} has {rank - start}; -1 "
                "takes all",
                "reshape_param",
            )
        replaced, wanted = shape[start:end], list(parameter.shape.dim)
        for index, extent in enumerate(wanted):
            if extent < -1 or (extent == 0 and index >= len(replaced)):
                why = "extents are -1 or more" if extent else "0 copies an axis that the bottom does not have"
                raise self.invalid(f"shape {tuple(wanted)} for the axes {replaced}: {why}", "reshape_param")
            wanted[index] = extent or replaced[index]
        known = math.prod(extent for extent in wanted if extent != -1)
        holes = wanted.count(-1)
        if (
            holes > 1
            or (holes and (known == 0 or count(replaced) % known))
            or (not holes and known != count(replaced))
        ):
            raise self.invalid(
                f"shape {tuple(parameter.shape.dim)} cannot hold the {count(replaced)} elements of the axes {replaced}"
                + (": one -1 at most" if holes > 1 else ""),
                "reshape_param",
            )
        whole = tuple(count(replaced) // known if extent == -1 else extent for extent in wanted)
        return (*shape[:start], *whole, *shape[end:])


class SilenceLayer(Layer):
    """Takes bottoms that nobody reads, so that they are no outputs; their gradients are 0."""

    type = "Silence"
    bottoms = (1, None)
    tops = (0, 0)
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, is_wanted in zip(bottom, propagate, strict=True):
            if is_wanted:
                fill(blob.gradient, 0.0)


class SplitLayer(Layer):
    """The tops are the bottom; its gradient is the sum of theirs."""

    type = "Split"
    tops = (1, None)
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        # set by backward_fusion.py: the result and the slope below 0 of a ReLU whose gradient this layer computes
        self.rectified: tuple[Blob, float] | None = None
        self._sums: dict[tuple[int, float | None], ElementwiseKernel] = {}

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob in top:
            blob.share_data(bottom[0])

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        sources = [blob.gradient for blob, has in zip(top, self.top_has_gradient, strict=True) if has]
        dx = bottom[0].gradient
        if not sources:  # force_backward, and no reader has a gradient
            fill(dx, 0.0)
            return
        if self.rectified is not None:
            y, slope = self.rectified
            self._sum(len(sources), slope)(y.values, *sources, out=dx)
        elif len(sources) == 1:
            copy(sources[0], dx)
        else:
            self._sum(len(sources), None)(*sources, out=dx)

    def fuse_relu(self, y: Blob | None, slope: float) -> None:
        """Compute the gradient of the ReLU in place that made the bottom, `y`, too; None: do not."""
        self.rectified = None if y is None else (y, slope)

    def _sum(self, count: int, slope: float | None) -> ElementwiseKernel:
        """The sum of so many gradients, times the derivative of a ReLU, unless `slope` is None."""
        key = count, slope
        if key not in self._sums:
            names = [f"g{number}" for number in range(count)]
            text = f"{', '.join(names)}: {' + '.join(names)}"
            if slope is not None:
                text = f"y, {', '.join(names)}: ({' + '.join(names)}) * where(y > 0, 1, {slope!r})"
            self._sums[key] = elementwise(text)
        return self._sums[key]

    def layout_rule(self) -> str:
        return "same"
