"""Recurrent layers forward: one product for all steps of a layer, then a phase for each step.

    tables > (gather x) > for each layer: pack > product of all steps > start > T times: step (> project) > above

A step's task has some blocks of units of one direction or both. A block is a few units with all their gates: the
states of all sequences times its panel, and the cell right on the sums. The states are kept twice, by the step's
parity, so that no task reads what another one writes. The rows of sequences that have ended are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitdnn.kernels.cpu.rnn import cells
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.gemm import (
    Product,
    step_sums,
    trace_rows_product,
    trace_transposed,
)
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, STEP, Code, Frame
from jitdnn.kernels.cpu.rnn.sequence_tables import (
    blank,
    blank_tail,
    trace_counters,
    trace_gather,
    trace_tables,
    trace_zero_rows,
)
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import KEPT, PAD
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower


@dataclass(frozen=True)
class Forward:
    """The products of one code, and its phases."""

    code: Code
    lanes: int

    @property
    def padded_inputs(self) -> int:
        return ceil_div(self.code.p.inputs_size, PAD) * PAD

    @property
    def columns(self) -> int:
        """Of the product over all steps: (direction, gate, unit)."""
        p = self.code.p
        return p.directions * p.gates * p.padded

    @property
    def keeps_gates(self) -> bool:
        """Whether the sums are made where the gates are kept."""
        return self.code.p.is_training and KEPT[self.code.p.cell] > 0

    @property
    def gates_width(self) -> int:
        """Numbers of a row and direction where the sums of all steps are."""
        p = self.code.p
        return (KEPT[p.cell] if self.keeps_gates else p.gates) * p.padded

    @property
    def blocks(self) -> int:
        """Blocks of units of a direction."""
        return ceil_div(self.code.p.padded, self.code.block * self.lanes)

    @property
    def first_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(code.many, self.padded_inputs, code.wide, ((p.inputs_size, 1),))

    @property
    def next_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(
            code.many, p.directions * p.padded_size, code.wide, ((p.directions, p.padded_size), (p.size, 1))
        )

    @property
    def recurrent_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(code.rows, p.padded_size, p.gates * code.block, ((p.size, 1),))

    @property
    def projection_product(self) -> Product:
        p, code = self.code.p, self.code
        return Product(code.rows, p.padded, code.wide, ((p.hidden, 1),))

    @property
    def projection_blocks(self) -> int:
        return ceil_div(self.code.p.padded_size, self.code.wide * self.lanes)

    @property
    def tile(self) -> int:
        """Elements of the sums of a thread."""
        steps = [self.recurrent_product] + [self.projection_product] * bool(self.code.p.projection)
        return max(self.first_product.tile(self.lanes), *(product.group(self.lanes) for product in steps))

    def input_panels(self) -> int:
        """Elements of the panels of weight_ih of a layer, the deepest one."""
        width = self.code.wide * self.lanes
        layers = [self.first_product] + [self.next_product] * (self.code.p.layers > 1)
        return max(ceil_div(self.columns, width) * product.panel(self.lanes) for product in layers)

    def trace(self, module: Module) -> None:
        p, code = self.code.p, self.code
        trace_tables(module, code)
        trace_counters(module, code)
        trace_gather(module, code, "gather", "x", "x", 1, p.inputs_size, self.padded_inputs)
        self._trace_pack_input(module, "pack_first", self.first_product)
        self._trace_product(module, "first", self.first_product, lambda frame, layer: frame.work("x"))
        if p.layers > 1:
            self._trace_pack_input(module, "pack_next", self.next_product)
            self._trace_product(module, "next", self.next_product, self._below)
        if p.dropout:
            trace_dropout(module, code, "drop", self.out, lambda frame, below: frame.work("dropped"))
        self._trace_pack_states(module)
        self._trace_start(module)
        self._trace_step(module)
        if p.projection:
            self._trace_pack_projection(module)
            self._trace_project(module)
        self._trace_end(module)
        if p.is_training and p.sequences != "whole":
            trace_zero_rows(module, code, "zero_rows", "saved")

    # ---- places

    def out(self, frame: Frame, layer: Value) -> Pointer:
        """The outputs of a layer as rows (directions, size): kept, or in one of two places that take turns."""
        p = self.code.p
        if p.is_training:
            return frame.section("saved", p.kept, "out", layer)
        return frame.work("out") + (layer & 1) * frame.number("out.size")

    def _below(self, frame: Frame, layer: Value) -> Pointer:
        """What a layer reads that is not the first."""
        return frame.work("dropped") if self.code.p.dropout else self.out(frame, layer - 1)

    def sums(self, frame: Frame, layer: Value) -> Pointer:
        """What the product of all steps gives."""
        p = self.code.p
        return frame.section("saved", p.kept, "gates", layer) if self.keeps_gates else frame.work("gates")

    # ---- weights

    def _trace_pack_input(self, module: Module, name: str, product: Product) -> None:
        """One task a vector of columns of weight_ih, with its bias."""
        p, code, lanes = self.code.p, self.code, self.lanes
        pitch = code.wide * lanes
        copy = trace_transposed(module, f"{name}.copy", code, product.depth, pitch)
        with module.task(name) as (k, args, task, _thread):
            frame = Frame(k, code, args)
            layer = frame.counter(LAYER)
            column = task * lanes
            direction = column // (p.gates * p.padded)
            gate = column // p.padded % p.gates
            unit = column % p.padded
            row, valid = gate * p.hidden + unit, (k.integer(p.hidden) - unit).min(lanes)
            w = frame.weight("weight_ih", layer, direction) + row * product.depth
            to = frame.work("input_panels") + (column // pitch * product.panel(lanes) + column % pitch)
            k.call(copy, w, to, valid, product.depth)
            mask, total = k.mask(valid, lanes), k.register(k.constant(0, code.dtype, lanes))
            if "bias_ih" in p.biases:
                total += frame.weight("bias_ih", layer, direction).load(row, lanes, mask)
            if "bias_hh" in p.biases:
                other = frame.weight("bias_hh", layer, direction).load(row, lanes, mask)
                if p.cell == "gru":  # that of the new gate belongs to U h
                    with k.when(gate < 2):
                        total += other
                    with k.when(gate == 2):
                        frame.work("new_bias").store(other, direction * p.padded + unit)
                else:
                    total += other
            frame.work("bias").store(total.get(), column)

    def _trace_pack_states(self, module: Module) -> None:
        """One task a vector of units and gate of weight_hh."""
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.recurrent_product
        pitch = product.vectors * lanes
        copy = trace_transposed(module, "pack_states.copy", code, p.size, pitch)
        with module.task("pack_states") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // self.blocks, panel % self.blocks
            gate, unit = vector // code.block, (block * code.block + vector % code.block) * lanes
            valid = (k.integer(p.hidden) - unit).min(lanes)
            w = frame.weight("weight_hh", frame.counter(LAYER), direction) + (gate * p.hidden + unit) * p.size
            to = frame.work("state_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, valid, p.size)

    def _trace_pack_projection(self, module: Module) -> None:
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.projection_product
        pitch = product.vectors * lanes
        copy = trace_transposed(module, "pack_projection.copy", code, p.hidden, pitch)
        with module.task("pack_projection") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            vector, panel = task % product.vectors, task // product.vectors
            direction, block = panel // self.projection_blocks, panel % self.projection_blocks
            unit = (block * product.vectors + vector) * lanes
            valid = (k.integer(p.size) - unit).min(lanes)
            w = frame.weight("weight_hr", frame.counter(LAYER), direction) + unit * p.hidden
            to = frame.work("projection_panels") + panel * product.panel(lanes) + vector * lanes
            k.call(copy, w, to, valid, p.hidden)

    def _trace_product(
        self, module: Module, name: str, product: Product, source: Callable[[Frame, Value], Pointer]
    ) -> None:
        p, width = self.code.p, self.gates_width

        def store(frame: Frame, layer: Value, column: Value) -> Callable[[Value, Value], None]:
            each = p.gates * p.padded
            bias = frame.work("bias").load(column, self.lanes)
            to = self.sums(frame, layer) + (column // each * width + column % each)
            return lambda row, sums: to.store(sums + bias, row * (p.directions * width))

        trace_rows_product(
            module,
            self.code,
            name,
            product,
            self.columns,
            source,
            lambda frame: frame.work("input_panels"),
            store,
        )

    # ---- states

    def _trace_start(self, module: Module) -> None:
        """One task a direction: the first states, in both places, and the last ones of empty sequences."""
        p, code, lanes = self.code.p, self.code, self.lanes
        pairs = [("hx", "h", "hn", p.size, p.padded_size)]
        pairs += [("cx", "c", "cn", p.hidden, p.padded)] * (p.cell == "lstm")
        with module.task("start") as (k, args, direction, _thread):
            frame = Frame(k, code, args)
            layer, batch = frame.counter(LAYER), frame.number("batch")
            there = frame.table("counts").load(0)
            for name, place, last, size, padded in pairs:
                to = frame.work(place) + direction * batch * padded
                for n in k.range(batch):
                    for unit in k.range(0, padded, lanes):
                        value = k.constant(0, code.dtype, lanes)
                        if p.has_states:
                            row = frame.state_row(name, layer, direction, n)
                            value = frame.load_units(name, row, unit, size)
                        to.store(value, n * padded + unit)
                        if place == "h":
                            to.store(value, n * padded + unit + frame.number("h.size"))
                        with k.when((n >= there) & (unit < size)):
                            frame.store_units(
                                last, value, frame.state_row(last, layer, direction, n), unit, size
                            )

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
                states = here.old + direction * batch * p.padded_size
                found = step_sums(
                    k, frame, product, contract, states, panel, sums, chunk, here.count, here.count
                )
                for n, own in found:
                    for vector in range(code.block):
                        unit = (block * code.block + vector) * lanes
                        if p.padded % (code.block * lanes) == 0:
                            self._cell(k, frame, here, n, unit, own + vector * lanes)
                        else:
                            with k.when(unit < p.padded):
                                self._cell(k, frame, here, n, unit, own + vector * lanes)

    def _cell(self, k: Builder, frame: Frame, here: _Here, n: Value, unit: Value, sums: Pointer) -> None:
        p, code, lanes = self.code.p, self.code, self.lanes
        row = here.row(n)
        given = here.sums + row * (p.directions * self.gates_width) + here.direction * self.gates_width + unit
        x = [given.load(gate * p.padded, lanes) for gate in range(p.gates)]
        u = [sums.load(gate * code.block * lanes, lanes) for gate in range(p.gates)]
        if p.cell == "lstm":
            i, f, o = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1, 3))
            g = lower(k, cells.NEW, [x[2], u[2]])
            states = frame.work("c") + ((here.direction * frame.number("batch") + n) * p.padded + unit)
            c = lower(k, cells.lstm_cell(p.clip), [f, states.load(0, lanes), i, g])
            h = lower(k, cells.LSTM_OUT, [o, c])
            states.store(c)
            self._keep((i, f, g, o), given)
            if p.is_training:
                here.kept("cell").store(c, (row * p.directions + here.direction) * p.padded + unit)
            with k.when((n >= here.final) & (unit < p.hidden)):
                to = frame.state_row("cn", here.layer, here.direction, n)
                frame.store_units("cn", c, to, unit, p.hidden)
            if p.projection:
                place = (here.direction * frame.number("batch") + n) * p.padded + unit
                frame.work("full").store(h, place)
                if p.is_training:
                    here.kept("full").store(h, (row * p.directions + here.direction) * p.padded + unit)
                return
        elif p.cell == "gru":
            m = u[2]
            if "bias_hh" in p.biases:
                m = m + frame.work("new_bias").load(here.direction * p.padded + unit, lanes)
            r, z = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1))
            new = lower(k, cells.GRU_NEW, [x[2], r, m])
            before = here.old.load((here.direction * frame.number("batch") + n) * p.padded + unit, lanes)
            h = lower(k, cells.GRU_OUT, [z, new, before])
            self._keep((r, z, new, m), given)
        else:
            h = lower(k, cells.plain(p.cell), [x[0], u[0]])
        self._emit(k, frame, here, n, unit, h)

    def _keep(self, gates: tuple[Value, ...], given: Pointer) -> None:
        if self.keeps_gates:
            for number, gate in enumerate(gates):
                given.store(gate, number * self.code.p.padded)

    def _emit(self, k: Builder, frame: Frame, here: _Here, n: Value, unit: Value, h: Value) -> None:
        """A vector of h: to the states, the rows of the layer, y, and the last states."""
        p, direction = self.code.p, here.direction
        here.new.store(h, (direction * frame.number("batch") + n) * p.padded_size + unit)
        place = (here.row(n) * p.directions + direction) * p.padded_size + unit
        if p.is_training:
            here.out.store(h, place)
        elif p.layers > 1:
            with k.when(~here.is_last):
                here.out.store(h, place)
        with k.when(here.is_last & (unit < p.size)):
            row = frame.sequence_row("y", here.t, n, here.start)
            frame.blend_units("y", h, row, unit, p.size, direction * p.size)
        with k.when((n >= here.final) & (unit < p.size)):
            frame.store_units("hn", h, frame.state_row("hn", here.layer, direction, n), unit, p.size)

    def _trace_project(self, module: Module) -> None:
        p, code, lanes, product = self.code.p, self.code, self.lanes, self.projection_product
        contract = product.trace_chunk(module, "project.tile", code.dtype)
        with module.task("project") as (k, args, task, thread):
            frame = Frame(k, code, args)
            sums = frame.work("tiles") + thread * frame.number("tile")
            batch = frame.number("batch")
            direction, block = task // self.projection_blocks, task % self.projection_blocks
            here = _Here.of(k, frame, self, direction)
            panel = frame.work("projection_panels") + task * product.panel(lanes)
            full = frame.work("full") + direction * batch * p.padded
            chunk = frame.number("second.chunk")
            for n, own in step_sums(
                k, frame, product, contract, full, panel, sums, chunk, here.count, here.count
            ):
                for vector in range(product.vectors):
                    unit = (block * product.vectors + vector) * lanes
                    with k.when(unit < p.padded_size):
                        self._emit(k, frame, here, n, unit, own.load(vector * lanes, lanes))

    def _trace_end(self, module: Module) -> None:
        """One task a direction: zeros in y where no sequence is."""
        p, code = self.code.p, self.code
        with module.task("end") as (k, args, direction, _thread):
            frame = Frame(k, code, args)
            if p.sequences == "lengths":
                for t in k.range(frame.number("steps")):
                    blank(k, frame, "y", t, frame.table("counts").load(t), direction * p.size, p.size)
            elif p.sequences == "packed":
                blank_tail(k, frame, "y", direction * p.size, p.size)


@dataclass(frozen=True, eq=False)
class _Here:
    """One step of one direction: what a task reads of the tables once."""

    frame: Frame
    layer: Value
    direction: Value
    t: Value
    count: Value
    start: Value
    final: Value  # sequences from here on are at their last step
    is_last: Value  # the last layer
    old: Pointer
    new: Pointer
    sums: Pointer
    out: Pointer

    @classmethod
    def of(cls, k: Builder, frame: Frame, forward: Forward, direction: Value) -> _Here:
        layer, step, steps = frame.counter(LAYER), frame.counter(STEP), frame.number("steps")
        t = k.select(direction == 0, step, steps - 1 - step)
        counts = frame.table("counts")
        count = counts.load(t)
        backward_final = k.select(t == 0, 0, count)
        size, odd = frame.number("h.size"), step & 1
        return cls(
            frame, layer, direction, t, count, frame.table("starts").load(t),
            k.select(direction == 0, counts.load(t + 1), backward_final), layer == frame.number("layers") - 1,
            frame.work("h") + odd * size, frame.work("h") + (odd ^ 1) * size,
            forward.sums(frame, layer), forward.out(frame, layer),
        )  # fmt: skip

    def row(self, n: Value) -> Value:
        return self.start + n

    def kept(self, name: str) -> Pointer:
        return self.frame.section("saved", self.frame.code.p.kept, name, self.layer)
