"""`jitdnn plan`: explain how a problem would run."""

from __future__ import annotations

from jitdnn.cli.console import say
from jitdnn.handle import Handle
from jitdnn.problems import parse
from jitdnn.settings import settings


def show_plan(text: str, workspace_limit: str | None, find: bool, threads: int | None) -> None:
    """Print the table of candidates for the problem string `text`."""
    problem = parse(text)
    overrides: dict[str, object] = {}
    if workspace_limit is not None:
        overrides["workspace_limit"] = workspace_limit
    if threads is not None:
        overrides["threads"] = threads
    if find:
        overrides["choice"] = "find"
    with settings(**overrides), Handle() as handle:
        say(handle.plan(problem).explain())
