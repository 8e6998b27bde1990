"""The backward pass of attention: dq, dk and dv in one sweep over the tiles, the scores computed anew.

    task: a sequence, a key head, a range of its keys
        copy keys and values; dk = dv = 0
        for each query head of the group, each panel of queries that sees a key of the range
            turn q and dy, copy them; delta = sum(dy * y); dq = 0
            for each tile of keys
                p = 2^(scores - lse),  ds = p (values dy - delta)
                dv += p dy,  dk += ds q,  dq += ds keys
            write dq
        write dk, dv

There is one range to a head where there are heads enough to share; otherwise every range has its own sums of dq in
the workspace, which a second phase adds up in their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.attention.tiles import (
    Bounds,
    Code,
    Product,
    Room,
    operand_numbers,
    plan_product,
    row_of,
    trace_band,
    trace_columns,
    trace_mask,
    trace_rows,
    trace_scores,
    vectors_of,
)
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.register_tiles import MAX_VECTORS
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.power_of_two import LOG2E, power_of_two

_TASKS = 8  # heads fewer than these are cut into ranges of keys, however many threads there are
_SHORTEST = 192  # keys of a range
ROWS_OF_A_SUM = 64  # queries of a task of the second phase


@dataclass(frozen=True)
class BackwardPlan:
    """Sizes of the backward pass; ``span`` keys are a range."""

    code: Code
    dq: Product
    dk: Product
    dv: Product
    width: int
    value_pitch: int
    span: int

    def room(self) -> Room:
        """What a thread keeps. Tiles of rows may reach over the ends of powers and of dq."""
        code, room, width = self.code, Room(self.code.real), self.width
        rows = ceil_div(self.span, code.rows) * code.rows
        room.add("keys", rows * self.dq.pitch)
        room.add("values", rows * self.value_pitch)
        room.add("dk", rows * self.dk.pitch)
        room.add("dv", rows * self.dv.pitch)
        room.add("turned_q", code.size * width)
        room.add("turned_dy", code.value_size * width)
        room.add("q", width * self.dk.pitch)
        room.add("dy", width * self.dv.pitch)
        room.add("dq", self.dq.room(width))
        room.add("powers", code.key_rows * width + self.dq.rows)
        room.add("slopes", code.key_rows * width + self.dq.rows)
        for name in ("lse", "delta", "lo", "hi"):
            room.add(name, width)
        return room


def ranges(problem: Attention) -> int:
    """Ranges into which the keys of each head are cut."""
    n, g, s, _ = problem.k.shape
    return max(1, min(ceil_div(_TASKS, max(1, n * g)), s // _SHORTEST))


def plan_backward(code: Code, isa: Isa, problem: Attention) -> BackwardPlan:
    lanes = isa.lanes(code.real)
    width = code.vectors * lanes
    keys = problem.k.shape[2]
    span = ceil_div(max(1, ceil_div(keys, ranges(problem))), code.key_rows) * code.key_rows
    return BackwardPlan(
        code, plan_product(isa, code.real, width, code.size), _rows_of(code, isa, code.size),
        _rows_of(code, isa, code.value_size), width, ceil_div(code.value_size, lanes) * lanes, span,
    )  # fmt: skip


def _rows_of(code: Code, isa: Isa, width: int) -> Product:
    """A product with the rows of the score tiles, so that no tile of it reaches into the next keys."""
    lanes = isa.lanes(code.real)
    count = ceil_div(width, lanes)
    most = max(v for v in range(1, MAX_VECTORS + 1) if v == 1 or (isa.registers - 1 - v) // v >= code.rows)
    columns = ceil_div(count, most)
    return Product(code.rows, ceil_div(count, columns), columns, lanes)


class _Backward:
    """Traces the kernel."""

    def __init__(self, module: Module, problem: Attention, plan: BackwardPlan, slots: Slots) -> None:
        self.plan, self.code = plan, plan.code
        code = plan.code
        self.lanes = module.isa.lanes(code.real)
        size, value_size, units = code.size, code.value_size, code.units
        self.turn_q = trace_columns(module, "turn_q", code, size, "q" in units, code.scale * LOG2E)
        self.turn_dy = trace_columns(module, "turn_dy", code, value_size, "dy" in units)
        self.copies = {
            name: trace_rows(module, f"copy_{name}", code, width, name in units)
            for name, width in (("k", size), ("q", size), ("v", value_size), ("dy", value_size))
        }
        self.score = trace_scores(module, code, "score", size, plan.dq.pitch)
        self.respond = trace_scores(module, code, "respond", value_size, plan.value_pitch)
        self.band = trace_band(module, code)
        self.masked = trace_mask(module, code) if code.mask else None
        self.slope = self._trace_slope(module)
        self.add_dq = trace_microkernel(
            module, "add_dq", code.real, range(plan.dq.rows), plan.dq.vectors,
            [Loop(None, plan.width, plan.dq.pitch)], accumulate=True,
        )  # fmt: skip
        self.add_dv = self._trace_rows_of(module, "add_dv", plan.dv)
        self.add_dk = self.add_dv if plan.dk == plan.dv else self._trace_rows_of(module, "add_dk", plan.dk)
        self.numbers = operand_numbers(problem)
        self.problem, self.table = problem, slots
        with module.task("gradients") as (k, args, task, thread):
            self._enter(k, args)
            room = plan.room()
            start = Pointer(k, self.arguments.workspace("i8").v, "i8") + thread * room.bytes
            self.room = room.pointers(Pointer(k, start.v, code.real))
            for name in ("lo", "hi"):
                self.room[name] = Pointer(k, self.room[name].v, "i32")
            self._task(k, task)
        if code.splits:
            with module.task("gather") as (k, args, task, _):
                self._enter(k, args)
                self._gather(k, task)

    def _enter(self, k: Builder, args: Pointer) -> None:
        """What a task reads from the argument block."""
        self.arguments = Arguments(k, args, len(self.numbers))
        self.slots = self.table.load(self.arguments)
        self.pointers = {
            name: self.arguments.pointer(number, self.problem.operands[number].descriptor.dtype)
            for name, number in self.numbers.items()
        }
        self.scale = Scale(k, self.arguments, self.code.dtype)
        self.bounds = Bounds(k, self.code, self.arguments, self.slots, self.numbers)

    def _trace_rows_of(self, module: Module, name: str, product: Product) -> Function:
        """Sums for keys: each key's powers are a row, the queries are summed over."""
        width = self.plan.width
        return trace_microkernel(
            module, name, self.code.real, [r * width for r in range(product.rows)], product.vectors,
            [Loop(width, 1, product.pitch)], accumulate=True,
        )  # fmt: skip

    def _trace_slope(self, module: Module) -> Function:
        """Trace ``slope(powers, slopes, rows, lse, delta)``: scores become p, dy . v becomes p (dy . v - delta)."""
        real = self.code.real
        with module.function("slope", powers=real, slopes=real, rows=None, lse=real, delta=real) as (
            k, (powers, slopes, rows, lse, delta), function,
        ):  # fmt: skip
            lanes = self.lanes
            places = [v * lanes for v in range(self.code.vectors)]
            shifts = [lse.load(place, lanes) for place in places]
            deltas = [delta.load(place, lanes) for place in places]
            for r in k.range(rows):
                row = r * self.plan.width
                for place, shift, own in zip(places, shifts, deltas, strict=True):
                    p = power_of_two(k, powers.load(row + place, lanes) - shift, real)
                    powers.store(p, row + place)
                    slopes.store(p * (slopes.load(row + place, lanes) - own), row + place)
        return function

    # ---- one head's keys

    def _task(self, k: Builder, task: Value) -> None:
        plan, code, slots, room = self.plan, self.code, self.slots, self.room
        batch_head, part = task // slots["splits"], task % slots["splits"]
        key_heads = slots["heads"] // slots["group"]
        batch, key_head = batch_head // key_heads, batch_head % key_heads
        first = part * plan.span
        rows = (slots["keys"] - first).min(plan.span).max(0)
        # what lies beyond the length of a sequence is not read
        filled = (self.bounds.most(batch) - first).min(rows).max(0)
        padded = (filled + (code.rows - 1)) // code.rows * code.rows
        for name, place, pitch in (("k", "keys", plan.dq.pitch), ("v", "values", plan.value_pitch)):
            k.call(
                self.copies[name], self.pointers[name] + row_of(slots, name, batch, key_head, first),
                slots[f"{name}2"], slots[f"{name}3"], filled, padded, room[place], pitch,
            )  # fmt: skip
        span = ceil_div(plan.span, code.rows) * code.rows
        for name, product in (("dk", plan.dk), ("dv", plan.dv)):
            self._clear(k, room[name], span * product.pitch)
        for member in k.range(slots["group"]):
            head = key_head * slots["group"] + member
            for query in k.range(0, slots["queries"], plan.width):
                self._panel(k, part, batch, head, query, first, first + filled)
        for name, product, size in (("dk", plan.dk, code.size), ("dv", plan.dv, code.value_size)):
            target = self.pointers[name] + row_of(slots, name, batch, key_head, first)
            factor = code.scale if name == "dk" else 1.0
            for r in k.range(rows):
                self._write_row(
                    k, name, target + r * slots[f"{name}2"], room[name], r, product, span, size, factor
                )

    def _clear(self, k: Builder, place: Pointer, elements: int) -> None:
        zero = k.constant(0.0, self.code.real, self.lanes)
        for i in k.range(0, elements, self.lanes):
            place.store(zero, i)

    def _write_row(
        self, k: Builder, name: str, target: Pointer, sums: Pointer, row: Value, product: Product, rows: int,
        size: int, factor: float,
    ) -> None:  # fmt: skip
        step: int | Value = 1 if name in self.code.units else self.slots[f"{name}3"]
        for start, mask in vectors_of(k, size, self.lanes):
            value = sums.load(_place(product, rows, row, start), self.lanes)
            value = value if factor == 1.0 else value * factor
            self.scale.store(target + k.integer(step) * start, step, value, mask)

    # ---- a panel of queries against the keys of the task

    def _panel(
        self, k: Builder, part: Value, batch: Value, head: Value, query: Value, first: Value, end: Value
    ) -> None:
        plan, code, slots, room = self.plan, self.code, self.slots, self.room
        count = (slots["queries"] - query).min(plan.width)
        found = self.bounds.write(batch, query, room["lo"], room["hi"])
        low, high = found[0].max(first), found[3].min(end)
        reach = plan.dq.reach(plan.width)
        self._clear(k, room["dq"], plan.dq.room(plan.width))
        with k.when(low < high):
            self._pack(k, batch, head, query, count)
            # tiles begin where those of the copied keys do
            begin = first + (low - first) // code.rows * code.rows
            for start in k.range(begin, high, code.key_rows):
                self._tile(k, batch, head, query, count, first, start, high, found)
        if code.splits:
            pitch = ceil_div(code.size, self.lanes) * self.lanes
            partial = self._partial(k, part, batch, head, query)
            for i in k.range(count):
                for at in range(0, pitch, self.lanes):
                    value = room["dq"].load(_place(plan.dq, reach, i, at), self.lanes)
                    (partial + i * pitch).store(value, at)
            return
        target = self.pointers["dq"] + row_of(slots, "dq", batch, head, query)
        for i in k.range(count):
            self._write_row(
                k, "dq", target + i * slots["dq2"], room["dq"], i, plan.dq, reach, code.size, code.scale
            )

    def _pack(self, k: Builder, batch: Value, head: Value, query: Value, count: Value) -> None:
        """The panel's q and dy, both ways round, its lse and its delta."""
        plan, code, slots, room, lanes = self.plan, self.code, self.slots, self.room, self.lanes
        width = k.integer(plan.width)
        for name, turn, pitch in (("q", self.turn_q, plan.dk.pitch), ("dy", self.turn_dy, plan.dv.pitch)):
            source = self.pointers[name] + row_of(slots, name, batch, head, query)
            row_stride, step = slots[f"{name}2"], slots[f"{name}3"]
            k.call(turn, source, row_stride, step, count, room[f"turned_{name}"])
            k.call(self.copies[name], source, row_stride, step, count, width, room[name], pitch)
        step_y: int | Value = 1 if "y" in code.units else slots["y3"]
        for lane in range(0, plan.width, lanes):
            room["delta"].store(k.constant(0.0, code.real, lanes), lane)
            keep = k.mask(count - lane, lanes)
            source = self.pointers["lse"] + row_of(slots, "lse", batch, head, query + lane)
            lse = source.load_strided(0, slots["lse2"], lanes, keep) * LOG2E
            # a query that sees nothing, or is not there, has no powers but 0
            lse = k.select(keep, lse, math.inf)
            room["lse"].store(k.select(lse == -math.inf, math.inf, lse), lane)
        for i in k.range(count):
            y = self.pointers["y"] + row_of(slots, "y", batch, head, query + i)
            total = k.constant(0.0, code.real, lanes)
            for start, mask in vectors_of(k, code.value_size, lanes):
                vector = (y + k.integer(step_y) * start).load_strided(0, step_y, lanes, mask)
                total = k.fma(vector, (room["dy"] + i * plan.dv.pitch).load(start, lanes), total)
            room["delta"].store(k.reduce(total), i)

    def _tile(
        self, k: Builder, batch: Value, head: Value, query: Value, count: Value, first: Value, start: Value,
        high: Value, found: tuple[Value, ...],
    ) -> None:  # fmt: skip
        plan, code, slots, room = self.plan, self.code, self.slots, self.room
        rows = (high - start).min(code.key_rows)
        padded = (rows + (code.rows - 1)) // code.rows * code.rows
        row = start - first
        keys = room["keys"] + row * plan.dq.pitch
        k.call(self.score, keys, room["turned_q"], room["powers"], padded)
        if self.masked is not None:
            k.call(
                self.masked, room["powers"], self.pointers["mask"] + row_of(slots, "mask", batch, head, query, start),
                slots["mask2"], slots["mask3"], count, rows,
            )  # fmt: skip
        with k.when((found[1] > start) | (found[2] < start + padded)):
            k.call(self.band, room["powers"], padded, start, room["lo"], room["hi"])
        k.call(
            self.respond, room["values"] + row * plan.value_pitch, room["turned_dy"], room["slopes"], padded
        )
        k.call(self.slope, room["powers"], room["slopes"], padded, room["lse"], room["delta"])
        span = ceil_div(plan.span, code.rows) * code.rows
        for add, product, sums, source, other in (
            (self.add_dv, plan.dv, room["dv"], room["powers"], room["dy"]),
            (self.add_dk, plan.dk, room["dk"], room["slopes"], room["q"]),
        ):
            for column in range(product.columns):
                place = sums + (column * span * product.block + row * product.block)
                for r in k.range(0, padded, product.rows):
                    k.call(
                        add,
                        source + r * plan.width,
                        other + column * product.block,
                        place + r * product.block,
                    )
        for column in range(plan.dq.columns):
            place = room["dq"] + column * plan.dq.reach(plan.width) * plan.dq.block
            for i in k.range(0, plan.width, plan.dq.rows):
                k.call(
                    self.add_dq,
                    room["slopes"] + i,
                    keys + column * plan.dq.block,
                    place + i * plan.dq.block,
                    padded,
                )

    # ---- sums of dq over ranges of keys

    def _partial(self, k: Builder, part: Value, batch: Value, head: Value, query: Value) -> Pointer:
        """The row of ``query`` in the sums of a range: [range][sequence][head][query][padded size]."""
        slots = self.slots
        row = ((part * slots["batches"] + batch) * slots["heads"] + head) * slots["queries"] + query
        pitch = ceil_div(self.code.size, self.lanes) * self.lanes
        start = Pointer(k, self.arguments.workspace("i8").v, "i8") + slots["partials"]
        return Pointer(k, start.v, self.code.real) + row * pitch

    def _gather(self, k: Builder, task: Value) -> None:
        """dq of some queries of a head: the sums of all ranges, in order."""
        code, slots, lanes = self.code, self.slots, self.lanes
        blocks = (slots["queries"] + (ROWS_OF_A_SUM - 1)) // ROWS_OF_A_SUM
        batch_head, query = task // blocks, task % blocks * ROWS_OF_A_SUM
        batch, head = batch_head // slots["heads"], batch_head % slots["heads"]
        pitch = ceil_div(code.size, lanes) * lanes
        apart = slots["batches"] * slots["heads"] * slots["queries"] * pitch
        partial = self._partial(k, k.integer(0), batch, head, query)
        step: int | Value = 1 if "dq" in code.units else slots["dq3"]
        for i in k.range((slots["queries"] - query).min(ROWS_OF_A_SUM)):
            target = self.pointers["dq"] + row_of(slots, "dq", batch, head, query + i)
            for start, mask in vectors_of(k, code.size, lanes):
                total = k.register((partial + i * pitch).load(start, lanes))
                for part in k.range(1, slots["splits"]):
                    total += (partial + (part * apart + i * pitch)).load(start, lanes)
                value = total.get() * code.scale
                self.scale.store(target + k.integer(step) * start, step, value, mask)


def _place(product: Product, rows: int, row: Value, start: int) -> Value:
    """Where element ``start`` of a row of sums is, of ``rows`` rows a block."""
    column, inside = divmod(start, product.block)
    return row * product.block + (column * rows * product.block + inside)


def trace_backward(module: Module, problem: Attention, plan: BackwardPlan, slots: Slots) -> None:
    _Backward(module, problem, plan, slots)
