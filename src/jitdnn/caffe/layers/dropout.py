"""Dropout: in training each value is kept with probability 1 − ratio and divided by it; in testing nothing
happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads


class DropoutLayer(Layer):
    """TRAIN: y = x · mask / (1 − r), with a new mask at each pass. TEST: y = x."""

    type = "Dropout"
    may_be_in_place = True
    is_random = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ratio = self.parameter.dropout_param.dropout_ratio
        if not 0 <= self.ratio < 1:
            raise self.invalid(f"dropout_ratio is {self.ratio:g}: it must be in [0, 1)", "dropout_param")
        self.is_training = self.context.phase == "TRAIN"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)
        if self.is_training:
            self.mask = self.save("mask", bottom[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_training:
            mask = self.mask.data
            self.context.random.random(out=mask, dtype=mask.dtype.type)
            np.greater_equal(mask, self.ratio, out=mask)
            mask *= 1 / (1 - self.ratio)
            np.multiply(bottom[0].data, mask, out=top[0].data)
        elif top[0] is not bottom[0]:
            np.copyto(top[0].data, bottom[0].data)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        if self.is_training:
            np.multiply(top[0].diff, self.mask.data, out=bottom[0].diff)
        elif top[0] is not bottom[0]:
            np.copyto(bottom[0].diff, top[0].diff)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)
