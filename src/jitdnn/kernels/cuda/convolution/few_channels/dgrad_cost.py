"""Tilings of dgrad with few channels: the cost in cycles of every candidate plan; dgrad.cu explains the terms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import inf

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.few_channels.cost import (
    LATENCY_CYCLES,
    START_SECONDS,
    UNHIDDEN,
    all_plans,
    best_plan,
    bytes_per_cycle,
    filter_setup,
    overlapped,
    total_cycles,
)
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Tiling
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis, axis_choice
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.half_precision.products import HALVES, HEADER_BYTES, Products
from jitdnn.kernels.cuda.convolution.half_precision.shape import Defines, Shape, strides_of
from jitdnn.kernels.cuda.cost import clock, l2_bytes_per_cycle, most_registers
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution

_MMA_LATENCY_CYCLES = 33.0  # cycles from one product to the next that adds to its sums
_APART, _APART_OF_F32 = (
    13.5,
    23.0,
)  # cycles to stage a number whose neighbouring channels lie apart, for each lane
_DIVIDING_CYCLES = 20.0  # of 512 bytes in shared memory into halves
_AXES = "DHW"
# warps of a block, down and across, and those that share the channels
_WARPS = (
    *((4, 1, 1), (2, 2, 1), (1, 4, 1), (8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)),
    *((4, 1, 2), (2, 1, 2), (2, 1, 4), (4, 1, 4), (1, 4, 2), (1, 2, 4), (1, 4, 4)),
)


def dgrad_plan(problem: Convolution, device: GpuDevice, count: int = 1) -> Plan | None:
    """The cheapest plan, with `count` products each; None if the filter leaves no room in shared memory."""
    return best_plan(problem, device.facts, count, _offer)


def dgrad_plans(problem: Convolution, facts: GpuFacts, count: int = 1) -> list[Plan]:
    """Every plan of the data's gradient."""
    return all_plans(problem, facts, count, _offer)


def _offer(problem: Convolution, facts: GpuFacts, count: int, cheapest: Cheapest[Plan]) -> None:
    """Offer all plans that may be the cheapest: those first whose products take the least, however warps share them."""
    shape = Shape(problem)
    products = Products.of(shape, count, facts.mma_cycles)
    steps = _steps(shape, count)
    for least, number, warp in _warps(problem, facts, count):
        if least > cheapest.seconds:
            break
        for at, tiling in enumerate(_tilings(warp, steps)):
            _offer_tiling(shape, tiling, steps, facts, products, (number, at), cheapest)


def least_seconds(problem: Convolution, facts: GpuFacts, count: int = 1) -> float:
    """What no plan comes below; infinite if there is none."""
    return next((least for least, _, _ in _warps(problem, facts, count)), inf)


