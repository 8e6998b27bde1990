"""Operands to measure with: buffers of our own, filled with numbers of ordinary size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jitdnn.tensor import DTYPES, TensorDescriptor, numpy_dtype

PATTERN = 1 << 16


class Extent(NamedTuple):
    """The memory of an operand: its elements, and which of them is the one at index 0."""

    elements: int
    origin: int


def extent(descriptor: TensorDescriptor) -> Extent:
    """How much memory a tensor reaches over."""
    low, high = descriptor.span() if descriptor.size else (0, 0)
    return Extent(high - low + 1, -low)


def make_pattern(descriptor: TensorDescriptor, values: tuple[int, int] | None) -> np.ndarray:
    """Numbers of ordinary size to fill an operand with, again and again. Integers are such as it may hold."""
    elements, dtype = extent(descriptor).elements, numpy_dtype(descriptor.dtype)
    rng = np.random.default_rng(elements)
    if dtype.kind in "iub":
        least, most = values or (0, 1)
        return rng.integers(least, most, min(elements, PATTERN), endpoint=True).astype(dtype)
    return rng.uniform(-1.0, 1.0, min(elements, PATTERN)).astype(dtype)


def make_operand(descriptor: TensorDescriptor, values: tuple[int, int] | None) -> tuple[np.ndarray, int]:
    """A buffer filled with a pattern, and the address of its element at index 0."""
    elements, origin = extent(descriptor)
    filled = np.resize(make_pattern(descriptor, values), elements)
    return filled, filled.ctypes.data + origin * DTYPES[descriptor.dtype]
