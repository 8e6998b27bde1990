"""Recurrent layers of few steps and sequences, forward: weights are read where they lie, a task has a sequence.

A row of a weight is what one gate of a unit multiplies with the states, so its dot product reads it in one piece. With
few steps that is less than packing the weights takes, and one thread needs nothing from another one.

    for layer, a phase; for a sequence in a direction, a task
      for step
        for a vector of units
          for gate, for a few of these units       sums in registers, a vector of partial sums each
            for vectors of x, then of h
          the cell on the sums
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.add_lanes import add_lanes
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.rnn import cells
from jitdnn.kernels.cpu.rnn.memory_layout import strides_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.lowering import lower
from jitdnn.tensor import compute_dtype

MOST_ROWS = 8  # of a weight that are summed at once


@dataclass(frozen=True)
class RowStepsPlan:
    """The problem is compiled in, but for the number of steps in loops, an extra of the kernel."""

    p: Recurrent
    isa: Isa

    @property
    def dtype(self) -> str:
        return compute_dtype(self.p.element)

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def rows(self) -> int:
        """Of a weight, summed at once."""
        return min(MOST_ROWS, self.lanes)

    @property
    def padded(self) -> int:
        """Units in whole vectors."""
        return ceil_div(self.p.hidden, self.lanes) * self.lanes

    @property
    def width(self) -> int:
        """Elements of a step of a layer's outputs in the workspace, of one sequence."""
        return self.p.directions * self.p.hidden

    def workspace_elements(self) -> int:
        """Two buffers, for the outputs of a layer and of the one below."""
        return 2 * self.p.rows * self.width if self.p.layers > 1 else 0

    def phases(self) -> list[tuple[str, int]]:
        return [(f"layer{layer}", self.p.directions * self.p.batch) for layer in range(self.p.layers)]


def trace(module: Module, plan: RowStepsPlan) -> None:
    """Trace the tasks of all layers."""
    dots: dict[tuple[int, int], Function] = {}
    for layer in range(plan.p.layers):
        for depth in (plan.p.depth(layer), plan.p.hidden):
            for rows in {plan.rows, plan.p.hidden % plan.rows} - {0}:
                if (depth, rows) not in dots:
                    dots[depth, rows] = _trace_dots(module, plan, depth, rows)
    for layer in range(plan.p.layers):
        with module.task(f"layer{layer}") as (k, args, task, _):
            _Layer(k, plan, Arguments(k, args, len(plan.p.operands)), layer, dots).trace(task)


