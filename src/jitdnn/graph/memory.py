"""Addresses for arrays that are never there: while launches are recorded, each array lies where no other does.

What is recorded is moved to real memory afterwards (`arena.py`, `plan.py`), so that nobody needs to know beforehand
how long a result is needed. The pages are reserved and never touched.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.errors import DeviceError, InvalidShape
from jitdnn.settings import check_bytes, format_bytes
from jitdnn.tensor import Array, TensorDescriptor, dtype_name, packed_strides
from jitdnn.tensor.borrowed import view

_ALIGNMENT = 64
_GAP = 4096  # between two arrays
_RESERVED = (1 << 42, 1 << 38, 1 << 34, 1 << 31)  # as much address space as is granted


@dataclass(frozen=True)
class Buffer:
    """Memory of one array: `kind` is arena, input or output, and `number` counts those of one kind."""

    kind: str
    number: int
    address: int
    bytes: int


class Reserved:
    """Address space, and arrays in it."""

    def __init__(self) -> None:
        self._map = _reserve()
        self._whole = np.frombuffer(self._map, np.uint8)
        self._next = int(self._whole.ctypes.data)
        self._end = self._next + len(self._map)
        self.buffers: list[Buffer] = []
        self._counts = {"arena": 0, "input": 0, "output": 0}

    def take(self, kind: str, bytes: int) -> Buffer:
        """Memory that no other array has. Raises InvalidShape for more than the setting `load_limit`."""
        check_bytes("an array of this graph", bytes, InvalidShape)
        address = self._next + -self._next % _ALIGNMENT
        self._next = address + bytes + _GAP
        if self._next > self._end:
            raise DeviceError(
                f"the arrays of this graph take more than {format_bytes(len(self._map))} together, all that this "
                "system grants of addresses"
            )
        buffer = Buffer(kind, self._counts[kind], address, bytes)
        self._counts[kind] += 1
        self.buffers.append(buffer)
        return buffer

    def array(self, buffer: Buffer, descriptor: TensorDescriptor) -> np.ndarray[Any, Any]:
        """An array at the start of a buffer."""
        return view(buffer.address, descriptor, self._whole)


def _reserve() -> mmap.mmap:
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    quiet = getattr(mmap, "MAP_NORESERVE", 0)
    for size in _RESERVED:
        try:
            if flags:
                return mmap.mmap(-1, size, flags=flags | quiet)
            return mmap.mmap(-1, size)
        except (OSError, ValueError):
            continue
    raise DeviceError("the system grants no addresses: raise the limit of virtual memory (ulimit -v)")


def descriptor_of(
    shape: tuple[int, ...], dtype: Any, order: tuple[int, ...] | None = None
) -> TensorDescriptor:
    """A dense array with its axes in this order in memory, outermost first."""
    name = dtype_name(np.dtype(dtype))
    assert name is not None
    return TensorDescriptor(shape, packed_strides(shape, order), name)


def as_array(held: np.ndarray[Any, Any], descriptor: TensorDescriptor) -> Array:
    """What the call layer knows an array by."""
    return Array(int(held.ctypes.data), descriptor, held, "numpy")
