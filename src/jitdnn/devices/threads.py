"""A pool of native threads that run tasks of compiled code.

The loop that hands out tasks is itself generated code: a launch costs under a microsecond while the workers
are awake. A worker that finds nothing to do for a while goes back to Python and sleeps on a semaphore; the
next launch wakes it, and does not wait for it: the caller works too, so a launch needs no worker to finish.

    phase  : one function and its number of tasks; the phases of a kernel run one after the other
    ticket : the number of a phase, never 0; it is in OPEN while tasks of the phase may be taken

A worker counts itself in ACTIVE before it looks at OPEN again, and the caller closes the phase before it
waits for ACTIVE to fall to 0. So no worker can see one phase's function with another's tasks.

Nothing here is left undone by an exception that a signal handler raises between any two steps of Python: who
launches is decided in the generated code (BUSY), which nobody interrupts, and whoever sleeps has a gate of its
own, which may be opened twice. A handler may launch kernels itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence

from jitdnn import log
from jitdnn.locks import lock
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

# Slots of 8 bytes in the control block; what different threads write lies on different cache lines.
_OPEN, _FUNCTION, _ARGS, _TASKS, _LIMIT, _STOP = 0, 1, 2, 3, 4, 5
_NEXT, _ACTIVE, _TICKET, _BUSY = 16, 32, 48, 49
_SLOTS = 64
_IDLE_SPINS = 20_000  # about half a millisecond of pauses before a worker sleeps
_YIELD_SPINS = 2_000  # a caller that waits longer than this lets other threads have its core

_RUNTIME = """
{declarations}
define void @serial(ptr %function, ptr %args, i64 %tasks) {{
entry:
  %some = icmp sgt i64 %tasks, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void %function(ptr %args, i64 %i, i64 0)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %tasks
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define void @drain(ptr %control, i64 %thread) {{
entry:
  %function.at = getelementptr i64, ptr %control, i64 {function}
  %args.at = getelementptr i64, ptr %control, i64 {args}
  %tasks.at = getelementptr i64, ptr %control, i64 {tasks}
  %next.at = getelementptr i64, ptr %control, i64 {next}
  %function = load ptr, ptr %function.at
  %args = load ptr, ptr %args.at
  %tasks = load i64, ptr %tasks.at
  br label %take
take:
  %i = atomicrmw add ptr %next.at, i64 1 seq_cst
  %some = icmp slt i64 %i, %tasks
  br i1 %some, label %work, label %done
work:
  call void %function(ptr %args, i64 %i, i64 %thread)
  br label %take
done:
  ret void
}}

define i64 @worker(ptr %control, i64 %thread, i64 %last) {{
entry:
  %limit.at = getelementptr i64, ptr %control, i64 {limit}
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  br label %wait
wait:
  %seen = phi i64 [%last, %entry], [%ticket, %leave]
  br label %spin
spin:
  %spins = phi i64 [0, %wait], [%spins.next, %idle]
  %ticket = load atomic i64, ptr %control seq_cst, align 8
  %closed = icmp eq i64 %ticket, 0
  %old = icmp eq i64 %ticket, %seen
  %nothing = or i1 %closed, %old
  br i1 %nothing, label %idle, label %enter
idle:
  {pause}
  %stopped = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopping = icmp ne i64 %stopped, 0
  %spins.next = add i64 %spins, 1
  %long = icmp sgt i64 %spins.next, {idle_spins}
  %quit = or i1 %stopping, %long
  br i1 %quit, label %sleep, label %spin
sleep:
  ret i64 %seen
enter:
  %entered = atomicrmw add ptr %active.at, i64 1 seq_cst
  %again = load atomic i64, ptr %control seq_cst, align 8
  %same = icmp eq i64 %again, %ticket
  br i1 %same, label %allowed, label %leave
allowed:
  %limit = load i64, ptr %limit.at
  %wanted = icmp slt i64 %thread, %limit
  br i1 %wanted, label %work, label %leave
work:
  call void @drain(ptr %control, i64 %thread)
  br label %leave
leave:
  %left = atomicrmw sub ptr %active.at, i64 1 seq_cst
  br label %wait
}}

define void @run(ptr %control, ptr %phases, i64 %count, ptr %args, i64 %threads) {{
entry:
  %function.to = getelementptr i64, ptr %control, i64 {function}
  %args.to = getelementptr i64, ptr %control, i64 {args}
  %tasks.to = getelementptr i64, ptr %control, i64 {tasks}
  %limit.to = getelementptr i64, ptr %control, i64 {limit}
  %next.to = getelementptr i64, ptr %control, i64 {next}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  %ticket.at = getelementptr i64, ptr %control, i64 {ticket}
  %busy.at = getelementptr i64, ptr %control, i64 {busy}
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %claim, label %ready
claim:
  %claimed = cmpxchg ptr %busy.at, i64 0, i64 1 seq_cst seq_cst
  %won = extractvalue {{i64, i1}} %claimed, 1
  br label %ready
ready:
  %owner = phi i1 [false, %entry], [%won, %claim]
  br label %phase
phase:
  %p = phi i64 [0, %ready], [%p.next, %advance]
  %more = icmp slt i64 %p, %count
  br i1 %more, label %begin, label %finish
begin:
  %row = mul i64 %p, 2
  %function.at = getelementptr i64, ptr %phases, i64 %row
  %row.tasks = add i64 %row, 1
  %tasks.at = getelementptr i64, ptr %phases, i64 %row.tasks
  %function = load ptr, ptr %function.at
  %tasks = load i64, ptr %tasks.at
  %single = icmp slt i64 %tasks, 2
  %shared = xor i1 %single, true
  %spread = and i1 %owner, %shared
  br i1 %spread, label %open, label %serial
serial:
  call void @serial(ptr %function, ptr %args, i64 %tasks)
  br label %advance
open:
  store ptr %function, ptr %function.to
  store ptr %args, ptr %args.to
  store i64 %tasks, ptr %tasks.to
  store i64 %threads, ptr %limit.to
  store i64 0, ptr %next.to
  %last = load i64, ptr %ticket.at
  %ticket = add i64 %last, 1
  store i64 %ticket, ptr %ticket.at
  store atomic i64 %ticket, ptr %control seq_cst, align 8
  call void @drain(ptr %control, i64 0)
  store atomic i64 0, ptr %control seq_cst, align 8
  br label %join
join:
  %waited = phi i64 [0, %open], [%waited.next, %again]
  %active = load atomic i64, ptr %active.at seq_cst, align 8
  %busy = icmp ne i64 %active, 0
  br i1 %busy, label %patience, label %advance
patience:
  {pause}
  %waited.next = add i64 %waited, 1
  %long = icmp sgt i64 %waited.next, {yield_spins}
  br i1 %long, label %yield, label %again
yield:
  {yield_core}
  br label %again
again:
  br label %join
advance:
  %p.next = add i64 %p, 1
  br label %phase
finish:
  br i1 %owner, label %release, label %done
release:
  store atomic i64 0, ptr %busy.at seq_cst, align 8
  br label %done
done:
  ret void
}}
"""


def _runtime_text() -> str:
    """The pool's LLVM IR for this machine."""
    host = isa("host").triple
    pause, declarations = "", ""
    if host.startswith(("x86_64", "i686")):
        pause, declarations = "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"
    elif host.startswith(("aarch64", "arm64")):
        pause, declarations = "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"
    yield_core = ""
    if sys.platform != "win32":
        yield_core, declarations = (
            "%y = call i32 @sched_yield()",
            declarations + "declare i32 @sched_yield()\n",
        )
    return _RUNTIME.format(
        declarations=declarations, pause=pause, yield_core=yield_core,
        function=_FUNCTION, args=_ARGS, tasks=_TASKS, limit=_LIMIT, stop=_STOP, next=_NEXT, active=_ACTIVE,
        ticket=_TICKET, busy=_BUSY, idle_spins=_IDLE_SPINS, yield_spins=_YIELD_SPINS,
    )  # fmt: skip


Table = ctypes.Array[ctypes.c_int64]


class ThreadPool:
    """The process's workers. One launch at a time; a second caller meanwhile does its work alone."""

    def __init__(self) -> None:
        text = _runtime_text()
        with compiling():
            self._library = load("threads", text, isa("host"), lambda module: module.write(text))
        self._block = ctypes.create_string_buffer(8 * _SLOTS + 64)
        start = ctypes.addressof(self._block)
        self._control = start + (-start) % 64
        call = ctypes.CFUNCTYPE
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._run = call(None, pointer, pointer, integer, pointer, integer)(self._library.address("run"))
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
            if self._tried < threads - 1:
                self._grow(threads - 1)
            if self._asleep:
                self._wake_all()
        self._run(self._control, phases, count, args, threads)

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
            if ctypes.c_int64.from_address(self._control + 8 * _STOP).value:
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

    def _wake_all(self) -> None:
        if self._current_core is not None:
            self._callers_core = self._current_core()
        for gate in tuple(self._asleep):
            _open(gate)

    def stop(self) -> None:
        """End the workers. The pool cannot be used afterwards."""
        ctypes.c_int64.from_address(self._control + 8 * _STOP).value = 1
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