def _steps(shape: Shape, count: int) -> int:
    """Of channels of dy, by whole operands."""
    steps = -(-shape.problem.k // (32 // shape.size))
    return steps + steps % 2 if count == HALVES else steps


@lru_cache(16)  # for the bound, and then for the plan
def _warps(problem: Convolution, facts: GpuFacts, count: int) -> list[tuple[float, int, Tiling]]:
    """What one warp may compute: seconds that no plan of such warps comes below, its number, it; the quickest first."""
    shape = Shape(problem)
    products, steps = Products.of(shape, count, facts.mma_cycles), _steps(shape, count)
    found = [
        (_least_seconds(shape, warp, steps, facts, products), number, warp)
        for number, warp in enumerate(_warp_tiles(shape, steps, count))
    ]
    return sorted(found, key=lambda one: one[:2])


def _offer_tiling(
    shape: Shape, tiling: Tiling, steps: int, facts: GpuFacts, products: Products, order: tuple[int, int],
    cheapest: Cheapest[Plan],
) -> None:  # fmt: skip
    """Offer the plans of a tiling, with one stage and two, and the filter in shared memory or streamed."""
    problem, rate = shape.problem, clock(facts)
    multiprocessors, bandwidth = facts.multiprocessors, bytes_per_cycle(facts)
    d, h, w = tiling.axes
    parts = -(-steps // tiling.steps)
    whole = parts * tiling.steps
    part_bytes = d.reach * w.reach * tiling.steps * h.reach * tiling.tiles * 256
    limit = most_registers(facts, tiling.warps * 32)
    if tiling.registers > limit or 2 * tiling.steps > tiling.warps * 32:
        return
    is_large = parts * part_bytes > facts.shared_bytes // 3
    if tiling.steps == 1 < steps and not is_large:
        return
    if (tiling.split_k_warps - 1) * tiling.down * tiling.across * tiling.sums_bytes > tiling.stage_bytes:
        return
    most = min(4, 16 // tiling.warps if tiling.registers < 110 else limit // tiling.registers)
    work = tiling.work(problem.n)
    is_wide = _is_wide(shape)
    compute = _tile_cycles(tiling, whole, is_wide, products)
    # what several blocks read comes from the cache for most of them
    once = shape.size * problem.y.size / work
    reading = (once + 0.4 * max(0.0, tiling.staged_planes * tiling.reads(whole) - once)) / bandwidth
    writing = tiling.writes / bandwidth
    if _seconds_of(work * compute, work * (reading + writing), facts) > cheapest.seconds:
        return
    chain = _chain_cycles(tiling, whole)
    for stages, is_streamed in ((2, False), (1, False), (2, True)) if is_large else ((2, False), (1, False)):
        if is_streamed and parts == 1:
            continue
        stage_bytes = tiling.stage_bytes + (part_bytes if is_streamed else 0)
        shared = stages * stage_bytes + (0 if is_streamed else parts * part_bytes)
        found = 8 * tiling.warps * (tiling.products == HALVES)  # what most_of_block has of each warp
        resident = min(most, facts.resident(shared + found))
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
            max(compute, chain / min(resident, -(-work // multiprocessors))) + waiting,
            reading + streamed,
            writing,
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
        is_packed = is_packed or is_streamed or tiling.products == HALVES
        seconds = (cycles + setup) / rate + START_SECONDS
        made = partial(
            _plan,
            shape,
            tiling,
            resident,
            stages,
            parts,
            part_bytes,
            is_packed,
            is_streamed,
            blocks,
            shared,
            seconds,
        )
        cheapest.offer(seconds, (*order, -stages, is_streamed), made)


def _least_seconds(shape: Shape, warp: Tiling, steps: int, facts: GpuFacts, products: Products) -> float:
    """What no plan of such warps comes below, whatever their number."""
    _, h, w = warp.axes
    work, of_y = warp.least_work(shape.problem.n), shape.size * shape.problem.y.size
    staged = warp.staged_planes * _staged(h, warp.rows) * _staged(w, 16) * steps * 32
    compute = _product_cycles(warp, steps, products) + _store_cycles(warp)
    compute += _copy_cycles(staged, shape.size, _is_wide(shape))
    read = max(of_y, 0.6 * of_y + 0.4 * work * staged)
    return _seconds_of(work * compute, (read + work * warp.writes) / bytes_per_cycle(facts), facts)


def _staged(axis: Axis, blocks: int) -> float:
    """Positions along an axis that are staged for a warp of so many blocks, at least, whatever warps share some."""
    most = blocks * max(max(warps) for warps in _WARPS)
    return blocks * min((axis.step * (count - 1) + axis.reach) / count for count in (blocks, most))


def _seconds_of(compute: float, memory: float, facts: GpuFacts) -> float:
    """Of so many cycles in all, if nothing waits."""
    cycles = (max(compute, memory) + UNHIDDEN * min(compute, memory)) / facts.multiprocessors + LATENCY_CYCLES
    return (cycles / clock(facts) + START_SECONDS) * ROUNDED


def _plan(
    shape: Shape, tiling: Tiling, resident: int, stages: int, parts: int, part_bytes: int, is_packed: bool,
    is_streamed: bool, blocks: int, shared: int, seconds: float,
) -> Plan:  # fmt: skip
    pack = Launch("few_channels_dgrad_pack", -(-parts * part_bytes // 2048), 256, is_early=True)
    defines = shape.defines() | _axis_defines(tiling.axes) | tiling.defines() | {
        "RESIDENT": resident, "STAGES": stages, "CHANNEL_CHUNKS": parts,
        "Y_VECTOR": 16 // shape.size if _is_wide(shape) else 1,
        "X_PAIRS": int(_has_pairs(shape, tiling.axes[2])), "IS_PACKED": int(is_packed), "IS_STREAMED": int(is_streamed),
        "PRODUCTS": tiling.products,
    }  # fmt: skip
    return Plan(
        tuple(defines.items()),
        tiling.warps * 32,
        (blocks, 1),
        shared,
        seconds,
        workspace=parts * part_bytes + HEADER_BYTES * (tiling.products == HALVES) if is_packed else 0,
        pack=pack if is_packed else None,
    )


def _is_wide(shape: Shape) -> bool:
    """Whether 16 bytes of channels of dy are copied at once."""
    piece = 16 // shape.size
    return shape.y_vector == piece and shape.problem.k % piece == 0


def _warp_tiles(shape: Shape, steps: int, count: int) -> Iterator[Tiling]:
    """What one warp may compute, which has all channels."""
    d = axis_choice(shape, 0, 1)
    for step_h, step_w in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)):
        h, w = axis_choice(shape, 1, step_h), axis_choice(shape, 2, step_w)
        columns = d.unit * h.unit * w.unit * shape.problem.w.shape[1]
        if columns > (64 if step_h * step_w == 1 else 16):
            continue
        if (step_w > 1 and w.unit > 2 * shape.spatial[2]) or (step_h > 1 and h.unit > 2 * shape.spatial[1]):
            continue
        for planes, rows in itertools.product((1, 2, 3, 4), (1, 2, 3, 4, 6, 8)):
            if planes > max(1, 2 * (d.reach - 1)) or planes > d.blocks or rows > max(1, 2 * h.blocks):
                continue
            yield Tiling((d, h, w), columns, planes, rows, 1, 1, 1, steps, shape.size, count)


def _tilings(warp: Tiling, steps: int) -> Iterator[Tiling]:
    """What several such warps compute, with all channels staged at a time or some."""
    h = warp.axes[1]
    parts = sorted({steps, min(steps, 4), min(steps, 2), 1})
    together = 2 if warp.products == HALVES else 1
    for (down, across, split_k_warps), part in itertools.product(_WARPS, parts):
        if part % together:
            continue
        if split_k_warps > 1 and (part // together % split_k_warps or warp.planes * warp.rows > 2):
            continue
        if warp.rows * down > 1 and warp.rows * down > 2 * h.blocks:
            continue
        yield replace(warp, down=down, across=across, split_k_warps=split_k_warps, steps=part)


def _tile_cycles(tiling: Tiling, steps: int, is_wide: bool, products: Products) -> float:
    """Cycles of a multiprocessor for a tile: products, stores, and issuing copies."""
    cycles = _product_cycles(tiling, steps, products) + _store_cycles(tiling)
    cycles += (tiling.warps * 2 * tiling.sums_bytes / 128 + 200) * (tiling.split_k_warps > 1)
    staged = tiling.staged_planes * tiling.reads(steps)
    if tiling.products == HALVES:
        cycles += _DIVIDING_CYCLES * staged / 512
    return cycles + _copy_cycles(staged, tiling.size, is_wide)


def _store_cycles(tiling: Tiling) -> float:
    return tiling.down * tiling.across * tiling.planes * tiling.rows * tiling.tiles * 2 * 24 / 4


def _copy_cycles(staged: float, size: int, is_wide: bool) -> float:
    """Of copying so many bytes into shared memory, elements of `size` bytes one by one unless `is_wide`."""
    apart = _APART_OF_F32 if size == 4 else _APART
    return staged / 16 / 32 * (3 if is_wide else apart * 16 / size)


def _product_cycles(tiling: Tiling, steps: int, products: Products) -> float:
    """Of them those of products."""
    d, h, w = tiling.axes
    fragments = tiling.planes * d.reach * 2 * h.reach * tiling.tiles
    reads = tiling.staged_planes * 4 * (h.step * (tiling.rows - 1) + h.reach) + fragments
    many = tiling.planes * d.reach * tiling.rows * h.reach * tiling.tiles
    instructions = products.instructions(reads, many) / 4 if products.is_f32 else 0.0
    step = overlapped(reads, products.cycles(many), instructions)
    return w.reach * steps * tiling.down * tiling.across * step


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
