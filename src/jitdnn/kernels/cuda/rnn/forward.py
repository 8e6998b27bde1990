"""The program of recurrent layers forward."""

from __future__ import annotations

from jitdnn.kernels.cuda.rnn.layers import Layers
from jitdnn.kernels.cuda.rnn.plan import SLAB_BYTES, StepPlan, step_plan
from jitdnn.kernels.cuda.rnn.program import NOTHING, At, Program
from jitdnn.tensor import TensorDescriptor


class Forward(Layers):
    """y, the last states and what the gradients need."""

    def program(self) -> Program | None:
        p, program = self.p, self.steps
        plan = step_plan(p, self.device, self.has_tensor_cores, self.passes)
        if plan is None:
            return None
        dirs, per_slab = p.directions, SLAB_BYTES // program.state_item
        width, full_width = (-(-size // per_slab) * per_slab for size in (p.padded_size, p.padded))
        arrived = self.make_tables(p.layers * dirs * plan.groups)
        states, item = p.batch * dirs, program.state_item
        first_h, cells = program.take(states * width, item), program.take(states * p.padded)
        wx = program.take(p.rows * dirs * p.gates * p.hidden, program.item)
        is_kept = (
            p.is_training and program.state == program.real
        )  # the states are exchanged where they are kept
        own_out = NOTHING if is_kept else self._exchanged(p.rows * dirs * width, width > p.padded_size)
        own_full = NOTHING
        if p.projection and not is_kept:
            own_full = self._exchanged(p.rows * dirs * full_width, full_width > p.padded)
        weights, projection = self.room_for(plan, plan.first), self.room_for(plan, plan.second)
        biases = program.take(dirs * self.gates_kept * p.padded)
        between = program.take(p.rows * dirs * p.size, program.item) if p.layers > 1 else None
        out = own_out
        for layer in range(p.layers):
            depth = p.depth(layer)
            if layer == 0:
                descriptor = self.rows_in_place("x", depth)
                rows = program.operand("x") if descriptor else self.gather("x", depth, False)
            else:
                rows, descriptor = self.compact(out, layer - 1, "compact", between, width), None
            found = descriptor or TensorDescriptor.packed((p.rows, depth), p.element)
            self.input_products(layer, found, rows, wx)
            for direction, tail in self.tails(layer):
                self.pack_layer(plan, direction, tail, weights, projection, biases)
            self.take_states("hx", layer, p.size, width, first_h, "take_first")
            if p.cell in ("lstm", "gru"):
                self.take_states("cx" if p.cell == "lstm" else "hx", layer, p.hidden, p.padded, cells)
            kept = dict.fromkeys(("gates", "cell", "out", "full"), NOTHING)
            if p.is_training:
                kept = {name: self.section("saved", p.kept, layer, name) for name in kept}
            out, full = (kept["out"], kept["full"]) if is_kept else (own_out, own_full)
            also = (NOTHING, NOTHING) if is_kept else (kept["out"], kept["full"])
            counters = arrived + 4 * layer * dirs * plan.groups
            pointers: tuple[At, ...] = (
                weights, projection, wx, biases, first_h, cells, out, full, kept["gates"], kept["cell"], *also,
                self.tables, counters,
            )  # fmt: skip
            if plan.cluster:
                pointers = (
                    weights, wx, biases, first_h, cells, out, kept["gates"], kept["cell"], also[0], self.tables
                )  # fmt: skip
                self.cluster_launch("forward", plan, pointers, (p.hidden, p.padded, width, p.padded_size))
            else:
                sizes = p.hidden, p.padded, width, full_width, p.padded_size
                self.launches("forward", plan, pointers, sizes)
            self.give_states("last_states", (out, first_h), "hn", layer, p.size, width)
            if p.cell == "lstm":
                self.give_states("give_states", (cells,), "cn", layer, p.hidden, p.padded)
            if p.is_training:
                self._zero_rows("saved", p.kept, layer)
        self.scatter("y", out, dirs, p.size, width)
        return program

    def _exchanged(self, count: int, is_padded: bool) -> At:
        """Room for the states of all steps; units that pad them are 0."""
        room = self.steps.take(count, self.steps.state_item)
        if is_padded:
            self.steps.rows("clear", count, (room,), (count,))
        return room

    def input_products(self, layer: int, rows: TensorDescriptor, x: At, wx: At) -> None:
        p, program = self.p, self.steps
        columns = p.gates * p.hidden
        for direction, tail in self.tails(layer):
            row_step, column_step = program.strides("weight_ih" + tail)[:2]
            b = TensorDescriptor((rows.shape[1], columns), (column_step, row_step), p.element)
            c = TensorDescriptor((p.rows, columns), (p.directions * columns, 1), p.element)
            to = wx + direction * columns * program.item
            program.product(rows, b, c, (x, program.operand("weight_ih" + tail), to))

    def pack_layer(
        self, plan: StepPlan, direction: int, tail: str, weights: At, projection: At, biases: At
    ) -> None:
        p, program = self.p, self.steps
        at = direction * plan.slices
        to = weights + at * plan.first.slice_bytes
        self.pack("weight_hh" + tail, to, plan, plan.first, plan.units, p.hidden, p.size, p.padded, False)
        if plan.second:
            to = projection + at * plan.second.slice_bytes
            self.pack(
                "weight_hr" + tail, to, plan, plan.second, plan.outputs, p.size, p.hidden, p.padded, False
            )
        names = "bias_ih" + tail, "bias_hh" + tail
        program.rows(
            "pack_biases", self.gates_kept * p.padded,
            (*map(program.operand, names), biases + direction * self.gates_kept * p.padded * program.real_item),
            (self.gates_kept, p.hidden, p.padded, *(program.strides(name)[0] for name in names)),
        )  # fmt: skip
