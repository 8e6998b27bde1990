"""Kernels on PyTorch's OpenMP threads: the same results, whatever the team, the callers, and forks."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices import openmp
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its threads cannot be shared")
Cells = np.ndarray[tuple[int], np.dtype[np.int64]]


@pytest.fixture(autouse=True)
def _shared() -> Iterator[None]:
    """PyTorch's threads, and as many of them afterwards as before."""
    before = torch.get_num_threads()
    with jd.settings(thread_pool="openmp"):
        if openmp.shared("openmp") is None:
            pytest.skip(f"PyTorch's threads cannot be shared here: {openmp._refusal}")
        yield
    torch.set_num_threads(before)


def counting_kernel(phases: list[int], threads: int) -> CpuKernel:
    """Task i adds 1 to element i, and raises element 1000 + thread's number by 1 (not atomically, in its own slot)."""

    def generate(module: Module) -> None:
        with module.task("count") as (k, args, task, thread):
            cells = Arguments(k, args, 1).pointer(0, "i64")
            cells.store(cells.load(task) + 1, task)
            slot = thread + 1000
            cells.store(cells.load(slot) + 1, slot)

    library = load("test-openmp-count", 0, isa(), generate)
    return CpuKernel(library, [("count", tasks) for tasks in phases], 1, threads)


def launch(kernel: CpuKernel, cells: Cells) -> None:
    kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)


def fresh_cells() -> Cells:
    return np.zeros(1100, np.int64)


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("team", [1, 2, 5])
@pytest.mark.parametrize("phases", [[0], [1], [2], [1000], [1, 0, 7, 1, 300, 2], []])
def test_every_task_runs_once_whatever_the_team(threads: int, team: int, phases: list[int]) -> None:
    """Teams smaller and larger than the kernel's threads; thread numbers stay below those."""
    torch.set_num_threads(team)
    cells = fresh_cells()
    launch(counting_kernel(phases, threads), cells)
    expected = [sum(tasks > i for tasks in phases) for i in range(1000)]
    assert cells[:1000].tolist() == expected
    assert cells[1000:].sum() == sum(phases)
    assert not cells[1000 + threads :].any()


def test_the_team_changes_in_between() -> None:
    kernel, cells = counting_kernel([50, 50], 2), fresh_cells()
    for n in range(60):
        torch.set_num_threads(1 + n % 4)
        torch.relu(torch.ones(300_000))
        launch(kernel, cells)
    assert (cells[:50] == 120).all()


def test_callers_at_once() -> None:
    """Every caller has a team and a counter of its own."""
    rounds, callers, tasks = 200, 4, 50
    kernel = counting_kernel([tasks, 3], 2)
    results = [fresh_cells() for _ in range(callers)]

    def call(cells: Cells) -> None:
        with jd.settings(thread_pool="openmp"):  # a new thread begins with the process's settings
            for _ in range(rounds):
                launch(kernel, cells)

    threads = [threading.Thread(target=call, args=(cells,)) for cells in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cells in results:
        assert (cells[3:tasks] == rounds).all()
        assert (cells[:3] == 2 * rounds).all()


def test_inside_a_parallel_region() -> None:
    """Each thread of a team launches kernels of its own, as an operator of PyTorch's that calls us back would."""
    kernel = counting_kernel([40, 40], 2)
    theirs = openmp.shared("openmp")
    assert theirs is not None
    number = ctypes.CFUNCTYPE(ctypes.c_int)(theirs._functions[2])
    results = [fresh_cells() for _ in range(3)]
    inside: list[int] = []

    def region(_: Any) -> None:
        mine = number()
        inside.append(mine)
        with jd.settings(thread_pool="openmp"):
            for _ in range(20):
                launch(kernel, results[mine])

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    parallel = ctypes.CFUNCTYPE(None, function, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel(theirs._functions[0])(function(region), None, 3, 0)
    assert 0 in inside
    assert all((results[one][:40] == 40).all() for one in inside)


def test_both_pools_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 24, 17, 19), np.float32)
    w = rng.standard_normal((40, 24, 3, 3), np.float32)
    for threads in (1, 2, 3):
        results = []
        for pool in ("own", "openmp", "own", "openmp"):
            with jd.settings(threads=threads, thread_pool=pool, cache=False):
                results.append((jd.conv(x, w, padding=1), jd.softmax(x, axis=1)))
        for conv, softmax in results[1:]:
            np.testing.assert_array_equal(conv, results[0][0])
            np.testing.assert_array_equal(softmax, results[0][1])


