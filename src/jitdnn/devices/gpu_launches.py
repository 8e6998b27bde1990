"""Launches of kernels on a GPU, noted over memory that is not there yet and made again where it is.

    recorder = GpuRecorder()
    recorder.memory(address, size)                    # of an array that nobody reads or writes now
    recorder.add(kernel, pointers, 1.0, 0.0, bytes)   # in place of kernel(stream, pointers, ...)
    launches = recorder.part(0, 1, {0: (0, 64)})      # the array lies 64 bytes behind the first base
    for launch in placed(launches, [base], scratch):
        launch(stream)

Which launch touches which array is read off the pointers. Those that lie in no such memory stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from jitdnn.devices.gpu import Kernel

_WORKSPACE = -2  # in place of the number of a piece of memory


class GpuLaunch(NamedTuple):
    """A call of a kernel. `moving`: of the pointers that move, by position, the number of the memory or of the base,
    and the byte there; `workspace`: bytes that it needs."""

    kernel: Kernel
    pointers: tuple[int, ...]
    alpha: float
    beta: float
    workspace: int
    moving: tuple[tuple[int, int, int], ...]

    def pointers_at(self, bases: Sequence[int]) -> tuple[int, ...]:
        """The pointers where the memory begins at these addresses."""
        pointers = list(self.pointers)
        for position, base, offset in self.moving:
            pointers[position] = bases[base] + offset
        return tuple(pointers)


class GpuRecorder:
    """Notes launches. Used by one thread."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._launches: list[GpuLaunch] = []
        self._kept: dict[int, object] = {}
        #: addresses of constants of the host that launches read: none
        self.reads: frozenset[int] = frozenset()

    def __len__(self) -> int:
        """Launches so far."""
        return len(self._launches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def memory(self, address: int, size: int) -> int:
        """Say that so many bytes from an address on will lie elsewhere; returns their number, from 0 on. Addresses
        rise from call to call."""
        self._starts.append(address)
        self._ends.append(address + max(1, size))
        return len(self._starts) - 1

    def number(self, address: int) -> int | None:
        """Of the memory in which an address lies; None where it stays as it is."""
        at = bisect_right(self._starts, address) - 1
        return at if at >= 0 and address < self._ends[at] else None

    def add(self, kernel: Kernel, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
        """Note a launch."""
        moving = []
        for position, pointer in enumerate(pointers):
            number = self.number(pointer)
            if number is not None:
                moving.append((position, number, pointer - self._starts[number]))
        self._launches.append(GpuLaunch(kernel, tuple(pointers), alpha, beta, workspace, tuple(moving)))

    def keep(self, *owners: object) -> None:
        """Have memory live as long as this recorder."""
        self._kept.update((id(owner), owner) for owner in owners)

    def drop(self, first: int) -> None:
        """Forget the launches from one on."""
        del self._launches[first:]

    def moving(self) -> list[frozenset[int]]:
        """Of each launch, the numbers of the memory that it reads or writes; -2 is its workspace."""
        return [
            frozenset((*(number for _, number, _ in one.moving), *((_WORKSPACE,) if one.workspace else ())))
            for one in self._launches
        ]

    def part(self, first: int, last: int, where: Mapping[int, tuple[int, int]]) -> list[GpuLaunch]:
        """The launches from one to before another; `where` says of each number of `memory` at which base it is to lie,
        and at which byte."""
        found = []
        for one in self._launches[first:last]:
            moved = tuple(
                (position, where[number][0], where[number][1] + offset)
                for position, number, offset in one.moving
            )
            found.append(one._replace(moving=moved))
        return found


def placed(launches: Sequence[GpuLaunch], bases: Sequence[int], scratch: int) -> list[Any]:
    """The launches over memory that is there, as functions of the stream; `scratch` is the address of workspace."""
    return [
        partial(_launch, one, one.pointers_at(bases), scratch if one.workspace else 0) for one in launches
    ]


def _launch(one: GpuLaunch, pointers: tuple[int, ...], scratch: int, stream: Any) -> None:
    one.kernel(stream, pointers, one.alpha, one.beta, scratch)
