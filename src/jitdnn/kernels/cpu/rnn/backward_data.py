"""Recurrent layers backward to the data: a phase for each step from the last one on, then one product a layer.

    tables > gather dy > for each layer from the top: pack > start > T + 1 times: step (> cell) > product > scatter dx

A step's task has blocks of units: the gradients of all gates in the step that came before (the later one) times its
panel, plus that of the output, and the cell's derivative right on the sums. The last turn only gives the gradients
of the first states. A sequence's row is finished in the turn behind its own last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitdnn.kernels.cpu.rnn import cells
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.gemm import Product, step_sums, trace_rows_product, trace_straight
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, STEP, Code, Frame
from jitdnn.kernels.cpu.rnn.sequence_tables import (
    trace_counters,
    trace_gather,
    trace_scatter,
    trace_tables,
    trace_zero_rows,
)
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import PAD
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower


@dataclass(frozen=True)
class Backward:
    """The products of one code, and its phases."""

    code: Code
    lanes: int

    @property
    def padded_inputs(self) -> int:
        return ceil_div(self.code.p.inputs_size, PAD) * PAD

    @property
    def slopes(self) -> int:
        """Vectors of H of a row and direction in `dgates`."""
        return self.code.p.slopes["gates"] // self.code.p.padded

    @property
    def blocks(self) -> int:
        """Blocks of units of a direction."""
        return ceil_div(self.code.p.padded_size, self.code.block * self.lanes)

    @property
    def cell_blocks(self) -> int:
        return ceil_div(self.code.p.padded, self.code.wide * self.lanes)

    @property
    def recurrent_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(code.rows, p.gates * p.padded, code.block, ((p.gates, p.padded), (p.hidden, 1)))

    @property
    def projection_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(code.rows, p.padded_size, code.wide, ((p.size, 1),))

    @property
    def input_product(self) -> Product:
        p, code = self.code.p, self.code
        each = self.slopes * p.padded
        nest = ((p.directions, each), (p.gates, p.padded), (p.hidden, 1))
        return Product(code.many, p.directions * each, code.wide, nest)

    def columns(self, first: bool) -> int:
        """Of the gradient of a layer's input."""
        p = self.code.p
        return self.padded_inputs if first else p.directions * p.padded_size

    @property
    def widest(self) -> int:
        return max(self.columns(True), self.columns(False) if self.code.p.layers > 1 else 0)

    @property
    def tile(self) -> int:
        """Elements of the sums of a thread."""
        steps = [self.recurrent_product] + [self.projection_product] * bool(self.code.p.projection)
        return max(self.input_product.tile(self.lanes), *(product.group(self.lanes) for product in steps))

    def trace(self, module: Module) -> None:
        p, code = self.code.p, self.code
        trace_tables(module, code)
        trace_counters(module, code)
        trace_gather(module, code, "gather", "dy", "dy", p.directions, p.size, p.padded_size)
        self._trace_pack_states(module)
        self._trace_start(module)
        self._trace_step(module)
        if p.projection:
            self._trace_pack_projection(module)
            self._trace_cell(module)
        for name, first in (("first", True), ("next", False)):
            if first or p.layers > 1:
                self._trace_pack_inputs(module, f"pack_{name}", first)
                self._trace_product(module, name, first)
        if p.dropout:
            trace_dropout(module, code, "drop", self.outputs, self.outputs)
        trace_scatter(module, code, "scatter", "dx", "dx", p.inputs_size, self.padded_inputs)
        if p.sequences != "whole":
            trace_zero_rows(module, code, "zero_rows", "dgates")

    def outputs(self, frame: Frame, layer: Value) -> Pointer:
        """The gradients of a layer's outputs as rows (directions, size): two places take turns."""
        odd = (frame.number("layers") - 1 - layer) & 1
        return frame.work("dy") + odd * frame.number("dy.size")

    # ---- weights

    def _trace_pack_states(self, module: Module) -> None:
        """One task a vector of columns and a gate of weight_hh."""
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.recurrent_product
        pitch = product.vectors * lanes
        copy = trace_straight(module, "pack_states.copy", code, p.size, pitch)
        with module.task("pack_states") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            gate, rest = task % p.gates, task // p.gates
            vector, panel = rest % product.vectors, rest // product.vectors
            direction, block = panel // self.blocks, panel % self.blocks
            unit = (block * product.vectors + vector) * lanes
            w = frame.weight("weight_hh", frame.counter(LAYER), direction) + gate * (p.hidden * p.size) + unit
            to = frame.work("state_panels") + panel * product.panel(lanes) + gate * (p.hidden * pitch)
            k.call(copy, w, to + vector * lanes, k.integer(p.size) - unit, p.hidden)

    def _trace_pack_projection(self, module: Module) -> None:
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.projection_product
        pitch = product.vectors * lanes
        copy = trace_straight(module, "pack_projection.copy", code, p.hidden, pitch)
        with module.task("pack_projection") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // self.cell_blocks, panel % self.cell_blocks
            unit = (block * product.vectors + vector) * lanes
            w = frame.weight("weight_hr", frame.counter(LAYER), direction) + unit
            to = frame.work("projection_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, k.integer(p.hidden) - unit, p.size)

    def _trace_pack_inputs(self, module: Module, name: str, first: bool) -> None:
        """One task a vector of columns, a direction and a gate of weight_ih."""
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.input_product
        pitch, depth = product.vectors * lanes, p.depth(0 if first else 1)
        size, padded = (p.inputs_size, self.padded_inputs) if first else (p.size, p.padded_size)
        copy = trace_straight(module, f"{name}.copy", code, depth, pitch)
        with module.task(name) as (k, args, task, _thread):
            frame = Frame(k, code, args)
            gate, rest = task % p.gates, task // p.gates
            direction, column = rest % p.directions, rest // p.directions * lanes
            part, unit = column // padded, column % padded
            # in dgates the new gate of gru comes first
            own = (gate + 2) % 3 if p.cell == "gru" else gate
            w = frame.weight("weight_ih", frame.counter(LAYER), direction) + own * (p.hidden * depth)
            to = frame.work("input_panels") + column // pitch * product.panel(lanes) + column % pitch
            to = to + (direction * p.gates + gate) * (p.hidden * pitch)
            k.call(copy, w + (part * size + unit), to, k.integer(size) - unit, p.hidden)

    def _trace_product(self, module: Module, name: str, first: bool) -> None:
        p, columns = self.code.p, self.columns(first)

        def source(frame: Frame, layer: Value) -> Pointer:
            return frame.section("dgates", p.slopes, "gates", layer)

        def store(frame: Frame, layer: Value, column: Value) -> Callable[[Value, Value], None]:
            to = frame.work("dx") if first else self.outputs(frame, layer - 1)
            to = to + column
            return lambda row, sums: to.store(sums, row * columns)

        trace_rows_product(
            module, self.code, name, self.input_product, columns, source,
            lambda frame: frame.work("input_panels"), store,
        )  # fmt: skip

    # ---- steps

    def _trace_start(self, module: Module) -> None:
        """One task a direction: the gradients of the last states, and for empty sequences of the first ones."""
        p, code, lanes = self.code.p, self.code, self.lanes
        pairs = [("dhn", "carry", "dhx", p.size, p.padded_size)]
        pairs += [("dcn", "dc", "dcx", p.hidden, p.padded)] * (p.cell == "lstm")
        with module.task("start") as (k, args, direction, _thread):
            frame = Frame(k, code, args)
            layer, batch = frame.counter(LAYER), frame.number("batch")
            there = frame.table("counts").load(0)
            for name, place, result, size, padded in pairs:
                to = frame.work(place) + direction * batch * padded
                for n in k.range(batch):
                    for unit in k.range(0, padded, lanes):
                        value = k.constant(0, code.dtype, lanes)
                        if p.has_final:
                            row = frame.state_row(name, layer, direction, n)
                            value = frame.load_units(name, row, unit, size)
                        to.store(value, n * padded + unit)
                        if p.has_states:
                            with k.when(n >= there):
                                row = frame.state_row(result, layer, direction, n)
                                frame.store_units(result, value, row, unit, size)

    def _trace_step(self, module: Module) -> None:
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.recurrent_product
        contract = product.trace_chunk(module, "step.tile", code.dtype)
        with module.task("step") as (k, args, task, thread):
            frame = Frame(k, code, args)
            sums = frame.work("tiles") + thread * frame.number("tile")
            batch, each, chunk = (frame.number(name) for name in ("batch", "step.each", "step.chunk"))
            total = p.directions * self.blocks
            for number in k.range(task * each, (task * each + each).min(total)):
                direction, block = number // self.blocks, number % self.blocks
                here = _Here.of(k, frame, self, direction)
                panel = frame.work("state_panels") + number * product.panel(lanes)
                slopes = here.old + direction * batch * product.pitch
                count = here.count.max(here.before)
                for n, own in step_sums(
                    k, frame, product, contract, slopes, panel, sums, chunk, count, here.before
                ):
                    for vector in range(code.block):
                        unit = (block * code.block + vector) * lanes
                        with k.when(unit < p.padded_size):
                            self._total(k, frame, here, n, unit, own + vector * lanes)

    def _total(self, k: Builder, frame: Frame, here: _Here, n: Value, unit: Value, sums: Pointer) -> None:
        """The gradient of a vector of h: from the later step, what it carried over, and the output."""
        p, code, lanes, direction = self.code.p, self.code, self.lanes, here.direction
        carried = frame.work("carry") + ((direction * frame.number("batch") + n) * p.padded_size + unit)
        total = k.register(carried.load(0, lanes))
        with k.when(n < here.before):
            total += sums.load(0, lanes)
        with k.when(n >= here.count):
            if p.has_states:
                row = frame.state_row("dhx", here.layer, direction, n)
                frame.store_units("dhx", total.get(), row, unit, p.size)
                if p.cell == "lstm" and not p.projection:
                    self._finish_cell(frame, here, n, unit)
        with k.when(n < here.count):
            row = here.start + n
            place = (row * p.directions + direction) * p.padded_size + unit
            total += here.outputs.load(place, lanes)
            if p.cell != "gru":
                carried.store(k.constant(0, code.dtype, lanes))
            if p.projection:
                at = (direction * frame.number("batch") + n) * p.padded_size + unit
                frame.work("dr").store(total.get(), at)
                frame.section("dgates", p.slopes, "out", here.layer).store(total.get(), place)
            else:
                self._cell(k, frame, here, n, unit, total.get(), carried)

    def _finish_cell(self, frame: Frame, here: _Here, n: Value, unit: Value) -> None:
        p = self.code.p
        at = (here.direction * frame.number("batch") + n) * p.padded + unit
        row = frame.state_row("dcx", here.layer, here.direction, n)
        frame.store_units("dcx", frame.work("dc").load(at, self.lanes), row, unit, p.hidden)

    def _trace_cell(self, module: Module) -> None:
        """The cell behind a projection, one task a block of units and direction."""
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.projection_product
        contract = product.trace_chunk(module, "cell.tile", code.dtype)
        with module.task("cell") as (k, args, task, thread):
            frame = Frame(k, code, args)
            sums = frame.work("tiles") + thread * frame.number("tile")
            batch = frame.number("batch")
            direction, block = task // self.cell_blocks, task % self.cell_blocks
            here = _Here.of(k, frame, self, direction)
            panel = frame.work("projection_panels") + task * product.panel(lanes)
            totals = frame.work("dr") + direction * batch * p.padded_size
            chunk = frame.number("second.chunk")
            for n, own in step_sums(
                k, frame, product, contract, totals, panel, sums, chunk, here.count, here.count
            ):
                for vector in range(product.vectors):
                    unit = (block * product.vectors + vector) * lanes
                    with k.when(unit < p.padded):
                        dh = own.load(vector * lanes, lanes)
                        self._cell(k, frame, here, n, unit, dh, None)
            if p.has_states:
                for n in k.range(here.count, here.before):
                    for vector in range(product.vectors):
                        unit = (block * product.vectors + vector) * lanes
                        with k.when(unit < p.padded):
                            self._finish_cell(frame, here, n, unit)

    def _cell(
        self, k: Builder, frame: Frame, here: _Here, n: Value, unit: Value, dh: Value, carried: Pointer | None
    ) -> None:
        p, lanes, direction = self.code.p, self.lanes, here.direction
        row = (here.start + n) * p.directions + direction
        state = direction * frame.number("batch") + n
        gates = here.kept("gates") + row * (4 * p.padded) + unit if "gates" in p.kept else None
        if p.cell == "lstm":
            assert gates is not None
            i, f, g, o = (gates.load(gate * p.padded, lanes) for gate in range(4))
            c = here.kept("cell").load(row * p.padded + unit, lanes)
            before = here.state_before(k, n, "cell", "cx", unit, p.hidden, p.padded)
            kept = frame.work("dc") + state * p.padded + unit
            dc = lower(k, cells.lstm_cell_slope(p.clip), [kept.load(0, lanes), dh, o, c])
            kept.store(lower(k, cells.CELL_BEFORE, [dc, f]))
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
            before = here.state_before(k, n, "out", "hx", unit, p.size, p.padded_size)
            dn = lower(k, cells.GRU_NEW_SLOPE, [dh, z, new])
            dz = lower(k, cells.GRU_UPDATE_SLOPE, [dh, before, z, new])
            dr = lower(k, cells.GRU_RESET_SLOPE, [dn, m, r])
            carried.store(lower(k, cells.TIMES, [dh, z]))
            own = [dr, dz, lower(k, cells.TIMES, [dn, r])]
            slopes = [dn, *own]
        else:
            h = here.kept("out").load(row * p.padded_size + unit, lanes)
            slopes = own = [lower(k, cells.plain_slope(p.cell), [dh, h])]
        to = frame.section("dgates", p.slopes, "gates", here.layer) + row * p.slopes["gates"] + unit
        for number, slope in enumerate(slopes):
            to.store(slope, number * p.padded)
        for number, slope in enumerate(own):
            here.new.store(slope, state * (p.gates * p.padded) + number * p.padded + unit)


@dataclass(frozen=True, eq=False)
class _Here:
    """One turn of one direction: what a task reads of the tables once."""

    frame: Frame
    layer: Value
    direction: Value
    count: Value  # sequences at this step
    start: Value  # its first row
    before: Value  # sequences in the turn before
    other_count: Value  # sequences at the step from which the states came
    other_start: Value
    old: Pointer
    new: Pointer
    outputs: Pointer

    @classmethod
    def of(cls, k: Builder, frame: Frame, backward: Backward, direction: Value) -> _Here:
        layer, turn, steps = frame.counter(LAYER), frame.counter(STEP), frame.number("steps")
        counts, starts = frame.table("counts"), frame.table("starts")
        is_forward = direction == 0
        t = k.select(is_forward, steps - 1 - turn, turn)
        # behind both ends there is a step without sequences: number `steps`
        earlier = k.select(t < 1, steps, t - 1)
        later = (t + 1).min(steps)
        t = k.select(t < 0, steps, t)
        size, odd = frame.number("slopes.size"), turn & 1
        other = k.select(is_forward, earlier, later)
        came = k.select(is_forward, steps - turn, earlier)
        return cls(
            frame, layer, direction, counts.load(t), starts.load(t), counts.load(came), counts.load(other),
            starts.load(other), frame.work("slopes") + odd * size, frame.work("slopes") + (odd ^ 1) * size,
            backward.outputs(frame, layer),
        )  # fmt: skip

    def kept(self, name: str) -> Pointer:
        return self.frame.section("saved", self.frame.code.p.kept, name, self.layer)

    def state_before(
        self, k: Builder, n: Value, section: str, first: str, unit: Value, size: int, padded: int
    ) -> Value:
        """The state that a sequence had before this step: kept, or the first one."""
        frame, p = self.frame, self.frame.code.p
        result = k.register(k.constant(0, frame.code.dtype, frame.lanes))
        with k.when(n < self.other_count):
            row = (self.other_start + n) * p.directions + self.direction
            result.set(self.kept(section).load(row * padded + unit, frame.lanes))
        if p.has_states:
            with k.when(n >= self.other_count):
                row = frame.state_row(first, self.layer, self.direction, n)
                result.set(frame.load_units(first, row, unit, size))
        return result.get()
