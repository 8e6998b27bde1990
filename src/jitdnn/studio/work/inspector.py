"""Processes that build nets for pages, apart from the server and from training.

    inspector = Inspector(processes=2)
    found = await inspector.inspect(check, text, options, dataset, home)

A call runs in a process with a limit on its memory and a time, so that a net which asks for too much takes down nobody
else. A process that died or took too long is ended and replaced; those that nobody asked for a while are ended, so that
they hold no memory of a GPU. All of them end with the server, also when it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import resource
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.studio.processes import end_with_parent

T = TypeVar("T")
_CONTEXT = multiprocessing.get_context("spawn")
_LOOK = 0.5  # seconds between two looks whether the process of a call was ended


class InspectorDied(JitdnnError):
    """The process of a call died: it needed more memory than it may have, or was killed. REST answers 507."""

    status = 507


class InspectorTimeout(JitdnnError):
    """A call took longer than it may. REST answers 504."""

    status = 504


class _Process:
    """One process and the pipe to it; used by one call at a time."""

    def __init__(self, memory: int | None) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, memory), daemon=True)
        self.process.start()
        theirs.close()
        self.used = time.monotonic()
        self._is_ended = False
        self._call = threading.Lock()  # held while the pipe is waited at, which nobody may close meanwhile

    def call(self, message: bytes, seconds: float) -> Any:
        """Send a call and wait for its result; raises what it raised."""
        try:
            with self._call:
                self.pipe.send_bytes(message)
                self._wait(seconds)
                is_good, result = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise InspectorDied(
                "the process that looked at this died: it was killed, or needed more memory than it may have"
            ) from None
        self.used = time.monotonic()
        if is_good:
            return result
        raise result

    def _wait(self, seconds: float) -> None:
        """Wait for the result. The end of the process ends it, also where a child of that holds its end of the pipe."""
        deadline = time.monotonic() + seconds
        while not self.pipe.poll(max(0.0, min(_LOOK, deadline - time.monotonic()))):
            if self._is_ended:
                raise EOFError
            if time.monotonic() >= deadline:
                raise InspectorTimeout(f"this took longer than {seconds:g} seconds, and was ended")

    def end(self) -> None:
        """End the process, whatever it does."""
        self._is_ended = True
        self.process.kill()
        deadline = time.monotonic() + 5
        # join would wait for its children, too: they hold the pipe that it listens to
        while self.process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.002)
        with self._call:  # the number of a pipe that was closed may be another one's a moment later
            self.pipe.close()
        if self.process.exitcode is not None:
            self.process.close()


class Inspector:
    """Up to `processes` processes, started when they are needed.

    `memory` is the bytes of its own that each may take (None: no limit), `idle` the seconds after which one that nobody
    asks is ended. What is only mapped does not count: files of data sets, stacks and heaps of the threads of a machine
    with many cores, addresses that a GPU's driver reserves.
    """

    def __init__(
        self,
        processes: int = 2,
        *,
        memory: int | None = 12 << 30,
        seconds: float = 120.0,
        idle: float = 600.0,
    ) -> None:
        if processes < 1:
            raise InvalidArgument(f"processes is {processes}: at least one answers calls")
        self._memory, self._seconds, self._idle = memory, seconds, idle
        self._free = asyncio.Semaphore(processes)
        self._waiting: list[_Process] = []  # the last used is the last
        self._busy: set[_Process] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    async def inspect(self, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """`function(*arguments)` in one of the processes: a function of a module, with arguments that can be pickled.

        Raises what it raises, InspectorDied, and InspectorTimeout after `seconds` (None: those of the inspector).
        Where the task is cancelled, the process that works for it is ended.
        """
        message = pickle.dumps((function, arguments))
        async with self._free:
            process: _Process | None = None
            taking = asyncio.ensure_future(asyncio.to_thread(self._take))
            try:
                process = await asyncio.shield(taking)
                found: T = await asyncio.to_thread(process.call, message, seconds or self._seconds)
            except (InspectorDied, InspectorTimeout, asyncio.CancelledError):
                if process is not None:
                    self._give_back(process, is_good=False)
                else:  # it is being started, for nobody any more
                    taking.add_done_callback(self._put_away)
                raise
            except BaseException:
                if process is not None:
                    self._give_back(process, is_good=True)
                raise
            self._give_back(process, is_good=True)
            return found

    def _take(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise InspectorDied("the studio is ending")
            self._end_idle()
            while self._waiting:
                found = self._waiting.pop()
                if found.process.is_alive():
                    self._busy.add(found)
                    return found
                found.end()
            made = _Process(self._memory)
            self._busy.add(made)
            return made

    def _put_away(self, taking: asyncio.Future[_Process]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            self._give_back(taking.result(), is_good=True)

    def _give_back(self, process: _Process, is_good: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            if is_good and not self._is_closed:
                self._waiting.append(process)
                return
        process.end()

    def _end_idle(self) -> None:
        now = time.monotonic()
        for process in [each for each in self._waiting if now - each.used > self._idle]:
            self._waiting.remove(process)
            process.end()

    def tidy(self) -> None:
        """End the processes that nobody asked for a while; the server calls this now and then."""
        with self._lock:
            self._end_idle()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            ended = [*self._waiting, *self._busy]
            self._waiting.clear()
            self._busy.clear()
        for process in ended:
            process.end()


def _serve(pipe: Connection, memory: int | None) -> None:
    """What each process does: calls, one after the other, until the server is gone."""
    end_with_parent()
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(OSError):
        os.nice(2)
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(_answer(message))


def _answer(message: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(message)
        return pickle.dumps((True, function(*arguments)))
    except MemoryError as error:
        return pickle.dumps(
            (False, InspectorDied(f"this needs more memory than it may have: {error}".rstrip(": ")))
        )
    except Exception as error:
        try:
            told = pickle.dumps((False, error))
            pickle.loads(told)  # an exception with other arguments than it was made with cannot be made again
        except Exception:
            return pickle.dumps((False, JitdnnError(f"{type(error).__name__}: {error}")))
        return told
