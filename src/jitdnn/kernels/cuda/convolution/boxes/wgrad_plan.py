"""The plan of a wgrad with box tiles, boxes of pixels that all taps share. See the drawing in wgrad.cu."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.devices.tensor_map import Tables
from jitdnn.kernels.cuda.convolution.boxes.common import (
    AMONG_OTHERS,
    BARRIER_BYTES,
    CHANNELS,
    MOST_BOX,
    NOT_DIRECT,
    ROW,
    Three,
    box_map,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand
from jitdnn.kernels.cuda.cost import gemm_clock, l2_bandwidth
from jitdnn.kernels.cuda.gemm.plan import three
from jitdnn.problems.convolution import Convolution

_MOST_REGISTERS = 192
"""Of a consumer's thread, for sums."""
_LEAST_STAGES, _MAX_STAGES = 3, 6
_MOST_SUMS = 4 * 2**31  # which are added up by four
_MOST_STEPS = 24
"""Of 16 pixels in a stage, all of which stand in the text."""
_WIDTHS = (16, 32, 48, 64, 96, 128)
_DEPTHS = (1, 2, 3, 4, 6, 8)

# the cost model, fitted to some 60 times of 18 layers on an H200
_EFFICIENCY = 0.95  # of the tensor cores, where nothing else is the limit
_ROW_CYCLES = 1.9  # of the copy engine for a row of a stage
_BOX_CYCLES = 220.0  # of the same for the boxes of a stage
_STAGE_CYCLES = 50.0  # of a stage beside its products
_ARRIVAL_CYCLES = 1450.0  # until the rows of a stage begin to come
_ARRIVING_BYTES = 45.0  # of a stage in a cycle
_START_CYCLES = 4500.0
_LAUNCHES, _PAIR = 4.6e-6, 0.35e-6
"""Seconds of both launches, without the sums that they move, and more for each further pair of blocks of channels."""
_MEMORY_SHARE = 0.86  # of the bandwidth of copies
_PARTS_SHARE = 2.0  # of that of L2, which has most sums


@dataclass(frozen=True)
class Box:
    """Pixels along d, h and w that a stage has, and how many stages there are."""

    d: int
    h: int
    w: int
    stages: int = 1


@dataclass(frozen=True)
class Plan:
    """`consumers`: warpgroups that multiply. `pairs`: of blocks of 32 channels of x and of dy. `parts`: thread blocks
    that share the boxes of each. `sets`: of 64 rows by `columns` sums of a thread block."""

    box: Box
    taps: Three
    dilation: Three
    consumers: int
    sets: int
    columns: int
    pairs: int
    parts: int
    shared: int
    seconds: float
    tables: Tables

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def part_sums(self) -> int:
        """Of a thread block."""
        return self.sets * 64 * self.columns

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * self.parts * self.pairs * self.part_sums


