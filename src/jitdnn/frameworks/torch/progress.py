"""What a model's first calls are waiting for: a line on a terminal, or a rare one in the log, from two seconds on.

Choosing kernels compiles and measures, which makes the first step of a model take seconds or minutes. `part()` is one
layer or call that is chosen, `parts()` a list of them whose length is known. The seconds are those that choosing took;
calls that follow one another closely belong together. On a terminal the line is there only while something is being
chosen, so that it never stands beside what the program prints; elsewhere the log has a line when the time has doubled.
The setting `progress` turns it off.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic, sleep

from jitdnn import log
from jitdnn.locks import lock
from jitdnn.settings import current

SECONDS = 2.0
"""For how long nothing is said."""
_QUIET_SECONDS = 30.0  # between two calls of one model's first step
_TICK = 1.0  # seldom enough not to be noticed by what is measured
_ERASE = "\r\x1b[K"


class _Progress:
    """How far the choices are that are being made now, on all threads."""

    def __init__(self) -> None:
        self._lock = lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew: what comes next belongs to another first step."""
        self._depth: dict[int, int] = {}  # parts within parts count once
        self._lists: dict[int, list[int]] = {}  # of each thread that works on a list: done, length
        self._done = 0
        self._spent, self._began, self._ended = 0.0, 0.0, -_QUIET_SECONDS
        self._next = SECONDS
        #: who says it, from the first part until a moment without one; a thread for each part would cost more than
        #: a choice by stored times
        self._ticker: threading.Thread | None = None
        self._is_said = self._is_shown = False

    def seconds(self) -> float:
        """Seconds of choosing until now."""
        return self._spent + (monotonic() - self._began if self._depth else 0.0)

    def enter(self) -> None:
        here = threading.get_ident()
        with self._lock:
            self._depth[here] = self._depth.get(here, 0) + 1
            if len(self._depth) > 1 or self._depth[here] > 1:
                return
            self._began = monotonic()
            if self._began - self._ended > _QUIET_SECONDS:
                self._done, self._spent, self._next = 0, 0.0, SECONDS
            self._is_said = current().progress and log.is_enabled(logging.WARNING)
            if self._is_said and self._ticker is None:
                self._start()

    def leave(self) -> None:
        here = threading.get_ident()
        with self._lock:
            depth = self._depth.pop(here, 1) - 1
            if depth:
                self._depth[here] = depth
                return
            self._done += 1
            if here in self._lists:
                self._lists[here][0] += 1
            if self._depth:
                return
            self._ended = monotonic()
            self._spent += self._ended - self._began
            if self._is_shown:
                self._is_shown = False
                _write(_ERASE)

    @contextmanager
    def of(self, total: int) -> Iterator[None]:
        """Parts of a list of this length follow."""
        here = threading.get_ident()
        with self._lock:
            before = self._lists.get(here)
            self._lists[here] = [0, total]
        try:
            yield
        finally:
            with self._lock:
                if before is None:
                    del self._lists[here]
                else:
                    self._lists[here] = before

    def text(self) -> str:
        """The line."""
        if self._lists:
            done, total = next(iter(self._lists.values()))
            count = f"{min(done, total)} of {total} layers of a graph"
        else:
            count = f"{self._done} kinds of calls so far"
        return f"first calls: kernels are compiled and measured beside PyTorch's: {count}, {self.seconds():.0f} s"

    def _start(self) -> None:
        wait = max(0.0, SECONDS - self._spent)
        self._ticker = threading.Thread(target=self._tick, args=(wait,), name="jitdnn-progress", daemon=True)
        try:
            self._ticker.start()
        except RuntimeError:  # no thread can be had, as at the end of the process: then nothing is said
            self._ticker = None

    def _tick(self, wait: float) -> None:
        while True:
            sleep(wait)
            with self._lock:  # so that nothing is written once the part has ended
                if self._ticker is not threading.current_thread():
                    return
                if not self._depth:
                    self._ticker = None
                    return
                if self._is_said:
                    self._is_shown = self._say()
            wait = _TICK

    def _say(self) -> bool:
        """Say how far it is; whether that is a line on a terminal."""
        if _is_terminal():
            _write(_ERASE + self.text())
            return True
        if self.seconds() >= self._next:
            while self.seconds() >= self._next:
                self._next *= 2
            log.tell(self.text())
        return False


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


progress = _Progress()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=progress.forget)


@contextmanager
def part() -> Iterator[None]:
    """One layer or call is chosen in the block."""
    progress.enter()
    try:
        yield
    finally:
        progress.leave()


def parts(total: int) -> AbstractContextManager[None]:
    """The parts of the block are a list of this length."""
    return progress.of(total)
