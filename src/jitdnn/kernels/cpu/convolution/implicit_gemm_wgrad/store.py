"""Finished sums to dw: the sums of all splits added, transposed where dw needs it, scaled and blended.

Sums are [channel][taps][lanes of k]. Where channels or taps are closer together in dw than k, squares of lanes x lanes
are transposed, along the longest run of dw, so that whole cache lines are written.
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
    """An axis of the rows: ``extent`` rows, or as many for each channel; its strides in the sums and in dw."""

    extent: int
    is_of_channels: bool
    sums: int
    dw: int


def dw_strides(c: Correlation) -> tuple[int, int, int, int]:
    """Strides of dw along the channels and the taps."""
    d, h, w = (axis.taps.increment * stride for axis, stride in zip(c.axes, c.w.space, strict=True))
    return c.w.channels, d, h, w


def is_dw_transposed(c: Correlation) -> bool:
    """True if channels or taps are closer together in dw than k."""
    return abs(_runs(c, (0, 0, 0, 0))[-1].dw) < abs(c.w.results)


def _runs(c: Correlation, sum_strides: Sequence[int]) -> list[_Run]:
    """The axes of the rows, that of the smallest stride in dw last; neighbours that are one run are joined."""
    extents = (1, *(axis.taps.count for axis in c.axes))
    runs = [
        _Run(extent, i == 0, step, stride)
        for i, (extent, step, stride) in enumerate(zip(extents, sum_strides, dw_strides(c), strict=True))
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


def trace_store(
    module: Module, name: str, c: Correlation, vectors: int, sum_strides: Sequence[int], split_k: int,
    split_stride: int,
) -> Function:  # fmt: skip
    """Trace ``name(sums, scale, dw, valid, channels)``: all taps of ``channels`` channels of one panel.

    A panel is ``vectors`` vectors of output channels, of which ``valid`` are there; ``sum_strides`` are those along the
    channels and the taps. The sums of ``split_k`` splits, ``split_stride`` elements apart, are added. ``scale`` points
    to alpha and beta.
    """
    with module.function(
        name, sums=c.dtype, scale="f64", dw=c.w.dtype, valid=None, channels=None
    ) as (k, (sums, scale, dw, valid, channels), function):  # fmt: skip
        alpha, beta = (k.convert(scale.load(i), c.dtype) for i in range(2))
        code = _Store(k, c, Blend(k, alpha, beta, None), split_k, split_stride)
        *outer, run = _runs(c, sum_strides)
        extent = channels * run.extent if run.is_of_channels else k.integer(run.extent)
        for source, target in _each_run(k, outer, sums, dw, channels):
            if is_dw_transposed(c):
                for v in k.range(vectors):
                    lane = v * code.lanes
                    code.squares(source + lane, target + lane * c.w.results, run, extent, valid - lane)
            else:
                for row in k.range(extent):
                    code.row(source + row * run.sums, target + row * run.dw, valid, vectors)
    return function


def _each_run(
    k: Builder, outer: Sequence[_Run], sums: Pointer, dw: Pointer, channels: Value
) -> Iterator[tuple[Pointer, Pointer]]:
    """Loops over the ``outer`` axes: where each innermost run begins in the sums and in dw."""
    if not outer:
        yield sums, dw
        return
    first, *rest = outer
    for i in k.range(channels * first.extent if first.is_of_channels else first.extent):
        yield from _each_run(k, rest, sums + i * first.sums, dw + i * first.dw, channels)


class _Store:
    def __init__(self, k: Builder, c: Correlation, blend: Blend, split_k: int, split_stride: int) -> None:
        self.k, self.c, self.blend, self.split_k, self.split_stride = k, c, blend, split_k, split_stride
        self.lanes = k.lanes(c.dtype)

    def _totals(self, sums: Sequence[Pointer]) -> list[Value]:
        """A vector at each pointer, the sum of all splits in their order."""
        totals = [self.k.register(one.load(0, self.lanes)) for one in sums]
        for split in self.k.range(1, self.split_k):
            for total, one in zip(totals, sums, strict=True):
                total += one.load(split * self.split_stride, self.lanes)
        return [total.get() for total in totals]

    def row(self, sums: Pointer, dw: Pointer, valid: Value, vectors: int) -> None:
        """The vectors of one row as they are."""
        for v in range(vectors):
            at = v * self.lanes
            mask = self.k.mask(valid - at, self.lanes)
            (vector,) = self._totals([sums + at])
            self.blend.store(dw + at * self.c.w.results, self.c.w.results, vector, [], mask)

    def squares(self, sums: Pointer, dw: Pointer, run: _Run, extent: Value, valid: Value) -> None:
        """One vector of k along a run of rows, transposed; rows beyond its end repeat the last and are not stored."""
        k, lanes = self.k, self.lanes
        for start in k.range(0, extent, lanes):
            rows = [sums + (start + i).min(extent - 1) * run.sums for i in range(lanes)]
            mask = k.mask(extent - start, lanes)
            for i, vector in enumerate(transpose(k, self._totals(rows))):
                with k.when(valid > i):
                    self.blend.store(dw + (start * run.dw + i * self.c.w.results), run.dw, vector, [], mask)
