"""Softmax and the loss on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Blob, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.layers.labels import NOBODY, check_labels, class_numbers
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction
from jitdnn.ops.softmax import softmax, softmax_backward

FLT_MIN = float(np.finfo(np.float32).tiny)
# for probabilities p, labels t, classes c and a label g to ignore: the losses, and the labels that count. A label that
# is none of the n classes makes the loss NaN, where the host did not look before
TERMS = (
    "p, t, c, g, least, n, none: k = trunc(t); is_wrong = (c == 0) & ((k < 0) | (k >= n)); "
    "where(k == g, 0, where(is_wrong, none, where(k == c, -log(maximum(p, least)), 0))), "
    "where((c == 0) & (k != g), 1, 0)"
)
MEAN = "total, valid, norm: total / where(norm > 0, norm, maximum(valid, 1))"
SLOPE = (
    "p, t, c, g, dloss, valid, norm: k = trunc(t); factor = dloss / where(norm > 0, norm, maximum(valid, 1)); "
    "where(k == g, 0, factor * (p - where(k == c, 1, 0)))"
)


class SoftmaxLayer(Layer):
    """y = softmax of x along `softmax_param.axis`."""

    type = "Softmax"
    is_for_gpu = True

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.axis = self.front_axis(self.parameter.softmax_param.axis, len(shape))
        top[0].reshape(shape)
        self.output = self.save("output", shape) if self.is_overwritten else top[0]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        softmax(bottom[0].values, axis=self.axis, algorithm="accurate", out=self.output.values)
        if self.is_overwritten:
            copy(self.output.values, top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            softmax_backward(top[0].gradient, self.output.values, axis=self.axis, out=bottom[0].gradient)

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
    parts_of_top = "sum"
    is_for_gpu = True
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        loss = self.parameter.loss_param
        self.ignored = loss.ignore_label if loss.has("ignore_label") else None
        self.normalization = loss.normalization
        if loss.has("normalize") and not loss.has("normalization"):
            self.normalization = "VALID" if loss.normalize else "BATCH_SIZE"
        self.ignored_label = NOBODY if self.ignored is None else float(self.ignored)
        # what a loss exchanges with other processes it exchanges once
        self.may_rerun = self.context.part is None
        self.terms, self.mean, self.slope = reduction(TERMS), elementwise(MEAN), elementwise(SLOPE)

    def axis_given(self) -> int:
        """Return the axis of the classes as the net's file gives it."""
        return self.parameter.softmax_param.axis

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.axis = self.front_axis(self.axis_given(), len(shape))
        self.view = (count(shape, 0, self.axis), shape[self.axis], count(shape, self.axis + 1))
        places = self.view[0] * self.view[2]
        if bottom[1].size != places:
            raise self.invalid(
                f"scores of shape {shape} with classes in axis {self.axis} need {places} labels; "
                f"bottom {bottom[1].name!r} has {bottom[1].size}"
            )
        self.probability = self.save("probability", shape)
        self.labels = self.save("labels", (self.view[0], 1, self.view[2]))
        self.total, self.valid = self.save("total", (1,)), self.save("valid", (1,))
        self.classes = class_numbers(self, self.view[1])
        self.norm = self._norm()
        top[0].reshape(())
        if len(top) == 2:
            top[1].reshape(shape)

    def prepare(self, bottom: Sequence[Blob]) -> None:
        check_labels(self, bottom[1], self.view[1], self.ignored)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.is_captured:
            self.prepare(bottom)
        softmax(bottom[0].values, axis=self.axis, algorithm="accurate", out=self.probability.values)
        copy(bottom[1].values.reshape(-1), self.labels.values.reshape(-1))
        total, valid = self.total.values, self.valid.values
        self.terms(
            *self._viewed(), self.ignored_label, FLT_MIN, float(self.view[1]), NOBODY, out=(total, valid)
        )
        if not self.norm and self.context.part is not None:
            self.context.part.sum(valid)
        self.mean(total, valid, self.norm, out=top[0].values)
        if len(top) == 2:
            copy(self.probability.values, top[1].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[1]:
            raise self.invalid("the labels have no gradient: they must not depend on trained weights")
        if propagate[0]:
            self.slope(
                *self._viewed(), self.ignored_label, top[0].gradient, self.valid.values, self.norm,
                out=bottom[0].gradient.reshape(self.view),
            )  # fmt: skip

    def _viewed(self) -> tuple[Any, Any, Any]:
        """Probabilities, labels and the numbers of the classes, to be broadcast to (outer, classes, inner)."""
        return self.probability.values.reshape(self.view), self.labels.values, self.classes.values

    def _norm(self) -> float:
        """What the loss is divided by; 0 if it depends on the labels that are ignored."""
        outer, inner = self.context.whole(self.view[0]), self.view[2]
        if self.normalization == "VALID":
            return 0.0 if self.ignored is not None else float(max(1, outer * inner))
        by_mode = {"FULL": outer * inner, "BATCH_SIZE": outer, "NONE": 1}
        return float(max(1, by_mode[self.normalization]))
