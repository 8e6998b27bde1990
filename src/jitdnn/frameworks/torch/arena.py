"""Memory of large results on a processor, which stays with the process: steps of a training need the same again.

PyTorch's allocator there is the C library's. glibc gives blocks of more than 32 MiB back to the system whenever they
are freed, and the end of its heap while a backward pass frees its tensors; what the next step writes there is cleared
page by page first, which takes longer than many a layer. Results of ours of `SMALLEST` bytes or more lie in one range
of addresses instead, whose parts are used again and again: the best fit, joined with its neighbours when it is free.
Its pages are of 2 MiB, where the system gives these to who asks. Those stay that steps use: what lay free while four
times all that stays was handed out goes back to the system, and all that is free when a converted model dies. Where
every converted model has a limit on its memory, the range is as long as these together.

The first calls of a model leave their results in the C library's heap. As the range takes these in, what is free in the
heap goes back to the system: or a process would keep its largest results twice.

A part belongs to the storage of a tensor: PyTorch lets go of the view of it that the storage was made of when the last
tensor is gone, in whatever thread. Such storages cannot be resized, as those of NumPy's arrays.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet, finalize, ref

import torch
from torch import Tensor, nn

from jitdnn.frameworks.torch.registry import is_eager
from jitdnn.host_memory import host_memory, return_free_memory
from jitdnn.locks import lock

SMALLEST = 1 << 20
"""Bytes from which on results lie here: smaller ones the heap has its pages for."""
MOST_OF_HOST = 2
"""The range is one part in so many of the memory of the machine; what does not fit into it is PyTorch's."""
_NO_RESERVE = (
    0x4000  # MAP_NORESERVE of Linux: addresses alone, which count as memory when they are written to
)
STALE = 4
"""A page is used again before so many times the bytes that stay were handed out, or goes back to the system. A step
hands out twice to three times what it has at once: results, and gradients in the places of results."""
_HUGE = 2 << 20  # bytes of a large page: what is used is told by these
_GONE, _IDLE, _USED = range(
    3
)  # pages: the system has them; no part of them was taken since the last look; one was
_LATER = bytes([_GONE, _IDLE, _IDLE]).ljust(256, b"\0")
_GROWTH = 32 << 20  # bytes by which a range is longer when the heap is trimmed again
_ALIGNMENT = 64
#: behind each part: tensors of one size would all begin at the same place of a page, and loads from one wait for
#: stores to another whose addresses have the last 12 bits in common
_APART = 9 * _ALIGNMENT


class _Lease(ref[memoryview]):
    """A part that is in use, for as long as PyTorch holds the view of it."""

    __slots__ = ("begin", "size")
    begin: int
    size: int


