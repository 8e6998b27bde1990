"""Tensors in memory: descriptors, and arrays that are borrowed from anybody without a copy."""

from jitdnn.tensor.array import (
    Array,
    allocator,
    borrow,
    empty,
    numpy_dtype,
    require_writable,
    strided_view,
    view,
)
from jitdnn.tensor.descriptor import (
    DTYPES,
    MAX_DIMENSIONS,
    TensorDescriptor,
    canonical_layout,
    layout_order,
    packed_strides,
)

__all__ = [
    "DTYPES",
    "MAX_DIMENSIONS",
    "Array",
    "TensorDescriptor",
    "allocator",
    "borrow",
    "canonical_layout",
    "empty",
    "layout_order",
    "numpy_dtype",
    "packed_strides",
    "require_writable",
    "strided_view",
    "view",
]
