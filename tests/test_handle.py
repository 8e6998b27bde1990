"""Handles: plans are made once, settings reach them, workspaces are aligned and never shared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn
from jitdnn import handle as handle_module
from jitdnn.devices import cpu
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.handle import Handle, current_handle
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

PROBLEM = Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3))


@pytest.fixture(autouse=True)
def memory_only() -> Iterator[None]:
    with jitdnn.settings(cache=False):
        yield


class TestPlans:
    def test_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handle = Handle()
        plan = handle.plan(PROBLEM)
        monkeypatch.setattr(handle_module, "get", None)  # a second planning would fail
        assert handle.plan(PROBLEM) is plan
        assert handle.plan(Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3))) is plan, "by value"

    def test_each_request_has_its_own(self) -> None:
        handle = Handle()
        plans = [
            handle.plan(PROBLEM),
            handle.plan(PROBLEM, Request(algorithm="im2col")),
            handle.plan(PROBLEM, Request(algorithm="reference")),
        ]
        assert plans[1].algorithm == "im2col"
        assert plans[2].algorithm == "reference"
        assert handle.plan(PROBLEM, Request(algorithm="im2col")) is plans[1]

    def test_settings_reach_the_plan(self) -> None:
        handle = Handle()
        unlimited = handle.plan(PROBLEM)
        with jitdnn.settings(workspace_limit=0):
            assert handle.plan(PROBLEM).request.workspace_limit == 0
            assert handle.plan(PROBLEM).workspace == 0
        assert handle.plan(PROBLEM) is unlimited
        with jitdnn.settings(deterministic=True, accuracy="strict", math="fp64"):
            request = handle.plan(PROBLEM).request
            assert (request.deterministic, request.accuracy, request.math) == (True, "strict", "fp64")

    def test_settings_of_the_handle_come_first(self) -> None:
        handle = Handle(workspace_limit="1 MiB", threads=1)
        with jitdnn.settings(workspace_limit=0, threads=2, deterministic=True):
            assert handle.plan(PROBLEM).request == Request(workspace_limit=1 << 20, deterministic=True)
            assert handle.device.threads == 1
            assert handle.settings.threads == 1

    def test_device_follows_the_settings(self) -> None:
        handle = Handle()
        with jitdnn.settings(threads=1):
            alone = handle.plan(PROBLEM)
            assert handle.device.threads == 1
        with jitdnn.settings(threads=2):
            assert handle.device.threads == 2
            assert handle.plan(PROBLEM) is not alone

    def test_device_given(self) -> None:
        device = cpu.host(1, "plain")
        handle = Handle(device)
        assert handle.device is device
        assert handle.plan(PROBLEM).device_name == device.name

    def test_refusals_pass_through_and_are_not_remembered(self) -> None:
        handle = Handle()
        for _ in range(2):
            with pytest.raises(NotSupported, match="no algorithm 'nonsense'"):
                handle.plan(PROBLEM, Request(algorithm="nonsense"))

    def test_find_measures_once_and_remembers_on_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with jitdnn.settings(choice="find", cache=True, cache_dir=tmp_path):
            first = Handle().plan(PROBLEM)
            sources = {c.source for c in first.candidates if c.refused is None}
            assert sources == {"measured"}
            assert {row.problem for row in Store.default().rows()} == {str(PROBLEM)}
            # another process would find what is on the disk
            second = Handle().plan(PROBLEM)
            assert {c.source for c in second.candidates if c.chosen} == {"stored"}
            assert second.algorithm == first.algorithm
        with jitdnn.settings(cache=True, cache_dir=tmp_path):
            assert {c.source for c in Handle().plan(PROBLEM).candidates if c.chosen} == {"stored"}

    def test_forget(self) -> None:
        handle = Handle()
        plan = handle.plan(PROBLEM)
        handle.calls.put("a call", 1)
        handle.forget()
        assert handle.usage.calls == 0
        assert handle.plan(PROBLEM) is not plan

    def test_ever_new_shapes_do_not_fill_the_memory(self) -> None:
        handle = Handle(plans_limit=4)
        request = Request(algorithm="reference")
        for n in range(1, 9):
            plan = handle.plan(Convolution.make("fwd", (n, 1, 3, 3), (1, 1, 2, 2)), request)
            assert plan.problem.output.shape[0] == n
            assert handle.usage.plans <= 4

    def test_threads_that_want_one_plan_make_it_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Problem] = []
        real = handle_module.get

        def slow_get(problem: Problem, *arguments: Any) -> Any:
            made.append(problem)
            time.sleep(0.05)
            return real(problem, *arguments)

        monkeypatch.setattr(handle_module, "get", slow_get)
        handle = Handle(cache=False)
        with ThreadPoolExecutor(8) as pool:
            plans = list(pool.map(lambda _: handle.plan(PROBLEM), range(8)))
        assert len(made) == 1
        assert all(plan is plans[0] for plan in plans)

    @pytest.mark.parametrize(("name", "value"), [("threads", 0), ("math", "fp8"), ("no_such_setting", 1)])
    def test_bad_settings_are_refused_at_once(self, name: str, value: object) -> None:
        with pytest.raises(InvalidArgument, match=name):
            Handle(**{name: value})


class TestWorkspace:
    @pytest.mark.parametrize("size", [1, 63, 64, 65, 4097, 1 << 20])
    def test_aligned_and_writable(self, size: int) -> None:
        with Handle().workspace(size) as pointer:
            assert pointer % 64 == 0
            memory = (np.ctypeslib.ctypes.c_char * size).from_address(pointer)
            memory[0] = memory[size - 1] = b"x"

    def test_nothing_for_nothing(self) -> None:
        handle = Handle()
        with handle.workspace(0) as pointer:
            assert pointer == 0
        assert handle._blocks == []

    def test_memory_is_used_again(self) -> None:
        handle = Handle()
        with handle.workspace(1000) as first:
            pass
        with handle.workspace(500) as second:
            assert second == first
        with handle.workspace(2000):
            pass
        assert [block.bytes for block in handle._blocks] == [2000], (
            "the small block was given up for the large one"
        )

    def test_nested_blocks_are_apart(self) -> None:
        handle = Handle()
        with handle.workspace(1000) as outer, handle.workspace(1000) as inner:
            assert abs(outer - inner) >= 1000
        assert len(handle._blocks) == 2

    def test_given_back_after_an_error(self) -> None:
        handle = Handle()
        with pytest.raises(KeyError), handle.workspace(1000):
            raise KeyError
        assert len(handle._blocks) == 1

    def test_trim(self) -> None:
        handle = Handle()
        with handle.workspace(1000):
            handle.trim()
        assert len(handle._blocks) == 1, "in use then"
        handle.trim()
        assert handle._blocks == []

    def test_threads_never_share_a_block(self) -> None:
        handle = Handle()
        clashes: list[int] = []

        def work(thread: int) -> None:
            for step in range(200):
                size = 64 + (thread * 37 + step * 101) % 3000
                with handle.workspace(size) as pointer:
                    memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * size).from_address(pointer))
                    memory[:] = thread
                    time.sleep(0)
                    if not (memory == thread).all():
                        clashes.append(thread)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clashes == []
        assert 1 <= len(handle._blocks) <= 8


class TestCurrent:
    def test_one_for_each_thread(self) -> None:
        assert current_handle() is current_handle()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(current_handle).result()
        assert other is not current_handle()

    def test_with_makes_it_current_and_nests(self) -> None:
        default = current_handle()
        one, two = Handle(), Handle()
        with one as entered:
            assert entered is one
            assert current_handle() is one
            with two:
                assert current_handle() is two
                with one:
                    assert current_handle() is one
                assert current_handle() is two
            assert current_handle() is one
        assert current_handle() is default

    def test_leaves_after_an_error(self) -> None:
        with pytest.raises(KeyError), Handle():
            raise KeyError
        assert current_handle() is current_handle()

    def test_other_threads_do_not_see_it(self) -> None:
        with Handle() as mine, ThreadPoolExecutor(1) as pool:
            assert pool.submit(current_handle).result() is not mine


class TestRun:
    @pytest.mark.parametrize("algorithm", ["im2col", "reference"])
    def test_scales(self, algorithm: str) -> None:
        handle = Handle()
        plan = handle.plan(PROBLEM, Request(algorithm=algorithm))
        random = np.random.default_rng(0)
        x, w, y = (random.standard_normal(op.descriptor.shape).astype(np.float32) for op in PROBLEM.operands)
        expected = 2.0 * PROBLEM.reference(x, w) + 0.5 * y
        handle.run(plan, [x.ctypes.data, w.ctypes.data, y.ctypes.data], 2.0, 0.5)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)

    def test_shared_by_threads(self) -> None:
        handle = Handle()
        plan = handle.plan(PROBLEM, Request(algorithm="im2col"))
        assert plan.workspace > 0
        random = np.random.default_rng(0)
        x, w, _ = (random.standard_normal(op.descriptor.shape).astype(np.float32) for op in PROBLEM.operands)

        def work(scale: float) -> float:
            y = np.empty(PROBLEM.y.shape, np.float32)
            for _ in range(20):
                handle.run(plan, [x.ctypes.data, w.ctypes.data, y.ctypes.data], scale)
            return float(np.abs(y - scale * PROBLEM.reference(x, w)).max())

        with ThreadPoolExecutor(4) as pool:
            assert max(pool.map(work, (1.0, 2.0, 3.0, 4.0))) < 1e-3
