"""What the code of both passes shares: packed copies, the scores of a tile, masks, and the argument block of a task.

A panel of queries is transposed when it is packed, so that scores are transposed, with the queries in the lanes:

    scores[key][query] = sum over d of keys[key][d] * transposed[d][query]

The maxima and sums of the softmax are then operations between vectors, and keys and values need no transposing.
Scores are exponents of 2: log2(e) * scale is multiplied into the packed queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.attention.plan import (
    AttentionPlan,
    BackwardPlan,
    ForwardPlan,
    Product,
    operand_numbers,
)
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.power_of_two import LOG2E

_UNROLLED = 8  # vectors of a row whose copies are unrolled


# ---- copies


def trace_packed_rows(
    module: Module, name: str, plan: AttentionPlan, width: int, contiguous: bool
) -> Function:
    """Trace ``name(source, row_stride, step, rows, padded, target, pitch)``.

    ``target[r][i] = source[r * row_stride + i * step]`` for r < rows, i < width; zeros up to the ``pitch``, an
    integer number of vectors, and in the rows up to ``padded``.
    """
    with module.function(
        name, source=plan.dtype, row_stride=None, step=None, rows=None, padded=None, target=plan.real, pitch=None
    ) as (k, (source, row_stride, step, rows, padded, target, pitch), function):  # fmt: skip
        lanes = k.lanes(plan.real)
        stride: int | Value = 1 if contiguous else step
        zero = k.constant(0.0, plan.real, lanes)
        full = width // lanes * lanes

        def copy(source: Pointer, target: Pointer, start: int | Value, mask: Value | None) -> None:
            target.store((source + k.integer(stride) * start).load_strided(0, stride, lanes, mask), start)

        for r in k.range(rows):
            row, packed = source + r * row_stride, target + r * pitch
            if full <= _UNROLLED * lanes:
                for start in range(0, full, lanes):
                    copy(row, packed, start, None)
            else:
                for at in k.range(0, full, lanes):
                    copy(row, packed, at, None)
            if full < width:
                copy(row, packed, full, k.mask(width - full, lanes))
            for at in k.range(ceil_div(width, lanes) * lanes, pitch, lanes):
                packed.store(zero, at)
        for r in k.range(rows, padded):
            for at in k.range(0, pitch, lanes):
                (target + r * pitch).store(zero, at)
    return function


def trace_transposed(
    module: Module, name: str, plan: AttentionPlan, depth: int, contiguous: bool, factor: float = 1.0
) -> Function:
    """Trace ``name(source, row_stride, step, rows, target)``.

    ``target[i][r] = factor * source[r * row_stride + i * step]`` for i < depth and all lanes r of a panel; zeros
    where r >= rows.
    """
    with module.function(
        name, source=plan.dtype, row_stride=None, step=None, rows=None, target=plan.real
    ) as (k, (source, row_stride, step, rows, target), function):  # fmt: skip
        lanes = k.lanes(plan.real)
        width = plan.panel_queries

        def put(vector: Value, at: Pointer) -> None:
            at.store(vector if factor == 1.0 else vector * factor, 0)

        for lane in k.range(0, width, lanes):
            first, column = source + row_stride * lane, target + lane
            left = rows - lane
            if not contiguous:
                for i in k.range(depth):
                    vector = (first + step * i).load_strided(0, row_stride, lanes, k.mask(left, lanes))
                    put(vector, column + i * width)
                continue
            full = depth // lanes * lanes
            for start in k.range(0, full, lanes):
                for number, row in enumerate(
                    _transposed_square(k, first + start, row_stride, left, lanes, lanes)
                ):
                    put(row, column + (start + number) * width)
            if full < depth:
                rest = _transposed_square(k, first + full, row_stride, left, lanes, depth - full)
                for number, row in enumerate(rest[: depth - full]):
                    put(row, column + (full + number) * width)
    return function


def _transposed_square(
    k: Builder, source: Pointer, row_stride: Value, rows: Value, lanes: int, columns: int | Value
) -> list[Value]:
    """``lanes`` rows, transposed; those from ``rows`` on, and columns from ``columns`` on, are zero."""
    loaded = []
    for lane in range(lanes):
        count = k.select(rows > lane, k.integer(columns), 0)
        loaded.append((source + row_stride * lane).load(0, lanes, k.mask(count, lanes)))
    return transpose(k, loaded)


# ---- scores


def trace_scores(module: Module, plan: AttentionPlan, name: str, depth: int, pitch: int) -> Function:
    """Trace ``name(keys, transposed, scores, rows)``: the scores of ``rows`` keys, rounded up to register tiles."""
    width = plan.panel_queries
    tile = trace_microkernel(
        module, f"{name}_tile", plan.real, [r * pitch for r in range(plan.register_keys)], plan.vectors,
        [Loop(depth, 1, width)],
    )  # fmt: skip
    with module.function(name, "aliasing", keys=plan.real, transposed=plan.real, scores=plan.real, rows=None) as (
        k, (keys, transposed, scores, rows), function,
    ):  # fmt: skip
        for r in k.range(0, rows, plan.register_keys):
            k.call(tile, keys + r * pitch, transposed, scores + r * width)
    return function


def trace_window(module: Module, plan: AttentionPlan) -> Function:
    """Trace ``mask_window(scores, rows, first, lo, hi)``: -infinity where key first + row is not in [lo, hi)."""
    with module.function("mask_window", scores=plan.real, rows=None, first=None, lo="i32", hi="i32") as (
        k, (scores, rows, first, lo, hi), function,
    ):  # fmt: skip
        lanes = k.lanes(plan.real)
        low = [lo.load(v * lanes, lanes) for v in range(plan.vectors)]
        high = [hi.load(v * lanes, lanes) for v in range(plan.vectors)]
        for r in k.range(rows):
            key = k.splat(k.convert(first + r, "i32"), lanes)
            row = scores + r * (plan.vectors * lanes)
            for v in range(plan.vectors):
                in_window = (low[v] <= key) & (high[v] > key)
                row.store(k.select(in_window, row.load(v * lanes, lanes), -math.inf), v * lanes)
    return function


def trace_mask(module: Module, plan: AttentionPlan) -> Function:
    """Trace ``mask_scores(scores, mask, query_stride, key_stride, queries, rows)``: apply the mask to a tile."""
    with module.function(
        "mask_scores", scores=plan.real, mask=plan.mask, query_stride=None, key_stride=None, queries=None, rows=None
    ) as (k, (scores, mask, query_stride, key_stride, queries, rows), function):  # fmt: skip
        lanes = k.lanes(plan.real)
        source = mask.as_real(plan.real)
        width = plan.panel_queries

        def apply(at: Pointer, value: Value) -> None:
            score = at.load(0, lanes)
            value = k.splat(value, lanes)
            if plan.mask == "bool":
                at.store(k.select(value != 0.0, score, -math.inf), 0)
            else:
                at.store(k.fma(value, k.constant(LOG2E, plan.real, lanes), score), 0)

        if plan.mask_order == "keys":
            for lane in k.range(0, width, lanes):
                first = source + query_stride * lane
                for start in k.range(0, rows, lanes):
                    left = (rows - start).min(lanes)
                    columns = _transposed_square(k, first + start, query_stride, queries - lane, lanes, left)
                    for i, column in enumerate(columns):
                        with k.when(left > i):
                            apply(scores + ((start + i) * width + lane), column)
            return function
        for r in k.range(rows):
            row = source + r * key_stride
            for v in range(plan.vectors):
                if plan.mask_order == "queries":
                    value = row.load(0)
                else:
                    keep = k.mask(queries - v * lanes, lanes)
                    stride: int | Value = 1 if plan.mask_order == "lanes" else query_stride
                    value = (row + query_stride * (v * lanes)).load_strided(0, stride, lanes, keep)
                apply(scores + (r * width + v * lanes), value)
    return function


# ---- windows of keys


class KeyWindows:
    """The keys [lo, hi) that each query attends to: in i32 for the queries of a panel, and their extremes."""

    def __init__(
        self,
        k: Builder,
        plan: AttentionPlan,
        arguments: Arguments,
        slots: dict[str, Value],
        numbers: dict[str, int],
    ):
        self.k, self.plan, self.slots = k, plan, slots
        self.operands = {
            name: arguments.pointer(numbers[name], getattr(plan, name))
            for name in ("lengths", "lo", "hi")
            if getattr(plan, name)
        }

    def key_count(self, batch: Value) -> Value:
        """Keys of a sequence."""
        keys = self.slots["keys"]
        return self._load("lengths", batch).min(keys).max(0) if self.plan.lengths else keys

    def write(
        self, batch: Value, first: Value, lo: Pointer, hi: Pointer
    ) -> tuple[Value, Value, Value, Value]:
        """Fill ``lo`` and ``hi`` for the panel of query ``first``; returns lowest, highest lo and hi.

        Lanes beyond the last query repeat it.
        """
        k, plan, slots = self.k, self.plan, self.slots
        keys = slots["keys"]
        key_count = self.key_count(batch)
        extremes = [k.register(k.integer(n)) for n in (2**40, -(2**40), 2**40, -(2**40))]
        for i in k.range(plan.vectors * k.lanes(plan.real)):
            query = (first + i).min(slots["queries"] - 1)
            position = query + slots["past"]
            low, high = k.integer(0), key_count
            if plan.is_left:
                low = (position - slots["left"]).max(low)
            if plan.is_right:
                high = (position + slots["right"] + 1).min(high)
            if plan.lo:
                low = self._load("lo", query).max(low)
            if plan.hi:
                high = self._load("hi", query).min(high)
            low, high = low.min(keys), high.max(0)
            (lo + i).store(k.convert(low, "i32"))
            (hi + i).store(k.convert(high, "i32"))
            for register, value, is_maximum in zip(
                extremes, (low, low, high, high), (False, True, False, True), strict=True
            ):
                register.set(value.max(register.get()) if is_maximum else value.min(register.get()))
        low, highest_low, lowest_high, high = (register.get() for register in extremes)
        return low, highest_low, lowest_high, high

    def _load(self, name: str, index: Value) -> Value:
        return self.k.convert(self.operands[name].load(index * self.slots[f"{name}0"]), "i64")


def row_of(slots: dict[str, Value], name: str, *indices: Value) -> Value:
    """The offset of an element of an operand: indices of its first axes."""
    offset = indices[0] * slots[f"{name}0"]
    for axis, index in enumerate(indices[1:], 1):
        offset = offset + index * slots[f"{name}{axis}"]
    return offset


def vectors_of(k: Builder, width: int, lanes: int) -> Sequence[tuple[int, Value | None]]:
    """The vectors of a row of ``width`` elements: where they start, and the mask of the last if it is needed."""
    return [
        (start, None if start + lanes <= width else k.mask(width - start, lanes))
        for start in range(0, width, lanes)
    ]


def sum_offset(product: Product, rows: int, row: Value, start: int) -> Value:
    """The offset of element ``start`` of a row of sums, of ``rows`` rows a block."""
    column, inside = divmod(start, product.block)
    return row * product.block + (column * rows * product.block + inside)


# ---- tasks

P = TypeVar("P", bound=ForwardPlan | BackwardPlan)


class AttentionCode(Generic[P]):
    """What the tracers of both passes begin with."""

    def __init__(self, problem: Attention, plan: P, slots: Slots) -> None:
        self.problem, self.plan, self.lanes = problem, plan, plan.lanes
        self.slot_names = slots
        self.numbers = operand_numbers(problem)

    def enter(self, k: Builder, args: Pointer) -> None:
        """Load what a task reads from the argument block."""
        self.arguments = Arguments(k, args, len(self.numbers))
        self.slots = self.slot_names.load(self.arguments)
        self.pointers = {
            name: self.arguments.pointer(number, self.problem.operands[number].descriptor.dtype)
            for name, number in self.numbers.items()
        }
        self.scale = Scale(k, self.arguments, self.plan.dtype)
        self.key_windows = KeyWindows(k, self.plan, self.arguments, self.slots, self.numbers)

    def load_buffers(self, k: Builder, thread: Value) -> None:
        """Pointers to the buffers of the thread."""
        workspace = self.plan.workspace()
        start = Pointer(k, self.arguments.workspace("i8").v, "i8") + thread * workspace.bytes
        first = Pointer(k, start.v, self.plan.real)
        self.buffers = {name: first + offset for name, offset in workspace.offsets.items()}
        for name in ("lo", "hi"):
            self.buffers[name] = Pointer(k, self.buffers[name].v, "i32")

    def clear(self, k: Builder, buffer: Pointer, elements: int) -> None:
        zero = k.constant(0.0, self.plan.real, self.lanes)
        for i in k.range(0, elements, self.lanes):
            buffer.store(zero, i)

    def step_of(self, name: str) -> int | Value:
        """The stride of the elements of a head."""
        return 1 if name in self.plan.contiguous else self.slots[f"{name}3"]
