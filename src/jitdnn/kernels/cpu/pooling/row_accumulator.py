"""Sums of overlapping windows' gradients: the few rows of dx that the window at hand and later ones still reach.

    rows of dx     0 1 2 3 4 5 6 7          windows of 3 at stride 2
    window 1           2 3 4                rows 2, 3 and 4 are accumulated, 0 and 1 are stored to dx

A row is all elements at one position of axis 0; row t is at ``t mod accumulator_rows``, a power of two. Each thread has
rows of its own, in the type of the arithmetic: no sum is rounded to half precision before it is complete, and every
element of dx is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitdnn.kernels.cpu.pooling.windows import Bounds, Windows
from jitdnn.rtcg.builder import Builder, Pointer, Value


class RowAccumulator:
    """The rows of one thread; ``accumulator_row`` elements of each are an integer number of vectors."""

    def __init__(self, k: Builder, windows: Windows, memory: Pointer, thread: Value, lanes: int) -> None:
        self.k, self.windows, self.lanes = k, windows, lanes
        self.memory = memory + thread * (windows["accumulator_rows"] * windows["accumulator_row"])
        self.written = k.register(k.integer(0))  # rows of dx that are stored
        self.initialized = k.register(k.integer(0))  # rows that are accumulated here or stored

    def _clear(self) -> None:
        """Begin a plane."""
        self.written.set(self.k.integer(0))
        self.initialized.set(self.k.integer(0))

    def row(self, position: Value) -> Pointer:
        """The row of sums at a position of axis 0."""
        w = self.windows
        return self.memory + (position & (w["accumulator_rows"] - 1)) * w["accumulator_row"]

    def windows_along_axis_0(self, write: Callable[[Value, Pointer], None]) -> Iterator[tuple[Value, Bounds]]:
        """A loop over the outputs of axis 0 of a plane and their windows, whose rows may be added to meanwhile.

        ``write(position, row)`` traces the store of a finished row to dx.
        """
        k, w = self.k, self.windows
        self._clear()
        for output in k.range(w["out0"] + 1):
            bounds = w.bounds(0, output)
            self._advance(output, bounds, write)
            with k.when(output < w["out0"]):
                yield output, bounds

    def _advance(self, output: Value, bounds: Bounds, write: Callable[[Value, Pointer], None]) -> None:
        """Store the rows before the window of ``output`` and clear those that it is the first to reach.

        With the ``output`` behind the last one, all rows that are left are stored.
        """
        k, w, extent = self.k, self.windows, self.windows["extent0"]
        # ``bounds.low`` of dilated windows need not increase from output to output, their starts do
        is_over = output >= w["out0"]
        low = k.select(is_over, extent, bounds.start.max(0).min(extent))
        high = k.select(is_over, extent, bounds.high)
        for position in k.range(self.written.get(), low):
            with k.when(position >= self.initialized.get()):  # no window reaches it
                self._zero(position)
            write(position, self.row(position))
        for position in k.range(self.initialized.get().max(low), high):
            self._zero(position)
        self.written.set(self.written.get().max(low))
        self.initialized.set(self.initialized.get().max(high).max(low))

    def _zero(self, position: Value) -> None:
        row = self.row(position)
        zero = self.k.constant(0.0, row.dtype, self.lanes)
        for i in self.k.range(0, self.windows["accumulator_row"], self.lanes):
            row.store(zero, i)
