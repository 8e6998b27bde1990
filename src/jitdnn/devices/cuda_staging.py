"""Copies to an NVIDIA GPU that go on while it computes: from page-locked memory, on a stream of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.devices.cuda_driver import check, current, driver
from jitdnn.devices.cuda_graph import Stream
from jitdnn.devices.cuda_kernel import Event
from jitdnn.devices.cuda_memory import DeviceMemory


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
            with current(self._index):
                driver().cuMemFreeHost(self.pointer)
        except Exception:
            return  # when Python ends, names and the driver may be gone


def page_locked(index: int, size: int) -> np.ndarray[Any, Any]:
    """Page-locked memory of the host, freed with the last array that shows it."""
    return np.asarray(_PageLocked(index, size))


class StagedCopy:
    """Page-locked memory of the host, `bytes`, and as much of the GPU's in between.

    The copy to the GPU runs beside what the GPU computes; the last step, within the GPU's memory, waits for its turn.
    """

    def __init__(self, index: int, model: str, size: int) -> None:
        self._index, self._size = index, size
        self._stream = Stream(index)
        self._between = DeviceMemory(index, False, size, self._stream.handle, model)
        self._host = _PageLocked(index, size)
        self.bytes: np.ndarray[Any, Any] = np.asarray(self._host)
        # when the host's memory may be written again, and when that in between may be
        self._copied: Event | None = None
        self._taken: Event | None = None

    def wait(self) -> None:
        """Wait until `bytes` may be written: the last copy has left them."""
        if self._copied is not None:
            with current(self._index):
                self._copied.wait()

    def send(self, target: int, stream: int) -> None:
        """Copy `bytes` to an address of the GPU, for what `stream` is given after."""
        own = self._stream.handle
        with current(self._index):
            functions = driver()
            if self._taken is not None:
                self._taken.hold(own)
            result = functions.cuMemcpyHtoDAsync(self._between.pointer, self._host.pointer, self._size, own)
            check(result, "copying to the GPU")
            self._copied = Event(self._index, own)
            self._copied.hold(stream)
            result = functions.cuMemcpyDtoDAsync(target, self._between.pointer, self._size, stream)
            check(result, "copying on the GPU")
            self._taken = Event(self._index, stream)

    def __del__(self) -> None:
        try:
            self.wait()
        except Exception:
            return  # it could not be made, or Python ends
