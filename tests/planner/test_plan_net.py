"""Plans for whole nets: what a budget buys, what is said of it, and that times of all layers can be added."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn
from jitdnn.devices import cpu
from jitdnn.errors import InvalidArgument, NotSupported, ParseError
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.plan_net import plan_net
from jitdnn.planner.choose import get
from jitdnn.planner.net import partitions, survey_partitions
from jitdnn.planner.net import plan_net as plan_layers
from jitdnn.planner.net_plan import COLUMNS, as_json, rows, summary
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from planner_fakes import DEVICE, PROBLEM, Fake, Planning, Table, installed

OTHER = Convolution.make("fwd", (4, 3, 8, 8), (4, 3, 3, 3))
TINY = "conv_fwd n4 c8 h12 w12 k8 r3 s3 pad1"


class PerImage(Fake):
    """Time and workspace for each image, as of an algorithm that transforms images."""

    def workspace(self, problem: Problem, device: object, epilogue: Epilogue | None = None) -> int:
        assert isinstance(problem, Convolution)
        return self.needs * problem.n

    def estimate(self, problem: Problem, device: object, epilogue: Epilogue | None = None) -> float:
        assert isinstance(problem, Convolution)
        return self.seconds * problem.n


def request(**given: object) -> Request:
    return Request(**{"division": "undivided", **given})  # type: ignore[arg-type]


class TestBudget(Planning):
    LAYERS = (("one", PROBLEM), ("two", OTHER), ("one again", PROBLEM))

    def install(self, table: Table) -> None:
        table(
            PerImage("slow", seconds=4e-3), PerImage("middle", seconds=2e-3, needs=100),
            PerImage("fast", seconds=1e-3, needs=300),
        )  # fmt: skip

    @pytest.mark.parametrize("total", [0, 199, 200, 800, 1000, 1600, 2400, 10**6])
    def test_no_choice_within_the_total_is_faster(self, table: Table, total: int) -> None:
        self.install(table)
        plan = plan_layers(self.LAYERS, DEVICE, request(), total, store=Store(None))
        each = [((0, 4e-3 * p.n), (100 * p.n, 2e-3 * p.n), (300 * p.n, 1e-3 * p.n)) for _, p in self.LAYERS]
        best = min(
            sum(seconds for _, seconds in choice)
            for choice in product(*each)
            if sum(needs for needs, _ in choice) <= total
        )
        assert plan.seconds == pytest.approx(best)
        assert plan.workspace == sum(layer.chosen.workspace for layer in plan.layers) <= total
        assert plan.undivided_seconds == plan.seconds
        assert plan.fastest_seconds == pytest.approx(8e-3)

    def test_layers_of_one_stream_share_their_arena(self, table: Table) -> None:
        self.install(table)
        plan = plan_layers(self.LAYERS, DEVICE, request(), 1200, ["a", "a", "a"], Store(None))
        assert plan.arenas == {"a": 1200}
        assert [layer.partition.summary.name for layer in plan.layers] == ["fast"] * 3
        apart = plan_layers(self.LAYERS, DEVICE, request(), 1200, ["a", "b", "b"], Store(None))
        assert apart.workspace == sum(apart.arenas.values()) <= 1200
        assert apart.seconds > plan.seconds
        assert all(layer.allowed == apart.arenas[s] for s, layer in zip("abb", apart.layers, strict=True))

    def test_a_limit_of_each_layer_holds_within_a_total(self, table: Table) -> None:
        self.install(table)
        plan = plan_layers(self.LAYERS, DEVICE, request(workspace_limit=400), 10**6, store=Store(None))
        assert [layer.chosen.workspace for layer in plan.layers] == [200, 400, 200]
        assert plan.limit == 400
        # what the limit shuts out is told
        assert [layer.fastest.workspace for layer in plan.layers] == [600, 1200, 600]

    def test_a_total_that_is_too_small(self, table: Table) -> None:
        table(PerImage("greedy", needs=100))
        with pytest.raises(InvalidArgument, match="at least 600"):
            plan_layers((("one", PROBLEM), ("two", OTHER)), DEVICE, request(), 500, store=Store(None))
        with pytest.raises(NotSupported, match="greedy"):
            plan_layers((("one", PROBLEM),), DEVICE, request(), 100, store=Store(None))
        with pytest.raises(InvalidArgument, match="2 streams for 1"):
            plan_layers((("one", PROBLEM),), DEVICE, request(), None, ["a", "b"], Store(None))

    def test_divisions_are_taken_where_they_gain(self, table: Table) -> None:
        table(PerImage("slow", seconds=4e-3), PerImage("fast", seconds=1e-3, needs=300))
        layers = (("one", PROBLEM), ("two", OTHER))
        plan = plan_layers(layers, DEVICE, Request(), 600, store=Store(None))
        assert plan.workspace <= 600
        assert plan.seconds == pytest.approx(6e-3, rel=0.02)
        assert [len(layer.partition.steps) for layer in plan.layers] == [2, 4]
        # undivided the first gets all of it, or the second nothing
        assert plan.undivided_seconds == pytest.approx(2e-3 + 16e-3)
        # beside its own arena, in which nothing whole but the slow one fits
        assert [layer.undivided.seconds for layer in plan.layers if layer.undivided] == [8e-3, 16e-3]
        assert all(layer.fastest.seconds == 1e-3 * layer.problem.n for layer in plan.layers)  # type: ignore[attr-defined]

    def test_undivided_is_the_best_whole_one_although_a_division_beats_it(self, table: Table) -> None:
        table(
            PerImage("slow", seconds=4e-3), Fake("middle", seconds=6e-3, needs=400),
            PerImage("fast", seconds=1e-3, needs=300),
        )  # fmt: skip
        plan = plan_layers((("two", OTHER),), DEVICE, Request(workspace_limit=600), store=Store(None))
        (layer,) = plan.layers
        assert layer.partition.is_divided
        assert "middle" not in [point.what.summary.name for point in layer.front]
        assert layer.undivided is not None
        assert layer.undivided.what.summary.name == "middle"

    def test_a_division_that_hardly_gains_is_not_taken(self, table: Table) -> None:
        table(Fake("whole", seconds=4.05e-3), PerImage("parts", seconds=1e-3, needs=300))
        plan = plan_layers((("two", OTHER),), DEVICE, Request(), 600, store=Store(None))
        assert plan.layers[0].partition.summary.name == "whole"

    def test_what_a_call_would_not_do_is_not_planned(self, table: Table) -> None:
        """Parts that are faster than any whole, as a cost model may say: calls are divided for want of workspace."""

        class Odd(Fake):
            def estimate(self, problem: Problem, device: object, epilogue: Epilogue | None = None) -> float:
                assert isinstance(problem, Convolution)
                return 1e-3 * problem.n**2

        table(Odd("odd"))
        plan = plan_layers((("two", OTHER),), DEVICE, Request(), 600, store=Store(None))
        assert not plan.layers[0].partition.is_divided
        assert not get(OTHER, DEVICE, Request(workspace_limit=600), store=Store(None)).algorithm.endswith(
            "n1"
        )

    @given(
        st.lists(
            st.tuples(st.integers(1, 50), st.sampled_from([0, 10, 40, 100, 300])), min_size=1, max_size=4
        ),
        st.integers(0, 1300),
    )
    def test_a_call_with_the_bytes_of_its_layer_is_as_fast(
        self, costs: list[tuple[int, int]], total: int
    ) -> None:
        algorithms = [PerImage(f"a{n}", seconds=1e-3 * s, needs=w) for n, (s, w) in enumerate(costs)]
        with installed(*algorithms):
            if min(w for _, w in costs) > total:
                return
            (layer,) = plan_layers((("two", OTHER),), DEVICE, Request(), total, store=Store(None)).layers
            call = get(OTHER, DEVICE, Request(workspace_limit=layer.chosen.workspace), store=Store(None))
        assert call.workspace <= layer.chosen.workspace <= total
        assert call.seconds == pytest.approx(layer.chosen.seconds, rel=0.035)


class TestSearch(Planning):
    """How far divisions are looked for."""

    LAYERS = (("one", PROBLEM), ("two", OTHER))

    def counted(self, table: Table) -> list[str]:
        asked: list[str] = []

        class Counted(PerImage):
            def estimate(self, problem: Problem, device: object, epilogue: Epilogue | None = None) -> float:
                asked.append(f"{self.name} {problem}")
                return super().estimate(problem, device, epilogue)

        table(
            Counted("slow", seconds=4e-3), Counted("fast", seconds=1e-3, needs=300),
            Counted("outdone", seconds=2.5e-3, needs=700),
        )  # fmt: skip
        return asked

    def test_what_fits_is_not_divided_unless_alternatives_are_wanted(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jitdnn.planner.net.FLOOR", 0)  # these need a few bytes
        asked = self.counted(table)
        plan = plan_layers(self.LAYERS, DEVICE, Request(), store=Store(None))
        assert len(set(asked)) == 2 * 3
        assert [len(layer.front) for layer in plan.layers] == [2, 2]
        asked.clear()
        more = plan_layers(self.LAYERS, DEVICE, Request(), store=Store(None), alternatives=True)
        assert len(set(asked)) > 2 * 3
        assert more.seconds == plan.seconds
        assert all(any(p.what.is_divided for p in layer.front) for layer in more.layers)

    def test_what_needs_little_is_not_divided_for_less(self, table: Table) -> None:
        """Without a limit nobody lacks a few bytes: nothing is looked for below; with a total, it is."""
        asked = self.counted(table)
        plan = plan_layers(self.LAYERS, DEVICE, Request(), store=Store(None), alternatives=True)
        assert len(set(asked)) == 2 * 3
        assert not any(p.what.is_divided for layer in plan.layers for p in layer.front)
        within = plan_layers(self.LAYERS, DEVICE, Request(), 1500, store=Store(None))
        assert any(p.what.is_divided for layer in within.layers for p in layer.front)

    def test_ways_above_what_nobody_lacks_are_all_found(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under any limit that is no less, the plan takes as long as where all ways are looked for."""
        layers = [("conv", Convolution.make("fwd", (64, 8, 12, 12), (16, 8, 3, 3)))]
        table(
            PerImage("slow", seconds=4e-3),
            PerImage("fast", seconds=1e-3, needs=100 << 10),
            PerImage("middle", seconds=2.3e-3, needs=30 << 10),
        )
        fronts = []
        for floor in (0, 1 << 20):  # beside FLOOR itself, so that little has to be divided
            monkeypatch.setattr("jitdnn.planner.net.FLOOR", floor)
            plan = plan_layers(layers, DEVICE, Request(), store=Store(None), alternatives=True)
            fronts.append(plan.layers[0].front)
        every, above = fronts
        assert len(every) > 3
        for limit in [1 << 20, *(p.workspace for p in every if p.workspace >= 1 << 20)]:
            best, found = (min(p.seconds for p in front if p.workspace <= limit) for front in fronts)
            assert found <= 1.03 * best  # what a division must gain
        assert above[-1] == every[-1]

    def test_what_does_not_fit_is_divided(self, table: Table) -> None:
        self.counted(table)
        plan = plan_layers(self.LAYERS, DEVICE, Request(workspace_limit=300), store=Store(None))
        assert all(layer.partition.is_divided for layer in plan.layers)

    def test_parts_do_not_ask_what_is_outdone_for_the_whole(self, table: Table) -> None:
        asked = self.counted(table)
        plan_layers(self.LAYERS, DEVICE, Request(), 600, store=Store(None))
        assert {line for line in asked if line.startswith("outdone")} == {
            f"outdone {problem}" for _, problem in self.LAYERS
        }

    def test_nothing_is_divided_where_no_division_can_gain(self, table: Table) -> None:
        only = self.counted(table)
        table(PerImage("best", seconds=1e-4), PerImage("fast", seconds=1e-3, needs=300))
        plan = plan_layers(self.LAYERS, DEVICE, Request(), 600, store=Store(None), alternatives=True)
        assert [layer.partition.summary.name for layer in plan.layers] == ["best", "best"]
        assert not only

    def test_it_can_be_stopped(self, table: Table) -> None:
        asked = self.counted(table)
        plan = plan_layers(self.LAYERS, DEVICE, Request(), 1500, store=Store(None), stop=lambda: True)
        assert len(set(asked)) == 2 * 3
        assert not any(layer.partition.is_divided for layer in plan.layers)
        with pytest.raises(InvalidArgument, match="stop"):
            plan_net([TINY], stop=1)  # type: ignore[arg-type]


