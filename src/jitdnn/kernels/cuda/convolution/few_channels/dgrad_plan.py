"""Tiles of the gradient of the data with few input channels; the terms are explained in dgrad.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice, Launch
from jitdnn.kernels.cuda.convolution.few_channels.geometry import Defines, Shape, strides_of
from jitdnn.kernels.cuda.convolution.few_channels.plan import (
    CACHE_BYTES,
    CLOCK,
    Facts,
    Plan,
    facts_of,
    filter_setup,
    resident_blocks,
    together,
    total_clocks,
)
from jitdnn.problems.convolution import Convolution

_MMA = 1.6
_CHAINED = 33.0  # clocks from one product to the next that adds to its sums
_LETTERS = "DHW"
# warps of a block, down and across, and those that share the channels
_WARPS = (
    *((4, 1, 1), (2, 2, 1), (1, 4, 1), (8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)),
    *((4, 1, 2), (2, 1, 2), (2, 1, 4), (4, 1, 4), (1, 4, 2), (1, 2, 4), (1, 4, 4)),
)


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
    return _best(problem, facts_of(device))


@lru_cache(512)
def _best(problem: Convolution, facts: Facts) -> Plan | None:
    return min(data_plans(problem, facts), key=lambda plan: plan.seconds, default=None)


@dataclass(frozen=True)
class Tiling:
    """What a warp computes and a block stages: see dgrad.cu. `steps` of 16 channels are staged at a time."""

    axes: tuple[Axis, Axis, Axis]
    columns: int
    planes: int
    rows: int
    down: int
    across: int
    deep: int
    steps: int

    @property
    def tiles(self) -> int:
        """Tiles of 8 columns."""
        return -(-self.columns // 8)

    @property
    def warps(self) -> int:
        return self.down * self.across * self.deep

    @property
    def registers(self) -> int:
        d, h, _ = self.axes
        fragments = 2 * min(self.planes, d.reach) * h.reach * self.tiles
        return 4 * self.planes * self.rows * self.tiles + fragments + 56 + 4 * self.tiles

    @property
    def staged_planes(self) -> int:
        return self.planes + self.axes[0].reach - 1

    @property
    def staged_rows(self) -> int:
        h = self.axes[1]
        return h.step * (self.rows * self.down - 1) + h.reach

    @property
    def positions(self) -> int:
        w = self.axes[2]
        return w.step * (16 * self.across - 1) + w.reach

    @property
    def stage_bytes(self) -> int:
        step = self.axes[2].step
        return self.staged_rows * step * -(-self.positions // step) * ((2 * self.steps) | 1) * 16

    def work(self, images: int) -> int:
        """Tiles of blocks."""
        d, h, w = self.axes
        blocks = -(-h.blocks // (self.rows * self.down)) * -(-w.blocks // (16 * self.across))
        return blocks * -(-d.blocks // self.planes) * images

    def clocks(self, steps: int, is_wide: bool) -> float:
        """Clocks of a multiprocessor for a tile: products, stores, and the start of copies."""
        d, h, w = self.axes
        fragments = self.planes * d.reach * 2 * h.reach * self.tiles
        reads = self.staged_planes * 4 * (h.step * (self.rows - 1) + h.reach) + fragments
        products = _MMA * self.planes * d.reach * self.rows * h.reach * self.tiles
        clocks = w.reach * steps * self.down * self.across * together(reads, products, 0.0)
        clocks += self.down * self.across * self.planes * self.rows * self.tiles * 2 * 24 / 4
        clocks += (self.warps * 2 * self.handed / 128 + 200) * (self.deep > 1)
        return clocks + self.staged_planes * self.reads(steps) / 16 / 32 * (3 if is_wide else 80)

    def chain(self, steps: int) -> float:
        """Clocks of the products of a sum, one after the other, and of reading their operands."""
        d, h, w = self.axes
        products = max(
            h.reach * d.reach * _CHAINED, 0.3 * _CHAINED * h.reach * d.reach * self.rows * self.tiles
        )
        return w.reach * steps / self.deep * (products + 35.0 * self.staged_planes)

    @property
    def handed(self) -> int:
        """Bytes of a warp's sums."""
        return 4 * self.planes * self.rows * self.tiles * 128

    def reads(self, steps: int) -> int:
        """Bytes of dy that a plane of a tile takes."""
        return self.staged_rows * self.positions * steps * 32

    @property
    def writes(self) -> int:
        return self.planes * 16 * self.across * self.rows * self.down * self.columns * 2

    def defines(self) -> Defines:
        return {
            "BLOCK_THREADS": self.warps * 32, "TILE_ROWS": self.rows, "TILE_PLANES": self.planes,
            "WARPS_DOWN": self.down, "WARPS_ACROSS": self.across, "WARPS_DEEP": self.deep,
            "CHANNEL_STEPS": self.steps,
            "STEP_H": self.axes[1].step, "STEP_W": self.axes[2].step,
            "UNROLL_STEPS": 2 if self.steps // self.deep % 2 == 0 and self.planes == 1 else 1,
        }  # fmt: skip


