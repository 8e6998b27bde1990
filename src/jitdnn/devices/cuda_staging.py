"""Copies to an NVIDIA GPU that go on while it computes: from page-locked memory, on a stream of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.devices.cuda_driver import check, current, driver, relaxed
from jitdnn.devices.cuda_graph import Stream
from jitdnn.devices.cuda_kernel import Event
from jitdnn.devices.cuda_memory import DeviceMemory
from jitdnn.tensor.array import address_of


class _PageLocked:
    """Page-locked memory, freed with the last array that shows it."""

    def __init__(self, index: int, size: int) -> None:
        self._index, self._size, self.pointer = index, size, 0
        with current(index):
            (pointer,) = check(driver().cuMemAllocHost(size), f"{size} bytes of page-locked memory")
        self.pointer = int(pointer)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self._size,), "typestr": "|u1", "data": (self.pointer, False)}

    def __del__(self) -> None:
        try:
            with current(self._index), relaxed():  # a collection may begin in the middle of a capture
                driver().cuMemFreeHost(self.pointer)
        except Exception:
            return  # when Python ends, names and the driver may be gone


def page_locked(index: int, size: int) -> np.ndarray[Any, Any]:
    """Page-locked memory of the host, freed with the last array that shows it."""
    return np.asarray(_PageLocked(index, size))


class CopyAhead:
    """Memory of the GPU for `size` bytes, at `pointer`, to which page-locked memory of the host is copied on a stream
    of its own, beside what the GPU computes.
    """

    def __init__(self, index: int, model: str, size: int) -> None:
        self._index = index
        self._stream = Stream(index)
        self._memory = DeviceMemory(index, False, size, self._stream.handle, model)
        # when the host's memory may be written again, and when that of the GPU may be
        self._copied: Event | None = None
        self._taken: Event | None = None
        self._source: Any = None

    @property
    def pointer(self) -> int:
        return self._memory.pointer

    def wait(self) -> None:
        """Wait until what was sent last may be written again."""
        if self._copied is not None:
            with current(self._index):
                self._copied.wait()
            self._source = None

    def send(self, source: np.ndarray[Any, Any], stream: int) -> None:
        """Copy packed page-locked memory, for what `stream` is given after; `taken` says when that has read it."""
        own = self._stream.handle
        with current(self._index):
            if self._taken is not None:
                self._taken.hold(own)
            self._source = source  # freed memory is not copied from
            result = driver().cuMemcpyHtoDAsync(self.pointer, address_of(source), source.nbytes, own)
            check(result, "copying to the GPU")
            self._copied = Event(self._index, own)
            self._copied.hold(stream)

    def taken(self, stream: int) -> None:
        """What `stream` was given so far has read the memory: the next copy may begin when that is done."""
        with current(self._index):
            self._taken = Event(self._index, stream)

    def __del__(self) -> None:
        try:
            with relaxed():
                self.wait()
        except Exception:
            return  # it could not be made, or Python ends


class StagedCopy:
    """Page-locked memory of the host, `bytes`, and as much of the GPU's in between.

    The copy to the GPU runs beside what the GPU computes; the last step, within the GPU's memory, waits for its turn.
    """

    def __init__(self, index: int, model: str, size: int) -> None:
        self._index, self._size = index, size
        self._between = CopyAhead(index, model, size)
        self.bytes = page_locked(index, size)

    def wait(self) -> None:
        """Wait until `bytes` may be written: the last copy has left them."""
        self._between.wait()

    def send(self, target: int, stream: int) -> None:
        """Copy `bytes` to an address of the GPU, for what `stream` is given after."""
        self._between.send(self.bytes, stream)
        with current(self._index):
            result = driver().cuMemcpyDtoDAsync(target, self._between.pointer, self._size, stream)
            check(result, "copying on the GPU")
        self._between.taken(stream)
