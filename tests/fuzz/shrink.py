"""The simplest problem that fails as another one does: choices on its tapes are made smaller while it still fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.draw import Draw
from fuzz.problem import OPERATIONS
from fuzz.run import GROUP, Outcome, attempt
from fuzz.targets import target

_MORE = 60  # choices that are made while a problem runs
Tapes = tuple[list[int], list[int]]


def fails(seed: int, operation: str, number: int, where: str, tapes: Tapes, group: int = GROUP) -> str | None:
    """The kind of fault of a problem made by these tapes, tried in a process of its own; None if there is none."""
    command = [
        sys.executable,
        str(Path(__file__).parent),
        "try",
        str(seed),
        operation,
        str(number),
        where,
        str(group),
    ]
    try:
        done = subprocess.run(
            command, input=json.dumps(tapes), capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return "hang"
    if done.returncode < 0:
        return "crash"
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else None


def fails_here(
    seed: int, operation: str, number: int, where: str, tapes: Tapes, group: int = GROUP
) -> str | None:
    """The same in this process, which is much faster where nothing dies."""
    fault = attempt(seed, operation, number, target(where), tapes, group).fault
    return fault.kind if fault else None


def shrink(
    seed: int, operation: str, number: int, where: str, tapes: Tapes, kind: str, seconds: float = 120.0,
    group: int = GROUP,
) -> Tapes:  # fmt: skip
    """Tapes of a simpler problem with a fault of the same kind."""
    test = fails if kind in ("crash", "hang") else fails_here
    end = time.monotonic() + seconds
    best: Tapes = (list(tapes[0]), list(tapes[1]))

    def holds(candidate: Tapes) -> bool:
        return time.monotonic() < end and test(seed, operation, number, where, candidate, group) == kind

    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for side in (1, 0):
            for place in range(len(best[side])):
                if place >= len(best[side]):
                    break
                value = best[side][place]
                for smaller in _smaller(value):
                    tape = [*best[side][:place], smaller, *best[side][place + 1 :]]
                    candidate = (tape, best[1]) if side == 0 else (best[0], tape)
                    if holds(candidate):
                        best, changed = candidate, True
                        break
    return best


def _smaller(value: int) -> Sequence[int]:
    return sorted({0, value // 2, value - 1} - {value, -1})


def tapes_of(seed: int, operation: str, number: int, group: int = GROUP) -> Tapes:
    """The tapes of a problem, made without running it."""
    structure = Draw(f"{seed}/{operation}/{number // group}")
    OPERATIONS[operation].make(structure)
    rest = Draw.blank_tape(f"{seed}/{operation}/{number // group}", len(structure.tape) + _MORE)
    return rest, Draw.blank_tape(f"{seed}/{operation}/{number}/one", 4 * _MORE)


def describe(outcome: Outcome) -> str:
    """A problem and what came of it, in words."""
    if outcome.fault is not None:
        return f"{outcome.problem}\n{outcome.fault.kind}: {outcome.fault}"
    return f"{outcome.problem}\n{outcome.refused or 'as it must be'}"