def data_plans(problem: Convolution, facts: Facts) -> Iterator[Plan]:
    """Every plan of the data's gradient."""
    multiprocessors, room, rate = facts
    shape = Shape(problem)
    steps = -(-problem.k // 16)
    is_wide = shape.y_vector == 8 and problem.k % 8 == 0
    for tiling in _tilings(shape, steps):
        d, h, w = tiling.axes
        parts = -(-steps // tiling.steps)
        whole = parts * tiling.steps
        part_bytes = d.reach * w.reach * tiling.steps * h.reach * tiling.tiles * 256
        limit = min(255, 65536 // (tiling.warps * 32))
        if tiling.registers > limit or 2 * tiling.steps > tiling.warps * 32:
            continue
        if (tiling.deep - 1) * tiling.down * tiling.across * tiling.handed > tiling.stage_bytes:
            continue
        most = min(4, 16 // tiling.warps if tiling.registers < 110 else limit // tiling.registers)
        work = tiling.work(problem.n)
        compute = tiling.clocks(whole, is_wide)
        # what several blocks read comes from the cache for most of them
        once = 2 * problem.y.size / work
        reading = (once + 0.4 * max(0.0, tiling.staged_planes * tiling.reads(whole) - once)) / rate
        is_large = parts * part_bytes > room // 3
        if tiling.steps == 1 < steps and not is_large:
            continue
        for stages, is_streamed in (
            ((2, False), (1, False), (2, True)) if is_large else ((2, False), (1, False))
        ):
            if is_streamed and parts == 1:
                continue
            stage_bytes = tiling.stage_bytes + (part_bytes if is_streamed else 0)
            shared = stages * stage_bytes + (0 if is_streamed else parts * part_bytes)
            resident = resident_blocks(shared, most, room)
            if not resident:
                continue
            streamed = tiling.staged_planes * parts * part_bytes / CACHE_BYTES if is_streamed else 0.0
            waiting = (tiling.staged_planes * parts - 1) * (150.0 if stages == 2 else 900.0) / resident
            clocks = total_clocks(
                work,
                multiprocessors,
                resident,
                tiling.warps,
                stages,
                max(compute, tiling.chain(whole) / min(resident, -(-work // multiprocessors))) + waiting,
                reading + streamed,
                tiling.writes / rate,
            )
            blocks = min(work, multiprocessors * resident)
            setup, is_packed = filter_setup(
                parts * part_bytes // 8,
                8,
                tiling.warps * 32,
                min(resident, -(-blocks // multiprocessors)),
                4,
                110,
            )
            is_packed = is_packed or is_streamed
            pack = Launch("stem_data_pack", -(-parts * part_bytes // 2048), 256)
            defines = shape.defines() | _axis_defines(tiling.axes) | tiling.defines() | {
                "RESIDENT": resident, "STAGES": stages, "CHANNEL_PARTS": parts, "Y_VECTOR": 8 if is_wide else 1,
                "X_PAIRS": int(_has_pairs(shape, w)), "IS_PACKED": int(is_packed), "IS_STREAMED": int(is_streamed),
            }  # fmt: skip
            yield Plan(
                tuple(defines.items()),
                tiling.warps * 32,
                (blocks, 1),
                shared,
                (clocks + setup) / CLOCK + 3.5e-6,
                workspace=parts * part_bytes if is_packed else 0,
                before=pack if is_packed else None,
            )


def _tilings(shape: Shape, steps: int) -> Iterator[Tiling]:
    d = axis_choice(shape, 0, 1)
    for step_h, step_w in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)):
        h, w = axis_choice(shape, 1, step_h), axis_choice(shape, 2, step_w)
        columns = d.unit * h.unit * w.unit * shape.problem.w.shape[1]
        if columns > (64 if step_h * step_w == 1 else 16):
            continue
        if (step_w > 1 and w.unit > 2 * shape.spatial[2]) or (step_h > 1 and h.unit > 2 * shape.spatial[1]):
            continue
        for planes, rows, (down, across, deep), part in itertools.product(
            (1, 2, 3, 4), (1, 2, 3, 4, 6, 8), _WARPS, sorted({steps, min(steps, 4), min(steps, 2), 1})
        ):
            if deep > 1 and (part % deep or planes * rows > 2):
                continue
            if planes > max(1, 2 * (d.reach - 1)) or planes > d.blocks:
                continue
            if rows * down > 1 and rows * down > 2 * h.blocks:
                continue
            yield Tiling((d, h, w), columns, planes, rows, down, across, deep, part)


def _axis_defines(axes: tuple[Axis, Axis, Axis]) -> Defines:
    names: Defines = {}
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
