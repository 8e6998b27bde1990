"""Scratch memory of calls on the processor: the blocks of a handle that nobody uses, as many bytes as it may keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import numpy as np

from jitdnn.errors import DeviceError
from jitdnn.host_memory import host_memory
from jitdnn.retention import Account
from jitdnn.settings import current, format_bytes, override

_ALIGNMENT = 64


class HostBlock:
    """Memory for one caller at a time: `bytes` from `pointer` on, which is a multiple of 64.

    `is_kept`: it is free for others after use; otherwise its memory is freed.
    """

    __slots__ = ("_charge", "bytes", "is_kept", "memory", "pointer")

    def __init__(self, size: int, account: Account, is_kept: bool) -> None:
        self.bytes, self.is_kept = size, is_kept
        try:
            if size > host_memory():
                raise MemoryError
            self.memory = np.empty(size + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise DeviceError(
                f"{format_bytes(size)} ({size} bytes) of workspace are more than the memory that is left has: "
                "choose an algorithm with less by workspace_limit"
            ) from None
        start: int = self.memory.ctypes.data
        self.pointer = start + -start % _ALIGNMENT
        self._charge = account.charge(size) if is_kept else None


class HostScratch(list[HostBlock]):
    """The blocks that are free. Threads may share it: each block is in the hands of one of them.

    `overrides` are the settings of the handle: its `scratch_limit` counts, or that in force.
    """

    def __init__(self, overrides: Mapping[str, object]) -> None:
        super().__init__()
        self._overrides = overrides
        self._account = Account()  # blocks in use and free ones, but for those that are not kept

    @property
    def bytes(self) -> int:
        """What is kept, in use or free."""
        return self._account.bytes

    def take(self, size: int) -> HostBlock:
        """A block of at least so many bytes, for one caller until `give_back`."""
        try:
            # list.pop is atomic, so threads never get the same block
            block = self.pop()
        except IndexError:
            return self._made(size)
        if block.bytes < size:
            del block  # the small block is freed before the larger one is made
            block = self._made(size)
        return block

    def give_back(self, block: HostBlock) -> None:
        """After use."""
        if block.is_kept:
            self.append(block)

    def _made(self, size: int) -> HostBlock:
        limit: int = override(current(), **self._overrides).scratch_limit
        if self._account.bytes + size > limit:
            self.clear()
        return HostBlock(size, self._account, self._account.bytes + size <= limit)


class Workspace:
    """A piece of a handle's scratch memory for the time of a `with` block, which gives its address.

    The address is 64-byte aligned; it is 0 for 0 bytes. The content is whatever the last user left.
    """

    __slots__ = ("_block", "_bytes", "_free")

    def __init__(self, free: HostScratch, bytes: int) -> None:
        self._free = free
        self._bytes = bytes
        self._block: HostBlock | None = None

    def __enter__(self) -> int:
        if self._bytes == 0:
            return 0
        self._block = self._free.take(self._bytes)
        return self._block.pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            self._free.give_back(self._block)
            self._block = None
