"""A pool of native threads that run tasks of compiled code.

The loop that hands out tasks is itself generated code (`threads_runtime.py`): a launch costs about a microsecond while
the workers are awake. A worker that finds nothing to do for a while sleeps (`threads_sleep.py`); the next launch wakes
it, and does not wait for it: the caller works too, so a launch needs no worker to finish. Python starts the workers and
ends them, and takes no part in what is between.

Where PyTorch is loaded, kernels run on its threads instead, so that two pools do not fight for the cores (`openmp.py`).

Nothing here is left undone by an exception that a signal handler raises between any two steps of Python: who
launches and who sleeps is decided in the generated code, which nobody interrupts. A handler may launch kernels itself.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jitdnn import log
from jitdnn.devices import openmp
from jitdnn.devices.threads_runtime import CALLERS_CORE, CELLS, CORES, SLOTS, STOP, runtime
from jitdnn.devices.threads_sleep import CELL_SLOTS, MASK_CORES, MOST_THREADS
from jitdnn.locks import lock
from jitdnn.settings import current

Table = ctypes.Array[ctypes.c_int64]


class ThreadPool:
    """The process's workers. One launch at a time; a second caller meanwhile does its work alone."""

    def __init__(self) -> None:
        self._library = runtime()
        # the control block, the cores of the process as bits, the workers' cells, most of which nobody ever touches
        size = SLOTS + MASK_CORES // 64 + MOST_THREADS * CELL_SLOTS
        self._memory = np.zeros(size + 8, np.int64)
        begin = int(self._memory.ctypes.data)
        self._control = begin + (-begin) % 64
        self._slots = self._memory[(self._control - begin) // 8 :]
        self._slots[CELLS] = self._control + 8 * (size - MOST_THREADS * CELL_SLOTS)
        self._slots[CALLERS_CORE] = -1
        if hasattr(os, "sched_getaffinity") and max(cores := os.sched_getaffinity(0)) < MASK_CORES:
            bits = sum(1 << core for core in cores)
            self._slots[SLOTS : SLOTS + MASK_CORES // 64] = np.frombuffer(
                bits.to_bytes(MASK_CORES // 8, "little"), "<i8"
            )
            self._slots[CORES] = self._control + 8 * SLOTS
        call = ctypes.CFUNCTYPE
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._run = call(None, pointer, pointer, integer, pointer, integer)(self._library.address("run"))
        self._replay = call(None, pointer, pointer, pointer, pointer)(self._library.address("replay"))
        each = call(None, pointer, integer)
        self._prepare, self._serve, self._wake = (
            each(self._library.address(name)) for name in ("prepare", "serve", "wake")
        )
        self._workers: list[threading.Thread] = []
        self._tried = 0  # so many workers there are, or the system does not grant more
        self._growing = threading.RLock()
        self._is_growing = False

    @property
    def sleeping(self) -> int:
        """How many workers sleep."""
        cells = self._slots[(int(self._slots[CELLS]) - self._control) // 8 :]
        return int(np.count_nonzero(cells[CELL_SLOTS : CELL_SLOTS * (len(self._workers) + 1) : CELL_SLOTS]))

    def launch(self, phases: Table, count: int, args: bytes, threads: int) -> None:
        """Run the ``count`` phases of a table on up to ``threads`` threads.

        ``args`` is the block that every task gets. Returns when the last task has ended.
        """
        if self._tried < threads - 1:
            self.grow(threads)
        self._run(self._control, phases, count, args, threads)

    def replay(self, state: int, bases: bytes, threads: int, clock: int | None) -> None:
        """Run a list of launches: see `replay` below."""
        if self._tried < threads - 1:
            self.grow(threads)
        self._replay(self._control, state, bases, clock)

    def grow(self, threads: int) -> None:
        """See that so many threads, the caller's among them, are there, as far as the system grants them."""
        workers = min(threads, MOST_THREADS) - 1
        with self._growing:
            if self._is_growing:  # a signal handler that launches in the middle of this: no two of one number
                return
            try:
                self._is_growing = True
                while len(self._workers) < workers and self._begin(len(self._workers) + 1):
                    pass
                self._tried = max(self._tried, threads - 1)
            finally:
                self._is_growing = False

    def _begin(self, number: int) -> bool:
        """Start a worker; False if the system grants no more threads, which is said once."""
        self._prepare(self._control, number)
        name = f"jitdnn-worker-{number}"
        thread = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
        try:
            self._workers.append(thread)
            thread.start()
        except BaseException as error:
            if thread.ident is None and thread in self._workers:
                self._workers.remove(thread)
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

    def _work(self, number: int) -> None:
        self._serve(self._control, number)  # as a method: a pool with workers is not garbage

    def stop(self) -> None:
        """End the workers. The pool cannot be used afterwards."""
        self._slots[STOP] = 1
        for number, thread in enumerate(self._workers, 1):
            while thread.is_alive():
                self._wake(self._control, number)
                thread.join(0.001)


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


def replayer(threads: int) -> tuple[int, int, object]:
    """For generated code: the address of `replay` for lists on up to so many threads, its first argument, and what owns
    both. Whose threads these are is decided now (`thread_pool`)."""
    theirs = openmp.shared(current().thread_pool) if threads > 1 else None
    if theirs is not None:
        return *theirs.replayer(), theirs
    own = pool()
    own.grow(threads)
    return own._library.address("replay"), own._control, own


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
