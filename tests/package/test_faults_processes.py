"""Forks, threads at exit, signals, and limits of memory and threads: the library goes on, or says why.

Each script runs in a process of its own, and one that hangs fails. What is killed, interrupted at every place, or run
64 times at once is in `tests/faults/`, and here in a small size.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from disks import environment
from paths import TESTS

FAULTS = TESTS / "faults"
HAS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
HAS_LIMITS = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of processes are Linux's"
)
PATIENCE = 240


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script with `jd`, `np` and a `call(threads)` that computes and compares, on a cache of its own."""
    prelude = """
        import os, signal, sys, threading, time
        import numpy as np
        import jitdnn as jd
        X = np.random.default_rng(0).standard_normal((4, 8, 24, 24)).astype(np.float32)
        W = np.ones((8, 8, 3, 3), np.float32)
        WINDOWS = np.lib.stride_tricks.sliding_window_view(X.astype(np.float64), (3, 3), (2, 3)).sum((1, 4, 5))
        def call(threads):
            with jd.settings(threads=threads):
                y = jd.conv(X, W)
            np.testing.assert_allclose(y, np.repeat(WINDOWS[:, None], 8, 1), rtol=1e-3, atol=1e-3)
        def fresh(n):
            np.testing.assert_allclose(jd.elementwise(f"x: {n} * x + 1")(X), n * X + 1, rtol=1e-5, atol=1e-5)
    """
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=folder,
        env=environment(JITDNN_CACHE_DIR=str(folder / "cache"), OPENBLAS_NUM_THREADS="1", **variables),
    )