def _trace_dots(module: Module, plan: RowStepsPlan, depth: int, rows: int) -> Function:
    """Trace ``name(w, x, sums)``: rows of a weight times x, a number each; a whole vector is stored."""
    lanes, dtype = plan.lanes, plan.dtype
    with module.function(f"dots{depth}x{rows}", w=plan.p.element, x=dtype, sums=dtype) as (
        k,
        (w, x, sums),
        function,
    ):
        zero = k.constant(0, dtype, lanes)
        # with few rows two vectors at once hide the latency of a multiply-add
        unroll = max(1, min(2, 8 // rows))
        acc = [[k.register(zero) for _ in range(rows)] for _ in range(unroll)]

        def add(i: Value | int, part: int, mask: Value | None) -> None:
            value = (x + i).load(0, lanes, mask)
            for row, register in enumerate(acc[part]):
                register.set(k.fma(value, (w + (row * depth + i)).load(0, lanes, mask), register.get()))

        wide = lanes * unroll
        whole = depth - depth % wide
        for i in k.range(0, whole, wide):
            for part in range(unroll):
                add(i + part * lanes, part, None)
        for first in range(whole, depth, lanes):
            left = depth - first
            add(k.integer(first), 0, None if left >= lanes else k.mask(left, lanes))
        totals = [acc[0][row].get() for row in range(rows)]
        for other in acc[1:]:
            totals = [total + register.get() for total, register in zip(totals, other, strict=True)]
        sums.store(add_lanes(k, totals))
    return function


class _Layer:
    """The code of a layer's task."""

    def __init__(
        self,
        k: Builder,
        plan: RowStepsPlan,
        arguments: Arguments,
        layer: int,
        dots: dict[tuple[int, int], Function],
    ) -> None:
        self.k, self.plan, self.p, self.layer, self.dots = k, plan, plan.p, layer, dots
        self.arguments, self.lanes = arguments, plan.lanes
        self.strides = strides_of(plan.p)
        self.scale = Scale(k, arguments, plan.dtype)
        self.steps = arguments.extra(0)
        count = 4 if plan.p.cell == "gru" else plan.p.gates
        self.sums = k.local(plan.dtype, 2 * count * plan.lanes)
        self.x = k.local(plan.dtype, plan.lanes * ceil_div(plan.p.depth(layer), plan.lanes))
        self.h = [k.local(plan.dtype, plan.padded) for _ in range(2)]
        self.c = k.local(plan.dtype, plan.padded)

    def _operand(self, name: str) -> Pointer:
        place = self.p.places[name]
        pointer: Pointer = self.arguments.pointer(place, self.p.operands[place].descriptor.dtype)
        return pointer.as_real(self.plan.dtype)

    def trace(self, task: Value) -> None:
        k, p = self.k, self.p
        sequence = task // p.directions
        for direction in range(p.directions):
            with k.when(task % p.directions == direction):
                self._sequence(sequence, direction)

    def _sequence(self, sequence: Value, direction: int) -> None:
        k, p, lanes = self.k, self.p, self.lanes
        number = self.layer * p.directions + direction
        zero = k.constant(0, self.plan.dtype, lanes)
        pairs = [("hx", self.h[0])] + [("cx", self.c)] * (p.cell == "lstm")
        for name, to in pairs:
            for unit in k.range(0, self.plan.padded, lanes):
                value = zero
                if p.has_states:
                    value = self._state(name, number, sequence, unit)
                to.store(value, unit)
        for step in k.range(self.steps):
            t = step if direction == 0 else self.steps - 1 - step
            self._load_input(sequence, t)
            for odd in range(2):
                with k.when((step & 1) == odd):
                    self._step(sequence, t, direction, self.h[odd], self.h[1 - odd])
        finals = [("hn", self.h)] + [("cn", [self.c, self.c])] * (p.cell == "lstm")
        for name, buffers in finals:
            to = self._operand(name)
            each, n, u = (self.strides[f"{name}.{axis}"] for axis in "lnu")
            for odd, buffer in enumerate(buffers):
                with k.when((self.steps & 1) == odd):
                    for unit in k.range(0, self.plan.padded, lanes):
                        mask = k.mask(k.integer(p.hidden) - unit, lanes)
                        at = sequence * n + (unit * u + number * each)
                        (to + at).store_strided(buffer.load(unit, lanes), 0, u, mask)

    def _state(self, name: str, number: int, sequence: Value, unit: Value) -> Value:
        k = self.k
        each, n, u = (self.strides[f"{name}.{axis}"] for axis in "lnu")
        mask = k.mask(k.integer(self.p.hidden) - unit, self.lanes)
        return (self._operand(name) + (sequence * n + (unit * u + number * each))).load_strided(
            0, u, self.lanes, mask
        )

    # ---- a step

    def _outputs(self, layer: int) -> Pointer:
        buffer: Pointer = self.arguments.workspace(self.plan.dtype)
        return buffer + (layer & 1) * self.p.rows * self.plan.width

    def _load_input(self, sequence: Value, t: Value) -> None:
        """What the layer reads at a step, in one piece."""
        k, lanes, depth = self.k, self.lanes, self.p.depth(self.layer)
        if self.layer == 0:
            steps, n, u = (self.strides[f"x.{axis}"] for axis in "tnu")
            source = self._operand("x") + (t * steps + sequence * n)
        else:
            source, u = self._outputs(self.layer - 1) + (t * self.p.batch + sequence) * self.plan.width, 1
        for i in k.range(0, depth, lanes):
            mask = k.mask(k.integer(depth) - i, lanes)
            self.x.store((source + i * u).load_strided(0, u, lanes, mask), i)

    def _step(self, sequence: Value, t: Value, direction: int, old: Pointer, new: Pointer) -> None:
        k, lanes, hidden = self.k, self.lanes, self.p.hidden
        whole = hidden - hidden % lanes
        for unit in k.range(0, whole, lanes):
            self._units(sequence, t, direction, old, new, unit, lanes)
        if whole < hidden:
            self._units(sequence, t, direction, old, new, k.integer(whole), hidden - whole)

    def _units(
        self, sequence: Value, t: Value, direction: int, old: Pointer, new: Pointer, unit: Value, count: int
    ) -> None:
        k, p, lanes = self.k, self.p, self.lanes
        mask = None if count == lanes else k.mask(count, lanes)
        tail = f"_l{self.layer}" + "_reverse" * direction
        parts = []
        for source, name, depth in (
            (self.x, "ih", p.depth(self.layer)), (old, "hh", p.hidden),
        ):  # fmt: skip
            weight = self._operand(f"weight_{name}{tail}")
            sums = []
            for gate in range(p.gates):
                row = unit + gate * p.hidden
                for first in range(0, count, self.plan.rows):
                    rows = min(self.plan.rows, count - first)
                    # the last call writes beyond its rows: what follows is written after it
                    k.call(self.dots[depth, rows], weight + (row + first) * depth, source, self.sums + first)
                value = self.sums.load(0, lanes)
                if f"bias_{name}" in p.biases:
                    value = value + (self._operand(f"bias_{name}{tail}") + row).load(0, lanes, mask)
                sums.append(value)
            parts.append(sums)
        h = self._cell(parts[0], parts[1], old, unit)
        new.store(h, unit)
        if self.layer < p.layers - 1:
            out = self._outputs(self.layer) + (t * p.batch + sequence) * self.plan.width
            (out + (unit + direction * p.hidden)).store(h, 0, mask)
            return
        steps, n, u = (self.strides[f"y.{axis}"] for axis in "tnu")
        target = self._operand("y") + (t * steps + sequence * n + (unit + direction * p.hidden) * u)
        self.scale.store(target, u, h, mask)

    def _cell(self, x: Sequence[Value], u: Sequence[Value], old: Pointer, unit: Value) -> Value:
        """The new states of a vector of units from what the input and the states add to their gates."""
        k, p, lanes = self.k, self.p, self.lanes
        if p.cell == "lstm":
            i, f, o = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1, 3))
            g = lower(k, cells.NEW, [x[2], u[2]])
            c = lower(k, cells.lstm_cell(p.clip), [f, self.c.load(unit, lanes), i, g])
            self.c.store(c, unit)
            return lower(k, cells.LSTM_OUT, [o, c])
        if p.cell == "gru":
            r, z = (lower(k, cells.GATE, [x[gate], u[gate]]) for gate in (0, 1))
            new = lower(k, cells.GRU_NEW, [x[2], r, u[2]])
            return lower(k, cells.GRU_OUT, [z, new, old.load(unit, lanes)])
        return lower(k, cells.plain(p.cell), [x[0], u[0]])
