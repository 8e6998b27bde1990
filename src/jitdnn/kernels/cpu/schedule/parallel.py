"""Dividing work into tasks: how many, integers that are passed at run time, and counting through index spaces."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Value

# A shorter task is not worth handing to another thread, which may have to fetch what it reads from the first one's
# cache.
TASK_SECONDS = 8e-6
_TASKS_PER_THREAD = 4  # so that other threads can take over tasks of one that was delayed
WANTED_TASKS = 24  # enough to keep the threads of a large processor busy to the end
_NEARLY = 1.01  # times the least time: not worth more tasks


def task_count(device: Device, seconds: float) -> int:
    """Into how many tasks to divide work that takes one thread ``seconds``; 1 if it is too little to divide.

    As many for each thread, where there are more tasks than threads.
    """
    if device.threads == 1 or seconds < 3 * TASK_SECONDS:
        return 1
    found = min(_TASKS_PER_THREAD * device.threads, int(seconds / TASK_SECONDS))
    return max(1, found - found % device.threads if found > device.threads else found)


def wanted_tasks(threads: int) -> int:
    """Tasks that keep so many threads busy to the end."""
    return 1 if threads == 1 else _TASKS_PER_THREAD * threads


def split_units(units: int, device: Device, seconds: float) -> tuple[int, int]:
    """Units of equal work as (tasks, units of a task); there is no task without a unit.

    Up to twice as many tasks as `task_count` wants are made where threads then end together: 50 units are ten tasks of
    5 for two threads, since seven of 7 and one of 1 would take them as long as 28 units.
    """
    wanted = task_count(device, seconds)
    sizes = sorted({max(1, ceil_div(units, tasks)) for tasks in range(wanted, 2 * wanted + 1)}, reverse=True)
    if wanted == 1:
        sizes = sizes[:1]
    lasting = [_lasting(units, each, device.threads) for each in sizes]
    per_task = next(each for each, one in zip(sizes, lasting, strict=True) if one <= _NEARLY * min(lasting))
    return ceil_div(units, per_task), per_task


def _lasting(units: int, each: int, threads: int) -> int:
    """Units that the thread computes which ends last, where tasks have ``each``, but for the last one."""
    tasks, rest = divmod(units, each)
    rounds, left = divmod(tasks, threads)
    return (rounds + 1) * each if left else rounds * each + rest


def makespan(lengths: Iterable[float], threads: int) -> float:
    """When the last of some tasks ends, which threads take in order, each one as soon as it has ended the one before.

    In the unit of the ``lengths``.
    """
    ends = [0.0] * threads
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


class Slots:
    """Integers that are passed to the code at run time, by name: the extras of a ``CpuKernel``."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def pack(self, values: Mapping[str, int]) -> list[int]:
        """The extras, in order; every name must have a value."""
        return [values[name] for name in self.names]

    def load(self, arguments: Arguments) -> dict[str, Value]:
        """The same integers in traced code."""
        return {name: arguments.extra(i) for i, name in enumerate(self.names)}


class Counter:
    """The digits of a unit's number, outermost first, and its offset in each tensor; counts up by one.

    A division takes tens of cycles: digits are found by division once a task, and carry from then on.
    """

    def __init__(
        self,
        k: Builder,
        number: Value,
        extents: Sequence[Value],
        strides: Sequence[Sequence[Value]],
        bases: Sequence[Value] | None = None,
    ) -> None:
        self.k, self.extents, self.strides = k, extents, strides
        rest, digits = number, []
        for extent in reversed(extents):
            digits.append(rest % extent)
            rest = rest // extent
        digits.reverse()
        self.digits = [k.register(digit) for digit in digits]
        self.offsets = []
        for base, steps in zip(bases or [k.integer(0)] * len(strides), strides, strict=True):
            offset = base
            for digit, step in zip(digits, steps, strict=True):
                offset = offset + digit * step
            self.offsets.append(k.register(offset))

    def advance(self, axis: int | None = None) -> None:
        """Add one to the digit of ``axis`` (the last one), and carry."""
        axis = len(self.digits) - 1 if axis is None else axis
        digit = self.digits[axis]
        digit += 1
        for offset, steps in zip(self.offsets, self.strides, strict=True):
            offset += steps[axis]
        if axis == 0:
            return
        with self.k.when(digit.get() == self.extents[axis]):
            digit.set(self.k.integer(0))
            for offset, steps in zip(self.offsets, self.strides, strict=True):
                offset.set(offset.get() - self.extents[axis] * steps[axis])
            self.advance(axis - 1)
