"""Memory between forbidden pages, flush against one of them: what is touched beside it ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
# memory that exists once it is touched, so that strides may span many gigabytes
SPARSE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which the module mmap does not name
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

AnyArray = np.ndarray[Any, Any]


class Room:
    """`size` bytes that end where a forbidden page begins, or begin where one ends."""

    def __init__(self, size: int, at_end: bool) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE, flags=SPARSE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (0, pages + 1):
            if _mprotect(start + page * PAGE, PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.pointer = start + PAGE + (pages * PAGE - size if at_end else 0)


class GuardedArray:
    """A copy of `values` with the given strides, in elements, flush against a forbidden page.

    What lies between its elements is NaN, or an integer that no sensible kernel reads or writes. `values` is the view
    of the elements; it lives as long as this object does.
    """

    def __init__(self, values: AnyArray, strides: Sequence[int], at_end: bool) -> None:
        ends = [(extent - 1) * step for extent, step in zip(values.shape, strides, strict=True)]
        low, high = sum(min(0, end) for end in ends), sum(max(0, end) for end in ends)
        dtype, count = values.dtype, high - low + 1
        self._room = Room(count * dtype.itemsize, at_end)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(self._room.pointer)
        self._all: AnyArray = np.ndarray((count,), dtype, memory)
        self._all[...] = nonsense(dtype)
        steps = [step * dtype.itemsize for step in strides]
        self.values: AnyArray = np.ndarray(values.shape, dtype, self._all, -low * dtype.itemsize, steps)
        self.values[...] = values
        is_gap = np.ones(count, bool)
        np.ndarray(values.shape, bool, is_gap, -low, strides)[...] = False
        self._gaps = is_gap
        self._before = self._bytes()

    def _bytes(self) -> AnyArray:
        return self._all.view(np.uint8).reshape(self._all.size, -1).copy()

    def is_unchanged(self, gaps_only: bool = False) -> bool:
        """Whether every byte (of the gaps) is still what it was at the beginning."""
        same = (self._bytes() == self._before).all(axis=1)
        return bool(same[self._gaps].all() if gaps_only else same.all())


def nonsense(dtype: np.dtype[Any]) -> Any:
    """NaN, or an integer that is none of a sensible kernel's."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max - 3 if dtype.kind in "iu" else np.nan
