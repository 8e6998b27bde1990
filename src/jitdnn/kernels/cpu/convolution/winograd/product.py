"""The matrix product of one place: rows of transformed data times a panel of transformed filter.

    sums[i][j] (+)= sum over sources and channels of  data[row i][source][channel] * filter[source][channel][vector j]

The sum starts at zero and is added to memory as a whole, so that long sums are cut into blocks whose errors do not
pile up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value

_UNROLL = 128  # multiply-adds in a straight line


@dataclass(frozen=True)
class Strides:
    """Elements from one row of the data to the next; and from one source to the next on each of three axes that sources
    are counted by, in data and filter."""

    row: int
    sources: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def trace_product(
    module: Module, name: str, dtype: str, rows: int, vectors: int, strides: Strides
) -> Function:
    """Trace ``name(data, filter, sums, sources of each axis..., channels, adds)`` for tiles of ``rows`` x ``vectors``.

    ``adds`` not 0: the sums are added to those in memory, [rows][vectors * lanes].
    """
    with module.function(
        name, "aliasing", data=dtype, filter=dtype, sums=dtype, taps=None, first=None, second=None, channels=None,
        adds=None,
    ) as (k, (data, weights, sums, taps, first, second, channels, adds), function):  # fmt: skip
        lanes = k.lanes(dtype)
        acc = [[k.register(k.constant(0, dtype, lanes)) for _ in range(vectors)] for _ in range(rows)]
        times = max(1, min(8, _UNROLL // (rows * vectors)))
        whole = channels - channels % times
        for a, b in _sources(
            k, data, weights, list(zip((taps, first, second), strides.sources, strict=True))
        ):
            for c in k.range(0, whole, times):
                for u in range(times):
                    _step(
                        k, a + (c + u), b + (c * (vectors * lanes) + u * (vectors * lanes)), acc, strides.row
                    )
            if times > 1:
                for c in k.range(whole, channels):
                    _step(k, a + c, b + c * (vectors * lanes), acc, strides.row)
        with k.when(adds != 0):
            for i, row in enumerate(acc):
                for j, register in enumerate(row):
                    register.set(register.get() + sums.load((i * vectors + j) * lanes, lanes))
        for i, row in enumerate(acc):
            for j, register in enumerate(row):
                sums.store(register.get(), (i * vectors + j) * lanes)
    return function


def _sources(
    k: Builder, a: Pointer, b: Pointer, axes: list[tuple[Value, tuple[int, int]]]
) -> Iterator[tuple[Pointer, Pointer]]:
    """Where each source begins in data and filter."""
    if not axes:
        yield a, b
        return
    (count, (step_a, step_b)), *rest = axes
    for i in k.range(0, count):
        yield from _sources(k, a + i * step_a, b + i * step_b, rest)


def _step(k: Builder, a: Pointer, b: Pointer, acc: list[list[Register]], row_stride: int) -> None:
    lanes = k.lanes(a.dtype)
    k.barrier()
    vectors = [b.load(j * lanes, lanes) for j in range(len(acc[0]))]
    for i, sums in enumerate(acc):
        one = a.splat(i * row_stride, lanes)
        for j, vector in enumerate(vectors):
            sums[j].set(k.fma(one, vector, sums[j].get()))
