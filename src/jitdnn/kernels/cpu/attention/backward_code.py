"""The code of attention backward: dq, dk and dv in one pass over the tiles, whose scores are computed again.

    task: a sequence, a key head, a range of its keys
        pack keys and values; dk = dv = 0
        for each query head of the group, each panel of queries whose windows reach the range
            pack q and dy, also transposed; delta = sum(dy * y); dq = 0
            for each tile of keys
                p = 2^(scores - lse),  ds = p (values dy - delta)
                dv += p dy,  dk += ds q,  dq += ds keys
            write dq
        write dk, dv

A head has one range where there are heads enough for all threads; otherwise every range has its own sums of dq in the
workspace, which a second phase adds up in their order.
"""

from __future__ import annotations

import math

from jitdnn.kernels.cpu.attention.plan import ROWS_OF_A_SUM, BackwardPlan, Product
from jitdnn.kernels.cpu.attention.tile_code import (
    AttentionCode,
    row_of,
    sum_offset,
    trace_mask,
    trace_packed_rows,
    trace_scores,
    trace_transposed,
    trace_window,
    vectors_of,
)
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.power_of_two import LOG2E, power_of_two


class _BackwardCode(AttentionCode[BackwardPlan]):
    def __init__(self, module: Module, problem: Attention, plan: BackwardPlan, slots: Slots) -> None:
        super().__init__(problem, plan, slots)
        size, value_size, contiguous = plan.size, plan.value_size, plan.contiguous
        self.transpose_q = trace_transposed(
            module, "transpose_q", plan, size, "q" in contiguous, plan.scale * LOG2E
        )
        self.transpose_dy = trace_transposed(module, "transpose_dy", plan, value_size, "dy" in contiguous)
        self.packs = {
            name: trace_packed_rows(module, f"pack_{name}", plan, width, name in contiguous)
            for name, width in (("k", size), ("q", size), ("v", value_size), ("dy", value_size))
        }
        self.score = trace_scores(module, plan, "score", size, plan.dq.pitch)
        self.multiply_values = trace_scores(module, plan, "multiply_values", value_size, plan.value_pitch)
        self.mask_window = trace_window(module, plan)
        self.mask_scores = trace_mask(module, plan) if plan.mask else None
        self.differentiate = self._trace_differentiate(module)
        self.add_dq = trace_microkernel(
            module, "add_dq", plan.real, range(plan.dq.rows), plan.dq.vectors,
            [Loop(None, plan.panel_queries, plan.dq.pitch)], accumulate=True,
        )  # fmt: skip
        self.add_dv = self._trace_product_of_keys(module, "add_dv", plan.dv)
        is_same = plan.dk == plan.dv
        self.add_dk = self.add_dv if is_same else self._trace_product_of_keys(module, "add_dk", plan.dk)
        with module.task("gradients") as (k, args, task, thread):
            self.enter(k, args)
            self.load_buffers(k, thread)
            self._task(k, task)
        if plan.splits:
            with module.task("gather") as (k, args, task, _):
                self.enter(k, args)
                self._gather(k, task)

    def _trace_product_of_keys(self, module: Module, name: str, product: Product) -> Function:
        """Trace sums over queries: of a key's row of probabilities or ds times rows of dy or q."""
        width = self.plan.panel_queries
        return trace_microkernel(
            module, name, self.plan.real, [r * width for r in range(product.rows)], product.vectors,
            [Loop(width, 1, product.pitch)], accumulate=True,
        )  # fmt: skip

    def _trace_differentiate(self, module: Module) -> Function:
        """Trace ``differentiate(p, ds, rows, lse, delta)``: scores in p become probabilities, dy . v in ds their ds.

        p = 2^(score - lse), ds = p (dy . v - delta).
        """
        real = self.plan.real
        with module.function("differentiate", p=real, ds=real, rows=None, lse=real, delta=real) as (
            k, (p, ds, rows, lse, delta), function,
        ):  # fmt: skip
            lanes = self.lanes
            offsets = [v * lanes for v in range(self.plan.vectors)]
            shifts = [lse.load(offset, lanes) for offset in offsets]
            deltas = [delta.load(offset, lanes) for offset in offsets]
            for r in k.range(rows):
                row = r * self.plan.panel_queries
                for offset, shift, own in zip(offsets, shifts, deltas, strict=True):
                    value = power_of_two(k, p.load(row + offset, lanes) - shift, real)
                    p.store(value, row + offset)
                    ds.store(value * (ds.load(row + offset, lanes) - own), row + offset)
        return function

    # ---- one head's keys

    def _task(self, k: Builder, task: Value) -> None:
        plan, slots, buffers = self.plan, self.slots, self.buffers
        batch_head, part = task // slots["splits"], task % slots["splits"]
        key_heads = slots["heads"] // slots["group"]
        batch, key_head = batch_head // key_heads, batch_head % key_heads
        first = part * plan.range_keys
        rows = (slots["keys"] - first).min(plan.range_keys).max(0)
        # keys after the end of the sequence are not read
        filled = (self.key_windows.key_count(batch) - first).min(rows).max(0)
        padded = (filled + (plan.register_keys - 1)) // plan.register_keys * plan.register_keys
        for name, buffer, pitch in (("k", "keys", plan.dq.pitch), ("v", "values", plan.value_pitch)):
            k.call(
                self.packs[name], self.pointers[name] + row_of(slots, name, batch, key_head, first),
                slots[f"{name}2"], slots[f"{name}3"], filled, padded, buffers[buffer], pitch,
            )  # fmt: skip
        keys_of_range = plan.padded_range
        for name, product in (("dk", plan.dk), ("dv", plan.dv)):
            self.clear(k, buffers[name], keys_of_range * product.pitch)
        for member in k.range(slots["group"]):
            head = key_head * slots["group"] + member
            for query in k.range(0, slots["queries"], plan.panel_queries):
                self._panel(k, part, batch, head, query, first, first + filled)
        for name, product, size in (("dk", plan.dk, plan.size), ("dv", plan.dv, plan.value_size)):
            target = self.pointers[name] + row_of(slots, name, batch, key_head, first)
            factor = plan.scale if name == "dk" else 1.0
            for r in k.range(rows):
                self._write_row(
                    k,
                    name,
                    target + r * slots[f"{name}2"],
                    buffers[name],
                    r,
                    product,
                    keys_of_range,
                    size,
                    factor,
                )

    def _write_row(
        self, k: Builder, name: str, target: Pointer, sums: Pointer, row: Value, product: Product, rows: int,
        size: int, factor: float,
    ) -> None:  # fmt: skip
        step = self.step_of(name)
        for start, mask in vectors_of(k, size, self.lanes):
            value = sums.load(sum_offset(product, rows, row, start), self.lanes)
            value = value if factor == 1.0 else value * factor
            self.scale.store(target + k.integer(step) * start, step, value, mask)

    # ---- a panel of queries against the keys of the task

    def _panel(
        self, k: Builder, part: Value, batch: Value, head: Value, query: Value, first: Value, end: Value
    ) -> None:
        plan, slots, buffers = self.plan, self.slots, self.buffers
        count = (slots["queries"] - query).min(plan.panel_queries)
        window = self.key_windows.write(batch, query, buffers["lo"], buffers["hi"])
        low, high = window[0].max(first), window[3].min(end)
        padded = plan.dq.padded_rows(plan.panel_queries)
        self.clear(k, buffers["dq"], plan.dq.elements(plan.panel_queries))
        with k.when(low < high):
            self._pack(k, batch, head, query, count)
            # tiles begin where register tiles of the packed keys do
            begin = first + (low - first) // plan.register_keys * plan.register_keys
            for start in k.range(begin, high, plan.tile_keys):
                self._tile(k, batch, head, query, count, first, start, high, window)
        if plan.splits:
            pitch = plan.query_pitch
            partial = self._partial(k, part, batch, head, query)
            for i in k.range(count):
                for at in range(0, pitch, self.lanes):
                    value = buffers["dq"].load(sum_offset(plan.dq, padded, i, at), self.lanes)
                    (partial + i * pitch).store(value, at)
            return
        target = self.pointers["dq"] + row_of(slots, "dq", batch, head, query)
        for i in k.range(count):
            self._write_row(
                k, "dq", target + i * slots["dq2"], buffers["dq"], i, plan.dq, padded, plan.size, plan.scale
            )

    def _pack(self, k: Builder, batch: Value, head: Value, query: Value, count: Value) -> None:
        """Pack the panel's q and dy, also transposed, its lse and its delta."""
        plan, slots, buffers, lanes = self.plan, self.slots, self.buffers, self.lanes
        width = k.integer(plan.panel_queries)
        packed = (("q", self.transpose_q, plan.dk.pitch), ("dy", self.transpose_dy, plan.dv.pitch))
        for name, transpose, pitch in packed:
            source = self.pointers[name] + row_of(slots, name, batch, head, query)
            row_stride, step = slots[f"{name}2"], slots[f"{name}3"]
            k.call(transpose, source, row_stride, step, count, buffers[f"transposed_{name}"])
            k.call(self.packs[name], source, row_stride, step, count, width, buffers[name], pitch)
        step_y = self.step_of("y")
        for lane in range(0, plan.panel_queries, lanes):
            buffers["delta"].store(k.constant(0.0, plan.real, lanes), lane)
            keep = k.mask(count - lane, lanes)
            source = self.pointers["lse"] + row_of(slots, "lse", batch, head, query + lane)
            lse = source.load_strided(0, slots["lse2"], lanes, keep) * LOG2E
            # all probabilities are 0 of a query that attends to nothing, and of lanes after the last query
            lse = k.select(keep, lse, math.inf)
            buffers["lse"].store(k.select(lse == -math.inf, math.inf, lse), lane)
        for i in k.range(count):
            y = self.pointers["y"] + row_of(slots, "y", batch, head, query + i)
            total = k.constant(0.0, plan.real, lanes)
            for start, mask in vectors_of(k, plan.value_size, lanes):
                vector = (y + k.integer(step_y) * start).load_strided(0, step_y, lanes, mask)
                total = k.fma(vector, (buffers["dy"] + i * plan.dv.pitch).load(start, lanes), total)
            buffers["delta"].store(k.reduce(total), i)

    def _tile(
        self, k: Builder, batch: Value, head: Value, query: Value, count: Value, first: Value, start: Value,
        high: Value, window: tuple[Value, ...],
    ) -> None:  # fmt: skip
        plan, slots, buffers = self.plan, self.slots, self.buffers
        rows = (high - start).min(plan.tile_keys)
        padded = (rows + (plan.register_keys - 1)) // plan.register_keys * plan.register_keys
        row = start - first
        keys = buffers["keys"] + row * plan.dq.pitch
        k.call(self.score, keys, buffers["transposed_q"], buffers["probabilities"], padded)
        if self.mask_scores is not None:
            mask = self.pointers["mask"] + row_of(slots, "mask", batch, head, query, start)
            k.call(
                self.mask_scores, buffers["probabilities"], mask, slots["mask2"], slots["mask3"], count, rows,
            )  # fmt: skip
        with k.when((window[1] > start) | (window[2] < start + padded)):
            k.call(self.mask_window, buffers["probabilities"], padded, start, buffers["lo"], buffers["hi"])
        k.call(
            self.multiply_values,
            buffers["values"] + row * plan.value_pitch,
            buffers["transposed_dy"],
            buffers["ds"],
            padded,
        )
        k.call(
            self.differentiate,
            buffers["probabilities"],
            buffers["ds"],
            padded,
            buffers["lse"],
            buffers["delta"],
        )
        keys_of_range = plan.padded_range
        for add, product, sums, source, other in (
            (self.add_dv, plan.dv, buffers["dv"], buffers["probabilities"], buffers["dy"]),
            (self.add_dk, plan.dk, buffers["dk"], buffers["ds"], buffers["q"]),
        ):
            for column in range(product.columns):
                block = sums + (column * keys_of_range * product.block + row * product.block)
                for r in k.range(0, padded, product.rows):
                    k.call(
                        add,
                        source + r * plan.panel_queries,
                        other + column * product.block,
                        block + r * product.block,
                    )
        for column in range(plan.dq.columns):
            block = buffers["dq"] + column * plan.dq.padded_rows(plan.panel_queries) * plan.dq.block
            for i in k.range(0, plan.panel_queries, plan.dq.rows):
                k.call(
                    self.add_dq,
                    buffers["ds"] + i,
                    keys + column * plan.dq.block,
                    block + i * plan.dq.block,
                    padded,
                )

    # ---- sums of dq over ranges of keys

    def _partial(self, k: Builder, part: Value, batch: Value, head: Value, query: Value) -> Pointer:
        """The row of ``query`` in the sums of a range: [range][sequence][head][query][padded size]."""
        slots = self.slots
        row = ((part * slots["batches"] + batch) * slots["heads"] + head) * slots["queries"] + query
        pitch = self.plan.query_pitch
        start: Pointer = Pointer(k, self.arguments.workspace("i8").v, "i8") + slots["partials"]
        return Pointer(k, start.v, self.plan.real) + row * pitch

    def _gather(self, k: Builder, task: Value) -> None:
        """dq of some queries of a head: the sums of all ranges, in order."""
        plan, slots, lanes = self.plan, self.slots, self.lanes
        blocks = (slots["queries"] + (ROWS_OF_A_SUM - 1)) // ROWS_OF_A_SUM
        batch_head, query = task // blocks, task % blocks * ROWS_OF_A_SUM
        batch, head = batch_head // slots["heads"], batch_head % slots["heads"]
        pitch = plan.query_pitch
        range_stride = slots["batches"] * slots["heads"] * slots["queries"] * pitch
        partial = self._partial(k, k.integer(0), batch, head, query)
        step = self.step_of("dq")
        for i in k.range((slots["queries"] - query).min(ROWS_OF_A_SUM)):
            target = self.pointers["dq"] + row_of(slots, "dq", batch, head, query + i)
            for start, mask in vectors_of(k, plan.size, lanes):
                total = k.register((partial + i * pitch).load(start, lanes))
                for part in k.range(1, slots["splits"]):
                    total += (partial + (part * range_stride + i * pitch)).load(start, lanes)
                value = total.get() * plan.scale
                self.scale.store(target + k.integer(step) * start, step, value, mask)


def trace(module: Module, problem: Attention, plan: BackwardPlan, slots: Slots) -> None:
    """Trace the task "gradients", and "gather" where the keys of a head are several ranges."""
    _BackwardCode(module, problem, plan, slots)
