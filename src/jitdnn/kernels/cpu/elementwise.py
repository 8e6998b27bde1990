"""Loops over the elements of strided tensors, made from an expression of what happens to one element.

    out[i] = alpha * expression(a[i], b[i], ...) + beta * out[i]        (out is not read where beta is 0)

The axes are brought into the order of the output's memory, and joined where every tensor allows it; a dense
tensor becomes one run whatever its rank. The innermost axis is cut into blocks, the vectors go along it:

    task > unit = one block of one row > vectors of the block

Extents and strides are arguments of the code, so that one compiled kernel serves every size. What is
compiled in is the number of axes and how each tensor moves along the innermost one: by 1 (vector loads), by 0
(one element for all), or by any stride (gathers). Where a tensor is gathered, the blocks are one vector long
and go along the row in the outer loop: then the next unit finds its neighbours in the cache lines just
gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.loops import Counter, task_count
from jitdnn.kernels.cpu.timing import LAUNCH_SECONDS
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.values import INT
from jitdnn.tensor import TensorDescriptor

UNIT, REPEATED, STRIDED = "unit", "repeated", "strided"

_CORE_BYTES_PER_SECOND = 20e9  # what one core moves between the caches and memory
_GATHER_SECONDS = 0.6e-9  # for one element
_FUNCTION_SECONDS = {4: 0.1e-9, 8: 0.4e-9}  # exp and its like in vectors of 64 bytes, by bytes of an element
_STREAM_BYTES = 48 << 20  # outputs from here on do not fit any cache: they are written past it


@dataclass(frozen=True)
class Nest:
    """Loops over one box of elements in several tensors, outermost first; the output is the last tensor.

    ``strides[tensor][axis]`` and ``bases[tensor]`` count elements.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    bases: tuple[int, ...]

    @staticmethod
    def of(tensors: Sequence[TensorDescriptor]) -> Nest:
        """The shortest nest over tensors of one shape, whose order is that of the last one's memory."""
        output = tensors[-1]
        bases = [0] * len(tensors)
        axes: list[tuple[int, list[int]]] = []
        for axis, extent in enumerate(output.shape):
            if extent == 1:
                continue
            steps = [tensor.strides[axis] for tensor in tensors]
            if steps[-1] < 0:  # walk the other way
                bases = [base + (extent - 1) * step for base, step in zip(bases, steps, strict=True)]
                steps = [-step for step in steps]
            axes.append((extent, steps))
        axes.sort(key=lambda axis: -axis[1][-1])
        joined: list[tuple[int, list[int]]] = []
        for extent, steps in axes:
            if joined and all(
                outer == extent * inner for outer, inner in zip(joined[-1][1], steps, strict=True)
            ):
                joined[-1] = (joined[-1][0] * extent, steps)
            else:
                joined.append((extent, steps))
        if not joined:
            joined.append((1, [1] * len(tensors)))
        return Nest(
            tuple(extent for extent, _ in joined),
            tuple(zip(*(steps for _, steps in joined), strict=True)),
            tuple(bases),
        )

    @property
    def size(self) -> int:
        return prod(self.extents)

    def moves(self) -> tuple[str, ...]:
        """How each tensor moves along the innermost axis."""
        return tuple({1: UNIT, 0: REPEATED}.get(steps[-1], STRIDED) for steps in self.strides)


@dataclass(frozen=True)
class _Shape:
    """What is compiled in: the part of a nest that the code depends on."""

    dtype: str
    expression: Expression
    axes: int
    moves: tuple[str, ...]
    streams: bool

    @property
    def is_gathered(self) -> bool:
        return STRIDED in self.moves

    @property
    def tensors(self) -> int:
        return len(self.moves)

    def __repr__(self) -> str:
        return f"{self.dtype} {self.expression.key} {self.axes} {self.moves} {self.streams}"


def element_seconds(expression: Expression, moves: Sequence[str], dtype: str, vector_bytes: int) -> float:
    """Seconds that one thread takes for one element."""
    size = ITEM_BYTES[dtype]
    moved = sum(size for move in moves if move != REPEATED) / _CORE_BYTES_PER_SECOND
    gathered = sum(_GATHER_SECONDS for move in moves if move == STRIDED)
    functions = sum(
        s.operation in OPERATIONS and OPERATIONS[s.operation].is_function and s.operation not in _CHEAP
        for s in expression.instructions
    )
    return moved + gathered + functions * _FUNCTION_SECONDS[size] * 64 / vector_bytes


_CHEAP = frozenset({"absolute", "minimum", "maximum", "where"})


def estimate_elementwise(
    expression: Expression, tensors: Sequence[TensorDescriptor], device: Device
) -> float:
    """Expected seconds of the kernel that ``build_elementwise`` makes."""
    nest = Nest.of(tensors)
    dtype, isa = tensors[-1].dtype, cast(CpuDevice, device).isa
    alone = nest.size * element_seconds(expression, nest.moves(), dtype, isa.vector_bytes)
    return LAUNCH_SECONDS + alone / min(device.threads, task_count(device, alone))


