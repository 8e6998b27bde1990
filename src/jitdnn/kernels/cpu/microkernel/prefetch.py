"""Prefetching the cache lines of a result before it is written.

A line must be read from memory before a store to it completes: it is prefetched while the sums are computed. A
processor has few requests in flight and drops others; the lines of one register tile are about as many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer
from jitdnn.rtcg.isa import item_bytes

_MOST_LINES = 16  # of one piece: their loop is unrolled


@dataclass(frozen=True)
class Region:
    """Pieces of neighbouring cache lines: (count, stride) of the pieces, outermost first, and the offsets of lines in a
    piece. All are in elements."""

    pieces: tuple[tuple[int, int], ...]
    lines: tuple[int, ...]


def region_of(dims: Sequence[tuple[int, int]], dtype: str, line_bytes: int) -> Region | None:
    """The region of all (extent, stride) pairs; None where a stride is negative.

    The line in which a piece begins is left out: of neighbouring tiles it is the last line of the tile before.
    """
    line = line_bytes // item_bytes(dtype)
    dims = [(extent, stride) for extent, stride in dims if extent > 1 and stride != 0]
    if any(stride < 0 for _, stride in dims):
        return None
    length = 1
    pieces: list[tuple[int, int]] = []
    for extent, stride in sorted(dims, key=lambda dim: dim[1]):
        if not pieces and stride <= length + line:
            length += (extent - 1) * stride
        else:
            pieces.insert(0, (extent, stride))
    count = ceil_div(length, line)
    if count > _MOST_LINES:
        pieces.append((ceil_div(count, _MOST_LINES), _MOST_LINES * line))
        return Region(tuple(pieces), tuple(i * line for i in range(_MOST_LINES)))
    return Region(tuple(pieces), tuple(sorted(length - 1 - i * line for i in range(count))))


def trace_prefetch(module: Module, name: str, dtype: str, region: Region) -> Function:
    """Trace ``name(start)``: prefetch the region that begins at ``start``, in order to write it."""
    with module.function(name, start=dtype) as (k, (start,), function):
        _prefetch(k, start, region.pieces, region.lines)
    return function


def _prefetch(k: Builder, start: Pointer, pieces: Sequence[tuple[int, int]], lines: Sequence[int]) -> None:
    if not pieces:
        for line in lines:
            start.prefetch(line, write=True)
        return
    (count, stride), *rest = pieces
    for i in k.range(count):
        _prefetch(k, start + i * stride, rest, lines)
