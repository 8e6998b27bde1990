"""Memory of NVIDIA's GPUs: allocated and freed in the order of a stream, also while calls are captured into graphs."""

from __future__ import annotations

from contextlib import suppress

from jitdnn.devices.cuda_driver import allocated, current, driver, is_capturing, relaxed


class DeviceMemory:
    """Memory of one GPU, in the order of the stream where the driver can do that."""

    def __init__(self, index: int, has_pools: bool, size: int, stream: int, where: str) -> None:
        self.pointer, self.size, self.streams = 0, size, {stream}
        self._index, self._is_pooled = index, False
        if not size:
            return
        functions = driver()
        _free_later()
        with current(index), relaxed():
            if has_pools and not is_capturing(stream):
                self.pointer = allocated(functions.cuMemAllocAsync(size, stream), size, where)
                self._is_pooled = True
            else:
                self.pointer = allocated(functions.cuMemAlloc(size), size, where)

    def __del__(self) -> None:
        if self.pointer:
            with suppress(Exception):  # the driver may be gone already when Python ends
                _free(self._index, self.pointer, self.streams if self._is_pooled else set())


#: memory that nobody uses and that cannot be freed before a capture is over
_unfreed: list[tuple[int, int, set[int]]] = []


def _free(index: int, pointer: int, streams: set[int]) -> None:
    """Free memory after what the streams were given; without one, or with several, after all that the GPU was given."""
    functions = driver()
    with current(index), relaxed():
        if any(map(is_capturing, streams)):
            _unfreed.append((index, pointer, streams))
        elif len(streams) == 1:
            functions.cuMemFreeAsync(pointer, next(iter(streams)))
        else:
            functions.cuMemFree(pointer)


def _free_later() -> None:
    for _ in range(len(_unfreed)):
        with suppress(IndexError):  # another thread did it
            _free(*_unfreed.pop(0))
