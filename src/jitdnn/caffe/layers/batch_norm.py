"""Batch normalization as Caffe has it: statistics in three weights, factors and summands in a Scale layer behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.ops.batch_norm import batch_norm, batch_norm_backward, batch_norm_inference
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.tensor_ops import add


class BatchNormLayer(Layer):
    """y = (x − mean) / sqrt(variance + eps) for each channel; bottom and top (N, C, ...), or (N) with one channel.

    Weights, which no solver trains: sums of means and of variances (C), and their weight (1); all start at 0. With
    use_global_stats (in testing, unless it is given) mean and variance are the sums divided by the weight, 0 if that
    is 0. Else they are those of the batch, and every forward pass changes the weights: sum ← f · sum + new, weight ←
    f · weight + 1, f = moving_average_fraction (0.999), the new variance divided by m − 1 instead of m. eps is 1e-5.

    In place x is kept, as the gradient needs it.
    """

    type = "BatchNorm"
    may_be_in_place = True
    may_rerun = False  # every forward pass in training counts

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.batch_norm_param
        self.is_global = self.context.phase == "TEST"
        if parameter.has("use_global_stats"):
            self.is_global = parameter.use_global_stats
        self.fraction, self.epsilon = parameter.moving_average_fraction, parameter.eps
        if not self.epsilon >= 0:
            raise self.invalid(f"eps is {self.epsilon:g}: it must be 0 or more", "batch_norm_param")
        for shape in ((self._channels(bottom[0].shape),),) * 2 + ((1,),):
            self.add_weight(shape, FillerParameter())
            self.weight_needs_gradient[-1] = False
        self.scaled = elementwise("dy, rstd: dy * rstd")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        channels = self._channels(shape)
        if (channels,) != self.weights[0].shape:
            raise self.invalid(f"the bottom has shape {shape}, {channels} channels; the weights are for "
                               f"{self.weights[0].shape[0]}")  # fmt: skip
        self.view: Shape = (shape[0], channels, count(shape, 2))
        if top[0] is not bottom[0]:
            top[0].reshape(shape)
        is_kept = top[0] is bottom[0] and not self.is_global
        self.x = self.save("x", shape) if is_kept else bottom[0]
        self.mean, self.rstd = self.save("mean", (channels,)), self.save("rstd", (channels,))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data.reshape(self.view), top[0].data.reshape(self.view)
        means, variances, weight = (blob.data for blob in self.weights)
        if self.is_global:
            scale = 0.0 if weight[0] == 0 else 1.0 / float(weight[0])
            mean, variance = add(means, alpha=scale), add(variances, alpha=scale)
            np.copyto(self.rstd.data, 1 / np.sqrt(variance + self.epsilon))
            batch_norm_inference(x, running_mean=mean, running_var=variance, epsilon=self.epsilon, out=y)
            return
        if self.x is not bottom[0]:
            np.copyto(self.x.data, bottom[0].data)
        mean, variance = np.zeros_like(means), np.zeros_like(variances)
        batch_norm(
            x, running_mean=mean, running_var=variance, factor=1.0, epsilon=self.epsilon, save=True,
            out=(y, self.mean.data, self.rstd.data),
        )  # fmt: skip
        add(mean, out=means, beta=self.fraction)
        add(variance, out=variances, beta=self.fraction)
        weight[0] = weight[0] * self.fraction + 1

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        dy, dx = top[0].diff.reshape(self.view), bottom[0].diff.reshape(self.view)
        if self.is_global:
            self.scaled(dy, self.rstd.data.reshape(1, -1, 1), out=dx)
            return
        x = self.x.data.reshape(self.view)
        batch_norm_backward(dy, x, None, self.mean.data, self.rstd.data, out=(dx, None, None))

    def backward_reads(self) -> Reads:
        return Reads(bottom=not self.is_global and "x" not in self.saved, top=False)

    def _channels(self, shape: Shape) -> int:
        if not shape:
            raise self.invalid("the bottom is a scalar: it needs a batch")
        return shape[1] if len(shape) > 1 else 1
