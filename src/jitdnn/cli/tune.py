"""`jitdnn tune`: measure problems and the parts of their divisions ahead, and exchange what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from jitdnn.cli.console import progress, say
from jitdnn.cli.plan_net import select
from jitdnn.errors import InvalidArgument
from jitdnn.ops.tune import TunedProblem, tune
from jitdnn.planner.store import Store
from jitdnn.settings import settings


def run_tune(
    names: Sequence[str],
    devices: str | None,
    direction: str | None,
    batch: int | None,
    seconds: float,
    merge: Sequence[Path],
    export: Path | None,
    overrides: Mapping[str, object],
) -> int:
    """Take in files, measure, write a file, and say what that came to. Returns 1 if nothing takes a problem, else 0."""
    if not (names or merge or export):
        raise InvalidArgument(
            "nothing to tune: give problem strings, suites or files, or --merge or --export"
        )
    with settings(**overrides):
        store = Store.default()
        for path in merge:
            say(f"{path}: {store.merge(path)} times taken in")
        code = _measure(names, devices, direction, batch, seconds) if names else 0
        if export is not None:
            say(f"{export}: {store.export(export)} times written")
    return code


def _measure(
    names: Sequence[str], devices: str | None, direction: str | None, batch: int | None, seconds: float
) -> int:
    problems = list(dict.fromkeys(problem for _, problem in select(names, direction, batch)))
    listed = None if devices is None else [each.strip() for each in devices.split(",") if each.strip()]
    start, done = perf_counter(), 0
    with progress(len(problems), "measuring", is_quiet=True) as advance:

        def note(result: TunedProblem) -> None:
            nonlocal done
            done += 1
            say(_line(result, done, len(problems), "" if listed is None else listed[result.device]))
            advance(done, result.problem.kind)

        tuning = tune(problems, devices=listed, seconds=seconds, progress=note)
    say(
        f"{len(problems)} problems on {tuning.device_name} in {perf_counter() - start:.1f} s: {len(tuning.measured)} "
        f"times measured, {len(tuning.known)} problems known before, {len(tuning.failures)} that nothing takes"
    )
    return 1 if tuning.failures else 0


def _line(result: TunedProblem, done: int, total: int, device: str) -> str:
    """One problem: how many of its times and of its parts' are new."""
    if result.failure is not None:
        told = f"FAILED: {result.failure}"
    elif result.was_known:
        told = "known"
    else:
        own = sum(row.problem == str(result.problem) for row in result.measured)
        told = f"{own} algorithms measured, {len(result.measured) - own} of its parts"
    return f"{done}/{total} {result.problem}{f' on {device}' if device else ''}: {told}"
