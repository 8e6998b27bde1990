"""A sweep as its user wants it, and the parent run that stands for it in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole
from jitdnn.studio.nets import Options
from jitdnn.studio.store import ORIGINAL, Row, Store
from jitdnn.studio.sweeps.space import Space, Value, filled, variables
from jitdnn.studio.work.control import PREPARING

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("none", "median", "halving", "hyperband")
_MOST_TRIALS = 10_000
_OPTIONS = frozenset(option.name for option in fields(Options))


@dataclass(frozen=True)
class Plan:
    """How a sweep goes: what varies, who chooses, how often, what counts.

    `metric` is the series of tests that is judged: of val accuracy the most counts, of all others the least. `parallel`
    is how many trials wait or train at a time (0: as many as there are places).
    """

    space: Space
    sampler: str = "tpe"
    trials: int = 20
    pruner: str = "none"
    metric: str = "val accuracy"
    parallel: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value, known in (("sampler", self.sampler, SAMPLERS), ("pruner", self.pruner, PRUNERS)):
            if value not in known:
                raise InvalidArgument(f"{name} is {value!r}: choose one of {', '.join(known)}")
        for name, count, most in (
            ("trials", self.trials, _MOST_TRIALS),
            ("parallel", self.parallel + 1, 1_000),
        ):
            if not isinstance(count, int) or not 1 <= count <= most:
                raise InvalidArgument(f"{name} is {count}: give 1 to {most:,}")
        if not self.metric.startswith("val "):
            raise InvalidArgument(
                f"metric is {self.metric!r}: give a series of tests, as val accuracy or val loss"
            )
        if self.sampler == "grid" and self.space.grid_size() > _MOST_TRIALS:
            raise InvalidArgument(
                f"the grid has {self.space.grid_size():,} combinations: at most {_MOST_TRIALS:,} are tried"
            )

    @property
    def is_greater_better(self) -> bool:
        """Whether the metric is to grow."""
        return "accuracy" in self.metric

    @property
    def count(self) -> int:
        """How many trials there will be: a grid ends with its last combination."""
        return min(self.trials, self.space.grid_size()) if self.sampler == "grid" else self.trials

    def plain(self) -> dict[str, Any]:
        """The plan as JSON values, which `of` reads."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return named | {"space": self.space.plain()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Plan:
        """Read a plan. Raises InvalidArgument, naming what is wrong."""
        known = {each.name for each in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise InvalidArgument(f"a sweep has no {unknown[0]!r}: {', '.join(sorted(known))}")
        return cls(**{**values, "space": Space.of(values["space"])})


def options_of(plan: Plan, base: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """The options of a trial: those of all, with its own. Raises InvalidArgument where they cannot be."""
    found = {name: value for name, value in base.items() if name in _OPTIONS}
    found |= {name: value for name, value in values.items() if name in _OPTIONS}
    Options.of(found)
    return found


def check(plan: Plan, text: str, base: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The net and the options of a first trial, for nets.check. Raises InvalidArgument where names are wrong."""
    used, named = variables(text), set(plan.space.dimensions)
    if unknown := sorted(named - _OPTIONS - used):
        raise InvalidArgument(
            f"{unknown[0]} is no option of a training, and the net has no {{{{{unknown[0]}}}}}: "
            f"options are {', '.join(sorted(_OPTIONS))}"
        )
    first = plan.space.first()
    return filled(text, first), options_of(plan, base, first)


def create(
    store: Store,
    plan: Plan,
    *,
    name: str,
    dataset: Row,
    net_name: str,
    text: str,
    options: Mapping[str, Any],
    **values: Any,
) -> int:
    """Add the parent run of a sweep, which the service takes up, and return its number.

    `values` are further columns of it and of its trials: `wants`, `priority`. Raises InvalidArgument for a plan that
    does not fit the net and the options; whether the net fits the data, `nets.check` of what `check` returns says.
    """
    check(plan, text, options)
    kept = {key: value for key, value in options.items() if key in _OPTIONS}
    run = store.insert(
        "run",
        name=name,
        kind="sweep",
        dataset=dataset["id"],
        net_name=net_name,
        max_iter=plan.count,
        options={**kept, "sweep": plan.plain()},
        state=PREPARING,
        **values,
    )
    folder: Path = store.folder(run)
    folder.mkdir(parents=True)
    write_whole(folder / ORIGINAL, lambda file: file.write(text.encode()))
    store.update("run", run, state="queued", message="")
    return run
