"""Labels come as floats in a blob; here they become indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.blob import Array
from jitdnn.caffe.layers.base import Layer


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
