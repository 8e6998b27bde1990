"""Losses of two or three bottoms without a softmax: Euclidean, sigmoid cross-entropy, hinge, contrastive, multinomial
logistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jitdnn.caffe.blob import Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import NOBODY, check_labels, class_numbers
from jitdnn.ops.activation import sigmoid
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduce import reduce
from jitdnn.ops.reduction import reduction
from jitdnn.ops.tensor_ops import scale

LEAST_PROBABILITY = 1e-20  # Caffe's kLOG_THRESHOLD
DISTANCE_EPSILON = 1e-4  # what Caffe adds to a distance that it divides by


class LossLayer(Layer):
    """The top is a scalar; only the first bottom has a gradient. The bottoms have as many images, one or more."""

    bottoms = (2, 2)
    is_loss = True
    parts_of_top = "sum"
    is_for_gpu = True
    reads = Reads(bottom=True, top=False)
    forced_bottoms: ClassVar[int | None] = 1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        if any(not shape or shape[0] != shapes[0][0] for shape in shapes) or not shapes[0][0]:
            raise self.invalid(
                f"bottoms of shapes {', '.join(map(str, shapes))} must have as many images in axis 0, one or more"
            )
        self.images = shapes[0][0]
        self.whole_images = self.context.whole(self.images)
        top[0].reshape(())

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
    forced_bottoms = None

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squares = reduction("a, b: (a - b) * (a - b)")
        self.difference = elementwise("a, b, dloss, factor: factor * dloss * (a - b)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squares(*(blob.values.reshape(-1) for blob in bottom), out=top[0].values)
        scale(top[0].values, 1 / (2 * self.whole_images))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, b = (blob.values.reshape(-1) for blob in bottom)
        for blob, is_wanted, sign in zip(bottom, propagate, (1, -1), strict=True):
            if is_wanted:
                self.difference(
                    a, b, top[0].gradient, sign / self.whole_images, out=blob.gradient.reshape(-1)
                )


class SigmoidCrossEntropyLossLayer(LossLayer):
    """Σ max(x, 0) − x t + log(1 + e^−|x|) over norm, for scores x and targets t of as many elements, t in 0 .. 1.

    Targets whose whole part is loss_param.ignore_label do not count. norm is, by normalization, BATCH_SIZE (default):
    N; FULL: all elements; VALID: those that count; NONE: 1; and at least 1. The old `normalize` means VALID if true.
    """

    type = "SigmoidCrossEntropyLoss"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        loss = self.parameter.loss_param
        self.may_rerun = self.context.part is None  # what it exchanges with other processes it exchanges once
        self.ignored = float(loss.ignore_label) if loss.has("ignore_label") else NOBODY
        self.normalization = "VALID" if loss.normalize else "BATCH_SIZE"
        if loss.has("normalization"):
            self.normalization = loss.normalization
        self.terms = reduction(
            "x, t, g: g = trunc(t) == g; where(g, 0, maximum(x, 0) - x * t + log1p(exp(-abs(x)))), where(g, 0, 1)"
        )
        norm = "where(norm > 0, norm, maximum(valid, 1))"
        self.mean = elementwise(f"total, valid, norm: total / {norm}")
        self.slope = elementwise(
            f"y, t, g, dloss, valid, norm: where(trunc(t) == g, 0, dloss / {norm} * (y - t))"
        )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)
        self.total, self.valid = self.save("total", (1,)), self.save("valid", (1,))
        # 0: the targets that count
        whole = self.context.whole(bottom[0].size)
        by_mode = {"VALID": 0, "FULL": max(1, whole), "BATCH_SIZE": self.whole_images, "NONE": 1}
        self.norm = float(by_mode[self.normalization])

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, t = (blob.values.reshape(-1) for blob in bottom)
        total, valid = self.total.values, self.valid.values
        self.terms(x, t, self.ignored, out=(total, valid))
        if not self.norm and self.context.part is not None:
            self.context.part.sum(valid)
        self.mean(total, valid, self.norm, out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        if propagate[0]:
            dx = bottom[0].gradient.reshape(-1)
            sigmoid(bottom[0].values.reshape(-1), out=dx)
            t = bottom[1].values.reshape(-1)
            self.slope(dx, t, self.ignored, top[0].gradient, self.valid.values, self.norm, out=dx)


class _ClassLossLayer(LossLayer):
    """A loss of N images that have a value for each class and one label: the sum of `terms`, by N.

    `terms` is a reduction of the values, the labels and the numbers of the classes; `slope`, the gradient of a term,
    takes the gradient of the loss and 1 / N too. Both take `constants` behind the numbers of the classes.
    """

    terms: Any
    slope: Any
    constants: tuple[float, ...] = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.one_label_each(bottom)
        self.view: Shape = (self.images, count(bottom[0].shape, 1))
        self.classes = class_numbers(self, self.view[1])

    def prepare(self, bottom: Sequence[Blob]) -> None:
        check_labels(self, bottom[1], self.view[1], None)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.is_captured:
            self.prepare(bottom)
        self.terms(*self._viewed(bottom), *self.constants, out=top[0].values)
        scale(top[0].values, 1 / self.whole_images)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        if propagate[0]:
            dx = bottom[0].gradient.reshape(self.view)
            self.slope(*self._viewed(bottom), *self.constants, top[0].gradient, 1 / self.whole_images, out=dx)

    def _viewed(self, bottom: Sequence[Blob]) -> tuple[Any, Any, Any]:
        """Values, labels and the numbers of the classes, to be broadcast to (images, classes)."""
        classes = self.classes.values.reshape(1, -1)
        return bottom[0].values.reshape(self.view), bottom[1].values.reshape(-1, 1), classes


class HingeLossLayer(_ClassLossLayer):
    """Σ max(0, 1 − s x)^p / N over all scores x (N, classes), s = 1 for the label's and −1 for the others; p = 1 for
    norm L1 (default), 2 for L2. One label for each image.
    """

    type = "HingeLoss"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        power = "m * m" if self.parameter.hinge_loss_param.norm == "L2" else "m"
        slope = "2 * m" if power == "m * m" else "1"
        side = "s = where(trunc(t) == c, 1, -1); m = 1 - s * x"
        self.terms = reduction(f"x, t, c: {side}; m = maximum(0, m); {power}")
        self.slope = elementwise(
            f"x, t, c, dloss, factor: {side}; where(m > 0, -factor * dloss * s * {slope}, 0)"
        )


class ContrastiveLossLayer(LossLayer):
    """Σ / (2 N) over pairs of rows of a and b with the distance d: d² where the pair's label is not 0, else
    max(margin − d, 0)², or max(margin − d², 0) with legacy_version. margin is 1; one label for each pair.

    The gradient of max(margin − d, 0)² divides by d + 1e-4, as Caffe's.
    """

    type = "ContrastiveLoss"
    bottoms = (3, 3)
    forced_bottoms = 2

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squares = reduction("a, b: (a - b) * (a - b)")
        self.difference = elementwise("a, b, factor, dloss, sign: sign * dloss * factor * (a - b)")
        # for each pair its loss, and what the gradient by a is in units of a - b
        if self.parameter.contrastive_loss_param.legacy_version:
            apart = "loss = maximum(margin - squares, 0); factor = where(loss > 0, -1, 0)"
        else:
            apart = (
                "d = sqrt(squares); rest = maximum(margin - d, 0); loss = rest * rest; "
                f"factor = -rest / (d + {DISTANCE_EPSILON})"
            )
        self.terms = elementwise(
            f"squares, label, margin, share: {apart}; is_similar = trunc(label) != 0; "
            "share / 2 * where(is_similar, squares, loss), share * where(is_similar, 1, factor)"
        )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.same_size(bottom)
        self.one_label_each(bottom)
        self.view: Shape = (self.images, count(bottom[0].shape, 1))
        self.distances, self.factors = (self.save(name, (self.images, 1)) for name in ("squares", "factors"))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, b = (blob.values.reshape(self.view) for blob in bottom[:2])
        squares, factors = self.distances.values, self.factors.values
        self.squares(a, b, axes=1, keepdims=True, out=squares)
        margin = self.parameter.contrastive_loss_param.margin
        labels = bottom[2].values.reshape(-1, 1)
        self.terms(squares, labels, margin, 1 / self.whole_images, out=(squares, factors))
        reduce(squares, out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.refuse_label_gradient(propagate)
        a, b = (blob.values.reshape(self.view) for blob in bottom[:2])
        for blob, is_wanted, sign in zip(bottom[:2], propagate[:2], (1.0, -1.0), strict=True):
            if is_wanted:
                dx = blob.gradient.reshape(self.view)
                self.difference(a, b, self.factors.values, top[0].gradient, sign, out=dx)


class MultinomialLogisticLossLayer(_ClassLossLayer):
    """−Σ log max(p[label], 1e-20) / N for probabilities p (N, classes), as Softmax makes them, and a label each."""

    type = "MultinomialLogisticLoss"
    constants = (LEAST_PROBABILITY,)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.terms = reduction("p, t, c, least: where(trunc(t) == c, -log(maximum(p, least)), 0)")
        self.slope = elementwise(
            "p, t, c, least, dloss, factor: where(trunc(t) == c, -factor * dloss / maximum(p, least), 0)"
        )