@dataclass(frozen=True)
class Layer:
    """A filter's gradient of three axes of space, those that the problem lacks in front, of extent 1."""

    spatial: Three
    out: Three
    taps: Three
    dilation: Three
    before: Three

    @staticmethod
    def of(problem: Convolution) -> Layer:
        taps = three(problem.filter_spatial, 1)
        dilation = tuple(
            n if count > 1 else 1 for n, count in zip(three(problem.dilation, 1), taps, strict=True)
        )
        return Layer(
            three(problem.spatial, 1), three(problem.output_spatial, 1), taps, three(dilation, 1),
            three([side for side, _ in problem.padding], 0),
        )  # fmt: skip

    @property
    def sets(self) -> int:
        return -(-self.taps[0] * self.taps[1] // 2)

    @property
    def columns(self) -> int:
        return CHANNELS * self.taps[2]

    @property
    def consumers(self) -> int:
        return min(2, self.sets)

    @property
    def registers(self) -> int:
        """Of a consumer's thread, for its sums."""
        return -(-self.sets // self.consumers) * self.columns // 2

    def rows(self, box: Box) -> int:
        """Of shared memory, that a stage has."""
        deep, down = (
            n + (taps - 1) * dilation
            for n, taps, dilation in zip((box.d, box.h), self.taps, self.dilation, strict=False)
        )
        return deep * down * box.w + box.d * box.h * (box.w + self.more)

    @property
    def more(self) -> int:
        """Pixels of x behind those of a line."""
        return -(-(self.taps[2] - 1) * self.dilation[2] // 8) * 8

    def shared(self, box: Box) -> int:
        """Bytes of shared memory, with room behind the last line of x as if the columns of a product lay side by side:
        compute-sanitizer takes them to, whose blocks are a few rows apart, and ends the launch where they would not
        fit.
        """
        room = max(0, self.columns * 32 - (16 + self.more) * ROW)
        return box.stages * (self.stage_bytes(box) + BARRIER_BYTES) + room

    def stage_bytes(self, box: Box) -> int:
        return -(-self.rows(box) * ROW // 1024) * 1024

    def counts(self, box: Box) -> Three:
        """Boxes of an image, along each axis."""
        return -(-self.spatial[0] // box.d), -(-self.spatial[1] // box.h), -(-self.out[2] // box.w)

    def boxes(self, shared_bytes: int) -> Iterator[Box]:
        """Those worth estimating."""
        for w in _WIDTHS:
            if w - 16 >= self.out[2] and w > _WIDTHS[0]:
                continue
            for h in _DEPTHS:
                for d in _DEPTHS:
                    if (h > 1 and h // 2 >= self.spatial[1]) or (d > 1 and d // 2 >= self.spatial[0]):
                        continue
                    box = Box(d, h, w)
                    if d * h * w > 16 * _MOST_STEPS:
                        continue
                    halo = (
                        d + (self.taps[0] - 1) * self.dilation[0],
                        h + (self.taps[1] - 1) * self.dilation[1],
                        w + (self.taps[2] - 1) * self.dilation[2] + 8,
                    )
                    room = shared_bytes - self.shared(replace(box, stages=0))
                    stages = min(_MAX_STAGES, room // (self.stage_bytes(box) + BARRIER_BYTES))
                    if stages >= _LEAST_STAGES and max(halo) <= MOST_BOX:
                        yield replace(box, stages=stages)


def stage_cycles(layer: Layer, box: Box, facts: GpuFacts) -> float:
    """Cycles of a box: products, the path to shared memory, or the copy engine, whichever takes longest."""
    products = layer.sets * box.d * box.h * box.w // 16
    rows = layer.rows(box)
    multiplied = products * layer.columns / 2 / _EFFICIENCY
    shared = (products * (64 + layer.columns) * 32 + rows * ROW) / facts.shared_bytes_per_cycle
    copied = rows * _ROW_CYCLES + _BOX_CYCLES
    copied = max(copied, (copied + _ARRIVAL_CYCLES) / (box.stages - 1), rows * ROW / _ARRIVING_BYTES)
    return max(multiplied, shared, copied) + _STAGE_CYCLES


@lru_cache(512)
def plan_of(problem: Convolution, device: GpuDevice, boxes: tuple[Box, ...] = ()) -> Plan | str:
    """The fastest plan by the model, of these boxes if there are any, or why there is none."""
    layer, facts = Layer.of(problem), device.facts
    if max(problem.stride) > 1:
        return f"strides {problem.stride}: boxes of x and of dy have the same pixels where strides are 1"
    if problem.groups > 1:
        return f"{problem.groups} groups: blocks of {CHANNELS} channels are of one"
    if layer.columns > 256 or layer.registers > _MOST_REGISTERS:
        return (
            f"{math.prod(layer.taps)} taps: the sums of {CHANNELS} by {CHANNELS} channels of all are to fit into the"
            f" registers of a thread block, of up to 8 taps along the last axis and"
            f" {4 * (_MOST_REGISTERS // (layer.columns // 2))} along the others"
        )
    blocks_of_x, blocks_of_dy = -(-problem.c // CHANNELS), -(-problem.k // CHANNELS)
    pairs = blocks_of_x * blocks_of_dy
    sums = pairs * layer.sets * 64 * layer.columns
    if sums >= _MOST_SUMS:
        return f"{sums} sums of all blocks of {CHANNELS} by {CHANNELS} channels: at most {_MOST_SUMS} are counted"
    x, dy = Operand.of(problem.x, 0), Operand.of(problem.y, 1)
    if not (x.is_direct and dy.is_direct):
        return NOT_DIRECT.format("x and dy")
    best: tuple[float, Box, int] | None = None
    for box in boxes or layer.boxes(facts.shared_bytes):
        count = problem.n * math.prod(layer.counts(box))
        parts = max(1, min(device.multiprocessors // pairs, count))
        waves = -(-pairs * parts // device.multiprocessors)
        cycles = waves * (_START_CYCLES + -(-count // parts) * stage_cycles(layer, box, facts))
        if best is None or cycles < best[0]:
            best = cycles, box, parts
    if best is None:
        return f"no box fits into the shared memory of the device {_LEAST_STAGES} times"
    cycles, box, parts = best
    counts = layer.counts(box)
    part_bytes = 4 * parts * pairs * layer.sets * 64 * layer.columns
    moved = sum(operand.descriptor.nbytes for operand in problem.inputs)
    seconds = max(cycles / gemm_clock(facts), moved / (_MEMORY_SHARE * device.bandwidth))
    seconds += _LAUNCHES + _PAIR * (pairs - 1)
    seconds += part_bytes / (_PARTS_SHARE * l2_bandwidth(facts))
    more = -(-(layer.taps[2] - 1) * layer.dilation[2] // 8) * 8
    maps = (
        box_map(x, (box.w + more, box.h, box.d)),
        box_map(
            dy,
            (
                box.w, box.h + (layer.taps[1] - 1) * layer.dilation[1], box.d + (layer.taps[0] - 1) * layer.dilation[0],
            ),
        ),
    )  # fmt: skip
    k, c, *taps = problem.w.strides
    sign = -1 if problem.mode == "convolution" else 1
    first = sum((n - 1) * s for n, s in zip(problem.filter_spatial, taps, strict=True)) if sign < 0 else 0
    numbers = (
        problem.n * math.prod(counts), parts, blocks_of_x, *counts, *layer.before, problem.c, problem.k, pairs,
        first, *three([sign * s for s in taps], 0), k, c,
    )  # fmt: skip
    return Plan(
        box, layer.taps, layer.dilation, layer.consumers, layer.sets, layer.columns, pairs, parts,
        layer.shared(box), AMONG_OTHERS * seconds, Tables(maps, numbers),
    )  # fmt: skip
