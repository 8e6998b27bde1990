"""Places in one block of memory for results that are needed from one step to another of a list of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_ALIGNMENT = 64


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
