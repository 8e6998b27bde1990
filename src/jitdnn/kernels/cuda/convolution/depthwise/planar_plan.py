"""Planes one behind the other, copied to shared memory as one run: the sizes of a thread block, and its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import resident_blocks
from jitdnn.kernels.cuda.cost import LAUNCH_SECONDS, MEMORY_LATENCY, depthwise_clock
from jitdnn.tensor import TensorDescriptor
from jitdnn.tensor.dtypes import DTYPES

_LINE = 16  # bytes of a copy
_MOST_STAGE = 96 << 10  # bytes of a thread block
_MOST_TAPS = 121
_MOST_PRODUCTS = 1200  # of a thread, all of them unrolled
_EXTRA_REGISTERS = 28
_PLANES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STRIPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_THREADS = (64, 128, 256)


@dataclass(frozen=True)
class Planar:
    """A window of planes, `planes` to a thread block of `threads`, each with columns of `strip` results."""

    window: Window
    planes: int
    strip: int
    threads: int
    facts: GpuFacts

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        return self.window.axes

    @cached_property
    def element(self) -> int:
        return DTYPES[self.window.dtype]

    @cached_property
    def plane(self) -> int:
        """Elements."""
        _, height, width = self.axes
        return height.input.extent * width.input.extent

    @cached_property
    def shared(self) -> int:
        """Bytes of a thread block."""
        return math.ceil(self.planes * self.plane * self.element / _LINE) * _LINE

    @cached_property
    def is_aligned(self) -> bool:
        """Whether the run of each thread block begins at a multiple of 16 bytes where x does."""
        return self.planes * self.plane * self.element % _LINE == 0

    @cached_property
    def grid_blocks(self) -> int:
        return math.ceil(self.window.n * self.window.channels / self.planes)

    @cached_property
    def items(self) -> int:
        """Columns of results of a thread block, of which a thread has one after the other."""
        _, height, width = self.axes
        return self.planes * math.ceil(height.count / self.strip) * width.count

    @cached_property
    def rows_read(self) -> int:
        return (self.strip - 1) * self.axes[1].stride + self.axes[1].taps

    @cached_property
    def registers(self) -> int:
        return self.window.taps + self.strip + 2 * self.axes[2].taps + _EXTRA_REGISTERS

    @cached_property
    def resident(self) -> int:
        """Thread blocks that a multiprocessor has at a time."""
        by_registers = resident_blocks(self.facts, self.registers, self.threads)
        return max(1, min(by_registers, self.facts.resident(self.shared)))


def refuse(window: Window) -> str | None:
    """Why a window has no planes one behind the other; None if it has."""
    depth, height, width = window.axes
    if depth.taps != 1 or depth.output.extent != 1 or depth.input.extent != 1:
        return "it takes one or two axes of space: depthwise_sliding takes three"
    if any(axis.is_scattered for axis in window.axes):
        return "backward to the data it takes stride 1: depthwise_sliding takes any"
    if any(axis.phases != 1 or axis.input.pitch != 1 for axis in (height, width)):
        return "it takes no dilation: depthwise_sliding does"
    if window.multiplier != 1:
        return (
            f"it takes one result of each channel, not {window.multiplier}: depthwise_sliding takes several"
        )
    if not _is_packed(window.input):
        return (
            "planes must lie one behind the other, as in nchw without gaps: depthwise_sliding takes any order"
        )
    return None


def _is_packed(tensor: TensorDescriptor) -> bool:
    """Whether the elements of a tensor, axis after axis, follow each other in memory."""
    step = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def candidates(window: Window, device: GpuDevice) -> Iterator[Planar]:
    """Every sensible plan; none if a plane or the filter is too large."""
    height = window.axes[1]
    if window.taps > _MOST_TAPS:
        return
    for planes, strip, threads in itertools.product(_PLANES, _STRIPS, _THREADS):
        plan = Planar(window, planes, strip, threads, device.facts)
        if plan.shared > min(_MOST_STAGE, device.shared_bytes) or strip * window.taps > _MOST_PRODUCTS:
            continue
        if (strip > height.count and strip > 1) or planes > window.n * window.channels:
            continue
        if plan.items * 2 < threads and threads > min(_THREADS):
            continue
        yield plan


# ---- cost

_WARP_CYCLES_OF_ISSUE = 1 / 4  # four schedulers
_COPY, _READ, _STORE, _ITEM = (
    6.0,
    2.5,
    6.0,
    30.0,
)  # instructions: of a copy of 16 bytes, a read, a result, an item
_CONFLICTS = 1.4  # reads that meet in a bank of shared memory
_GAPS = 1.3
_UNHIDDEN = 0.25
_BANDWIDTH = 0.93  # of a copy's
_ELEMENTWISE = 1.5  # how much longer a block takes whose run is not copied by 16 bytes


def seconds(plan: Planar, device: GpuDevice) -> float:
    """Expected time."""
    window, taps = plan.window, plan.window.taps
    reads = plan.rows_read * plan.axes[2].taps
    rounds = math.ceil(plan.items / plan.threads) * plan.threads / 32  # of warps
    issued = rounds * (plan.strip * (taps + _STORE) + _READ * reads + 2 * taps + _ITEM)
    copied = plan.planes * plan.plane * plan.element / _LINE / 32
    issued += _COPY * copied * (1 if plan.is_aligned else _LINE / plan.element)
    shared = rounds * (_CONFLICTS * reads * min(plan.axes[2].stride, 2) + taps + plan.strip) + 4 * copied
    width = device.multiprocessors * plan.resident
    waves = math.ceil(plan.grid_blocks / width)
    blocks = plan.grid_blocks / device.multiprocessors
    filled = math.ceil(blocks) / blocks if waves < 4 else 1 + 0.5 * plan.resident / blocks
    cycles = max(issued * _WARP_CYCLES_OF_ISSUE * _GAPS, shared) * blocks * filled
    busy = cycles / depthwise_clock(device.facts)
    # what a block copies is not there while it computes: others use the time
    here = min(plan.resident, math.ceil(blocks))
    transfer = window.bytes_moved / (device.bandwidth * _BANDWIDTH) * (1 + 0.5 / here) * filled**0.5
    alone = waves * (2 * MEMORY_LATENCY + cycles / blocks / filled / depthwise_clock(device.facts))
    overlapped = (busy**4 + transfer**4) ** 0.25 + _UNHIDDEN * min(busy, transfer)
    return float(LAUNCH_SECONDS + max(overlapped, alone))
