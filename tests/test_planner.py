"""Choosing an algorithm: policies, reasons, stored times, measuring, and the table that explains it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jitdnn
from jitdnn import log
from jitdnn.devices import cpu
from jitdnn.errors import CompileError, NotSupported
from jitdnn.kernels import tables
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, summation_bound
from jitdnn.kernels.reference import Reference
from jitdnn.planner import find as find_module
from jitdnn.planner import sampling
from jitdnn.planner import workspace as policies
from jitdnn.planner.choose import allowed_error, epilogue_key, get
from jitdnn.planner.find import find
from jitdnn.planner.plan import Plan, Request, format_seconds
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import trace
from jitdnn.settings import format_bytes
from jitdnn.tensor import TensorDescriptor

PROBLEM = Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3))
DOUBLE = Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3), dtype="f64")


@dataclass(frozen=True)
class Machine:
    target: str = "fake"
    name: str = "fake machine"
    threads: int = 1
    bandwidth: float = 1e10

    def peak_flops(self, dtype: str) -> float:
        return 1e11


DEVICE = Machine()


@dataclass
class Fake(Algorithm):
    """An algorithm that says what it is told to say, and whose kernel sleeps as long as it is told to."""

    name: str = "fake"  # type: ignore[misc]
    version: int = 1  # type: ignore[misc]
    seconds: float = 1e-3
    needs: int = 0
    refusal: str | None = None
    deterministic: bool = True  # type: ignore[misc]
    bound: float = 1e-7
    mode: str | None = None
    sleep: float = 0.0
    does_compile: bool = True
    builds: int = 0
    calls: list[tuple[Sequence[int], float, float, int]] = field(default_factory=list)

    problem = Convolution

    def refuse(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> str | None:
        return self.refusal

    def workspace(self, problem: Problem, device: Any) -> int:
        return self.needs

    def estimate(self, problem: Problem, device: Any) -> float:
        return self.seconds

    def error_bound(self, problem: Problem) -> float:
        return self.bound

    def arithmetic(self, problem: Problem) -> str:
        return self.mode or super().arithmetic(problem)

    def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Kernel:
        self.builds += 1
        if not self.does_compile:
            raise CompileError("this one never does")

        def kernel(stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
            self.calls.append((tuple(pointers), alpha, beta, workspace))
            time.sleep(self.sleep)

        return kernel


Table = Callable[..., None]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    def install(*algorithms: Algorithm) -> None:
        monkeypatch.setitem(tables.ALGORITHMS, ("fake", Convolution, "fwd"), algorithms)

    return install


@pytest.fixture(autouse=True)
def memory_only() -> Iterator[None]:
    with jitdnn.settings(cache=False, log="warning"):
        yield


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that `log.fallback_once` was given."""
    messages: list[str] = []
    monkeypatch.setattr(log, "fallback_once", lambda key, message: messages.append(message))
    return messages


def reasons(plan: Plan) -> dict[str, str | None]:
    return {candidate.name: candidate.refused for candidate in plan.candidates}


