"""InnerProduct: y = x wᵀ + b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob, count
from jitdnn.caffe.layers.activation import rectify
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.convolution import conv_backward_bias
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.matmul import matmul
from jitdnn.ops.tensor_ops import add


class InnerProductLayer(Layer):
    """Bottom: the axes before `axis` are M rows, the others K columns. Top (those axes, num_output).

    Weights: w (num_output, K), or (K, num_output) with `transpose: true`, and b (num_output) unless bias_term
    is false.
    """

    type = "InnerProduct"
    is_for_gpu = True
    writes_gradients = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.inner_product_param
        if parameter.num_output == 0:
            raise self.invalid("num_output is missing or 0: it must be positive", "inner_product_param")
        shape = bottom[0].shape
        self.outputs = parameter.num_output
        self.rectified: Any = None  # set by fusion.py: adds the bias and rectifies
        self.is_transposed = parameter.transpose
        self.axis = self.front_axis(parameter.axis, len(shape))
        self.columns = count(shape, self.axis)
        w_shape = (self.columns, self.outputs) if self.is_transposed else (self.outputs, self.columns)
        self.add_weight(w_shape, parameter.weight_filler)
        if parameter.bias_term:
            self.add_weight((self.outputs,), parameter.bias_filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if count(shape, self.axis) != self.columns:
            raise self.invalid(
                f"the bottom has shape {shape}, {count(shape, self.axis)} columns from axis {self.axis} on; "
                f"the weights are for {self.columns}"
            )
        self.rows = count(shape, 0, self.axis)
        top[0].reshape((*shape[: self.axis], self.outputs))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].values.reshape(self.rows, self.columns)
        y = top[0].values.reshape(self.rows, self.outputs)
        w = self.weights[0].values
        beta = 0.0
        if len(self.weights) == 2 and self.rectified is None:
            add(self.weights[1].values, out=y)
            beta = 1.0
        matmul(x, w if self.is_transposed else w.T, out=y, beta=beta)
        if self.rectified is not None:
            self.rectified(y, self.weights[1].values, out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x = bottom[0].values.reshape(self.rows, self.columns)
        dy = top[0].gradient.reshape(self.rows, self.outputs)
        w = self.weights[0]
        if self.weight_needs_gradient[0]:
            left, right = (x, dy) if self.is_transposed else (dy, x)
            matmul(left.T, right, out=w.gradient, beta=self.beta(w))
        if len(self.weights) == 2 and self.weight_needs_gradient[1]:
            # a sum over rows: the bias gradient of an image of one pixel
            bias, images = self.weights[1], dy.reshape(self.rows, self.outputs, 1)
            conv_backward_bias(images, out=bias.gradient, beta=self.beta(bias))
        if propagate[0]:
            dx = bottom[0].gradient.reshape(self.rows, self.columns)
            matmul(dy, w.values.T if self.is_transposed else w.values, out=dx)

    def fuse_relu(self, slope: float | None) -> None:
        """Add the bias and rectify the result, with this slope below 0, in one pass; None: do not."""
        if slope is None:
            self.rectified = None
            return
        rectified = rectify(slope)
        self.rectified = elementwise(lambda y, bias: rectified(y + bias))

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.weight_needs_gradient[0], top=False)
