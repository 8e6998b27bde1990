"""The tiles of recurrent layers, chosen by estimated cycles, and the cycles of a whole kernel on one thread."""

from __future__ import annotations

from typing import Any

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.register_tiles import step_cycles
from jitdnn.kernels.cpu.rnn.plan import (
    PANEL_GATES,
    TILE_GATES,
    BackwardPlan,
    ForwardPlan,
    WeightsPlan,
    fields_of,
)
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.isa import Isa, item_bytes
from jitdnn.tensor import compute_dtype

_MOST_VECTORS = 8
_DOT_ROW = 5.0  # cycles to begin and end the dot product of a row
_DOT_VECTOR = 0.9  # and of each of its vectors
_CELL_CYCLES = 40.0  # a gate of one vector of units


def choose_step_tile(p: Recurrent, isa: Isa, gates: int, units: int) -> tuple[int, int]:
    """(sequences, vectors of units) of a step's tile, the cheapest for the whole batch; ``gates`` vectors for each."""
    lanes, best, tile = isa.lanes(compute_dtype(p.element)), float("inf"), (1, 1)
    for block in range(1, max(1, _MOST_VECTORS // gates) + 1):
        vectors = block * gates
        most = max(1, (isa.registers - 1 - vectors) // vectors)
        for rows in range(1, min(most, p.batch) + 1):
            tiles = ceil_div(p.batch, rows) * ceil_div(units, block * lanes)
            cycles = tiles * step_cycles(rows, vectors)
            if cycles < best * (1 - 1e-9):
                best, tile = cycles, (rows, block)
    return tile


def plan_forward(p: Recurrent, isa: Isa) -> ForwardPlan:
    rows, vectors = choose_step_tile(p, isa, p.gates, p.padded)
    fields: dict[str, Any] = fields_of(p, isa)
    return ForwardPlan(step_rows=rows, step_vectors=vectors, **fields)


def plan_backward(p: Recurrent, isa: Isa) -> BackwardPlan:
    rows, vectors = choose_step_tile(p, isa, 1, p.padded_size)
    fields: dict[str, Any] = fields_of(p, isa)
    return BackwardPlan(step_rows=rows, step_vectors=vectors, **fields)


def plan_weights(p: Recurrent, isa: Isa) -> WeightsPlan:
    fields: dict[str, Any] = fields_of(p, isa)
    return WeightsPlan(step_rows=1, step_vectors=1, **fields)


def forward_step_cycles(p: Recurrent, plan: ForwardPlan) -> float:
    """Of one step of one layer."""
    tiles = p.directions * plan.blocks * ceil_div(p.batch, plan.step_rows)
    cell = _CELL_CYCLES * p.gates * plan.step_vectors * plan.step_rows
    cycles = tiles * (p.size * step_cycles(plan.step_rows, p.gates * plan.step_vectors) + cell)
    if p.projection:
        tiles = p.directions * plan.projection_blocks * ceil_div(p.batch, plan.step_rows)
        cycles += tiles * p.hidden * step_cycles(plan.step_rows, plan.layer_vectors)
    return cycles


def forward_cycles(p: Recurrent, plan: ForwardPlan) -> float:
    panels = ceil_div(plan.columns, plan.layer_width)
    total = 0.0
    for layer in range(p.layers):
        tiles = panels * ceil_div(p.rows, plan.layer_rows)
        total += tiles * (
            p.depth(layer) * step_cycles(plan.layer_rows, plan.layer_vectors)
            + 4.0 * plan.layer_rows * plan.layer_vectors
        )
        total += p.steps * forward_step_cycles(p, plan)
    return total + pack_cycles(p, plan)


def pack_cycles(p: Recurrent, plan: ForwardPlan) -> float:
    """Of the weights of all layers, before the forward pass."""
    depths = sum(p.depth(layer) + p.size for layer in range(p.layers))
    return (plan.columns / plan.lanes) * depths * 2.0


def backward_step_cycles(p: Recurrent, plan: BackwardPlan) -> float:
    """Of one step of one layer."""
    tiles = p.directions * ceil_div(p.batch, plan.step_rows)
    cell = _CELL_CYCLES * p.gates * plan.step_rows * ceil_div(p.padded, plan.lanes)
    depth = plan.recurrent_product.depth
    cycles = tiles * (plan.blocks * depth * step_cycles(plan.step_rows, plan.step_vectors) + cell)
    projections = bool(p.projection) * tiles * plan.projection_blocks
    return cycles + projections * p.size * step_cycles(plan.step_rows, plan.layer_vectors)


def backward_cycles(p: Recurrent, plan: BackwardPlan) -> float:
    product = step_cycles(plan.layer_rows, plan.layer_vectors)
    total = 0.0
    for layer in range(p.layers):
        panels = ceil_div(plan.columns(layer == 0), plan.layer_width)
        tiles = panels * ceil_div(p.rows, plan.layer_rows)
        total += tiles * (plan.input_product.depth * product + 16.0 * plan.layer_rows)
        total += p.steps * backward_step_cycles(p, plan)
        total += p.gates * p.padded * p.directions * (p.depth(layer) + p.size) / plan.lanes * 2.0
    return total


def weights_cycles(p: Recurrent, plan: WeightsPlan) -> float:
    cycles = step_cycles(TILE_GATES, plan.layer_vectors)
    tiles, total = p.directions * plan.gate_panels("gates") * (PANEL_GATES // TILE_GATES), 0.0
    for layer in range(p.layers):
        panels = plan.input_panels("x" if layer == 0 else "next") + plan.input_panels("before")
        total += tiles * panels * p.rows * cycles
        columns = panels * plan.layer_width + p.directions * plan.slopes
        total += p.rows * columns / plan.lanes * 4.0
    if p.projection:
        tiles = (
            p.directions * plan.gate_panels("out") * (PANEL_GATES // TILE_GATES) * plan.input_panels("full")
        )
        total += p.layers * tiles * p.rows * cycles
    return total


def row_steps_cycles(p: Recurrent, isa: Isa) -> float:
    """Of dot products with the rows of the weights, which each step reads again from the cache they are in."""
    item = item_bytes(p.element)
    lanes, processor, total, size = isa.lanes(compute_dtype(p.element)), isa.processor, 0.0, 0
    for layer in range(p.layers):
        for depth in (p.depth(layer), p.hidden):
            rows = p.gates * p.hidden
            size += p.directions * rows * depth * item
            total += rows * (_DOT_ROW + ceil_div(depth, lanes) * _DOT_VECTOR)
        total += _CELL_CYCLES * p.gates * ceil_div(p.hidden, lanes)
    rate = processor.l2_rate if size <= processor.l2(cost.RNN_ROWS_L2) else processor.l3_rate
    if size > processor.last_cache(cost.RNN_ROWS_LAST):
        rate = processor.memory_rate
    return p.steps * p.batch * max(total * p.directions, size / rate)
