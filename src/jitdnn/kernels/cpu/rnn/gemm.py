"""The matrix products of recurrent layers: weights packed once into panels, rows times panels in tiles.

    panel : [depth][vectors * lanes], the columns of one tile, in the order in which they are read
    tile  : sums of a few rows by a few vectors in registers (microkernel/gemm.py), then a small tile in memory

The rows are not packed: they are the states of all sequences, or the rows of all steps. A tile that would reach beyond
the last row begins earlier, and its first sums are not used. plan.py draws the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, Memory
from jitdnn.kernels.cpu.rnn.plan import ROWS_PER_TASK, TILES_PER_GROUP, Product, RecurrentPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace_tile(module: Module, name: str, product: Product, dtype: str) -> Function:
    """Trace ``name(rows, panel, sums)``: the product of a tile."""
    loops, inner = [], product.vectors * module.isa.lanes(dtype)
    for extent, step in reversed(product.nest):
        loops.append(Loop(extent, step, inner))
        inner *= extent
    kept = [loop for loop in reversed(loops) if loop.extent != 1]
    return trace_microkernel(module, name, dtype, _row_offsets(product), product.vectors, kept)


def trace_tile_chunk(module: Module, name: str, product: Product, dtype: str) -> Function:
    """Trace ``name(rows, panel, sums, depth)``: a chunk of the innermost loop, added to the sums in memory."""
    loops = [Loop(None, product.nest[-1][1], product.vectors * module.isa.lanes(dtype))]
    offsets = _row_offsets(product)
    return trace_microkernel(module, name, dtype, offsets, product.vectors, loops, accumulate=True)


def _row_offsets(product: Product) -> list[int]:
    return [i * product.pitch for i in range(product.rows)]


def trace_transposed(module: Module, name: str, plan: RecurrentPlan, stride: int, pitch: int) -> Function:
    """Trace ``name(w, panel, valid, depth)``: `valid` rows of a matrix (`stride` apart) as lanes of a panel."""
    with module.function(name, w=plan.p.element, panel=plan.dtype, valid=None, depth=None) as (
        k, (w, panel, valid, depth), function,
    ):  # fmt: skip
        copy_transposed(k, w, stride, valid, depth, panel, pitch, k.lanes(plan.dtype))
    return function


def trace_copy(module: Module, name: str, plan: RecurrentPlan, stride: int, pitch: int) -> Function:
    """Trace ``name(w, panel, valid, depth)``: `valid` columns of `depth` rows (`stride` apart) as lanes of a panel."""
    with module.function(name, w=plan.p.element, panel=plan.dtype, valid=None, depth=None) as (
        k, (w, panel, valid, depth), function,
    ):  # fmt: skip
        lanes = k.lanes(plan.dtype)
        mask = k.mask(valid, lanes)
        for i in k.range(depth):
            panel.store(w.load(i * stride, lanes, mask), i * pitch)
    return function


def step_sums(
    k: Builder, memory: Memory, product: Product, contract: Function, rows: Pointer, panel: Pointer, sums: Pointer,
    chunk: Value, count: Value, summed: Value,
) -> Iterator[tuple[Value, Pointer]]:  # fmt: skip
    """A loop over `count` sequences and their sums: each row times the panel, for the first `summed` ones.

    `contract` is a `trace_tile_chunk`. The sums of the other sequences must not be read.
    """
    lanes, batch = memory.lanes, memory.integer("batch")
    width, inner = product.vectors * lanes, product.nest[-1][0]
    outer = product.nest[0] if len(product.nest) > 1 else (1, 0)
    for first in k.range(0, count, TILES_PER_GROUP * product.rows):
        last = (first + TILES_PER_GROUP * product.rows).min(count)
        stop = last.min(summed)
        zero = k.constant(0, memory.plan.dtype, lanes)
        reach = (stop - first + (product.rows - 1)).min(TILES_PER_GROUP * product.rows)
        for at in k.range(0, reach * width, lanes):
            sums.store(zero, at)
        for number in k.range(outer[0]):
            for done in k.range(0, inner, chunk):
                extent = (k.integer(inner) - done).min(chunk)
                data = rows + (number * outer[1] + done * product.nest[-1][1])
                part = panel + (number * inner + done) * width
                for start in k.range(first, stop, product.rows):
                    base = start.min(batch - product.rows)
                    k.call(
                        contract, data + base * product.pitch, part, sums + (start - first) * width, extent
                    )
        for start in k.range(first, last, product.rows):
            base = start.min(batch - product.rows)
            for n in k.range(start, (start + product.rows).min(last)):
                yield n, sums + (start - first + n - base) * width


def trace_rows_product(
    module: Module, plan: RecurrentPlan, task_name: str, product: Product, columns: int,
    source: Callable[[Memory, Value], Pointer],
    store: Callable[[Memory, Value, Value], Callable[[Value, Value], None]],
) -> None:  # fmt: skip
    """Trace a task of the product of all rows with panels of input weights, to `columns` columns (a multiple of 16).

    Tasks: ceil(rows / ROWS_PER_TASK) times the partitions of the panels, `shares` at run time. `store(memory, layer,
    column)` returns a function that stores a vector of a row, called with the row's number and the sums.
    """
    lanes = module.isa.lanes(plan.dtype)
    width = product.vectors * lanes
    contract = trace_tile(module, f"{task_name}.tile", product, plan.dtype)
    count = ceil_div(columns, width)
    with module.task(task_name) as (k, args, task, thread):
        memory = Memory(k, plan, args)
        layer = memory.counter(LAYER)
        used = memory.table("starts").load(memory.integer("steps"))
        shares = memory.integer("shares")
        chunk, share = task // shares, task % shares
        each = (shares + (count - 1)) // shares
        sums = memory.workspace("tiles") + thread * memory.integer("tile")
        rows, packed = source(memory, layer), memory.workspace("input_panels")
        last = (chunk * ROWS_PER_TASK + ROWS_PER_TASK).min(used)
        for panel in k.range(share * each, (share * each + each).min(count)):
            b = packed + panel * product.panel(lanes)
            for start in k.range(chunk * ROWS_PER_TASK, last, product.rows):
                stop = (start + product.rows).min(last)
                base = start.min(memory.integer("rows") - product.rows)
                k.call(contract, rows + base * product.pitch, b, sums)
                for vector in range(product.vectors):
                    column = panel * width + vector * lanes
                    with k.when(column < columns):
                        put = store(memory, layer, column)
                        for row in k.range(start, stop):
                            put(row, sums.load((row - base) * width + vector * lanes, lanes))