class TestFind(Planning):
    def test_the_times_of_all_layers_are_measured(self, table: Table) -> None:
        only = Fake("only", seconds=1e-9, sleep=2e-3)
        table(only)
        store = Store(None)
        found = partitions(PROBLEM, DEVICE, request(choice="find"), store, 0.01)
        assert found[-1].seconds >= 2e-3, "a single algorithm too: its time is added to others"
        calls = len(only.calls)
        again = survey_partitions(PROBLEM, DEVICE, request(choice="find"), store, 0.01)
        assert again.front[-1].seconds == found[-1].seconds
        assert len(only.calls) == calls

    def test_a_small_limit_hides_nothing_of_a_larger_one(self, table: Table) -> None:
        small, large = Fake("small", sleep=4e-3), Fake("large", sleep=1e-3, needs=10**6)
        table(small, large)
        store = Store(None)
        few = partitions(PROBLEM, DEVICE, request(choice="find", workspace_limit=100), store, 0.01)
        assert [point.what.summary.name for point in few] == ["small"]
        more = partitions(PROBLEM, DEVICE, request(choice="find"), store, 0.01)
        assert [point.what.summary.name for point in more] == ["small", "large"]

    def test_what_is_not_worth_measuring_is_still_a_way(self, table: Table) -> None:
        table(Fake("fast", needs=100), Fake("hopeless", seconds=1e3))
        store = Store(None)
        for _ in range(2):
            found = partitions(PROBLEM, DEVICE, request(choice="find"), store, 0.01)
            assert [point.what.summary.name for point in found] == ["hopeless", "fast"]

    def test_what_does_not_compile_is_no_way(self, table: Table, warnings: list[str]) -> None:
        table(Fake("broken", does_compile=False), Fake("sound", seconds=2e-3, needs=100))
        found = partitions(PROBLEM, DEVICE, request(choice="find"), Store(None), 0.01)
        assert [point.what.summary.name for point in found] == ["sound"]


