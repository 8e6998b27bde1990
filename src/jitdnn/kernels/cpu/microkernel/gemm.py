"""The micro-kernel under convolution and matrix product: sums over broadcasts times vectors.

    sums[i][j] += a[row i + where the loops are] * b[where the loops are + lanes of vector j]

The rows are any constant offsets into ``a``, so the same loop is a GEMM tile (rows of a panel), an implicit
convolution (pixels of an image, as a box of rows and columns) and a filter gradient (channels and taps).
The sums live in registers; they start from and return to memory: a small tile [rows][vectors * lanes], or rows
wherever the caller wants them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value

_UNROLL = (
    160  # multiply-adds in a straight line: in longer ones LLVM moves them away from their loads and spills
)


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: its extent (None: given at run time) and the steps of both pointers."""

    extent: int | None
    a: int
    b: int


@dataclass(frozen=True)
class Products:
    """What a step adds to a sum, and where sums begin.

    ``multiply_add`` takes the builder, the broadcast of ``a``, the vector of ``b`` and the sum; ``start`` the
    pointers a and b, the row and the vector; None: sums begin with 0.
    """

    multiply_add: Callable[[Builder, Value, Value, Value], Value] = Builder.fma
    start: Callable[[Pointer, Pointer, int, int], Value] | None = None


FUSED = Products()


def trace_microkernel(
    module: Module, name: str, dtype: str, rows: Sequence[int], vectors: int, loops: Sequence[Loop],
    accumulate: bool = False, b_offset: int = 0, products: Products = FUSED,
    sum_offsets: Sequence[int] | None = None, ahead: Sequence[tuple[str, int]] = (),
) -> Function:  # fmt: skip
    """Trace ``name(a, b, sums, ahead..., extents...)``; with ``accumulate`` the sums in memory are added to.

    Meanwhile lines are asked for that are needed later: step i of the outermost loop asks for the one at each pointer
    ``ahead`` plus i times its stride; both types and strides are in ``ahead``.

    ``b`` is read from ``b_offset`` on, as ``a`` is from the rows' offsets. The sums of each row begin at its element of
    ``sum_offsets``, by default one row after the other.
    """
    runtime = [i for i, loop in enumerate(loops) if loop.extent is None]
    parameters: dict[str, str | None] = {"a": dtype, "b": dtype, "sums": dtype}
    parameters |= {f"ahead{i}": stored for i, (stored, _) in enumerate(ahead)} | {
        f"extent{i}": None for i in runtime
    }
    with module.function(name, "aliasing", **parameters) as (k, (a, b, sums, *rest), function):
        asked, extents = (
            [(at, stride) for at, (_, stride) in zip(rest, ahead, strict=False)],
            rest[len(ahead) :],
        )
        lanes = k.lanes(dtype)
        at = [i * vectors * lanes for i in range(len(rows))] if sum_offsets is None else sum_offsets
        given = dict(zip(runtime, extents, strict=True))

        def start(i: int, j: int) -> Value:
            if accumulate:
                before: Value = sums.load(at[i] + j * lanes, lanes)
                return before
            return k.constant(0, dtype, lanes) if products.start is None else products.start(a, b, i, j)

        acc = [[k.register(start(i, j)) for j in range(vectors)] for i in range(len(rows))]
        straight = _straight_suffix(loops, len(rows) * vectors)
        body = _Body(k, rows, acc, lanes, loops[len(loops) - straight :], products)
        _nest(k, a, b + b_offset, list(enumerate(loops[: len(loops) - straight])), given, body, asked)
        for place, row in zip(at, acc, strict=True):
            for j, register in enumerate(row):
                sums.store(register.get(), place + j * lanes)
    return function


def _straight_suffix(loops: Sequence[Loop], work: int) -> int:
    """How many of the innermost loops are written out."""
    count, turns = 0, 1
    for loop in reversed(loops):
        if loop.extent is None or turns * loop.extent * work > _UNROLL:
            break
        turns *= loop.extent
        count += 1
    return count


@dataclass(frozen=True)
class _Body:
    """The straight-line part: every step of the innermost loops, as multiply-adds."""

    k: Builder
    rows: Sequence[int]
    acc: list[list[Register]]
    lanes: int
    inner: Sequence[Loop]
    products: Products

    @property
    def work(self) -> int:
        turns = math.prod(loop.extent or 1 for loop in self.inner)
        return max(1, turns * len(self.rows) * len(self.acc[0]))

    def trace(self, a: Pointer, b: Pointer) -> None:
        for point in itertools.product(*(range(loop.extent or 0) for loop in self.inner)):
            at_a = sum(i * loop.a for i, loop in zip(point, self.inner, strict=True))
            at_b = sum(i * loop.b for i, loop in zip(point, self.inner, strict=True))
            self.k.barrier()
            vectors = [b.load(at_b + j * self.lanes, self.lanes) for j in range(len(self.acc[0]))]
            for row, sums in zip(self.rows, self.acc, strict=True):
                one = a.splat(at_a + row, self.lanes)
                for j, vector in enumerate(vectors):
                    sums[j].set(self.products.multiply_add(self.k, one, vector, sums[j].get()))


def _nest(
    k: Builder, a: Pointer, b: Pointer, loops: list[tuple[int, Loop]], given: dict[int, Value], body: _Body,
    ahead: Sequence[tuple[Pointer, int]] = (),
) -> None:  # fmt: skip
    """The loops that run at run time, outermost first; the innermost is unrolled by hand."""
    if not loops:
        body.trace(a, b)
        return
    (number, loop), rest = loops[0], loops[1:]
    extent: int | Value = given[number] if loop.extent is None else loop.extent
    if rest:
        for i in k.range(extent):
            _ask(ahead, i)
            _nest(k, a + i * loop.a, b + i * loop.b, rest, given, body)
        return
    times = max(1, min(8, _UNROLL // body.work))
    if isinstance(extent, int):
        whole: int | Value = extent - extent % times
    else:
        whole = extent - extent % times
    if times > 1:
        for i in k.range(0, whole, times):
            for u in range(times):
                _ask(ahead, i + u)
                body.trace(a + (i * loop.a + u * loop.a), b + (i * loop.b + u * loop.b))
    for i in k.range(whole if times > 1 else 0, extent):
        _ask(ahead, i)
        body.trace(a + i * loop.a, b + i * loop.b)


def _ask(ahead: Sequence[tuple[Pointer, int]], step: Value) -> None:
    for pointer, stride in ahead:
        pointer.prefetch(step * stride, nearest=False)
