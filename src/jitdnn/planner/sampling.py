"""Measuring candidates against each other: in rounds, one sample of each a round, within a budget of time.

A change of clock or a busy neighbour meets all alike, and a candidate's time is the median of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Generic, TypeVar

from jitdnn.devices.quiet import settle

ROUNDS = 9
# a shorter sample would measure the clock and the caller rather than the kernel
SAMPLE_SECONDS = 5e-4
MOST_CALLS_A_SAMPLE = 200
# what its first run shows this far behind the best is not worth measuring well
HOPELESS = 4.0
# what takes as long as this is not slowed down much by how it starts
LONG_SECONDS = 0.05

T = TypeVar("T")


@dataclass
class Contender(Generic[T]):
    """A candidate while it is measured."""

    what: T
    calls: int = 1
    samples: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Its time as far as it is known."""
        return median(self.samples)


def measure(
    contenders: Sequence[Contender[T]],
    run: Callable[[T, int], float],
    deadline: float,
    settles: bool = True,
) -> None:
    """Fill in the samples: warm up, then sample in turn until there are enough rounds or the time is over.

    `run(what, calls)` gives the seconds of one call. Each contender runs at least once. `settles`: threads of the one
    before must go to sleep, which on a GPU they need not.
    """
    best = math.inf
    for contender in contenders:
        # a first run also pays for page faults, cold caches and sleeping threads
        seconds = run(contender.what, 1)
        is_hopeless = seconds > max(HOPELESS * best, LONG_SECONDS)
        if not is_hopeless and perf_counter() < deadline:
            seconds = run(contender.what, 1)
        contender.samples.append(seconds)
        contender.calls = min(MOST_CALLS_A_SAMPLE, max(1, math.ceil(SAMPLE_SECONDS / max(seconds, 1e-9))))
        best = min(best, seconds)
    running = [c for c in contenders if c.samples[0] <= HOPELESS * best]
    for _ in range(ROUNDS):
        for contender in running:
            if perf_counter() > deadline:
                return
            if len(running) > 1 and contender.samples[0] < LONG_SECONDS:
                if settles:
                    settle()  # threads of the one before go to sleep
                run(contender.what, 1)  # its own wake up
            contender.samples.append(run(contender.what, contender.calls))
