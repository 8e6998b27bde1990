"""Normalize: division by the Euclidean norm of an image or of each pixel, of SSD's fork."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction
from jitdnn.ops.tensor_ops import add


class NormalizeLayer(Layer):
    """y = w · x / √(Σ x² + eps) (1e-10), Σ over the channels and pixels of an image with across_spatial (true), else
    over the channels of each pixel. Bottom and top (N, C, ...).

    Weights: w, one number with channel_shared (true), else (C); it starts at 1 unless scale_filler says otherwise.
    """

    type = "Normalize"
    is_for_gpu = True
    writes_gradients = True
    reads = Reads(bottom=True, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.norm_param, bottom[0].shape
        if len(shape) < 2:
            raise self.invalid(f"the bottom has shape {shape}: it needs a batch and channels, 2 axes or more")
        filler = parameter.scale_filler if parameter.has("scale_filler") else FillerParameter(value=1.0)
        self.add_weight(() if parameter.channel_shared else (shape[1],), filler)
        self.squares, self.products = reduction("x: x * x"), reduction("dy, w, x: dy * w * x")
        self.root = elementwise("squares, eps: sqrt(squares + eps)")
        self.function = elementwise("x, w, norm: x / norm * w")
        self.gradient = elementwise("dy, w, x, norm, dot: (dy * w - x * dot / (norm * norm)) / norm")
        self.slope = reduction("dy, x, norm: dy * x / norm")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, weights = bottom[0].shape, self.weights[0].shape
        if weights not in ((), (shape[1],)):
            raise self.invalid(
                f"the bottom has shape {shape}, {shape[1]} channels; the weights are for {weights[0]}"
            )
        self.view: Shape = (shape[0], shape[1], count(shape, 2))
        self.axes = (1, 2) if self.parameter.norm_param.across_spatial else (1,)
        self.norm = self.save("norm", (shape[0], 1, 1 if len(self.axes) == 2 else self.view[2]))
        top[0].reshape(shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, norm = bottom[0].values.reshape(self.view), self.norm.values
        self.squares(x, axes=self.axes, keepdims=True, out=norm)
        self.root(norm, self.parameter.norm_param.eps, out=norm)
        self.function(x, self.weights[0].values.reshape(1, -1, 1), norm, out=top[0].values.reshape(self.view))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, dy, norm = (
            bottom[0].values.reshape(self.view),
            top[0].gradient.reshape(self.view),
            self.norm.values,
        )
        w = self.weights[0]
        wide = w.values.reshape(1, -1, 1)
        if self.weight_needs_gradient[0]:
            add(
                self.slope(dy, x, norm, axes=(0, 2) if w.shape else None),
                out=w.gradient.reshape(-1),
                beta=self.beta(w),
            )
        if propagate[0]:
            dot = self.products(dy, wide, x, axes=self.axes, keepdims=True)
            self.gradient(dy, wide, x, norm, dot, out=bottom[0].gradient.reshape(self.view))
