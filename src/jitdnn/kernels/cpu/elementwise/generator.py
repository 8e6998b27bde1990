"""Loops over the elements of strided tensors, made from expressions of what happens to one element.

    out[i] = alpha * expression(a[i], b[i], ...) + beta * out[i]        (out is not read where beta is 0)

There may be several outputs, each with its expression, and every tensor has an element type of its own. The axes are
brought into the order of the first output's memory, and joined where every tensor allows it; a dense
tensor becomes one run whatever its rank. The innermost axis is cut into blocks, the vectors go along it:

    task > unit = one block of one row > vectors of the block

Extents and strides are arguments of the code, so that one compiled kernel serves every size. What is
compiled in is the number of axes and how each tensor moves along the innermost one: by 1 (vector loads), by 0
(one element for all), or by any stride (gathers). Where a tensor is gathered, the blocks are one vector long
and go along the row in the outer loop: then the next unit finds its neighbours in the cache lines just
gathered. A tensor that lies in one piece along another axis is read in squares (``transposing``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.elementwise.key import ElementwiseCode
from jitdnn.kernels.cpu.elementwise.transposing import block_size, trace_tiles
from jitdnn.kernels.cpu.microkernel.scale import store_scaled
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units, task_count
from jitdnn.kernels.formulas.elementwise import as_sequence, computing_dtype
from jitdnn.kernels.formulas.loop_nest import CROSSED, REPEATED, STRIDED, UNIT, Nest
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.rtcg.lowering import lower_together
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.storage import widen
from jitdnn.rtcg.types import INT
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor

_STRIDED_SECONDS = {STRIDED: 0.6e-9, CROSSED: 0.1e-9}  # more for an element of a tensor that moves like this
_FUNCTION_SECONDS = {4: 0.1e-9, 8: 0.4e-9}  # exp and its like in vectors of 64 bytes, by bytes of an element
_CHEAP = frozenset({"absolute", "ceil", "floor", "maximum", "minimum", "rint", "sign", "trunc", "where"})
# bytes in one piece, or looking for aligned addresses costs more than it brings; and where all pieces begin alike
_STREAM_RUN, _STREAM_ALIGNED_RUN = 2048, 512


def element_seconds(
    expressions: Sequence[Expression], moves: Sequence[str], dtypes: Sequence[str], isa: Isa
) -> float:
    """Seconds that one thread takes for one element."""
    moved = sum(ITEM_BYTES[dtype] for move, dtype in zip(moves, dtypes, strict=True) if move != REPEATED)
    gathered = sum(_STRIDED_SECONDS.get(move, 0.0) for move in moves)
    functions = {
        s
        for expression in expressions
        for s in expression.instructions
        if s.operation in OPERATIONS and OPERATIONS[s.operation].is_function and s.operation not in _CHEAP
    }
    each = _FUNCTION_SECONDS[ITEM_BYTES[computing_dtype(dtypes)]] * 64 / isa.vector_bytes
    speed = cost.memory_speed(isa.processor, cost.ELEMENTWISE_MEMORY_RATE)
    return moved / speed + gathered + len(functions) * each


def estimate_elementwise(
    expressions: Expression | Sequence[Expression], tensors: Sequence[TensorDescriptor], device: Device
) -> float:
    """Expected seconds of the kernel that ``build_elementwise`` makes."""
    expressions, isa = as_sequence(expressions), cast(CpuDevice, device).isa
    dtypes = [tensor.dtype for tensor in tensors]
    nest, moves = Nest.of(tensors, len(tensors) - len(expressions)).crossed(
        isa.lanes(computing_dtype(dtypes))
    )
    alone = nest.size * element_seconds(expressions, moves, dtypes, isa)
    return LAUNCH_SECONDS + alone / min(device.threads, task_count(device, alone))


def build_elementwise(
    expressions: Expression | Sequence[Expression],
    tensors: Sequence[TensorDescriptor],
    device: Device,
    plain: Sequence[int] = (),
    computing: str | None = None,
) -> CpuKernel:
    """The kernel of an expression, or several, over tensors of one shape: the inputs, then an output for each.

    An input that is broadcast has stride 0. Outputs may be inputs. Alpha and beta do not touch
    the outputs whose positions among them are in ``plain``. Where ``computing`` does not say otherwise, integers alone
    are computed as 64 bits that wrap; where there is a real number all are real, and rounded and saturated where
    integers are stored.
    """
    processor, expressions = cast(CpuDevice, device), as_sequence(expressions)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    computing = computing or computing_dtype(dtypes)
    lanes = processor.isa.lanes(computing)
    nest, moves = Nest.of(tensors, len(tensors) - len(expressions)).crossed(lanes)
    output = tensors[nest.inputs]
    run = nest.extents[-1]
    is_crossed = CROSSED in moves
    # integers that are computed as such may still be scaled: tiles do not stream them
    can_stream = (
        computing in REAL_DTYPES and not plain
        if is_crossed
        else _has_long_runs(nest, ITEM_BYTES[output.dtype], processor.isa.vector_bytes)
    )
    code = ElementwiseCode(
        computing, dtypes, expressions, len(nest.extents), moves,
        streams=can_stream and moves[nest.inputs] == UNIT and STRIDED not in moves and len(expressions) == 1
        and output.nbytes >= processor.isa.processor.last_cache(cost.ELEMENTWISE_STREAM),
        plain=tuple(plain),
    )  # fmt: skip
    seconds = nest.size * element_seconds(expressions, moves, dtypes, processor.isa)
    blocks, block = _blocks(nest, code, lanes, task_count(device, seconds))
    units = prod(nest.extents[:-1]) * blocks
    if is_crossed:
        units = prod(nest.extents[:-2]) * -(-nest.extents[-2] // block_size(computing)[0]) * blocks
    tasks, per_task = split_units(units, device, seconds)
    extras = [
        units, per_task, run, block, blocks, *nest.extents[:-1], *nest.bases,
        *(step for steps in nest.strides for step in steps),
    ]  # fmt: skip
    trace = trace_tiles if is_crossed else _trace
    library = load("elementwise", code, processor.isa, lambda module: trace(module, code))
    return CpuKernel(library, [("elementwise", tasks)], len(tensors), processor.threads, extras)


def _has_long_runs(nest: Nest, item: int, vector_bytes: int) -> bool:
    """Whether the pieces of the first output are long enough to be written past the caches."""
    run, rows = nest.extents[-1] * item, [step * item for step in nest.strides[nest.inputs][:-1]]
    are_alike = all(step % vector_bytes == 0 for step in rows)
    return run >= _STREAM_RUN or (are_alike and run >= _STREAM_ALIGNED_RUN)


def _blocks(nest: Nest, code: ElementwiseCode, lanes: int, tasks: int) -> tuple[int, int]:
    """Into how many blocks of what length a row is cut."""
    rows, run = prod(nest.extents[:-1]), nest.extents[-1]
    block = max(1, run)
    if CROSSED in code.moves:
        _, block = block_size(code.computing)
    elif STRIDED in code.moves:
        block = lanes
    elif rows < tasks:  # rows alone are not enough to share
        per_row = -(-tasks // max(1, rows))
        block = max(1, -(-run // (per_row * 8 * lanes))) * 8 * lanes
    return -(-run // block), block


def _trace(module: Module, code: ElementwiseCode) -> None:
    tensors, axes = code.tensors, code.axes
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
        place = max(0, axes - 2) if STRIDED in code.moves else axes - 1
        extents = [*rows[:place], blocks, *rows[place:]]
        steps = [[*s[:-1][:place], jump, *s[:-1][place:]] for s, jump in zip(strides, jumps, strict=True)]
        # integers are scaled in f64, and exact where they are not scaled
        is_real = not code.scales_whole
        scaling = code.computing if code.computing in REAL_DTYPES else "f64"
        alpha, beta = arguments.alpha(scaling), arguments.beta(scaling)
        factors = arguments.alpha("f64"), arguments.beta("f64")
        pointers = [arguments.pointer(t, d).as_real(code.computing) for t, d in enumerate(code.dtypes)]
        first = task * per_task
        last = (first + per_task).min(units)

        def body(alpha: Value | None, beta: Value | None) -> None:
            counter = Counter(k, first, extents, steps, bases)
            for _unit in k.range(first, last):
                here = [p + offset.get() for p, offset in zip(pointers, counter.offsets, strict=True)]
                start = counter.digits[place].get() * block
                row = _Row(k, code, here, inner, alpha, beta, factors)
                row.run((run - start).min(block))
                counter.advance()

        is_simple = beta == 0.0 if is_real else (factors[1] == 0.0) & (factors[0] == 1.0)
        with k.when(is_simple):
            body(alpha if is_real else None, None)
        with k.when(~is_simple):
            body(alpha, beta)


class _Row:
    """One unit: a run of elements, vector by vector."""

    def __init__(
        self,
        k: Builder,
        code: ElementwiseCode,
        pointers: Sequence[Pointer],
        strides: Sequence[Value],
        alpha: Value | None,
        beta: Value | None,
        factors: tuple[Value, Value],
    ) -> None:
        self.k, self.code, self.pointers, self.factors = k, code, pointers, factors
        self.lanes = k.lanes(code.computing)
        self.strides: list[Any] = [
            {UNIT: 1, REPEATED: 0}.get(move, stride) for move, stride in zip(code.moves, strides, strict=True)
        ]
        self.alpha = None if alpha is None else k.splat(alpha, self.lanes)
        self.beta = None if beta is None else k.splat(beta, self.lanes)
        # what is the same for the whole run is loaded once
        self.repeated = {
            t: pointer.splat(0, self.lanes)
            for t, (pointer, move) in enumerate(zip(pointers, code.moves, strict=True))
            if move == REPEATED and t < code.inputs
        }

    def run(self, count: Value) -> None:
        k, lanes = self.k, self.lanes
        if STRIDED in self.code.moves:  # the unit is one vector at most, and stands at its own place already
            self.step(k.integer(0), k.mask(count, lanes), self.store)
            return
        start: Value = k.integer(0)
        if self.code.streams:
            start = self._head(count)
        wide = lanes * 4
        rest = start + ((count - start) // wide) * wide
        store = self.stream if self.code.streams else self.store
        together = 4 if k.isa.registers >= 32 else 2  # with fewer registers, more would not fit
        for i in k.range(start, rest, wide):
            for first in range(0, 4, together):
                self.steps([i + (first + vector) * lanes for vector in range(together)], None, store)
        for i in k.range(rest, count, lanes):
            self.step(i, k.mask(count - i, lanes), self.store)

    def _head(self, count: Value) -> Value:
        """Do the elements before the output's first aligned vector; returns their number."""
        k, item = self.k, ITEM_BYTES[self.code.dtypes[-1]]
        address = Value(k, k.b.ptrtoint(self.pointers[-1].v, INT))
        ahead = (0 - address) & (self.lanes * item - 1)
        head = (ahead // item).min(count)
        self.step(k.integer(0), k.mask(head, self.lanes), self.store)
        return head

    def step(
        self, i: Value, mask: Value | None, store: Callable[[int, Value, Value, Value | None], None]
    ) -> None:
        self.steps([i], mask, store)

    def steps(
        self,
        places: Sequence[Value],
        mask: Value | None,
        store: Callable[[int, Value, Value, Value | None], None],
    ) -> None:
        """Vectors at several offsets at once."""
        k, code = self.k, self.code
        inputs = [
            [
                self.repeated[t]
                if t in self.repeated
                else self.pointers[t].load_strided(i, self.strides[t], self.lanes, mask)
                for t in range(code.inputs)
            ]
            for i in places
        ]
        # all are computed before one is stored: outputs may be inputs
        columns = [lower_together(k, expression, inputs, code.computing) for expression in code.expressions]
        for place, results in zip(places, zip(*columns, strict=True), strict=True):
            self.put([k.splat(result, self.lanes) for result in results], place, mask, store)

    def put(
        self,
        results: Sequence[Value],
        i: Value,
        mask: Value | None,
        store: Callable[[int, Value, Value, Value | None], None],
    ) -> None:
        """Store one vector of each result."""
        k, code = self.k, self.code
        for number, result in enumerate(results):
            t = code.inputs + number
            if number in code.plain or self.alpha is None:
                store(t, result, i, mask)
                continue
            target, stride = self.pointers[t], self.strides[t]
            if code.dtypes[t] not in REAL_DTYPES:
                place = target + (i * stride if isinstance(stride, Value) or stride != 1 else i)
                store_scaled(k, self.factors, place, stride, widen(k, result, code.computing, "f64"), mask)
                continue
            result = result * self.alpha
            if self.beta is not None:
                old = target.load_strided(i, stride, self.lanes, mask)
                result = k.fma(self.beta, old, result)
            store(t, result, i, mask)

    def store(self, tensor: int, result: Value, i: Value, mask: Value | None) -> None:
        self.pointers[tensor].store_strided(result, i, self.strides[tensor], mask)

    def stream(self, tensor: int, result: Value, i: Value, mask: Value | None) -> None:
        assert mask is None
        self.pointers[tensor].stream(result, i)


class ElementwiseLoops:
    """The elementwise generator of processors, for algorithms that are written for every target."""

    function_error = 8.0

    def refuse(
        self, tensors: Sequence[TensorDescriptor], device: Device, computing: str | None = None
    ) -> str | None:
        return None

    def estimate(self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device) -> float:
        return estimate_elementwise(expressions, tensors, device)

    def build(
        self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device, computing: str
    ) -> CpuKernel:
        return build_elementwise(expressions, tensors, device, computing=computing)
