"""Memory of NVIDIA's GPUs: allocated and freed in the order of a stream, also while calls are captured into graphs.

To allocate and to free take the driver longer than a small kernel runs, so small blocks that are free are kept for the
next allocation on the same stream, whose work comes after what used them before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from jitdnn.devices.cuda_driver import (
    alive_streams,
    allocated,
    check,
    current,
    driver,
    ended_streams,
    is_capturing,
    own_streams,
    relaxed,
)
from jitdnn.retention import Recent

_OUT_OF_MEMORY = 2
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_MOST_KEPT = 4 << 20  # bytes, in blocks of one size on one stream; larger ones are not kept at all
_MOST_SIZES = 256  # sizes and streams of which blocks are kept: a GiB of memory in all
_DEFAULT_STREAMS = (0, 1, 2)  # which are never captured

#: addresses of blocks that nobody uses, by GPU, stream and bytes
_kept: dict[tuple[int, int, int], list[int]] = {}
_only: Recent[int, frozenset[int]] = Recent(2048)


def _block_bytes(size: int) -> int:
    """The bytes of the block for so many: in steps of 512 or of a quarter at most, so that blocks are found again."""
    step = max(512, 1 << size.bit_length() >> 3)
    return -(-size // step) * step


class DeviceMemory:
    """Memory of one GPU, in the order of the stream where the driver can do that."""

    __slots__ = ("__weakref__", "_bytes", "_index", "_is_pooled", "pointer", "size", "streams")

    def __init__(self, index: int, has_pools: bool, size: int, stream: int, model: str) -> None:
        self.pointer, self.size = 0, size
        self.streams = _only.get(stream) or _only.put(stream, frozenset((stream,)))
        self._index, self._is_pooled = index, False
        #: of a block that can be kept; 0 for others
        self._bytes = _block_bytes(size) if size <= _MOST_KEPT and has_pools else 0
        if not size:
            return
        if _unfreed or _held:
            _free_later()
        kept = _kept.get((index, stream, self._bytes))
        if kept and (stream in _DEFAULT_STREAMS or not _captures(index, stream)):
            with suppress(IndexError):  # another thread took the last one
                self.pointer = kept.pop()
                self._is_pooled = True
                return
        with current(index):
            self._is_pooled = has_pools and not is_capturing(stream)
            size, where = self._bytes or size, f"{model} cuda:{index}"
            result = self._allocate(size, stream)
            if self._is_pooled and int(result[0]) == _OUT_OF_MEMORY and trim(index):
                driver().cuCtxSynchronize()  # then what was given back is there
                result = self._allocate(size, stream)
            self.pointer = allocated(result, self.size, where)

    def _allocate(self, size: int, stream: int) -> Any:
        if self._is_pooled:
            return driver().cuMemAllocAsync(size, stream)
        with relaxed():
            return driver().cuMemAlloc(size)

    def free(self) -> None:
        pointer, self.pointer = self.pointer, 0
        if pointer:
            _free(self._index, pointer, self.streams, self._is_pooled)

    def __del__(self) -> None:
        if self.pointer:
            try:
                if self.streams <= own_streams:
                    if not self._keep():
                        self.free()
                    return
                if all(one in own_streams or one in alive_streams for one in self.streams):
                    self.free()
                    return
                # somebody's stream, which may be gone: only to ask about it would be the end of the process
                with current(self._index), relaxed():
                    driver().cuMemFree(self.pointer)
            except Exception:
                return  # when Python ends, names and the driver may be gone

    def _keep(self) -> bool:
        """Leave the block to the next allocation on its stream, if it is small and there are not many."""
        if not self._is_pooled or not self._bytes or len(self.streams) > 1:
            return False
        stream = next(iter(self.streams), 0)
        if stream not in _DEFAULT_STREAMS and _captures(self._index, stream):
            return False
        kept = _kept.get((self._index, stream, self._bytes))
        if kept is None:
            if len(_kept) >= _MOST_SIZES:
                _drop_first()
            kept = _kept.setdefault((self._index, stream, self._bytes), [])
        if (len(kept) + 1) * self._bytes > _MOST_KEPT:
            return False
        kept.append(self.pointer)
        return True


def trim(index: int) -> int:
    """Give the blocks of a GPU that nobody uses back to the driver; the number of blocks."""
    count = 0
    with current(index), relaxed():
        for key, kept in tuple(_kept.items()):
            if key[0] == index and (key[1] in _DEFAULT_STREAMS or not is_capturing(key[1])):
                with suppress(IndexError):  # until it is empty
                    while True:
                        driver().cuMemFreeAsync(kept.pop(), key[1])
                        count += 1
    return count


def _drop_first() -> None:
    """Give the blocks back that are of the size, and on the stream, that came first."""
    with suppress(IndexError, KeyError, StopIteration, RuntimeError):  # another thread does it
        key = next(iter(_kept))
        index, stream, _ = key
        kept = _kept.pop(key)
        while True:
            _free(index, kept.pop(), frozenset((stream,)), True)


def _captures(index: int, stream: int) -> bool:
    with current(index):
        return is_capturing(stream)


#: memory that nobody uses and that cannot be freed before a capture is over
_unfreed: list[tuple[int, int, frozenset[int], bool]] = []


def _free(index: int, pointer: int, streams: frozenset[int], is_pooled: bool) -> None:
    """Free memory after what its streams were given, whose objects are there."""
    functions = driver()
    with current(index), relaxed():
        is_named = streams.isdisjoint(ended_streams)
        if is_named and any(map(is_capturing, streams)):
            _unfreed.append((index, pointer, streams, is_pooled))
        elif is_named and is_pooled:  # cuMemFree would not wait for anything
            first, *others = streams or (0,)
            for other in others:
                (event,) = check(functions.cuEventCreate(_NO_TIMING), "an event")
                functions.cuEventRecord(event, other)
                functions.cuStreamWaitEvent(first, event, 0)
                functions.cuEventDestroy(event)
            functions.cuMemFreeAsync(pointer, first)
        else:
            functions.cuMemFree(pointer)


#: what the work of streams uses that could not be waited for
_held: list[tuple[int, int, tuple[object, ...]]] = []


def release(index: int, stream: int, *held: object) -> None:
    """Let go of memory, also page-locked memory, when a stream is done with it. For finalizers.

    A collection of cycles may begin in the middle of anything, also of somebody's capture, which is lost if this thread
    then waits for a stream that is being captured or for the whole GPU. So these wait for the next allocation.
    """
    with current(index), relaxed():
        if stream in ended_streams or is_capturing(stream):
            _held.append((index, stream, held))
        else:
            driver().cuStreamSynchronize(stream)


def _free_later() -> None:
    for _ in range(len(_unfreed)):
        with suppress(IndexError):  # another thread did it
            _free(*_unfreed.pop(0))
    for _ in range(len(_held)):
        with suppress(IndexError):
            index, stream, held = _held.pop(0)
            if stream not in ended_streams:
                release(index, stream, *held)
            else:
                with current(index):
                    driver().cuCtxSynchronize()
