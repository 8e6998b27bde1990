"""Other interpreters that work for this one: told through their standard input, heard through their standard output.

They are fresh: nothing of the caller's program is imported in them, and it need not be guarded against that.

Questions and answers are pickled. Each side reads only what the other one writes into a pipe that they alone have: no
file, no socket, and nothing that was loaded, except as plain values inside of problems and settings.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import IO, Any, Generic, TypeVar

from jitdnn.settings import Settings

Question = TypeVar("Question")
Answer = TypeVar("Answer")

# the whole program of a worker; it finds this package where its parent did. Ctrl-C, which a terminal sends to all
# processes, is the parent's alone: a worker ends when its parent does
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = {path!r}; from {module} import serve; serve()"
)
_LONGEST_END = 5.0  # seconds that a process may take to end which has closed its pipes


class Shared(Generic[Question, Answer]):
    """Questions that several threads take one after the other, each for one who answers, and what was found."""

    def __init__(self, questions: Iterable[Question], progress: Callable[[Answer], None] | None) -> None:
        """`progress` is called with each answer, by one thread at a time."""
        self._left = deque(questions)
        self._found: dict[Question, Answer] = {}
        self._progress = progress
        self._lock = threading.Lock()

    def _work(self, ask: Callable[[Question], Answer | None]) -> None:
        """Ask until no question is left; one without an answer goes back, and this one is asked no more."""
        while True:
            try:
                question = self._left.popleft()
            except IndexError:
                return
            result = ask(question)
            if result is None:
                self._left.append(question)
                return
            with self._lock:
                self._found[question] = result
                if self._progress is not None:
                    self._progress(result)


class WorkerProcess:
    """A process that runs the `serve` of a module, which is given `start` first, and has these descriptors, too."""

    def __init__(self, module: str, start: object, descriptors: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path, module=module)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors,
        )  # fmt: skip
        self._is_told = self._tell(start)

    def _tell(self, what: object) -> bool:
        assert self._process.stdin is not None
        try:
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def ask(self, what: object) -> Any:
        """The answer; None if the process is dead."""
        assert self._process.stdout is not None
        if not (self._is_told and self._tell(what)):
            return None
        try:
            return pickle.load(self._process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            return None

    def signal(self) -> int | None:
        """The number of the signal by which it ended before anybody asked it to, None if there was none."""
        try:
            code = self._process.wait(_LONGEST_END)
        except subprocess.TimeoutExpired:
            return None
        return -code if code < 0 else None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue


def answer(working: Callable[[Any], AbstractContextManager[Callable[[Any], object]]]) -> None:
    """What a worker does: answers until nobody is left who asks.

    `working` is given what was told at the start, and gives for a `with` block what answers.
    """
    source: IO[bytes] = sys.stdin.buffer
    # What anybody prints, a library in C too, must not get between the answers, which the parent unpickles: they go
    # through a descriptor that nobody else knows.
    answers: IO[bytes] = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr
    with working(pickle.load(source)) as find:
        while True:
            try:
                asked = pickle.load(source)
            except EOFError:
                return
            pickle.dump(find(asked), answers)
            answers.flush()


def given(values: Settings) -> dict[str, Any]:
    """Settings as they are given to `settings(...)`, there too."""
    return {row.name: getattr(values, row.name) for row in fields(values) if row.name != "serial"}
