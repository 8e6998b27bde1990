"""Tuning parameters of one's own kernels by measuring, within a budget of time; answers are kept in the store."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from jitdnn.errors import InvalidArgument, JitdnnError, NotSupported
from jitdnn.kernels.algorithm import Device
from jitdnn.planner.sampling import Contender, measure
from jitdnn.planner.store import Store

Build = Callable[..., Callable[[], object]]

_VERSION = 1


@dataclass(frozen=True)
class Tuned:
    """What was found: the fastest `config` and its `seconds`, from the store if it `is_stored`.

    `times` are seconds of all configurations that ran, `refused` the reasons of those that could not be built, and
    `untried` how many the budget did not reach.
    """

    config: dict[str, Any]
    seconds: float
    is_stored: bool
    times: tuple[tuple[dict[str, Any], float], ...]
    refused: tuple[tuple[dict[str, Any], str], ...]
    untried: int

    def explain(self) -> str:
        """A table of all that ran, fastest first."""
        lines = [
            f"{seconds * 1e6:12.1f} us  {_text(config)}"
            for config, seconds in sorted(self.times, key=lambda t: t[1])
        ]
        lines += [f"     refused     {_text(config)}: {reason}" for config, reason in self.refused]
        if self.untried:
            lines.append(f"{self.untried} not tried: the time was over")
        return "\n".join(lines)


def autotune(
    build: Build,
    space: Mapping[str, Sequence[Any]],
    key: str,
    device: Device,
    seconds: float = 1.0,
    store: Store | None = None,
    is_fresh: bool = False,
) -> Tuned:
    """Find the fastest configuration; see `jitdnn.autotune`."""
    if not space or any(not values for values in space.values()):
        raise InvalidArgument(f"the space is {dict(space)}: each parameter needs at least one value")
    store = store or Store.default()
    configs = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    problem = f"autotune {key}"
    if not is_fresh:
        known = {name: row.seconds for (name, _), row in store.look_up(problem, "", device.name).items()}
        stored = [(config, known[_text(config)]) for config in configs if _text(config) in known]
        # a budget may have ended an earlier search: its answer still stands for the same space
        if known.get(_space_name(space)) is not None and stored:
            best, time = min(stored, key=lambda pair: pair[1])
            return Tuned(best, time, True, tuple(stored), (), len(configs) - len(stored))
    deadline = perf_counter() + seconds
    # not in order: where the time ends first, what was tried shall be from all of the space
    random.Random(0).shuffle(configs)
    contenders: list[Contender[tuple[dict[str, Any], Callable[[], object]]]] = []
    refused = []
    for number, config in enumerate(configs):
        if number and contenders and perf_counter() > deadline:
            break
        try:
            runnable = build(**config)
            runnable()
        except JitdnnError as error:
            refused.append((config, str(error)))
            continue
        contenders.append(Contender((config, runnable)))
    if not contenders:
        reasons = {_text(config): reason for config, reason in refused}
        raise NotSupported(f"no configuration of {key} can be built:", reasons)
    untried = len(configs) - len(contenders) - len(refused)
    measure(contenders, _run, deadline)
    times = tuple((c.what[0], c.seconds) for c in contenders)
    best, time = min(times, key=lambda pair: pair[1])
    rows = [(_text(config), _VERSION, value, 0) for config, value in times]
    store.record(problem, "", device.name, [*rows, (_space_name(space), _VERSION, time, 0)])
    return Tuned(best, time, False, times, tuple(refused), untried)


def _run(what: tuple[dict[str, Any], Callable[[], object]], calls: int) -> float:
    runnable = what[1]
    start = perf_counter()
    for _ in range(calls):
        runnable()
    return (perf_counter() - start) / calls


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=repr)


def _space_name(space: Mapping[str, Sequence[Any]]) -> str:
    return "space " + _text({name: list(values) for name, values in space.items()})
