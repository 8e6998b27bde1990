"""Operands to measure with: buffers of our own, filled with numbers of ordinary size."""

from __future__ import annotations

import numpy as np

from jitdnn.tensor import DTYPES, TensorDescriptor, numpy_dtype

PATTERN = 1 << 16


def make_operand(descriptor: TensorDescriptor, values: tuple[int, int] | None) -> tuple[np.ndarray, int]:
    """A buffer filled with numbers of ordinary size, and the address of its element at index 0.

    Integers are such as the operand may hold.
    """
    low, high = descriptor.span() if descriptor.size else (0, 0)
    elements, dtype = high - low + 1, numpy_dtype(descriptor.dtype)
    rng = np.random.default_rng(elements)
    if dtype.kind in "iub":
        least, most = values or (0, 1)
        pattern = rng.integers(least, most, min(elements, PATTERN), endpoint=True).astype(dtype)
    else:
        pattern = rng.uniform(-1.0, 1.0, min(elements, PATTERN)).astype(dtype)
    filled = np.resize(pattern, elements)
    return filled, filled.ctypes.data - low * DTYPES[descriptor.dtype]
