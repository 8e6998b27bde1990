"""Elementwise loops over tensors that lie in one piece along different axes, such as copies between layouts.

A unit is a square of lanes x lanes elements: the vectors of the output go along its innermost axis (columns),
those of a crossed input along the axis before (rows). A crossed input's square is transposed in registers and
put down in a small buffer; then the rows are done one after the other, as in any elementwise loop.

    task > unit = one square > rows of the square

Neighbouring units follow along the shorter of the two axes, so that the lines of the longer one, of which a
square takes a part, are complete before they leave the cache.
"""

from __future__ import annotations

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.loops import Counter, Scale
from jitdnn.kernels.cpu.nest import CROSSED, REPEATED, UNIT, ElementwiseCode
from jitdnn.kernels.cpu.transpose import transpose
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower


def trace_tiles(module: Module, code: ElementwiseCode) -> None:
    """Trace the kernel; the last axis of the nest is that of the columns, the one before that of the rows."""
    tensors, axes = code.tensors, code.axes
    with module.task("elementwise") as (k, args, task, _):
        lanes = k.lanes(code.computing)
        arguments = Arguments(k, args, tensors)
        units, per_task, columns, _block, column_blocks = (arguments.extra(i) for i in range(5))
        outer = [arguments.extra(5 + i) for i in range(axes - 2)]
        rows = arguments.extra(5 + axes - 2)
        bases = [arguments.extra(4 + axes + i) for i in range(tensors)]
        first_stride = 4 + axes + tensors
        strides = [
            [arguments.extra(first_stride + t * axes + a) for a in range(axes)] for t in range(tensors)
        ]
        extents = [*outer, (rows + (lanes - 1)) // lanes, column_blocks]
        steps = [[*s[:-2], s[-2] * lanes, s[-1] * lanes] for s in strides]
        if code.is_wide:  # rows are the shorter axis
            extents = [*extents[:-2], extents[-1], extents[-2]]
            steps = [[*s[:-2], s[-1], s[-2]] for s in steps]
        row_digit, column_digit = (axes - 1, axes - 2) if code.is_wide else (axes - 2, axes - 1)
        pointers = [arguments.pointer(t, d).as_real(code.computing) for t, d in enumerate(code.dtypes)]
        buffers = [k.local(code.computing, lanes * lanes) if m == CROSSED else None for m in code.moves]
        square = _Square(k, code, strides, buffers, Scale(k, arguments, code.computing))
        first = task * per_task
        counter = Counter(k, first, extents, steps, bases)
        for _unit in k.range(first, (first + per_task).min(units)):
            here = [p + offset.get() for p, offset in zip(pointers, counter.offsets, strict=True)]
            down = (rows - counter.digits[row_digit].get() * lanes).min(lanes)
            across = (columns - counter.digits[column_digit].get() * lanes).min(lanes)
            square.turn(here, down, across)
            square.finish(here, down, across)
            counter.advance()


class _Square:
    def __init__(
        self,
        k: Builder,
        code: ElementwiseCode,
        strides: list[list[Value]],
        buffers: list[Pointer | None],
        scale: Scale,
    ) -> None:
        self.k, self.code, self.strides, self.buffers, self.scale = k, code, strides, buffers, scale
        self.lanes = k.lanes(code.computing)

    def turn(self, here: list[Pointer], down: Value, across: Value) -> None:
        """Put the squares of crossed inputs into their buffers, row by row of the output."""
        k, lanes = self.k, self.lanes
        for pointer, steps, buffer in zip(here, self.strides, self.buffers, strict=True):
            if buffer is None:
                continue
            is_full = (down == lanes) & (across == lanes)
            with k.when(is_full):
                loaded = [(pointer + column * steps[-1]).load(0, lanes) for column in range(lanes)]
                self._put(buffer, loaded)
            with k.when(~is_full):
                counts = [k.select(across > column, down, 0) for column in range(lanes)]
                loaded = [
                    (pointer + column * steps[-1]).load(0, lanes, k.mask(count, lanes))
                    for column, count in enumerate(counts)
                ]
                self._put(buffer, loaded)

    def _put(self, buffer: Pointer, loaded: list[Value]) -> None:
        for row, value in enumerate(transpose(self.k, loaded)):
            buffer.store(value, row * self.lanes)

    def finish(self, here: list[Pointer], down: Value, across: Value) -> None:
        """Compute and store the rows."""
        k, lanes = self.k, self.lanes
        with k.when(across == lanes):
            for row in k.range(down):
                self._row(here, row, None)
        with k.when(across < lanes):
            for row in k.range(down):
                self._row(here, row, k.mask(across, lanes))

    def _row(self, here: list[Pointer], row: Value, mask: Value | None) -> None:
        k, code = self.k, self.code
        inputs = [self._input(tensor, here[tensor], row, mask) for tensor in range(code.inputs)]
        results = [
            k.splat(lower(k, expression, inputs, code.computing), self.lanes)
            for expression in code.expressions
        ]
        for number, result in enumerate(results):
            tensor = code.inputs + number
            target, steps = here[tensor] + row * self.strides[tensor][-2], self.strides[tensor]
            stride = 1 if code.moves[tensor] == UNIT else steps[-1]
            if number in code.plain:
                target.store_strided(result, 0, stride, mask)
            else:
                self.scale.store(target, stride, result, mask)

    def _input(self, tensor: int, pointer: Pointer, row: Value, mask: Value | None) -> Value:
        buffer, move, steps = self.buffers[tensor], self.code.moves[tensor], self.strides[tensor]
        if buffer is not None:
            return buffer.load(row * self.lanes, self.lanes)
        there = pointer + row * steps[-2]
        if move == REPEATED:
            return there.splat(0, self.lanes)
        return there.load_strided(0, 1 if move == UNIT else steps[-1], self.lanes, mask)
