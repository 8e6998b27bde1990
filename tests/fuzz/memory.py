"""Memory that shows misuse: rooms between pages that must not be touched, filled with NaN where no element lies."""

from __future__ import annotations

import ctypes
import mmap
from math import prod
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
ROOM = 1 << 20  # bytes of a room
_MARGIN = 512  # bytes around a tensor that are filled and looked at, as far as the room goes
_POISON = 0xFF  # all bits set: a NaN of any real type, -1 or the largest of the integers

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Room:
    """`size` bytes (whole pages) with a forbidden page on either side."""

    def __init__(self, size: int = ROOM) -> None:
        self._map = mmap.mmap(-1, size + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (start, start + PAGE + size):
            if _mprotect(page, PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.start = start + PAGE
        self.bytes = np.frombuffer(self._map, np.uint8, size, PAGE)


class Block:
    """What a `HostBlock` is, scratch memory of `size` bytes at a multiple of 64, between forbidden pages.

    It ends at most 63 bytes before one, and is full of NaN.
    """

    def __init__(self, size: int) -> None:
        whole = -(-size // PAGE) * PAGE
        self.bytes, self.is_kept = size, False
        self._room = Room(whole)
        self._room.bytes[:] = _POISON
        self.pointer = self._room.start + (whole - size) // 64 * 64


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """What the library allocates results with, at the end of a room of its own, full of NaN."""
    count = prod(shape)
    whole = max(PAGE, -(-count * dtype.itemsize // PAGE) * PAGE)
    room = Room(whole)
    room.bytes[:] = _POISON
    return room.bytes[whole - count * dtype.itemsize :].view(dtype).reshape(shape)


class Place:
    """Where a tensor lies in a room: its strides are in bytes, `first` is the offset of the element at index 0."""

    def __init__(
        self, room: Room, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], at: float
    ) -> None:
        """`at`: 0 for the start of the room, 1 for its end, and between."""
        low, high = span(shape, strides, dtype.itemsize)
        free = room.bytes.size - (high - low)
        begin = free if at == 1 else int(free * at) // dtype.itemsize * dtype.itemsize
        self.room, self.shape, self.strides, self.dtype = room, shape, strides, dtype
        self.first = begin - low
        self.window = slice(max(0, begin - _MARGIN), min(room.bytes.size, begin + high - low + _MARGIN))
        room.bytes[self.window] = _POISON
        self.before = room.bytes[self.window].copy()

    @property
    def pointer(self) -> int:
        return self.room.start + self.first

    def view(self, memory: np.ndarray[Any, Any] | None = None, start: int = 0) -> np.ndarray[Any, Any]:
        """The elements, in the room or in a copy of its bytes from `start` on."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        memory = self.room.bytes if memory is None else memory
        return np.ndarray(self.shape, self.dtype, memory.data, self.first - start, self.strides)

    def note(self) -> None:
        """What is there now is what must stay."""
        self.before = self.room.bytes[self.window].copy()

    def is_unchanged(self) -> bool:
        """Whether all is as it was noted, elements too."""
        return bool(np.array_equal(self.room.bytes[self.window], self.before))

    def is_kept_beside(self) -> bool:
        """Whether all that is no element is as it was noted."""
        if 0 in self.shape:
            return self.is_unchanged()
        copy = self.before.copy()
        self.view(copy, self.window.start)[...] = self.view()
        return bool(np.array_equal(self.room.bytes[self.window], copy))


def span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The bytes that a tensor reaches, relative to its element at index 0: first, and one behind the last."""
    if 0 in shape:
        return 0, 0
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + itemsize


class Rooms:
    """Rooms by number, made when they are first needed and used again for the next problem."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []
        self._used = 0

    def begin(self) -> None:
        """All rooms are free again."""
        self._used = 0

    def next(self, size: int) -> Room:
        """A room for so many bytes; one of its own for what does not fit the others."""
        if size > ROOM:
            return Room(-(-size // PAGE) * PAGE)
        if self._used == len(self._rooms):
            self._rooms.append(Room())
        self._used += 1
        return self._rooms[self._used - 1]
