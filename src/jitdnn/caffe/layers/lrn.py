"""Local response normalization."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.ops.lrn import lrn, lrn_backward


class LRNLayer(Layer):
    """y = x (k + α/n Σ x²)^−β over n = local_size channels around (ACROSS_CHANNELS), or
    y = x (1 + α/n² Σ x²)^−β over n × n pixels (WITHIN_CHANNEL, where Caffe leaves k out), zeros outside counted.

    Bottom and top (N, C, H, W); local_size is odd. `engine` changes nothing.
    """

    type = "LRN"
    is_for_gpu = True
    reads = Reads(bottom=True, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.lrn_param
        if len(bottom[0].shape) != 4:
            raise self.invalid(f"the bottom has shape {bottom[0].shape}; 4 axes (N, C, H, W) are needed")
        if parameter.local_size % 2 == 0:
            raise self.invalid(f"local_size is {parameter.local_size}: it must be odd", "lrn_param")
        is_within = parameter.norm_region == "WITHIN_CHANNEL"
        self.size, self.exponent = parameter.local_size, parameter.beta
        self.factor, self.offset = parameter.alpha, 1.0 if is_within else parameter.k
        self.mode = "within" if is_within else "across"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        lrn(
            bottom[0].values, self.size, self.factor, self.exponent, self.offset, self.mode, out=top[0].values
        )

    def layout_rule(self) -> str:
        return "same"

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            lrn_backward(
                top[0].gradient, bottom[0].values, self.size, self.factor, self.exponent, self.offset, self.mode,
                out=bottom[0].gradient,
            )  # fmt: skip
