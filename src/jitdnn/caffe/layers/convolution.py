"""Convolution: y = w * x + b with the bias fused, in groups, dilated, in 1 to 3 spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jitdnn.caffe.blob import Array, Blob, Shape, count
from jitdnn.caffe.layers.activation import rectify
from jitdnn.caffe.layers.base import Reads
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.layers.scale import ScaleLayer
from jitdnn.caffe.layers.windows import WindowedLayer
from jitdnn.ops.activation import relu
from jitdnn.ops.convolution import conv, conv_backward_bias, conv_backward_data, conv_backward_filter
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import Expression, trace


class ConvolutionLayer(WindowedLayer):
    """Bottoms (N..., C, spatial), all of one shape; tops (N..., K, out) with out = ⌊(i + 2 p − d (k − 1) − 1)
    / s⌋ + 1.

    Weights: w (K, C / group, kernel) and, unless bias_term is false, b (K). Every bottom has its top and all
    share the weights. `axis` is that of the channels; the axes before it are the batch. `engine` and
    `force_nd_im2col` choose among Caffe's implementations; here the planner chooses, so they change nothing.
    """

    type = "Convolution"
    bottoms = (1, None)
    tops = (1, None)
    is_for_gpu = True
    writes_gradients = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.convolution_param
        if len(bottom) != len(top):
            raise self.invalid(f"{len(bottom)} bottoms need {len(bottom)} tops, not {len(top)}")
        shape = bottom[0].shape
        self.read_windows(shape)
        channels, outputs, groups = shape[self.axis], parameter.num_output, parameter.group
        if outputs == 0:
            raise self.invalid("num_output is missing or 0: it must be positive", "convolution_param")
        if groups == 0 or channels % groups or outputs % groups:
            raise self.invalid(
                f"group {groups} must divide the {channels} channels of the bottom and num_output {outputs}"
            )
        self.arguments: dict[str, Any] = {**self.window_arguments(), "groups": groups}
        if self.context.algorithm is not None:
            self.arguments["algorithm"] = self.context.algorithm
        # by direction ("fwd", "bwd_data", "bwd_filter"): the most bytes of workspace, where it is not the setting's
        self.workspace_limits: dict[str, int] = {}
        # set by fusion.py: what is applied as the sums are stored, with these factors and summands if there are some,
        # and another place for the result
        self.epilogue: Expression | None = None
        self.affine: Callable[[], tuple[Any, Any]] | None = None
        self.target: Blob | None = None
        self.add_weight(self.weight_shape(channels, outputs, groups), parameter.weight_filler)
        if parameter.bias_term:
            self.add_weight((outputs,), parameter.bias_filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        for blob in bottom:
            if blob.shape != shape:
                raise self.invalid(
                    f"bottom {blob.name!r} has shape {blob.shape}, the first has {shape}: they must agree"
                )
        top_shape = self.top_shape(shape)
        for blob in top:
            blob.reshape(top_shape)

    def weight_shape(self, channels: int, outputs: int, groups: int) -> Shape:
        """Return the shape of w."""
        return (outputs, channels // groups, *self.kernel)

    def top_shape(self, shape: Shape) -> Shape:
        """Return the shape of the top of a bottom of this shape."""
        return (*shape[: self.axis], *self.problem("fwd", shape).y.shape[1:])

    def problem(self, direction: str, bottom_shape: Shape) -> Convolution:
        """Return the problem ("fwd", "bwd_data" or "bwd_filter") that this layer is for such a bottom."""
        arguments = {name: value for name, value in self.arguments.items() if name != "algorithm"}
        dtype = "f32" if self.context.dtype.itemsize == 4 else "f64"
        x_shape = (count(bottom_shape, 0, self.axis), *bottom_shape[self.axis :])
        return Convolution.make(direction, x_shape, self.weights[0].shape, dtype=dtype, **arguments)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        operands: tuple[Any, ...] = (self.weights[1].values if len(self.weights) == 2 else None,)
        if self.affine is not None:
            operands = (None, *self.affine())
        w, arguments = self.weights[0].values, self._arguments("fwd")
        for x, y in zip(bottom, top if self.target is None else [self.target], strict=True):
            out = self._images(y.values)
            conv(self._images(x.values), w, *operands, epilogue=self.epilogue, out=out, **arguments)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for x, y, is_wanted in zip(bottom, top, propagate, strict=True):
            dy = self._images(y.gradient)
            if len(self.weights) == 2 and self.weight_needs_gradient[1]:
                bias = self.weights[1]
                conv_backward_bias(dy, out=bias.gradient, beta=self.beta(bias))
            if self.weight_needs_gradient[0]:
                self._add_weight_gradient(self._images(x.values), dy)
            if is_wanted:
                self._data_gradient(dy, self._images(x.gradient))

    def _add_weight_gradient(self, x: Array, dy: Array) -> None:
        w, arguments = self.weights[0], self._arguments("bwd_filter")
        conv_backward_filter(x, dy, w.shape, out=w.gradient, beta=self.beta(w), **arguments)

    def _data_gradient(self, dy: Array, dx: Array) -> None:
        conv_backward_data(dy, self.weights[0].values, dx.shape, out=dx, **self._arguments("bwd_data"))

    def fuse_relu(self, slope: float | None) -> None:
        """Rectify the result as it is stored, with this slope below 0; None: do not."""
        if slope is None:
            self.epilogue = None
            return
        rectified = rectify(slope)
        if len(self.weights) == 2:
            self.epilogue = trace(lambda total, bias: rectified(total + bias))
        else:
            self.epilogue = trace(lambda total: rectified(total))

    def fuse_normalization(
        self, norm: BatchNormLayer | None, scale: ScaleLayer | None, has_relu: bool
    ) -> None:
        """Normalize the result as it is stored, by fixed statistics, then scale and rectify it; None: do not."""
        if norm is None:
            self.epilogue = self.affine = None
            return
        if has_relu:
            self.epilogue = trace(lambda total, factor, summand: relu(total * factor + summand))
        else:
            self.epilogue = trace(lambda total, factor, summand: total * factor + summand)
        self.affine = partial(norm.affine, scale, self.weights[1] if len(self.weights) == 2 else None)

    def layout_rule(self) -> str | None:
        return "any" if self.axis == 1 and self.rank == 2 else None

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.weight_needs_gradient[0], top=False)

    def _arguments(self, direction: str) -> dict[str, Any]:
        if direction not in self.workspace_limits:
            return self.arguments
        return {**self.arguments, "workspace_limit": self.workspace_limits[direction]}

    def _images(self, array: Array) -> Array:
        """The array as (N, C, spatial)."""
        if self.axis == 1:
            return array
        return array.reshape(count(array.shape, 0, self.axis), *array.shape[self.axis :])


class DepthwiseConvolutionLayer(ConvolutionLayer):
    """Convolution under the name that MobileNet's files have for one with as many groups as channels; `group` says how
    many, as there.
    """

    type = "DepthwiseConvolution"


class ConvolutionDepthwiseLayer(DepthwiseConvolutionLayer):
    """The same under the name that other forks have for it."""

    type = "ConvolutionDepthwise"