class TestGet:
    def test_fastest_estimate_wins(self, table: Table) -> None:
        table(Fake("slow", seconds=3e-3), Fake("fast", seconds=1e-3, needs=100), Fake("middle", seconds=2e-3))
        plan = get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert plan.algorithm == "fast"
        assert (plan.seconds, plan.workspace) == (1e-3, 100)
        assert [c.chosen for c in plan.candidates] == [False, True, False]
        assert all(c.source == "estimate" for c in plan.candidates)

    def test_only_the_winner_is_built(self, table: Table) -> None:
        slow, fast = Fake("slow", seconds=2e-3), Fake("fast")
        table(slow, fast)
        get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert (slow.builds, fast.builds) == (0, 1)

    @pytest.mark.parametrize(
        ("limit", "expected"), [(None, "big"), (1000, "big"), (999, "small"), (9, "none")]
    )
    def test_workspace_policies(self, table: Table, limit: int | None, expected: str) -> None:
        table(
            Fake("big", seconds=1e-3, needs=1000),
            Fake("small", seconds=2e-3, needs=10),
            Fake("none", seconds=3e-3),
        )
        assert get(PROBLEM, DEVICE, Request(workspace_limit=limit), store=Store(None)).algorithm == expected

    def test_too_much_workspace_says_how_much(self, table: Table) -> None:
        table(Fake("big", needs=3 << 20), Fake("none", seconds=1.0))
        plan = get(PROBLEM, DEVICE, Request(workspace_limit=1 << 20), store=Store(None))
        refused = reasons(plan)["big"]
        assert refused is not None
        assert f"needs {format_bytes(3 << 20)} of workspace" in refused
        assert format_bytes(2 << 20) + " above the limit of " + format_bytes(1 << 20) in refused
        assert str(3 << 20) in refused, "the value that would do"
        nothing = reasons(get(PROBLEM, DEVICE, Request(workspace_limit=0), store=Store(None)))["big"]
        assert nothing is not None
        assert "none is allowed" in nothing

    def test_own_refusal_is_kept_and_nothing_else_is_asked(self, table: Table) -> None:
        table(Fake("picky", refusal="stride 2: only stride 1"), Fake("other"))
        plan = get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert plan.algorithm == "other"
        picky = plan.candidates[0]
        assert picky.refused == "stride 2: only stride 1"
        assert (picky.seconds, picky.workspace, picky.error_bound) == (None, None, None)

    def test_deterministic(self, table: Table) -> None:
        table(Fake("atomic", seconds=1e-4, deterministic=False), Fake("ordered"))
        assert get(PROBLEM, DEVICE, Request(), store=Store(None)).algorithm == "atomic"
        plan = get(PROBLEM, DEVICE, Request(deterministic=True), store=Store(None))
        assert plan.algorithm == "ordered"
        assert "deterministic" in str(reasons(plan)["atomic"])

    def test_standard_and_strict_accuracy(self, table: Table) -> None:
        strict, standard = allowed_error(PROBLEM, "strict"), allowed_error(PROBLEM, "standard")
        assert summation_bound(PROBLEM) <= strict < standard
        assert 5.0e-6 < standard < 5.1e-6
        table(
            Fake("wild", seconds=1e-5, bound=1.01 * standard),
            Fake("winograd", seconds=1e-4, bound=0.99 * standard),
            Fake("sum", bound=strict),
        )
        plan = get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert plan.algorithm == "winograd"
        assert "standard accuracy allows" in str(reasons(plan)["wild"])
        plan = get(PROBLEM, DEVICE, Request(accuracy="strict"), store=Store(None))
        assert plan.algorithm == "sum"
        assert "strict accuracy allows" in str(reasons(plan)["winograd"])

    def test_accuracy_that_no_algorithm_reaches_is_not_asked_for(self, table: Table) -> None:
        table(Fake("worse", seconds=1e-5, bound=3e-5), Fake("best", bound=2e-5))
        plan = get(PROBLEM, DEVICE, Request(accuracy="strict"), store=Store(None))
        assert plan.algorithm == "best"

    @pytest.mark.parametrize(
        ("problem", "mode", "expected"),
        [
            (PROBLEM, "fp32", "full"),
            (PROBLEM, "tf32", "half"),
            (PROBLEM, "fp64", "double"),
            (DOUBLE, "tf32", "double"),
        ],
    )
    def test_math_mode_is_the_least_exact_arithmetic_allowed(
        self, table: Table, problem: Problem, mode: str, expected: str
    ) -> None:
        table(
            Fake("half", seconds=1e-5, mode="tf32"),
            Fake("full", seconds=1e-4, mode="fp32"),
            Fake("double", seconds=1e-3, mode="fp64"),
        )
        assert get(problem, DEVICE, Request(math=mode), store=Store(None)).algorithm == expected

    def test_algorithm_by_name_is_used_though_it_is_slower(self, table: Table) -> None:
        table(Fake("slow", seconds=5.0), Fake("fast"))
        plan = get(PROBLEM, DEVICE, Request(algorithm="slow"), store=Store(None))
        assert plan.algorithm == "slow"
        assert reasons(plan)["fast"] == "slow was asked for"

    def test_algorithm_by_name_that_refuses(self, table: Table) -> None:
        table(Fake("picky", refusal="stride 2: only stride 1"), Fake("other"))
        with pytest.raises(NotSupported) as caught:
            get(PROBLEM, DEVICE, Request(algorithm="picky"), store=Store(None))
        assert caught.value.reasons == {"picky": "stride 2: only stride 1"}
        assert "stride 2: only stride 1" in str(caught.value)

    def test_algorithm_by_name_still_obeys_the_limit(self, table: Table) -> None:
        table(Fake("big", needs=1000))
        with pytest.raises(NotSupported, match="above the limit of 10 B"):
            get(PROBLEM, DEVICE, Request(algorithm="big", workspace_limit=10), store=Store(None))

    def test_unknown_algorithm_lists_those_there_are(self, table: Table) -> None:
        table(Fake("one"), Fake("two"))
        with pytest.raises(NotSupported, match="'three' for conv_fwd on fake: there are one, two"):
            get(PROBLEM, DEVICE, Request(algorithm="three"), store=Store(None))

    def test_no_algorithm_lists_every_reason(self, table: Table) -> None:
        table(Fake("one", refusal="first reason"), Fake("two", needs=5), Fake("three", deterministic=False))
        with pytest.raises(NotSupported) as caught:
            get(PROBLEM, DEVICE, Request(workspace_limit=0, deterministic=True), store=Store(None))
        assert list(caught.value.reasons) == ["one", "two", "three"]
        assert caught.value.reasons["one"] == "first reason"
        assert str(PROBLEM) in str(caught.value)
        assert all(reason and reason in str(caught.value) for reason in caught.value.reasons.values())

    def test_what_does_not_compile_gives_way_with_a_warning(self, table: Table, warnings: list[str]) -> None:
        table(Fake("broken", does_compile=False), Fake("sound", seconds=1.0))
        plan = get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert plan.algorithm == "sound"
        assert "does not compile: this one never does" in str(reasons(plan)["broken"])
        assert len(warnings) == 1
        assert "broken does not compile" in warnings[0]
        with pytest.raises(CompileError):
            get(PROBLEM, DEVICE, Request(algorithm="broken"), store=Store(None))

    def test_last_resort_warns_with_its_cost_and_the_reasons(self, table: Table, warnings: list[str]) -> None:
        table(Fake("picky", refusal="only on Sundays"), Reference())
        plan = get(PROBLEM, DEVICE, Request(), store=Store(None))
        assert plan.algorithm == "reference"
        (message,) = warnings
        assert str(PROBLEM) in message
        assert "only on Sundays" in message
        assert format_seconds(plan.seconds) in message

    def test_reference_asked_for_by_name_does_not_warn(self, table: Table, warnings: list[str]) -> None:
        table(Fake("other"), Reference())
        assert (
            get(PROBLEM, DEVICE, Request(algorithm="reference"), store=Store(None)).algorithm == "reference"
        )
        assert warnings == []


