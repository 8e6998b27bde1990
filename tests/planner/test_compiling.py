"""Tasks of the pool of threads that compile: interrupts, errors, forks, and the end of the process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import jitdnn as jd
from fake_compiler import SECONDS, Compiled, Gate, Gpu, gpu_target, own_pool
from jitdnn.handle import current_handle
from jitdnn.ops.ahead import compile_ahead
from jitdnn.planner import compiling
from jitdnn.planner.compiling import Pool, Task
from jitdnn.rtcg.missing import Missing
from planner_fakes import PROBLEM


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    yield from own_pool(monkeypatch)


class TestTasks:
    def test_an_interrupt_leaves_it_to_the_next_one(self) -> None:
        done: list[int] = []

        def work() -> None:
            done.append(1)
            if len(done) == 1:
                raise KeyboardInterrupt

        task = Task(work)
        with pytest.raises(KeyboardInterrupt):
            task.run()
        assert not task.is_done
        task.wait()
        assert task.is_done
        assert task.error is None

    def test_waiting_in_the_middle_of_itself_does_not_hang(self) -> None:
        """As a signal handler may."""
        depth: list[int] = []

        def work() -> None:
            depth.append(1)
            if len(depth) == 1:
                task.wait()

        task = Task(work)
        task.wait()
        assert len(depth) == 2

    def test_the_longest_texts_are_compiled_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = Pool(1)
        begun: list[int] = []
        monkeypatch.setattr(compiling, "pool", alone)
        gate = Gate()
        alone.submit(Task(gate.pass_through))  # until all stand in line
        tasks = compiling.begin(
            [
                Missing("m", f"key {length}", False, partial(begun.append, length), length)
                for length in (3, 9, 0, 5, 3)
            ]
        )
        gate.open()
        for task in reversed(tasks):
            assert task._done.wait(SECONDS)
        alone.close(SECONDS)
        assert begun == [9, 5, 3, 0]

    def test_what_comes_later_and_is_longer_goes_first(self) -> None:
        alone, gate = Pool(1), Gate()
        begun: list[int] = []
        alone.submit(Task(gate.pass_through))
        gate.wait_until_reached()
        tasks = [alone.submit(Task(partial(begun.append, n)), n) for n in (1, 0, 7)]
        gate.open()
        for task in tasks:
            assert task._done.wait(SECONDS)
        alone.close(SECONDS)
        assert begun == [7, 1, 0]

    def test_calls_ahead_are_compiled_while_others_are_planned(self, tmp_path: Path) -> None:
        gpu, gate = Gpu(), Gate()
        came: list[bool] = []
        best = Compiled("best", seconds=1e-5, gates={"best": gate})

        def another() -> None:
            gate.wait_until_reached()
            came.append(True)
            gate.open()

        with jd.settings(cache_dir=tmp_path), gpu_target(gpu, best):  # where no run before has left the code
            compile_ahead(jd.Handle(gpu, compile="wait"), [lambda: current_handle().plan(PROBLEM), another])
        assert came == [True]
        assert best.compilations == ["best"]

    def test_a_closed_pool_takes_nothing(self, pool: Pool) -> None:
        pool.close()
        task = pool.submit(Task(lambda: None))
        assert pool.is_full
        assert not task.is_done
        task.wait()
        assert task.is_done

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_does_itself_what_its_parent_had_begun(self, pool: Pool) -> None:
        gate, is_parent = Gate(), os.getpid()

        def work() -> None:
            if os.getpid() == is_parent:
                gate.pass_through()

        task = pool.submit(Task(work))
        gate.wait_until_reached()
        child = multiprocessing.get_context("fork").Process(target=task.wait)
        child.start()
        child.join(SECONDS)
        assert child.exitcode == 0
        gate.open()


PENDING = """
import threading, time
from jitdnn.planner.compiling import Task, pool
begun = threading.Event()
def compile():
    begun.set()
    time.sleep(0.2)
    print("compiled", flush=True)
for _ in range(1000):
    pool.submit(Task(compile))
begun.wait()
print("end", flush=True)
"""


def test_the_process_ends_with_compilations_pending() -> None:
    """Those that have begun are waited for, the others are dropped."""
    done = subprocess.run(
        [sys.executable, "-c", PENDING], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("end\n")
    assert 1 <= done.stdout.count("compiled") < 1000
