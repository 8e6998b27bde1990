"""Memory of NVIDIA's GPUs: allocated and freed in the order of a stream, also while calls are captured into graphs."""

from __future__ import annotations

from contextlib import suppress

from jitdnn.devices.cuda_driver import allocated, current, driver, is_capturing, own_streams, relaxed


class DeviceMemory:
    """Memory of one GPU, in the order of the stream where the driver can do that."""

    def __init__(self, index: int, has_pools: bool, size: int, stream: int, where: str) -> None:
        self.pointer, self.size, self.streams = 0, size, frozenset((stream,))
        self._index, self._is_pooled = index, False
        if not size:
            return
        functions = driver()
        if _unfreed:
            _free_later()
        with current(index):
            if has_pools and not is_capturing(stream):
                self.pointer = allocated(functions.cuMemAllocAsync(size, stream), size, where)
                self._is_pooled = True
                return
            with relaxed():
                self.pointer = allocated(functions.cuMemAlloc(size), size, where)

    def free(self) -> None:
        pointer, self.pointer = self.pointer, 0
        if pointer:
            _free(self._index, pointer, self.streams, self._is_pooled)

    def __del__(self) -> None:
        if self.pointer:
            try:
                if self.streams <= own_streams:
                    self.free()
                    return
                # somebody's stream, which may be gone: only to ask about it would be the end of the process
                with current(self._index), relaxed():
                    driver().cuMemFree(self.pointer)
            except Exception:
                return  # when Python ends, names and the driver may be gone


#: memory that nobody uses and that cannot be freed before a capture is over
_unfreed: list[tuple[int, int, frozenset[int], bool]] = []


def _free(index: int, pointer: int, streams: frozenset[int], is_pooled: bool) -> None:
    """Free memory after what its stream was given; where there are several, after all that the GPU was given."""
    functions = driver()
    with current(index):
        if any(map(is_capturing, streams)):
            _unfreed.append((index, pointer, streams, is_pooled))
        elif is_pooled and len(streams) <= 1:
            functions.cuMemFreeAsync(pointer, next(iter(streams), 0))
        else:
            with relaxed():
                functions.cuMemFree(pointer)


def _free_later() -> None:
    for _ in range(len(_unfreed)):
        with suppress(IndexError):  # another thread did it
            _free(*_unfreed.pop(0))
