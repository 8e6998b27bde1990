"""Dropout: in training each value is kept with probability 1 − ratio and divided by it; in testing nothing
happens.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.random_words import RandomWords


class DropoutLayer(Layer):
    """TRAIN: y = x / (1 − r), or 0 with probability r, by the library's dropout, which draws anew at each pass and
    stores no mask. r is rounded to a multiple of 2^-16. TEST: y = x.
    """

    type = "Dropout"
    may_be_in_place = True
    is_random = True
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ratio = self.parameter.dropout_param.dropout_ratio
        if not 0 <= self.ratio < 1:
            raise self.invalid(f"dropout_ratio is {self.ratio:g}: it must be in [0, 1)", "dropout_param")
        self.is_training = self.context.phase == "TRAIN"
        self.words = RandomWords(self.context.device, self.context.part)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)

    def prepare(self, bottom: Sequence[Blob]) -> None:
        if self.is_training:
            self.words.draw(self.context.random)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_training:
            if not self.is_captured:
                self.prepare(bottom)
            self.words.apply(bottom[0].values, self.ratio, top[0].values)
        elif top[0] is not bottom[0]:
            copy(bottom[0].values, top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        if self.is_training:
            self.words.apply(top[0].gradient, self.ratio, bottom[0].gradient)
        elif top[0] is not bottom[0]:
            copy(top[0].gradient, bottom[0].gradient)
