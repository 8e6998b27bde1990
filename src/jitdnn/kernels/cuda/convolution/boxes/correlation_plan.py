"""The plan of an fprop or dgrad with box tiles whose thread blocks advance along d. See correlation.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT, Tables
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
from jitdnn.kernels.cuda.convolution.boxes.sums import Summing
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand, filter_map
from jitdnn.kernels.cuda.cost import gemm_clock
from jitdnn.kernels.cuda.gemm.plan import three
from jitdnn.problems.convolution import Convolution

_MOST_COLUMNS, _MOST_GROUP = 128, 256
"""Channels of the result; columns of a product, which has some of them of all taps along d."""
_MOST_SUMS = {2: 160, 3: 96}
"""Registers of a thread for sums, by consumers."""
_MORE_SUMS = 16  # where results are summed by channel, for what is kept for that
_LEAST_STAGES, _MAX_STAGES = 3, 8
_MOST_WORKS = 2**31
_NO_ROOM = (
    "filter and {} planes of pixels do not fit into shared memory, or channels of the result for all taps along d"
    " are more than {}"
)

# the cost model, fitted to some 90 times of 20 layers on an H200
_ROW_CYCLES, _BOX_CYCLES = 1.9, 220.0  # of the copy engine for a row of a stage, and for its box
_ARRIVAL_CYCLES = 1450.0  # until the rows of a stage begin to come
_ARRIVING_BYTES = 45.0  # of a stage in a cycle
_STORE_CYCLES, _RESULT_CYCLES = 350.0, 0.12
"""Of a consumer from its products of a position to those of the next, and for each of its results."""
_UNHIDDEN = 0.5  # of these, the share in which nobody multiplies: consumers wait for the same stages
_RUN_CYCLES = 900.0  # of finding a column of boxes, where each has one position
_FEW_STAGES = {3: 1.1, 4: 1.06, 5: 1.04}  # factors
_LONG_PATCHES = 1.1  # factor on patches of 1 x 64
_START_CYCLES = 5000.0
_LAUNCH = 2.0e-6
_PART = 0.05e-6  # of sums by channel, for each that a thread adds up
_MEMORY_SHARE = 0.86  # of the bandwidth of copies


@dataclass(frozen=True)
class Box:
    """Results of a position along d, and stages.

    `patches` for each of the consumers, side by side along w, of `patch_h` x 64 / `patch_h` results. Where these are
    1 x 64, of a layer of one or two axes, d is the axis in front of the last one. A thread block has `columns` channels
    of the result.
    """

    consumers: int
    patches: int
    stages: int = 1
    patch_h: int = 8
    columns: int = CHANNELS

    @property
    def w(self) -> int:
        return 64 // self.patch_h * self.consumers * self.patches

    @property
    def results(self) -> int:
        return self.patch_h * self.w

    @property
    def sum_bytes(self) -> int:
        """Of sums by channel of all warps."""
        return self.consumers * 4 * 2 * self.columns * 4


@dataclass(frozen=True)
class Layer:
    """A convolution without strides from `inner` channels of the data to `outer` of the result, along three axes."""

    data: Operand
    weights: Operand
    results: Three
    taps: Three
    dilation: Three
    base: Three
    first_tap: Three
    tap_step: Three
    inner: int
    outer: int
    is_across: bool
    patch_h: int = 8

    @staticmethod
    def of(problem: Convolution) -> Layer:
        is_forward = problem.direction == "fwd"
        taps = three(problem.filter_spatial, 1)
        dilation = three(problem.dilation, 1)
        before = three([side for side, _ in problem.padding], 0)
        reach = [(n - 1) * d for n, d in zip(taps, dilation, strict=True)]
        base = [-b if is_forward else b - r for b, r in zip(before, reach, strict=True)]
        # a forward correlation reads taps as they come, a data gradient from the last one on
        rises = is_forward != (problem.mode == "convolution")
        return Layer(
            Operand.of(problem.x if is_forward else problem.y, 0), Operand.of(problem.w, 1),
            three(problem.output_spatial if is_forward else problem.spatial, 1), taps, dilation, three(base, 0),
            three([0 if rises else n - 1 for n in taps], 0), (1, 1, 1) if rises else (-1, -1, -1),
            problem.c if is_forward else problem.k, problem.k if is_forward else problem.c, not is_forward,
        )  # fmt: skip

    @property
    def turned(self) -> Layer | None:
        """The same with the axis in front of the last one as d, in patches of 1 x 64; None where there are three."""
        if self.results[0] > 1 or self.taps[0] > 1 or self.data.extents[0] > 1:
            return None

        def turn(three_: Three) -> Three:
            a, b, c = three_
            return b, a, c

        data, weights = (
            replace(one, extents=turn(one.extents), space=turn(one.space))
            for one in (self.data, self.weights)
        )
        return Layer(
            data, weights, turn(self.results), turn(self.taps), turn(self.dilation), turn(self.base),
            turn(self.first_tap), turn(self.tap_step), self.inner, self.outer, self.is_across, 1,
        )  # fmt: skip

    @property
    def blocks(self) -> int:
        return -(-self.inner // CHANNELS)

    def filter_bytes(self, box: Box) -> int:
        """Of the filter's part that a thread block keeps."""
        return math.prod(self.taps) * self.blocks * box.columns * ROW

    def group(self, box: Box) -> int:
        """Columns of a product."""
        return self.taps[0] * box.columns

    def tiles(self, box: Box) -> int:
        """Parts of the channels of the result."""
        return -(-self.outer // box.columns)

    @property
    def positions(self) -> int:
        """Along d, of results that are the dilation apart."""
        return -(-self.results[0] // self.dilation[0])

    def halo(self, box: Box) -> tuple[int, int]:
        """Pixels of a stage along h and w."""
        h, w = (
            n + (taps - 1) * dilation
            for n, taps, dilation in zip((self.patch_h, box.w), self.taps[1:], self.dilation[1:], strict=True)
        )
        return h, w

    def stage_bytes(self, box: Box) -> int:
        return -(-math.prod(self.halo(box)) * ROW // 1024) * 1024

    def counts(self, box: Box) -> tuple[int, int]:
        """Boxes of an image, along h and w."""
        return -(-self.results[1] // self.patch_h), -(-self.results[2] // box.w)

    def works(self, box: Box, images: int) -> int:
        """Positions along d of all columns of boxes."""
        return images * math.prod(self.counts(box)) * self.dilation[0] * self.positions

    def shared(self, box: Box) -> int:
        return self.filter_bytes(box) + box.stages * (self.stage_bytes(box) + BARRIER_BYTES) + BARRIER_BYTES

    def boxes(self, shared_bytes: int, summing: Summing | None = None) -> Iterator[Box]:
        """Those worth estimating; `summing`: by channel, as results leave."""
        widest = -(-self.outer // CHANNELS) * CHANNELS
        for columns in range(CHANNELS, min(widest, _MOST_GROUP // self.taps[0]) + 1, CHANNELS):
            if widest % columns:
                continue
            for consumers, patches in itertools.product((2, 3), (1, 2, 3, 4)):
                box = Box(consumers, patches, 1, self.patch_h, columns)
                registers, most = patches * self.group(box) // 2, _MOST_SUMS[consumers]
                if summing is not None:
                    registers += columns // 4 * (2 + summing.numbers + summing.has_beside * patches)
                    most += _MORE_SUMS
                if registers > most or max(self.halo(box)) > MOST_BOX:
                    continue
                room = shared_bytes - self.filter_bytes(box) - BARRIER_BYTES
                room -= 0 if summing is None else box.sum_bytes
                stages = min(_MAX_STAGES, room // (self.stage_bytes(box) + BARRIER_BYTES))
                if stages >= _LEAST_STAGES:
                    yield replace(box, stages=stages)


def cycles_of(layer: Layer, box: Box, images: int, device: GpuDevice) -> float:
    """Cycles of the launch: products, the path to shared memory, or the copy engine, whichever takes longest."""
    products = 2 * layer.taps[1] * layer.taps[2] * box.results // 64  # of a stage
    rows, group = math.prod(layer.halo(box)), layer.group(box)
    path = (products * (64 + group) * 32 + rows * ROW) / device.facts.shared_bytes_per_cycle
    multiplied = max(products * group / 2, path)
    copied = rows * _ROW_CYCLES + _BOX_CYCLES
    copied = max(copied, (copied + _ARRIVAL_CYCLES) / (box.stages - 1), rows * ROW / _ARRIVING_BYTES)
    stored = _STORE_CYCLES + box.results // box.consumers * box.columns * _RESULT_CYCLES
    position = layer.blocks * max(multiplied, copied)
    position = max(position, layer.blocks * multiplied / box.consumers + stored) + _UNHIDDEN * stored
    if layer.positions == 1:
        position += _RUN_CYCLES
    if box.patch_h == 1:
        position *= _LONG_PATCHES
    works = layer.works(box, images)
    share = -(-works // min(works, max(1, device.multiprocessors // layer.tiles(box))))
    runs = 1 + share / layer.positions  # of a thread block, about, each of which has some positions more
    positions = share + runs * (layer.taps[0] - 1)
    return _START_CYCLES + positions * position * _FEW_STAGES.get(box.stages, 1.0)


@dataclass(frozen=True)
class Plan:
    """`thread_blocks`: that share the boxes."""

    layer: Layer
    box: Box
    thread_blocks: int
    seconds: float
    tables: Tables
    workspace: int = 0
    summing: Summing | None = None

    @property
    def threads(self) -> int:
        return 128 * (self.box.consumers + 1)

    @property
    def shared(self) -> int:
        return self.layer.shared(self.box) + (self.box.sum_bytes if self.summing else 0)


@lru_cache(512)
def plan_of(
    problem: Convolution, device: GpuDevice, boxes: tuple[Box, ...] = (), summing: Summing | None = None
) -> Plan | str:
    """The fastest plan by the model, of these boxes if there are any, or why there is none. `summing`: by channel."""
    layer, facts = Layer.of(problem), device.facts
    result = problem.output
    if max(problem.stride) > 1:
        return f"strides {problem.stride}: taps share boxes of pixels where strides are 1"
    if problem.groups > 1:
        return f"{problem.groups} groups: blocks of {CHANNELS} channels are of one"
    if layer.outer > _MOST_COLUMNS:
        return f"{layer.outer} channels of the result: more than {_MOST_COLUMNS} read the data too often"
    if not (layer.data.is_direct and layer.weights.is_direct):
        return NOT_DIRECT.format("data and filter")
    own = Operand.of(result, 2)
    steps = [own.image, *own.space]
    if own.channel != 1 or any(n * own.size % ALIGNMENT for n in (own.channels, *steps)):
        return "results leave by 16 bytes of channels, which are to be innermost and multiples of 8"
    best: tuple[float, Layer, Box] | None = None
    layers = [one for one in (layer, layer.turned) if one]
    of_layers = [
        (one, box)
        for one in layers
        for box in boxes or one.boxes(facts.shared_bytes, summing)
        if box.patch_h == one.patch_h
    ]
    for layer, box in of_layers:  # the same in another order of axes
        cycles = cycles_of(layer, box, problem.n, device)
        if best is None or cycles < best[0]:
            best = cycles, layer, box
    if best is None:
        return _NO_ROOM.format(_LEAST_STAGES, _MOST_GROUP)
    cycles, layer, box = best
    works = layer.works(box, problem.n)
    if works >= _MOST_WORKS:
        return f"{works} boxes: at most {_MOST_WORKS} are counted"
    moved = sum(operand.descriptor.nbytes for operand in problem.inputs) + result.nbytes
    if summing is not None and summing.has_beside:
        moved += result.nbytes
    seconds = max(cycles / gemm_clock(facts), moved / (_MEMORY_SHARE * device.bandwidth)) + _LAUNCH
    h, w = layer.halo(box)
    a, b, c = own.space
    space = (a, b, c) if layer.patch_h > 1 else (b, a, c)
    maps = (
        box_map(layer.data, (w, h, 1)),
        filter_map(layer.weights, CHANNELS, CHANNELS if layer.is_across else box.columns),
    )
    numbers: tuple[int, ...] = (
        layer.positions, layer.blocks, works, *layer.counts(box), *layer.base, *layer.results, layer.outer,
        layer.tiles(box), *layer.first_tap, *layer.tap_step, own.image, *space,
    )  # fmt: skip
    tiles = layer.tiles(box)
    sharers = min(works, max(1, device.multiprocessors // tiles))
    workspace = 0
    if summing is not None:
        numbers += summing.tables(problem.n, sharers, layer.patch_h == 1)
        parts = (sharers + problem.n) * box.consumers
        workspace = parts * 2 * box.columns * tiles * 4
        seconds += _LAUNCH + parts / 32 * _PART
    return Plan(
        layer, box, tiles * sharers, AMONG_OTHERS * seconds, Tables(maps, numbers), workspace, summing
    )
