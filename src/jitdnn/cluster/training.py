"""`jitdnn train --on`: a training at a worker of a Dask cluster, followed from here.

This process is the only truth about the run. It has a lease for each start, follows the newest one alone, and asks
that worker for what is new; snapshots come here as they are written. Where a worker goes, the run is started again at
another one from the newest snapshot that has arrived.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jitdnn.caffe.solver_state import is_solver_state
from jitdnn.cluster import task
from jitdnn.cluster.engine import Engine
from jitdnn.cluster.places import Start, deaths_in_a_row
from jitdnn.cluster.shipping import Shipped
from jitdnn.errors import DeviceError, InvalidArgument, SnapshotError
from jitdnn.files import whole

INTERRUPTED = 130
PLOT = "curves.png"
_SOLVER = "solver.prototxt"
_PIECE = 8 << 20
_PERIOD = 0.2
_PATIENCE = 30.0  # seconds that a worker which the scheduler still has may be silent
_TELL = "jitdnn train "

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What is to be trained, and where: the options of `jitdnn train` for the process there, what it takes of a worker
    (two of "cpu"), and how often it is started again without having got on.
    """

    solver: Shipped
    options: Sequence[str]
    resources: Mapping[str, int]
    resume: Path | None = None
    plot: Path | None = None
    restarts: int = 2


class _WorkerGone(Exception):
    """The worker, or the process that trained there, is no more."""


