"""Tensors in memory: descriptors, and arrays that are borrowed from anybody without a copy."""

from jitdnn.tensor.array import allocator, borrow, empty, maker_of, require_writable
from jitdnn.tensor.borrowed import Array, DeviceId, strided_view, view
from jitdnn.tensor.descriptor import (
    MAX_DIMENSIONS,
    MOST_ELEMENTS,
    TensorDescriptor,
    canonical_layout,
    layout_order,
    packed_strides,
)
from jitdnn.tensor.device_array import DeviceArray
from jitdnn.tensor.dtypes import (
    COMMON_DTYPES,
    DTYPES,
    FLOAT8_DTYPES,
    FLOAT8_LARGEST,
    REAL_DTYPES,
    compute_dtype,
    dtype_name,
    dtype_of,
    numpy_dtype,
)

__all__ = [
    "COMMON_DTYPES",
    "DTYPES",
    "FLOAT8_DTYPES",
    "FLOAT8_LARGEST",
    "MAX_DIMENSIONS",
    "MOST_ELEMENTS",
    "REAL_DTYPES",
    "Array",
    "DeviceArray",
    "DeviceId",
    "TensorDescriptor",
    "allocator",
    "borrow",
    "canonical_layout",
    "compute_dtype",
    "dtype_name",
    "dtype_of",
    "empty",
    "layout_order",
    "maker_of",
    "numpy_dtype",
    "packed_strides",
    "require_writable",
    "strided_view",
    "view",
]
