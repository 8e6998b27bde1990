"""The code of the gradients of recurrent layers' data: a phase for each step, then one product for each layer.

    tables > gather dy > for each layer from the top: pack > start > T + 1 times: step (> cell) > product > scatter dx

Steps run from the last one to the first. A task of a step has blocks of units: the gradients of all gates of the step
that ran before times a panel, plus the gradient of the output; then the derivative of the cell on the sums. The
gradients of a sequence's first states are computed in the step that runs after its own first one: hence T + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitdnn.kernels.cpu.rnn import cells
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.gemm import trace_copy, trace_rows_product
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, STEP, Memory
from jitdnn.kernels.cpu.rnn.plan import BackwardPlan
from jitdnn.kernels.cpu.rnn.sequence_tables import (
    trace_counters,
    trace_gather,
    trace_scatter,
    trace_tables,
    trace_zero_rows,
)
from jitdnn.kernels.cpu.rnn.step_code import Step, trace_projection, trace_step
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower


class _BackwardCode:
    def __init__(self, plan: BackwardPlan) -> None:
        self.plan, self.p, self.lanes = plan, plan.p, plan.lanes

    def trace(self, module: Module) -> None:
        p, plan = self.p, self.plan
        trace_tables(module, plan)
        trace_counters(module, plan)
        trace_gather(module, plan, "gather", "dy", "dy", p.directions, p.size, p.padded_size)
        self._trace_pack_states(module)
        self._trace_start(module)
        trace_step(
            module, plan, self._load_step, lambda step: (step.count.max(step.before), step.before), p.padded_size,
            False, self._total,
        )  # fmt: skip
        if p.projection:
            self._trace_pack_projection(module)
            trace_projection(
                module, plan, "cell", "dr", self._load_step, p.padded,
                lambda k, step, n, unit, dh: self._cell(k, step, n, unit, dh, None),
                self._store_cell if p.has_states else None, lambda step: step.before,
            )  # fmt: skip
        for name, first in (("first", True), ("next", False)):
            if first or p.layers > 1:
                self._trace_pack_inputs(module, f"pack_{name}", first)
                self._trace_product(module, name, first)
        if p.dropout:
            trace_dropout(module, plan, "drop", self.outputs, self.outputs)
        trace_scatter(module, plan, "scatter", "dx", "dx", p.inputs_size, self.plan.padded_inputs)
        if p.sequences != "whole":
            trace_zero_rows(module, plan, "zero_rows", "dgates")

    def outputs(self, memory: Memory, layer: Value) -> Pointer:
        """The gradients of a layer's outputs as rows (directions, size), in one of two buffers that alternate."""
        odd = (memory.integer("layers") - 1 - layer) & 1
        return memory.workspace("dy") + odd * memory.integer("dy.size")

    # ---- weights

    def _trace_pack_states(self, module: Module) -> None:
        """One task for each vector of columns and gate of weight_hh."""
        p, plan, lanes, product = self.p, self.plan, self.lanes, self.plan.recurrent_product
        pitch = product.vectors * lanes
        copy = trace_copy(module, "pack_states.copy", plan, p.size, pitch)
        with module.task("pack_states") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            gate, rest = task % p.gates, task // p.gates
            vector, panel = rest % product.vectors, rest // product.vectors
            direction, block = panel // plan.blocks, panel % plan.blocks
            unit = (block * product.vectors + vector) * lanes
            w = memory.weight("weight_hh", memory.counter(LAYER), direction)
            w = w + gate * (p.hidden * p.size) + unit
            to = memory.workspace("state_panels") + panel * product.panel(lanes) + gate * (p.hidden * pitch)
            k.call(copy, w, to + vector * lanes, k.integer(p.size) - unit, p.hidden)

    def _trace_pack_projection(self, module: Module) -> None:
        p, plan, lanes, product = self.p, self.plan, self.lanes, self.plan.projection_product
        pitch = product.vectors * lanes
        copy = trace_copy(module, "pack_projection.copy", plan, p.hidden, pitch)
        with module.task("pack_projection") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // plan.projection_blocks, panel % plan.projection_blocks
            unit = (block * product.vectors + vector) * lanes
            w = memory.weight("weight_hr", memory.counter(LAYER), direction) + unit
            to = memory.workspace("projection_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, k.integer(p.hidden) - unit, p.size)

    def _trace_pack_inputs(self, module: Module, name: str, first: bool) -> None:
        """One task for each vector of columns, direction and gate of weight_ih."""
        p, plan, lanes, product = self.p, self.plan, self.lanes, self.plan.input_product
        pitch, depth = product.vectors * lanes, p.depth(0 if first else 1)
        size, padded = (p.inputs_size, self.plan.padded_inputs) if first else (p.size, p.padded_size)
        copy = trace_copy(module, f"{name}.copy", plan, depth, pitch)
        with module.task(name) as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            gate, rest = task % p.gates, task // p.gates
            direction, column = rest % p.directions, rest // p.directions * lanes
            part, unit = column // padded, column % padded
            # in dgates the new gate of gru comes first
            own = (gate + 2) % 3 if p.cell == "gru" else gate
            w = memory.weight("weight_ih", memory.counter(LAYER), direction) + own * (p.hidden * depth)
            to = memory.workspace("input_panels") + column // pitch * product.panel(lanes) + column % pitch
            to = to + (direction * p.gates + gate) * (p.hidden * pitch)
            k.call(copy, w + (part * size + unit), to, k.integer(size) - unit, p.hidden)

    def _trace_product(self, module: Module, name: str, first: bool) -> None:
        p, plan, columns = self.p, self.plan, self.plan.columns(first)

        def source(memory: Memory, layer: Value) -> Pointer:
            return memory.section("dgates", p.slopes, "gates", layer)

        def store(memory: Memory, layer: Value, column: Value) -> Callable[[Value, Value], None]:
            to = memory.workspace("dx") if first else self.outputs(memory, layer - 1)
            to = to + column
            return lambda row, sums: to.store(sums, row * columns)

        trace_rows_product(module, plan, name, plan.input_product, columns, source, store)

    # ---- steps

    def _trace_start(self, module: Module) -> None:
        """One task for each direction: the gradients of the last states, and of the first ones of empty sequences."""
        p, plan, lanes = self.p, self.plan, self.lanes
        pairs = [("dhn", "carry", "dhx", p.size, p.padded_size)]
        pairs += [("dcn", "dc", "dcx", p.hidden, p.padded)] * (p.cell == "lstm")
        with module.task("start") as (k, args, direction, _thread):
            memory = Memory(k, plan, args)
            layer, batch = memory.counter(LAYER), memory.integer("batch")
            count = memory.table("counts").load(0)
            for name, section, result, size, padded in pairs:
                to = memory.workspace(section) + direction * batch * padded
                for n in k.range(batch):
                    for unit in k.range(0, padded, lanes):
                        value = k.constant(0, plan.dtype, lanes)
                        if p.has_final:
                            row = memory.state_row(name, layer, direction, n)
                            value = memory.load_units(name, row, unit, size)
                        to.store(value, n * padded + unit)
                        if p.has_states:
                            with k.when(n >= count):
                                row = memory.state_row(result, layer, direction, n)
                                memory.store_units(result, value, row, unit, size)

    def _total(self, k: Builder, step: _Step, n: Value, unit: Value, sums: Pointer) -> None:
        """The gradient of a vector of h: from the gates of the later step, past them, and from the output."""
        p, plan, lanes, memory, direction = self.p, self.plan, self.lanes, step.memory, step.direction
        carried = memory.workspace("carry") + (step.state(n) * p.padded_size + unit)
        total = k.register(carried.load(0, lanes))
        with k.when(n < step.before):
            total += sums.load(0, lanes)
        with k.when(n >= step.count):
            if p.has_states:
                row = memory.state_row("dhx", step.layer, direction, n)
                memory.store_units("dhx", total.get(), row, unit, p.size)
                if p.cell == "lstm" and not p.projection:
                    self._store_cell(step, n, unit)
        with k.when(n < step.count):
            row = step.start + n
            offset = (row * p.directions + direction) * p.padded_size + unit
            total += step.outputs.load(offset, lanes)
            if p.cell != "gru":
                carried.store(k.constant(0, plan.dtype, lanes))
            if p.projection:
                state = step.state(n) * p.padded_size + unit
                memory.workspace("dr").store(total.get(), state)
                memory.section("dgates", p.slopes, "out", step.layer).store(total.get(), offset)
            else:
                self._cell(k, step, n, unit, total.get(), carried)

    def _store_cell(self, step: _Step, n: Value, unit: Value) -> None:
        """Store the gradient of a vector of the first c."""
        p, memory = self.p, step.memory
        state = step.state(n) * p.padded + unit
        row = memory.state_row("dcx", step.layer, step.direction, n)
        memory.store_units("dcx", memory.workspace("dc").load(state, self.lanes), row, unit, p.hidden)

    def _cell(
        self, k: Builder, step: _Step, n: Value, unit: Value, dh: Value, carried: Pointer | None
    ) -> None:
        """The derivative of the cell for a vector of units; ``carried``: the gradient of h that bypasses the gates."""
        p, lanes, memory = self.p, self.lanes, step.memory
        row = (step.start + n) * p.directions + step.direction
        state = step.state(n)
        gates = step.saved("gates") + row * (4 * p.padded) + unit if "gates" in p.kept else None
        if p.cell == "lstm":
            assert gates is not None
            i, f, g, o = (gates.load(gate * p.padded, lanes) for gate in range(4))
            c = step.saved("cell").load(row * p.padded + unit, lanes)
            before = step.state_before(k, n, "cell", "cx", unit, p.hidden, p.padded)
            cell = memory.workspace("dc") + state * p.padded + unit
            dc = lower(k, cells.lstm_cell_slope(p.clip), [cell.load(0, lanes), dh, o, c])
            cell.store(lower(k, cells.CELL_BEFORE, [dc, f]))
            slopes = [
                lower(k, cells.LSTM_GATE_SLOPE, [dc, g, i]),
                lower(k, cells.LSTM_GATE_SLOPE, [dc, before, f]),
                lower(k, cells.LSTM_NEW_SLOPE, [dc, i, g]),
                lower(k, cells.LSTM_OUT_SLOPE, [dh, c, o]),
            ]
            own = slopes
        elif p.cell == "gru":
            assert gates is not None
            assert carried is not None
            r, z, new, m = (gates.load(gate * p.padded, lanes) for gate in range(4))
            before = step.state_before(k, n, "out", "hx", unit, p.size, p.padded_size)
            dn = lower(k, cells.GRU_NEW_SLOPE, [dh, z, new])
            dz = lower(k, cells.GRU_UPDATE_SLOPE, [dh, before, z, new])
            dr = lower(k, cells.GRU_RESET_SLOPE, [dn, m, r])
            carried.store(lower(k, cells.TIMES, [dh, z]))
            own = [dr, dz, lower(k, cells.TIMES, [dn, r])]
            slopes = [dn, *own]
        else:
            h = step.saved("out").load(row * p.padded_size + unit, lanes)
            slopes = own = [lower(k, cells.plain_slope(p.cell), [dh, h])]
        to = memory.section("dgates", p.slopes, "gates", step.layer) + row * p.slopes["gates"] + unit
        for number, slope in enumerate(slopes):
            to.store(slope, number * p.padded)
        for number, slope in enumerate(own):
            step.new.store(slope, state * (p.gates * p.padded) + number * p.padded + unit)

    def _load_step(self, k: Builder, memory: Memory, direction: Value) -> _Step:
        layer, step, steps = memory.counter(LAYER), memory.counter(STEP), memory.integer("steps")
        counts, starts = memory.table("counts"), memory.table("starts")
        is_forward = direction == 0
        t = k.select(is_forward, steps - 1 - step, step)
        # before the first step and after the last one comes a step without sequences: number `steps`
        earlier = k.select(t < 1, steps, t - 1)
        later = (t + 1).min(steps)
        t = k.select(t < 0, steps, t)
        size, odd = memory.integer("slopes.size"), step & 1
        source = k.select(is_forward, earlier, later)
        previous = k.select(is_forward, steps - step, earlier)
        return _Step(
            memory=memory,
            layer=layer,
            direction=direction,
            count=counts.load(t),
            start=starts.load(t),
            before=counts.load(previous),
            source_count=counts.load(source),
            source_start=starts.load(source),
            old=memory.workspace("slopes") + odd * size,
            new=memory.workspace("slopes") + (odd ^ 1) * size,
            outputs=self.outputs(memory, layer),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Step(Step):
    before: Value  # sequences in the step that ran before
    source_count: Value  # sequences at the step from which the states came
    source_start: Value  # its first row
    outputs: Pointer  # their gradients

    def state_before(
        self, k: Builder, n: Value, section: str, first: str, unit: Value, size: int, padded: int
    ) -> Value:
        """The state that a sequence had before this step: saved, or the first one."""
        memory, p = self.memory, self.memory.plan.p
        result = k.register(k.constant(0, memory.plan.dtype, memory.lanes))
        with k.when(n < self.source_count):
            row = (self.source_start + n) * p.directions + self.direction
            result.set(self.saved(section).load(row * padded + unit, memory.lanes))
        if p.has_states:
            with k.when(n >= self.source_count):
                row = memory.state_row(first, self.layer, self.direction, n)
                result.set(memory.load_units(first, row, unit, size))
        return result.get()


def trace(module: Module, plan: BackwardPlan) -> None:
    """Trace the tasks of all phases."""
    _BackwardCode(plan).trace(module)
