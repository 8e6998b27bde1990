"""Scratch memory of calls on a GPU: one block for each stream, whose work is done in order anyway."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from jitdnn.devices.gpu import GpuDevice, Memory

#: what graphs refer to, which may outlive the handle and the thread that made them
_pinned: list[Memory] = []
_ROUND = 1 << 16  # so that shapes that differ a little do not each want a new block


class Block:
    """The scratch memory of one stream, for one caller at a time.

    Another call on the stream may use the same bytes once this one is launched, because the device runs them in the
    order in which they are launched. Launches of one call must not be mixed with those of another, hence the lock.
    """

    __slots__ = ("_device", "_is_pinned", "_lock", "_memory", "_stream", "size")

    def __init__(self, device: GpuDevice, stream: Any) -> None:
        self._device, self._stream = device, stream
        self._lock = threading.RLock()
        self._memory: Memory | None = None
        self._is_pinned = False
        self.size = 0

    def __enter__(self) -> int:
        """The address of what `reserve` has asked for; the caller has the lock already."""
        assert self._memory is not None
        return self._memory.pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def reserve(self, size: int) -> Block:
        """Lock the block and see that it has so many bytes, to be used in a `with` statement.

        What a graph being captured refers to stays where it is for good.
        """
        self._lock.acquire()
        try:
            if self.size < size:
                if self._memory is not None and not self._is_pinned:
                    self._memory.free()  # before the larger one is allocated
                self._memory, self.size, self._is_pinned = None, 0, False
                whole = -(-size // _ROUND) * _ROUND
                self._memory = self._device.allocate(whole, self._stream)
                self.size = whole
            if not self._is_pinned and self._device.is_capturing(self._stream):
                assert self._memory is not None
                _pinned.append(self._memory)
                self._is_pinned = True
        except BaseException:
            self._lock.release()
            raise
        return self

    def trim(self) -> None:
        """Free the memory that no graph refers to."""
        with self._lock:
            if not self._is_pinned:
                self._memory, self.size = None, 0


class Scratch:
    """The blocks of a handle, by stream."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._blocks: dict[Any, Block] = {}

    def reserve(self, stream: Any, size: int) -> Block:
        """A `with` block that gives the address of `size` bytes for launches on the stream."""
        block = self._blocks.get(stream)
        if block is None:
            block = self._blocks.setdefault(stream, Block(self._device, stream))
        return block.reserve(size)

    @property
    def bytes(self) -> int:
        """All that is allocated."""
        return sum(block.size for block in tuple(self._blocks.values()))

    def trim(self) -> None:
        """Free the memory that no call of another thread is about to use and no graph refers to."""
        for block in tuple(self._blocks.values()):
            block.trim()
