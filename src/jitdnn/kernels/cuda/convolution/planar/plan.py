"""Contiguous planes that are copied to shared memory as one run: the sizes of a thread block, and its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window, lower
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import resident_blocks
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest, by_bound
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, MEMORY_LATENCY, depthwise_clock
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor
from jitdnn.tensor.dtypes import DTYPES

MAX_CHANNELS = 32
"""Of a group, on either side."""
_COPY_BYTES = 16
_MOST_STAGE = 200 << 10  # bytes of a thread block
_MOST_PRODUCTS = 1200  # of a thread and channel of the input, all of them unrolled
_MOST_REGISTERS = 200
_EXTRA_REGISTERS = 28
_GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_TILES_OUT = (1, 2, 3, 4, 6, 8)
_STRIPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_THREADS = (64, 128, 256)


@dataclass(frozen=True)
class Plan:
    """A problem whose planes lie one behind the other.

    A thread block of `threads` has `groups` groups of channels, a thread columns of `strip` results in `tile_out`
    channels.
    """

    problem: Convolution
    window: Window
    groups: int
    tile_out: int
    strip: int
    threads: int
    facts: GpuFacts

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        return self.window.axes

    @property
    def element(self) -> int:
        return DTYPES[self.window.dtype]

    @property
    def group_in(self) -> int:
        """Channels of the input in a group."""
        return self.window.input.shape[1] // self.problem.groups

    @property
    def group_out(self) -> int:
        """Channels of the result in a group."""
        return self.window.output.shape[1] // self.problem.groups

    @property
    def run(self) -> int:
        """Bytes that a thread block copies."""
        _, height, width = self.axes
        return self.groups * self.group_in * height.input.extent * width.input.extent * self.element

    @property
    def shared(self) -> int:
        return _whole_copies(self.run)

    @property
    def is_aligned(self) -> bool:
        """Whether the run of each thread block begins at a multiple of 16 bytes where x does."""
        return self.run % _COPY_BYTES == 0

    @property
    def grid_blocks(self) -> int:
        return math.ceil(self.window.n * self.problem.groups / self.groups)

    @property
    def items(self) -> int:
        """Columns of results of a thread block, of which a thread has one after the other."""
        _, height, width = self.axes
        tiles = math.ceil(self.group_out / self.tile_out)
        return self.groups * tiles * math.ceil(height.count / self.strip) * width.count

    @property
    def reads(self) -> int:
        """Elements of a channel of the input that a thread reads."""
        return ((self.strip - 1) * self.axes[1].stride + self.axes[1].taps) * self.axes[2].taps

    @property
    def registers(self) -> int:
        numbers = self.tile_out * (self.window.taps + self.strip)
        return numbers + 2 * self.axes[2].taps + _EXTRA_REGISTERS

    @property
    def resident(self) -> int:
        """Thread blocks that a multiprocessor has at a time."""
        by_registers = resident_blocks(self.facts, self.registers, self.threads)
        return max(1, min(by_registers, self.facts.resident(self.shared)))


def _whole_copies(run: int) -> int:
    """Bytes of shared memory that a run of so many takes."""
    return math.ceil(run / _COPY_BYTES) * _COPY_BYTES


def refuse(problem: Convolution) -> str | None:
    """Why a problem has no planes one behind the other; None if it has."""
    if problem.is_integer or problem.dtype == "f64":
        return f"it computes in f32: {problem.x.dtype} is for another algorithm"
    if problem.direction == "bwd_filter":
        return "a filter's gradient is for depthwise_sliding, grouped or implicit_gemm"
    if 0 in problem.x.shape or 0 in problem.y.shape or 0 in problem.w.shape:
        return "a tensor is empty: use an algorithm without tiles"
    if len(problem.spatial) > 2:
        return "it takes one or two axes of space: direct takes three"
    if problem.direction == "bwd_data" and max(problem.stride) > 1:
        return "backward to the data it takes stride 1: direct takes any"
    taps_and_dilation = zip(problem.filter_spatial, problem.dilation, strict=True)
    if any(dilation > 1 for taps, dilation in taps_and_dilation if taps > 1):
        return "it takes no dilation: direct does"
    most = max(problem.c, problem.k) // problem.groups
    if most > MAX_CHANNELS:
        return f"a group has {most} channels, more than {MAX_CHANNELS} are for tensor cores: implicit_gemm takes any"
    if not _is_packed(problem.x if problem.direction == "fwd" else problem.y):
        return "planes must lie one behind the other, as in nchw without gaps: direct takes any order"
    return None


def _is_packed(tensor: TensorDescriptor) -> bool:
    """Whether the elements of a tensor, axis after axis, follow each other in memory."""
    step = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def cheapest(problem: Convolution, device: GpuDevice) -> Plan | None:
    """The plan of the least time, of equals the first; None if the planes of a group, or the filter, are too large."""
    shapes, found = list(_shapes(problem, device)), Cheapest[Plan]()
    for number in by_bound([_least_seconds(shape, device) for shape in shapes], found):
        shape = shapes[number]
        work = _Work(shape, device)
        for groups, threads in _divided(shape, device):
            order = groups, shape.tile_out, shape.strip, threads
            made = partial(replace, shape, groups=groups, threads=threads)
            found.offer(work.seconds(groups, threads), order, made)
    return found.plan()


def candidates(problem: Convolution, device: GpuDevice) -> Iterator[Plan]:
    """Every sensible plan; none if the planes of a group, or the filter, are too large."""
    for shape in _shapes(problem, device):
        for groups, threads in _divided(shape, device):
            yield replace(shape, groups=groups, threads=threads)


def _shapes(problem: Convolution, device: GpuDevice) -> Iterator[Plan]:
    """Plans with one group to a thread block and the fewest threads, by what a thread has."""
    window = lower(problem)
    _, height, _ = window.axes
    for tile_out, strip in itertools.product(_TILES_OUT, _STRIPS):
        plan = Plan(problem, window, 1, tile_out, strip, min(_THREADS), device.facts)
        if plan.shared > min(_MOST_STAGE, device.shared_bytes) or plan.registers > _MOST_REGISTERS:
            continue
        if (
            tile_out > plan.group_out
            or strip > height.count
            or tile_out * strip * window.taps > _MOST_PRODUCTS
        ):
            continue
        yield plan


def _divided(shape: Plan, device: GpuDevice) -> Iterator[tuple[int, int]]:
    """Groups and threads of thread blocks: of such a plan with one group."""
    most, of_all, items = (
        min(_MOST_STAGE, device.shared_bytes),
        shape.window.n * shape.problem.groups,
        shape.items,
    )
    for groups in _GROUPS:
        if _whole_copies(groups * shape.run) > most or groups > of_all:
            continue
        for threads in _THREADS:
            if threads == min(_THREADS) or 2 * groups * items >= threads:
                yield groups, threads


# ---- cost, fitted to 177 plans of 41 layers on an H200

_ISSUE = 1 / 4  # cycles of an instruction of a warp: four schedulers
_COPY, _READ, _WEIGHT, _STORE, _ITEM = 2.1, 5.0, 1.9, 7.2, 47.0
"""Instructions of a copy of 16 bytes, an element that is read, one of the filter, a result, and of an item."""
_WIDEN = 4.0  # more for an element of 16 bits
_GAPS, _GAPS_OF_WARPS, _LEAST_WARPS = 0.85, 1.07, 0.23
"""Cycles lost between dependent instructions, as a factor: a constant, and a part for each of few warps."""
_UNHIDDEN = 0.19
_LONE = 0.24  # of a transfer, where one thread block is alone on its multiprocessor


def seconds(plan: Plan, device: GpuDevice) -> float:
    """Expected time."""
    return _Work(replace(plan, groups=1), device).seconds(plan.groups, plan.threads)


class _Work:
    """Seconds of a plan with one group by its groups and threads."""

    def __init__(self, shape: Plan, device: GpuDevice) -> None:
        self._shape, self._device, self._clock = shape, device, depthwise_clock(device.facts)
        self._issued, self._accesses = _of_round(shape)
        self._run, self._items, self._registers = shape.run, shape.items, shape.registers
        self._groups, self._moved = shape.window.n * shape.problem.groups, shape.window.bytes_moved
        self._resident: dict[int, int] = {}  # by threads, as registers allow

    def seconds(self, groups: int, threads: int) -> float:
        device, run = self._device, groups * self._run
        if threads not in self._resident:
            self._resident[threads] = resident_blocks(self._shape.facts, self._registers, threads)
        resident = max(1, min(self._resident[threads], self._shape.facts.resident(_whole_copies(run))))
        rounds = math.ceil(groups * self._items / threads) * threads / 32  # of warps
        grid_blocks = math.ceil(self._groups / groups)
        copies = run / _COPY_BYTES / 32 * (1 if run % _COPY_BYTES == 0 else _COPY_BYTES / self._shape.element)
        issued = rounds * self._issued + _COPY * copies
        shared = rounds * self._accesses + 4 * copies
        waves = math.ceil(grid_blocks / (device.multiprocessors * resident))
        blocks = grid_blocks / device.multiprocessors
        filled = math.ceil(blocks) / blocks if waves < 4 else 1 + 0.5 * resident / blocks
        here = min(resident, math.ceil(blocks))
        # of a scheduler, that compute while others wait for what they copy
        warps = max(_LEAST_WARPS, here * threads / 128)
        gaps = _GAPS + _GAPS_OF_WARPS / warps
        block_seconds = max(issued * _ISSUE * gaps, shared) / self._clock
        busy = block_seconds * blocks * filled
        transfer = self._moved / device.bandwidth * (1 + _LONE / here) * filled**0.5
        overlapped = (busy**4 + transfer**4) ** 0.25 + _UNHIDDEN * min(busy, transfer)
        alone = waves * (2 * MEMORY_LATENCY + block_seconds)
        return float(LAUNCH_SECONDS + max(overlapped, alone))


def _of_round(plan: Plan) -> tuple[float, float]:
    """Instructions of a warp for an item of each thread, and cycles of shared memory."""
    taps, stride, reads = plan.window.taps, min(plan.axes[2].stride, 2), plan.reads
    read = _READ + (_WIDEN if plan.element < 4 else 0.0)
    of_channel = plan.tile_out * taps * (plan.strip + _WEIGHT) + read * reads
    issued = plan.group_in * of_channel + plan.tile_out * plan.strip * _STORE + _ITEM
    return issued, plan.group_in * (stride * reads + plan.tile_out * taps) + plan.tile_out * plan.strip


def _least_seconds(shape: Plan, device: GpuDevice) -> float:
    """What no number of groups and threads comes below."""
    facts = device.facts
    issued, accesses = _of_round(shape)
    gaps = _GAPS + _GAPS_OF_WARPS / (facts.resident_threads / 128)
    items = shape.items * shape.window.n * shape.problem.groups / 32 / device.multiprocessors
    busy = items * max(issued * _ISSUE * gaps, accesses) / depthwise_clock(facts)
    transfer = shape.window.bytes_moved / device.bandwidth
    overlapped = (busy**4 + transfer**4) ** 0.25 + _UNHIDDEN * min(busy, transfer)
    return float(LAUNCH_SECONDS + overlapped) * ROUNDED