class RemoteTraining:
    """One run at the workers of an engine. `run` trains; `interrupt`, from a signal handler, hands signals on."""

    def __init__(self, engine: Engine, wanted: Wanted, say: Say) -> None:
        self._engine, self._wanted, self._say = engine, wanted, say
        self._name = secrets.token_hex(6)
        self._lease = 0
        self._signals: list[int] = []
        self._worker = ""
        self._told = 0
        self._known: dict[str, task.File] = {}
        self.newest: Path | None = None  # snapshot of this run that has arrived
        self.is_stopping = False

    def interrupt(self, number: int, *, is_stop: bool) -> None:
        """Have the process there get this signal; `is_stop`: the run ends with it."""
        self.is_stopping |= is_stop
        self._signals.append(number)

    def run(self) -> int:
        """Train to the end, and return the exit code that a local training would have had. Raises DeviceError where the
        run cannot be started or its workers keep dying, or no scheduler answers any more.
        """
        self._check_places()
        deaths, died_at = 0, None
        while True:
            try:
                return self._once()
            except _WorkerGone as gone:
                at = self._iteration()
                deaths = deaths_in_a_row(deaths, died_at, at)
                died_at = at
                advice = f"; go on with --resume {self.newest}" if self.newest else ""
                if self.is_stopping:
                    self._say(f"{gone}, before it could take a snapshot{advice}")
                    return INTERRUPTED
                if deaths > self._wanted.restarts:
                    raise DeviceError(f"{gone}, {deaths} times without getting on{advice}") from None
                since = f"from {self.newest.name}" if self.newest else "from where it began"
                self._say(f"{gone}: started again {since}")

    def _iteration(self) -> int:
        return _iteration_of(self.newest) if self.newest else 0

    def _check_places(self) -> None:
        engine, resources = self._engine, self._wanted.resources
        if engine.workers() and not engine.having(resources):
            have = sorted({f"{place.device}={place.slots}" for place in engine.places()}) or ["no resources"]
            raise InvalidArgument(
                f"no worker has {_words(resources)}: there are workers with {', '.join(have)}; start one with "
                f'`dask worker ... --resources "{_words(resources)}"`'
            )

    # ---- one start

    def _once(self) -> int:
        """One start at one worker, to its end."""
        self._told, self._known, self._worker = 0, {}, ""
        start = self._placed()
        if start is None:
            return INTERRUPTED
        try:
            self._hand_over(start)
            return self._follow(start)
        finally:
            self._engine.forget(start)

    def _placed(self) -> Start | None:
        """A start whose task a worker has; None if it was interrupted before."""
        resources, engine = self._wanted.resources, self._engine
        start: Start | None = None
        asked: list[str] = []
        began, is_told = time.monotonic(), False
        try:
            while not self.is_stopping:
                workers = engine.having(resources)
                if start is None or set(workers) != set(asked):  # Dask chooses from those that were there
                    if start is not None:
                        engine.forget(start)
                        start = None
                    if workers:
                        start, asked = self._submitted(workers), workers
                elif engine.has_ended(start):
                    raise DeviceError(f"the training could not be started: {engine.failure(start)}")
                for worker in asked:
                    if start is not None and self._ask_kindly(task.is_here, start, worker):
                        self._worker = worker
                        placed, start = start, None
                        return placed
                if not is_told and time.monotonic() - began > 2:
                    is_told = True
                    self._say(f"waiting for a worker with {_words(resources)}")
                time.sleep(_PERIOD)
        finally:
            if start is not None:
                engine.forget(start)
        self._say("stopped before it began")
        return None

    def _submitted(self, workers: Sequence[str]) -> Start:
        self._lease += 1
        start = Start(self._name, self._lease)
        words = ["train", f"{{folder}}/{_SOLVER}", *self._wanted.options, *self._resuming()]
        self._engine.start(start, workers, self._wanted.resources, task.work, start, words, os.getcwd())
        return start

    def _resuming(self) -> list[str]:
        resume = self.newest or self._wanted.resume
        return [] if resume is None else ["--resume", f"{{folder}}/{resume.name}"]

    def _hand_over(self, start: Start) -> None:
        self._give(start, _SOLVER, self._wanted.solver.text(self._folder(start)).encode())
        resume = self.newest or self._wanted.resume
        if resume is not None:
            for path in _with_model(resume):
                self._give(start, path.name, path)
        self._ask(task.go, start)

    def _folder(self, start: Start) -> str:
        return self._ask(task.folder_of, start)

    def _give(self, start: Start, name: str, content: bytes | Path) -> None:
        if isinstance(content, bytes):
            self._ask(task.give, start, name, 0, content)
            return
        with open(content, "rb") as file:
            offset = 0
            while (piece := file.read(_PIECE)) or not offset:
                self._ask(task.give, start, name, offset, piece)
                offset += max(1, len(piece))

    def _follow(self, start: Start) -> int:
        """Print what it prints, bring what it writes, hand on signals, until its end."""
        folder = self._folder(start)
        while True:
            while self._signals:
                is_told: bool = self._ask(task.tell, start, self._signals[0])
                if not is_told:
                    break
                del self._signals[0]
            news = self._ask(task.news, start, self._told)
            if news is None:
                raise _WorkerGone(f"the worker at {self._worker} was started anew")
            self._bring(start, news.files)
            self._told += len(news.lines)
            for line in news.lines:
                if not line.startswith(_TELL):  # how to go on there; here it is said with the names of here
                    self._say(line.replace(f"{folder}/", f"{self._wanted.solver.prefix.parent}/"))
            if news.state == "ended":
                assert news.code is not None
                self._ask_kindly(task.forget, start, self._worker)
                if news.code < 0:
                    raise _WorkerGone(
                        f"the training at {self._worker} was ended by {signal.Signals(-news.code).name}"
                    )
                return news.code
            if not news.lines:
                if self._engine.failure(start):
                    raise _WorkerGone(f"the worker at {self._worker} gave up: {self._engine.failure(start)}")
                time.sleep(_PERIOD)

    def _bring(self, start: Start, files: Mapping[str, task.File]) -> None:
        for name, file in sorted(files.items(), key=lambda item: (_iteration_of(Path(item[0])), item[0])):
            if self._known.get(name) == file:
                continue
            if name == PLOT and self._wanted.plot is not None:
                target = self._wanted.plot
            elif self._wanted.solver.is_snapshot(name):
                target = self._wanted.solver.prefix.parent / name
            else:
                continue
            if self._fetch(start, name, file, target):
                self._known[name] = file
                if target.suffix == ".jdsnap":
                    self.newest = target

    def _fetch(self, start: Start, name: str, file: task.File, target: Path) -> bool:
        """Write a file whole; False where it changed meanwhile. Raises OSError if it cannot be written here."""
        digest, done = hashlib.sha256(), 0
        try:
            with whole(target) as unfinished:
                with open(unfinished, "xb") as opened:
                    while piece := self._ask(task.read, start, name, done, _PIECE):
                        digest.update(piece)
                        opened.write(piece)
                        done += len(piece)
                if digest.hexdigest() != file.sha256:
                    raise _Changed
        except _Changed:
            return False
        except OSError as error:
            raise SnapshotError(f"{target} cannot be written: {error}") from error
        return True

    # ---- asking the worker

    def _ask(self, function: Callable[..., T], start: Start, *arguments: object) -> T:
        """Ask the worker of this start. Raises _WorkerGone if it is no more, DeviceError if the scheduler is gone."""
        ends = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._engine.ask(self._worker, function, start, *arguments)
            except DeviceError:
                if self._worker not in self._engine.workers():
                    raise _WorkerGone(f"the worker at {self._worker} is gone") from None
                if time.monotonic() > ends:
                    raise _WorkerGone(
                        f"the worker at {self._worker} does not answer for {_PATIENCE:g} s"
                    ) from None
                time.sleep(_PERIOD)

    def _ask_kindly(self, function: Callable[..., T], start: Start, worker: str) -> T | None:
        """Ask once, None where nothing answers."""
        try:
            return self._engine.ask(worker, function, start)
        except DeviceError:
            return None


class _Changed(Exception):
    """A file was written again while it was fetched."""


def _with_model(path: Path) -> list[Path]:
    """A snapshot, and where it is a .solverstate the weights beside it."""
    if not is_solver_state(path):
        return [path]
    stem = path.name.split(".solverstate")[0]
    beside = [path.with_name(stem + ending) for ending in (".caffemodel", ".caffemodel.h5")]
    return [path, *(each for each in beside if each.is_file())]


def _iteration_of(path: Path) -> int:
    digits = path.name.rpartition("_iter_")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _words(resources: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in resources.items())
