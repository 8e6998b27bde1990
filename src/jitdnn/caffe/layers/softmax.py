"""Softmax and the loss on top of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, canonical_axis, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import checked_labels
from jitdnn.ops.softmax import softmax, softmax_backward
from jitdnn.ops.tensor_ops import add

FLT_MIN = float(np.finfo(np.float32).tiny)


class SoftmaxLayer(Layer):
    """y = softmax of x along `softmax_param.axis`."""

    type = "Softmax"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.axis = canonical_axis(self.parameter.softmax_param.axis, len(shape), f"layer {self.name!r}")
        top[0].reshape(shape)
        self.output = self.save("output", shape) if self.is_overwritten else top[0]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        softmax(bottom[0].data, axis=self.axis, algorithm="accurate", out=self.output.data)
        if self.is_overwritten:
            np.copyto(top[0].data, self.output.data)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            softmax_backward(top[0].diff, self.output.data, axis=self.axis, out=bottom[0].diff)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=not self.is_overwritten)


class SoftmaxWithLossLayer(Layer):
    """Bottoms: scores (outer, classes, inner) with the classes along `softmax_param.axis`, and labels, one
    for each outer and inner place. Tops: the loss, a scalar, and optionally the probabilities.

    loss = −Σ log max(p[label], FLT_MIN) / norm over the labels other than ignore_label. norm is, by
    loss_param.normalization, VALID: the number of those labels; FULL: outer · inner; BATCH_SIZE: outer; NONE:
    1; and at least 1. The old `normalize` means VALID if true and BATCH_SIZE if false.
    """

    type = "SoftmaxWithLoss"
    bottoms = (2, 2)
    tops = (1, 2)
    is_loss = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        loss = self.parameter.loss_param
        self.ignored = loss.ignore_label if loss.has("ignore_label") else None
        self.normalization = loss.normalization
        if loss.has("normalize") and not loss.has("normalization"):
            self.normalization = "VALID" if loss.normalize else "BATCH_SIZE"

    def axis_given(self) -> int:
        """Return the axis of the classes as the net's file gives it."""
        return self.parameter.softmax_param.axis

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.axis = canonical_axis(self.axis_given(), len(shape), f"layer {self.name!r}")
        self.view = (count(shape, 0, self.axis), shape[self.axis], count(shape, self.axis + 1))
        places = self.view[0] * self.view[2]
        if bottom[1].size != places:
            raise self.invalid(
                f"scores of shape {shape} with classes in axis {self.axis} need {places} labels; "
                f"bottom {bottom[1].name!r} has {bottom[1].size}"
            )
        self.probability = self.save("probability", shape)
        top[0].reshape(())
        if len(top) == 2:
            top[1].reshape(shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        softmax(bottom[0].data, axis=self.axis, algorithm="accurate", out=self.probability.data)
        outer, classes, inner = self.view
        labels, is_counted = checked_labels(self, bottom[1].data, classes, self.ignored)
        self.labels = labels.reshape(outer, 1, inner)
        self.is_counted = is_counted.reshape(outer, 1, inner)
        picked = np.take_along_axis(self.probability.data.reshape(self.view), self.labels, axis=1)
        losses = -np.log(np.maximum(picked, FLT_MIN), dtype=np.float64)
        self.norm = self._norm(int(is_counted.sum()))
        top[0].data[...] = losses.sum(where=self.is_counted) / self.norm
        if len(top) == 2:
            np.copyto(top[1].data, self.probability.data)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[1]:
            raise self.invalid("the labels have no gradient: they must not depend on trained weights")
        if not propagate[0]:
            return
        scale = float(top[0].diff) / self.norm
        add(self.probability.data, out=bottom[0].diff, alpha=scale)
        dx = bottom[0].diff.reshape(self.view)
        at_labels = np.take_along_axis(dx, self.labels, axis=1) - self.context.dtype.type(scale)
        np.put_along_axis(dx, self.labels, at_labels, axis=1)
        if self.ignored is not None:
            np.copyto(dx, 0, where=~self.is_counted)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)

    def may_force_backward(self, index: int) -> bool:
        return index == 0

    def _norm(self, valid: int) -> float:
        outer, _, inner = self.view
        by_mode = {"VALID": valid, "FULL": outer * inner, "BATCH_SIZE": outer, "NONE": 1}
        return float(max(1, by_mode[self.normalization]))
