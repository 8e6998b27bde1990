"""The blocking of attention for a problem and an instruction set, and its estimated cycles on one thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu.attention.plan import BackwardPlan, ForwardPlan, Product, common_fields
from jitdnn.kernels.cpu.microkernel.register_tiles import MAX_VECTORS, choose_tile
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.isa import Isa
from jitdnn.tensor import compute_dtype

_EFFICIENCY = 0.75  # of the peak, for the products and all around them
_PANELS = 2  # of a block: each tile of keys is packed once for all of them
_TASKS = 8  # heads fewer than these are divided into ranges of keys, however many threads there are
_SHORTEST_RANGE = 192  # keys


def cycles(problem: Attention, device: CpuDevice) -> float:
    lanes = device.isa.lanes(compute_dtype(problem.dtype))
    products = problem.flops / (4.0 * lanes * _EFFICIENCY)
    copies = sum(operand.descriptor.size for operand in problem.operands if operand.name != "mask")
    return products + 2.0 * copies / lanes + 2000.0


def key_ranges(problem: Attention) -> int:
    """Ranges into which the keys of each head are divided in the backward pass."""
    n, g, s, _ = problem.k.shape
    return max(1, min(ceil_div(_TASKS, max(1, n * g)), s // _SHORTEST_RANGE))


def plan_forward(problem: Attention, isa: Isa) -> ForwardPlan:
    fields = _fields(problem, isa)
    queries, width = problem.q.shape[2], fields["vectors"] * fields["lanes"]
    values = _product(isa, problem, min(width, max(1, queries)), problem.v.shape[3])
    panels = min(_PANELS, ceil_div(max(1, queries), width))
    return ForwardPlan(values=values, panels=panels, **fields)


def plan_backward(problem: Attention, isa: Isa) -> BackwardPlan:
    fields, ranges = _fields(problem, isa), key_ranges(problem)
    width, rows = fields["vectors"] * fields["lanes"], fields["register_keys"]
    size, value_size, keys = problem.q.shape[3], problem.v.shape[3], problem.k.shape[2]
    plan = BackwardPlan(
        dq=_product(isa, problem, width, size),
        dk=_product_of_keys(isa, problem, rows, size),
        dv=_product_of_keys(isa, problem, rows, value_size),
        range_keys=max(1, ceil_div(keys, ranges)),
        splits=ranges > 1,
        **fields,
    )
    return replace(plan, range_keys=ceil_div(plan.range_keys, plan.tile_keys) * plan.tile_keys)


def _fields(problem: Attention, isa: Isa) -> dict[str, Any]:
    lanes = isa.lanes(compute_dtype(problem.dtype))
    most = min(MAX_VECTORS, max(1, ceil_div(problem.q.shape[2], lanes)))
    # at least six keys to a register tile, where there are registers
    vectors = max(v for v in range(1, most + 1) if v == 1 or (isa.registers - 1 - v) // v >= 6)
    keys = min((isa.registers - 1 - vectors) // vectors, 12)
    return common_fields(problem, isa) | {"vectors": vectors, "register_keys": keys}


def _product(isa: Isa, problem: Attention, rows: int, width: int) -> Product:
    real = compute_dtype(problem.dtype)
    tile, lanes = choose_tile([rows], width, isa, real), isa.lanes(real)
    return Product(tile.rows, tile.vectors, ceil_div(width, tile.vectors * lanes), lanes)


def _product_of_keys(isa: Isa, problem: Attention, rows: int, width: int) -> Product:
    """A product with the rows of the register tiles of scores, so that none of its tiles reaches into the next keys."""
    lanes = isa.lanes(compute_dtype(problem.dtype))
    count = ceil_div(width, lanes)
    most = max(v for v in range(1, MAX_VECTORS + 1) if v == 1 or (isa.registers - 1 - v) // v >= rows)
    columns = ceil_div(count, most)
    return Product(rows, ceil_div(count, columns), columns, lanes)