class TestReport(Planning):
    def test_equal_layers_stand_in_one_row(self, table: Table) -> None:
        table(PerImage("slow", seconds=4e-3), PerImage("fast", seconds=1e-3, needs=300))
        layers = [("a", PROBLEM), ("a", PROBLEM), ("b", OTHER)]
        plan = plan_layers(layers, DEVICE, Request(), 1200, store=Store(None))
        cells = rows(plan)
        assert [row[0] for row in cells][-1] == "b"
        assert all(len(row) == len(COLUMNS) for row in cells)
        text = plan.explain()
        assert text.splitlines()[0].split()[:2] == ["layer", "choice"]
        for word in (
            "undivided",
            "with any workspace",
            "1.17 KiB for all together",
            "3 layers",
            "3 estimated",
        ):
            assert word in text
        alike = plan_layers([("a", PROBLEM)] * 3, DEVICE, Request(), 10**6, store=Store(None))
        assert [row[0] for row in rows(alike)] == ["a *3"]

    def test_it_says_what_would_be_faster_and_why_not(self, table: Table) -> None:
        table(
            Fake("slow", seconds=4e-3), Fake("fast", seconds=1e-3, needs=300),
            Fake("loose", seconds=1e-4, bound=0.5), Fake("picky", refusal="the shape is odd"),
        )  # fmt: skip
        plan = plan_layers((("a", PROBLEM),), DEVICE, request(workspace_limit=0), store=Store(None))
        why = dict(zip(COLUMNS, rows(plan)[0], strict=True))["why"]
        assert "fast is 4.00x as fast in 300 B" in why
        assert "loose refused: its error may reach" in why
        assert "picky" not in why
        told = as_json(plan)["layers"][0]
        assert set(told["refused"]) == {"fast", "loose", "picky"}
        assert told["chosen"]["algorithm"] == "slow"
        assert told["unlimited"] == {"algorithm": "fast", "seconds": 1e-3, "workspace": 300}

    def test_where_undivided_nothing_fits(self, table: Table) -> None:
        table(PerImage("parts", needs=300))
        plan = plan_layers((("a", PROBLEM),), DEVICE, Request(), 300, store=Store(None))
        assert plan.undivided_seconds is None
        assert "undivided: some layer cannot run within these limits" in summary(plan)
        assert rows(plan)[0][4:6] == ("-", "-")

    def test_streams_are_named(self, table: Table) -> None:
        table(Fake("fast", needs=100))
        plan = plan_layers((("a", PROBLEM), ("b", OTHER)), DEVICE, request(), 200, ["x", "y"], Store(None))
        assert "in 2 arenas, one for each stream (x: 100 B, y: 100 B)" in plan.explain()


