"""`jitdnn plan` with a problem: explain how it would run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitdnn import targets
from jitdnn.cli.console import say
from jitdnn.handle import Handle
from jitdnn.problems import parse
from jitdnn.settings import settings


def chosen_settings(
    workspace_limit: str | None,
    threads: int | None,
    find: bool,
    vendor: str | None,
    division: str | None,
    total_workspace: str | None = None,
) -> dict[str, object]:
    """The settings that options of a command override."""
    given = {
        "workspace_limit": workspace_limit,
        "threads": threads,
        "choice": "find" if find else None,
        "vendor": vendor,
        "division": division,
        "total_workspace": total_workspace,
    }
    return {name: value for name, value in given.items() if value is not None}


def show_plan(text: str, device: str | None, code: str | None, overrides: Mapping[str, object]) -> None:
    """Print the table of candidates for the problem string `text`, or the code of the chosen one.

    `device` may also be an architecture, sm_80: a GPU on paper, with the facts of a well-known one (docs/devices.md).
    """
    problem = parse(text)
    on_paper: Any = targets.on_paper(device) if device else None
    with settings(**overrides), Handle(on_paper or device) as handle:
        plan = handle.plan(problem)
        say(plan.explain() if code is None else plan.code(code))
