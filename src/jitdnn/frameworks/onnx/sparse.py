"""Sparse tensors of a model, as the dense arrays that kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.frameworks.onnx.outside import array_of


def dense(tensor: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    """All elements of a sparse tensor, those that it does not name zero; not to be written to.

    Indices are positions in row-major order, or one row of coordinates for each value. Raises InvalidArgument for
    indices that do not fit the values or lie outside of the shape, NotSupported for text.
    """
    name, shape = tensor.values.name, tuple(tensor.dims)
    if tensor.values.data_type == onnx.TensorProto.STRING:
        raise NotSupported(f"sparse tensor {name!r} is of text: only numbers have a zero")
    values, indices = array_of(tensor.values), array_of(tensor.indices)
    fits = values.ndim == 1 and indices.dtype == np.int64 and (
        indices.shape in (values.shape, (*values.shape, len(shape)))
    )  # fmt: skip
    if not fits:
        raise InvalidArgument(
            f"sparse tensor {name!r} of shape {list(shape)} has values of shape {list(values.shape)} and indices "
            f"{indices.dtype} of shape {list(indices.shape)}: int64 of [values] or [values, {len(shape)}] is needed"
        )
    found = np.zeros(shape, values.dtype)
    extents = np.array(shape if indices.ndim == 2 else (found.size,), np.int64)
    if (indices < 0).any() or ((indices if indices.ndim == 2 else indices[:, None]) >= extents).any():
        raise InvalidArgument(
            f"sparse tensor {name!r} of shape {list(shape)} has indices outside of its shape"
        )
    places = (
        np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 and shape else indices.reshape(-1)
    )
    if (np.diff(places) <= 0).any():
        raise InvalidArgument(f"sparse tensor {name!r} has indices that do not ascend")
    found.reshape(-1)[places] = values
    found.setflags(write=False)
    return found
