"""The micro-kernel under convolutions and matrix products: a register tile of sums of broadcasts times vectors.

    load sums [rows][vectors], or begin with 0 .................... rows x vectors registers
    for i in loops[0] ............................................. at run time, and prefetches
      for j in loops[1]
        ... ....................................................... the innermost loops are unrolled
          load vectors of b at (i loops[0].b + j loops[1].b + ...)  one register for each vector
          for each row
            broadcast a at (row + i loops[0].a + j loops[1].a + ...)  one register
            sums[row][vector] += broadcast * vector
    store sums

The rows are any constant offsets into ``a``. So the same micro-kernel computes a matrix product (rows of a panel), a
convolution (rows are a box of pixels, loops are channels and taps) and its wgrad (rows are channels and taps, loops
are pixels). In memory the sums are a tile [rows][vectors * lanes], or rows at offsets that the caller gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value
from jitdnn.rtcg.extents import Extent

# multiply-adds of an unrolled body: in a longer one LLVM moves them away from their loads, and spills registers
_UNROLL = 160


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: its extent (None: passed at run time) and the steps of both pointers."""

    extent: int | None
    a: int
    b: int


@dataclass(frozen=True)
class Products:
    """What a step adds to a sum, and the value that sums begin with.

    ``multiply_add`` takes the builder, the broadcast of ``a``, the vector of ``b`` and the sum. ``start`` takes the
    pointers a and b, the row and the vector; if it is None, sums begin with 0.
    """

    multiply_add: Callable[[Builder, Value, Value, Value], Value] = Builder.fma
    start: Callable[[Pointer, Pointer, int, int], Value] | None = None


FUSED = Products()


def trace_microkernel(
    module: Module, name: str, dtype: str, rows: Sequence[int], vectors: int, loops: Sequence[Loop],
    accumulate: bool = False, b_offset: int = 0, products: Products = FUSED,
    sum_offsets: Sequence[int] | None = None, prefetch: Sequence[tuple[str, int]] = (),
) -> Function:  # fmt: skip
    """Trace ``name(a, b, sums, prefetch..., extents...)``; with ``accumulate`` the sums in memory are added to.

    ``prefetch`` holds the type and stride of further pointers: step i of the outermost loop prefetches the line at each
    of them plus i times its stride.

    ``b`` is read from ``b_offset`` on, as ``a`` is from the rows' offsets. The sums of each row begin at its element of
    ``sum_offsets``, by default one row after the other.
    """
    runtime = [i for i, loop in enumerate(loops) if loop.extent is None]
    parameters: dict[str, str | None] = {"a": dtype, "b": dtype, "sums": dtype}
    parameters |= {f"prefetch{i}": stored for i, (stored, _) in enumerate(prefetch)}
    parameters |= {f"extent{i}": None for i in runtime}
    with module.function(name, "aliasing", **parameters) as (k, (a, b, sums, *rest), function):
        lines = [(pointer, stride) for pointer, (_, stride) in zip(rest, prefetch, strict=False)]
        extents = rest[len(prefetch) :]
        lanes = k.lanes(dtype)
        at = [i * vectors * lanes for i in range(len(rows))] if sum_offsets is None else sum_offsets
        given = dict(zip(runtime, extents, strict=True))

        def start(i: int, j: int) -> Value:
            if accumulate:
                before: Value = sums.load(at[i] + j * lanes, lanes)
                return before
            return k.constant(0, dtype, lanes) if products.start is None else products.start(a, b, i, j)

        acc = [[k.register(start(i, j)) for j in range(vectors)] for i in range(len(rows))]
        outer = len(loops) - _unrolled_loops(loops, len(rows) * vectors)
        body = _Body(k, rows, acc, lanes, loops[outer:], products)
        _nest(k, a, b + b_offset, list(enumerate(loops[:outer])), given, body, lines)
        for offset, row in zip(at, acc, strict=True):
            for j, register in enumerate(row):
                sums.store(register.get(), offset + j * lanes)
    return function


def _unrolled_loops(loops: Sequence[Loop], work: int) -> int:
    """How many of the innermost loops are unrolled, where a step takes ``work`` multiply-adds."""
    count, steps = 0, 1
    for loop in reversed(loops):
        if loop.extent is None or steps * loop.extent * work > _UNROLL:
            break
        steps *= loop.extent
        count += 1
    return count


@dataclass(frozen=True)
class _Body:
    """The unrolled part: every step of the innermost loops, as multiply-adds."""

    k: Builder
    rows: Sequence[int]
    acc: list[list[Register]]
    lanes: int
    inner: Sequence[Loop]
    products: Products

    @property
    def work(self) -> int:
        """Multiply-adds."""
        steps = math.prod(loop.extent or 1 for loop in self.inner)
        return max(1, steps * len(self.rows) * len(self.acc[0]))

    def trace(self, a: Pointer, b: Pointer) -> None:
        for point in itertools.product(*(range(loop.extent or 0) for loop in self.inner)):
            at_a: Any = sum(i * loop.a for i, loop in zip(point, self.inner, strict=True))
            at_b = sum(i * loop.b for i, loop in zip(point, self.inner, strict=True))
            self.k.barrier()
            here = a
            if isinstance(at_a, Extent):  # one address for all rows, which are constants away from it
                here, at_a = a + at_a, 0
            vectors = [b.load(at_b + j * self.lanes, self.lanes) for j in range(len(self.acc[0]))]
            for row, sums in zip(self.rows, self.acc, strict=True):
                one = here.splat(at_a + row, self.lanes)
                for j, vector in enumerate(vectors):
                    sums[j].set(self.products.multiply_add(self.k, one, vector, sums[j].get()))


def _nest(
    k: Builder, a: Pointer, b: Pointer, loops: list[tuple[int, Loop]], given: dict[int, Value], body: _Body,
    lines: Sequence[tuple[Pointer, int]] = (),
) -> None:  # fmt: skip
    """The loops that are not unrolled, outermost first; the innermost of them is unrolled in part."""
    if not loops:
        body.trace(a, b)
        return
    (number, loop), rest = loops[0], loops[1:]
    extent: int | Value = given[number] if loop.extent is None else loop.extent
    if rest:
        for i in k.range(extent):
            _prefetch(lines, i)
            _nest(k, a + i * loop.a, b + i * loop.b, rest, given, body)
        return
    times = max(1, min(8, _UNROLL // body.work))
    if isinstance(extent, int):
        unrolled: int | Value = extent - extent % times
    else:
        unrolled = extent - extent % times
    if times > 1:
        for i in k.range(0, unrolled, times):
            for u in range(times):
                _prefetch(lines, i + u)
                body.trace(a + (i * loop.a + u * loop.a), b + (i * loop.b + u * loop.b))
    for i in k.range(unrolled if times > 1 else 0, extent):
        _prefetch(lines, i)
        body.trace(a + i * loop.a, b + i * loop.b)


def _prefetch(lines: Sequence[tuple[Pointer, int]], step: Value) -> None:
    for pointer, stride in lines:
        pointer.prefetch(step * stride, nearest=False)
