"""The matrix product of one place: rows of transformed data times a panel of transformed filter.

    sums[i][j] (+)= sum over sources and channels of  data[row i][source][channel] * filter[source][channel][vector j]

The sum starts at zero and is added to memory as a whole, so that long sums are cut into blocks whose errors do not
pile up.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register

_UNROLL = 128  # multiply-adds in a straight line


@dataclass(frozen=True)
class Strides:
    """Elements from one row of the data to the next, and from one source to the next in data and filter."""

    row: int
    data_source: int
    filter_source: int


def trace_product(
    module: Module, name: str, dtype: str, rows: int, vectors: int, strides: Strides
) -> Function:
    """Trace ``name(data, filter, sums, sources, channels, adds)`` for tiles of ``rows`` x ``vectors``.

    ``adds`` not 0: the sums are added to those in memory, [rows][vectors * lanes].
    """
    with module.function(
        name, "aliasing", data=dtype, filter=dtype, sums=dtype, sources=None, channels=None, adds=None
    ) as (k, (data, weights, sums, sources, channels, adds), function):
        lanes = k.lanes(dtype)
        acc = [[k.register(k.constant(0, dtype, lanes)) for _ in range(vectors)] for _ in range(rows)]
        times = max(1, min(8, _UNROLL // (rows * vectors)))
        whole = channels - channels % times
        for source in k.range(0, sources):
            a, b = data + source * strides.data_source, weights + source * strides.filter_source
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


def _step(k: Builder, a: Pointer, b: Pointer, acc: list[list[Register]], row_stride: int) -> None:
    lanes = k.lanes(a.dtype)
    k.barrier()
    vectors = [b.load(j * lanes, lanes) for j in range(len(acc[0]))]
    for i, sums in enumerate(acc):
        one = a.splat(i * row_stride, lanes)
        for j, vector in enumerate(vectors):
            sums[j].set(k.fma(one, vector, sums[j].get()))
