"""The launch of a recurrent kernel: phases and tasks, sections of the workspace, values of the run-time integers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu.random.philox import double_bits
from jitdnn.kernels.cpu.rnn import backward_data_code, backward_weights_code, cost, forward_code
from jitdnn.kernels.cpu.rnn.memory_layout import Workspace, strides_of, table_bases
from jitdnn.kernels.cpu.rnn.plan import (
    DROPOUT_GROUPS_PER_TASK,
    PANEL_GATES,
    ROWS_PER_COPY,
    ROWS_PER_TASK,
    STEPS_PER_TASK,
    BackwardPlan,
    ForwardPlan,
    RecurrentPlan,
    WeightsPlan,
)
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.rnn_reference import DROPOUT_ROWS
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES

_WORTH_SHARING = 12_000  # cycles of a step: less is done before another thread has begun

Phases = list[tuple[str, int]]


@dataclass(frozen=True)
class Launch(ABC):
    """One problem on one device."""

    p: Recurrent
    device: CpuDevice

    @property
    @abstractmethod
    def plan(self) -> RecurrentPlan:
        """What its code is generated from."""

    @property
    @abstractmethod
    def trace(self) -> Callable[[Module], None]:
        """Generates the code."""

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Of everything on one thread."""

    @property
    @abstractmethod
    def shares(self) -> int:
        """Tasks among which the panels of a product over all rows are divided, for each chunk or panel of gates."""

    @abstractmethod
    def phases(self) -> Phases:
        """(task, how many of it), one after the other."""

    @abstractmethod
    def _sections(self) -> dict[str, int]:
        """Elements of the sections of the workspace behind the tables."""

    @cached_property
    def workspace(self) -> Workspace:
        workspace = Workspace(self.plan.dtype, table_bases(self.p)[1])
        for name, elements in self._sections().items():
            workspace.add(name, elements)
        return workspace

    def _integers(self) -> dict[str, int]:
        """Run-time integers of this kind of launch."""
        return {}

    @cached_property
    def integers(self) -> list[int]:
        """Values of the plan's slots."""
        p = self.p
        values = {
            "steps": p.steps,
            "batch": p.batch,
            "rows": p.rows,
            "layers": p.layers,
            "shares": self.shares,
        }
        values |= self._integers() | table_bases(p)[0] | self.workspace.bases | strides_of(p) | _dropout(p)
        return [values[name] for name in self.plan.slots]

    def _dropout_phase(self) -> Phases:
        groups = ceil_div(self.p.rows, DROPOUT_ROWS)
        return [("drop", ceil_div(groups, DROPOUT_GROUPS_PER_TASK))] if self.p.dropout else []

    def _wanted_tasks(self) -> int:
        return 4 * self.device.threads if self.device.threads > 1 else 1


def _dropout(p: Recurrent) -> dict[str, int]:
    """The run-time integers of dropout."""
    rule = Dropout.make((1,), p.dropout)
    groups = ceil_div(p.rows, DROPOUT_ROWS)
    return {"drop.threshold": rule.threshold, "drop.factor": double_bits(rule.factor), "drop.groups": groups}


class _StepLaunch(Launch):
    """What forward and backward have in common: a phase for each step, then products over all steps."""

    @property
    @abstractmethod
    def plan(self) -> ForwardPlan | BackwardPlan: ...

    @property
    @abstractmethod
    def step_cycles(self) -> float:
        """Of one step of one layer on one thread."""

    @property
    @abstractmethod
    def _columns(self) -> int:
        """Of the widest product over all steps."""

    @property
    def tile(self) -> int:
        """Elements of the sums of a thread."""
        return ceil_div(self.plan.tile, 16) * 16

    @property
    def step_tasks(self) -> int:
        threads = self.device.threads if self.step_cycles > _WORTH_SHARING else 1
        return min(threads, self.p.directions * self.plan.blocks)

    @property
    def shares(self) -> int:
        panels = ceil_div(self._columns, self.plan.layer_width)
        chunks = ceil_div(self.p.rows, ROWS_PER_TASK)
        return max(1, min(panels, ceil_div(self._wanted_tasks(), chunks)))

    def _integers(self) -> dict[str, int]:
        p, plan, bytes_each = self.p, self.plan, ITEM_BYTES[self.plan.dtype]
        return {
            "tile": self.tile,
            "step.each": ceil_div(p.directions * plan.blocks, self.step_tasks),
            "step.chunk": plan.recurrent_product.chunk(p.batch, plan.lanes, bytes_each),
            "second.chunk": plan.projection_product.chunk(p.batch, plan.lanes, bytes_each),
        }

    @property
    def _state_panels(self) -> int:
        """Elements of the panels of weight_hh of a layer."""
        plan = self.plan
        return self.p.directions * plan.blocks * plan.recurrent_product.panel(plan.lanes)

    @property
    def _projection_panels(self) -> int:
        """Elements of the panels of weight_hr of a layer."""
        plan = self.plan
        panels = self.p.directions * plan.projection_blocks * plan.projection_product.panel(plan.lanes)
        return bool(self.p.projection) * panels

    def _steps(self, projection: str, steps: int) -> Phases:
        """The phases of some steps of a layer."""
        p = self.p
        phases: Phases = [("step", self.step_tasks)]
        if p.projection:
            phases.append((projection, p.directions * self.plan.projection_blocks))
        return [*phases, ("advance", 1)] * steps

    def _pack_projection(self) -> Phases:
        p, plan = self.p, self.plan
        tasks = p.directions * plan.projection_blocks * plan.projection_product.vectors
        return [("pack_projection", tasks)] if p.projection else []


