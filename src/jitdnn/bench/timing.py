"""The clock: candidates take turns in one process, so that what disturbs one disturbs all.

Measured on small virtual machines, where the same two processors are at times two cores and at times one:
only times taken side by side can be compared. Every turn begins with a pause until the threads of the candidate
before (OpenMP's and the BLAS's spin for a while after their last call) have gone to sleep, and with a call that
is not counted, which wakes this candidate's own. Every call allocates its result; memory that is freed stays with
the process meanwhile, for fresh pages cost more than many a layer, and who has to ask for them is chance."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitdnn.devices.quiet import settle

#: Seconds that a turn lasts at least (or one call, if that is longer).
TURN = 0.02
#: A call that takes as long is measured in fewer rounds, and not called once more without counting: it is hardly
#: slower for the threads that it wakes.
LONG = 0.1
#: With more than this many processors' worth of other programs' work, times are called into question.
QUIET = 0.2

# Of glibc's mallopt: freed memory at the end of the heap is given back beyond so many bytes; so many allocations may be
# mapped, and unmapped, on their own.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4

Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Method:
    """How long to measure: `rounds` turns for each candidate, and more until `seconds` of turns each. Candidates one
    of whose calls is long get `long_rounds`, if that is fewer."""

    rounds: int = 5
    seconds: float = 0.2
    most_rounds: int = 25
    long_rounds: int = 3


def interleaved(
    calls: Sequence[Call], method: Method, between: Callable[[], None] = lambda: None
) -> list[list[float]]:
    """Seconds per call of each candidate in each round; `calls[i](n)` runs candidate i on the n-th inputs.

    `between` is called after each round, for a progress bar.
    """
    keep_freed_memory()
    for call in calls:  # first calls compile, allocate and start threads
        call(0)
    times: list[list[float]] = [[] for _ in calls]
    spent = 0.0
    number = 0
    wanted = method.rounds
    while len(times[0]) < wanted or (
        spent < method.seconds * len(calls) and len(times[0]) < method.most_rounds
    ):
        for call, taken in zip(calls, times, strict=True):
            settle()
            start = time.perf_counter()
            call(number)
            single = time.perf_counter() - start
            if single >= LONG:
                wanted = min(wanted, method.long_rounds)
                number += 1
                taken.append(single)
                spent += single
                continue
            repeats = max(1, min(1000, round(TURN / max(single, 1e-7))))
            start = time.perf_counter()
            for _ in range(repeats):
                number += 1
                call(number)
            elapsed = time.perf_counter() - start
            taken.append(elapsed / repeats)
            spent += elapsed
        between()
    return times


@functools.cache
def keep_freed_memory() -> bool:
    """From now on this process keeps what it frees. False where the C library cannot be told so (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_MAX, 0))


class Neighbours:
    """How many processors other programs keep busy from the making of this object on.

    They disturb candidates unequally: one that spins while it waits for its threads suffers most, so times
    taken beside busy neighbours say little.
    """

    def __init__(self) -> None:
        self._start = self._read()

    def processors(self) -> float | None:
        """Processors' worth of time that others have used since; None where the system does not tell."""
        end = self._read()
        if self._start is None or end is None:
            return None
        all_busy, own, wall = (b - a for a, b in zip(self._start, end, strict=True))
        return max(0.0, all_busy - own) / wall if wall > 0.0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds that all processors have worked, that this process has worked, and that have passed."""
        try:
            with open("/proc/stat", encoding="ascii") as lines:
                user, nice, system, _, _, irq, softirq = map(int, lines.readline().split()[1:8])
        except (OSError, ValueError):
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + irq + softirq) / ticks, time.process_time(), time.perf_counter()


def median(times: Sequence[float]) -> float:
    """The median of a candidate's rounds."""
    return statistics.median(times)


def ratio(peer: Sequence[float], own: Sequence[float]) -> float:
    """How many times as long the peer takes: the median over the rounds of the ratio within a round."""
    return statistics.median(p / o for p, o in zip(peer, own, strict=True))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values; NaN of none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan
