"""Elementwise loops over tensors that lie in one piece along different axes, such as copies between layouts.

The vectors of the output go along its innermost axis (columns), those of a crossed input along the axis before
(rows). A unit is a block of both, a few lines of memory long either way: each square of lanes x lanes of a crossed
input is transposed in registers and put down in a small buffer; then the rows of the block are done one after the
other, as in any elementwise loop.

    task > unit = one block > rows of the block > vectors of the row

So memory is read and written in whole lines, several of them in one piece. Every column of a block is another stream
of a crossed input, more of them than the processor's own prefetchers follow: the next block is prefetched.
"""

from __future__ import annotations

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.elementwise.key import ElementwiseCode
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.kernels.formulas.loop_nest import CROSSED, REPEATED, UNIT
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.types import INT

_BLOCK_BYTES = 128, 256  # of a column of a block, and of a row


def block_size(dtype: str) -> tuple[int, int]:
    """Rows and columns of a block."""
    height, width = (size // ITEM_BYTES[dtype] for size in _BLOCK_BYTES)
    return height, width


def trace_tiles(module: Module, code: ElementwiseCode) -> None:
    """Trace the kernel; the last axis of the nest is that of the columns, the one before that of the rows."""
    tensors, axes = code.tensors, code.axes
    height, width = block_size(code.computing)
    with module.task("elementwise") as (k, args, task, _):
        arguments = Arguments(k, args, tensors)
        units, per_task, columns, _block, column_blocks = (arguments.extra(i) for i in range(5))
        outer = [arguments.extra(5 + i) for i in range(axes - 2)]
        rows = arguments.extra(5 + axes - 2)
        bases = [arguments.extra(4 + axes + i) for i in range(tensors)]
        first_stride = 4 + axes + tensors
        strides = [
            [arguments.extra(first_stride + t * axes + a) for a in range(axes)] for t in range(tensors)
        ]
        # blocks follow each other along the lines of crossed inputs
        extents = [*outer, column_blocks, (rows + (height - 1)) // height]
        steps = [[*s[:-2], s[-1] * width, s[-2] * height] for s in strides]
        pointers = [arguments.pointer(t, d).as_real(code.computing) for t, d in enumerate(code.dtypes)]
        buffers = [k.local(code.computing, height * width) if m == CROSSED else None for m in code.moves]
        block = _Block(k, code, strides, buffers, Scale(k, arguments, code.computing))
        first = task * per_task
        counter = Counter(k, first, extents, steps, bases)
        for _unit in k.range(first, (first + per_task).min(units)):
            here = [p + offset.get() for p, offset in zip(pointers, counter.offsets, strict=True)]
            down = (rows - counter.digits[-1].get() * height).min(height)
            across = (columns - counter.digits[-2].get() * width).min(width)
            counter.advance()
            coming = [p + offset.get() for p, offset in zip(pointers, counter.offsets, strict=True)]
            block.transpose_inputs(here, coming, down, across)
            for row in k.range(down):
                block.finish([p + row * s[-2] for p, s in zip(here, strides, strict=True)], row, across)


class _Block:
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
        self.height, self.width = block_size(code.computing)

    def transpose_inputs(
        self, here: list[Pointer], coming: list[Pointer], down: Value, across: Value
    ) -> None:
        """Put the block of each crossed input into its buffer, row by row of the output; prefetch the next one."""
        k, lanes = self.k, self.lanes
        for pointer, later, steps, buffer in zip(here, coming, self.strides, self.buffers, strict=True):
            if buffer is None:
                continue
            is_full = (down == self.height) & (across == self.width)
            with k.when(is_full):
                for column in k.range(0, self.width, lanes):
                    for row in k.range(0, self.height, lanes):
                        offsets = [(column + c) * steps[-1] for c in range(lanes)]
                        for offset in offsets:  # they may all fall into one set of the nearest cache
                            (later + offset).prefetch(row, nearest=False)
                        loaded = [(pointer + offset).load(row, lanes) for offset in offsets]
                        self._put(buffer + column + row * self.width, loaded)
            with k.when(~is_full):
                for column in k.range(0, across, lanes):
                    for row in k.range(0, down, lanes):
                        counts = [k.select(across > column + c, down - row, 0) for c in range(lanes)]
                        loaded = [
                            pointer.load((column + c) * steps[-1] + row, lanes, k.mask(count, lanes))
                            for c, count in enumerate(counts)
                        ]
                        self._put(buffer + column + row * self.width, loaded)

    def _put(self, corner: Pointer, loaded: list[Value]) -> None:
        for row, value in enumerate(transpose(self.k, loaded)):
            corner.store(value, row * self.width)

    def finish(self, here: list[Pointer], row: Value, across: Value) -> None:
        """Compute and store one row; `here` is where it begins in each tensor."""
        k, lanes = self.k, self.lanes
        if not self.code.streams:
            whole = (across // lanes) * lanes
            for c in k.range(0, whole, lanes):
                self._vector(here, row, c, None)
            with k.when(whole < across):
                self._vector(here, row, whole, k.mask(across - whole, lanes))
            return
        item = ITEM_BYTES[self.code.dtypes[-1]]
        address = Value(k, k.b.ptrtoint(here[-1].v, INT))
        head = (((0 - address) & (lanes * item - 1)) // item).min(across)
        with k.when(head > 0):
            self._vector(here, row, k.integer(0), k.mask(head, lanes))
        whole = head + ((across - head) // lanes) * lanes
        overwrites = self.scale.overwrites(here[-1])
        with k.when(overwrites):
            for c in k.range(head, whole, lanes):
                (result,) = self._results(here, row, c, None)
                (here[-1] + c).stream(result * k.splat(self.scale.alpha, lanes))
        with k.when(~overwrites):
            for c in k.range(head, whole, lanes):
                self._vector(here, row, c, None)
        with k.when(whole < across):
            self._vector(here, row, whole, k.mask(across - whole, lanes))

    def _results(self, here: list[Pointer], row: Value, column: Value, mask: Value | None) -> list[Value]:
        """A vector of each output."""
        k, code = self.k, self.code
        inputs = [self._input(tensor, here[tensor], row, column, mask) for tensor in range(code.inputs)]
        return [
            k.splat(lower(k, expression, inputs, code.computing), self.lanes)
            for expression in code.expressions
        ]

    def _vector(self, here: list[Pointer], row: Value, column: Value, mask: Value | None) -> None:
        code = self.code
        for number, result in enumerate(self._results(here, row, column, mask)):
            tensor = code.inputs + number
            stride = 1 if code.moves[tensor] == UNIT else self.strides[tensor][-1]
            target = here[tensor] + column * stride
            if number in code.plain:
                target.store_strided(result, 0, stride, mask)
            else:
                self.scale.store(target, stride, result, mask)

    def _input(self, tensor: int, pointer: Pointer, row: Value, column: Value, mask: Value | None) -> Value:
        buffer, move, step = self.buffers[tensor], self.code.moves[tensor], self.strides[tensor][-1]
        if buffer is not None:
            return buffer.load(row * self.width + column, self.lanes, mask)
        if move == REPEATED:
            return pointer.splat(0, self.lanes)
        stride = 1 if move == UNIT else step
        return (pointer + column * stride).load_strided(0, stride, self.lanes, mask)
