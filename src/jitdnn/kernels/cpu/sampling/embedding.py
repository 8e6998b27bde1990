"""Table look-up by index, and its gradient: a sum for each row of the table.

    forward    unit = one index: its row, in vectors along the columns
    backward   sort: the positions of dy's rows, ordered by the rows of the table they belong to   (one task)
               sum:  unit = one row of the table: what belongs to it is added up in registers and written once

The sort counts, so that positions keep their order within a row: sums do not depend on the number of threads. An index
that is no row of the table is never used as one.

    workspace of the backward pass    rows + 1 ends, then one place for each index, 8 bytes each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Kernel, TypedAlgorithm
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.problems.embedding import Embedding
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import TensorDescriptor, compute_dtype

_VECTORS = 4  # of columns at once
_PREFETCH_ROWS = (
    4  # from one that is copied to the one that is prefetched: no processor guesses which comes next
)
_PREFETCH_ROWS_BYTES = 2048  # of a row; the rest it does guess
_SORT_SECONDS = 4e-9  # for an index


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    dtype: str  # of the tables
    index: str
    axes: int  # of the indices
    is_unit: tuple[bool, bool]  # columns of the first operand and of the last are neighbours
    streams: bool


class _Embedding:
    """What both directions read from the argument block."""

    def __init__(self, k: Builder, args: Pointer, code: _Code) -> None:
        self.k, self.code, self.computing = k, code, compute_dtype(code.dtype)
        self.lanes = k.lanes(self.computing)
        self.arguments = arguments = Arguments(k, args, 3)
        axes = code.axes
        names = ("units", "per_task", "rows", "columns", "padding", "source", "target", "row", "count")
        self.n = {name: arguments.extra(i) for i, name in enumerate(names)}
        first = len(names)
        self.extents = [arguments.extra(first + a) for a in range(axes)]
        self.bases = [arguments.extra(first + axes + t) for t in range(2)]
        self.strides = [
            [arguments.extra(first + axes + 2 + t * axes + a) for a in range(axes)] for t in range(2)
        ]
        self.source, self.target = arguments.pointer(0, code.dtype), arguments.pointer(2, code.dtype)
        self.indices = arguments.pointer(1, code.index)
        self.scale = Scale(k, arguments, self.computing)
        self.steps: list[Any] = [
            1 if unit else self.n[name] for unit, name in zip(code.is_unit, ("source", "target"), strict=True)
        ]

    def index_at(self, offset: Value) -> Value:
        index: Value = self.k.convert(self.indices.load(offset), "i64")
        return index

    def is_row(self, index: Value) -> Value:
        return (index >= 0) & (index < self.k.integer(self.n["rows"]))

    def counter(self, first: Value) -> Counter:
        """Over the indices; its offsets are those of the index, and of its row in y."""
        return Counter(self.k, first, self.extents, self.strides, self.bases)

    def task(self, task: Value) -> tuple[Value, Value]:
        first = task * self.n["per_task"]
        return first, (first + self.n["per_task"]).min(self.n["units"])

    def can_stream(self, target: Pointer) -> Value:
        address = Value(self.k, self.k.b.ptrtoint(target.v, INT))
        is_aligned = (address & (self.lanes * ITEM_BYTES[self.code.dtype] - 1)) == 0
        overwrites: Value = self.scale.beta == 0.0
        return is_aligned & overwrites


def _trace_forward(module: Module, code: _Code) -> None:
    with module.task("gather") as (k, args, task, _):
        e = _Embedding(k, args, code)
        lanes, columns = e.lanes, e.n["columns"]
        first, last = e.task(task)
        counter, later = e.counter(first), e.counter(first + _PREFETCH_ROWS)
        alpha = k.splat(e.scale.alpha, lanes)
        item = ITEM_BYTES[code.dtype]
        asked = columns.min(_PREFETCH_ROWS_BYTES // item)
        wide = (columns // (lanes * _VECTORS)) * (lanes * _VECTORS)
        line_elements = module.isa.processor.line_bytes // item
        for unit in k.range(first, last):
            if code.is_unit[0]:
                with k.when(unit + _PREFETCH_ROWS < last):
                    coming = e.index_at(later.offsets[0].get())
                    row = e.source + k.select(e.is_row(coming), coming, 0) * e.n["row"]
                    for c in k.range(0, asked, line_elements):
                        row.prefetch(c)
                later.advance()
            index_offset, row_offset = (offset.get() for offset in counter.offsets)
            index = e.index_at(index_offset)
            inside = e.is_row(index)
            source = e.source + k.select(inside, index, 0) * e.n["row"]
            target = e.target + row_offset
            full = (columns // lanes) * lanes
            with k.when(inside):
                if code.streams:
                    may_stream = e.can_stream(target)
                    with k.when(may_stream):
                        for c in k.range(0, wide, lanes * _VECTORS):
                            for at in [c + v * lanes for v in range(_VECTORS)]:
                                target.stream(
                                    source.load_strided(at * e.steps[0], e.steps[0], lanes) * alpha, at
                                )
                        for c in k.range(wide, full, lanes):
                            target.stream(source.load_strided(c * e.steps[0], e.steps[0], lanes) * alpha, c)
                    with k.when(~may_stream):
                        _copy(e, source, target, k.integer(0), full, is_whole=True)
                else:
                    _copy(e, source, target, k.integer(0), full, is_whole=True)
                _copy(e, source, target, full, columns, is_whole=False)
            with k.when(~inside):
                zero = k.constant(0.0, e.computing, lanes)
                for c in k.range(0, columns, lanes):
                    e.scale.store(target + c * e.steps[1], e.steps[1], zero, k.mask(columns - c, lanes))
            counter.advance()


def _copy(e: _Embedding, source: Pointer, target: Pointer, start: Value, stop: Value, is_whole: bool) -> None:
    """Columns from `start` to `stop`, in whole vectors or with a mask."""
    k, lanes = e.k, e.lanes
    for c in k.range(start, stop, lanes):
        mask = None if is_whole else k.mask(stop - c, lanes)
        value = source.load_strided(c * e.steps[0], e.steps[0], lanes, mask)
        e.scale.store(target + c * e.steps[1], e.steps[1], value, mask)


def _trace_backward(module: Module, code: _Code) -> None:
    with module.task("sort") as (k, args, _task, _):
        e = _Embedding(k, args, code)
        ends = e.arguments.workspace("i64")
        places = ends + (e.n["rows"] + 1)
        for row in k.range(e.n["rows"] + 1):
            ends.store(k.integer(0), row)
        # count the indices of each row into the end of the row before
        for index, _place in _each(e):
            ends.store(ends.load(index + 1) + 1, index + 1)
        total = k.register(k.integer(0))
        for row in k.range(e.n["rows"] + 1):
            total += ends.load(row)
            ends.store(total.get(), row)
        # hand out positions: ends[row] is where the row begins, and ends up where it ends
        for index, place in _each(e):
            at = ends.load(index)
            places.store(place, at)
            ends.store(at + 1, index)
    with module.task("sum") as (k, args, task, _):
        e = _Embedding(k, args, code)
        lanes, columns = e.lanes, e.n["columns"]
        ends = e.arguments.workspace("i64")
        places = ends + (e.n["rows"] + 1)
        first, last = e.task(task)
        begin = k.register(k.integer(0))
        with k.when(first > 0):
            begin.set(ends.load(first - 1))
        wide = (columns // (lanes * _VECTORS)) * (lanes * _VECTORS)
        for row in k.range(first, last):
            end = ends.load(row)
            target = e.target + row * e.n["row"]
            for c in k.range(0, wide, lanes * _VECTORS):
                _sum(e, places, begin.get(), end, target, c, _VECTORS, None)
            for c in k.range(wide, columns, lanes):
                _sum(e, places, begin.get(), end, target, c, 1, k.mask(columns - c, lanes))
            begin.set(end)


def _each(e: _Embedding) -> Any:
    """Loops over the indices that count: the index, and where its row is in dy."""
    k = e.k
    counter = e.counter(k.integer(0))
    for _unit in k.range(e.n["count"]):
        index_offset, place = (offset.get() for offset in counter.offsets)
        index = e.index_at(index_offset)
        with k.when(e.is_row(index) & (index != e.n["padding"])):
            yield index, place
        counter.advance()


def _sum(
    e: _Embedding,
    places: Pointer,
    begin: Value,
    end: Value,
    target: Pointer,
    c: Value,
    vectors: int,
    mask: Value | None,
) -> None:
    k, lanes = e.k, e.lanes
    totals = [k.register(k.constant(0.0, e.computing, lanes)) for _ in range(vectors)]
    for at in k.range(begin, end):
        source = e.source + places.load(at)
        for v, total in enumerate(totals):
            total += source.load_strided((c + v * lanes) * e.steps[0], e.steps[0], lanes, mask)
    for v, total in enumerate(totals):
        there = target + (c + v * lanes) * e.steps[1]
        if e.code.streams and mask is None:
            may_stream = e.can_stream(there)
            with k.when(may_stream):
                there.stream(total.get() * k.splat(e.scale.alpha, lanes))
            with k.when(~may_stream):
                e.scale.store(there, e.steps[1], total.get())
        else:
            e.scale.store(there, e.steps[1], total.get(), mask)


def _nest(problem: Embedding) -> Nest:
    """Over the indices and the rows of y that belong to them."""
    rows = TensorDescriptor(problem.indices.shape, problem.y.strides[:-1], problem.y.dtype)
    return Nest.of((problem.indices, rows))


class EmbeddingRows(TypedAlgorithm[Embedding, CpuDevice]):
    """Whole rows at a time; the gradient orders them first, so that each row of it is written once."""

    name = "rows"
    problem = Embedding
    deterministic = True
    takes_no_epilogue = "an embedding takes no epilogue"

    def workspace_of(self, plan: Embedding, device: CpuDevice) -> int:
        return 8 * (plan.rows + 1 + plan.indices.size) if plan.direction == "bwd" else 0

    def seconds_of(self, plan: Embedding, device: CpuDevice) -> float:
        sorting = plan.indices.size * _SORT_SECONDS if plan.direction == "bwd" else 0.0
        return LAUNCH_SECONDS + sorting + self._seconds(plan, device) / device.threads

    def _seconds(self, problem: Embedding, device: CpuDevice) -> float:
        moved = 2 * problem.y.nbytes
        if problem.direction == "bwd":
            moved = problem.y.nbytes + problem.weight.nbytes
        processor = device.isa.processor
        speed = cost.memory_speed(processor, cost.EMBEDDING_MEMORY_RATE)
        return (moved + processor.line_bytes * problem.indices.size) / speed

    def error_of(self, problem: Embedding) -> float:
        # all indices may name one row
        terms = problem.indices.size if problem.direction == "bwd" else 1
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (4.0 + sqrt(terms))

    def kernel_of(self, plan: Embedding, device: CpuDevice) -> Kernel:
        nest, forward = _nest(plan), plan.direction == "fwd"
        source, _, target = (operand.descriptor for operand in plan.operands)
        stream_bytes = device.isa.processor.last_cache(cost.ELEMENTWISE_STREAM)
        code = _Code(
            plan.direction, plan.dtype, plan.indices.dtype, len(nest.extents),
            (source.strides[-1] == 1, target.strides[-1] == 1),
            streams=target.nbytes >= stream_bytes and target.strides[-1] == 1,
        )  # fmt: skip
        count = prod(nest.extents) if plan.indices.size else 0
        units = count if forward else plan.rows
        tasks, per_task = split_units(units, device, self._seconds(plan, device))
        padding = -1 if plan.padding is None else plan.padding
        extras = [
            units, per_task, plan.rows, plan.weight.shape[1], padding, source.strides[-1],
            target.strides[-1], plan.weight.strides[0], count, *nest.extents, *nest.bases,
            *_flat(nest.strides),
        ]  # fmt: skip
        trace = _trace_forward if forward else _trace_backward
        library = load("embedding", code, device.isa, lambda module: trace(module, code))
        phases = [("gather", tasks)] if forward else [("sort", 1), ("sum", tasks)]
        return CpuKernel(library, phases, 3, device.threads, extras)


def _flat(strides: Sequence[Sequence[int]]) -> list[int]:
    return [step for steps in strides for step in steps]
