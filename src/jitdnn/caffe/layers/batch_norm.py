"""Batch normalization as Caffe has it: statistics in three weights, factors and summands in a Scale layer behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.layers.scale import ScaleLayer
from jitdnn.caffe.layers.synchronized import SynchronizedStatistics
from jitdnn.caffe.layouts import by_channel
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
    is_for_gpu = True

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
        self.averages = elementwise("m, v, weight: s = where(weight == 0, 0, 1 / weight); m * s, v * s")
        self.inverse = elementwise("v, epsilon: 1 / sqrt(v + epsilon)")
        part = self.context.part
        is_divided = part is not None and part.batch_norm == "synchronized" and not self.is_global
        self.statistics = SynchronizedStatistics(self, part) if is_divided and part is not None else None
        # set by fusion.py: the layer that scales the result, whether it is rectified, and whether x is there already
        self.scale: ScaleLayer | None = None
        self.is_rectified = self.has_x = False
        # set by running_statistics.py, which then changes the weights behind the pass
        self.leaves_statistics = False
        self.factors = elementwise(
            "m, v, weight, epsilon, gamma, beta, bias: s = where(weight == 0, 0, 1 / weight); "
            "f = gamma / sqrt(v * s + epsilon); f, beta + (bias - m * s) * f"
        )
        self.counted = elementwise("weight, fraction: weight * fraction + 1")

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
        self.variance, self.batch = self.save("variance", (channels,)), self.save("batch", (2, channels))
        if self.statistics is not None:
            self.statistics.reshape(self.view)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = by_channel(bottom[0].values, self.view), by_channel(top[0].values, self.view)
        gamma, beta = self._scale()
        activation = "relu" if self.is_rectified else "identity"
        means, variances, weight = (blob.values for blob in self.weights)
        if self.is_global:
            mean, variance = self.mean.values, self.variance.values
            self.averages(means, variances, weight, out=(mean, variance))
            self.inverse(variance, self.epsilon, out=self.rstd.values)
            batch_norm_inference(
                x, gamma, beta, mean, variance, epsilon=self.epsilon, activation=activation, out=y
            )
            return
        if self.x is not bottom[0] and not self.has_x:
            copy(bottom[0].values, self.x.values)
        x = by_channel(self.x.values, self.view)
        if self.statistics is not None:
            whole = self.statistics
            whole.compute(x)
            self.inverse(whole.variance.values, self.epsilon, out=self.rstd.values)
            batch_norm_inference(
                x,
                gamma,
                beta,
                whole.mean.values,
                whole.variance.values,
                epsilon=self.epsilon,
                activation=activation,
                out=y,
            )
        else:
            mean, variance = self.batch_statistics()
            batch_norm(
                x, gamma, beta, mean, variance, factor=1.0, epsilon=self.epsilon, activation=activation, save=True,
                out=(y, self.mean.values, self.rstd.values),
            )  # fmt: skip
        if not self.leaves_statistics:
            mean, variance = self.batch_statistics()
            add(mean, out=means, beta=self.fraction)
            add(variance, out=variances, beta=self.fraction)
            self.counted(weight, self.fraction, out=weight)

    def batch_statistics(self) -> tuple[Any, Any]:
        """The mean and the variance, without bias, of the last batch in training, as far as the backward pass."""
        if self.statistics is not None:
            return self.statistics.mean.values, self.statistics.unbiased.values
        batch = self.batch.values
        return batch[0], batch[1]

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0] and self.scale is None:
            return
        dy, dx = by_channel(top[0].gradient, self.view), by_channel(bottom[0].gradient, self.view)
        if self.is_global:
            self.scaled(dy, self.rstd.values.reshape(1, -1, 1), out=dx)
            return
        x = by_channel(self.x.values, self.view)
        gamma, beta = self._scale()
        batch = self.batch.values
        written = None if self.scale is None else self.scale.new_gradients()
        sums = written or (None if gamma is None else batch[0], None if beta is None else batch[1])
        if self.statistics is not None:
            y = by_channel(top[0].values, self.view) if self.is_rectified else None
            self.statistics.backward(
                dy, x, y, self.rstd.values, gamma, dx if propagate[0] else None, sums[1], sums[0]
            )
            if self.scale is not None and written is None:
                self.scale.add_gradients(*sums)
            return
        batch_norm_backward(
            dy, x, gamma, self.mean.values, self.rstd.values,
            y=by_channel(top[0].values, self.view) if self.is_rectified else None,
            activation="relu" if self.is_rectified else "identity", wants_bias=beta is not None, out=(dx, *sums),
        )  # fmt: skip
        if self.scale is not None and written is None:
            self.scale.add_gradients(*sums)

    def layout_rule(self) -> str:
        return "same"

    def fuse(self, scale: ScaleLayer | None, is_rectified: bool) -> None:
        """Scale the result by the weights of that layer, and rectify it, in one call; None, False: do not."""
        self.scale, self.is_rectified = scale, is_rectified

    def affine(self, scale: ScaleLayer | None, bias: Blob | None) -> tuple[Any, Any]:
        """Return what normalizing by fixed statistics, and scaling, is for each channel: a factor and a summand. `bias`
        is what is still to be added before.
        """
        means, variances, weight = (blob.values for blob in self.weights)
        gamma, beta = self._scale(scale)
        out = (self.rstd.values, self.variance.values)
        self.factors(
            means, variances, weight, self.epsilon, 1.0 if gamma is None else gamma, 0.0 if beta is None else beta,
            0.0 if bias is None else bias.values, out=out,
        )  # fmt: skip
        return out

    def _scale(self, given: ScaleLayer | None = None) -> tuple[Any, Any]:
        """The weights of the layer that scales the result, None where there is none."""
        scale = given or self.scale
        if scale is None:
            return None, None
        return scale.weights[0].values, None if scale.bias is None else scale.bias.values

    def backward_reads(self) -> Reads:
        return Reads(bottom=not self.is_global and "x" not in self.saved, top=False)

    def _channels(self, shape: Shape) -> int:
        if not shape:
            raise self.invalid("the bottom is a scalar: it needs a batch")
        return shape[1] if len(shape) > 1 else 1
