"""`get` without waiting for a compiler: another kernel of the same plan runs until the chosen one is compiled.

The stand-in is the fastest candidate whose code is in a cache, of those that the request allows. Where there is none,
one whose code is generic is compiled while the caller waits, since other problems need the same: `direct` in plain C.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jitdnn import locks, log
from jitdnn.errors import CompileError, JitdnnError
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.planner.choose import NotCompiled, build, get
from jitdnn.planner.compiling import Task, compile_all, pool
from jitdnn.planner.plan import Part, Plan, Request, format_seconds
from jitdnn.planner.survey import AlgorithmCandidate, completed
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.missing import Missing, gathering
from jitdnn.settings import current, in_force

# about what a compiler takes: a call that is slower gains nothing
LONGEST_SECONDS = 0.5


class Compiling:
    """The choice for a problem, from when its compilation is asked for until it has taken over in a plan.

    What `make` raises is raised by the next call, once, and compiling begins again. The plan is not kept alive: if
    nobody has it any more when a thread is free, nothing is compiled.
    """

    def __init__(self, name: str, make: Callable[[], Plan]) -> None:
        self.name = name
        self._make = make
        self._plan: weakref.ref[Plan] | None = None
        self._made: Plan | None = None
        self._values = current()
        self._lock = locks.lock()
        self._task = pool.submit(Task(self._compile))

    def attach(self, plan: Plan) -> Plan:
        """Have `plan` run until the choice is there, which is returned in its place if it is there already."""
        with self._lock:
            if self._made is not None:
                return self._made
            self._plan = weakref.ref(plan)
            plan.stands_in_for(self)
        log.fallback_once(
            ("stands in", plan.device.name, str(plan.problem), self.name, plan.algorithm),
            f"{self.name} is being compiled for {plan.problem}: {plan.algorithm} stands in, in about "
            f"{format_seconds(plan.seconds)} a call",
        )
        return plan

    @property
    def is_done(self) -> bool:
        return self._task.is_done

    def result(self) -> Plan:
        """The choice, for a caller who waits. Raises what `get` raises."""
        self.wait()
        assert self._made is not None
        return self._made

    def wait(self) -> None:
        self._task.wait()
        self.check()

    def check(self) -> None:
        task = self._task
        if not task.is_done or task.error is None:
            return
        with self._lock:
            if self._task is task:
                self._task = pool.submit(Task(self._compile))
        raise task.error

    def _compile(self) -> None:
        if self._plan is not None and self._plan() is None:
            return
        with in_force(self._values):
            made = self._make()
            with self._lock:
                plan = None if self._plan is None else self._plan()
                if plan is None:
                    self._made = made
                    return
                stand_in = plan.algorithm
                plan.take_over(made)
            log.fallback_once(
                ("takes over", plan.device.name, str(plan.problem), plan.algorithm),
                f"{plan.algorithm} is compiled and takes over from {stand_in} for {plan.problem}: "
                f"{format_seconds(plan.seconds)} a call are expected",
            )


def get_in_background(
    problem: Problem, device: Device, request: Request, epilogue: Epilogue | None = None
) -> Plan:
    """What `get` plans, with a kernel that stands in where the chosen one is not compiled: `Plan.pending` has that.

    It waits as `get` does where results must be the same from call to call (`deterministic`), if there is nothing that
    could stand in, and while more is being compiled than the pool takes. Raises what `get` raises.
    """
    if request.deterministic or pool.is_full:
        return get(problem, device, request, epilogue)
    make = partial(get, problem, device, request, epilogue)
    try:
        return make(waits=False)
    except NotCompiled as lacking:
        choice = lacking
    incomplete: list[_Built] = []
    found = _first_complete(_built(problem, device, epilogue, choice.candidates), incomplete)
    generic = _generic(incomplete, choice) if found is None else ()
    if generic is None:
        return make()
    compiling = Compiling(choice.name, make)  # beside what is compiled here
    if found is None:
        try:
            compile_all(generic)
            found = _first_complete(_built(problem, device, epilogue, choice.candidates), [])
        except CompileError:
            pass
    if found is None:
        return compiling.result()
    candidate, kernel = found.candidate, found.kernel
    summaries = [replace(o.summary, chosen=o is candidate) for o in choice.candidates]
    parts = [Part(problem, candidate.algorithm, kernel, epilogue)]
    device_id = getattr(device, "device_id", None)
    complete = partial(completed, problem, device, request, epilogue)
    plan = Plan(problem, epilogue, parts, kernel, summaries, request, device, device_id, complete)
    return compiling.attach(plan)


def _by_time(candidates: Sequence[AlgorithmCandidate]) -> Iterator[AlgorithmCandidate]:
    """What may stand in, the fastest first."""
    quick = (o for o in candidates if o.is_open and o.seconds <= LONGEST_SECONDS)
    yield from sorted((o for o in quick if o.algorithm.name != "reference"), key=lambda o: o.seconds)


class _Built(NamedTuple):
    """A candidate, its kernel, and what code that lacks: with any, it cannot be called."""

    candidate: AlgorithmCandidate
    kernel: Kernel
    missing: Sequence[Missing]


def _built(
    problem: Problem, device: Device, epilogue: Epilogue | None, candidates: Sequence[AlgorithmCandidate]
) -> Iterator[_Built]:
    """What may stand in, the fastest first, built as far as its code is there."""
    for candidate in _by_time(candidates):
        try:
            with gathering() as missing:
                kernel = build(candidate.algorithm, problem, device, epilogue, candidate.workspace)
        except JitdnnError:  # it is no help; whether it matters, the choice will say
            continue
        yield _Built(candidate, kernel, missing)


def _first_complete(built: Iterable[_Built], incomplete: list[_Built]) -> _Built | None:
    """The first whose code is all there; those in front of it go into the list."""
    for one in built:
        if not one.missing:
            return one
        incomplete.append(one)
    return None


def _generic(incomplete: Sequence[_Built], choice: NotCompiled) -> Sequence[Missing] | None:
    """What the fastest candidate lacks that lacks generic code alone; None if that is the choice, or there is none."""
    for one in incomplete:
        if all(each.is_generic for each in one.missing):
            return None if one.candidate.algorithm.name == choice.name else one.missing
    return None
