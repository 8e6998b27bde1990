"""Scratch memory of calls on a GPU: one block for each stream, whose work is done in order anyway."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from jitdnn.devices.gpu import GpuDevice, Memory
from jitdnn.locks import lock
from jitdnn.settings import current, override

#: what graphs refer to, which may outlive the handle and the thread that made them
_pinned: list[Memory] = []
_MOST_STREAMS = 64  # of which something is noted though they have no memory
_ROUND = 1 << 16  # so that shapes that differ a little do not each want a new block


class Block:
    """The scratch memory of one stream, for one caller at a time.

    Another call on the stream may use the same bytes once this one is launched, because the device runs them in the
    order in which they are launched. Launches of one call must not be mixed with those of another, hence the lock.
    """

    __slots__ = ("_device", "_is_pinned", "_is_used", "_lock", "_memory", "_stream", "is_kept", "size")

    def __init__(self, device: GpuDevice, stream: Any) -> None:
        self._device, self._stream = device, stream
        self._lock = lock()
        self._is_used = False
        self._memory: Memory | None = None
        self._is_pinned = False
        self.size = 0
        #: whether the memory stays here between calls
        self.is_kept = True

    def __enter__(self) -> int:
        """The address of what `reserve` has asked for; the caller has the lock already."""
        assert self._memory is not None
        return self._memory.pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_used = False
        if not self.is_kept and not self._is_pinned and self._memory is not None:
            # in the order of the stream, which is there: what was just given to it may not run yet
            self._memory.free()
            self._memory, self.size = None, 0
        self._lock.release()

    def reserve(self, size: int) -> Block:
        """Lock the block and see that it has so many bytes, to be used in a `with` statement.

        A signal handler that runs in the middle of a call gets another block, of its own. What a graph being captured
        refers to stays where it is for good.
        """
        self._lock.acquire()
        if self._is_used:
            self._lock.release()
            return Block(self._device, self._stream).reserve(size)
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
            self._is_used = True
        except BaseException:
            self._lock.release()
            raise
        return self

    def trim(self) -> None:
        """Free the memory that no graph refers to."""
        with self._lock:
            self._let_go()

    def trim_unused(self) -> None:
        """The same, unless a call has the memory right now."""
        if self._lock.acquire(blocking=False):
            self._let_go()
            self._lock.release()

    def _let_go(self) -> None:
        # not what a call of this very thread has, which a signal handler interrupts
        if not self._is_pinned and not self._is_used:
            self._memory, self.size = None, 0


class Scratch:
    """The blocks of a handle, by stream.

    `overrides` are the settings of the handle: its `scratch_limit` counts, or that in force.
    """

    def __init__(self, device: GpuDevice, overrides: Mapping[str, object] | None = None) -> None:
        self._device = device
        self._overrides = overrides or {}
        self._blocks: dict[Any, Block] = {}

    def reserve(self, stream: Any, size: int) -> Block:
        """A `with` block that gives the address of `size` bytes for launches on the stream."""
        block = self._blocks.get(stream)
        if block is None:
            block = self._blocks.setdefault(stream, Block(self._device, stream))
        if block.size < size:
            self._make_room(block, size)
        return block.reserve(size)

    def _make_room(self, block: Block, size: int) -> None:
        """Free what other streams left, first the one that came first, before a block grows beyond the limit."""
        limit: int = override(current(), **self._overrides).scratch_limit
        for other in tuple(self._blocks.values()):
            if self.bytes - block.size + size <= limit:
                break
            if other is not block:
                other.trim_unused()
        block.is_kept = self.bytes - block.size + size <= limit
        if len(self._blocks) > _MOST_STREAMS:
            for stream, other in tuple(self._blocks.items()):
                if other is not block and not other.size:
                    self._blocks.pop(stream, None)

    @property
    def bytes(self) -> int:
        """All that is allocated."""
        return sum(block.size for block in tuple(self._blocks.values()))

    def trim(self) -> None:
        """Free the memory that no call of another thread is about to use and no graph refers to."""
        for block in tuple(self._blocks.values()):
            block.trim()
