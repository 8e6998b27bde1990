"""Losses of two or three bottoms without a softmax: Euclidean, sigmoid cross-entropy, hinge, contrastive, multinomial
logistic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import checked_labels
from jitdnn.ops.activation import sigmoid
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction

LEAST_PROBABILITY = 1e-20  # Caffe's kLOG_THRESHOLD
DISTANCE_EPSILON = 1e-4  # what Caffe adds to a distance that it divides by


class LossLayer(Layer):
    """The top is a scalar; only the first bottom has a gradient. The bottoms have as many images, one or more."""

    bottoms = (2, 2)
    is_loss = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        if any(not shape or shape[0] != shapes[0][0] for shape in shapes) or not shapes[0][0]:
            raise self.invalid(
                f"bottoms of shapes {', '.join(map(str, shapes))} must have as many images in axis 0, one or more"
            )
        self.images = shapes[0][0]
        top[0].reshape(())

    def backward_reads(self) -> Reads:
        return Reads(bottom=True, top=False)

    def may_force_backward(self, index: int) -> bool:
        return index == 0

    def refuse_label_gradient(self, propagate: Sequence[bool]) -> None:
        """Raise InvalidArgument if a gradient of the last bottom, the labels, is asked for."""
        if propagate[-1]:
            raise self.invalid("the labels have no gradient: they must not depend on trained weights")

    def same_size(self, bottom: Sequence[Blob]) -> None:
        """Raise InvalidArgument unless the first two bottoms have as many elements."""
        if bottom[0].size != bottom[1].size:
            raise self.invalid(
                f"bottoms of shapes {bottom[0].shape} and {bottom[1].shape} must have as many elements; they have "
                f"{bottom[0].size} and {bottom[1].size}"
            )

    def one_label_each(self, bottom: Sequence[Blob]) -> None:
        """Raise InvalidArgument unless the last bottom has one label for each image."""
        if bottom[-1].size != self.images:
            raise self.invalid(
                f"{self.images} images need {self.images} labels; bottom {bottom[-1].name!r} has {bottom[-1].size}"
            )


class EuclideanLossLayer(LossLayer):
    """Σ (a − b)² / (2 N) for two bottoms of N images and as many elements; both have gradients."""

    type = "EuclideanLoss"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squares = reduction("a, b: (a - b) * (a - b)")
        self.difference = elementwise("a, b, factor: factor * (a - b)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        total = self.squares(*(blob.data.reshape(-1) for blob in bottom))
        top[0].data[...] = total[0] / (2 * self.images)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, b = (blob.data.reshape(-1) for blob in bottom)
        scale = float(top[0].diff) / self.images
        for blob, is_wanted, factor in zip(bottom, propagate, (scale, -scale), strict=True):
            if is_wanted:
                self.difference(a, b, factor, out=blob.diff.reshape(-1))

    def may_force_backward(self, index: int) -> bool:
        return True


class SigmoidCrossEntropyLossLayer(LossLayer):
    """Σ max(x, 0) − x t + log(1 + e^−|x|) over norm, for scores x and targets t of as many elements, t in 0 .. 1.

    Targets whose whole part is loss_param.ignore_label do not count. norm is, by normalization, BATCH_SIZE (default):
    N; FULL: all elements; VALID: those that count; NONE: 1; and at least 1. The old `normalize` means VALID if true.
    """

    type = "SigmoidCrossEntropyLoss"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        loss = self.parameter.loss_param
        # nothing is equal to NaN
        self.ignored = float(loss.ignore_label) if loss.has("ignore_label") else float("nan")
        self.normalization = "VALID" if loss.normalize else "BATCH_SIZE"
        if loss.has("normalization"):
            self.normalization = loss.normalization
        self.terms = reduction(
            "x, t, g: g = trunc(t) == g; where(g, 0, maximum(x, 0) - x * t + log1p(exp(-abs(x)))), where(g, 0, 1)"
        )
        self.gradient = elementwise("y, t, g, factor: where(trunc(t) == g, 0, factor * (y - t))")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, t = (blob.data.reshape(-1) for blob in bottom)
        total, valid = self.terms(x, t, self.ignored)
        by_mode = {"VALID": float(valid[0]), "FULL": x.size, "BATCH_SIZE": self.images, "NONE": 1}
        self.norm = float(max(1, by_mode[self.normalization]))
        top[0].data[...] = total[0] / self.norm

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        if propagate[0]:
            dx = bottom[0].diff.reshape(-1)
            sigmoid(bottom[0].data.reshape(-1), out=dx)
            self.gradient(
                dx, bottom[1].data.reshape(-1), self.ignored, float(top[0].diff) / self.norm, out=dx
            )


class HingeLossLayer(LossLayer):
    """Σ max(0, 1 − s x)^p / N over all scores x (N, classes), s = 1 for the label's and −1 for the others; p = 1 for
    norm L1 (default), 2 for L2. One label for each image.
    """

    type = "HingeLoss"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        power = "m * m" if self.parameter.hinge_loss_param.norm == "L2" else "m"
        slope = "2 * m" if power == "m * m" else "1"
        self.terms = reduction(f"x, s: m = maximum(0, 1 - s * x); {power}")
        self.gradient = elementwise(f"x, s, factor: m = 1 - s * x; where(m > 0, -factor * s * {slope}, 0)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.one_label_each(bottom)
        self.view: Shape = (self.images, count(bottom[0].shape, 1))
        self.sides = self.save("sides", self.view)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        labels, _ = checked_labels(self, bottom[1].data, self.view[1], None)
        self.sides.data.fill(-1)
        np.put_along_axis(self.sides.data, labels.reshape(-1, 1), 1, axis=1)
        total = self.terms(bottom[0].data.reshape(-1), self.sides.data.reshape(-1))
        top[0].data[...] = total[0] / self.images

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        if propagate[0]:
            x, sides, dx = bottom[0].data.reshape(-1), self.sides.data.reshape(-1), bottom[0].diff.reshape(-1)
            self.gradient(x, sides, float(top[0].diff) / self.images, out=dx)


class ContrastiveLossLayer(LossLayer):
    """Σ / (2 N) over pairs of rows of a and b with the distance d: d² where the pair's label is not 0, else
    max(margin − d, 0)², or max(margin − d², 0) with legacy_version. margin is 1; one label for each pair.

    The gradient of max(margin − d, 0)² divides by d + 1e-4, as Caffe's.
    """

    type = "ContrastiveLoss"
    bottoms = (3, 3)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squares = reduction("a, b: (a - b) * (a - b)")
        self.difference = elementwise("a, b, factor: factor * (a - b)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)
        self.one_label_each(bottom)
        self.view: Shape = (self.images, count(bottom[0].shape, 1))
        self.factors = self.save("factors", (self.images, 1))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.contrastive_loss_param
        a, b = (blob.data.reshape(self.view) for blob in bottom[:2])
        squares = self.squares(a, b, axes=1).astype(np.float64)
        is_similar = np.trunc(bottom[2].data.reshape(-1)) != 0
        # for each pair its loss, and what the gradient by a is in units of a - b
        if parameter.legacy_version:
            losses = np.maximum(parameter.margin - squares, 0)
            factors = np.where(losses > 0, -1.0, 0.0)
        else:
            distances = np.sqrt(squares)
            rest = np.maximum(parameter.margin - distances, 0)
            losses, factors = rest * rest, -rest / (distances + DISTANCE_EPSILON)
        top[0].data[...] = np.where(is_similar, squares, losses).sum() / (2 * self.images)
        self.factors.data[:, 0] = np.where(is_similar, 1.0, factors) / self.images

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        a, b = (blob.data.reshape(self.view) for blob in bottom[:2])
        for blob, is_wanted, sign in zip(bottom[:2], propagate[:2], (1, -1), strict=True):
            if is_wanted:
                factors = self.factors.data * self.context.dtype.type(sign * float(top[0].diff))
                self.difference(a, b, factors, out=blob.diff.reshape(self.view))

    def may_force_backward(self, index: int) -> bool:
        return index < 2


class MultinomialLogisticLossLayer(LossLayer):
    """−Σ log max(p[label], 1e-20) / N for probabilities p (N, classes), as Softmax makes them, and a label each."""

    type = "MultinomialLogisticLoss"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.one_label_each(bottom)
        self.view: Shape = (self.images, count(bottom[0].shape, 1))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        labels, _ = checked_labels(self, bottom[1].data, self.view[1], None)
        self.labels = labels.reshape(-1, 1)
        picked = np.take_along_axis(bottom[0].data.reshape(self.view), self.labels, axis=1)
        top[0].data[...] = (
            -np.log(np.maximum(picked, LEAST_PROBABILITY), dtype=np.float64).sum() / self.images
        )

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        if not propagate[0]:
            return
        dx = bottom[0].diff.reshape(self.view)
        dx.fill(0)
        picked = np.take_along_axis(bottom[0].data.reshape(self.view), self.labels, axis=1)
        scale = -float(top[0].diff) / self.images
        np.put_along_axis(dx, self.labels, scale / np.maximum(picked, LEAST_PROBABILITY), axis=1)