PREAMBLE = """
import os, sys, threading
import numpy as np
import jitdnn as jd
from jitdnn.devices import openmp, threads
x = np.ones((4, 8, 32, 32), np.float32)
w = np.ones((8, 8, 3, 3), np.float32)
def call():
    with jd.settings(threads=3):
        assert (jd.conv(x, w) == 72).all()
def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def own(): return openmp._shared is None and threads._pool is not None
def theirs(): return openmp._shared is not None
"""


def run(script: str, **environment: str) -> str:
    """What a process of its own says on its standard error, after `script` has printed "fine"."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script) + "\nprint('fine')"],
        capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "JITDNN_THREAD_POOL": "auto", **environment},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    return done.stderr


def test_a_process_without_torch_has_threads_of_its_own() -> None:
    run("call(); assert own() and 'torch' not in sys.modules")


def test_the_threads_are_shared_as_soon_as_torch_is_imported() -> None:
    """The workers that there are by then sleep, and stay asleep."""
    run(
        """
        call()
        assert own()
        import torch
        call()
        assert theirs()
        pool = threads.pool()
        for _ in range(20_000):
            if pool.sleeping == len(pool._workers) == 2: break
            threading.Event().wait(0.001)
        for _ in range(20):
            call()
            assert pool.sleeping == 2
        with jd.settings(thread_pool="own"):
            call()
        """
    )


def test_no_workers_of_our_own_beside_torch() -> None:
    run("import torch; call(); assert theirs() and not threads.pool()._workers")


def test_the_setting_own_keeps_them_apart() -> None:
    run("import torch; call(); assert own()", JITDNN_THREAD_POOL="own")


def test_the_setting_openmp_says_where_it_fails() -> None:
    said = run("call(); call(); assert own()", JITDNN_THREAD_POOL="openmp")
    assert said.count("PyTorch is not imported") == 1


def test_the_same_library_that_torch_calls() -> None:
    """Nothing was loaded: the mapped libraries of OpenMP are those of PyTorch alone."""
    run(
        """
        import re
        def mapped():
            lines = open("/proc/self/maps").read().splitlines()
            return {line.split()[-1] for line in lines if re.search(r"lib(gomp|iomp5|omp)[-.]", line)}
        import torch
        torch.relu(torch.ones(1_000_000))
        before = mapped()
        call()
        assert theirs() and mapped() == before
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """OpenMP's threads are not there, and libgomp would wait for them: in a child and in its child."""
    run(
        """
        import torch
        torch.relu(torch.ones(1_000_000))
        call()
        assert theirs()
        def child():
            call()
            assert own()
            assert in_a_child(child_of_child) == 0
            call()
        def child_of_child():
            call()
            assert own()
        for _ in range(3):
            assert in_a_child(child) == 0
            call()
            assert theirs()
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_before_the_library_was_imported() -> None:
    """PyTorch has used its threads, then the process forks, and the child imports this library."""
    script = """
    import os, torch
    torch.relu(torch.ones(1_000_000))
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + PREAMBLE + "\ncall()\nassert own()\nos._exit(0)"],
        capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "JITDNN_THREAD_POOL": "openmp"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stderr


def test_interrupts_leave_nothing_undone() -> None:
    """Signals that raise at any time: results before and after are whole."""
    run(
        """
        import signal, torch
        def raises(*_): raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, raises)
        stopped = 0
        for n in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-5 * (n % 30))
                while True: call()
            except KeyboardInterrupt:
                stopped += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            call()
        assert stopped == 300 and theirs()
        """
    )


@pytest.mark.parametrize("how", ["interrupt", "call"])
def test_a_signal_anywhere_in_the_first_call(how: str) -> None:
    """Ctrl-C, or a handler that computes, while PyTorch's threads are looked for."""
    program = Path(__file__).parents[1] / "faults" / "interrupt.py"
    done = subprocess.run(
        [sys.executable, str(program), "shared", "--how", how, "--points", "30"],
        capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "JITDNN_THREAD_POOL": "auto", "JITDNN_LOG": "off"},
    )  # fmt: skip
    assert "0 faults" in done.stdout, done.stderr


def test_loaders_of_data() -> None:
    """Forked workers of PyTorch's that compute with this library."""
    run(
        """
        import torch
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, n):
                call()
                assert own()
                return n
        call()
        torch.relu(torch.ones(1_000_000))
        loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
        assert sorted(int(n) for n in loader) == list(range(8))
        call()
        assert theirs()
        """
    )
