"""Compiling in the background: what runs meanwhile, who waits, and what takes over."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import jitdnn as jd
from fake_compiler import SECONDS, Compiled, Gate, Gpu, gpu_target, own_pool
from jitdnn import log
from jitdnn.errors import CompileError, DeviceError
from jitdnn.planner import compiling
from jitdnn.planner.compiling import Pool, Task
from planner_fakes import PROBLEM

POINTERS = (64, 128, 192)


@pytest.fixture(autouse=True)
def memory_only() -> Iterator[None]:
    """Nothing on disk, and a cache in memory that no other test has."""
    with jd.settings(cache=False, code_limit=(1 << 28) + next(_numbers), log="warning"):
        yield


_numbers = iter(range(1, 1 << 20))


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    yield from own_pool(monkeypatch)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(log, "fallback_once", lambda key, message: messages.append(message))
    return messages


def settled(plan: Any) -> Any:
    """The plan when what was begun for it has ended, one way or the other."""
    task = plan.pending._task
    assert task._done.wait(SECONDS)
    return plan


def in_background(gpu: Gpu, **settings: Any) -> jd.Handle:
    return jd.Handle(gpu, compile="background", **settings)


class TestStandIn:
    def test_the_fastest_that_is_there_runs_until_the_chosen_one_is_compiled(self, told: list[str]) -> None:
        gpu, gate = Gpu(), Gate()
        best = Compiled("best", seconds=1e-5, needs=128, gates={"best": gate})
        near, far = Compiled("near", seconds=1e-4), Compiled("far", seconds=1e-3)
        with gpu_target(gpu, best, near, far):
            for there in (near, far):
                there.build(PROBLEM, gpu)
            handle = in_background(gpu)
            plan = handle.plan(PROBLEM)
            assert (plan.algorithm, plan.pending.name, plan.workspace) == ("near", "best", 0)
            assert "near runs for now: best is being compiled" in plan.explain()
            handle.run(plan, POINTERS)
            gate.wait_until_reached()
            handle.run(plan, POINTERS)
            assert (near.runs, far.runs, best.runs) == (2, 0, 0)
            assert not plan.is_simple, "the fast path would miss the change"
            gate.open()
            plan.wait()
            assert (plan.algorithm, plan.pending, plan.workspace) == ("best", None, 128)
            assert "for now" not in plan.explain()
            assert handle.plan(PROBLEM) is plan
            handle.run(plan, POINTERS)
            assert (near.runs, best.runs) == (2, 1)
            assert best.compilations == ["best"]
        assert [message.split(":")[0].split(" for ")[0] for message in told] == [
            "best is being compiled",
            "best is compiled and takes over from near",
        ]

    def test_without_workspace_the_fast_path_is_open_afterwards(self) -> None:
        gpu, gate = Gpu(), Gate()
        best = Compiled("best", seconds=1e-5, gates={"best": gate})
        other = Compiled("other", seconds=1e-4, needs=64)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            plan = in_background(gpu).plan(PROBLEM)
            assert (plan.algorithm, plan.is_simple, plan.launch[1]) == ("other", False, 64)
            gate.open()
            plan.wait()
            assert (plan.algorithm, plan.is_simple, plan.launch[1]) == ("best", True, 0)

    def test_what_is_there_already_is_no_matter_of_the_background(self, told: list[str]) -> None:
        gpu, best = Gpu(), Compiled("best", seconds=1e-5)
        with gpu_target(gpu, best, Compiled("other", seconds=1e-4)):
            best.build(PROBLEM, gpu)
            plan = in_background(gpu).plan(PROBLEM)
            assert (plan.algorithm, plan.pending, plan.is_simple) == ("best", None, True)
        assert told == []

    @pytest.mark.parametrize(
        ("other", "limits"),
        [
            ({"needs": 1000}, {"workspace_limit": 100}),
            ({"bound": 1e-2}, {}),
            ({"mode": "tf32"}, {}),
            ({"refusal": "not this one"}, {}),
            ({"seconds": 100.0}, {}),
            ({"name": "reference"}, {}),
        ],
    )
    def test_keeps_to_the_limits_of_the_plan(self, other: dict[str, Any], limits: dict[str, Any]) -> None:
        """What may not be chosen may not stand in, nor what takes longer than the compiler."""
        gpu, best = Gpu(), Compiled("best", seconds=1e-5)
        there = Compiled(**{"name": "other", "seconds": 1e-4, **other})
        with gpu_target(gpu, best, there):
            there.build(PROBLEM, gpu)
            plan = in_background(gpu, **limits).plan(PROBLEM)
            assert (plan.algorithm, plan.pending) == ("best", None)

    def test_generic_code_is_compiled_first_where_nothing_is_there(self) -> None:
        gpu, gate = Gpu(), Gate()
        best = Compiled("best", seconds=1e-5, gates={"best": gate})
        special = Compiled("special", seconds=1e-4)
        generic = Compiled("generic", seconds=1e-3, is_generic=True)
        with gpu_target(gpu, best, special, generic):
            handle = in_background(gpu)
            plan = handle.plan(PROBLEM)
            assert (plan.algorithm, plan.pending.name) == ("generic", "best")
            gate.wait_until_reached()
            gate.open()
            assert plan.wait().algorithm == "best"
            assert (best.compilations, special.compilations, generic.compilations) == (
                ["best"],
                [],
                ["generic"],
            )

    @pytest.mark.parametrize("is_generic", [True, False])
    def test_there_may_be_nothing_to_stand_in(self, is_generic: bool) -> None:
        gpu, only = Gpu(), Compiled("only", seconds=1e-5, is_generic=is_generic)
        with gpu_target(gpu, only, Compiled("slower", seconds=1e-4)):
            plan = in_background(gpu).plan(PROBLEM)
            assert (plan.algorithm, plan.pending) == ("only", None)

    def test_generic_code_that_does_not_compile_is_no_help(self) -> None:
        gpu, best = Gpu(), Compiled("best", seconds=1e-5)
        broken = CompileError("no such instruction")
        generic = Compiled("generic", seconds=1e-3, is_generic=True, errors={"generic": broken})
        with gpu_target(gpu, best, generic):
            assert in_background(gpu).plan(PROBLEM).algorithm == "best"


class TestWaits:
    @pytest.fixture
    def parts(self) -> Iterator[tuple[Gpu, Compiled, Compiled]]:
        gpu = Gpu()
        best, other = Compiled("best", seconds=1e-5), Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            yield gpu, best, other

    def test_where_results_must_stay_the_same(self, parts: Any) -> None:
        plan = in_background(parts[0], deterministic=True).plan(PROBLEM)
        assert (plan.algorithm, plan.pending) == ("best", None)

    def test_by_default(self, parts: Any) -> None:
        assert jd.settings.current().compile == "wait"
        assert jd.Handle(parts[0]).plan(PROBLEM).algorithm == "best"

    def test_if_the_pool_is_full(self, parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "MOST_TASKS", 0)
        assert in_background(parts[0]).plan(PROBLEM).pending is None

    def test_for_an_algorithm_by_name(self, parts: Any) -> None:
        gpu, best, _ = parts
        plan = jd.plan(PROBLEM, algorithm="best", handle=in_background(gpu))
        assert (plan.algorithm, plan.pending, best.compilations) == ("best", None, ["best"])

    def test_in_a_capture_of_the_handle(self, parts: Any) -> None:
        handle = in_background(parts[0])
        handle.graph = object()  # type: ignore[assignment]
        assert handle.plan(PROBLEM).pending is None

    @pytest.mark.parametrize("whose", ["handle", "stream"])
    def test_in_a_capture_that_begins_later(self, parts: Any, whose: str) -> None:
        gpu, best, other = parts
        gate = best.gates["best"] = Gate()
        handle = in_background(gpu)
        plan = handle.plan(PROBLEM)
        handle.run_on_gpu(7, plan, POINTERS)
        gate.wait_until_reached()
        if whose == "handle":
            handle.graph = object()  # type: ignore[assignment]
        else:
            gpu.capturing.add(7)
        opener = threading.Timer(0.01, gate.open)
        opener.start()
        handle.run_on_gpu(7, plan, POINTERS)
        assert (other.runs, best.runs, plan.pending) == (1, 1, None)
        opener.join()

    def test_a_capture_compiles_itself_what_nobody_has_begun(self, parts: Any, pool: Pool) -> None:
        gpu, best, other = parts
        gates = [Gate(), Gate()]
        for gate in gates:
            pool.submit(Task(gate.pass_through))
            gate.wait_until_reached()
        handle = in_background(gpu)
        plan = handle.plan(PROBLEM)
        gpu.capturing.add(0)
        handle.run_on_gpu(None, plan, POINTERS)  # while both threads are busy
        assert (other.runs, best.runs) == (0, 1)
        for gate in gates:
            gate.open()


class TestFailure:
    def test_code_that_does_not_compile_is_refused_as_when_waiting(self, told: list[str]) -> None:
        gpu = Gpu()
        best = Compiled("best", seconds=1e-5, errors={"best": CompileError("it spills")})
        other = Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            handle = in_background(gpu)
            plan = handle.plan(PROBLEM)
            plan.wait()
            assert (plan.algorithm, plan.pending) == ("other", None)
            assert "its code does not compile: it spills" in plan.explain()
            handle.run(plan, POINTERS)
        assert any("best does not compile" in message for message in told)

    def test_what_else_goes_wrong_is_raised_by_the_next_call_and_tried_again(self) -> None:
        gpu = Gpu()
        best = Compiled("best", seconds=1e-5, errors={"best": DeviceError("no compiler any more")})
        other = Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            handle = in_background(gpu)
            plan = settled(handle.plan(PROBLEM))
            gate = best.gates["best"] = Gate()
            error = best.errors.pop("best")
            with pytest.raises(DeviceError, match="no compiler any more") as caught:
                handle.run(plan, POINTERS)
            assert caught.value is error
            handle.run(plan, POINTERS)  # which compiles again, so the other one stands in
            assert (other.runs, best.runs) == (1, 0)
            gate.open()
            plan.wait()
            handle.run(plan, POINTERS)
            assert (other.runs, best.runs) == (1, 1)

    def test_waiting_raises_it_too(self) -> None:
        gpu = Gpu()
        best = Compiled("best", seconds=1e-5, errors={"best": MemoryError("full")})
        other = Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            plan = in_background(gpu).plan(PROBLEM)
            with pytest.raises(MemoryError, match="full"):
                plan.wait()
            best.errors.clear()
            assert plan.wait().algorithm == "best"


class TestThreads:
    def test_two_with_the_same_new_problem_compile_once(self) -> None:
        gpu, gate = Gpu(), Gate()
        best = Compiled("best", seconds=1e-5, gates={"best": gate})
        other = Compiled("other", seconds=1e-4)
        plans: list[Any] = []
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            handle, together = in_background(gpu), threading.Barrier(2)

            def ask() -> None:
                with jd.settings.in_force(values):
                    together.wait(SECONDS)
                    plans.append(handle.plan(PROBLEM))
                    handle.run(plans[-1], POINTERS)

            values = jd.settings.current()
            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert plans[0] is plans[1]
            assert other.runs == 2
            gate.open()
            plans[0].wait()
            assert best.compilations == ["best"]

    def test_calls_while_it_takes_over_have_the_workspace_of_their_kernel(self) -> None:
        """Each kernel asserts that it is given its own workspace, or none."""
        gpu, gate, errors = Gpu(), Gate(), []
        best = Compiled("best", seconds=1e-5, needs=4096, gates={"best": gate})
        other = Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            handle = in_background(gpu)
            plan = handle.plan(PROBLEM)

            def call() -> None:
                try:
                    while best.runs < 100:
                        handle.run_on_gpu(None, plan, POINTERS)
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            gate.open()
            for thread in threads:
                thread.join()
        assert errors == []

    def test_a_handle_that_is_closed_meanwhile(self, pool: Pool) -> None:
        gpu, gate = Gpu(), Gate()
        best = Compiled("best", seconds=1e-5, gates={"best": gate})
        other = Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            with in_background(gpu) as handle:
                plan = weakref.ref(handle.plan(PROBLEM))
                gate.wait_until_reached()
            closed = weakref.ref(handle)
            del handle
            gc.collect()
            assert closed() is None, "the compiler keeps the handle"
            gate.open()
            pool.close(SECONDS)
            gc.collect()
            assert plan() is None, "the compiler kept the plan"

    def test_what_nobody_needs_any_more_is_not_begun(self, pool: Pool) -> None:
        gpu, gates = Gpu(), [Gate(), Gate()]
        for gate in gates:
            pool.submit(Task(gate.pass_through))
            gate.wait_until_reached()
        best, other = Compiled("best", seconds=1e-5), Compiled("other", seconds=1e-4)
        with gpu_target(gpu, best, other):
            other.build(PROBLEM, gpu)
            in_background(gpu).plan(PROBLEM)
            gc.collect()
            for gate in gates:
                gate.open()
            pool_is_done = Task(lambda: None)
            pool.submit(pool_is_done)
            assert pool_is_done._done.wait(SECONDS)
            assert best.compilations == []


class TestModules:
    def test_of_one_kernel_are_compiled_side_by_side(self) -> None:
        gpu, gates = Gpu(), {name: Gate() for name in ("pack", "gemm")}
        only = Compiled("only", modules=("pack", "gemm"), gates=gates)

        def open_when_both_are_there() -> None:
            for gate in gates.values():
                gate.wait_until_reached()
            for gate in gates.values():
                gate.open()

        opener = threading.Thread(target=open_when_both_are_there)
        opener.start()
        with gpu_target(gpu, only):
            assert jd.Handle(gpu).plan(PROBLEM).algorithm == "only"
        opener.join()
        assert sorted(only.compilations) == ["gemm", "pack"]

    def test_one_that_fails_is_raised_when_the_others_are_done(self) -> None:
        gpu = Gpu()
        only = Compiled("only", modules=("a", "b", "c"), errors={"b": CompileError("b is wrong")})
        with gpu_target(gpu, only), pytest.raises(CompileError, match="b is wrong"):
            jd.plan(PROBLEM, algorithm="only", handle=jd.Handle(gpu))
        assert {"a", "c"} <= set(only.compilations)

    def test_the_same_module_twice_is_compiled_once(self) -> None:
        gpu, only = Gpu(), Compiled("only", modules=("a", "a", "b"))
        with gpu_target(gpu, only):
            jd.Handle(gpu).plan(PROBLEM)
        assert sorted(only.compilations) == ["a", "b"]
