"""The forward pass of attention: queries in blocks of panels, keys and values in tiles, nothing in between kept.

    task: a sequence, a head, a block of queries
        turn the queries into panels; sums 0, maxima -infinity
        for each tile of keys that a query of the block sees
            copy its keys and values
            for each panel
                scores, mask
                maximum m', factor = 2^(m - m'), p = 2^(score - m')
                total = factor * total + sum of p,  sums = factor * sums + p values,  m = m'
        y = sums / total,  lse = ln 2 (m + log2 total)

Milakov and Gimelshein's softmax in one pass (2018), tiled as Dao's FlashAttention (2022).
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
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.power_of_two import LOG2E, power_of_two

_PANELS = 2  # of a block: each tile of keys is copied once for all of them


@dataclass(frozen=True)
class ForwardPlan:
    """Sizes of the forward pass."""

    code: Code
    values: Product
    panels: int
    width: int
    key_pitch: int

    @property
    def block(self) -> int:
        """Queries of a task."""
        return self.panels * self.width

    def room(self) -> Room:
        """What a thread keeps. Tiles of rows may reach over the ends of scores and sums."""
        code, room = self.code, Room(self.code.real)
        room.add("turned", self.panels * code.size * self.width)
        room.add("sums", self.panels * self.values.room(self.width))
        room.add("top", self.panels * self.width)
        room.add("total", self.panels * self.width)
        room.add("factor", self.values.reach(self.width))
        room.add("lo", self.panels * self.width)
        room.add("hi", self.panels * self.width)
        room.add("scores", code.key_rows * self.width + self.values.rows)
        room.add("keys", code.key_rows * self.key_pitch)
        room.add("values", code.key_rows * self.values.pitch)
        return room


def plan_forward(code: Code, isa: Isa, queries: int) -> ForwardPlan:
    lanes = isa.lanes(code.real)
    width = code.vectors * lanes
    values = plan_product(isa, code.real, min(width, max(1, queries)), code.value_size)
    panels = min(_PANELS, ceil_div(max(1, queries), width))
    return ForwardPlan(code, values, panels, width, ceil_div(code.size, lanes) * lanes)


class _Forward:
    """Traces the kernel."""

    def __init__(self, module: Module, problem: Attention, plan: ForwardPlan, slots: Slots) -> None:
        self.plan, self.code = plan, plan.code
        code, lanes = plan.code, module.isa.lanes(plan.code.real)
        self.lanes = lanes
        self.turn = trace_columns(module, "turn", code, code.size, "q" in code.units, code.scale * LOG2E)
        self.copy_keys = trace_rows(module, "copy_keys", code, code.size, "k" in code.units)
        self.copy_values = trace_rows(module, "copy_values", code, code.value_size, "v" in code.units)
        self.score = trace_scores(module, code, "score", code.size, plan.key_pitch)
        self.band = trace_band(module, code)
        self.masked = trace_mask(module, code) if code.mask else None
        self.soften = self._trace_soften(module)
        self.add_values = trace_microkernel(
            module, "add_values", code.real, range(plan.values.rows), plan.values.vectors,
            [Loop(None, plan.width, plan.values.pitch)], accumulate=True,
        )  # fmt: skip
        numbers = operand_numbers(problem)
        count = len(numbers)
        with module.task("attend") as (k, args, task, thread):
            arguments = Arguments(k, args, count)
            self.slots = slots.load(arguments)
            self.pointers = {
                name: arguments.pointer(number, problem.operands[number].descriptor.dtype)
                for name, number in numbers.items()
            }
            self.scale = Scale(k, arguments, code.dtype)
            self.bounds = Bounds(k, code, arguments, self.slots, numbers)
            room = plan.room()
            start = Pointer(k, arguments.workspace("i8").v, "i8") + thread * room.bytes
            self.room = room.pointers(Pointer(k, start.v, code.real))
            for name in ("lo", "hi"):
                self.room[name] = Pointer(k, self.room[name].v, "i32")
            self._task(k, task)

    def _trace_soften(self, module: Module) -> Function:
        """Trace ``soften(scores, rows, top, total, factor)``: scores become powers, and the rest is brought up."""
        code = self.code
        with module.function(
            "soften", scores=code.real, rows=None, top=code.real, total=code.real, factor=code.real
        ) as (k, (scores, rows, top, total, factor), function):  # fmt: skip
            lanes, real = self.lanes, code.real
            vectors = range(code.vectors)
            maxima = [k.register(top.load(v * lanes, lanes)) for v in vectors]
            width = self.plan.width
            for r in k.range(rows):
                for v in vectors:
                    maxima[v].set((scores + r * width).load(v * lanes, lanes).max(maxima[v].get()))
            shifts, changes = [], []
            for v in vectors:
                m, old = maxima[v].get(), top.load(v * lanes, lanes)
                shift = k.select(m == -math.inf, 0.0, m)
                change = power_of_two(k, old - shift, real)
                shifts.append(shift)
                changes.append(change)
                factor.store(change, v * lanes)
                top.store(m, v * lanes)
            # terms of a tile are summed by themselves: fewer roundings than one sum over all keys
            sums = [k.register(k.constant(0.0, real, lanes)) for _ in vectors]
            for r in k.range(rows):
                row = scores + r * width
                for v in vectors:
                    p = power_of_two(k, row.load(v * lanes, lanes) - shifts[v], real)
                    row.store(p, v * lanes)
                    sums[v] += p
            for v in vectors:
                total.store(k.fma(total.load(v * lanes, lanes), changes[v], sums[v].get()), v * lanes)
        return function

    def _task(self, k: Builder, task: Value) -> None:
        plan, code, slots, room = self.plan, self.code, self.slots, self.room
        blocks = slots["blocks"]
        batch_head = task // blocks
        # the last queries first: under a causal mask they see the most keys
        block = blocks - 1 - task % blocks
        batch, head = batch_head // slots["heads"], batch_head % slots["heads"]
        key_head = head // slots["group"]
        first = block * plan.block
        count = (slots["queries"] - first).min(plan.block)
        panels = (count + (plan.width - 1)) // plan.width
        extremes = k.local("i64", 4 * plan.panels)
        lowest, highest = k.register(k.integer(2**40)), k.register(k.integer(0))
        zero = k.constant(0.0, code.real, self.lanes)
        for p in k.range(panels):
            query = first + p * plan.width
            at = p * plan.width
            k.call(
                self.turn, self.pointers["q"] + row_of(slots, "q", batch, head, query), slots["q2"], slots["q3"],
                (slots["queries"] - query).min(plan.width), room["turned"] + p * (code.size * plan.width),
            )  # fmt: skip
            found = self.bounds.write(batch, query, room["lo"] + at, room["hi"] + at)
            for slot, value in enumerate(found):
                extremes.store(value, p * 4 + slot)
            lowest.set(found[0].min(lowest.get()))
            highest.set(found[3].max(highest.get()))
            for i in k.range(0, plan.width, self.lanes):
                (room["top"] + at).store(k.constant(-math.inf, code.real, self.lanes), i)
                (room["total"] + at).store(zero, i)
            sums = room["sums"] + p * plan.values.room(plan.width)
            for i in k.range(0, plan.values.room(plan.width), self.lanes):
                sums.store(zero, i)
        # rows of sums beyond the panel are multiplied by factors, too
        for i in k.range(plan.width, plan.values.reach(plan.width)):
            room["factor"].store(k.constant(0.0, code.real), i)

        for start in k.range(lowest.get(), highest.get(), code.key_rows):
            rows = (highest.get() - start).min(code.key_rows)
            padded = (rows + (code.rows - 1)) // code.rows * code.rows
            k.call(
                self.copy_keys, self.pointers["k"] + row_of(slots, "k", batch, key_head, start), slots["k2"],
                slots["k3"], rows, padded, room["keys"], plan.key_pitch,
            )  # fmt: skip
            k.call(
                self.copy_values, self.pointers["v"] + row_of(slots, "v", batch, key_head, start), slots["v2"],
                slots["v3"], rows, padded, room["values"], plan.values.pitch,
            )  # fmt: skip
            for p in k.range(panels):
                edges = [extremes.load(p * 4 + i) for i in range(4)]
                with k.when((edges[0] < start + rows) & (edges[3] > start)):
                    self._tile(k, p, batch, head, first, start, rows, padded, edges)
        for p in k.range(panels):
            self._finish(k, p, batch, head, first + p * plan.width)

    def _tile(
        self, k: Builder, p: Value, batch: Value, head: Value, first: Value, start: Value, rows: Value,
        padded: Value, found: list[Value],
    ) -> None:  # fmt: skip
        plan, code, slots, room = self.plan, self.code, self.slots, self.room
        at = p * plan.width
        k.call(
            self.score, room["keys"], room["turned"] + p * (code.size * plan.width), room["scores"], padded
        )
        if self.masked is not None:
            query = first + at
            k.call(
                self.masked, room["scores"], self.pointers["mask"] + row_of(slots, "mask", batch, head, query, start),
                slots["mask2"], slots["mask3"], (slots["queries"] - query).min(plan.width), rows,
            )  # fmt: skip
        with k.when((found[1] > start) | (found[2] < start + padded)):
            k.call(self.band, room["scores"], padded, start, room["lo"] + at, room["hi"] + at)
        k.call(self.soften, room["scores"], padded, room["top"] + at, room["total"] + at, room["factor"])
        product, size = plan.values, plan.values.reach(plan.width)
        count = (slots["queries"] - (first + at)).min(plan.width)
        sums = room["sums"] + p * product.room(plan.width)
        for column in range(product.columns):
            place = sums + column * (size * product.block)
            for i in k.range(count):
                scale = room["factor"].splat(i, self.lanes)
                for v in range(product.vectors):
                    here = place + (i * product.block + v * self.lanes)
                    here.store(here.load(0, self.lanes) * scale, 0)
            for i in k.range(0, count, product.rows):
                k.call(
                    self.add_values, room["scores"] + i, room["values"] + column * product.block,
                    place + i * product.block, padded,
                )  # fmt: skip

    def _finish(self, k: Builder, p: Value, batch: Value, head: Value, query: Value) -> None:
        plan, code, slots, room, lanes = self.plan, self.code, self.slots, self.room, self.lanes
        product = plan.values
        count = (slots["queries"] - query).min(plan.width)
        sums = room["sums"] + p * product.room(plan.width)
        at = p * plan.width
        step: int | Value = 1 if "y" in code.units else slots["y3"]
        for i in k.range(count):
            total = room["total"].load(at + i)
            inverse = k.splat(k.select(total == 0.0, 0.0, 1.0 / total), lanes)
            target = self.pointers["y"] + row_of(slots, "y", batch, head, query + i)
            for start, mask in vectors_of(k, code.value_size, lanes):
                column, inside = divmod(start, product.block)
                place = i * product.block + (column * product.reach(plan.width) * product.block + inside)
                value = sums.load(place, lanes) * inverse
                self.scale.store(target + k.integer(step) * start, step, value, mask)
        if code.is_saved:
            for v in range(code.vectors):
                top, total = (room[name].load(at + v * lanes, lanes) for name in ("top", "total"))
                value = k.fma(top, k.constant(math.log(2.0), code.real, lanes), vector_math.log(k, total))
                target = self.pointers["lse"] + row_of(slots, "lse", batch, head, query + v * lanes)
                target.store_strided(value, 0, slots["lse2"], k.mask(count - v * lanes, lanes))


def trace_forward(module: Module, problem: Attention, plan: ForwardPlan, slots: Slots) -> None:
    _Forward(module, problem, plan, slots)
