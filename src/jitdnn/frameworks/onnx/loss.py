"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.graph import primitives as jd

_NO_CLASS = -(2**31)  # a target that there is not


def negative_log_likelihood(
    x: Array,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    site: Site,
) -> Any:
    """Minus the element of each place's class, times the weight of the class; a mean divides by the weights."""
    classes = x.shape[1]
    is_counted = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    found = np.where(is_counted, target, 0)
    if found.size and not (found.min() >= 0 and found.max() < classes):
        raise InvalidArgument(
            f"{site.operator}: targets from {found.min()} to {found.max()} are not all among {classes} classes"
        )
    chosen = np.take_along_axis(x, found[:, None].astype(np.int64), 1)[:, 0]
    weights = is_counted.astype(x.dtype) if weight is None else np.where(is_counted, weight[found], 0)
    weights = weights.astype(x.dtype, copy=False)
    loss = pointwise(lambda value, w: jd.where(w != 0.0, -w * value, 0.0), chosen, weights)
    if reduction == "none":
        return loss
    total = jd.reduce(loss, "add").reshape(())
    if reduction == "sum":
        return total
    if reduction != "mean":
        raise site.refuse(f"reduction {reduction!r} is not covered")
    return pointwise(lambda a, b: a / b, total, jd.reduce(weights, "add").reshape(()))


def softmax_cross_entropy(
    x: Array,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    site: Site,
) -> Any:
    """In one pass over x where nobody reads the logarithms of the probabilities."""
    if not site.wants(1) and reduction in {"none", "sum", "mean"}:
        ignored = _NO_CLASS if ignore_index is None else ignore_index
        loss = jd.cross_entropy(x, target, weight, ignored, reduction=reduction)
        return (loss if reduction == "none" else loss.reshape(())), None
    logarithms = jd.softmax(x, 1, "log")
    loss = negative_log_likelihood(
        logarithms, target, weight, ignore_index=ignore_index, reduction=reduction, site=site
    )
    return loss, logarithms


OPERATORS = table(
    NegativeLogLikelihoodLoss=negative_log_likelihood, SoftmaxCrossEntropyLoss=softmax_cross_entropy
)
