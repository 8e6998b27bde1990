"""The gradients of recurrent weights: products of what went in with what came back, over all rows at once.

    tables > for each layer: copies > products > biases > above

Both factors are copied into panels whose rows follow each other: the gradients of the gates in panels of `SIDE`
columns, of which a tile takes a few at a time, the inputs (x or the layer below, the states before, the outputs
before a projection) in panels of a tile's vectors. The sums over rows are made in chunks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.rnn.dropout import trace_dropout
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, Code, Frame
from jitdnn.kernels.cpu.rnn.sequence_tables import STEPS_A_TASK, trace_counters, trace_tables
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import PAD
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

SIDE = 48  # gates of a panel: whole cache lines, whole tiles
TILE = 6  # gates of a tile
ROWS_A_CHUNK = 256
ROWS_A_COPY = 64


@dataclass(frozen=True)
class Weights:
    """The products of one code, and its phases."""

    code: Code
    lanes: int

    @property
    def width(self) -> int:
        """Columns of a panel of inputs."""
        return self.code.wide * self.lanes

    @property
    def slopes(self) -> int:
        """Columns of the gates' gradients of a direction."""
        return self.code.p.slopes["gates"]

    def columns(self, source: str) -> int:
        """Columns of a source, padded: x, next (the layer below), before (the states), full."""
        p = self.code.p
        return {
            "x": ceil_div(p.inputs_size, PAD) * PAD,
            "next": p.directions * p.padded_size,
            "before": p.padded_size,
            "full": p.padded,
        }[source]

    def panels(self, source: str) -> int:
        return ceil_div(self.columns(source), self.width)

    def sides(self, source: str) -> int:
        """Panels of a direction's gradients: of the gates, or of the projection's output."""
        return ceil_div(self.slopes if source == "gates" else self.code.p.padded_size, SIDE)

    @property
    def tile(self) -> int:
        """Elements of the sums of one panel of gradients by one of inputs."""
        return SIDE * self.width

    def trace(self, module: Module) -> None:
        p, code = self.code.p, self.code
        trace_tables(module, code)
        trace_counters(module, code)
        loops = [Loop(None, SIDE, self.width)]
        contract = trace_microkernel(
            module, "tile", code.dtype, list(range(TILE)), code.wide, loops, accumulate=True
        )
        self._trace_copy_x(module)
        self._trace_copy_before(module)
        self._trace_copy_rows(module, "copy_gates", "gates", self.slopes, SIDE, self._gates)
        self._trace_products(module, "first", contract, "weight_ih", "x", "gates", p.inputs_size, 1)
        self._trace_products(module, "states", contract, "weight_hh", "before", "gates", p.size, 1)
        if p.layers > 1:
            columns = self.columns("next")
            self._trace_copy_rows(
                module, "copy_next", "next", columns, self.width, self._below, is_joint=True
            )
            self._trace_products(module, "next", contract, "weight_ih", "next", "gates", p.size, p.directions)
        if p.dropout:
            trace_dropout(module, code, "drop", self._outputs, lambda frame, below: frame.work("dropped"))
        if p.projection:
            self._trace_copy_rows(module, "copy_full", "full", p.padded, self.width, self._full)
            self._trace_copy_rows(module, "copy_out", "out", p.padded_size, SIDE, self._out)
            self._trace_products(module, "projection", contract, "weight_hr", "full", "out", p.hidden, 1)
        if p.biases:
            self._trace_biases(module)

    # ---- where rows are: (pointer to the direction's first row, from one row to the next)

    def _gates(self, frame: Frame, direction: Value) -> tuple[Pointer, int]:
        p = self.code.p
        rows = frame.section("dgates", p.slopes, "gates", frame.counter(LAYER))
        return rows + direction * self.slopes, p.directions * self.slopes

    def _out(self, frame: Frame, direction: Value) -> tuple[Pointer, int]:
        p = self.code.p
        rows = frame.section("dgates", p.slopes, "out", frame.counter(LAYER))
        return rows + direction * p.padded_size, p.directions * p.padded_size

    def _full(self, frame: Frame, direction: Value) -> tuple[Pointer, int]:
        p = self.code.p
        rows = frame.section("saved", p.kept, "full", frame.counter(LAYER))
        return rows + direction * p.padded, p.directions * p.padded

    def _below(self, frame: Frame, direction: Value) -> tuple[Pointer, int]:
        p = self.code.p
        rows = frame.work("dropped") if p.dropout else self._outputs(frame, frame.counter(LAYER) - 1)
        return rows, p.directions * p.padded_size

    def _outputs(self, frame: Frame, layer: Value) -> Pointer:
        return frame.section("saved", self.code.p.kept, "out", layer)

    # ---- copies

    def _place(self, frame: Frame, target: Pointer, panel: Value | int, row: Value, width: int) -> Pointer:
        return target + (panel * frame.number("rows") + row) * width

    def _trace_copy_rows(
        self, module: Module, name: str, target: str, columns: int, width: int,
        source: Callable[[Frame, Value], tuple[Pointer, int]], is_joint: bool = False,
    ) -> None:  # fmt: skip
        """Tasks: ceil(rows / ROWS_A_COPY) for each direction, or once for both if they are `is_joint`."""
        lanes, panels = self.lanes, ceil_div(columns, width)
        directions = 1 if is_joint else self.code.p.directions
        with module.task(name) as (k, args, task, _thread):
            frame = Frame(k, self.code, args)
            used = frame.table("starts").load(frame.number("steps"))
            direction, chunk = task % directions, task // directions
            rows, pitch = source(frame, direction)
            to = frame.work(target)
            for column in k.range(0, columns, lanes):
                panel = direction * panels + column // width
                place = self._place(frame, to, panel, k.integer(0), width) + column % width
                first = chunk * ROWS_A_COPY
                for row in k.range(first, (first + ROWS_A_COPY).min(used)):
                    place.store(rows.load(row * pitch + column, lanes), row * width)

    def _trace_copy_x(self, module: Module) -> None:
        """Tasks: ceil(steps / STEPS_A_TASK)."""
        p, lanes, width = self.code.p, self.lanes, self.width
        with module.task("copy_first") as (k, args, task, _thread):
            frame = Frame(k, self.code, args)
            to = frame.work("x")
            for t, n, row in self._steps(k, frame, task):
                source = frame.sequence_row("x", t, n, row - n)
                for column in k.range(0, self.columns("x"), lanes):
                    place = self._place(frame, to, column // width, row, width)
                    place.store(frame.load_units("x", source, column, p.inputs_size), column % width)

    def _steps(self, k: Builder, frame: Frame, task: Value) -> Iterator[tuple[Value, Value, Value]]:
        """(step, sequence, row) of all rows of a task's steps."""
        first = task * STEPS_A_TASK
        for t in k.range(first, (first + STEPS_A_TASK).min(frame.number("steps"))):
            start = frame.table("starts").load(t)
            for n in k.range(frame.table("counts").load(t)):
                yield t, n, start + n

    def _trace_copy_before(self, module: Module) -> None:
        """The states before each step. Tasks: ceil(steps / STEPS_A_TASK) for each direction."""
        p, code, lanes, width = self.code.p, self.code, self.lanes, self.width
        with module.task("copy_states") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            layer, steps = frame.counter(LAYER), frame.number("steps")
            direction = task % p.directions
            kept = frame.section("saved", p.kept, "out", layer) + direction * p.padded_size
            to = frame.work("before")
            for t, n, row in self._steps(k, frame, task // p.directions):
                # behind both ends there is a step without sequences: number `steps`
                other = k.select(direction == 0, k.select(t < 1, steps, t - 1), t + 1)
                count, start = frame.table("counts").load(other), frame.table("starts").load(other)
                for column in k.range(0, self.columns("before"), lanes):
                    state = k.register(k.constant(0, code.dtype, lanes))
                    with k.when(n < count):
                        state.set(kept.load((start + n) * (p.directions * p.padded_size) + column, lanes))
                    if p.has_states:
                        with k.when(n >= count):
                            first = frame.state_row("hx", layer, direction, n)
                            state.set(frame.load_units("hx", first, column, p.size))
                    panel = direction * self.panels("before") + column // width
                    self._place(frame, to, panel, row, width).store(state.get(), column % width)

    # ---- products

    def _gate_row(self, weight: str, number: Value) -> tuple[Value, Value]:
        """(row of the weight, whether there is one) for a column of the gradients."""
        p = self.code.p
        if weight == "weight_hr":
            return number, number < p.projection
        gate, unit = number // p.padded, number % p.padded
        inside = unit < p.hidden
        if p.cell != "gru":
            return gate * p.hidden + unit, inside & (gate < p.gates)
        if weight in ("weight_hh", "bias_hh"):  # n, r, z, U h' + c of n
            return (gate - 1) * p.hidden + unit, inside & (gate > 0) & (gate < 4)
        return (gate + 2) % 3 * p.hidden + unit, inside & (gate < 3)

    def _is_wanted(self, weight: str, number: Value) -> Value:
        """Whether any of a tile's columns from this one on belongs to the weight."""
        p = self.code.p
        if p.cell == "gru" and weight == "weight_hh":
            return (number + TILE > p.padded) & (number < 4 * p.padded)
        return number < (p.projection if weight == "weight_hr" else p.gates * p.padded)

    def _trace_products(
        self, module: Module, name: str, contract: Function, weight: str, source: str, gradient: str, size: int,
        parts: int,
    ) -> None:  # fmt: skip
        """Tasks: the panels of gradients of all directions, times `shares`; columns are `parts` runs of `size`."""
        code, lanes, width = self.code, self.lanes, self.width
        sides, panels = self.sides(gradient), self.panels(source)
        padded = self.columns(source) // parts
        is_joint = source in ("x", "next")
        with module.task(name) as (k, args, task, thread):
            frame = Frame(k, code, args)
            used, layer = frame.table("starts").load(frame.number("steps")), frame.counter(LAYER)
            shares = frame.number("shares")
            share, side = task % shares, task // shares
            direction, first = side // sides, side % sides * SIDE
            sums = frame.work("tiles") + thread * self.tile
            a = self._place(frame, frame.work(gradient), side, k.integer(0), SIDE)
            target = frame.weight(weight, layer, direction)
            each = (shares + (panels - 1)) // shares
            for panel in k.range(share * each, (share * each + each).min(panels)):
                number = panel if is_joint else direction * panels + panel
                b = self._place(frame, frame.work(source), number, k.integer(0), width)
                zero = k.constant(0, code.dtype, lanes)
                for at in k.range(0, self.tile, lanes):
                    sums.store(zero, at)
                for row in k.range(0, used, ROWS_A_CHUNK):
                    rows = (used - row).min(ROWS_A_CHUNK)
                    for at in k.range(0, SIDE, TILE):
                        with k.when(self._is_wanted(weight, first + at)):
                            k.call(contract, a + row * SIDE + at, b + row * width, sums + at * width, rows)
                for at in k.range(SIDE):
                    place, inside = self._gate_row(weight, first + at)
                    with k.when(inside):
                        for vector in range(code.wide):
                            column = panel * width + vector * lanes
                            part, unit = column // padded, column % padded
                            with k.when((part < parts) & (unit < size)):
                                self._blend(
                                    k, frame, target, sums.load(at * width + vector * lanes, lanes),
                                    place * (parts * size) + part * size + unit, k.integer(size) - unit,
                                )  # fmt: skip

    def _blend(
        self, k: Builder, frame: Frame, target: Pointer, value: Value, at: Value, count: Value
    ) -> None:
        """alpha * value + beta * what is there, for `count` lanes."""
        dtype, lanes = self.code.dtype, self.lanes
        mask, beta = k.mask(count, lanes), frame.arguments.beta(dtype)
        result = k.register(value * k.splat(frame.arguments.alpha(dtype), lanes))
        with k.when(beta != 0.0):
            result.set(k.fma(k.splat(beta, lanes), target.load(at, lanes, mask), result.get()))
        target.store(result.get(), at, mask)

    def _trace_biases(self, module: Module) -> None:
        """Tasks: one for each vector of the gates' gradients of each direction."""
        p, code, lanes = self.code.p, self.code, self.lanes
        with module.task("biases") as (k, args, task, _thread):
            frame = Frame(k, code, args)
            direction, column = task * lanes // self.slopes, task * lanes % self.slopes
            rows, pitch = self._gates(frame, direction)
            total = k.register(k.constant(0, code.dtype, lanes))
            for row in k.range(frame.table("starts").load(frame.number("steps"))):
                total += rows.load(row * pitch + column, lanes)
            for name in p.biases:
                place, inside = self._gate_row(name, column)
                with k.when(inside):
                    target = frame.weight(name, frame.counter(LAYER), direction)
                    left = k.integer(p.hidden) - column % p.padded
                    self._blend(k, frame, target, total.get(), place, left)
