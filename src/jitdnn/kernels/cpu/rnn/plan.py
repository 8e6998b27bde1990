"""From a recurrent problem to what is compiled, what is passed at run time, the workspace and the phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu.microkernel.register_tiles import step_cycles
from jitdnn.kernels.cpu.random.philox import double_bits
from jitdnn.kernels.cpu.rnn.backward_data import Backward
from jitdnn.kernels.cpu.rnn.backward_weights import ROWS_A_COPY, SIDE, TILE, Weights
from jitdnn.kernels.cpu.rnn.dropout import GROUPS_A_TASK
from jitdnn.kernels.cpu.rnn.forward import Forward
from jitdnn.kernels.cpu.rnn.gemm import ROWS_A_TASK
from jitdnn.kernels.cpu.rnn.memory_layout import (
    SEQUENCES,
    STATES,
    Code,
    Room,
    stride_names,
    strides_of,
    table_places,
)
from jitdnn.kernels.cpu.rnn.sequence_tables import STEPS_A_TASK
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.rnn_reference import DROPOUT_ROWS
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.tensor import compute_dtype

_WORTH_SHARING = 12_000  # cycles of a step: less is done before another thread has begun
_MOST_VECTORS = 8
DROPOUT_NAMES = ("drop.threshold", "drop.factor", "drop.groups")
_CELL_CYCLES = 40.0  # a gate of one vector of units

Phases = list[tuple[str, int]]


def reduced(p: Recurrent) -> Recurrent:
    """The problem without what the code does not depend on."""
    return replace(p, steps=1, batch=1, rows=1, dropout=0.5 if p.dropout else 0.0, orders=())


def dropout_numbers(p: Recurrent) -> dict[str, int]:
    """The run-time numbers of dropout."""
    rule = Dropout.make((1,), p.dropout)
    groups = ceil_div(p.rows, DROPOUT_ROWS)
    return {"drop.threshold": rule.threshold, "drop.factor": double_bits(rule.factor), "drop.groups": groups}


def dropout_phase(p: Recurrent) -> Phases:
    return [("drop", ceil_div(ceil_div(p.rows, DROPOUT_ROWS), GROUPS_A_TASK))] if p.dropout else []


def tile_of(p: Recurrent, isa: Isa, vectors_a_block: int, units: int) -> tuple[int, int]:
    """(sequences, vectors of units) of a step's tile, the cheapest for the whole batch."""
    lanes, best, chosen = isa.lanes(compute_dtype(p.element)), float("inf"), (1, 1)
    for block in range(1, max(1, _MOST_VECTORS // vectors_a_block) + 1):
        vectors = block * vectors_a_block
        most = max(1, (isa.registers - 1 - vectors) // vectors)
        for rows in range(1, min(most, p.batch) + 1):
            turns = ceil_div(p.batch, rows) * ceil_div(units, block * lanes)
            cost = turns * step_cycles(rows, vectors)
            if cost < best * (1 - 1e-9):
                best, chosen = cost, (rows, block)
    return chosen


@dataclass(frozen=True)
class ForwardPlan:
    """One forward problem on one device."""

    p: Recurrent
    device: CpuDevice

    @cached_property
    def lanes(self) -> int:
        return self.device.isa.lanes(compute_dtype(self.p.element))

    @cached_property
    def code(self) -> Code:
        rows, block = tile_of(self.p, self.device.isa, self.p.gates, self.p.padded)
        return make_code(
            self.p, self.device.isa, rows, block, tuple(sorted((*self._names, *stride_names(self.p))))
        )

    @property
    def forward(self) -> Forward:
        return Forward(self.code, self.lanes)

    @property
    def trace(self) -> Callable[[Module], None]:
        return self.forward.trace

    _names = (
        "steps", "batch", "rows", "layers", "tile", "h.size", "out.size", "shares", "step.each", "step.chunk",
        "second.chunk", "at.counts",
        "at.starts", "at.order", "at.tiles", "at.x", "at.out", "at.gates", "at.input_panels", "at.state_panels",
        "at.projection_panels", "at.bias", "at.new_bias", "at.h", "at.c", "at.full", "at.dropped",
        *DROPOUT_NAMES,
    )  # fmt: skip

    @cached_property
    def room(self) -> Room:
        p, f = self.p, self.forward
        room = Room(self.code.dtype, table_places(p)[1])
        states = p.directions * p.batch
        room.add("tiles", self.device.threads * self.tile)
        room.add("x", p.rows * f.padded_inputs)
        room.add("gates", 0 if f.keeps_gates else p.rows * f.columns)
        room.add("out", 0 if p.is_training or p.layers == 1 else 2 * self.out_size)
        room.add("dropped", bool(p.dropout) * self.out_size)
        room.add("input_panels", f.input_panels())
        room.add("state_panels", p.directions * f.blocks * f.recurrent_product.panel(self.lanes))
        room.add("bias", f.columns)
        room.add("new_bias", p.directions * p.padded)
        room.add("h", 2 * states * p.padded_size)
        room.add("c", states * p.padded)
        projected = bool(p.projection)
        room.add("full", projected * states * p.padded)
        panels = p.directions * f.projection_blocks * f.projection_product.panel(self.lanes)
        room.add("projection_panels", projected * panels)
        return room

    @property
    def tile(self) -> int:
        return ceil_div(self.forward.tile, 16) * 16

    @property
    def out_size(self) -> int:
        return self.p.rows * self.p.directions * self.p.padded_size

    @cached_property
    def step_cycles(self) -> float:
        """Cycles of one step of one layer on one thread."""
        p, f, code = self.p, self.forward, self.code
        turns = p.directions * f.blocks * ceil_div(p.batch, code.rows)
        cell = _CELL_CYCLES * p.gates * code.block * code.rows
        cycles = turns * (p.size * step_cycles(code.rows, p.gates * code.block) + cell)
        if p.projection:
            turns = p.directions * f.projection_blocks * ceil_div(p.batch, code.rows)
            cycles += turns * p.hidden * step_cycles(code.rows, code.wide)
        return cycles

    @cached_property
    def cycles(self) -> float:
        """Cycles of everything on one thread."""
        p, f, code = self.p, self.forward, self.code
        panels = ceil_div(f.columns, code.wide * self.lanes)
        total = 0.0
        for layer in range(p.layers):
            turns = panels * ceil_div(p.rows, code.many)
            total += turns * (
                p.depth(layer) * step_cycles(code.many, code.wide) + 4.0 * code.many * code.wide
            )
            total += p.steps * self.step_cycles
            total += (f.columns / self.lanes) * (p.depth(layer) + p.size) * 2.0
        return total

    @property
    def step_tasks(self) -> int:
        shared = self.device.threads if self.step_cycles > _WORTH_SHARING else 1
        return min(shared, self.p.directions * self.forward.blocks)

    @property
    def shares(self) -> int:
        return product_shares(
            self.p, self.device, ceil_div(self.forward.columns, self.code.wide * self.lanes)
        )

    @cached_property
    def numbers(self) -> list[int]:
        """The run-time numbers, in the order of the code's slots."""
        p, f = self.p, self.forward
        values = {
            "steps": p.steps, "batch": p.batch, "rows": p.rows, "layers": p.layers, "tile": self.tile,
            "h.size": p.directions * p.batch * p.padded_size, "out.size": self.out_size, "shares": self.shares,
            "step.each": ceil_div(p.directions * f.blocks, self.step_tasks),
            "step.chunk": f.recurrent_product.chunk(p.batch, self.lanes, ITEM_BYTES[self.code.dtype]),
            "second.chunk": f.projection_product.chunk(p.batch, self.lanes, ITEM_BYTES[self.code.dtype]),
        }  # fmt: skip
        values |= table_places(p)[0] | self.room.at | strides_of(p) | dropout_numbers(p)
        return [values[name] for name in self.code.slots]

    def phases(self) -> Phases:
        p, f = self.p, self.forward
        chunks = ceil_div(p.rows, ROWS_A_TASK) * self.shares
        phases: Phases = [("tables", 1), ("gather", ceil_div(p.steps, STEPS_A_TASK))]
        if p.is_training and p.sequences != "whole":
            phases.append(("zero_rows", p.layers))
        steps: Phases = [("step", self.step_tasks)]
        steps += [("project", p.directions * f.projection_blocks)] * bool(p.projection) + [("advance", 1)]
        for layer in range(p.layers):
            name = "first" if layer == 0 else "next"
            phases += dropout_phase(p) if layer > 0 else []
            phases += [(f"pack_{name}", f.columns // self.lanes), (name, chunks)]
            phases.append(("pack_states", p.directions * f.blocks * f.recurrent_product.vectors))
            if p.projection:
                product = f.projection_product
                phases.append(("pack_projection", p.directions * f.projection_blocks * product.vectors))
            phases += [("start", p.directions), *(steps * p.steps), ("above", 1)]
        if p.sequences != "whole":
            phases.append(("end", p.directions))
        return phases


@dataclass(frozen=True)
class BackwardPlan:
    """One problem of gradients of the data on one device."""

    p: Recurrent
    device: CpuDevice

    @cached_property
    def lanes(self) -> int:
        return self.device.isa.lanes(compute_dtype(self.p.element))

    @cached_property
    def code(self) -> Code:
        rows, block = tile_of(self.p, self.device.isa, 1, self.p.padded_size)
        slots = tuple(sorted((*self._names, *stride_names(self.p))))
        return make_code(self.p, self.device.isa, rows, block, slots)

    @property
    def backward(self) -> Backward:
        return Backward(self.code, self.lanes)

    @property
    def trace(self) -> Callable[[Module], None]:
        return self.backward.trace

    _names = (
        "steps", "batch", "rows", "layers", "tile", "dy.size", "slopes.size", "shares", "step.each", "step.chunk",
        "second.chunk", "at.counts",
        "at.starts", "at.order", "at.tiles", "at.dy", "at.dx", "at.input_panels", "at.state_panels",
        "at.projection_panels", "at.carry", "at.dc", "at.dr", "at.slopes",
        *DROPOUT_NAMES,
    )  # fmt: skip

    @cached_property
    def room(self) -> Room:
        p, b = self.p, self.backward
        room = Room(self.code.dtype, table_places(p)[1])
        states, projected = p.directions * p.batch, bool(p.projection)
        width = self.code.wide * self.lanes
        room.add("tiles", self.device.threads * self.tile)
        room.add("dy", min(2, p.layers) * self.dy_size)
        room.add("dx", p.rows * b.padded_inputs)
        room.add("input_panels", ceil_div(b.widest, width) * b.input_product.panel(self.lanes))
        room.add("state_panels", p.directions * b.blocks * b.recurrent_product.panel(self.lanes))
        panels = p.directions * b.cell_blocks * b.projection_product.panel(self.lanes)
        room.add("projection_panels", projected * panels)
        room.add("carry", states * p.padded_size)
        room.add("dc", states * p.padded)
        room.add("dr", projected * states * p.padded_size)
        room.add("slopes", 2 * self.slopes_size)
        return room

    @property
    def tile(self) -> int:
        return ceil_div(self.backward.tile, 16) * 16

    @property
    def dy_size(self) -> int:
        return self.p.rows * self.p.directions * self.p.padded_size

    @property
    def slopes_size(self) -> int:
        return self.p.directions * self.p.batch * self.p.gates * self.p.padded

    @cached_property
    def step_cycles(self) -> float:
        """Cycles of one step of one layer on one thread."""
        p, b, code = self.p, self.backward, self.code
        tiles = p.directions * ceil_div(p.batch, code.rows)
        cell = _CELL_CYCLES * p.gates * code.rows * ceil_div(p.padded, self.lanes)
        cycles = tiles * (b.blocks * b.recurrent_product.depth * step_cycles(code.rows, code.block) + cell)
        return cycles + bool(p.projection) * tiles * b.cell_blocks * p.size * step_cycles(
            code.rows, code.wide
        )

    @cached_property
    def cycles(self) -> float:
        """Cycles of everything on one thread."""
        p, b, code = self.p, self.backward, self.code
        total = 0.0
        for layer in range(p.layers):
            panels = ceil_div(b.columns(layer == 0), code.wide * self.lanes)
            turns = panels * ceil_div(p.rows, code.many)
            total += turns * (b.input_product.depth * step_cycles(code.many, code.wide) + 16.0 * code.many)
            total += p.steps * self.step_cycles
            total += p.gates * p.padded * p.directions * (p.depth(layer) + p.size) / self.lanes * 2.0
        return total

    @property
    def step_tasks(self) -> int:
        shared = self.device.threads if self.step_cycles > _WORTH_SHARING else 1
        return min(shared, self.p.directions * self.backward.blocks)

    @property
    def shares(self) -> int:
        return product_shares(
            self.p, self.device, ceil_div(self.backward.widest, self.code.wide * self.lanes)
        )

    @cached_property
    def numbers(self) -> list[int]:
        """The run-time numbers, in the order of the code's slots."""
        p, b = self.p, self.backward
        values = {
            "steps": p.steps, "batch": p.batch, "rows": p.rows, "layers": p.layers, "tile": self.tile,
            "dy.size": self.dy_size, "slopes.size": self.slopes_size, "shares": self.shares,
            "step.each": ceil_div(p.directions * b.blocks, self.step_tasks),
            "step.chunk": b.recurrent_product.chunk(p.batch, self.lanes, ITEM_BYTES[self.code.dtype]),
            "second.chunk": b.projection_product.chunk(p.batch, self.lanes, ITEM_BYTES[self.code.dtype]),
        }  # fmt: skip
        values |= table_places(p)[0] | self.room.at | strides_of(p) | dropout_numbers(p)
        return [values[name] for name in self.code.slots]

    def phases(self) -> Phases:
        p, b = self.p, self.backward
        chunks = ceil_div(p.rows, ROWS_A_TASK) * self.shares
        copies = ceil_div(p.steps, STEPS_A_TASK)
        phases: Phases = [("tables", 1), ("top", 1), ("gather", copies)]
        if p.sequences != "whole":
            phases.append(("zero_rows", p.layers))
        steps: Phases = [("step", self.step_tasks)]
        steps += [("cell", p.directions * b.cell_blocks)] * bool(p.projection) + [("advance", 1)]
        for layer in reversed(range(p.layers)):
            name = "first" if layer == 0 else "next"
            product = b.recurrent_product
            phases.append(("pack_states", p.directions * b.blocks * product.vectors * p.gates))
            if p.projection:
                vectors = b.projection_product.vectors
                phases.append(("pack_projection", p.directions * b.cell_blocks * vectors))
            phases += [("start", p.directions), *(steps * (p.steps + 1))]
            columns = b.columns(layer == 0) // self.lanes
            phases += [(f"pack_{name}", columns * p.directions * p.gates), (name, chunks)]
            phases += dropout_phase(p) if layer > 0 else []
            phases.append(("below", 1))
        return [*phases, ("scatter", copies)]


@dataclass(frozen=True)
class WeightsPlan:
    """One problem of gradients of the weights on one device."""

    p: Recurrent
    device: CpuDevice

    @cached_property
    def lanes(self) -> int:
        return self.device.isa.lanes(compute_dtype(self.p.element))

    @cached_property
    def code(self) -> Code:
        slots = tuple(sorted((*self._names, *stride_names(self.p))))
        return make_code(self.p, self.device.isa, 1, 1, slots)

    @property
    def weights(self) -> Weights:
        return Weights(self.code, self.lanes)

    @property
    def trace(self) -> Callable[[Module], None]:
        return self.weights.trace

    _names = (
        "steps", "batch", "rows", "layers", "shares", "at.counts", "at.starts", "at.order", "at.tiles", "at.x",
        "at.next", "at.before", "at.full", "at.gates", "at.out", "at.dropped",
        *DROPOUT_NAMES,
    )  # fmt: skip

    @cached_property
    def room(self) -> Room:
        p, w = self.p, self.weights
        room = Room(self.code.dtype, table_places(p)[1])
        room.add("tiles", self.device.threads * w.tile)
        room.add("x", p.rows * w.panels("x") * w.width)
        room.add("next", (p.layers > 1) * p.rows * w.panels("next") * w.width)
        room.add("dropped", bool(p.dropout) * p.rows * p.directions * p.padded_size)
        room.add("before", p.directions * p.rows * w.panels("before") * w.width)
        room.add("gates", p.directions * p.rows * w.sides("gates") * SIDE)
        projected = bool(p.projection) * p.directions * p.rows
        room.add("full", projected * w.panels("full") * w.width)
        room.add("out", projected * w.sides("out") * SIDE)
        return room

    @cached_property
    def cycles(self) -> float:
        """Cycles of everything on one thread."""
        p, w, code = self.p, self.weights, self.code
        tiles, total = p.directions * w.sides("gates") * (SIDE // TILE), 0.0
        for layer in range(p.layers):
            panels = w.panels("x" if layer == 0 else "next") + w.panels("before")
            total += tiles * panels * p.rows * step_cycles(TILE, code.wide)
            columns = panels * w.width + p.directions * w.slopes
            total += p.rows * columns / self.lanes * 4.0
        if p.projection:
            sums = p.directions * w.sides("out") * (SIDE // TILE) * w.panels("full")
            total += p.layers * sums * p.rows * step_cycles(TILE, code.wide)
        return total

    @property
    def shares(self) -> int:
        w = self.weights
        wanted = 4 * self.device.threads if self.device.threads > 1 else 1
        return max(1, min(w.panels("before"), ceil_div(wanted, self.p.directions * w.sides("gates"))))

    @cached_property
    def numbers(self) -> list[int]:
        """The run-time numbers, in the order of the code's slots."""
        p = self.p
        values = {
            "steps": p.steps, "batch": p.batch, "rows": p.rows, "layers": p.layers, "shares": self.shares,
        }  # fmt: skip
        values |= table_places(p)[0] | self.room.at | strides_of(p) | dropout_numbers(p)
        return [values[name] for name in self.code.slots]

    def phases(self) -> Phases:
        p, w = self.p, self.weights
        steps, rows = ceil_div(p.steps, STEPS_A_TASK), ceil_div(p.rows, ROWS_A_COPY)
        sides = p.directions * w.sides("gates") * self.shares
        phases: Phases = [("tables", 1)]
        for layer in range(p.layers):
            name = "first" if layer == 0 else "next"
            phases += dropout_phase(p) if layer > 0 else []
            phases.append((f"copy_{name}", steps if layer == 0 else rows))
            phases += [("copy_states", steps * p.directions), ("copy_gates", rows * p.directions)]
            phases += [(name, sides), ("states", sides)]
            if p.projection:
                phases += [("copy_full", rows * p.directions), ("copy_out", rows * p.directions)]
                phases.append(("projection", p.directions * w.sides("out") * self.shares))
            if p.biases:
                phases.append(("biases", p.directions * w.slopes // self.lanes))
            phases.append(("above", 1))
        return phases


def make_code(p: Recurrent, isa: Isa, rows: int, block: int, slots: tuple[str, ...]) -> Code:
    """What is compiled for a problem."""
    wide = 4 if isa.registers >= 32 else 2
    many = min((isa.registers - 1 - wide) // wide, p.rows)
    strided = tuple(
        operand.name
        for operand in p.operands
        if operand.name in (*SEQUENCES, *STATES) and operand.descriptor.strides[-1] != 1
    )
    return Code(reduced(p), rows, block, many, wide, strided, slots)


def product_shares(p: Recurrent, device: CpuDevice, panels: int) -> int:
    """Into how many tasks the panels of a product over all steps are divided, for each chunk of rows."""
    wanted = 4 * device.threads if device.threads > 1 else 1
    return max(1, min(panels, ceil_div(wanted, ceil_div(p.rows, ROWS_A_TASK))))
