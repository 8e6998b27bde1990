"""Accuracy: how often the label is among the top_k scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, canonical_axis, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import checked_labels


class AccuracyLayer(Layer):
    """Bottoms: scores (outer, classes, inner) with the classes along `axis`, and a label for each outer and
    inner place. Tops: the accuracy, a scalar, and optionally that of each class (0 for a class without
    labels).

    A label is right if fewer than top_k other scores are at least as high as its own: a tie is wrong, and so
    is NaN.
    """

    type = "Accuracy"
    bottoms = (2, 2)
    tops = (1, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.accuracy_param
        self.top_k = parameter.top_k
        self.ignored = parameter.ignore_label if parameter.has("ignore_label") else None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(self.parameter.accuracy_param.axis, len(shape), f"layer {self.name!r}")
        self.view = (count(shape, 0, axis), shape[axis], count(shape, axis + 1))
        places = self.view[0] * self.view[2]
        if bottom[1].size != places:
            raise self.invalid(
                f"scores of shape {shape} with classes in axis {axis} need {places} labels; "
                f"bottom {bottom[1].name!r} has {bottom[1].size}"
            )
        if not 1 <= self.top_k <= self.view[1]:
            raise self.invalid(
                f"top_k is {self.top_k}: it must be in 1 .. {self.view[1]}, the number of classes"
            )
        top[0].reshape(())
        if len(top) == 2:
            top[1].reshape((self.view[1],))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        outer, classes, inner = self.view
        labels, is_counted = checked_labels(self, bottom[1].data, classes, self.ignored)
        scores = bottom[0].data.reshape(self.view)
        own = np.take_along_axis(scores, labels.reshape(outer, 1, inner), axis=1)
        # "not lower" instead of "at least as high", so that a NaN makes the answer wrong; one of them is the
        # label
        not_lower = np.count_nonzero(~(scores < own), axis=1).reshape(-1) - 1
        is_right = (not_lower < self.top_k) & is_counted
        top[0].data[...] = is_right.sum() / max(1, is_counted.sum())
        if len(top) == 2:
            right = np.bincount(labels, weights=is_right, minlength=classes)
            found = np.bincount(labels, weights=is_counted, minlength=classes)
            top[1].data[...] = right / np.maximum(1, found)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if any(propagate):
            raise self.invalid("an accuracy has no gradient: set no loss_weight on it")

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)

    def may_force_backward(self, index: int) -> bool:
        return False
