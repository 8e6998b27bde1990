"""The code of attention forward.

task: a sequence, a head, a block of queries
    transpose the queries into panels; sums = 0, m = -infinity
    for each tile of keys in the window of a query of the block
        pack its keys and values
        for each panel
            scores, masks
            maximum m', factor = 2^(m - m'), p = 2^(score - m')
            total = factor * total + sum of p,  sums = factor * sums + p values,  m = m'
    y = sums / total,  lse = ln 2 (m + log2 total)
"""

from __future__ import annotations

import math

from jitdnn.kernels.cpu.attention.plan import ForwardPlan
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
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Function, Module, Value
from jitdnn.rtcg.power_of_two import LOG2E, power_of_two


class _ForwardCode(AttentionCode[ForwardPlan]):
    def __init__(self, module: Module, problem: Attention, plan: ForwardPlan, slots: Slots) -> None:
        super().__init__(problem, plan, slots)
        contiguous = plan.contiguous
        self.transpose = trace_transposed(
            module, "transpose", plan, plan.size, "q" in contiguous, plan.scale * LOG2E
        )
        self.pack_keys = trace_packed_rows(module, "pack_keys", plan, plan.size, "k" in contiguous)
        self.pack_values = trace_packed_rows(module, "pack_values", plan, plan.value_size, "v" in contiguous)
        self.score = trace_scores(module, plan, "score", plan.size, plan.key_pitch)
        self.mask_window = trace_window(module, plan)
        self.mask_scores = trace_mask(module, plan) if plan.mask else None
        self.update_softmax = self._trace_update_softmax(module)
        self.add_values = trace_microkernel(
            module, "add_values", plan.real, range(plan.values.rows), plan.values.vectors,
            [Loop(None, plan.panel_queries, plan.values.pitch)], accumulate=True,
        )  # fmt: skip
        with module.task("attend") as (k, args, task, thread):
            self.enter(k, args)
            self.load_buffers(k, thread)
            self._task(k, task)

    def _trace_update_softmax(self, module: Module) -> Function:
        """Trace ``update_softmax(scores, rows, maximum, total, factor)``.

        Scores become 2^(score - maximum); maximum and total are updated, and factor is what older sums are scaled by.
        """
        plan = self.plan
        with module.function(
            "update_softmax", scores=plan.real, rows=None, maximum=plan.real, total=plan.real, factor=plan.real
        ) as (k, (scores, rows, maximum, total, factor), function):  # fmt: skip
            lanes, real = self.lanes, plan.real
            vectors = range(plan.vectors)
            maxima = [k.register(maximum.load(v * lanes, lanes)) for v in vectors]
            width = plan.panel_queries
            for r in k.range(rows):
                for v in vectors:
                    maxima[v].set((scores + r * width).load(v * lanes, lanes).max(maxima[v].get()))
            shifts, factors = [], []
            for v in vectors:
                m, old = maxima[v].get(), maximum.load(v * lanes, lanes)
                shift = k.select(m == -math.inf, 0.0, m)
                change = power_of_two(k, old - shift, real)
                shifts.append(shift)
                factors.append(change)
                factor.store(change, v * lanes)
                maximum.store(m, v * lanes)
            # terms of a tile are summed by themselves: fewer roundings than one sum over all keys
            sums = [k.register(k.constant(0.0, real, lanes)) for _ in vectors]
            for r in k.range(rows):
                row = scores + r * width
                for v in vectors:
                    p = power_of_two(k, row.load(v * lanes, lanes) - shifts[v], real)
                    row.store(p, v * lanes)
                    sums[v] += p
            for v in vectors:
                total.store(k.fma(total.load(v * lanes, lanes), factors[v], sums[v].get()), v * lanes)
        return function

    def _task(self, k: Builder, task: Value) -> None:
        plan, slots, buffers = self.plan, self.slots, self.buffers
        width = plan.panel_queries
        blocks = slots["blocks"]
        batch_head = task // blocks
        # the last queries first: under a causal mask they attend to the most keys
        block = blocks - 1 - task % blocks
        batch, head = batch_head // slots["heads"], batch_head % slots["heads"]
        key_head = head // slots["group"]
        first = block * plan.block_queries
        count = (slots["queries"] - first).min(plan.block_queries)
        panels = (count + (width - 1)) // width
        extremes = k.local("i64", 4 * plan.panels)
        lowest, highest = k.register(k.integer(2**40)), k.register(k.integer(0))
        zero = k.constant(0.0, plan.real, self.lanes)
        for p in k.range(panels):
            query = first + p * width
            at = p * width
            k.call(
                self.transpose, self.pointers["q"] + row_of(slots, "q", batch, head, query), slots["q2"],
                slots["q3"], (slots["queries"] - query).min(width), buffers["queries"] + p * (plan.size * width),
            )  # fmt: skip
            window = self.key_windows.write(batch, query, buffers["lo"] + at, buffers["hi"] + at)
            for slot, value in enumerate(window):
                extremes.store(value, p * 4 + slot)
            lowest.set(window[0].min(lowest.get()))
            highest.set(window[3].max(highest.get()))
            for i in k.range(0, width, self.lanes):
                (buffers["maximum"] + at).store(k.constant(-math.inf, plan.real, self.lanes), i)
                (buffers["total"] + at).store(zero, i)
            sums = buffers["sums"] + p * plan.values.elements(width)
            for i in k.range(0, plan.values.elements(width), self.lanes):
                sums.store(zero, i)
        # rows of sums beyond the panel are multiplied by factors, too
        for i in k.range(width, plan.values.padded_rows(width)):
            buffers["factor"].store(k.constant(0.0, plan.real), i)

        for start in k.range(lowest.get(), highest.get(), plan.tile_keys):
            rows = (highest.get() - start).min(plan.tile_keys)
            padded = (rows + (plan.register_keys - 1)) // plan.register_keys * plan.register_keys
            k.call(
                self.pack_keys, self.pointers["k"] + row_of(slots, "k", batch, key_head, start), slots["k2"],
                slots["k3"], rows, padded, buffers["keys"], plan.key_pitch,
            )  # fmt: skip
            k.call(
                self.pack_values, self.pointers["v"] + row_of(slots, "v", batch, key_head, start), slots["v2"],
                slots["v3"], rows, padded, buffers["values"], plan.values.pitch,
            )  # fmt: skip
            for p in k.range(panels):
                panel_window = [extremes.load(p * 4 + i) for i in range(4)]
                with k.when((panel_window[0] < start + rows) & (panel_window[3] > start)):
                    self._tile(k, p, batch, head, first, start, rows, padded, panel_window)
        for p in k.range(panels):
            self._finish(k, p, batch, head, first + p * width)

    def _tile(
        self, k: Builder, p: Value, batch: Value, head: Value, first: Value, start: Value, rows: Value,
        padded: Value, window: list[Value],
    ) -> None:  # fmt: skip
        plan, slots, buffers = self.plan, self.slots, self.buffers
        width = plan.panel_queries
        at = p * width
        k.call(
            self.score,
            buffers["keys"],
            buffers["queries"] + p * (plan.size * width),
            buffers["scores"],
            padded,
        )
        if self.mask_scores is not None:
            query = first + at
            mask = self.pointers["mask"] + row_of(slots, "mask", batch, head, query, start)
            k.call(
                self.mask_scores, buffers["scores"], mask, slots["mask2"], slots["mask3"],
                (slots["queries"] - query).min(width), rows,
            )  # fmt: skip
        with k.when((window[1] > start) | (window[2] < start + padded)):
            k.call(self.mask_window, buffers["scores"], padded, start, buffers["lo"] + at, buffers["hi"] + at)
        k.call(
            self.update_softmax,
            buffers["scores"],
            padded,
            buffers["maximum"] + at,
            buffers["total"] + at,
            buffers["factor"],
        )
        product, size = plan.values, plan.values.padded_rows(width)
        count = (slots["queries"] - (first + at)).min(width)
        sums = buffers["sums"] + p * product.elements(width)
        for column in range(product.columns):
            block = sums + column * (size * product.block)
            for i in k.range(count):
                scale = buffers["factor"].splat(i, self.lanes)
                for v in range(product.vectors):
                    vector = block + (i * product.block + v * self.lanes)
                    vector.store(vector.load(0, self.lanes) * scale, 0)
            for i in k.range(0, count, product.rows):
                k.call(
                    self.add_values, buffers["scores"] + i, buffers["values"] + column * product.block,
                    block + i * product.block, padded,
                )  # fmt: skip

    def _finish(self, k: Builder, p: Value, batch: Value, head: Value, query: Value) -> None:
        plan, slots, buffers, lanes = self.plan, self.slots, self.buffers, self.lanes
        width = plan.panel_queries
        product = plan.values
        count = (slots["queries"] - query).min(width)
        sums = buffers["sums"] + p * product.elements(width)
        at = p * width
        step = self.step_of("y")
        for i in k.range(count):
            total = buffers["total"].load(at + i)
            inverse = k.splat(k.select(total == 0.0, 0.0, 1.0 / total), lanes)
            target = self.pointers["y"] + row_of(slots, "y", batch, head, query + i)
            for start, mask in vectors_of(k, plan.value_size, lanes):
                offset = sum_offset(product, product.padded_rows(width), i, start)
                value = sums.load(offset, lanes) * inverse
                self.scale.store(target + k.integer(step) * start, step, value, mask)
        if plan.is_saved:
            for v in range(plan.vectors):
                maximum, total = (buffers[name].load(at + v * lanes, lanes) for name in ("maximum", "total"))
                value = k.fma(maximum, k.constant(math.log(2.0), plan.real, lanes), vector_math.log(k, total))
                target = self.pointers["lse"] + row_of(slots, "lse", batch, head, query + v * lanes)
                target.store_strided(value, 0, slots["lse2"], k.mask(count - v * lanes, lanes))


def trace(module: Module, problem: Attention, plan: ForwardPlan, slots: Slots) -> None:
    """Trace the task "attend"."""
    _ForwardCode(module, problem, plan, slots)