class TestThroughTheLibrary:
    def test_problems_strings_and_names(self) -> None:
        with jitdnn.settings(cache=False), Handle(cpu.host(2)) as handle:
            layers: list[Any] = [("first", TINY), TINY, Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3))]
            plan = plan_net(layers, total="64 KiB", handle=handle)
            assert plan.layers[0].name == "first"
            assert plan.layers[1].name == str(plan.layers[1].problem)
            assert plan.workspace <= 65536
            by_setting = plan_net(layers, total_workspace="64 KiB")
            assert by_setting.total == 65536
            shared = plan_net(layers, total="64 KiB", streams=[0, 0, 0])
            assert shared.seconds <= plan.seconds
            assert plan_net(layers, workspace_limit=0).workspace == 0

    def test_a_way_runs_as_planned(self) -> None:
        """The call with the bytes that the layer was given takes no more, and is right."""
        with jitdnn.settings(cache=False):
            plan = plan_net([TINY], total="24 KiB")
            problem = plan.layers[0].problem
            assert isinstance(problem, Convolution)
            rng = np.random.default_rng(0)
            x, w = (rng.standard_normal(t.shape, np.float32) for t in (problem.x, problem.w))
            with jitdnn.settings(workspace_limit=plan.layers[0].chosen.workspace):
                assert jitdnn.plan(problem).workspace <= plan.layers[0].chosen.workspace
                y = jitdnn.conv(x, w, padding=1)
        np.testing.assert_allclose(y, problem.reference(x, w), rtol=1e-4, atol=1e-4)

    def test_bad_input(self) -> None:
        with pytest.raises(InvalidArgument, match="no layers"):
            plan_net([])
        with pytest.raises(ParseError):
            plan_net(["conv_fwd x"])
        with pytest.raises(ParseError, match="unit"):
            plan_net([TINY], total="3 parsecs")
        with pytest.raises(InvalidArgument, match="no setting"):
            plan_net([TINY], memory="3 MiB")
