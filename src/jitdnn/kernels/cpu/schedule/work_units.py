"""Dividing a kernel without a workspace into tasks: runs of equal units of work, whose length is passed at run time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, split_index
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.processor import Processor


@dataclass(frozen=True)
class WorkUnits:
    """An index space with named axes, whose points are computed one after the other, the last axis fastest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        return math.prod(extent for _, extent in self.axes)

    def split(self, device: CpuDevice, cycles: float) -> tuple[int, int]:
        """(tasks, units of a task) for work that takes one thread ``cycles``."""
        return split_units(self.count, device, cycles / device.isa.processor.clock)

    def each(self, k: Builder, task: Value, per_task: Value) -> Iterator[dict[str, Value]]:
        """The units of a task, each as its index by name."""
        names, extents = zip(*self.axes, strict=True)
        first = task * per_task
        for unit in k.range(first, (first + per_task).min(self.count)):
            yield dict(zip(names, split_index(unit, extents), strict=True))


def block_sizes(extent: int, most: int) -> list[int]:
    """Sizes of blocks up to ``most`` that divide ``extent`` as evenly as possible; none if ``most`` is 0."""
    if most < 1:
        return []
    return sorted({ceil_div(extent, parts) for parts in range(ceil_div(extent, most), extent + 1)})


def is_filter_loop_outer(c: Correlation, processor: Processor) -> bool:
    """True if the loop over blocks of the filter should be outside of the loop over the image.

    The inner operand is read once for each block of the outer one: it should be the one that stays in the cache.
    """
    weights = c.width * c.depth * c.taps * ITEM_BYTES[c.dtype]
    return weights > processor.l2(cost.REPEATED_OPERAND_L2) and image_bytes(c) < 4 * weights


def image_bytes(c: Correlation) -> int:
    """Bytes that one image of one group has for its results."""
    pixels = math.prod(min(axis.positions, axis.results * axis.step) for axis in c.axes)
    return c.depth * pixels * ITEM_BYTES[c.dtype]
