"""Finished sums of a filter's gradient to the user's dw: splits added, turned where needed, scaled and blended.

Sums are [channel][taps][lanes of results]. Where dw has channels or taps closer together than results, squares are
transposed, along as long a run of dw as there is, so that whole cache lines are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


@dataclass(frozen=True)
class _Run:
    """An axis of the rows: ``extent`` rows, or as many for each channel; steps in the sums and in dw."""

    extent: int
    is_of_channels: bool
    sums: int
    dw: int


def filter_strides(c: Correlation) -> tuple[int, int, int, int]:
    """Steps in dw along the channels and the taps."""
    d, h, w = (axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True))
    return c.w.channels, d, h, w


def is_turned(c: Correlation) -> bool:
    """True if results lie further apart in dw than something of the rows."""
    return abs(_runs(c, (0, 0, 0, 0))[-1].dw) < abs(c.w.results)


def _runs(c: Correlation, sums: Sequence[int]) -> list[_Run]:
    """The axes of the rows, the closest in dw last, with neighbouring ones joined where they are one."""
    extents = (1, *(axis.taps.count for axis in c.axes))
    runs = [
        _Run(extent, i == 0, step, stride)
        for i, (extent, step, stride) in enumerate(zip(extents, sums, filter_strides(c), strict=True))
        if extent > 1 or i == 0
    ]
    runs.sort(key=lambda run: -abs(run.dw))
    joined: list[_Run] = []
    for run in reversed(runs):
        inner = joined[0] if joined else None
        if (
            inner is not None
            and not inner.is_of_channels
            and (run.sums, run.dw) == (inner.extent * inner.sums, inner.extent * inner.dw)
        ):
            joined[0] = _Run(run.extent * inner.extent, run.is_of_channels, inner.sums, inner.dw)
        else:
            joined.insert(0, run)
    return joined


def trace_finish(
    module: Module, name: str, c: Correlation, vectors: int, rows: Sequence[int], splits: int, split: int
) -> Function:
    """Trace ``name(sums, scale, dw, valid, channels)``: all taps of ``channels`` channels of one panel.

    A panel is ``vectors`` vectors of results, of which ``valid`` are there; ``rows`` are the steps in the sums along
    the channels and the taps. ``splits`` sums, ``split`` elements apart, are added. ``scale`` points to alpha and beta.
    """
    with module.function(
        name, sums=c.dtype, scale="f64", dw=c.w.dtype, valid=None, channels=None
    ) as (k, (sums, scale, dw, valid, channels), function):  # fmt: skip
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        code = _Finish(k, c, Blend(k, alpha, beta, None), splits, split)
        *outer, run = _runs(c, rows)
        extent = channels * run.extent if run.is_of_channels else k.integer(run.extent)
        for source, target in _places(k, outer, sums, dw, channels):
            if is_turned(c):
                for v in k.range(vectors):
                    lane = v * code.lanes
                    code.squares(source + lane, target + lane * c.w.results, run, extent, valid - lane)
            else:
                for row in k.range(extent):
                    code.row(source + row * run.sums, target + row * run.dw, valid, vectors)
    return function


def _places(
    k: Builder, runs: Sequence[_Run], sums: Pointer, dw: Pointer, channels: Value
) -> Iterator[tuple[Pointer, Pointer]]:
    if not runs:
        yield sums, dw
        return
    first, *rest = runs
    for i in k.range(channels * first.extent if first.is_of_channels else first.extent):
        yield from _places(k, rest, sums + i * first.sums, dw + i * first.dw, channels)


class _Finish:
    def __init__(self, k: Builder, c: Correlation, blend: Blend, splits: int, split: int) -> None:
        self.k, self.c, self.blend, self.splits, self.split = k, c, blend, splits, split
        self.lanes = k.lanes(c.dtype)

    def _totals(self, places: Sequence[Pointer]) -> list[Value]:
        """A vector of sums from each place, of all splits in their order."""
        totals = [self.k.register(place.load(0, self.lanes)) for place in places]
        for split in self.k.range(1, self.splits):
            for total, place in zip(totals, places, strict=True):
                total += place.load(split * self.split, self.lanes)
        return [total.get() for total in totals]

    def row(self, sums: Pointer, dw: Pointer, valid: Value, vectors: int) -> None:
        """Lanes as they are."""
        for v in range(vectors):
            at = v * self.lanes
            mask = self.k.mask(valid - at, self.lanes)
            (vector,) = self._totals([sums + at])
            self.blend.store(dw + at * self.c.w.results, self.c.w.results, vector, [], mask)

    def squares(self, sums: Pointer, dw: Pointer, run: _Run, extent: Value, left: Value) -> None:
        """A vector of results along a run of dw; rows beyond its end are the last one again, and not stored."""
        k, lanes = self.k, self.lanes
        for start in k.range(0, extent, lanes):
            places = [sums + (start + i).min(extent - 1) * run.sums for i in range(lanes)]
            mask = k.mask(extent - start, lanes)
            for i, vector in enumerate(transpose(k, self._totals(places))):
                with k.when(left > i):
                    self.blend.store(dw + (start * run.dw + i * self.c.w.results), run.dw, vector, [], mask)
