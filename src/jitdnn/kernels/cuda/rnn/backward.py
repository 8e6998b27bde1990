"""The programs of recurrent layers' gradients: of the data backward through the steps, and of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import Launch
from jitdnn.kernels.cuda.rnn.layers import Layers
from jitdnn.kernels.cuda.rnn.plan import StepPlan, step_plan
from jitdnn.kernels.cuda.rnn.program import NOTHING, At, Program
from jitdnn.tensor import TensorDescriptor

_LEAST_RUN, _MOST_RUNS = 16, 128  # rows that are added up one after the other, and such runs
# The power of two that the largest given gradient becomes in f16: 2^20 below infinity, 2^10 above what loses bits.
_LARGEST = -4


class BackwardData(Layers):
    """dx, the gradients of the first states, and those of the gates."""

    def program(self) -> Program | None:
        p, program = self.p, self.steps
        plan = step_plan(p, self.device, self.has_tensor_cores, self.passes)
        if plan is None:
            return None
        dirs, width, sections = p.directions, p.padded_size, self.gates_kept
        arrived = self.make_tables(p.layers * dirs * plan.groups)
        dense = TensorDescriptor.packed((p.rows, dirs * p.size), program.real)
        is_dense = self.rows_in_place("dy", dirs * p.size) == dense
        dy = program.operand("dy") if is_dense else self.gather("dy", dirs * p.size, True)
        states = p.batch * dirs
        dh, dc, carried = (program.take(states * n) for n in (width, p.padded, p.padded))
        first = program.take(states * p.padded)
        found = program.take(plan.parts * states * width) if plan.parts > 1 else NOTHING
        weights, projection = self.room_for(plan, plan.first), self.room_for(plan, plan.second)
        deepest = max(p.depth(layer) for layer in range(p.layers))
        k = dirs * sections * p.padded
        inputs = program.take(k * deepest, program.state_item)
        is_half = program.state != program.real
        sent = program.take(p.rows * k, program.state_item) if is_half else NOTHING
        factors = program.take(4, 4) if is_half else NOTHING
        products = program.take(p.rows * deepest, program.state_item)
        between = program.take(p.rows * deepest) if p.layers > 1 and is_half else NOTHING
        for layer in reversed(range(p.layers)):
            depth = p.depth(layer)
            self.take_states("dhn", layer, p.size, width, dh)
            if p.cell == "lstm":
                self.take_states("dcn", layer, p.hidden, p.padded, dc)
            if p.cell in ("lstm", "gru"):
                self.take_states("cx" if p.cell == "lstm" else "hx", layer, p.hidden, p.padded, first)
            self._pack_weights(plan, layer, weights, projection, inputs)
            dgates = self.section("dgates", p.slopes, layer, "gates")
            if is_half:
                numbers = [(dy, p.rows * dirs * p.size), (dh, states * width)]
                numbers += [(dc, states * p.padded)] if p.cell == "lstm" else []
                self.begin_factors(factors)
                self.end_factors(factors, numbers, (), _LARGEST)
            kept = [self.section("saved", p.kept, layer, name) for name in ("gates", "cell", "out")]
            pointers = (
                weights, projection, dy, dh, dc, carried, *kept, first, dgates,
                self.section("dgates", p.slopes, layer, "out"), found, sent, factors, self.tables,
                arrived + 4 * layer * dirs * plan.groups,
            )  # fmt: skip
            if plan.cluster:
                pointers = weights, dy, dh, dc, *kept, first, dgates, self.tables
                self.cluster_launch("backward", plan, pointers, (p.size, p.padded, plan.units))
            else:
                self.launches("backward", plan, pointers, (p.size, p.padded, width))
            if p.has_states:
                self.give_states("give_states", (dh,), "dhx", layer, p.size, width)
                if p.cell == "lstm":
                    self.give_states("give_states", (dc,), "dcx", layer, p.hidden, p.padded)
            self._zero_rows("dgates", p.slopes, layer)  # before the product reads them
            if plan.cluster and is_half:
                program.rows("halve", p.rows * k, (dgates, factors, sent), (p.rows * k,))
            elif is_half and p.sequences != "whole":
                program.rows("zero_rows_state", p.rows * k, (self.tables, sent), (p.steps, p.rows, k))
            program.product(
                TensorDescriptor.packed((p.rows, k), program.state),
                TensorDescriptor.packed((k, depth), program.state),
                TensorDescriptor.packed((p.rows, depth), program.state),
                (sent if is_half else dgates, inputs, products),
            )  # fmt: skip
            if layer == 0:
                self.scatter("dx", products, 1, depth, depth, factors)
            elif is_half:
                dy = self.compact(products, layer - 1, "compact_up", between, p.size, factors)
            else:
                if p.dropout:
                    self.compact(products, layer - 1, "compact_real", products, p.size)
                dy, products = products, program.take(p.rows * deepest) if layer == p.layers - 1 else dy
        return program

    def _pack_weights(self, plan: StepPlan, layer: int, weights: At, projection: At, inputs: At) -> None:
        """Those of a layer in the order of the steps, and those of its inputs with whole gates."""
        p, program, sections = self.p, self.steps, self.gates_kept
        depth, width = p.depth(layer), p.padded_size
        for direction, tail in self.tails(layer):
            at = direction * plan.slices
            to = weights + at * plan.first.slice_bytes
            columns = (plan.outputs or plan.units) * plan.parts
            if plan.cluster:
                self.pack_columns("weight_hh" + tail, to, plan)
            else:
                self.pack(
                    "weight_hh" + tail, to, plan, plan.first, columns, p.size, p.hidden, p.padded, True, plan.parts
                )  # fmt: skip
            if plan.second:
                to = projection + at * plan.second.slice_bytes
                self.pack(
                    "weight_hr" + tail, to, plan, plan.second, plan.units, p.hidden, p.size, width, True
                )
            row_step, column_step = program.strides("weight_ih" + tail)[:2]
            program.rows(
                "pad_weights", sections * p.padded * depth,
                (program.operand("weight_ih" + tail),
                 inputs + direction * sections * p.padded * depth * program.state_item),
                (sections, p.hidden, p.padded, depth, row_step, column_step),
            )  # fmt: skip


class BackwardWeights(Layers):
    """Of each weight one product over the rows of all steps."""

    def program(self) -> Program:
        p, program = self.p, self.steps
        self.make_tables(0)
        first = program.take(p.batch * p.directions * p.padded_size)
        is_half, item = program.state != program.real, program.state_item
        before = program.take(p.directions * p.rows * p.size, item)
        gates, k = p.gates * p.hidden, p.directions * self.gates_kept * p.padded
        parts = max(1, min(p.rows // _LEAST_RUN, _MOST_RUNS))
        sums = program.take(parts * k)
        halves = program.take(p.rows * k, item) if is_half else NOTHING
        factors = program.take(4, 4) if is_half else NOTHING
        room = (
            program.take(gates * max(p.size, *(p.depth(n) for n in range(p.layers))), item)
            if self._narrow
            else None
        )
        between = program.take(p.rows * p.directions * p.size, item) if p.layers > 1 else None
        for layer in range(p.layers):
            depth, out = p.depth(layer), self.section("saved", p.kept, layer, "out")
            descriptor = self.rows_in_place("x", depth) if layer == 0 and program.state == p.element else None
            if is_half and descriptor != TensorDescriptor.packed((p.rows, depth), p.element):
                descriptor = None  # the largest is looked for in memory without gaps
            if layer:
                source = self.section("saved", p.kept, layer - 1, "out")
                rows = self.compact(source, layer - 1, "compact_down" if is_half else "compact_real", between)
            else:
                rows = program.operand("x") if descriptor else self.gather("x", depth, not is_half)
            found = descriptor or TensorDescriptor.packed((p.rows, depth), program.state)
            self.take_states("hx", layer, p.size, p.padded_size, first)
            program.rows(
                "states_before", p.directions * p.rows * p.size, (self.tables, out, first, before),
                (p.steps, p.batch, p.rows, p.directions, p.size, p.padded_size),
            )  # fmt: skip
            states = TensorDescriptor.packed((p.rows, p.size), program.state)
            gradients = self.section("dgates", p.slopes, layer, "gates")
            if is_half:
                self.begin_factors(factors)
            if p.biases or is_half:
                self.sum_rows(gradients, k, sums, parts, factors + 8 if is_half else NOTHING)
            if is_half:
                others = (rows, p.rows * depth), (before, p.directions * p.rows * p.size)
                self.end_factors(factors, (), others, 14 - p.rows.bit_length())
                program.rows("halve", p.rows * k, (gradients, factors, halves), (p.rows * k,))
            is_gru, own = p.cell == "gru", list(range(p.gates))
            for direction, tail in self.tails(layer):
                aside = direction * self.gates_kept * p.padded
                dgates = gradients + aside * program.real_item
                source = halves + aside * item if is_half else dgates
                earlier = before + direction * p.rows * p.size * item
                sections = [1, 2, 0] if is_gru else own
                self.gradient("weight_ih" + tail, sections, source, found, rows, room, factors)
                sections = [1, 2, 3] if is_gru else own
                self.gradient("weight_hh" + tail, sections, source, states, earlier, room, factors)
                for name in p.biases:
                    self.bias_gradient(
                        name + tail, name == "bias_hh", sums + aside * program.real_item, parts, k
                    )
                if p.projection:
                    self.projection_gradient("weight_hr" + tail, layer, direction, room)
        return program

    @property
    def _narrow(self) -> bool:
        """Whether gradients are summed in a wider type than they are stored in."""
        return self.steps.real != self.p.element

    def gradient(
        self, name: str, sections: Sequence[int], dgates: At, rows: TensorDescriptor, x: At, room: At | None,
        factors: At = NOTHING,
    ) -> None:  # fmt: skip
        """Of a matrix of all gates: sections of dgates that follow each other are one product, if nothing pads them."""
        p, program = self.p, self.steps
        columns, pitch = rows.shape[1], p.directions * self.gates_kept * p.padded
        row_step, column_step = (columns, 1) if room else program.strides("d" + name)[:2]
        target = room or program.operand("d" + name)
        item, dtype = program.state_item, program.state
        begin = 0
        while begin < len(sections):
            end = begin + 1
            while end < len(sections) and sections[end] == sections[end - 1] + 1:
                end += 1
            count = end - begin
            source = dgates + sections[begin] * p.padded * item
            to = target + begin * p.hidden * row_step * item
            if count == 1 or p.padded == p.hidden:
                height = count * p.hidden
                a = TensorDescriptor((height, p.rows), (1, pitch), dtype)
                c = TensorDescriptor((height, columns), (row_step, column_step), dtype)
                program.product(a, rows, c, (source, x, to), is_scaled=room is None)
            else:
                a = TensorDescriptor((count, p.hidden, p.rows), (p.padded, 1, pitch), dtype)
                b = TensorDescriptor((count, *rows.shape), (0, *rows.strides), dtype)
                steps = p.hidden * row_step, row_step, column_step
                c = TensorDescriptor((count, p.hidden, columns), steps, dtype)
                program.product(a, b, c, (source, x, to), is_scaled=room is None)
            begin = end
        self.give(name, p.gates * p.hidden, columns, room, factors)

    def projection_gradient(self, name: str, layer: int, direction: int, room: At | None) -> None:
        p, program = self.p, self.steps
        item = program.real_item
        dout = self.section("dgates", p.slopes, layer, "out") + direction * p.padded_size * item
        full = self.section("saved", p.kept, layer, "full") + direction * p.padded * item
        a = TensorDescriptor((p.size, p.rows), (1, p.directions * p.padded_size), program.real)
        pitch = p.directions * p.padded
        if p.sequences != "whole":  # behind the last row that a sequence has there may be anything
            to, pitch = program.take(p.rows * p.hidden), p.hidden
            program.rows(
                "compact_real", p.rows * p.hidden, (self.tables, full, NOTHING, NOTHING, to),
                (p.steps, p.rows, 1, p.hidden, p.directions * p.padded, 0, 0, -1), (1.0,),
            )  # fmt: skip
            full = to
        b = TensorDescriptor((p.rows, p.hidden), (pitch, 1), program.real)
        steps = (p.hidden, 1) if room else program.strides("d" + name)[:2]
        c = TensorDescriptor((p.size, p.hidden), steps, program.real)
        target = room or program.operand("d" + name)
        program.product(a, b, c, (dout, full, target), is_scaled=room is None)
        self.give(name, p.size, p.hidden, room)

    def give(self, name: str, height: int, columns: int, room: At | None, factors: At = NOTHING) -> None:
        if room is not None:
            program = self.steps
            program.rows(
                "give_matrix", height * columns, (room, factors, program.operand("d" + name)),
                (height, columns, *program.strides("d" + name)[:2]), is_scaled=True,
            )  # fmt: skip

    def sum_rows(self, gradients: At, pitch: int, sums: At, parts: int, largest: At) -> None:
        """Of the gates' gradients of all directions, `parts` runs of rows each; and the largest of them."""
        program, blocks = self.steps, -(-pitch // 256)
        program.launch(
            None, Launch("sum_rows", parts * blocks, 256), (self.tables, gradients, sums, largest),
            (self.p.steps, pitch, -(-self.p.rows // parts), blocks),
        )  # fmt: skip

    def bias_gradient(self, name: str, is_recurrent: bool, sums: At, parts: int, pitch: int) -> None:
        p, program = self.p, self.steps
        program.rows(
            "bias_gradient", p.gates * p.hidden, (sums, program.operand("d" + name)),
            (parts, pitch, p.gates, p.hidden, p.padded, int(is_recurrent), program.strides("d" + name)[0]),
            is_scaled=True,
        )  # fmt: skip