def build_elementwise(
    expression: Expression, tensors: Sequence[TensorDescriptor], device: Device
) -> CpuKernel:
    """The kernel of ``expression`` over tensors of one shape: its inputs in order, then the output.

    An input that is broadcast has stride 0. The output may be one of the inputs.
    """
    processor = cast(CpuDevice, device)
    nest, dtype = Nest.of(tensors), tensors[-1].dtype
    lanes = processor.isa.lanes(dtype)
    moves = nest.moves()
    streams = moves[-1] == UNIT and tensors[-1].nbytes >= _STREAM_BYTES and STRIDED not in moves
    shape = _Shape(dtype, expression, len(nest.extents), moves, streams)
    library = load("elementwise", shape, processor.isa, lambda module: _trace(module, shape))
    alone = nest.size * element_seconds(expression, moves, dtype, processor.isa.vector_bytes)
    tasks = task_count(device, alone)
    rows, run = prod(nest.extents[:-1]), nest.extents[-1]
    block = lanes if shape.is_gathered else run
    if rows < tasks and not shape.is_gathered:
        per_row = -(-tasks // max(1, rows))
        block = -(-run // (per_row * 8 * lanes)) * 8 * lanes
    blocks = -(-run // block) if run else 0
    units = rows * blocks
    per_task = -(-units // tasks)
    extras = [
        units, max(1, per_task), run, block, blocks, *nest.extents[:-1], *nest.bases,
        *(step for steps in nest.strides for step in steps),
    ]  # fmt: skip
    return CpuKernel(
        library, [("elementwise", -(-units // per_task) if units else 0)], len(tensors),
        processor.threads if tasks > 1 else 1, extras,
    )  # fmt: skip


def _trace(module: Module, shape: _Shape) -> None:
    tensors, axes = shape.tensors, shape.axes
    with module.task("elementwise") as (k, args, task, _):
        arguments = Arguments(k, args, tensors)
        units, per_task, run, block, blocks = (arguments.extra(i) for i in range(5))
        rows = [arguments.extra(5 + i) for i in range(axes - 1)]
        bases = [arguments.extra(4 + axes + i) for i in range(tensors)]
        first_stride = 4 + axes + tensors
        strides = [
            [arguments.extra(first_stride + t * axes + a) for a in range(axes)] for t in range(tensors)
        ]
        inner = [steps[-1] for steps in strides]
        jumps = [block * step for step in inner]
        # the digit of the block is the last one; with gathers it goes before the innermost row axis
        place = max(0, axes - 2) if shape.is_gathered else axes - 1
        extents = [*rows[:place], blocks, *rows[place:]]
        steps = [[*s[:-1][:place], jump, *s[:-1][place:]] for s, jump in zip(strides, jumps, strict=True)]
        alpha, beta = arguments.alpha(shape.dtype), arguments.beta(shape.dtype)
        pointers = [arguments.pointer(t, shape.dtype) for t in range(tensors)]
        first = task * per_task
        last = (first + per_task).min(units)

        def body(blends: bool) -> None:
            counter = Counter(k, first, extents, steps, bases)
            for _unit in k.range(first, last):
                here = [p + offset.get() for p, offset in zip(pointers, counter.offsets, strict=True)]
                start = counter.digits[place].get() * block
                row = _Row(k, shape, here, inner, alpha, beta if blends else None)
                row.run((run - start).min(block))
                counter.advance()

        with k.when(beta == 0.0):
            body(blends=False)
        with k.when(beta != 0.0):
            body(blends=True)


class _Row:
    """One unit: a run of elements, vector by vector."""

    def __init__(
        self,
        k: Builder,
        shape: _Shape,
        pointers: Sequence[Pointer],
        strides: Sequence[Value],
        alpha: Value,
        beta: Value | None,
    ) -> None:
        self.k, self.shape, self.pointers = k, shape, pointers
        self.lanes = k.lanes(shape.dtype)
        self.strides: list[Any] = [
            {UNIT: 1, REPEATED: 0}.get(move, stride)
            for move, stride in zip(shape.moves, strides, strict=True)
        ]
        self.alpha = k.splat(alpha, self.lanes)
        self.beta = None if beta is None else k.splat(beta, self.lanes)
        # what is the same for the whole run is loaded once
        self.repeated = {
            t: pointer.splat(0, self.lanes)
            for t, (pointer, move) in enumerate(zip(pointers, shape.moves, strict=True))
            if move == REPEATED and t < shape.tensors - 1
        }

    def run(self, count: Value) -> None:
        k, lanes = self.k, self.lanes
        if self.shape.is_gathered:  # the unit is one vector at most, and stands at its own place already
            self.step(k.integer(0), k.mask(count, lanes), self.store)
            return
        start: Value = k.integer(0)
        if self.shape.streams:
            start = self._head(count)
        wide = lanes * 4
        rest = start + ((count - start) // wide) * wide
        store = self.stream if self.shape.streams else self.store
        for i in k.range(start, rest, wide):
            for vector in range(4):
                self.step(i + vector * lanes, None, store)
        for i in k.range(rest, count, lanes):
            self.step(i, k.mask(count - i, lanes), self.store)

    def _head(self, count: Value) -> Value:
        """Do the elements before the output's first aligned vector; returns their number."""
        k, item = self.k, ITEM_BYTES[self.shape.dtype]
        address = Value(k, k.b.ptrtoint(self.pointers[-1].v, INT))
        ahead = (0 - address) & (self.lanes * item - 1)
        head = (ahead // item).min(count)
        self.step(k.integer(0), k.mask(head, self.lanes), self.store)
        return head

    def step(self, i: Value, mask: Value | None, store: Callable[[Value, Value, Value | None], None]) -> None:
        inputs = [
            self.repeated[t] if t in self.repeated else p.load_strided(i, s, self.lanes, mask)
            for t, (p, s) in enumerate(zip(self.pointers[:-1], self.strides, strict=False))
        ]
        result = lower(self.k, self.shape.expression, inputs) * self.alpha
        if self.beta is not None:
            old = self.pointers[-1].load_strided(i, self.strides[-1], self.lanes, mask)
            result = self.k.fma(self.beta, old, result)
        store(result, i, mask)

    def store(self, result: Value, i: Value, mask: Value | None) -> None:
        self.pointers[-1].store_strided(result, i, self.strides[-1], mask)

    def stream(self, result: Value, i: Value, mask: Value | None) -> None:
        assert mask is None
        self.pointers[-1].stream(result, i)
