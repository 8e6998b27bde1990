"""Deconvolution: the transposed convolution, whose forward pass is the data gradient of Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Array, Blob, Shape, count
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.ops.convolution import conv, conv_backward_filter, conv_transpose
from jitdnn.ops.tensor_ops import add
from jitdnn.problems.convolution import Convolution


class DeconvolutionLayer(ConvolutionLayer):
    """Bottoms (N..., C, spatial), all of one shape; tops (N..., K, out) with K = num_output and out = s (i − 1) +
    d (k − 1) + 1 − 2 p, which must be positive.

    Weights: w (C, K / group, kernel) and, unless bias_term is false, b (K). All else, defaults too, as Convolution.
    """

    type = "Deconvolution"

    def layout_rule(self) -> None:
        return None

    def weight_shape(self, channels: int, outputs: int, groups: int) -> Shape:
        return (channels, outputs // groups, *self.kernel)

    def top_shape(self, shape: Shape) -> Shape:
        channels = self.weights[0].shape[0]
        if shape[self.axis] != channels:
            raise self.invalid(
                f"a bottom has shape {shape}, {shape[self.axis]} channels; the weights are for {channels}"
            )
        names = ("stride", "padding", "dilation")
        extents = tuple(
            s * (i - 1) + d * (k - 1) + 1 - 2 * p
            for i, k, s, p, d in zip(
                shape[self.axis + 1 :], self.kernel, *(self.arguments[name] for name in names), strict=True
            )
        )
        if min(extents) < 1:
            raise self.invalid(
                f"a bottom of shape {shape}, kernel {self.kernel}, stride {self.arguments['stride']} and pad "
                f"{self.arguments['padding']} leave a top of {extents}: each must be positive"
            )
        return (*shape[: self.axis], self.weights[0].shape[1] * self.arguments["groups"], *extents)

    def problem(self, direction: str, bottom_shape: Shape) -> Convolution:
        """Return the convolution that takes a top to such a bottom, whose "bwd_data" is the forward pass."""
        arguments: dict[str, Any] = {
            name: value for name, value in self.arguments.items() if name != "algorithm"
        }
        dtype = "f32" if self.context.dtype.itemsize == 4 else "f64"
        top = self.top_shape(bottom_shape)
        x_shape = (count(top, 0, self.axis), *top[self.axis :])
        return Convolution.make(direction, x_shape, self.weights[0].shape, dtype=dtype, **arguments)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        arguments = self._arguments("bwd_data")
        for x, y in zip(bottom, top, strict=True):
            images = self._images(y.values)
            conv_transpose(self._images(x.values), self.weights[0].values, out=images, **arguments)
            if len(self.weights) == 2:
                add(self.weights[1].values.reshape(-1, *(1,) * self.rank), out=images, beta=1.0)

    def _add_weight_gradient(self, x: Array, dy: Array) -> None:
        w, arguments = self.weights[0], self._arguments("bwd_filter")
        conv_backward_filter(dy, x, w.shape, out=w.gradient, beta=self.beta(w), **arguments)

    def _data_gradient(self, dy: Array, dx: Array) -> None:
        conv(dy, self.weights[0].values, out=dx, **self._arguments("fwd"))
