"""The code of recurrent layers forward: one product for all steps of a layer, then a phase for each step.

    tables > (gather x) > for each layer: pack > product of all steps > start > T times: step (> project) > above

A task of a step has some blocks of units of one direction or both. A block is a few units with all their gates: the
states of all sequences times its panel, and the cell on the sums. States of sequences that have ended do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitdnn.kernels.cpu.rnn import cells
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.gemm import trace_rows_product, trace_transposed
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, STEP, Memory
from jitdnn.kernels.cpu.rnn.plan import ForwardPlan, Product
from jitdnn.kernels.cpu.rnn.sequence_tables import (
    trace_counters,
    trace_gather,
    trace_tables,
    trace_zero_rows,
    zero_ended,
    zero_tail,
)
from jitdnn.kernels.cpu.rnn.step_code import Step, trace_projection, trace_step
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower


class _ForwardCode:
    def __init__(self, plan: ForwardPlan) -> None:
        self.plan, self.p, self.lanes = plan, plan.p, plan.lanes

    def trace(self, module: Module) -> None:
        p, plan = self.p, self.plan
        trace_tables(module, plan)
        trace_counters(module, plan)
        trace_gather(module, plan, "gather", "x", "x", 1, p.inputs_size, plan.padded_inputs)
        self._trace_pack_input(module, "pack_first", plan.first_product)
        self._trace_product(module, "first", plan.first_product, lambda memory, layer: memory.workspace("x"))
        if p.layers > 1:
            self._trace_pack_input(module, "pack_next", plan.next_product)
            self._trace_product(module, "next", plan.next_product, self._below)
        if p.dropout:
            trace_dropout(module, plan, "drop", self.out, lambda memory, below: memory.workspace("dropped"))
        self._trace_pack_states(module)
        self._trace_start(module)
        trace_step(
            module, plan, self._load_step, lambda step: (step.count, step.count), p.padded,
            p.padded % (plan.step_vectors * plan.lanes) == 0, self._cell,
        )  # fmt: skip
        if p.projection:
            self._trace_pack_projection(module)
            trace_projection(module, plan, "project", "full", self._load_step, p.padded_size, self._store)
        self._trace_end(module)
        if p.is_training and p.sequences != "whole":
            trace_zero_rows(module, plan, "zero_rows", "saved")

    # ---- where rows are

    def out(self, memory: Memory, layer: Value) -> Pointer:
        """The outputs of a layer as rows (directions, size): saved, or in one of two buffers that alternate."""
        p = self.p
        if p.is_training:
            return memory.section("saved", p.kept, "out", layer)
        return memory.workspace("out") + (layer & 1) * memory.integer("out.size")

    def _below(self, memory: Memory, layer: Value) -> Pointer:
        """The input of a layer that is not the first."""
        return memory.workspace("dropped") if self.p.dropout else self.out(memory, layer - 1)

    def sums(self, memory: Memory, layer: Value) -> Pointer:
        """The sums of the product over all steps."""
        if self.plan.saves_gates:
            return memory.section("saved", self.p.kept, "gates", layer)
        return memory.workspace("gates")

    # ---- weights

    def _trace_pack_input(self, module: Module, name: str, product: Product) -> None:
        """One task for each vector of columns of weight_ih, with its bias."""
        p, plan, lanes = self.p, self.plan, self.lanes
        pitch = plan.layer_width
        copy = trace_transposed(module, f"{name}.copy", plan, product.depth, pitch)
        with module.task(name) as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            layer = memory.packed_layer
            column = task * lanes
            direction = column // (p.gates * p.padded)
            gate = column // p.padded % p.gates
            unit = column % p.padded
            row, valid = gate * p.hidden + unit, (k.integer(p.hidden) - unit).min(lanes)
            w = memory.weight("weight_ih", layer, direction) + row * product.depth
            to = memory.workspace("input_panels") + (column // pitch * product.panel(lanes) + column % pitch)
            k.call(copy, w, to, valid, product.depth)
            mask, total = k.mask(valid, lanes), k.register(k.constant(0, plan.dtype, lanes))
            if "bias_ih" in p.biases:
                total += memory.weight("bias_ih", layer, direction).load(row, lanes, mask)
            if "bias_hh" in p.biases:
                other = memory.weight("bias_hh", layer, direction).load(row, lanes, mask)
                if (
                    p.cell == "gru"
                ):  # the bias of the new gate belongs to U h, which the reset gate multiplies
                    with k.when(gate < 2):
                        total += other
                    with k.when(gate == 2):
                        memory.workspace("new_bias").store(other, direction * p.padded + unit)
                else:
                    total += other
            memory.workspace("bias").store(total.get(), column)

    def _trace_pack_states(self, module: Module) -> None:
        """One task for each vector of units and gate of weight_hh."""
        p, plan, lanes, product = self.p, self.plan, self.lanes, self.plan.recurrent_product
        pitch = product.vectors * lanes
        copy = trace_transposed(module, "pack_states.copy", plan, p.size, pitch)
        with module.task("pack_states") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // plan.blocks, panel % plan.blocks
            gate = vector // plan.step_vectors
            unit = (block * plan.step_vectors + vector % plan.step_vectors) * lanes
            valid = (k.integer(p.hidden) - unit).min(lanes)
            w = memory.weight("weight_hh", memory.packed_layer, direction)
            w = w + (gate * p.hidden + unit) * p.size
            to = memory.workspace("state_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, valid, p.size)

    def _trace_pack_projection(self, module: Module) -> None:
        p, plan, lanes, product = self.p, self.plan, self.lanes, self.plan.projection_product
        pitch = product.vectors * lanes
        copy = trace_transposed(module, "pack_projection.copy", plan, p.hidden, pitch)
        with module.task("pack_projection") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // plan.projection_blocks, panel % plan.projection_blocks
            unit = (block * product.vectors + vector) * lanes
            valid = (k.integer(p.size) - unit).min(lanes)
            w = memory.weight("weight_hr", memory.packed_layer, direction) + unit * p.hidden
            to = memory.workspace("projection_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, valid, p.hidden)

    def _trace_product(
        self, module: Module, name: str, product: Product, source: Callable[[Memory, Value], Pointer]
    ) -> None:
        p, plan, width = self.p, self.plan, self.plan.gates_width

        def store(memory: Memory, layer: Value, column: Value) -> Callable[[Value, Value], None]:
            each = p.gates * p.padded
            bias = memory.workspace("bias").load(column, self.lanes)
            to = self.sums(memory, layer) + (column // each * width + column % each)
            return lambda row, sums: to.store(sums + bias, row * (p.directions * width))

        trace_rows_product(module, plan, name, product, plan.columns, source, store)

    # ---- states

    def _trace_start(self, module: Module) -> None:
        """One task for each direction: the first states, in both buffers, and the last ones of empty sequences."""
        p, plan, lanes = self.p, self.plan, self.lanes
        pairs = [("hx", "h", "hn", p.size, p.padded_size)]
        pairs += [("cx", "c", "cn", p.hidden, p.padded)] * (p.cell == "lstm")
        with module.task("start") as (k, args, direction, _thread):
            memory = Memory(k, plan, args)
            layer, batch = memory.counter(LAYER), memory.integer("batch")
            count = memory.table("counts").load(0)
            for name, section, last, size, padded in pairs:
                to = memory.workspace(section) + direction * batch * padded
                for n in k.range(batch):
                    for unit in k.range(0, padded, lanes):
                        value = k.constant(0, plan.dtype, lanes)
                        if p.has_states:
                            row = memory.state_row(name, layer, direction, n)
                            value = memory.load_units(name, row, unit, size)
                        to.store(value, n * padded + unit)
                        if section == "h":
                            to.store(value, n * padded + unit + memory.integer("h.size"))
                        with k.when((n >= count) & (unit < size)):
                            memory.store_units(
                                last, value, memory.state_row(last, layer, direction, n), unit, size
                            )

    def _cell(self, k: Builder, step: _Step, n: Value, unit: Value, sums: Pointer) -> None:
        p, plan, lanes, memory = self.p, self.plan, self.lanes, step.memory
        row = step.row(n)
        width = plan.gates_width
        x_sums = step.sums + row * (p.directions * width) + step.direction * width + unit
        x = [x_sums.load(gate * p.padded, lanes) for gate in range(p.gates)]
        u = [sums.load(gate * plan.step_vectors * lanes, lanes) for gate in range(p.gates)]
        if p.cell == "lstm":
            i, f, o = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1, 3))
            g = lower(k, cells.NEW, [x[2], u[2]])
            states = memory.workspace("c") + (step.state(n) * p.padded + unit)
            c = lower(k, cells.lstm_cell(p.clip), [f, states.load(0, lanes), i, g])
            h = lower(k, cells.LSTM_OUT, [o, c])
            states.store(c)
            self._save((i, f, g, o), x_sums)
            if p.is_training:
                step.saved("cell").store(c, (row * p.directions + step.direction) * p.padded + unit)
            with k.when((n >= step.final) & (unit < p.hidden)):
                to = memory.state_row("cn", step.layer, step.direction, n)
                memory.store_units("cn", c, to, unit, p.hidden)
            if p.projection:
                state = step.state(n) * p.padded + unit
                memory.workspace("full").store(h, state)
                if p.is_training:
                    step.saved("full").store(h, (row * p.directions + step.direction) * p.padded + unit)
                return
        elif p.cell == "gru":
            m = u[2]
            if "bias_hh" in p.biases:
                m = m + memory.workspace("new_bias").load(step.direction * p.padded + unit, lanes)
            r, z = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1))
            new = lower(k, cells.GRU_NEW, [x[2], r, m])
            before = step.old.load(step.state(n) * p.padded + unit, lanes)
            h = lower(k, cells.GRU_OUT, [z, new, before])
            self._save((r, z, new, m), x_sums)
        else:
            h = lower(k, cells.plain(p.cell), [x[0], u[0]])
        self._store(k, step, n, unit, h)

    def _save(self, gates: tuple[Value, ...], to: Pointer) -> None:
        if self.plan.saves_gates:
            for number, gate in enumerate(gates):
                to.store(gate, number * self.p.padded)

    def _store(self, k: Builder, step: _Step, n: Value, unit: Value, h: Value) -> None:
        """Store a vector of h to the states, the rows of the layer, y, and the last states."""
        p, memory, direction = self.p, step.memory, step.direction
        step.new.store(h, step.state(n) * p.padded_size + unit)
        offset = (step.row(n) * p.directions + direction) * p.padded_size + unit
        if p.is_training:
            step.out.store(h, offset)
        elif p.layers > 1:
            with k.when(~step.is_last):
                step.out.store(h, offset)
        with k.when(step.is_last & (unit < p.size)):
            row = memory.sequence_row("y", step.t, n, step.start)
            memory.blend_units("y", h, row, unit, p.size, direction * p.size)
        with k.when((n >= step.final) & (unit < p.size)):
            memory.store_units("hn", h, memory.state_row("hn", step.layer, direction, n), unit, p.size)

    def _trace_end(self, module: Module) -> None:
        """One task for each direction: zeros in y at steps that a sequence does not have."""
        p, plan = self.p, self.plan
        with module.task("end") as (k, args, direction, _thread):
            memory = Memory(k, plan, args)
            if p.sequences == "lengths":
                for t in k.range(memory.integer("steps")):
                    zero_ended(k, memory, "y", t, memory.table("counts").load(t), direction * p.size, p.size)
            elif p.sequences == "packed":
                zero_tail(k, memory, "y", direction * p.size, p.size)

    def _load_step(self, k: Builder, memory: Memory, direction: Value) -> _Step:
        layer, step, steps = memory.counter(LAYER), memory.counter(STEP), memory.integer("steps")
        t = k.select(direction == 0, step, steps - 1 - step)
        counts = memory.table("counts")
        count = counts.load(t)
        backward_final = k.select(t == 0, 0, count)
        size, odd = memory.integer("h.size"), step & 1
        return _Step(
            memory=memory,
            layer=layer,
            direction=direction,
            t=t,
            count=count,
            start=memory.table("starts").load(t),
            final=k.select(direction == 0, counts.load(t + 1), backward_final),
            is_last=layer == memory.integer("layers") - 1,
            old=memory.workspace("h") + odd * size,
            new=memory.workspace("h") + (odd ^ 1) * size,
            sums=self.sums(memory, layer),
            out=self.out(memory, layer),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Step(Step):
    t: Value
    final: Value  # sequences from this number on are at their last step
    is_last: Value  # the last layer
    sums: Pointer  # of the product over all steps
    out: Pointer

    def row(self, n: Value) -> Value:
        return self.start + n


def trace(module: Module, plan: ForwardPlan) -> None:
    """Trace the tasks of all phases."""
    _ForwardCode(plan).trace(module)
