"""Choosing an algorithm by measuring: what is run, how often, what is kept; and as the settings ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn
from jitdnn.devices import cpu
from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.planner import find as find_module
from jitdnn.planner import sampling
from jitdnn.planner.choose import get
from jitdnn.planner.find import find
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor
from planner_fakes import DEVICE, PROBLEM, Fake, Planning, Table, reasons


class TestFind(Planning):
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
        find(PROBLEM, DEVICE, Request(workspace_limit=0, division="undivided"), store=Store(None))
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

    def test_what_does_not_compile_has_nothing_measured_again(self, table: Table) -> None:
        one = Fake("one")
        table(one, Fake("two"), Fake("broken", does_compile=False))
        store = Store(None)
        find(PROBLEM, DEVICE, Request(), store=store)
        runs = len(one.calls)
        plan = find(PROBLEM, DEVICE, Request(), store=store, is_fresh=False)
        assert len(one.calls) == runs
        assert "does not compile" in str(reasons(plan)["broken"])

    def test_what_fits_is_compared_with_what_fits(self, table: Table) -> None:
        """It may be hopeless beside what needs too much, and all the same all that there is."""
        table(Fake("big", seconds=1e-6, needs=1 << 20), Fake("slow", seconds=1.0))
        plan = find(PROBLEM, DEVICE, Request(workspace_limit=0), store=Store(None), seconds=0.05)
        assert plan.algorithm == "slow"

    def test_the_only_choice_need_not_be_measured(self, table: Table) -> None:
        only, big = Fake("only"), Fake("big", needs=100)
        table(only, big)
        request = Request(workspace_limit=0, division="undivided")
        plan = find(PROBLEM, DEVICE, request, store=Store(None), is_fresh=False)
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

        monkeypatch.setattr(find_module, "make_operand", no_memory)
        assert find(PROBLEM, DEVICE, Request(), store=Store(None)).algorithm == "fast"
        assert "memory" in warnings[0]


class TestThroughTheLibrary(Planning):
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
            assert {"direct", "implicit_gemm"} <= set(measured)
            assert "im2col" not in measured
            assert plan.seconds == min(measured.values())
            assert len(Store.default().rows()) == len(measured)
            explained = jitdnn.plan(self.TEXT, choice="get", handle=jitdnn.Handle()).explain()
            assert explained.count(" stored ") == len(measured)

    def test_limits_by_setting_and_by_argument(self) -> None:
        x, w, expected = self.arrays()
        im2col = jitdnn.plan(self.TEXT, algorithm="im2col").workspace
        assert im2col > 0
        with jitdnn.settings(workspace_limit=im2col - 1, division="undivided"):
            assert jitdnn.plan(self.TEXT).workspace < im2col
            with pytest.raises(NotSupported, match=f"set workspace_limit to at least {im2col}"):
                jitdnn.conv(x, w, padding=1, algorithm="im2col")
            y = jitdnn.conv(x, w, padding=1, algorithm="im2col", workspace_limit=im2col)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