class Arena:
    """A range of addresses of `capacity` bytes, and which parts of it are free. For all threads.

    Raises OSError where the system does not grant it.
    """

    def __init__(self, capacity: int) -> None:
        self._map = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._whole = memoryview(self._map)
        self.capacity, self._end = capacity, 0
        self.limit = capacity  # where the last part must end
        self._pages = bytearray(-(-capacity // _HUGE))
        self._until_look = 0  # bytes to hand out
        self._until_trim = 0  # the end to grow beyond
        self._is_left = False  # whether what becomes free goes back at once, until the next part is taken
        self._is_busy = False  # whether what is free is being changed: finalizers run in the middle of that
        self._free: list[tuple[int, int]] = []  # (begin, size), by where they begin
        self._leases: dict[int, _Lease] = {}  # by where they begin
        self._ended: deque[_Lease] = deque()  # by whatever thread, perhaps within `take`: no lock
        self._lock = lock()

    @property
    def extent(self) -> int:
        """Bytes from the begin of the range to the end of the last part that was ever used."""
        return self._end

    @property
    def kept(self) -> int:
        """Bytes of the pages that the system may have given memory for."""
        return (len(self._pages) - self._pages.count(_GONE)) * _HUGE

    @property
    def used(self) -> int:
        """Bytes of parts that are in use."""
        with self._lock:
            self._collect()
            return sum(lease.size for lease in self._leases.values())

    def take(self, size: int) -> memoryview | None:
        """A part of so many bytes, which is in use until nobody holds the view any more; None if there is no place."""
        whole = size + -size % _ALIGNMENT + _APART
        with self._lock:
            self._is_busy = True
            try:
                self._collect()
                begin = self._place(whole)
                if begin is None:
                    return None
                view = self._whole[begin : begin + size]
                lease = _Lease(view, self._end_of)
                lease.begin, lease.size = begin, whole
                self._leases[begin] = lease
                first, last = begin // _HUGE, -(-(begin + whole) // _HUGE)
                self._pages[first:last] = bytes([_USED]) * (last - first)
                self._is_left = False
                self._until_look -= whole
                if self._until_look < 0:
                    self._look()
            finally:
                self._is_busy = False
        return view

    def give_back(self) -> None:
        """Give the memory of parts that are not in use back to the system; they are there again when they are used."""
        with self._lock:
            self._is_busy = True
            try:
                self._collect()
                for begin, size in self._free:
                    self._release(begin, begin + size)
            finally:
                self._is_busy = False

    def leave(self) -> None:
        """Give back what is free, and what becomes free before the next part is taken. For finalizers: it waits for
        nobody."""
        self._is_left = True
        self._give_back_if_left()

    def _end_of(self, lease: _Lease) -> None:
        self._ended.append(lease)
        if self._is_left:
            self._give_back_if_left()

    def _give_back_if_left(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if not self._is_busy:
                    self.give_back()
            finally:
                self._lock.release()

    def _look(self) -> None:
        """Give pages back that no part is in, or was since the last look."""
        for begin, size in self._free:
            at, end = -(-begin // _HUGE), (begin + size) // _HUGE
            while at < end and (first := self._pages.find(_IDLE, at, end)) >= 0:
                at = first
                while at < end and self._pages[at] == _IDLE:
                    at += 1
                self._release(first * _HUGE, at * _HUGE)
        self._pages = self._pages.translate(_LATER)
        self._until_look = STALE * self.kept

    def _release(self, begin: int, end: int) -> None:
        if end == self._end:  # a large page reaches beyond it, where nothing is
            end = min(end + _HUGE, self.capacity)
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        first, last = -(-begin // _HUGE), end // _HUGE
        if last > first:
            self._pages[first:last] = bytes(last - first)

    def _place(self, size: int) -> int | None:
        """Where a part begins that is in use from now on."""
        fits = [(have, begin) for begin, have in self._free if have >= size and begin + size <= self.limit]
        if fits:
            have, begin = min(fits)
            at = bisect_left(self._free, (begin, have))
            if have == size:
                del self._free[at]
            else:
                self._free[at] = begin + size, have - size
            return begin
        begin = self._end
        if self._free and sum(self._free[-1]) == begin:  # the last free part grows
            begin = self._free[-1][0]
        if begin + size > self.limit:
            return None
        if begin != self._end:
            self._free.pop()
        self._end = begin + size
        if self._end > self._until_trim:
            self._until_trim = self._end + _GROWTH
            return_free_memory()
        return begin

    def _collect(self) -> None:
        """What is no longer in use is free, together with what is free beside it."""
        while self._ended:
            lease = self._ended.popleft()
            del self._leases[lease.begin]
            begin, size = lease.begin, lease.size
            at = bisect_left(self._free, (begin, 0))
            if at < len(self._free) and self._free[at][0] == begin + size:
                size += self._free.pop(at)[1]
            if at and sum(self._free[at - 1]) == begin:
                begin, before = self._free.pop(at - 1)
                size += before
            insort(self._free, (begin, size))


_models: WeakSet[nn.Module] = WeakSet()  # that are converted
_limits: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # on steps of models
_arena: Arena | None = None
_is_asked = False
_lock = lock()


def _are_addresses_free() -> bool:
    """Whether addresses that nothing is written to cost a process nothing: no limit on them (`ulimit -v`), and a system
    that does not count them as memory."""
    import resource

    try:
        counts = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        counts = False
    return not counts and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def _own() -> Arena | None:
    """The process's one; None where the system has none to give."""
    global _arena, _is_asked
    if not _is_asked:
        with _lock:
            if not _is_asked and sys.platform == "linux" and _are_addresses_free():
                try:
                    _arena = Arena(
                        min(host_memory() // MOST_OF_HOST, 1 << 44) // mmap.PAGESIZE * mmap.PAGESIZE
                    )
                except (OSError, ValueError, OverflowError):
                    _arena = None
                _set_limit()
            _is_asked = True
    return _arena


def give_back() -> None:
    """Give memory that no result is in back to the system."""
    if _arena is not None:
        _arena.give_back()


def enter(model: nn.Module) -> None:
    """A model is converted: its results lie here."""
    if model not in _models:
        _models.add(model)
        finalize(model, _died).atexit = False
    _set_limit()


def leave(model: nn.Module) -> None:
    """A model is converted no more: memory that no result is in goes back to the system."""
    _models.discard(model)
    _set_limit()
    give_back()


def bound(model: nn.Module, limit: int | None) -> None:
    """A model's steps have a limit in bytes, or none any more; what was kept up to here goes back to the system."""
    if limit is None:
        _limits.pop(model, None)
    else:
        _limits[model] = limit
    _set_limit()
    give_back()


def _died() -> None:
    """Of a model whose parameters, and gradients with them, are about to go."""
    _set_limit()
    if _arena is not None:
        _arena.leave()


def _set_limit() -> None:
    if _arena is not None:
        limits = [_limits.get(model) for model in _models]
        known = [limit for limit in limits if limit is not None]
        is_limited = bool(limits) and len(known) == len(limits)
        _arena.limit = min(sum(known), _arena.capacity) if is_limited else _arena.capacity


def in_arena(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, size: int) -> Tensor | None:
    """A tensor of a dense form and so many bytes, without values; None where PyTorch must allocate it: where there is
    no place, and where modes or transforms would see how it is made."""
    arena = _own()
    if arena is None or torch._C._len_torch_function_stack() or not is_eager():
        return None
    view = arena.take(size)
    if view is None:
        return None
    # no view of another tensor, which autograd would treat as one; nor by a storage in Python, which counts as one that
    # holds it: autograd then adds gradients up in fresh memory
    made = torch.empty((0,), dtype=dtype)
    return made.set_(torch.frombuffer(view, dtype=dtype), 0, shape, strides)
