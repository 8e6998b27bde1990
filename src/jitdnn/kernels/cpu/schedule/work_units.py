"""Dividing a kernel that needs no workspace into tasks: runs of equal units of work, given at run time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import split_index
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.isa import ITEM_BYTES

_CACHE_BYTES = 640 << 10  # of the L2 cache, for what is read again and again
_CYCLES_A_SECOND = 3e9  # only to tell work that is worth sharing: nothing is measured to cut it


@dataclass(frozen=True)
class WorkUnits:
    """A named index space whose points are done one after the other, the last axis fastest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        return math.prod(extent for _, extent in self.axes)

    def split(self, device: CpuDevice, cycles: float) -> tuple[int, int]:
        """(tasks, units of a task) for work that takes one thread ``cycles``."""
        return split_units(self.count, device, cycles / _CYCLES_A_SECOND)

    def each(self, k: Builder, task: Value, per_task: Value) -> Iterator[dict[str, Value]]:
        """The units of a task, each as its index by name."""
        names, extents = zip(*self.axes, strict=True)
        first = task * per_task
        for unit in k.range(first, (first + per_task).min(self.count)):
            yield dict(zip(names, split_index(unit, extents), strict=True))


def block_sizes(extent: int, most: int) -> list[int]:
    """Sizes of blocks up to ``most`` that divide ``extent`` as evenly as can be; none if ``most`` is 0."""
    if most < 1:
        return []
    return sorted({-(-extent // parts) for parts in range(-(-extent // most), extent + 1)})


def is_filter_loop_outer(c: Correlation) -> bool:
    """True if the loop over blocks of the filter should be outside of that over the image.

    The inner one of the two is read as often as the outer one has blocks: best is one that stays in the cache.
    """
    item = ITEM_BYTES[c.dtype]
    weights = c.width * c.depth * c.taps * item
    image = c.depth * math.prod(min(axis.positions, axis.results * axis.step) for axis in c.axes) * item
    return weights > _CACHE_BYTES and image < 4 * weights
