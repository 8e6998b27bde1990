"""The matrix products of recurrent layers: weights packed once into panels, rows times panels in tiles.

    panel : [depth][vectors * lanes], what one tile's columns need, in the order in which it is read
    tile  : sums of a few rows by a few vectors in registers (microkernel/gemm.py), then a small tile in memory

The rows are read where they are: in the states of all sequences, or in the rows of all steps. A tile that would
reach beyond the last row begins before it and its first sums are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.rnn.memory_layout import Code, Frame
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

ROWS_A_TASK = 96  # of a product over all steps
TILES_A_GROUP = 12  # of a step: their sums stay in the first cache
CHUNK_BYTES = 12 << 10  # of a panel, which stays there too while the tiles of a group go by


@dataclass(frozen=True)
class Product:
    """rows (pitch apart) times panels of `vectors`; the depth is a nest of (extent, step in a row)."""

    rows: int
    pitch: int
    vectors: int
    nest: tuple[tuple[int, int], ...]

    @property
    def depth(self) -> int:
        depth = 1
        for extent, _ in self.nest:
            depth *= extent
        return depth

    def panel(self, lanes: int) -> int:
        """Elements of one panel."""
        return self.depth * self.vectors * lanes

    def tile(self, lanes: int) -> int:
        return self.rows * self.vectors * lanes

    def trace(self, module: Module, name: str, dtype: str) -> Function:
        lanes = module.isa.lanes(dtype)
        loops, inner = [], self.vectors * lanes
        for extent, step in reversed(self.nest):
            loops.append(Loop(extent, step, inner))
            inner *= extent
        offsets = [i * self.pitch for i in range(self.rows)]
        kept = [loop for loop in reversed(loops) if loop.extent != 1]
        return trace_microkernel(module, name, dtype, offsets, self.vectors, kept)

    def trace_chunk(self, module: Module, name: str, dtype: str) -> Function:
        """The same for a piece of the innermost loop, given at run time, added to the sums in memory."""
        offsets = [i * self.pitch for i in range(self.rows)]
        loops = [Loop(None, self.nest[-1][1], self.vectors * module.isa.lanes(dtype))]
        return trace_microkernel(module, name, dtype, offsets, self.vectors, loops, accumulate=True)

    def chunk(self, batch: int, lanes: int, bytes_each: int) -> int:
        """How much of the innermost loop to do at once: all of it where a panel is read only once."""
        inner = self.nest[-1][0]
        if batch <= self.rows:
            return inner
        return min(inner, max(16, CHUNK_BYTES // (self.vectors * lanes * bytes_each)))

    def group(self, lanes: int) -> int:
        """Elements of the sums of a group of tiles."""
        return TILES_A_GROUP * self.tile(lanes)


def trace_transposed(module: Module, name: str, code: Code, stride: int, pitch: int) -> Function:
    """Trace ``name(w, panel, valid, depth)``: `valid` rows of a matrix (`stride` apart) as lanes of a panel."""
    with module.function(name, w=code.p.element, panel=code.dtype, valid=None, depth=None) as (
        k, (w, panel, valid, depth), function,
    ):  # fmt: skip
        copy_transposed(k, w, stride, valid, depth, panel, pitch, k.lanes(code.dtype))
    return function


def trace_straight(module: Module, name: str, code: Code, stride: int, pitch: int) -> Function:
    """Trace ``name(w, panel, valid, depth)``: `valid` columns of `depth` rows (`stride` apart) as lanes of a panel."""
    with module.function(name, w=code.p.element, panel=code.dtype, valid=None, depth=None) as (
        k, (w, panel, valid, depth), function,
    ):  # fmt: skip
        lanes = k.lanes(code.dtype)
        mask = k.mask(valid, lanes)
        for i in k.range(depth):
            panel.store(w.load(i * stride, lanes, mask), i * pitch)
    return function


def step_sums(
    k: Builder, frame: Frame, product: Product, contract: Function, rows: Pointer, panel: Pointer, sums: Pointer,
    chunk: Value, count: Value, summed: Value,
) -> Iterator[tuple[Value, Pointer]]:  # fmt: skip
    """A loop over `count` sequences with each one's sums: of its row times the panel, for the first `summed` ones.

    `contract` is of `trace_chunk`. Of the other sequences the sums must not be read.
    """
    lanes, batch = frame.lanes, frame.number("batch")
    width, inner = product.vectors * lanes, product.nest[-1][0]
    outer = product.nest[0] if len(product.nest) > 1 else (1, 0)
    for first in k.range(0, count, TILES_A_GROUP * product.rows):
        last = (first + TILES_A_GROUP * product.rows).min(count)
        stop = last.min(summed)
        zero = k.constant(0, frame.code.dtype, lanes)
        reach = (stop - first + (product.rows - 1)).min(TILES_A_GROUP * product.rows)
        for at in k.range(0, reach * width, lanes):
            sums.store(zero, at)
        for turn in k.range(outer[0]):
            for done in k.range(0, inner, chunk):
                extent = (k.integer(inner) - done).min(chunk)
                data = rows + (turn * outer[1] + done * product.nest[-1][1])
                part = panel + (turn * inner + done) * width
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
    module: Module, code: Code, task_name: str, product: Product, columns: int,
    source: Callable[[Frame, Value], Pointer], panels: Callable[[Frame], Pointer],
    store: Callable[[Frame, Value, Value], Callable[[Value, Value], None]],
) -> None:  # fmt: skip
    """Trace a task of the product of all rows with all panels, to `columns` columns (a multiple of 16).

    Tasks: ceil(rows / ROWS_A_TASK) times the shares of the panels, `shares` at run time. `store(frame, layer,
    column)` gives what stores a row's vector: called with the row's number and the sums.
    """
    lanes = module.isa.lanes(code.dtype)
    width = product.vectors * lanes
    contract = product.trace(module, f"{task_name}.tile", code.dtype)
    count = -(-columns // width)
    with module.task(task_name) as (k, args, task, thread):
        frame = Frame(k, code, args)
        layer = frame.counter(0)
        used = frame.table("starts").load(frame.number("steps"))
        shares = frame.number("shares")
        chunk, share = task // shares, task % shares
        each = (shares + (count - 1)) // shares
        sums = frame.work("tiles") + thread * frame.number("tile")
        rows, packed = source(frame, layer), panels(frame)
        last = (chunk * ROWS_A_TASK + ROWS_A_TASK).min(used)
        for panel in k.range(share * each, (share * each + each).min(count)):
            b = packed + panel * product.panel(lanes)
            for start in k.range(chunk * ROWS_A_TASK, last, product.rows):
                stop = (start + product.rows).min(last)
                base = start.min(frame.number("rows") - product.rows)
                k.call(contract, rows + base * product.pitch, b, sums)
                for vector in range(product.vectors):
                    column = panel * width + vector * lanes
                    with k.when(column < columns):
                        put = store(frame, layer, column)
                        for row in k.range(start, stop):
                            put(row, sums.load((row - base) * width + vector * lanes, lanes))
