"""The launch of a recurrent kernel: phases and tasks, sections of the workspace, values of the run-time integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.cpu import cost as shares_of_caches
from jitdnn.kernels.cpu.algorithm import Launch
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
)
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.rnn_reference import DROPOUT_ROWS
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES

_WORTH_SHARING = 12_000  # cycles of a step: less is done before another thread has begun

Phases = list[tuple[str, int]]  # (task, how many of it), one after the other


def launch_of(p: Recurrent, device: CpuDevice, is_kept: bool = False) -> Launch:
    """``is_kept``: the caller keeps what is made of the weights, of one layer forward."""
    if p.direction == "fwd":
        return _forward(p, device, is_kept)
    return (_backward_data if p.direction == "bwd_data" else _backward_weights)(p, device)


def _launch(
    p: Recurrent, plan: RecurrentPlan, trace: Callable[[Module], None], cycles: float, phases: Phases,
    sections: dict[str, int], integers: dict[str, int], kept_phases: int = 0, further_cycles: float = 0.0,
) -> Launch:  # fmt: skip
    """``sections``: elements of the sections of the workspace; ``integers``: those of this direction alone.
    ``kept_phases``: how many leading phases prepare weights that the caller keeps."""
    tables, end = table_bases(p)
    workspace = Workspace(plan.dtype, sections, end)
    rule = Dropout.make((1,), p.dropout)
    values = integers | tables | workspace.bases | strides_of(p)
    values |= {"steps": p.steps, "batch": p.batch, "rows": p.rows, "layers": p.layers}
    values |= {"drop.threshold": rule.threshold, "drop.factor": double_bits(rule.factor)}
    values["drop.groups"] = ceil_div(p.rows, DROPOUT_ROWS)
    extras = [values[name] for name in plan.slots]
    tasks = max(tasks for _, tasks in phases)
    kept = None
    if kept_phases:
        weights = [str(p.operands[place].descriptor.shape) for place in p.filters]
        tiles = f"{plan.step_vectors} and {plan.layer_vectors} vectors of {plan.lanes}"
        layout = f"{p.cell} {p.bias} of {p.element} {' '.join(weights)}, {tiles}"
        kept = Kept(workspace.bytes_of_weights, kept_phases, layout)
    return Launch(
        p, "fused_steps", plan, trace, phases, plan.pointers, cycles, tasks, workspace.bytes, extras, kept,
        further_cycles=further_cycles,
    )  # fmt: skip


def _dropout_phase(p: Recurrent, layer: int) -> Phases:
    """Dropout between a layer and the one below."""
    groups = ceil_div(p.rows, DROPOUT_ROWS)
    return [("drop", ceil_div(groups, DROPOUT_GROUPS_PER_TASK))] if p.dropout and layer > 0 else []


def _wanted_tasks(device: CpuDevice) -> int:
    return 4 * device.threads if device.threads > 1 else 1


class _Steps:
    """What the launches forward and backward have in common: a phase for each step, products over all steps.

    ``cycles`` are those of one step of one layer; ``columns`` those of the widest product over all steps.
    """

    def __init__(
        self, p: Recurrent, device: CpuDevice, plan: ForwardPlan | BackwardPlan, cycles: float, columns: int
    ) -> None:
        recurrent, projection = plan.recurrent_product, plan.projection_product
        blocks, bytes_each = p.directions * plan.blocks, ITEM_BYTES[plan.dtype]
        tile = ceil_div(plan.tile, 16) * 16
        panels, chunks = ceil_div(columns, plan.layer_width), ceil_div(p.rows, ROWS_PER_TASK)
        shares = max(1, min(panels, ceil_div(_wanted_tasks(device), chunks)))
        # weights of both directions that no cache near the cores holds are read of one after the other
        bytes_each_direction = plan.blocks * recurrent.panel(plan.lanes) * bytes_each
        near = device.threads * device.isa.processor.l2(1.0)
        self.turns = p.directions if p.directions * bytes_each_direction > near and not p.projection else 1
        blocks_at_once = blocks // self.turns
        step_tasks = min(device.threads if cycles / self.turns > _WORTH_SHARING else 1, blocks_at_once)
        projection_blocks = bool(p.projection) * p.directions * plan.projection_blocks
        self.product_tasks = chunks * shares
        self.sections = {
            "tiles": device.threads * tile,
            "state_panels": blocks * recurrent.panel(plan.lanes),
            "projection_panels": projection_blocks * projection.panel(plan.lanes),
        }
        chunk_bytes = device.isa.processor.l1(shares_of_caches.RNN_CHUNK_L1)
        self.integers = {
            "tile": tile,
            "shares": shares,
            "step.blocks": blocks_at_once,
            "step.each": ceil_div(blocks_at_once, step_tasks),
            "step.chunk": recurrent.chunk(p.batch, plan.lanes, bytes_each, chunk_bytes),
            "second.chunk": projection.chunk(p.batch, plan.lanes, bytes_each, chunk_bytes),
        }
        name = "project" if isinstance(plan, ForwardPlan) else "cell"
        projected: Phases = [(name, projection_blocks)] * bool(p.projection)
        self.step: Phases = [("step", step_tasks), *projected, ("advance", 1)]
        tasks = projection_blocks * projection.vectors
        self.pack_projection: Phases = [("pack_projection", tasks)] * bool(p.projection)

    def turns_of(self, steps: int) -> Phases:
        """All steps of a layer, once for each turn."""
        return [
            phase for turn in range(self.turns) for phase in [("turn", 1)] * (turn > 0) + self.step * steps
        ]


def _forward(p: Recurrent, device: CpuDevice, is_kept: bool) -> Launch:
    plan = cost.plan_forward(p, device.isa)
    steps = _Steps(p, device, plan, cost.forward_step_cycles(p, plan), plan.columns)
    outputs, states = p.rows * p.directions * p.padded_size, p.directions * p.batch
    sections = {
        "tiles": steps.sections["tiles"],
        "x": p.rows * plan.padded_inputs,
        "gates": 0 if plan.saves_gates else p.rows * plan.columns,
        "out": 0 if p.is_training or p.layers == 1 else 2 * outputs,
        "dropped": bool(p.dropout) * outputs,
        "input_panels": plan.input_panels,
        "state_panels": steps.sections["state_panels"],
        "bias": plan.columns,
        "new_bias": p.directions * p.padded,
        "h": 2 * states * p.padded_size,
        "c": states * p.padded,
        "full": bool(p.projection) * states * p.padded,
        "projection_panels": steps.sections["projection_panels"],
    }
    pack_inputs = plan.columns // plan.lanes
    pack_states: Phases = [("pack_states", p.directions * plan.blocks * plan.recurrent_product.vectors)]
    pack_states += steps.pack_projection
    # what depends on the weights alone comes first where there is one layer, so that it can be kept
    phases: Phases = [("pack_first", pack_inputs), *pack_states] if p.layers == 1 else []
    kept_phases = len(phases) if is_kept else 0
    phases += [("tables", 1), ("gather", ceil_div(p.steps, STEPS_PER_TASK))]
    if p.is_training and p.sequences != "whole":
        phases.append(("zero_rows", p.layers))
    for layer in range(p.layers):
        name = "first" if layer == 0 else "next"
        phases += _dropout_phase(p, layer)
        phases += [(f"pack_{name}", pack_inputs)] * (p.layers > 1) + [(name, steps.product_tasks)]
        phases += pack_states * (p.layers > 1) + [("start", p.directions)]
        phases += steps.turns_of(p.steps)
        phases.append(("above", 1))
    if p.sequences != "whole":
        phases.append(("end", p.directions))
    integers = steps.integers | {"h.size": states * p.padded_size, "out.size": outputs}
    trace = partial(forward_code.trace, plan=plan)
    further = -cost.pack_cycles(p, plan) if kept_phases else 0.0
    cycles = cost.forward_cycles(p, plan)
    return _launch(p, plan, trace, cycles, phases, sections, integers, kept_phases, further)


def _backward_data(p: Recurrent, device: CpuDevice) -> Launch:
    plan = cost.plan_backward(p, device.isa)
    steps = _Steps(p, device, plan, cost.backward_step_cycles(p, plan), plan.most_columns)
    outputs, states = p.rows * p.directions * p.padded_size, p.directions * p.batch
    slopes = states * p.gates * p.padded  # of one step
    sections = {
        "tiles": steps.sections["tiles"],
        "dy": min(2, p.layers) * outputs,
        "dx": p.rows * plan.padded_inputs,
        "input_panels": ceil_div(plan.most_columns, plan.layer_width) * plan.input_product.panel(plan.lanes),
        "state_panels": steps.sections["state_panels"],
        "projection_panels": steps.sections["projection_panels"],
        "carry": states * p.padded_size,
        "dc": states * p.padded,
        "dr": bool(p.projection) * states * p.padded_size,
        "slopes": 2 * slopes,
    }
    copies = ceil_div(p.steps, STEPS_PER_TASK)
    phases: Phases = [("tables", 1), ("top", 1), ("gather", copies)]
    if p.sequences != "whole":
        phases.append(("zero_rows", p.layers))
    for layer in reversed(range(p.layers)):
        name = "first" if layer == 0 else "next"
        vectors = plan.recurrent_product.vectors
        phases.append(("pack_states", p.directions * plan.blocks * vectors * p.gates))
        phases += [*steps.pack_projection, ("start", p.directions)]
        phases += steps.turns_of(p.steps + 1)
        columns = plan.columns(layer == 0) // plan.lanes
        phases += [(f"pack_{name}", columns * p.directions * p.gates), (name, steps.product_tasks)]
        phases += [*_dropout_phase(p, layer), ("below", 1)]
    phases.append(("scatter", copies))
    integers = steps.integers | {"dy.size": outputs, "slopes.size": slopes}
    trace = partial(backward_data_code.trace, plan=plan)
    return _launch(p, plan, trace, cost.backward_cycles(p, plan), phases, sections, integers)


def _backward_weights(p: Recurrent, device: CpuDevice) -> Launch:
    plan = cost.plan_weights(p, device.isa)
    width, directed_rows, projected = plan.layer_width, p.directions * p.rows, bool(p.projection)
    gate_panels = p.directions * plan.gate_panels("gates")
    shares = max(1, min(plan.input_panels("before"), ceil_div(_wanted_tasks(device), gate_panels)))
    sections = {
        "tiles": device.threads * plan.tile,
        "x": p.rows * plan.input_panels("x") * width,
        "next": (p.layers > 1) * p.rows * plan.input_panels("next") * width,
        "dropped": bool(p.dropout) * directed_rows * p.padded_size,
        "before": directed_rows * plan.input_panels("before") * width,
        "gates": p.rows * gate_panels * PANEL_GATES,
        "full": projected * directed_rows * plan.input_panels("full") * width,
        "out": projected * directed_rows * plan.gate_panels("out") * PANEL_GATES,
    }
    steps, rows = ceil_div(p.steps, STEPS_PER_TASK), ceil_div(p.rows, ROWS_PER_COPY)
    phases: Phases = [("tables", 1)]
    for layer in range(p.layers):
        name = "first" if layer == 0 else "next"
        phases += _dropout_phase(p, layer)
        phases.append((f"copy_{name}", steps if layer == 0 else rows))
        phases += [("copy_states", steps * p.directions), ("copy_gates", rows * p.directions)]
        phases += [(name, gate_panels * shares), ("states", gate_panels * shares)]
        if p.projection:
            phases += [("copy_full", rows * p.directions), ("copy_out", rows * p.directions)]
            phases.append(("projection", p.directions * plan.gate_panels("out") * shares))
        if p.biases:
            phases.append(("biases", p.directions * plan.slopes // plan.lanes))
        phases.append(("above", 1))
    trace = partial(backward_weights_code.trace, plan=plan)
    return _launch(p, plan, trace, cost.weights_cycles(p, plan), phases, sections, {"shares": shares})
