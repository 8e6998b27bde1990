"""Reduction over the last axes, ArgMax, and MVN, which takes mean and variance of images or channels out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduce import reduce
from jitdnn.ops.reduction import reduction
from jitdnn.ops.tensor_ops import add, scale


class ReductionLayer(Layer):
    """y = coeff (1) · the SUM (default), sum of sizes (ASUM), sum of squares (SUMSQ) or MEAN of x over the axes from
    `axis` (0) on, which the top does not have.
    """

    type = "Reduction"
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.reduction_param
        self.operation, self.coefficient = parameter.operation, parameter.coeff
        self.squares = reduction("x: x * x")
        slopes = {
            "ASUM": "x, dy, factor: factor * dy * sign(x)",
            "SUMSQ": "x, dy, factor: 2 * factor * dy * x",
        }
        self.slope = elementwise(slopes[self.operation]) if self.operation in slopes else None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = self.front_axis(self.parameter.reduction_param.axis, len(shape))
        top[0].reshape(shape[:axis])
        self.view = (count(shape, 0, axis), count(shape, axis))
        elements = self.view[1]
        if not axis:  # over the batch: a sum, of which each process has a part
            elements, self.parts_of_top = self.context.whole(elements), "sum"
        self.factor = self.coefficient / (max(1, elements) if self.operation == "MEAN" else 1)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].values.reshape(self.view), top[0].values.reshape(-1)
        if self.operation == "SUMSQ":
            self.squares(x, axes=1, out=y)
            scale(y, self.factor)
        else:
            reduce(x, "norm1" if self.operation == "ASUM" else "add", axes=1, alpha=self.factor, out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        dy, dx = top[0].gradient.reshape(-1, 1), bottom[0].gradient.reshape(self.view)
        if self.slope is None:
            add(dy, out=dx, alpha=self.factor)
        else:
            self.slope(bottom[0].values.reshape(self.view), dy, self.factor, out=dx)

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.slope is not None, top=False)


class ArgMaxLayer(Layer):
    """Where the top_k (1) greatest elements stand, the greatest first, of equals the later one; NaN is the greatest.

    Along `axis`: the top has the bottom's shape with top_k there, of positions, or of values with out_max_val. Without
    it, over all of an image: (N, 1, top_k), with ones behind for more than 3 axes, of positions, and (N, 2, top_k), of
    positions and values, with out_max_val. There is no gradient.
    """

    type = "ArgMax"
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.argmax_param, bottom[0].shape
        self.has_axis, self.top_k = parameter.has("axis"), parameter.top_k
        axis = self.front_axis(parameter.axis if self.has_axis else 0, len(shape))
        if self.has_axis:
            self.view: Shape = (count(shape, 0, axis), shape[axis], count(shape, axis + 1))
        else:
            self.view = (shape[0], count(shape, 1), 1)
        if not 1 <= self.top_k <= self.view[1]:
            raise self.invalid(
                f"top_k is {self.top_k}: it must be in 1 .. {self.view[1]}, the number of elements",
                "argmax_param",
            )
        if self.has_axis:
            top[0].reshape((*shape[:axis], self.top_k, *shape[axis + 1 :]))
        else:
            ones = (1,) * (max(len(shape), 3) - 3)
            top[0].reshape((shape[0], 2 if parameter.out_max_val else 1, self.top_k, *ones))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data.reshape(self.view)
        order = np.argsort(x, axis=1, kind="stable")[:, ::-1][:, : self.top_k]
        y = top[0].data.reshape(self.view[0], -1, self.top_k, self.view[2])
        if not self.parameter.argmax_param.out_max_val:
            y[:, 0] = order
            return
        y[:, -1] = np.take_along_axis(x, order, axis=1)
        if not self.has_axis:
            y[:, 0] = order

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            raise self.invalid("positions have no gradient: nothing before them can be trained through them")


class MVNLayer(Layer):
    """y = x − mean, divided by √variance + eps (1e-9) with normalize_variance (true): over each channel of each image,
    or over each image with across_channels (false). Bottom and top (N, C, ...), in place or not.

    The gradient is Caffe's, exact as far as eps is small beside √variance.
    """

    type = "MVN"
    may_be_in_place = True
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.mvn_param
        if len(bottom[0].shape) < 2:
            raise self.invalid(
                f"the bottom has shape {bottom[0].shape}: it needs a batch and channels, 2 axes or more"
            )
        self.epsilon, self.is_divided = parameter.eps, parameter.normalize_variance
        self.centred = elementwise("x, mean: x - mean")
        self.divided = elementwise("x, deviation: x / deviation")
        self.root = elementwise("squares, share, epsilon: sqrt(squares * share) + epsilon")
        self.squares, self.products = reduction("x: x * x"), reduction("a, b: a * b")
        self.gradient = elementwise(
            "dy, mean, y, slope, share, deviation: (dy - mean - y * slope * share) / deviation"
        )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        rows = count(shape, 0, 1 if self.parameter.mvn_param.across_channels else 2)
        self.view = (rows, count(shape) // max(1, rows))
        if top[0] is not bottom[0]:
            top[0].reshape(shape)
        self.deviation = self.save("deviation", (rows, 1))
        self.output = self.save("output", shape) if self.is_divided and self.is_overwritten else None

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].values.reshape(self.view), top[0].values.reshape(self.view)
        self.centred(x, reduce(x, "avg", axes=1, keepdims=True), out=y)
        if self.is_divided:
            deviation = self.deviation.values
            self.squares(y, axes=1, keepdims=True, out=deviation)
            self.root(deviation, 1 / self.view[1], self.epsilon, out=deviation)
            self.divided(y, deviation, out=y)
        if self.output is not None:
            copy(top[0].values, self.output.values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        dy, dx = top[0].gradient.reshape(self.view), bottom[0].gradient.reshape(self.view)
        mean = reduce(dy, "avg", axes=1, keepdims=True)
        if not self.is_divided:
            self.centred(dy, mean, out=dx)
            return
        y = (top[0] if self.output is None else self.output).values.reshape(self.view)
        slope = self.products(dy, y, axes=1, keepdims=True)
        self.gradient(dy, mean, y, slope, 1 / self.view[1], self.deviation.values, out=dx)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=self.is_divided and self.output is None)