class ForwardLaunch(_StepLaunch):
    @cached_property
    def plan(self) -> ForwardPlan:
        return cost.plan_forward(self.p, self.device.isa)

    @property
    def trace(self) -> Callable[[Module], None]:
        return lambda module: forward_code.trace(module, self.plan)

    @cached_property
    def cycles(self) -> float:
        return cost.forward_cycles(self.p, self.plan)

    @cached_property
    def step_cycles(self) -> float:
        return cost.forward_step_cycles(self.p, self.plan)

    @property
    def _columns(self) -> int:
        return self.plan.columns

    @property
    def _output_elements(self) -> int:
        """Of the outputs of a layer."""
        return self.p.rows * self.p.directions * self.p.padded_size

    def _sections(self) -> dict[str, int]:
        p, plan = self.p, self.plan
        states = p.directions * p.batch
        return {
            "tiles": self.device.threads * self.tile,
            "x": p.rows * plan.padded_inputs,
            "gates": 0 if plan.saves_gates else p.rows * plan.columns,
            "out": 0 if p.is_training or p.layers == 1 else 2 * self._output_elements,
            "dropped": bool(p.dropout) * self._output_elements,
            "input_panels": plan.input_panels,
            "state_panels": self._state_panels,
            "bias": plan.columns,
            "new_bias": p.directions * p.padded,
            "h": 2 * states * p.padded_size,
            "c": states * p.padded,
            "full": bool(p.projection) * states * p.padded,
            "projection_panels": self._projection_panels,
        }

    def _integers(self) -> dict[str, int]:
        p = self.p
        own = {"h.size": p.directions * p.batch * p.padded_size, "out.size": self._output_elements}
        return super()._integers() | own

    def phases(self) -> Phases:
        p, plan = self.p, self.plan
        chunks = ceil_div(p.rows, ROWS_PER_TASK) * self.shares
        phases: Phases = [("tables", 1), ("gather", ceil_div(p.steps, STEPS_PER_TASK))]
        if p.is_training and p.sequences != "whole":
            phases.append(("zero_rows", p.layers))
        for layer in range(p.layers):
            name = "first" if layer == 0 else "next"
            phases += self._dropout_phase() if layer > 0 else []
            phases += [(f"pack_{name}", plan.columns // plan.lanes), (name, chunks)]
            phases.append(("pack_states", p.directions * plan.blocks * plan.recurrent_product.vectors))
            phases += self._pack_projection()
            phases += [("start", p.directions), *self._steps("project", p.steps), ("above", 1)]
        if p.sequences != "whole":
            phases.append(("end", p.directions))
        return phases


class BackwardLaunch(_StepLaunch):
    """Of the gradients of the data."""

    @cached_property
    def plan(self) -> BackwardPlan:
        return cost.plan_backward(self.p, self.device.isa)

    @property
    def trace(self) -> Callable[[Module], None]:
        return lambda module: backward_data_code.trace(module, self.plan)

    @cached_property
    def cycles(self) -> float:
        return cost.backward_cycles(self.p, self.plan)

    @cached_property
    def step_cycles(self) -> float:
        return cost.backward_step_cycles(self.p, self.plan)

    @property
    def _columns(self) -> int:
        return self.plan.most_columns

    @property
    def _output_elements(self) -> int:
        """Of the gradients of a layer's outputs."""
        return self.p.rows * self.p.directions * self.p.padded_size

    @property
    def _slope_elements(self) -> int:
        """Of the gradients of the gates of one step."""
        return self.p.directions * self.p.batch * self.p.gates * self.p.padded

    def _sections(self) -> dict[str, int]:
        p, plan = self.p, self.plan
        states = p.directions * p.batch
        panels = ceil_div(plan.most_columns, plan.layer_width)
        return {
            "tiles": self.device.threads * self.tile,
            "dy": min(2, p.layers) * self._output_elements,
            "dx": p.rows * plan.padded_inputs,
            "input_panels": panels * plan.input_product.panel(plan.lanes),
            "state_panels": self._state_panels,
            "projection_panels": self._projection_panels,
            "carry": states * p.padded_size,
            "dc": states * p.padded,
            "dr": bool(p.projection) * states * p.padded_size,
            "slopes": 2 * self._slope_elements,
        }

    def _integers(self) -> dict[str, int]:
        own = {"dy.size": self._output_elements, "slopes.size": self._slope_elements}
        return super()._integers() | own

    def phases(self) -> Phases:
        p, plan = self.p, self.plan
        chunks = ceil_div(p.rows, ROWS_PER_TASK) * self.shares
        copies = ceil_div(p.steps, STEPS_PER_TASK)
        phases: Phases = [("tables", 1), ("top", 1), ("gather", copies)]
        if p.sequences != "whole":
            phases.append(("zero_rows", p.layers))
        for layer in reversed(range(p.layers)):
            name = "first" if layer == 0 else "next"
            panels = p.directions * plan.blocks
            phases.append(("pack_states", panels * plan.recurrent_product.vectors * p.gates))
            phases += self._pack_projection()
            phases += [("start", p.directions), *self._steps("cell", p.steps + 1)]
            columns = plan.columns(layer == 0) // plan.lanes
            phases += [(f"pack_{name}", columns * p.directions * p.gates), (name, chunks)]
            phases += self._dropout_phase() if layer > 0 else []
            phases.append(("below", 1))
        return [*phases, ("scatter", copies)]


class WeightsLaunch(Launch):
    """Of the gradients of the weights."""

    @cached_property
    def plan(self) -> WeightsPlan:
        return cost.plan_weights(self.p, self.device.isa)

    @property
    def trace(self) -> Callable[[Module], None]:
        return lambda module: backward_weights_code.trace(module, self.plan)

    @cached_property
    def cycles(self) -> float:
        return cost.weights_cycles(self.p, self.plan)

    @property
    def shares(self) -> int:
        panels = self.p.directions * self.plan.gate_panels("gates")
        return max(1, min(self.plan.input_panels("before"), ceil_div(self._wanted_tasks(), panels)))

    def _sections(self) -> dict[str, int]:
        p, plan = self.p, self.plan
        rows = p.directions * p.rows
        projected = bool(p.projection) * rows
        width = plan.layer_width
        return {
            "tiles": self.device.threads * plan.tile,
            "x": p.rows * plan.input_panels("x") * width,
            "next": (p.layers > 1) * p.rows * plan.input_panels("next") * width,
            "dropped": bool(p.dropout) * rows * p.padded_size,
            "before": rows * plan.input_panels("before") * width,
            "gates": rows * plan.gate_panels("gates") * PANEL_GATES,
            "full": projected * plan.input_panels("full") * width,
            "out": projected * plan.gate_panels("out") * PANEL_GATES,
        }

    def phases(self) -> Phases:
        p, plan = self.p, self.plan
        steps, rows = ceil_div(p.steps, STEPS_PER_TASK), ceil_div(p.rows, ROWS_PER_COPY)
        products = p.directions * plan.gate_panels("gates") * self.shares
        phases: Phases = [("tables", 1)]
        for layer in range(p.layers):
            name = "first" if layer == 0 else "next"
            phases += self._dropout_phase() if layer > 0 else []
            phases.append((f"copy_{name}", steps if layer == 0 else rows))
            phases += [("copy_states", steps * p.directions), ("copy_gates", rows * p.directions)]
            phases += [(name, products), ("states", products)]
            if p.projection:
                phases += [("copy_full", rows * p.directions), ("copy_out", rows * p.directions)]
                phases.append(("projection", p.directions * plan.gate_panels("out") * self.shares))
            if p.biases:
                phases.append(("biases", p.directions * plan.slopes // plan.lanes))
            phases.append(("above", 1))
        return phases
