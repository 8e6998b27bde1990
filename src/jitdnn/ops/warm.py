"""Planning and compiling many problems at once, in several processes, into the disk cache.

Tracing a kernel and printing it for LLVM is Python and holds the interpreter, so threads would wait for each other;
processes do not. (Compilers of GPUs let the interpreter go on: there threads it is.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from jitdnn import targets
from jitdnn.arguments import callback, integer_number, sequence
from jitdnn.errors import JitdnnError
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.locks import lock
from jitdnn.ops.worker import Shared, WorkerProcess, answer, given
from jitdnn.planner.plan import Request
from jitdnn.problems import MOST_PROBLEMS, Problem, settled_problem
from jitdnn.rtcg.use import LookUp, noting
from jitdnn.settings import MOST_THREADS, Settings, settings


class Wanted(NamedTuple):
    """A plan to make; `request` None for what the settings ask for."""

    problem: Problem
    epilogue: Epilogue | None = None
    request: Request | None = None


class Used(NamedTuple):
    """What plans took from the disk: code by its keys in the cache, and measured times by what was looked up."""

    keys: frozenset[str] = frozenset()
    looked_up: frozenset[LookUp] = frozenset()


@dataclass(frozen=True, slots=True)
class Warmed:
    """A problem that was planned: with which algorithm, in how many seconds, and how many modules of code had to be
    compiled for it (none if all were in the cache). `failure` says why there is no plan; `used` what it takes."""

    problem: Problem
    algorithm: str | None
    seconds: float
    compiled: int
    failure: str | None = None
    used: Used = field(default=Used(), repr=False, compare=False)


class Recorder(Handle):
    """A handle that notes every plan it is asked for, in ``wanted``, and runs nothing: results stay as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Wanted] = []

    def plan(self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None) -> Any:
        self.wanted.append(Wanted(problem, epilogue, request))
        return None  # which stands for nothing to run


def warm(
    problems: Iterable[Problem | str | Wanted],
    *,
    workers: int | None = None,
    progress: Callable[[Warmed], None] | None = None,
    **overrides: object,
) -> list[Warmed]:
    """Plan and compile `problems` ahead of their first call; the results in the order of the problems.

        jd.warm(["conv_fwd n1 c64 h56 w56 k64 r3 s3 pad1", "conv_fwd n1 c64 h56 w56 k256 r1 s1"])

    The code goes into the disk cache, where the first calls of this and other programs find it. `problems` are
    problems or problem strings; each different one is planned once, and none is run. `workers` processes work at it,
    this one among them, by default as many as the setting `threads`; it is this one alone where the disk cache is off,
    or if algorithms are chosen by measuring. `progress` is called after each, from one thread at a time. `overrides`
    are settings in force for the plans.

    Raises ParseError and InvalidShape for text that is no problem, InvalidArgument for a setting that there is not. A
    problem that no algorithm takes is no error: its `failure` says why.
    """
    if workers is not None:
        workers = integer_number(workers, "workers", 1, MOST_THREADS)
    callback(progress, "progress")
    wanted = [_wanted(each) for each in sequence(problems, "problems", MOST_PROBLEMS)]
    with settings(**{**overrides, "compile": "wait"}) as values:  # whoever warms wants the code itself
        different = list(dict.fromkeys(wanted))
        count = values.threads if workers is None else workers
        if not values.cache or values.choice == "find":
            count = 1
        found = _Team(different, progress).run(values, min(count, len(different)))
    return [found[each] for each in wanted]


def _wanted(problem: Problem | str | Wanted) -> Wanted:
    if isinstance(problem, Wanted):
        return problem
    return Wanted(settled_problem(problem))


def _plan(handle: Handle, wanted: Wanted) -> Warmed:
    start, algorithm, failure = perf_counter(), None, None
    with noting() as use:
        try:
            algorithm = handle.plan(wanted.problem, wanted.request, wanted.epilogue).algorithm
        except JitdnnError as error:
            failure = str(error).splitlines()[0]
    used = Used(frozenset(use.keys), frozenset(use.looked_up))
    return Warmed(wanted.problem, algorithm, perf_counter() - start, len(use.compiled), failure, used)


class _Team(Shared[Wanted, Warmed]):
    """This process and its workers, who take one problem after the other."""

    def run(self, values: Settings, count: int) -> dict[Wanted, Warmed]:
        on_gpu = targets.is_gpu(values.target)
        if count > 1 and not on_gpu:
            # a processor's facts are measured once, before all who plan by them find others each
            targets.get(values.target).device(0, values)
        workers = [] if on_gpu else [_Worker(values) for _ in range(count - 1)]
        threads = [
            threading.Thread(target=self._work, args=(worker.plan,), daemon=True) for worker in workers
        ]
        if on_gpu:
            # settings in force belong to the thread: each takes them along
            threads = [
                threading.Thread(target=copy_context().run, args=(self._alone,)) for _ in range(count - 1)
            ]
        try:
            for thread in threads:
                thread.start()
            self._alone()
            for thread in threads:
                thread.join()
            self._alone()  # of workers that died
        finally:
            self._left.clear()
            for worker in workers:
                worker.end()
        return self._found

    def _alone(self) -> None:
        with Handle() as handle:
            self._work(lambda wanted: _plan(handle, wanted))


class _Worker:
    """Another process that plans."""

    def __init__(self, values: Settings) -> None:
        self._process = WorkerProcess(__name__, given(values))

    def plan(self, wanted: Wanted) -> Warmed | None:
        """What became of it; None if the process is dead."""
        found: Warmed | None = self._process.ask(wanted)
        return found

    def end(self) -> None:
        self._process.end()


class Helpers:
    """Processes that plan and compile while this one does so too: they begin with the last problem, this one with the
    first, and all put code and plans into the disk cache.

        with Helpers(wanted, values, count) as helpers:
            for each in wanted:
                helpers.leave(each)     # waits for whoever is at it; nobody begins it now
                handle.plan(*each)

    They end with the block; what they have not finished is lost.
    """

    def __init__(self, wanted: Sequence[Wanted], values: Settings, count: int) -> None:
        self._left = deque(wanted)
        self._begun: dict[Wanted, threading.Event] = {}
        self._lock = lock()  # of these two: what nobody has left is begun by one
        self._workers: list[_Worker] = []
        self._values, self._count = values, count

    def __enter__(self) -> Helpers:
        for _ in range(self._count):
            try:
                self._workers.append(_Worker(self._values))
            except OSError:  # no more processes: those that there are do it
                break
        for worker in self._workers:
            threading.Thread(target=self._drive, args=(worker,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._left.clear()
        for worker in self._workers:
            worker.end()

    def leave(self, wanted: Wanted) -> None:
        """Have nobody begin this one, and wait until it is done if somebody has begun."""
        with self._lock:
            begun = self._begun.get(wanted)
            if begun is None and wanted in self._left:
                self._left.remove(wanted)
        if begun is not None:
            begun.wait()

    def _drive(self, worker: _Worker) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                wanted = self._left.pop()
                done = self._begun.setdefault(wanted, threading.Event())
            try:
                if worker.plan(wanted) is None:
                    return  # the process is dead: whoever asks for the rest makes it
            finally:
                done.set()


def serve() -> None:
    """What a worker does: plans what it is told to."""
    answer(_planning)


@contextmanager
def _planning(values: dict[str, Any]) -> Iterator[Callable[[Wanted], Warmed]]:
    with settings(**values), Handle() as handle:
        yield partial(_plan, handle)
