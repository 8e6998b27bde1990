"""Lowering a graph whose kernels are not compiled yet: other processes compile from the end while this one goes on.

Whether they are is seen at the first plans that are asked for: where those are kept from an earlier run nothing else is
done. Else the graph is lowered once without kernels, which tells what it will ask for, and as many processes share the
work as there are threads in the settings, or cores that nobody uses: compiling is over before kernels run. On a busy
machine and with one thread there is no other process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import AnyArray
from jitdnn.graph.lower.builder import Builder
from jitdnn.graph.lower.schedule import lower
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.warm import Helpers, Wanted
from jitdnn.planner.plan import Request
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import Expression
from jitdnn.settings import available_cores

_LOOKS = 6  # plans that are looked at
_ENOUGH = 2  # of them missing
_LEAST = 6  # plans to make, or a process would start for little


class _Cold(Exception):
    """Plans are missing."""


class _Watch:
    """Looks at the first plans that a handle lacks, whether they are kept on disk."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle, self._left, self._missing = handle, _LOOKS, 0

    def __call__(self, problem: Problem, request: Request, epilogue: Epilogue | None) -> None:
        if self._left:
            from jitdnn.planner import kept_plans  # brings the compiler of the processor's code along

            self._left -= 1
            self._missing += not kept_plans.is_kept(problem, self._handle.device, request, epilogue)
            if self._missing >= _ENOUGH:
                raise _Cold


class _Asking(EngineHandle):
    """A handle that makes no plans, and notes which it is asked for."""

    def __init__(self, handle: EngineHandle) -> None:
        super().__init__(**handle.overrides)
        self.wanted: dict[Wanted, None] = {}

    def plan(self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None) -> Any:
        self.wanted[Wanted(problem, epilogue, request)] = None
        return None  # which stands for nothing to run


class _Rehearsal(Builder):
    """A builder for such a handle: formulas are no plans, and compile nothing either."""

    def run(self, expression: Expression, arrays: Sequence[AnyArray], out: AnyArray) -> None:
        pass


def lowered(b: Builder) -> Builder:
    """A builder of the same graph after lowering: this one, or another where kernels had to be compiled."""
    values = b.handle.settings
    most = max(values.threads, _idle_cores()) - 1
    if most < 1 or not (values.cache and values.keep_plans) or values.choice == "find":
        lower(b)
        return b
    try:
        b.handle.before_plan = _Watch(b.handle)
        lower(b)
        return b
    except _Cold:
        b.handle.before_plan = None
        fresh = Builder(b.graph, b.shared, b.handle, b.is_last)
        wanted = _asked(fresh)
        count = min(most, len(wanted) // _LEAST)
        with Helpers(wanted, values, count) as helpers:
            b.handle.before_plan = lambda *given: helpers.leave(Wanted(given[0], given[2], given[1]))
            lower(fresh)
        return fresh
    finally:
        b.handle.before_plan = None


def _idle_cores() -> int:
    """Cores that this process may use and no other does, its own among them, by the load of the last minute."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, available_cores() - max(0, int(load - 1)))


def _asked(b: Builder) -> list[Wanted]:
    """The plans that lowering will ask for."""
    asking = _Asking(b.handle)
    lower(_Rehearsal(b.graph, b.shared, asking, b.is_last))
    return list(asking.wanted)
