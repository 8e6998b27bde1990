"""A pool of native threads that run tasks of compiled code.

The loop that hands out tasks is itself generated code (`threads_runtime.py`): a launch costs about a microsecond while
the workers are awake. A worker that finds nothing to do for a while goes back to Python and sleeps on a semaphore; the
next launch wakes it, and does not wait for it: the caller works too, so a launch needs no worker to finish.

Where PyTorch is loaded, kernels run on its threads instead, so that two pools do not fight for the cores (`openmp.py`).

Nothing here is left undone by an exception that a signal handler raises between any two steps of Python: who
launches is decided in the generated code (BUSY), which nobody interrupts, and whoever sleeps has a gate of its
own, which may be opened twice. A handler may launch kernels itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jitdnn import log
from jitdnn.devices import openmp
from jitdnn.devices.threads_runtime import SLOTS, STOP, runtime
from jitdnn.locks import lock
from jitdnn.settings import current

Table = ctypes.Array[ctypes.c_int64]


class ThreadPool:
    """The process's workers. One launch at a time; a second caller meanwhile does its work alone."""

    def __init__(self) -> None:
        self._library = runtime()
        self._block = ctypes.create_string_buffer(8 * SLOTS + 64)
        start = ctypes.addressof(self._block)
        self._control = start + (-start) % 64
        call = ctypes.CFUNCTYPE
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._run = call(None, pointer, pointer, integer, pointer, integer)(self._library.address("run"))
        self._replay = call(None, pointer, pointer, pointer, pointer)(self._library.address("replay"))
        self._work = call(integer, pointer, integer, integer)(self._library.address("worker"))
        self._asleep: set[threading.Lock] = set()  # the gates behind which workers sleep
        self._current_core = _current_core() if hasattr(os, "sched_setaffinity") else None
        self._cores = os.sched_getaffinity(0) if self._current_core is not None else set()
        self._callers_core = -1
        self._workers: list[tuple[threading.Thread, threading.Lock]] = []
        self._tried = 0  # so many workers there are, or the system does not grant more
        self._growing = threading.RLock()
        self._is_growing = False

    def launch(self, phases: Table, count: int, args: bytes, threads: int) -> None:
        """Run the ``count`` phases of a table on up to ``threads`` threads.

        ``args`` is the block that every task gets. Returns when the last task has ended.
        """
        if threads > 1:
            self._wake(threads)
        self._run(self._control, phases, count, args, threads)

    def replay(self, state: int, bases: bytes, threads: int, clock: int | None) -> None:
        """Run a list of launches: see `replay` below."""
        if threads > 1:
            self._wake(threads)
        self._replay(self._control, state, bases, clock)

    def _wake(self, threads: int) -> None:
        """See that so many threads, the caller's among them, are there and awake."""
        if self._tried < threads - 1:
            self._grow(threads - 1)
        if self._asleep:
            self._wake_asleep(threads - 1)

    def _grow(self, workers: int) -> None:
        with self._growing:
            if self._is_growing:  # a signal handler that launches in the middle of this: no two of one number
                return
            try:
                self._is_growing = True
                while len(self._workers) < workers and self._begin(len(self._workers) + 1):
                    pass
                self._tried = max(self._tried, workers)
            finally:
                self._is_growing = False

    def _begin(self, number: int) -> bool:
        """Start a worker; False if the system grants no more threads, which is said once."""
        gate = threading.Lock()
        gate.acquire()
        name = f"jitdnn-worker-{number}"
        thread = threading.Thread(target=self._serve, args=(number, gate), name=name, daemon=True)
        worker = (thread, gate)
        try:
            self._workers.append(worker)
            thread.start()
        except BaseException as error:
            if thread.ident is None and worker in self._workers:
                self._workers.remove(worker)
            # memory for its stack is missing, or the interpreter is about to end
            if not isinstance(error, (RuntimeError, MemoryError)):
                raise
            log.fallback_once(
                "no more threads",
                f"no more than {number - 1} threads could be started beside the caller's ({error}): kernels run "
                "on as many; raise the limit of processes (ulimit -u) or of memory, or set JITDNN_THREADS lower",
            )
            return False
        return True

    def _serve(self, number: int, gate: threading.Lock) -> None:
        last = 0
        while True:
            last = self._work(self._control, number, last)
            if ctypes.c_int64.from_address(self._control + 8 * STOP).value:
                return
            self._asleep.add(gate)
            gate.acquire()
            self._asleep.discard(gate)
            self._leave_the_callers_core()

    def _leave_the_callers_core(self) -> None:
        """Linux wakes a thread on the core of whoever wakes it, and takes milliseconds to move it from there."""
        others = self._cores - {self._callers_core}
        if others and others != self._cores:
            with contextlib.suppress(OSError):  # the cores that the process may use have changed meanwhile
                os.sched_setaffinity(0, others)

    def _wake_asleep(self, workers: int) -> None:
        """Wake those of the first `workers` that sleep: the others would find no work, and each needs the
        interpreter's lock to wake and to sleep again."""
        if self._current_core is not None:
            self._callers_core = self._current_core()
        for _, gate in self._workers[:workers]:
            if gate in self._asleep:
                _open(gate)

    def stop(self) -> None:
        """End the workers. The pool cannot be used afterwards."""
        ctypes.c_int64.from_address(self._control + 8 * STOP).value = 1
        for thread, gate in self._workers:
            while thread.is_alive():  # a worker may be on its way to sleep: wake it until it is gone
                _open(gate)
                thread.join(0.001)


