"""Where a gradient of overlapping windows is added up: a few rows that the windows at hand still reach.

    rows of dx     0 1 2 3 4 5 6 7          windows of 3 at stride 2
    window 1           2 3 4                row 2, 3 and 4 are in the ring, 0 and 1 are written to dx

A row is all that has one position on axis 0. A thread has one ring, in the type of the arithmetic, so that no sum
is rounded to half precision on its way, and every element of dx is written once.
"""

from __future__ import annotations

from collections.abc import Callable

from jitdnn.kernels.cpu.pooling.geometry import Axis, Bounds, Windows
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

RING_SLOTS = ("ring_rows", "ring_row", "pitch")


def ring_values(axis: Axis, extent: int, pitch: int) -> dict[str, int]:
    """What goes into the slots: the rows are a power of two; each has ``extent`` runs of ``pitch`` elements."""
    rows = 1 << (min(axis.span, axis.extent) - 1).bit_length()
    return {"ring_rows": rows, "ring_row": extent * pitch, "pitch": pitch}


def ring_bytes(values: dict[str, int], dtype: str, threads: int) -> int:
    return threads * values["ring_rows"] * values["ring_row"] * ITEM_BYTES[dtype]


class Ring:
    """The ring of one thread; ``ring_row`` is a whole number of vectors."""

    def __init__(self, k: Builder, windows: Windows, memory: Pointer, thread: Value, lanes: int) -> None:
        self.k, self.windows, self.lanes = k, windows, lanes
        self.memory = memory + thread * (windows["ring_rows"] * windows["ring_row"])
        self.done = k.register(k.integer(0))  # rows of dx that are written
        self.begun = k.register(k.integer(0))  # rows that are in the ring or written

    def clear(self) -> None:
        """Begin a plane."""
        self.done.set(self.k.integer(0))
        self.begun.set(self.k.integer(0))

    def row(self, position: Value) -> Pointer:
        """Where the row at a position of axis 0 is kept."""
        w = self.windows
        return self.memory + (position & (w["ring_rows"] - 1)) * w["ring_row"]

    def advance(self, output: Value, bounds: Bounds, write: Callable[[Value, Pointer], None]) -> None:
        """Make room for a window of ``output``, or with an ``output`` beyond the last one finish the plane.

        ``write(position, row)`` traces the way of a finished row to dx.
        """
        k, w, extent = self.k, self.windows, self.windows["extent0"]
        # dilated windows may not begin in order once they are clipped: what they are before that does
        is_over = output >= w["out0"]
        low = k.select(is_over, extent, bounds.start.max(0).min(extent))
        high = k.select(is_over, extent, bounds.high)
        for position in k.range(self.done.get(), low):
            with k.when(position >= self.begun.get()):  # a row that no window reaches
                self._zero(position)
            write(position, self.row(position))
        for position in k.range(self.begun.get().max(low), high):
            self._zero(position)
        self.done.set(self.done.get().max(low))
        self.begun.set(self.begun.get().max(high).max(low))

    def _zero(self, position: Value) -> None:
        row = self.row(position)
        nothing = self.k.constant(0.0, row.dtype, self.lanes)
        for i in self.k.range(0, self.windows["ring_row"], self.lanes):
            row.store(nothing, i)
