"""Places in one block of memory for results that are needed from one step to another of a list of steps, and the
blocks, which the plans of a model take in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitdnn.tensor.array import address_of

_ALIGNMENT = 64
_MOST_IDLE = 4  # that wait for a run: of two threads, each inside of a body of a loop


class Arena:
    """A block of memory for one run at a time."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self.memory = np.empty(bytes + _ALIGNMENT, np.uint8)
        start = address_of(self.memory)
        self.address = start + -start % _ALIGNMENT


class Arenas:
    """Blocks that wait for a run, of any plan of a model: a model that is run on many shapes holds as much as its
    largest run takes, not a block for each shape. May be used by threads."""

    def __init__(self) -> None:
        self._idle: list[Arena] = []

    @property
    def idle(self) -> tuple[Arena, ...]:
        """Those that wait."""
        return tuple(self._idle)

    def take(self, bytes: int) -> Arena:
        """A block of at least so many bytes; the last one that was given back, unless that is too small and goes."""
        try:
            found = self._idle.pop()  # atomic, so threads never get the same
        except IndexError:
            return Arena(bytes)
        if found.bytes >= bytes:
            return found
        del found  # before the larger one is there
        return Arena(bytes)

    def give(self, arena: Arena) -> None:
        """Keep a block for another run."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(arena)


@dataclass(frozen=True)
class Need:
    """A result of `bytes` bytes, written in step `first` and read for the last time in step `last`."""

    bytes: int
    first: int
    last: int


def place(needs: Sequence[Need]) -> tuple[list[int], int]:
    """The offset of each result, in bytes, and the bytes of the block; the largest are placed first.

    Two results that are needed in the same step do not overlap. Offsets are multiples of 64.
    """
    offsets = [0] * len(needs)
    placed: list[int] = []
    total = 0
    for number in sorted(range(len(needs)), key=lambda n: (-needs[n].bytes, n)):
        need = needs[number]
        size = -(-need.bytes // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for other in sorted(placed, key=lambda n: offsets[n]):
            if needs[other].first > need.last or needs[other].last < need.first:
                continue
            if offset + size <= offsets[other]:
                break
            end = offsets[other] + needs[other].bytes
            offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
        offsets[number] = offset
        placed.append(number)
        total = max(total, offset + size)
    return offsets, total
