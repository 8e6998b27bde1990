"""Choosing an algorithm without running any: policies, reasons, stored times, and the table that explains it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jitdnn
from jitdnn.errors import CompileError, NotSupported
from jitdnn.kernels.algorithm import Epilogue, summation_bound
from jitdnn.kernels.reference import Reference
from jitdnn.planner import workspace as policies
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Plan, Request, format_seconds
from jitdnn.planner.store import Store
from jitdnn.planner.survey import allowed_error, epilogue_key
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import trace
from jitdnn.settings import format_bytes
from jitdnn.tensor import TensorDescriptor
from planner_fakes import DEVICE, DOUBLE, PROBLEM, Fake, Planning, Table, installed, reasons


class TestGet(Planning):
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
    with installed(*fakes), jitdnn.settings(cache=False, log="warning"):
        plans = [get(PROBLEM, DEVICE, Request(workspace_limit=n), store=Store(None)) for n in sorted(limits)]
        plans.append(get(PROBLEM, DEVICE, Request(workspace_limit=policies.FASTEST), store=Store(None)))
    seconds = [plan.seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    assert all(plan.workspace <= limit for plan, limit in zip(plans, sorted(limits), strict=False))
    assert seconds[-1] == min(fake.seconds for fake in fakes)


class TestStoredTimes(Planning):
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


class TestExplain(Planning):
    def plan(self, table: Table, **request: Any) -> Plan:
        table(
            Fake("refuser", refusal="dilation 2: only 1"),
            Fake("slow", seconds=2.5e-3, deterministic=False, bound=3e-6),
            Fake("big", seconds=1e-6, needs=5 << 20),
            Fake("chosen_one", seconds=1e-3, needs=1 << 20),
        )
        return get(
            PROBLEM,
            DEVICE,
            Request(workspace_limit=2 << 20, division="undivided", **request),
            store=Store(None),
        )

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
