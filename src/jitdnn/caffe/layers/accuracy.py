"""Accuracy: how often the label is among the top_k scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import NOBODY, check_labels, class_numbers
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction


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
    parts_of_top = "sum"
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.accuracy_param
        self.may_rerun = self.context.part is None  # what it exchanges with other processes it exchanges once
        self.top_k = parameter.top_k
        self.ignored = parameter.ignore_label if parameter.has("ignore_label") else None
        self.ignored_label = NOBODY if self.ignored is None else float(self.ignored)
        self.own = reduction("s, t, c, low: where(trunc(t) == c, s, low)", "max")
        # "not lower" instead of "at least as high", so that a NaN makes the answer wrong; one of them is the label
        self.rank = reduction("s, own: where(s < own, 0, 1)")
        self.right = reduction(
            "rank, t, g, k: is_counted = trunc(t) != g; where(is_counted & (rank <= k), 1, 0), where(is_counted, 1, 0)"
        )
        self.right_of = reduction(
            "rank, t, c, g, k: is_own = (trunc(t) == c) & (trunc(t) != g); where(is_own & (rank <= k), 1, 0), "
            "where(is_own, 1, 0)"
        )
        self.share = elementwise("right, found: right / maximum(found, 1)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = self.front_axis(self.parameter.accuracy_param.axis, len(shape))
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
        self.classes = class_numbers(self, self.view[1])
        top[0].reshape(())
        if len(top) == 2:
            top[1].reshape((self.view[1],))

    def prepare(self, bottom: Sequence[Blob]) -> None:
        check_labels(self, bottom[1], self.view[1], self.ignored)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.is_captured:
            self.prepare(bottom)
        outer, _, inner = self.view
        scores, classes = bottom[0].values.reshape(self.view), self.classes.values
        labels = bottom[1].values.reshape(outer, 1, inner)
        own = self.own(scores, labels, classes, -math.inf, axes=1, keepdims=True)
        rank = self.rank(scores, own, axes=1, keepdims=True)
        right, found = self.right(rank, labels, self.ignored_label, float(self.top_k))
        self._count_whole(found)
        self.share(right, found, out=top[0].values)
        if len(top) == 2:
            each = self.right_of(rank, labels, classes, self.ignored_label, float(self.top_k), axes=(0, 2))
            self._count_whole(each[1])
            self.share(*each, out=top[1].values)

    def _count_whole(self, found: Any) -> None:
        """Make counts of this process's labels those of the whole batch."""
        if self.context.part is not None:
            self.context.part.sum(found)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if any(propagate):
            raise self.invalid("an accuracy has no gradient: set no loss_weight on it")
