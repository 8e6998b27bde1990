"""Which of our own algorithms runs where estimates of several are close: measured at the first call of a kind.

The planner takes the algorithm of the least estimate. Estimates of different algorithms are some ten percent off in
different directions, so that of two within `NEAR` of each other the slower one is taken now and then: before ours is
measured beside torch's, those are measured beside each other. Their times go to the tuning store, from where this and
all later processes plan; a call of a kind that is stored compiles and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch.choice import clock_of, least_seconds
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import stored_key, survey
from jitdnn.problems.problem import Problem

NEAR = 1.25
"""What is estimated to take so many times the least estimate may be faster."""
WORTH = 5e-4
"""Seconds of a call, by the least estimate, from which on another one is worth compiling."""
_CPU = torch.device("cpu")


def settle(handle: Handle, problem: Problem, epilogue: Epilogue | None, addresses: Sequence[int]) -> None:
    """Measure the algorithms that are nearly as fast as the one which would be chosen, and store their times.

    `addresses`: of tensors of the problem's and the epilogue's operands, in their order, those of results last written
    by whichever ran last. Nothing is done where one algorithm is ahead, where times are stored already, and for plans
    that look at no stored times or whose workspace is shared.
    """
    values = handle.settings
    request = Request.of(values)
    if request.choice != "get" or values.total_workspace is not None:
        return
    store = Store.default()
    known = survey(problem, handle.device, request, epilogue, store)
    there = [one for one in known if one.is_open]
    if not there or any(one.summary.source == "stored" for one in known):
        return
    best = min(one.estimate for one in there)
    near = [one for one in there if one.estimate <= NEAR * best]
    if len(near) < 2 or best < WORTH:
        return
    runs: list[Callable[[], None]] = []
    found = []
    for one in near:
        try:
            plan = handle.plan(problem, replace(request, algorithm=one.algorithm.name), epilogue)
        except JitdnnError:  # it does not compile
            continue
        runs.append(partial(handle.runner(plan), addresses))
        found.append(one)
    if len(runs) < 2:
        return
    times = least_seconds(runs, _CPU, clock_of(handle, _CPU))
    rows = [
        (one.algorithm.name, one.algorithm.version, seconds, one.workspace)
        for one, seconds in zip(found, times, strict=True)
    ]
    store.record(str(problem), stored_key(epilogue, request), handle.device.name, rows)
