"""Calls on a GPU that are planned and not launched, so that all code that they lack is compiled at once.

One call after the other waits for its own compiler; a net knows all of its calls before the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.compiling import Task, begin
from jitdnn.planner.plan import Request
from jitdnn.problems import Problem
from jitdnn.rtcg.missing import Missing, gathering
from jitdnn.settings import settings

ENOUGH = 48  # plans: where they lack no code, a process before this one has compiled it all


class _Planner(Handle):
    """A handle whose calls are planned and not launched: results stay as they were."""

    launches = False

    def __init__(self, like: Handle, missing: Sequence[Missing]) -> None:
        super().__init__(like.device, stream=like.stream, **like.overrides)
        self._missing, self._plans_made = missing, 0

    def plan(self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None) -> Any:
        super().plan(problem, request, epilogue)
        self._plans_made += 1
        if self._plans_made == ENOUGH and not self._missing:
            raise _Complete
        return None  # which stands for nothing to run


class _Complete(Exception):
    """Code was there for all plans so far: it is for the others."""


def compile_ahead(handle: Handle, calls: Iterable[Callable[[], object]]) -> None:
    """Compile what the calls of some functions need on a handle's GPU, several modules at once, and launch nothing.

    The code goes into the cache, where the calls find it when they are made again. What cannot be planned or compiled
    is passed over, and the rest of its function with it: it says why when it is called. Where algorithms are chosen by
    measuring or compiled in the background nothing is done: both compile several at once by themselves.
    """
    values = handle.settings
    if values.choice == "find" or values.compile != "wait":
        return
    outside = copy_context()
    begun: set[str] = set()
    tasks: list[Task] = []
    seen = 0
    # the calls themselves tell what they choose
    with settings(log="off"), gathering() as missing, _Planner(handle, missing), suppress(_Complete):
        for call in calls:
            try:
                call()
            except _Complete:
                raise
            except Exception:
                pass
            found = [each for each in missing[seen:] if each.key not in begun]
            seen = len(missing)
            if found:  # compiled while the other calls are planned
                begun.update(each.key for each in found)
                tasks += outside.run(begin, found)
    for task in tasks:
        task.wait()
