"""The code of the gradients of recurrent weights: gradients of the gates times inputs, summed over all rows at once.

    tables > for each layer: copies > products > biases > above

Both factors are packed into panels of rows: the gradients of the gates in panels of ``PANEL_GATES`` columns, of which
a tile takes ``TILE_GATES`` at a time; the inputs (x or the layer below, the states before each step, the outputs before
a projection) in panels as wide as a tile. ``plan.WeightsPlan`` draws the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, Memory
from jitdnn.kernels.cpu.rnn.plan import (
    PANEL_GATES,
    ROWS_PER_CHUNK,
    ROWS_PER_COPY,
    STEPS_PER_TASK,
    TILE_GATES,
    WeightsPlan,
)
from jitdnn.kernels.cpu.rnn.sequence_tables import trace_counters, trace_tables
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


class _WeightsCode:
    def __init__(self, plan: WeightsPlan) -> None:
        self.plan, self.p, self.lanes, self.width = plan, plan.p, plan.lanes, plan.layer_width

    def trace(self, module: Module) -> None:
        p, plan = self.p, self.plan
        trace_tables(module, plan)
        trace_counters(module, plan)
        loops = [Loop(None, PANEL_GATES, self.width)]
        contract = trace_microkernel(
            module, "tile", plan.dtype, list(range(TILE_GATES)), plan.layer_vectors, loops, accumulate=True
        )
        self._trace_copy_x(module)
        self._trace_copy_before(module)
        self._trace_copy_rows(module, "copy_gates", "gates", self.plan.slopes, PANEL_GATES, self._gates)
        self._trace_products(module, "first", contract, "weight_ih", "x", "gates", p.inputs_size, 1)
        self._trace_products(module, "states", contract, "weight_hh", "before", "gates", p.size, 1)
        if p.layers > 1:
            columns = self.plan.columns("next")
            self._trace_copy_rows(
                module, "copy_next", "next", columns, self.width, self._below, is_joint=True
            )
            self._trace_products(module, "next", contract, "weight_ih", "next", "gates", p.size, p.directions)
        if p.dropout:
            trace_dropout(
                module, plan, "drop", self._outputs, lambda memory, below: memory.workspace("dropped")
            )
        if p.projection:
            self._trace_copy_rows(module, "copy_full", "full", p.padded, self.width, self._full)
            self._trace_copy_rows(module, "copy_out", "out", p.padded_size, PANEL_GATES, self._out)
            self._trace_products(module, "projection", contract, "weight_hr", "full", "out", p.hidden, 1)
        if p.biases:
            self._trace_biases(module)

    # ---- where rows are: (pointer to the direction's first row, from one row to the next)

    def _gates(self, memory: Memory, direction: Value) -> tuple[Pointer, int]:
        p = self.p
        rows = memory.section("dgates", p.slopes, "gates", memory.counter(LAYER))
        return rows + direction * self.plan.slopes, p.directions * self.plan.slopes

    def _out(self, memory: Memory, direction: Value) -> tuple[Pointer, int]:
        p = self.p
        rows = memory.section("dgates", p.slopes, "out", memory.counter(LAYER))
        return rows + direction * p.padded_size, p.directions * p.padded_size

    def _full(self, memory: Memory, direction: Value) -> tuple[Pointer, int]:
        p = self.p
        rows = memory.section("saved", p.kept, "full", memory.counter(LAYER))
        return rows + direction * p.padded, p.directions * p.padded

    def _below(self, memory: Memory, direction: Value) -> tuple[Pointer, int]:
        p = self.p
        rows = memory.workspace("dropped") if p.dropout else self._outputs(memory, memory.counter(LAYER) - 1)
        return rows, p.directions * p.padded_size

    def _outputs(self, memory: Memory, layer: Value) -> Pointer:
        return memory.section("saved", self.p.kept, "out", layer)

    # ---- copies

    def _panel_row(
        self, memory: Memory, target: Pointer, panel: Value | int, row: Value, width: int
    ) -> Pointer:
        """A row of a panel of ``width`` columns."""
        return target + (panel * memory.integer("rows") + row) * width

    def _trace_copy_rows(
        self, module: Module, name: str, target: str, columns: int, width: int,
        source: Callable[[Memory, Value], tuple[Pointer, int]], is_joint: bool = False,
    ) -> None:  # fmt: skip
        """Tasks: ceil(rows / ROWS_PER_COPY) for each direction, or once for both if they are `is_joint`."""
        lanes, panels = self.lanes, ceil_div(columns, width)
        directions = 1 if is_joint else self.p.directions
        with module.task(name) as (k, args, task, _thread):
            memory = Memory(k, self.plan, args)
            used = memory.table("starts").load(memory.integer("steps"))
            direction, chunk = task % directions, task // directions
            rows, pitch = source(memory, direction)
            to = memory.workspace(target)
            for column in k.range(0, columns, lanes):
                panel = direction * panels + column // width
                panel_column = self._panel_row(memory, to, panel, k.integer(0), width) + column % width
                first = chunk * ROWS_PER_COPY
                for row in k.range(first, (first + ROWS_PER_COPY).min(used)):
                    panel_column.store(rows.load(row * pitch + column, lanes), row * width)

    def _trace_copy_x(self, module: Module) -> None:
        """Tasks: ceil(steps / STEPS_PER_TASK)."""
        p, lanes, width = self.p, self.lanes, self.width
        with module.task("copy_first") as (k, args, task, _thread):
            memory = Memory(k, self.plan, args)
            to = memory.workspace("x")
            for t, n, row in self._steps(k, memory, task):
                source = memory.sequence_row("x", t, n, row - n)
                for column in k.range(0, self.plan.columns("x"), lanes):
                    panel_row = self._panel_row(memory, to, column // width, row, width)
                    panel_row.store(memory.load_units("x", source, column, p.inputs_size), column % width)

    def _steps(self, k: Builder, memory: Memory, task: Value) -> Iterator[tuple[Value, Value, Value]]:
        """(step, sequence, row) of all rows of a task's steps."""
        first = task * STEPS_PER_TASK
        for t in k.range(first, (first + STEPS_PER_TASK).min(memory.integer("steps"))):
            start = memory.table("starts").load(t)
            for n in k.range(memory.table("counts").load(t)):
                yield t, n, start + n

    def _trace_copy_before(self, module: Module) -> None:
        """The states before each step. Tasks: ceil(steps / STEPS_PER_TASK) for each direction."""
        p, plan, lanes, width = self.p, self.plan, self.lanes, self.width
        with module.task("copy_states") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            layer, steps = memory.counter(LAYER), memory.integer("steps")
            direction = task % p.directions
            outputs = memory.section("saved", p.kept, "out", layer) + direction * p.padded_size
            to = memory.workspace("before")
            for t, n, row in self._steps(k, memory, task // p.directions):
                # before the first step and after the last one comes a step without sequences: number `steps`
                other = k.select(direction == 0, k.select(t < 1, steps, t - 1), t + 1)
                count, start = memory.table("counts").load(other), memory.table("starts").load(other)
                for column in k.range(0, self.plan.columns("before"), lanes):
                    state = k.register(k.constant(0, plan.dtype, lanes))
                    with k.when(n < count):
                        state.set(outputs.load((start + n) * (p.directions * p.padded_size) + column, lanes))
                    if p.has_states:
                        with k.when(n >= count):
                            first = memory.state_row("hx", layer, direction, n)
                            state.set(memory.load_units("hx", first, column, p.size))
                    panel = direction * self.plan.input_panels("before") + column // width
                    self._panel_row(memory, to, panel, row, width).store(state.get(), column % width)

    # ---- products

    def _gate_row(self, weight: str, number: Value) -> tuple[Value, Value]:
        """(row of the weight, whether there is one) for a column of the gradients."""
        p = self.p
        if weight == "weight_hr":
            return number, number < p.projection
        gate, unit = number // p.padded, number % p.padded
        in_units = unit < p.hidden
        if p.cell != "gru":
            return gate * p.hidden + unit, in_units & (gate < p.gates)
        if weight in ("weight_hh", "bias_hh"):  # n, r, z, U h' + c of n
            return (gate - 1) * p.hidden + unit, in_units & (gate > 0) & (gate < 4)
        return (gate + 2) % 3 * p.hidden + unit, in_units & (gate < 3)

    def _is_wanted(self, weight: str, number: Value) -> Value:
        """Whether any column of the tile from this one on belongs to the weight."""
        p = self.p
        if p.cell == "gru" and weight == "weight_hh":
            return (number + TILE_GATES > p.padded) & (number < 4 * p.padded)
        return number < (p.projection if weight == "weight_hr" else p.gates * p.padded)

    def _trace_products(
        self, module: Module, name: str, contract: Function, weight: str, source: str, gradient: str, size: int,
        parts: int,
    ) -> None:  # fmt: skip
        """Tasks: the panels of gradients of all directions, times `shares`; columns are `parts` runs of `size`."""
        plan, lanes, width = self.plan, self.lanes, self.width
        gate_panels, panels = self.plan.gate_panels(gradient), self.plan.input_panels(source)
        padded = self.plan.columns(source) // parts
        is_joint = source in ("x", "next")
        with module.task(name) as (k, args, task, thread):
            memory = Memory(k, plan, args)
            used, layer = memory.table("starts").load(memory.integer("steps")), memory.counter(LAYER)
            shares = memory.integer("shares")
            share, gate_panel = task % shares, task // shares
            direction, first = gate_panel // gate_panels, gate_panel % gate_panels * PANEL_GATES
            sums = memory.workspace("tiles") + thread * self.plan.tile
            a = self._panel_row(memory, memory.workspace(gradient), gate_panel, k.integer(0), PANEL_GATES)
            target = memory.weight(weight, layer, direction)
            each = (shares + (panels - 1)) // shares
            for panel in k.range(share * each, (share * each + each).min(panels)):
                number = panel if is_joint else direction * panels + panel
                b = self._panel_row(memory, memory.workspace(source), number, k.integer(0), width)
                zero = k.constant(0, plan.dtype, lanes)
                for at in k.range(0, self.plan.tile, lanes):
                    sums.store(zero, at)
                for row in k.range(0, used, ROWS_PER_CHUNK):
                    rows = (used - row).min(ROWS_PER_CHUNK)
                    for gate in k.range(0, PANEL_GATES, TILE_GATES):
                        with k.when(self._is_wanted(weight, first + gate)):
                            k.call(
                                contract,
                                a + row * PANEL_GATES + gate,
                                b + row * width,
                                sums + gate * width,
                                rows,
                            )
                for gate in k.range(PANEL_GATES):
                    weight_row, is_inside = self._gate_row(weight, first + gate)
                    with k.when(is_inside):
                        for vector in range(plan.layer_vectors):
                            column = panel * width + vector * lanes
                            part, unit = column // padded, column % padded
                            with k.when((part < parts) & (unit < size)):
                                self._blend(
                                    k, memory, target, sums.load(gate * width + vector * lanes, lanes),
                                    weight_row * (parts * size) + part * size + unit, k.integer(size) - unit,
                                )  # fmt: skip

    def _blend(
        self, k: Builder, memory: Memory, target: Pointer, value: Value, at: Value, count: Value
    ) -> None:
        """Store alpha * value + beta * old, for `count` lanes."""
        dtype, lanes = self.plan.dtype, self.lanes
        mask, beta = k.mask(count, lanes), memory.arguments.beta(dtype)
        result = k.register(value * k.splat(memory.arguments.alpha(dtype), lanes))
        with k.when(beta != 0.0):
            result.set(k.fma(k.splat(beta, lanes), target.load(at, lanes, mask), result.get()))
        target.store(result.get(), at, mask)

    def _trace_biases(self, module: Module) -> None:
        """Tasks: one for each vector of the gates' gradients of each direction."""
        p, plan, lanes = self.p, self.plan, self.lanes
        with module.task("biases") as (k, args, task, _thread):
            memory = Memory(k, plan, args)
            direction, column = task * lanes // self.plan.slopes, task * lanes % self.plan.slopes
            rows, pitch = self._gates(memory, direction)
            total = k.register(k.constant(0, plan.dtype, lanes))
            for row in k.range(memory.table("starts").load(memory.integer("steps"))):
                total += rows.load(row * pitch + column, lanes)
            for name in p.biases:
                weight_row, is_inside = self._gate_row(name, column)
                with k.when(is_inside):
                    target = memory.weight(name, memory.counter(LAYER), direction)
                    left = k.integer(p.hidden) - column % p.padded
                    self._blend(k, memory, target, total.get(), weight_row, left)


def trace(module: Module, plan: WeightsPlan) -> None:
    """Trace the tasks of all phases."""
    _WeightsCode(plan).trace(module)
