"""Lines that tiles ask for while their sums are computed, which are needed after them.

From channel to channel the addresses of an image jump too far for the processor to foresee them, and so do those of a
filter from one result to the next. So the sums of every tile ask, channel by channel, for one line or a few: all tiles
of a block together for the input of the thread's next block, or for the filter that it packs next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import InputTile, source_steps
from jitdnn.kernels.cpu.schedule.offsets import split_index
from jitdnn.rtcg.builder import Value
from jitdnn.rtcg.isa import item_bytes

_LINE = 64
_MOST = 4  # lines that a step asks for


@dataclass(frozen=True)
class Ahead:
    """Lines of memory of type ``dtype`` for each channel: rows of ``lines``, which are ``pitch`` apart and the last of
    which has element ``last``; ``counts`` and ``strides`` are those of the rows. Strides are in elements, and
    ``channel`` is that from one channel to the next. Each of ``calls`` asks for ``at_once`` lines."""

    dtype: str
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    lines: int
    last: int
    pitch: int
    channel: int
    calls: int

    @property
    def total(self) -> int:
        return math.prod(self.counts) * self.lines

    @property
    def at_once(self) -> int:
        return min(_MOST, -(-self.total // max(1, self.calls)))

    def offset(self, number: Value) -> Value:
        """Where line ``number`` is, seen from the first element of a channel."""
        *outer, line = split_index(number, (*self.counts, self.lines))
        offset = (line * self.pitch).min(self.last)
        for i, stride in zip(outer, self.strides, strict=True):
            offset = offset + i * stride
        return offset


def plan_ahead(c: Correlation, input_tile: InputTile, calls: int) -> Ahead | None:
    """What ``calls`` tiles ask for; None where x is not read channel by channel."""
    if abs(c.x.channels) == 1 or c.depth == 1 or any(stride < 0 for stride in c.x.space):
        return None
    pitch = _LINE // item_bytes(c.x.dtype)
    steps = source_steps(c)
    dims = [(extent, step * s) for extent, step, s in zip(input_tile.extents, steps, c.x.space, strict=True)]
    length, rows = 1, list[tuple[int, int]]()
    for extent, stride in [*dims[::-1], (input_tile.block[0], c.x.batch)]:
        if not rows and stride <= length + pitch:
            length += (extent - 1) * stride
        elif extent > 1:
            rows.insert(0, (extent, stride))
    counts, strides = tuple(extent for extent, _ in rows), tuple(stride for _, stride in rows)
    lines = 1 if length == 1 else (length - 2) // pitch + 2
    return Ahead(c.x.dtype, counts, strides, lines, length - 1, pitch, c.x.channels, calls)


def plan_filter_ahead(c: Correlation, panel: int, calls: int) -> Ahead | None:
    """The filter of the next ``panel`` results, which ``calls`` tiles ask for; None where it lies in many pieces."""
    pitch = _LINE // item_bytes(c.w.dtype)
    if c.depth == 1:
        return None
    if c.w.results == 1 and c.taps == 1:
        return Ahead(c.w.dtype, (), (), (panel - 2) // pitch + 2, panel - 1, pitch, c.w.channels, calls)
    if c.w.results != c.depth * c.taps or c.w.channels != c.taps:
        return None
    # one piece: every step asks for the next line
    lines = -(-panel * c.taps // pitch)
    return Ahead(c.w.dtype, (), (), lines, panel * c.w.results, c.depth * pitch, pitch, calls)
