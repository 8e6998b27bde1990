"""Tiles of the gradient of the data with few input channels; the terms are explained in stem_data.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution_stem_geometry import Shape, strides_of
from jitdnn.kernels.cuda.convolution_stem_plan import CLOCK, Plan, _facts, _resident, _rounds
from jitdnn.problems.convolution import Convolution

_MMA = 1.6
_LETTERS = "DHW"


@dataclass(frozen=True)
class Axis:
    """How `unit` outputs of an axis meet `reach` positions of dy, from `least` on."""

    unit: int
    step: int
    delta: int
    lead: int
    least: int
    reach: int
    blocks: int


def _axis(extent: int, taps: int, stride: int, before: int, step: int, delta: int) -> Axis:
    unit, lead = stride * step, before - delta
    least = -((taps - 1 - lead) // stride)
    most = (unit - 1 + lead) // stride
    return Axis(unit, step, delta, lead, least, most - least + 1, (extent - 1 + delta) // unit + 1)


def axis_choice(shape: Shape, axis: int, step: int) -> Axis:
    """The cheapest shift of an axis; a shift of zero, which keeps pairs of channels aligned, where it costs no more."""
    numbers = shape.spatial[axis], shape.taps[axis], shape.stride[axis], shape.before[axis]
    choices = [_axis(*numbers, step, delta) for delta in range(shape.stride[axis])]
    return min(choices, key=lambda a: (a.reach * -(-a.blocks // 16), a.reach, a.delta))


def data_plan(problem: Convolution, device: GpuDevice) -> Plan | None:
    """The cheapest plan; None if the filter leaves no room in shared memory."""
    return _best(problem, _facts(device))


@lru_cache(512)
def _best(problem: Convolution, facts: tuple[int, int, float]) -> Plan | None:
    return min(_plans(problem, facts), key=lambda plan: plan.seconds, default=None)


def _plans(problem: Convolution, facts: tuple[int, int, float]) -> Iterator[Plan]:
    multiprocessors, room, rate = facts
    shape = Shape(problem)
    channels = problem.w.shape[1]
    steps = -(-problem.k // 16)
    pitch = (2 * steps) | 1
    is_wide = shape.y_vector == 8 and problem.k % 8 == 0
    d, h = axis_choice(shape, 0, 1), axis_choice(shape, 1, 1)
    for step_w in (1, 2, 4, 8):
        w = axis_choice(shape, 2, step_w)
        columns = d.unit * h.unit * w.unit * channels
        tiles = -(-columns // 8)
        filter_bytes = d.reach * w.reach * steps * h.reach * tiles * 256
        if columns > 64 or filter_bytes > room or (step_w > 1 and w.unit > 2 * shape.spatial[2]):
            continue
        for rows, (down, across) in itertools.product(
            (1, 2, 3, 4, 6, 8), ((4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8))
        ):
            registers = 4 * rows * tiles + 2 * h.reach * tiles + 40 + 10 * tiles
            warps = down * across
            limit = min(255, 65536 // (warps * 32))
            if registers > limit or (rows * down > 2 * h.blocks and rows * down > 1):
                continue
            positions = w.step * (16 * across - 1) + w.reach
            sequence = -(-positions // w.step)
            stage = (rows * down + h.reach - 1) * w.step * sequence * pitch * 16
            work = -(-h.blocks // (rows * down)) * -(-w.blocks // (16 * across)) * d.blocks * problem.n
            reads = (rows * down + h.reach - 1) * positions * steps * 32
            writes = 16 * across * rows * down * columns * 2
            inner = max(4 * (rows + h.reach - 1) + 2 * h.reach * tiles, _MMA * rows * h.reach * tiles)
            compute = d.reach * w.reach * steps * warps * inner + warps * rows * tiles * 2 * 60 / 4
            compute += d.reach * reads / 16 / 32 * (4 if is_wide else 80)
            # a plane of dy that several planes of outputs meet comes from the cache
            reading = d.reach * (0.5 * reads + 0.5 * reads / d.reach) / rate
            for stages in (2, 1):
                shared = stages * stage + filter_bytes
                resident = _resident(
                    shared, min(4, 16 // warps if registers < 110 else limit // registers), room
                )
                if not resident:
                    continue
                waiting = (d.reach - 1) * (150.0 if stages == 2 else 900.0 / resident)
                clocks = _rounds(
                    work, multiprocessors, resident, warps, stages, compute + waiting, reading, writes / rate
                )
                blocks = min(work, multiprocessors * resident)
                defines = shape.defines() | _axis_defines((d, h, w)) | {
                    "BLOCK_THREADS": warps * 32, "RESIDENT": resident, "STAGES": stages, "TILE_ROWS": rows,
                    "WARPS_DOWN": down, "WARPS_ACROSS": across, "CHANNEL_STEPS": steps, "STEP_W": w.step,
                    "Y_VECTOR": 8 if is_wide else 1, "X_PAIRS": int(_has_pairs(shape, w)),
                    "UNROLL_STEPS": 2 if steps % 2 == 0 else 1,
                }  # fmt: skip
                yield Plan(tuple(defines.items()), warps * 32, (blocks, 1), shared, clocks / CLOCK + 4e-6)


def _axis_defines(axes: tuple[Axis, Axis, Axis]) -> dict[str, object]:
    names: dict[str, object] = {}
    for letter, axis in zip(_LETTERS, axes, strict=True):
        names |= {
            f"UNIT_{letter}": axis.unit, f"DELTA_{letter}": axis.delta, f"LEAD_{letter}": axis.lead,
            f"LEAST_{letter}": axis.least, f"REACH_{letter}": axis.reach, f"BLOCKS_{letter}": axis.blocks,
        }  # fmt: skip
    return names


def _has_pairs(shape: Shape, w: Axis) -> bool:
    """Whether columns 2t and 2t + 1 lie in one aligned word of dx."""
    channels = shape.problem.w.shape[1]
    n, c, d, h, across = strides_of(shape.problem.x)
    is_dense = (c == 1 or channels == 1) and (across == channels or shape.spatial[2] == 1)
    return is_dense and not any(s % 2 for s in (n, d, h, w.unit * channels, w.delta * channels))