NEEDS = st.lists(st.tuples(st.integers(0, 1000), st.floats(1e-6, 1.0)), min_size=1, max_size=6)


@hypothesis_settings(deadline=None, max_examples=60)
@given(NEEDS, st.lists(st.integers(0, 1100), min_size=2, max_size=5))
def test_more_workspace_is_never_slower(needs: list[tuple[int, float]], limits: list[int]) -> None:
    fakes = [Fake(f"a{i}", seconds=t, needs=n) for i, (n, t) in enumerate(needs)]
    fakes.append(Fake("fallback", seconds=2.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tables.ALGORITHMS, ("fake", Convolution, "fwd"), tuple(fakes))
        plans = [get(PROBLEM, DEVICE, Request(workspace_limit=n), store=Store(None)) for n in sorted(limits)]
        plans.append(get(PROBLEM, DEVICE, Request(workspace_limit=policies.FASTEST), store=Store(None)))
    seconds = [plan.seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    assert all(plan.workspace <= limit for plan, limit in zip(plans, sorted(limits), strict=False))
    assert seconds[-1] == min(fake.seconds for fake in fakes)


class TestStoredTimes:
    def record(self, store: Store, **times: float) -> None:
        rows = [(name, 1, seconds, 0) for name, seconds in times.items()]
        store.record(str(PROBLEM), "", DEVICE.name, rows)

    def test_stored_times_beat_estimates(self, table: Table) -> None:
        table(Fake("optimist", seconds=1e-3), Fake("pessimist", seconds=9e-3))
        store = Store(None)
        self.record(store, optimist=8e-3, pessimist=2e-3)
        plan = get(PROBLEM, DEVICE, Request(), store=store)
        assert plan.algorithm == "pessimist"
        assert plan.seconds == 2e-3
        assert {c.source for c in plan.candidates} == {"stored"}

    def test_unmeasured_ones_are_held_to_how_wrong_the_measured_were(self, table: Table) -> None:
        table(Fake("measured", seconds=1e-3), Fake("unknown", seconds=2e-3), Fake("promising", seconds=1e-4))
        store = Store(None)
        self.record(store, measured=5e-3)
        plan = get(PROBLEM, DEVICE, Request(), store=store)
        assert {c.name: c.source for c in plan.candidates} == {
            "measured": "stored",
            "unknown": "estimate",
            "promising": "estimate",
        }
        assert [c.seconds for c in plan.candidates] == pytest.approx([5e-3, 1e-2, 5e-4])
        assert plan.algorithm == "promising"

    def test_how_wrong_the_reference_was_says_nothing(self, table: Table) -> None:
        table(Fake("model", seconds=1e-3), Reference())
        store = Store(None)
        self.record(store, reference=1e-6)
        plan = get(PROBLEM, DEVICE, Request(), store=store)
        assert [c.seconds for c in plan.candidates] == [1e-3, 1e-6]

    @pytest.mark.parametrize("what", ["problem", "epilogue", "device", "version", "library"])
    def test_times_of_something_else_are_not_used(
        self, table: Table, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table(Fake("one", seconds=1e-3), Fake("two", seconds=2e-3))
        store = Store(None)
        problem = str(DOUBLE) if what == "problem" else str(PROBLEM)
        epilogue = "relu" if what == "epilogue" else ""
        device = "another" if what == "device" else DEVICE.name
        version = 2 if what == "version" else 1
        if what == "library":
            monkeypatch.setattr(jitdnn, "__version__", "0.0.1")
        store.record(problem, epilogue, device, [("one", version, 1.0, 0), ("two", version, 1e-9, 0)])
        monkeypatch.undo()
        table(Fake("one", seconds=1e-3), Fake("two", seconds=2e-3))
        assert get(PROBLEM, DEVICE, Request(), store=store).algorithm == "one"

    def test_a_stored_time_does_not_lift_a_refusal(self, table: Table) -> None:
        table(Fake("big", needs=100), Fake("none"))
        store = Store(None)
        self.record(store, big=1e-9)
        assert get(PROBLEM, DEVICE, Request(workspace_limit=0), store=store).algorithm == "none"

    def test_epilogues_are_told_apart(self) -> None:
        shape = PROBLEM.output.shape
        bias = TensorDescriptor(shape, (0, 1, 0, 0), "f32")
        dense = TensorDescriptor.packed(shape, "f32")
        keys = {
            epilogue_key(None),
            epilogue_key(Epilogue(trace(lambda a: a * 2.0))),
            epilogue_key(Epilogue(trace(lambda a, b: a + b), (bias,))),
            epilogue_key(Epilogue(trace(lambda a, b: a + b), (dense,))),
        }
        assert len(keys) == 4
        named = [Epilogue(trace(lambda a, b: a + b), (bias,)), Epilogue(trace(lambda p, q: p + q), (bias,))]
        assert epilogue_key(named[0]) == epilogue_key(named[1])


class TestFind:
    def test_the_clock_decides_not_the_estimate(self, table: Table) -> None:
        table(Fake("boaster", seconds=1e-4, sleep=0.02), Fake("modest", seconds=2e-3, sleep=0.002))
        store = Store(None)
        plan = find(PROBLEM, DEVICE, Request(), store=store)
        assert plan.algorithm == "modest"
        assert plan.seconds >= 0.002
        assert {c.source for c in plan.candidates} == {"measured"}
        later = get(PROBLEM, DEVICE, Request(), store=store)
        assert later.algorithm == "modest"
        assert {c.source for c in later.candidates} == {"stored"}
        assert later.seconds == plan.seconds

    def test_refused_ones_are_neither_built_nor_run(self, table: Table) -> None:
        big, picky = Fake("big", needs=100), Fake("picky", refusal="no")
        table(big, picky, Fake("sound"))
        find(PROBLEM, DEVICE, Request(workspace_limit=0), store=Store(None))
        assert (big.builds, picky.builds) == (0, 0)

    def test_what_is_hopeless_by_its_estimate_is_not_run(self, table: Table) -> None:
        hopeless = Fake("hopeless", seconds=1e3)
        table(Fake("sound"), hopeless)
        plan = find(PROBLEM, DEVICE, Request(), store=Store(None))
        assert hopeless.builds == 0
        assert "not measured" in str(reasons(plan)["hopeless"])

    def test_what_is_hopeless_in_its_first_run_is_not_run_again(self, table: Table) -> None:
        lame = Fake("lame", sleep=0.1)
        table(Fake("sound", sleep=0.001), lame)
        assert find(PROBLEM, DEVICE, Request(), store=Store(None)).algorithm == "sound"
        assert len(lame.calls) == 1

    def test_rounds_are_interleaved(self, table: Table) -> None:
        order: list[str] = []

        class Tracked(Fake):
            def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Kernel:
                inner = super().build(problem, device, epilogue)

                def kernel(*arguments: Any) -> None:
                    order.append(self.name)
                    inner(*arguments)

                return kernel

        table(Tracked("a", sleep=0.002), Tracked("b", sleep=0.002))
        find(PROBLEM, DEVICE, Request(), store=Store(None), seconds=60.0)
        # warm-up and first sample of each, then in turns
        assert order[:4] == ["a", "a", "b", "b"]
        assert order[4:] == ["a", "a", "b", "b"] * sampling.ROUNDS

    def test_time_limit(self, table: Table) -> None:
        slow = [Fake(f"slow{i}", sleep=0.05) for i in range(3)]
        table(*slow)
        find(PROBLEM, DEVICE, Request(), store=Store(None), seconds=0.1)
        assert all(1 <= len(fake.calls) <= 3 for fake in slow)
        assert sum(len(fake.calls) for fake in slow) < 3 * 3

    def test_operands_are_own_buffers_large_enough(self, table: Table) -> None:
        fake = Fake("only", needs=1000)
        table(fake)
        strided = Convolution.make(
            "fwd", (2, 3, 8, 8), (4, 3, 3, 3), x_strides=(-500, 100, -10, 1), y_strides=(150, 1, 24, 4)
        )
        bias = TensorDescriptor(strided.output.shape, (0, 1, 0, 0), "f32")
        find(
            strided,
            DEVICE,
            Request(),
            Epilogue(trace(lambda a, b: a + b), (bias,)),
            store=Store(None),
            seconds=0.0,
        )
        pointers, alpha, beta, workspace = fake.calls[0]
        assert len(pointers) == 4
        assert len(set(pointers)) == 4
        assert (alpha, beta) == (1.0, 0.0)
        assert workspace % 64 == 0
        assert workspace != 0

    def test_real_kernels_leave_finite_results_and_agree_with_their_names(self) -> None:
        plan = find(PROBLEM, cpu.host(2), Request(algorithm="im2col"), store=Store(None), seconds=0.05)
        x = np.random.default_rng(0).standard_normal(PROBLEM.x.shape).astype(np.float32)
        w = np.random.default_rng(1).standard_normal(PROBLEM.w.shape).astype(np.float32)
        y = np.full(PROBLEM.y.shape, np.nan, np.float32)
        scratch = np.zeros(plan.workspace + 64, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % 64
        plan.run(None, (x.ctypes.data, w.ctypes.data, y.ctypes.data), 1.0, 0.0, start)
        np.testing.assert_allclose(y, PROBLEM.reference(x, w), rtol=1e-4, atol=1e-5)

    def test_stored_times_are_taken_unless_fresh_ones_are_wanted(self, table: Table) -> None:
        one, two = Fake("one", sleep=0.001), Fake("two", sleep=0.002)
        table(one, two)
        store = Store(None)
        find(PROBLEM, DEVICE, Request(), store=store)
        runs = len(one.calls)
        plan = find(PROBLEM, DEVICE, Request(), store=store, is_fresh=False)
        assert plan.algorithm == "one"
        assert len(one.calls) == runs
        find(PROBLEM, DEVICE, Request(), store=store)
        assert len(one.calls) > runs

    def test_a_new_version_is_measured_again(self, table: Table) -> None:
        store = Store(None)
        table(Fake("one"), Fake("two"))
        find(PROBLEM, DEVICE, Request(), store=store)
        changed = Fake("one", version=2)
        table(changed, Fake("two"))
        find(PROBLEM, DEVICE, Request(), store=store, is_fresh=False)
        assert changed.calls

    def test_the_only_choice_need_not_be_measured(self, table: Table) -> None:
        only, big = Fake("only"), Fake("big", needs=100)
        table(only, big)
        plan = find(PROBLEM, DEVICE, Request(workspace_limit=0), store=Store(None), is_fresh=False)
        assert (plan.algorithm, plan.candidates[0].source) == ("only", "estimate")
        assert only.calls == []

    def test_what_does_not_compile_is_refused(self, table: Table, warnings: list[str]) -> None:
        table(Fake("broken", does_compile=False), Fake("sound"))
        plan = find(PROBLEM, DEVICE, Request(), store=Store(None), seconds=0.05)
        assert plan.algorithm == "sound"
        assert "does not compile" in str(reasons(plan)["broken"])
        assert len(warnings) == 1

    def test_nothing_to_measure_lists_the_reasons(self, table: Table) -> None:
        table(Fake("one", refusal="first reason"))
        with pytest.raises(NotSupported, match="first reason"):
            find(PROBLEM, DEVICE, Request(), store=Store(None))

    def test_without_memory_the_estimates_decide(
        self, table: Table, warnings: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table(Fake("slow", seconds=2e-3), Fake("fast"))

        def no_memory(*arguments: Any) -> None:
            raise MemoryError

        monkeypatch.setattr(find_module, "_operand", no_memory)
        assert find(PROBLEM, DEVICE, Request(), store=Store(None)).algorithm == "fast"
        assert "memory" in warnings[0]


class TestThroughTheLibrary:
    TEXT = "conv_fwd n2 c5 h11 w10 k7 r3 s3 pad1 f32 nchw"

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        problem = jitdnn.parse(self.TEXT)
        random = np.random.default_rng(0)
        x, w = (random.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.inputs)
        return x, w, problem.reference(x, w)

    def test_find_by_setting(self, tmp_path: Path) -> None:
        x, w, expected = self.arrays()
        with (
            jitdnn.settings(cache=True, cache_dir=tmp_path, choice="find", workspace_limit="8 MiB"),
            jitdnn.Handle(),
        ):
            np.testing.assert_allclose(jitdnn.conv(x, w, padding=1), expected, rtol=1e-3, atol=1e-4)
            plan = jitdnn.plan(self.TEXT)
            measured = {c.name: c.seconds for c in plan.candidates if c.source == "measured"}
            assert {"im2col", "implicit_gemm"} <= set(measured)
            assert plan.seconds == min(measured.values())
            assert len(Store.default().rows()) == len(measured)
            explained = jitdnn.plan(self.TEXT, choice="get", handle=jitdnn.Handle()).explain()
            assert explained.count(" stored ") == len(measured)

    def test_limits_by_setting_and_by_argument(self) -> None:
        x, w, expected = self.arrays()
        im2col = jitdnn.plan(self.TEXT, algorithm="im2col").workspace
        assert im2col > 0
        with jitdnn.settings(workspace_limit=im2col - 1):
            assert jitdnn.plan(self.TEXT).workspace < im2col
            with pytest.raises(NotSupported, match=f"set workspace_limit to at least {im2col}"):
                jitdnn.conv(x, w, padding=1, algorithm="im2col")
            y = jitdnn.conv(x, w, padding=1, algorithm="im2col", workspace_limit=im2col)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


class TestExplain:
    def plan(self, table: Table, **request: Any) -> Plan:
        table(
            Fake("refuser", refusal="dilation 2: only 1"),
            Fake("slow", seconds=2.5e-3, deterministic=False, bound=3e-6),
            Fake("big", seconds=1e-6, needs=5 << 20),
            Fake("chosen_one", seconds=1e-3, needs=1 << 20),
        )
        return get(PROBLEM, DEVICE, Request(workspace_limit=2 << 20, **request), store=Store(None))

    def test_every_candidate_has_a_line(self, table: Table) -> None:
        text = self.plan(table).explain()
        lines = text.splitlines()
        assert lines[0] == str(PROBLEM)
        assert "fake machine" in lines[1]
        assert f"at most {format_bytes(2 << 20)} of workspace" in lines[1]
        names = [line.lstrip("> ").split()[0] for line in lines[4:]]
        assert names[:2] == ["chosen_one", "slow"]
        assert sorted(names[2:]) == ["big", "refuser"]

    def test_columns(self, table: Table) -> None:
        by_name = {line.lstrip("> ").split()[0]: line for line in self.plan(table).explain().splitlines()[4:]}
        assert re.match(
            r"^>\s+chosen_one\s+1\.00 ms\s+estimate\s+1(\.00)? MiB\s+1\.0e-07\s+yes\s+chosen$",
            by_name["chosen_one"],
        )
        assert re.match(
            r"^\s+slow\s+2\.50 ms\s+estimate\s+0 B\s+3\.0e-06\s+no\s+2\.50x the time$", by_name["slow"]
        )
        assert "refused: needs 5" in by_name["big"]
        assert by_name["refuser"].endswith("refused: dilation 2: only 1")
        assert by_name["refuser"].split()[1:4] == ["-", "-", "-"]

    def test_columns_are_aligned(self, table: Table) -> None:
        lines = self.plan(table).explain().splitlines()[3:]
        heading = lines[0]
        for column in ("algorithm", "time", "source", "workspace", "error bound", "deterministic"):
            position = heading.index(column)
            assert all(line[position - 1] == " " and line[position] != " " for line in lines[1:])

    def test_epilogue_is_named(self, table: Table) -> None:
        table(Fake("only"))
        plan = get(PROBLEM, DEVICE, Request(), Epilogue(trace(lambda acc: acc * 0.5)), store=Store(None))
        assert "acc * 0.5" in plan.explain()

    def test_one_line_form(self, table: Table) -> None:
        assert str(self.plan(table)).startswith("chosen_one (1.00 ms, ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.234e-7, "0.12 us"),
        (1.234e-5, "12.3 us"),
        (9.996e-4, "1.00 ms"),
        (0.0456, "45.6 ms"),
        (7.891, "7.89 s"),
        (1234, "1234 s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
