"""What the plans of all families share: a correlation, an instruction set, and work units that tasks take."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu.correlation import Axis, Correlation, View
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits, is_filter_loop_outer
from jitdnn.rtcg.processor import Processor

Reads = Mapping[int, Sequence[tuple[int, int]]]  # (result, tap) by the position that they read


@dataclass(frozen=True)
class DirectPlan(CorrelationPlan, abc.ABC):
    """How one correlation is computed. Sizes are in elements of the type of its arithmetic."""

    @property
    @abc.abstractmethod
    def units(self) -> WorkUnits:
        """The work units."""

    def workspace(self, threads: int) -> int:
        """Bytes."""
        return 0

    def divide(self, device: CpuDevice, cycles: float) -> tuple[int, tuple[int, ...]]:
        """(tasks, extras) of work that takes one thread ``cycles``; the code reads the extras when it runs.

        The extra is the number of units of a task.
        """
        tasks, per_task = self.units.split(device, cycles)
        return tasks, (per_task,)

    def phases(self, prefix: str, tasks: int) -> list[tuple[str, int]]:
        """The functions of the kernel and their tasks, one phase after the other."""
        return [(f"{prefix}tiles", tasks)]


def merges_row_taps(c: Correlation, lanes: int) -> bool:
    """True if the taps of a filter's row and their channels are one run in memory, and so is what they read of x.

    Vectors over channels then run over the whole row, so that few channels fill them as well.
    """
    axis = c.axes[2]
    if c.depth % lanes == 0 or c.x.channels != 1 or c.w.channels != 1 or axis.taps.count < 2:
        return False
    return axis.taps.shift == 1 and c.x.space[2] == axis.taps.increment * c.w.space[2] == c.depth


@lru_cache(512)
def reads_of(axis: Axis, results: int, taps: int | None = None) -> Reads:
    """(result, tap) of an axis by the position that they read, counted from position 0 of result 0.

    With ``taps`` only so many of them, counted from the position that the first of them reads for result 0.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    offset, count = (axis.taps.offset, axis.taps.count) if taps is None else (0, taps)
    for result, tap in itertools.product(range(results), range(count)):
        found.setdefault(result * axis.step + offset + tap * axis.taps.shift, []).append((result, tap))
    return dict(sorted(found.items()))


def row_units(
    c: Correlation, processor: Processor, channel_blocks: int, row_blocks: int, runs: int
) -> WorkUnits:
    """Work units of blocks of result channels, and of blocks of rows and runs of tiles along them.

    Blocks of the filter are the outer loop where that reads less.
    """
    channels = [("channels", channel_blocks)]
    space = [("slice", c.axes[0].results), ("rows", row_blocks), ("run", runs)]
    order = channels + space if is_filter_loop_outer(c, processor) else space + channels
    return WorkUnits((("image", c.batch), ("group", c.group_count), *order))


def tap_tiles(c: Correlation, taps: int) -> list[range]:
    """The taps of a filter's row, ``taps`` at a time."""
    columns = c.axes[2].taps.count
    return [range(at, min(columns, at + taps)) for at in range(0, columns, taps)]


def nearest_axis_last(c: Correlation) -> Correlation:
    """The correlation with the axis of space whose neighbours are nearest in memory as the last one."""

    def distance(axis: int) -> tuple[bool, int, int]:
        return c.axes[axis].results == 1, abs(c.y.space[axis]) + abs(c.x.space[axis]), -axis

    return axis_last(c, min(range(3), key=distance))


def axis_last(c: Correlation, axis: int) -> Correlation:
    """The same correlation with ``axis`` of space moved to the end."""
    order = [i for i in range(3) if i != axis] + [axis]

    def three(values: Sequence[int]) -> tuple[int, int, int]:
        i, j, k = order
        return values[i], values[j], values[k]

    def of(view: View) -> View:
        return replace(view, space=three(view.space))

    i, j, k = order
    return replace(
        c, axes=(c.axes[i], c.axes[j], c.axes[k]), x=of(c.x), y=of(c.y), operands=tuple(of(o) for o in c.operands),
        w=replace(c.w, space=three(c.w.space)),
    )  # fmt: skip