def fine(done: subprocess.CompletedProcess[str], expected: str = "fine\n") -> None:
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def harness(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FAULTS / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env=environment(JITDNN_LOG="off"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- killed, interrupted, many at once


@HAS_FORK
@pytest.mark.parametrize(("subject", "times"), [("store", 25), ("code", 60), ("snapshot", 8)])
def test_sigkill_loses_nothing_committed(subject: str, times: int) -> None:
    seed = str(time.time_ns() % 10**6)
    assert f"kills {times}," in harness("kill.py", subject, "--times", str(times), "--seed", seed)


@pytest.mark.parametrize("how", ["interrupt", "call"])
@pytest.mark.parametrize(
    ("scenario", "points"),
    [
        ("launch", 30),
        ("first", 20),
        ("compile", 6),
        ("find", 2),
        ("code", 30),
        ("store", 15),
        ("snapshot", 10),
    ],
)
def test_a_signal_anywhere_leaves_nothing_undone(scenario: str, points: int, how: str) -> None:
    assert "0 faults" in harness("interrupt.py", scenario, "--how", how, "--points", str(points))


@pytest.mark.parametrize("how", ["interrupt", "call"])
def test_a_signal_anywhere_on_opencl(how: str) -> None:
    from jitdnn.devices import opencl

    if opencl.missing():
        pytest.skip(str(opencl.missing()))
    assert "0 faults" in harness("interrupt.py", "opencl", "--how", how, "--points", "15")


@pytest.mark.parametrize("copies", ["1", "2"])
def test_processes_at_once_from_an_empty_cache(copies: str) -> None:
    assert "right 4," in harness("crowd.py", "--processes", "4", "--copies", copies)


# ---- fork

CHILD = """
def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    deadline = time.time() + 100
    while time.time() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
"""


@HAS_FORK
@pytest.mark.parametrize("threads", [1, 2])
def test_fork_before_and_after_use(tmp_path: Path, threads: int) -> None:
    script = f"""
    assert in_a_child(lambda: call({threads})) == 0
    call({threads})
    for n in range(3):
        assert in_a_child(lambda: (call({threads}), fresh(n), in_a_child(lambda: call({threads})))) == 0
        call({threads})
    print("fine")
    """
    fine(run(textwrap.dedent(CHILD) + textwrap.dedent(script), tmp_path))


@HAS_FORK
def test_a_fork_while_other_threads_compile(tmp_path: Path) -> None:
    """Whatever lock another thread holds at that moment is free in the child: LLVM's, the handle's, the log's.

    Python's own are not, of a module that is being imported: so everything is imported before.
    """
    script = """
    from jitdnn import log
    fresh(-1)
    jd.relu(X)
    handle = jd.Handle()
    stopped = threading.Event()
    def compile_for_ever(first):
        n = first
        with handle:
            while not stopped.is_set():
                fresh(n)
                jd.relu(np.ones((n % 1000 + 1, 3), np.float32))
                log.fallback_once(n, "said")
                n += 1
    threads = [threading.Thread(target=compile_for_ever, args=(1_000 * n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    def work(n):
        with handle:
            fresh(100_000 + n)
            jd.relu(np.ones((2000 + n, 3), np.float32))
            log.fallback_once(-n, "said")
    results = [in_a_child(lambda: work(n)) for n in range(12)]
    stopped.set()
    assert results == [0] * 12, results
    print("fine")
    """
    fine(run(textwrap.dedent(CHILD) + textwrap.dedent(script), tmp_path, JITDNN_LOG="warning"))


@HAS_FORK
@pytest.mark.parametrize("threads", [1, 2])
def test_worker_processes_by_fork(tmp_path: Path, threads: int) -> None:
    """As loaders of data use it: a pool of forked workers, made after the parent has computed."""
    script = f"""
    import multiprocessing
    def work(n):
        call({threads})
        fresh(n)
        return n
    call({threads})
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, range(6)) == list(range(6))
    call({threads})
    print("fine")
    """
    fine(run(script, tmp_path))


# ---- the end of the interpreter


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize("what", ["calls", "compiles", "one long call"])
def test_threads_inside_calls_at_exit(tmp_path: Path, daemon: bool, what: str) -> None:
    script = f"""
    big = np.ones((32, 64, 56, 56), np.float32)
    filters = np.ones((64, 64, 3, 3), np.float32)
    end = time.time() + 2.0
    def work(first):
        with jd.settings(threads=2):
            if {what!r} == "one long call":
                jd.conv(big, filters)
                return
            n = first
            while {daemon} or time.time() < end:
                n += 1
                call(2) if {what!r} == "calls" else fresh(n)
    jd.conv(big[:1], filters)
    call(2)
    for n in range(3):
        threading.Thread(target=work, args=(1000 * n,), daemon={daemon}).start()
    time.sleep(0.3)
    print("fine", flush=True)
    """
    for _ in range(2):
        fine(run(script, tmp_path))


# ---- signals


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers for signals")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_inside_a_long_call(tmp_path: Path, threads: int) -> None:
    """The kernel ends, then KeyboardInterrupt is raised, and the library is as before."""
    # a shell starts what runs in its background with the signal ignored
    script = f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    big = np.ones((16, 64, 56, 56), np.float32)
    filters = np.ones((64, 64, 3, 3), np.float32)
    with jd.settings(threads={threads}):
        jd.conv(big, filters)
        for _ in range(5):
            threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    jd.conv(big, filters)
            except KeyboardInterrupt:
                pass
            call({threads})
    other = threading.Thread(target=call, args=({threads},))
    other.start()
    other.join(60)
    assert not other.is_alive()
    print("fine")
    """
    fine(run(script, tmp_path))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers for signals")
def test_a_handler_that_computes(tmp_path: Path) -> None:
    """With what was imported before: a module that is half imported is half there for a handler, too."""
    script = """
    count = 0
    fresh(1000)
    def handler(*_):
        global count
        count += 1
        call(2)
        fresh(count % 7)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    call(2)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    n, end = 100, time.time() + 3
    while time.time() < end:
        n += 1
        call(2)
        fresh(n)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert count > 3
    print("fine")
    """
    fine(run(script, tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_sigterm_ends_the_process(tmp_path: Path) -> None:
    script = """
    call(2)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    n = 0
    while True:
        call(2)
        fresh(n := n + 1)
    """
    assert run(script, tmp_path).returncode == -signal.SIGTERM
    fine(run("call(2)\nfresh(1)\nprint('fine')", tmp_path))


# ---- limits

LIMIT = """
import resource
def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
def limit_memory(more):
    resource.setrlimit(resource.RLIMIT_AS, (used() + more, resource.RLIM_INFINITY))
"""


@HAS_LIMITS
@pytest.mark.parametrize("mebibytes", [0, 4, 30, 70, 120])
def test_little_memory(tmp_path: Path, mebibytes: int) -> None:
    """A kernel that is there runs, one that is not there is compiled or refused, and with memory all is as before."""
    script = f"""
    call(1)
    small = np.ones((4, 8, 24, 24), np.float32)
    jd.relu(small)
    limit_memory({mebibytes} << 20)
    def attempt(work):
        try:
            return work()
        except (MemoryError, jd.JitdnnError) as error:
            return None
    for n in range(3):
        attempt(lambda: fresh(n))
        attempt(lambda: jd.conv(np.ones((2, 2, 9, 9), np.float32), np.ones((2, 2, 3, 3), np.float32)))
        attempt(lambda: jd.softmax(np.ones((n + 2, 50), np.float32), axis=1))
        attempt(lambda: jd.conv(np.ones((256, 64, 56, 56), np.float32), np.ones((64, 64, 3, 3), np.float32)))
        small[...] = -1
        jd.relu(small, out=small)
        assert (small == 0).all()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    call(1)
    fresh(100)
    print("fine")
    """
    fine(run(textwrap.dedent(LIMIT) + textwrap.dedent(script), tmp_path, JITDNN_THREADS="1"))


@HAS_LIMITS
def test_no_more_threads(tmp_path: Path) -> None:
    """Where no thread can be started, kernels run on the caller's, and one warning says so."""
    script = """
    call(1)
    fresh(1)
    import _thread
    real, left = threading._start_new_thread, 0
    def refused(*arguments, **names):
        global left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        return real(*arguments, **names)
    threading._start_new_thread = refused
    for _ in range(3):
        call(4)
    from jitdnn.devices.threads import pool
    assert len(pool()._workers) == 0
    print("fine")
    """
    done = run(script, tmp_path, JITDNN_LOG="warning")
    fine(done)
    assert done.stderr.count("threads could be started") == 1, done.stderr


@HAS_LIMITS
@pytest.mark.skipif(sys.platform != "win32" and os.geteuid() != 0, reason="only root can become another user")
def test_a_limit_of_processes(tmp_path: Path) -> None:
    script = """
    import resource, secrets, sqlite3
    call(1)
    os.setgid(64123)
    os.setuid(64123)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        sys.exit(77)
    call(4)
    print("fine")
    """
    done = run(script, tmp_path, JITDNN_LOG="warning")
    if done.returncode == 77:
        pytest.skip("the system does not count this user's threads")
    fine(done)
    assert done.stderr.count("threads could be started") == 1, done.stderr
