"""Tilings of dgrad with few channels: every sensible plan priced in cycles; the terms are explained in dgrad.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.few_channels.cost import (
    START_SECONDS,
    bytes_per_cycle,
    filter_setup,
    overlapped,
    total_cycles,
)
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Products, Tiling
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis, axis_choice
from jitdnn.kernels.cuda.convolution.half_precision.shape import Defines, Shape, strides_of
from jitdnn.kernels.cuda.cost import clock, l2_bytes_per_cycle, most_registers
from jitdnn.problems.convolution import Convolution

_MMA_LATENCY_CYCLES = 33.0  # cycles from one product to the next that adds to its sums
_APART, _APART_OF_F32 = (
    13.5,
    23.0,
)  # cycles to stage a number whose neighbouring channels lie apart, for each lane
_AXES = "DHW"
# warps of a block, down and across, and those that share the channels
_WARPS = (
    *((4, 1, 1), (2, 2, 1), (1, 4, 1), (8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)),
    *((4, 1, 2), (2, 1, 2), (2, 1, 4), (4, 1, 4), (1, 4, 2), (1, 2, 4), (1, 4, 4)),
)


def dgrad_plan(problem: Convolution, device: GpuDevice, count: int = 1) -> Plan | None:
    """The cheapest plan, with `count` products each; None if the filter leaves no room in shared memory."""
    return _best_dgrad(problem, device.facts, count)


@lru_cache(512)
def _best_dgrad(problem: Convolution, facts: GpuFacts, count: int) -> Plan | None:
    return min(dgrad_plans(problem, facts, count), key=lambda plan: plan.seconds, default=None)


def dgrad_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> Iterator[Plan]:
    """Every plan of the data's gradient."""
    multiprocessors, bandwidth = facts.multiprocessors, bytes_per_cycle(facts)
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    piece = 16 // shape.size
    steps = -(-problem.k // (2 * piece))
    is_wide = shape.y_vector == piece and problem.k % piece == 0
    for tiling in _tilings(shape, steps, count):
        d, h, w = tiling.axes
        parts = -(-steps // tiling.steps)
        whole = parts * tiling.steps
        part_bytes = d.reach * w.reach * tiling.steps * h.reach * tiling.tiles * 256
        limit = most_registers(facts, tiling.warps * 32)
        if tiling.registers > limit or 2 * tiling.steps > tiling.warps * 32:
            continue
        if (tiling.split_k_warps - 1) * tiling.down * tiling.across * tiling.sums_bytes > tiling.stage_bytes:
            continue
        most = min(4, 16 // tiling.warps if tiling.registers < 110 else limit // tiling.registers)
        work = tiling.work(problem.n)
        compute = _tile_cycles(tiling, whole, is_wide, products)
        # what several blocks read comes from the cache for most of them
        once = shape.size * problem.y.size / work
        reading = (once + 0.4 * max(0.0, tiling.staged_planes * tiling.reads(whole) - once)) / bandwidth
        is_large = parts * part_bytes > facts.shared_bytes // 3
        if tiling.steps == 1 < steps and not is_large:
            continue
        for stages, is_streamed in (
            ((2, False), (1, False), (2, True)) if is_large else ((2, False), (1, False))
        ):
            if is_streamed and parts == 1:
                continue
            stage_bytes = tiling.stage_bytes + (part_bytes if is_streamed else 0)
            shared = stages * stage_bytes + (0 if is_streamed else parts * part_bytes)
            resident = min(most, facts.resident(shared))
            if not resident:
                continue
            streamed = (
                tiling.staged_planes * parts * part_bytes / l2_bytes_per_cycle(facts) if is_streamed else 0.0
            )
            waiting = (tiling.staged_planes * parts - 1) * (150.0 if stages == 2 else 900.0) / resident
            cycles = total_cycles(
                work,
                multiprocessors,
                resident,
                tiling.warps,
                stages,
                max(compute, _chain_cycles(tiling, whole) / min(resident, -(-work // multiprocessors)))
                + waiting,
                reading + streamed,
                tiling.writes / bandwidth,
            )
            blocks = min(work, multiprocessors * resident)
            setup, is_packed = filter_setup(
                facts,
                parts * part_bytes // 8,
                8,
                tiling.warps * 32,
                min(resident, -(-blocks // multiprocessors)),
                4,
                110,
            )
            is_packed = is_packed or is_streamed
            pack = Launch("few_channels_dgrad_pack", -(-parts * part_bytes // 2048), 256, is_early=True)
            defines = shape.defines() | _axis_defines(tiling.axes) | tiling.defines() | {
                "RESIDENT": resident, "STAGES": stages, "CHANNEL_CHUNKS": parts, "Y_VECTOR": piece if is_wide else 1,
                "X_PAIRS": int(_has_pairs(shape, w)), "IS_PACKED": int(is_packed), "IS_STREAMED": int(is_streamed),
                "PRODUCTS": count,
            }  # fmt: skip
            yield Plan(
                tuple(defines.items()),
                tiling.warps * 32,
                (blocks, 1),
                shared,
                (cycles + setup) / clock(facts) + START_SECONDS,
                workspace=parts * part_bytes if is_packed else 0,
                pack=pack if is_packed else None,
            )


def _tilings(shape: Shape, steps: int, count: int) -> Iterator[Tiling]:
    d = axis_choice(shape, 0, 1)
    for step_h, step_w in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)):
        h, w = axis_choice(shape, 1, step_h), axis_choice(shape, 2, step_w)
        columns = d.unit * h.unit * w.unit * shape.problem.w.shape[1]
        if columns > (64 if step_h * step_w == 1 else 16):
            continue
        if (step_w > 1 and w.unit > 2 * shape.spatial[2]) or (step_h > 1 and h.unit > 2 * shape.spatial[1]):
            continue
        for planes, rows, (down, across, split_k_warps), part in itertools.product(
            (1, 2, 3, 4), (1, 2, 3, 4, 6, 8), _WARPS, sorted({steps, min(steps, 4), min(steps, 2), 1})
        ):
            if split_k_warps > 1 and (part % split_k_warps or planes * rows > 2):
                continue
            if planes > max(1, 2 * (d.reach - 1)) or planes > d.blocks:
                continue
            if rows * down > 1 and rows * down > 2 * h.blocks:
                continue
            yield Tiling(
                (d, h, w), columns, planes, rows, down, across, split_k_warps, part, shape.size, count
            )


def _tile_cycles(tiling: Tiling, steps: int, is_wide: bool, products: Products) -> float:
    """Cycles of a multiprocessor for a tile: products, stores, and issuing copies."""
    d, h, w = tiling.axes
    fragments = tiling.planes * d.reach * 2 * h.reach * tiling.tiles
    reads = tiling.staged_planes * 4 * (h.step * (tiling.rows - 1) + h.reach) + fragments
    many = tiling.planes * d.reach * tiling.rows * h.reach * tiling.tiles
    instructions = products.instructions(reads, many) / 4 if products.is_f32 else 0.0
    step = overlapped(reads, products.cycles(many), instructions)
    cycles = w.reach * steps * tiling.down * tiling.across * step
    cycles += tiling.down * tiling.across * tiling.planes * tiling.rows * tiling.tiles * 2 * 24 / 4
    cycles += (tiling.warps * 2 * tiling.sums_bytes / 128 + 200) * (tiling.split_k_warps > 1)
    apart = _APART_OF_F32 if tiling.size == 4 else _APART
    return cycles + tiling.staged_planes * tiling.reads(steps) / 16 / 32 * (
        3 if is_wide else apart * 16 / tiling.size
    )


def _chain_cycles(tiling: Tiling, steps: int) -> float:
    """Cycles of the dependent products of a sum, and of reading their operands."""
    d, h, w = tiling.axes
    products = max(
        h.reach * d.reach * _MMA_LATENCY_CYCLES,
        0.3 * _MMA_LATENCY_CYCLES * h.reach * d.reach * tiling.rows * tiling.tiles,
    )
    return w.reach * steps / tiling.split_k_warps * (products + 35.0 * tiling.staged_planes)


def _axis_defines(axes: tuple[Axis, Axis, Axis]) -> Defines:
    names: Defines = {}
    for letter, axis in zip(_AXES, axes, strict=True):
        names |= {
            f"UNIT_{letter}": axis.unit, f"DELTA_{letter}": axis.delta, f"LEAD_{letter}": axis.lead,
            f"LEAST_{letter}": axis.least, f"REACH_{letter}": axis.reach, f"BLOCKS_{letter}": axis.blocks,
        }  # fmt: skip
    return names


def _has_pairs(shape: Shape, w: Axis) -> bool:
    """Whether columns 2t and 2t + 1 are one aligned word of dx."""
    channels = shape.problem.w.shape[1]
    n, c, d, h, across = strides_of(shape.problem.x)
    is_dense = (c == 1 or channels == 1) and (across == channels or shape.spatial[2] == 1)
    return is_dense and not any(s % 2 for s in (n, d, h, w.unit * channels, w.delta * channels))
