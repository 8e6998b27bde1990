"""Asking for the cache lines of a result before it is written.

A line that is stored to must first be read from memory: that is asked for while the sums are being made. Few can be
under way at a time, and what is asked for beyond is forgotten; a tile's own lines are about as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer
from jitdnn.rtcg.isa import item_bytes

_LINE = 64
_MOST_LINES = 16  # of one piece: they are written out


@dataclass(frozen=True)
class Region:
    """Pieces of neighbouring cache lines: (count, stride) of the pieces, outermost first, and where in a piece its
    lines are. Offsets are in elements."""

    pieces: tuple[tuple[int, int], ...]
    lines: tuple[int, ...]


def region_of(dims: Sequence[tuple[int, int]], dtype: str) -> Region | None:
    """The region of all (extent, stride) pairs; None where a stride is negative.

    The line that a piece begins in is left out: in a run of tiles it is the one that the tile before ended in.
    """
    line = _LINE // item_bytes(dtype)
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
    count = -(-length // line)
    if count > _MOST_LINES:
        pieces.append((-(-count // _MOST_LINES), _MOST_LINES * line))
        return Region(tuple(pieces), tuple(i * line for i in range(_MOST_LINES)))
    return Region(tuple(pieces), tuple(sorted(length - 1 - i * line for i in range(count))))


def trace_prefetch(module: Module, name: str, dtype: str, region: Region) -> Function:
    """Trace ``name(start)``: ask for the region that begins at ``start``, in order to write it."""
    with module.function(name, start=dtype) as (k, (start,), function):
        _ask(k, start, region.pieces, region.lines)
    return function


def _ask(k: Builder, start: Pointer, pieces: Sequence[tuple[int, int]], lines: Sequence[int]) -> None:
    if not pieces:
        for line in lines:
            start.prefetch(line, write=True)
        return
    (count, stride), *rest = pieces
    for i in k.range(count):
        _ask(k, start + i * stride, rest, lines)