def _open(gate: threading.Lock) -> None:
    """Let whoever sleeps behind a gate, or is about to, go on."""
    with contextlib.suppress(RuntimeError):  # it is open already
        gate.release()


def _current_core() -> Callable[[], int] | None:
    """The C library's function that tells on which core the calling thread runs, if it has one."""
    try:
        function = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return None
    function.restype = ctypes.c_int
    found: Callable[[], int] = function
    return found


_pool: ThreadPool | None = None
_pool_lock = lock()


def pool() -> ThreadPool:
    """The process's pool, made at its first use and again in a forked child."""
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = ThreadPool()
    return _pool


def launch(phases: Table, count: int, args: bytes, threads: int) -> None:
    """Run the ``count`` phases of a table on up to ``threads`` threads: PyTorch's or our own (`thread_pool`).

    ``args`` is the block that every task gets; the thread's number that it gets besides is less than ``threads``.
    Returns when the last task has ended.
    """
    if threads > 1:
        theirs = openmp.shared(current().thread_pool)
        if theirs is not None:
            theirs.launch(phases, count, args, threads)
            return
    pool().launch(phases, count, args, threads)


def idle_task() -> int:
    """The address of a task that returns at once."""
    return runtime().address("nothing")


def replay(state: int, bases: bytes, threads: int, clock: int | None = None) -> None:
    """Run the list of launches whose state is at an address (`launch_list.py`), on up to ``threads`` threads.

    ``bases`` are the addresses of the caller's memory as integers of 64 bits. ``clock``: where the times of the start
    and of each launch's end are put. Workers are woken once, and do not go to sleep before the list has ended.
    """
    if threads > 1:
        theirs = openmp.shared(current().thread_pool)
        if theirs is not None:
            theirs.replay(state, bases, clock)
            return
    pool().replay(state, bases, threads, clock)


def serial_replay() -> Callable[[int, bytes, None], None]:
    """`replay` of a list whose launches take one thread each, by (state, bases, None), in the shortest way."""
    own = pool()
    replay: Any = partial(own._replay, own._control)  # which one thread neither claims nor writes to
    replay.owner = own
    found: Callable[[int, bytes, None], None] = replay
    return found


def _forget() -> None:
    """In a forked child: the parent's threads are not there."""
    global _pool
    _pool = None


def _stop_at_exit() -> None:
    if _pool is not None:
        _pool.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_stop_at_exit)


def phase_table(phases: Sequence[tuple[int, int]]) -> Table:
    """(function address, tasks) pairs laid out as ``ThreadPool.launch`` reads them."""
    flat = [number for phase in phases for number in phase]
    return (ctypes.c_int64 * max(1, len(flat)))(*flat)
