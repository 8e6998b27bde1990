"""The pool of native threads: every task once, from many callers, across fork, with any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from jitdnn.devices.cpu import settle
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.devices.threads import ThreadPool, pool
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa


def counting_kernel(tasks: int, threads: int, phases: int = 1) -> CpuKernel:
    """Task i adds 1 to element i, and writes its thread's number to element tasks + i."""

    def generate(module: Module) -> None:
        with module.task("count") as (k, args, task, thread):
            cells = Arguments(k, args, 1).pointer(0, "i64")
            cells.store(cells.load(task) + 1, task)
            cells.store(thread, task + tasks)

    library = load("test-count", tasks, isa(), generate)
    return CpuKernel(library, [("count", tasks)] * phases, 1, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 1000])
def test_every_task_runs_once_in_every_phase(threads: int, tasks: int) -> None:
    cells = np.zeros(2 * tasks + 1, np.int64)
    counting_kernel(tasks, threads, phases=4)(None, [cells.ctypes.data], 1.0, 0.0, 0)
    assert (cells[:tasks] == 4).all()
    assert ((cells[tasks : 2 * tasks] >= 0) & (cells[tasks : 2 * tasks] < threads)).all()
    assert cells[-1] == 0


def test_two_threads_take_tasks_from_either_end() -> None:
    """So each of them meets the same rows in every kernel of a list."""
    tasks = 1000
    cells = np.zeros(2 * tasks + 1, np.int64)
    kernel = counting_kernel(tasks, threads=2)
    for _ in range(100):
        kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)
        assert (np.diff(cells[tasks : 2 * tasks]) >= 0).all()
    assert (cells[:tasks] == 100).all()


def test_callers_at_once_share_the_pool() -> None:
    """Whoever finds the pool busy works alone; nobody's tasks are lost or given to another's memory."""
    rounds, callers, tasks = 300, 4, 50
    kernel = counting_kernel(tasks, threads=2)
    results = [np.zeros(2 * tasks, np.int64) for _ in range(callers)]

    def call(cells: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        for _ in range(rounds):
            kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)

    threads = [threading.Thread(target=call, args=(cells,)) for cells in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((cells[:tasks] == rounds).all() for cells in results)


def test_workers_that_fell_asleep_are_no_obstacle() -> None:
    mine = ThreadPool()
    cells = np.zeros(40, np.int64)
    kernel = counting_kernel(20, threads=2)
    block = cells.ctypes.data.to_bytes(8, sys.byteorder) + bytes(24)
    for _ in range(3):
        mine.launch(kernel._table, 1, block, 2)
        for _ in range(2000):  # until the worker sleeps; it does so by itself
            if mine.sleeping:
                break
            threading.Event().wait(0.001)
        assert mine.sleeping == 1
    assert (cells[:20] == 3).all()
    mine.stop()
    assert not any(worker.is_alive() for worker in mine._workers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    kernel = counting_kernel(100, threads=2)
    cells = np.zeros(200, np.int64)
    kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)
    before = pool()
    child = os.fork()
    if child == 0:
        try:
            kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)
            fine = (cells[:100] == 2).all() and pool() is not before
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)
    assert (cells[:100] == 2).all()
    assert pool() is before


def test_the_process_ends_while_workers_spin() -> None:
    """Leaving the interpreter right after a launch neither hangs nor crashes."""
    program = textwrap.dedent(
        """
        import numpy as np
        import jitdnn as jd
        x = np.ones((4, 8, 32, 32), np.float32)
        w = np.ones((8, 8, 3, 3), np.float32)
        with jd.settings(threads=3):
            print(float(jd.conv(x, w).sum()))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(float(4 * 8 * 30 * 30 * 72))


def settled_behind_a_thread_that_spins() -> bool:
    spinning = threading.Event()
    ended: list[float] = []

    def burn() -> None:
        spinning.set()
        end = time.perf_counter() + 0.15
        while time.perf_counter() < end:
            sum(range(1000))
        ended.append(time.perf_counter())

    thread = threading.Thread(target=burn)
    thread.start()
    spinning.wait()
    settle(longest=30.0)
    waited = bool(ended)
    thread.join()
    return waited


def test_settling_waits_for_threads_that_spin() -> None:
    """Not before a thread that burns time has ended, unless others keep it from a core, and not for ever."""
    assert any(settled_behind_a_thread_that_spins() for _ in range(5))
    settle(longest=0.0)
