"""Constants whose memory goes back to the system once kernels read what was prepared of them.

A plan reads a filter as it was packed or transformed; of the original it needs nothing any more, until a plan for
another kind of inputs is made. So whoever makes a constant says how it is made again (`add`), plans say what they read
(`read`), and while no plan is being made the pages of all others are given up. Their arrays keep their addresses, by
which what was prepared of them is found, and have their elements again as long as a plan is made (`making`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jitdnn.graph.ir import AnyArray
from jitdnn.host_memory import return_free_memory
from jitdnn.locks import lock

LEAST_BYTES = 1 << 20
"""What giving memory back must save at least, all arrays together: below it each stays."""
_LEAST_OF_ARRAY = 64 << 10
_MADV_DONTNEED = 4  # on Linux: private pages are gone at once, and are zeros when they are read again


@dataclasses.dataclass
class _Group:
    """Arrays that are made together, by `make`, and which of them have given up their pages."""

    arrays: list[AnyArray]
    make: Callable[[], Sequence[AnyArray]]
    is_sure: bool  # `make` gives arrays of their own, with the same elements
    empty: set[int] = dataclasses.field(default_factory=set)

    def is_made_again(self) -> bool:
        """Whether `make` does what it is to do: what is kept elsewhere, or drawn anew, is not."""
        if not self.is_sure:
            made = self.make()
            self.is_sure = all(
                not np.may_share_memory(one, other) and _bytes_of(one, other) == _bytes_of(other, other)
                for one, other in zip(made, self.arrays, strict=True)
            )
        return self.is_sure


class Originals:
    """The constants of a model. Threads may share it."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._starts: list[int] = []  # of all arrays, in order, and where they end
        self._ends: dict[int, int] = {}
        self._read: set[int] = set()  # where arrays begin that plans read
        self._making = 0
        self._all_stay = _give_up is None
        self._lock = lock()

    def add(
        self, arrays: Iterable[AnyArray], make: Callable[[], Sequence[AnyArray]], is_sure: bool = False
    ) -> None:
        """Say that `make` gives arrays with the elements of these, in their order. What it reads itself was added
        before, or stays. `is_sure`: else it is tried once before it is relied on."""
        if self._all_stay:
            return
        with self._lock:
            fresh: dict[int, AnyArray] = {}
            for n, array in enumerate(arrays):
                if self._is_new(array):
                    fresh[n] = array
                    start = _address(array)
                    self._starts.insert(bisect_right(self._starts, start), start)
                    self._ends[start] = start + array.nbytes
            if fresh:
                self._groups.append(
                    _Group(
                        list(fresh.values()), lambda: [made[n] for made in (make(),) for n in fresh], is_sure
                    )
                )

    def _is_new(self, array: AnyArray) -> bool:
        """Whether an array is large enough, lies densely, and its memory is not known yet."""
        if array.nbytes < _LEAST_OF_ARRAY or not (array.flags.c_contiguous or array.flags.f_contiguous):
            return False
        start = _address(array)
        after = bisect_right(self._starts, start + array.nbytes - 1)
        return not after or self._ends[self._starts[after - 1]] <= start

    def read(self, addresses: Iterable[int]) -> None:
        """Say that plans read the arrays that lie at these addresses, so that they stay."""
        with self._lock:
            for address in addresses:
                at = bisect_right(self._starts, address) - 1
                if at >= 0 and address < self._ends[self._starts[at]]:
                    self._read.add(self._starts[at])

    def stay(self) -> None:
        """Say that anything may be read at any time."""
        self._all_stay = True

    @property
    def given_up(self) -> int:
        """Bytes of the arrays without elements."""
        return sum(group.arrays[n].nbytes for group in self._groups for n in group.empty)

    @contextmanager
    def making(self) -> Iterator[None]:
        """In the block, all arrays have their elements. Raises what making them again raises."""
        with self._lock:
            self._refill()
            self._making += 1
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1
                if not self._making and not self._all_stay:
                    self._give_up()

    def _refill(self) -> None:
        for group in self._groups:
            if group.empty:
                made = group.make()
                for n in sorted(group.empty):
                    _copy(made[n], group.arrays[n])
                    group.empty.discard(n)

    def _give_up(self) -> None:
        left = [
            (group, n)
            for group in self._groups
            for n, array in enumerate(group.arrays)
            if n not in group.empty and _address(array) not in self._read
        ]
        if sum(group.arrays[n].nbytes for group, n in left) < LEAST_BYTES:
            return
        able = {id(group): group.is_made_again() for group, _ in left}  # as long as all have their elements
        for group, n in left:
            if able[id(group)] and _give_up_pages(group.arrays[n]):
                group.empty.add(n)
        return_free_memory()  # a model was parsed and constants were computed in it


def arrays_in(held: Any) -> Iterator[AnyArray]:
    """The arrays in a result: in tuples, lists and the fields of objects, in the same order whenever it is made."""
    if isinstance(held, np.ndarray):
        yield held
    elif isinstance(held, (tuple, list)):
        for one in held:
            yield from arrays_in(one)
    elif hasattr(held, "__dict__") and not isinstance(held, type):
        for one in vars(held).values():
            if isinstance(one, (np.ndarray, tuple, list)):
                yield from arrays_in(one)


def _address(array: AnyArray) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes_of(array: AnyArray, like: AnyArray) -> bytes:
    """The elements in the order in which those of another array lie."""
    return array.tobytes("C" if like.flags.c_contiguous else "F")


def _copy(source: AnyArray, target: AnyArray) -> None:
    """Write an array that nobody writes to otherwise: what owns its memory may be bytes."""
    if source.shape != target.shape or source.dtype != target.dtype:
        raise AssertionError("a constant that is made again differs")
    order = "C" if target.flags.c_contiguous else "F"
    dense = np.asarray(source, order=order)  # type: ignore[call-overload]
    ctypes.memmove(_address(target), _address(dense), target.nbytes)


def _found(name: str, *arguments: Any) -> Callable[..., int] | None:
    """A function of the system's C library, if it is Linux and has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function  # type: ignore[no-any-return]


_give_up = _found("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _give_up_pages(array: AnyArray) -> bool:
    """Free the pages that are an array's alone; whether the system did."""
    page = mmap.PAGESIZE
    start = -(-_address(array) // page) * page
    end = (_address(array) + array.nbytes) // page * page
    return _give_up is not None and start < end and _give_up(start, end - start, _MADV_DONTNEED) == 0


__all__ = ["LEAST_BYTES", "Originals", "arrays_in"]
