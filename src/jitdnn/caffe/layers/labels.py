"""Labels come as floats in a blob; here they become indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import Layer
from jitdnn.ops.elementwise import elementwise


def checked_labels(
    layer: Layer, labels: Array, classes: int, ignored: int | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the flat labels as indices (0 where ignored), and which of them count.

    Raises InvalidArgument for a label that is neither ignored nor in 0 .. classes - 1.
    """
    with np.errstate(invalid="ignore"):  # NaN becomes an index that no class has
        indices = labels.reshape(-1).astype(np.intp)
    is_counted = np.ones(indices.shape, np.bool_) if ignored is None else indices != ignored
    is_wrong = is_counted & ((indices < 0) | (indices >= classes))
    if is_wrong.any():
        wrong = labels.reshape(-1)[is_wrong][0]
        raise layer.invalid(
            f"label {wrong:g} is outside of 0 .. {classes - 1}, the classes that the scores have"
        )
    return np.where(is_counted, indices, 0), is_counted


def check_labels(layer: Layer, labels: Blob, classes: int, ignored: int | None) -> None:
    """Raise InvalidArgument as `checked_labels` does, for labels that the host has; what a GPU computed is not waited
    for: a loss over such labels is NaN where one is wrong.
    """
    if labels.is_on_host:
        checked_labels(layer, labels.read(), classes, ignored)


def class_numbers(layer: Layer, classes: int) -> Blob:
    """Return the numbers of the classes, (1, classes, 1)."""
    return layer.table("classes", np.arange(classes).reshape(1, classes, 1))


whole_numbers = elementwise("t: trunc(t)", "i64")
"""Makes numbers in a blob those of rows."""
NOBODY = float("nan")
"""The label to ignore where none is: nothing is equal to it."""
