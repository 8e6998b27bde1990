"""NumPy views of raw memory, for the algorithms that run on the host in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.tensor import DTYPES, TensorDescriptor, numpy_dtype

_TYPES = {name: numpy_dtype(name).str for name in DTYPES}


class _Memory:
    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def view(pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    """Make an array of `shape` and `strides` (in elements, any sign); its element at index 0 is at `pointer`.

    The array does not own its memory: it must not outlive the call it was made for.
    """
    if 0 in shape:
        return np.empty(shape, _TYPES[dtype])
    itemsize = DTYPES[dtype]
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "strides": tuple(stride * itemsize for stride in strides),
        "typestr": _TYPES[dtype],
        "data": (pointer, False),
    }
    return np.asarray(_Memory(interface))


def descriptor_view(pointer: int, descriptor: TensorDescriptor) -> np.ndarray[Any, Any]:
    """Make an array of a descriptor; `pointer` is the address of its element at index 0."""
    return view(pointer, descriptor.shape, descriptor.strides, descriptor.dtype)
