"""The matrix products of recurrent layers: weights packed once into panels, rows times panels in tiles.

    panel : [depth][vectors * lanes], what one tile's columns need, in the order in which it is read
    tile  : sums of a few rows by a few vectors in registers (contraction.py), then a small tile in memory

The rows are read where they are: in the states of all sequences, or in the rows of all steps. A tile that would
reach beyond the last row begins before it and its first sums are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jitdnn.kernels.cpu.contraction import Loop, trace_contraction
from jitdnn.kernels.cpu.rnn_frame import Code, Frame
from jitdnn.kernels.cpu.transpose import copy_transposed
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

ROWS_A_TASK = 96  # of a product over all steps


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
        return trace_contraction(module, name, dtype, offsets, self.vectors, kept)


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


def tiles(
    k: Builder, count: Value, rows: int, available: Value, first: int | Value = 0
) -> Iterator[tuple[Value, Value, Value]]:
    """A loop over tiles: (first row, row behind the last, row at which the tile's sums begin)."""
    for start in k.range(first, count, rows):
        yield start, (start + rows).min(count), start.min(available - rows)


def trace_rows_product(
    module: Module, code: Code, task_name: str, product: Product, columns: int,
    source: Callable[[Frame, Value], Pointer], panels: Callable[[Frame], Pointer],
    store: Callable[[Builder, Frame, Value, Value], Callable[[Value, Value], None]],
) -> None:  # fmt: skip
    """Trace a task of the product of all rows with all panels, to `columns` columns (a multiple of 16).

    Tasks: ceil(rows / ROWS_A_TASK) times the shares of the panels, `shares` at run time. `store(k, frame, layer,
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
            for start, stop, base in tiles(k, last, product.rows, frame.number("rows"), chunk * ROWS_A_TASK):
                k.call(contract, rows + base * product.pitch, b, sums)
                for vector in range(product.vectors):
                    column = panel * width + vector * lanes
                    with k.when(column < columns):
                        put = store(k, frame, layer, column)
                        for row in k.range(start, stop):
                            put(row, sums.load((row - base) * width + vector * lanes, lanes))
