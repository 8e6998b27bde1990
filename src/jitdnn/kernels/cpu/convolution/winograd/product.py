"""The micro-kernel of a point: Mr tiles of V times a panel of U.

    M[tile][vector] (+)= sum over subfilters, channels of  V[tile][subfilter][channel] * U[subfilter][channel][vector]

It is not microkernel/gemm.py: here a sum begins with zero and is added to memory when it is complete, if an argument
says so, for rounding errors grow with the partial sums; gemm.py adds to what it has loaded first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value

_UNROLL = 128  # multiply-adds that are written out


@dataclass(frozen=True)
class Strides:
    """Elements from tile to tile of V; and from subfilter to subfilter on each of three axes, in V and U."""

    tile: int
    subfilters: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def trace_product(
    module: Module, name: str, dtype: str, rows: int, vectors: int, strides: Strides
) -> Function:
    """Trace ``name(v, u, m, slices, rows, columns, channels, adds)`` for a register tile of ``rows`` x ``vectors``.

    ``slices``, ``rows`` and ``columns`` are the numbers of subfilters on each axis. ``adds`` not 0: the sums are added
    to those in memory, [rows][vectors * lanes].
    """
    with module.function(
        name, "aliasing", v=dtype, u=dtype, m=dtype, slices=None, rows=None, columns=None, channels=None, adds=None
    ) as (k, (v, u, m, *counts, channels, adds), function):  # fmt: skip
        lanes = k.lanes(dtype)
        sums = [[k.register(k.constant(0, dtype, lanes)) for _ in range(vectors)] for _ in range(rows)]
        times = max(1, min(8, _UNROLL // (rows * vectors)))
        whole = channels - channels % times
        for a, b in _subfilters(k, v, u, list(zip(counts, strides.subfilters, strict=True))):
            for c in k.range(0, whole, times):
                for i in range(times):
                    _step(
                        k,
                        a + (c + i),
                        b + (c * (vectors * lanes) + i * (vectors * lanes)),
                        sums,
                        strides.tile,
                    )
            if times > 1:
                for c in k.range(whole, channels):
                    _step(k, a + c, b + c * (vectors * lanes), sums, strides.tile)
        with k.when(adds != 0):
            for i, row in enumerate(sums):
                for j, register in enumerate(row):
                    register.set(register.get() + m.load((i * vectors + j) * lanes, lanes))
        for i, row in enumerate(sums):
            for j, register in enumerate(row):
                m.store(register.get(), (i * vectors + j) * lanes)
    return function


def _subfilters(
    k: Builder, a: Pointer, b: Pointer, axes: list[tuple[Value, tuple[int, int]]]
) -> Iterator[tuple[Pointer, Pointer]]:
    """Where each subfilter begins in V and U."""
    if not axes:
        yield a, b
        return
    (count, (step_a, step_b)), *rest = axes
    for i in k.range(0, count):
        yield from _subfilters(k, a + i * step_a, b + i * step_b, rest)


def _step(k: Builder, a: Pointer, b: Pointer, sums: list[list[Register]], tile_stride: int) -> None:
    lanes = k.lanes(a.dtype)
    k.barrier()
    vectors = [b.load(j * lanes, lanes) for j in range(len(sums[0]))]
    for i, row in enumerate(sums):
        broadcast = a.splat(i * tile_stride, lanes)
        for vector, register in zip(vectors, row, strict=True):
            register.set(k.fma(broadcast, vector, register.get()))
