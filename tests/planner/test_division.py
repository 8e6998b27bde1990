"""Dividing a convolution whose fastest algorithm needs too much workspace: the choice, and that results stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jitdnn
from examples import examples
from jitdnn.errors import NotSupported
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.choose import get
from jitdnn.planner.division import LAUNCH_SECONDS, Divider, Partition
from jitdnn.planner.find import find
from jitdnn.planner.plan import Plan, Request
from jitdnn.planner.store import Store
from jitdnn.problems import Convolution, parse
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import trace
from planner_fakes import DEVICE, Fake, Planning, Table, reasons

BATCH = Convolution.make("fwd", (64, 4, 8, 8), (4, 4, 3, 3), padding=1)
MIB = 1 << 20


class PerImage(Fake):
    """Time and workspace that grow with the operations of the part."""

    def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
        return self.needs * problem.flops // BATCH.flops

    def estimate(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> float:
        return self.seconds * problem.flops / BATCH.flops + 1e-6


def limited(limit: int | None, **words: Any) -> Request:
    return Request(workspace_limit=limit, **words)


class TestChoice(Planning):
    def plan(self, request: Request, problem: Problem = BATCH, epilogue: Epilogue | None = None) -> Plan:
        return get(problem, DEVICE, request, epilogue, store=Store(None))

    def test_the_batch_is_divided_until_the_fast_one_fits(self, table: Table) -> None:
        table(PerImage("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        plan = self.plan(limited(16 * MIB))
        assert plan.algorithm == "fast in 4 x n16"
        assert [str(part.problem).split()[1] for part in plan.parts] == ["n16"] * 4
        assert (plan.workspace, plan.seconds) == (16 * MIB, pytest.approx(1e-3 + 4 * (1e-6 + LAUNCH_SECONDS)))
        assert "fast in 4 x n16" in plan.explain()
        assert "needs 64 MiB" in (reasons(plan)["fast"] or "")

    def test_nothing_is_divided_that_fits_or_gains_nothing(self, table: Table) -> None:
        table(PerImage("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(None)).algorithm == "fast"
        assert self.plan(limited(64 * MIB)).algorithm == "fast"
        table(PerImage("fast", seconds=1e-2, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB)).algorithm == "slow"

    def test_the_policy_is_kept(self, table: Table) -> None:
        table(PerImage("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB, division="undivided")).algorithm == "slow"
        sizes = [part.problem.n for part in self.plan(limited(22 * MIB, division="all")).parts]
        assert (len(sizes), sum(sizes), max(sizes)) == (3, 64, 22)
        assert self.plan(limited(22 * MIB, division="power_of_two")).algorithm == "fast in 4 x n16"
        assert self.plan(limited(16 * MIB, keeps_filter=True)).algorithm == "slow"

    def test_channels_are_divided_where_images_are_not_enough(self, table: Table) -> None:
        class Filter(PerImage):
            """Workspace for the filter: it is as large for one image as for many."""

            def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
                assert isinstance(problem, Convolution)
                return self.needs * problem.w.size // BATCH.w.size

        table(Filter("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB)).algorithm == "fast in 4 x k1"
        assert self.plan(limited(16 * MIB, division_axes="batch")).algorithm == "slow"

    def test_sums_are_not_divided_under_an_epilogue(self, table: Table) -> None:
        class OfInputs(PerImage):
            def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
                assert isinstance(problem, Convolution)
                return self.needs * problem.c // BATCH.c

        table(OfInputs("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB)).algorithm == "fast in 4 x c1"
        assert self.plan(limited(16 * MIB), epilogue=Epilogue(trace(lambda y: y * y))).algorithm == "slow"

    def test_a_part_that_does_not_compile_is_passed_over(self, table: Table, warnings: list[str]) -> None:
        broken = PerImage("broken", seconds=1e-3, needs=64 * MIB, does_compile=False)
        table(broken, Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB)).algorithm == "slow"
        assert any("broken in 4 x n16 does not compile" in text for text in warnings)

    def test_an_algorithm_that_was_asked_for_is_divided_too(self, table: Table) -> None:
        table(PerImage("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB, algorithm="fast")).algorithm == "fast in 4 x n16"
        with pytest.raises(NotSupported, match="set workspace_limit to at least"):
            self.plan(limited(16 * MIB, algorithm="fast", division="undivided"))

    def test_sums_that_are_rounded_too_often_are_left_out(self, table: Table) -> None:
        """Each part of a sum is rounded to the output's type, and what all say together must be allowed."""

        class OfInputs(PerImage):
            bound = 4.99e-6

            def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
                assert isinstance(problem, Convolution)
                return self.needs * problem.c // BATCH.c

        table(OfInputs("fast", seconds=1e-3, needs=64 * MIB, bound=4.99e-6), Fake("slow", seconds=1e-2))
        assert self.plan(limited(16 * MIB)).algorithm == "slow"

    def test_parts_are_estimated_as_the_whole_was_measured(self, table: Table) -> None:
        """A model that is too optimistic is so about parts too, which must not win by that."""
        table(PerImage("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-2))
        store = Store(None)
        store.record(str(BATCH), "", DEVICE.name, [("fast", 1, 2e-2, 64 * MIB), ("slow", 1, 1e-2, 0)])
        assert get(BATCH, DEVICE, limited(16 * MIB), store=store).algorithm == "slow"

    def test_find_measures_parts_and_keeps_their_times(self, table: Table) -> None:
        class Sleeper(PerImage):
            def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Any:
                self.sleep = 4e-3 * problem.flops / BATCH.flops
                seconds = self.sleep
                return Fake("inner", sleep=seconds).build(problem, device)

        table(Sleeper("fast", seconds=1e-3, needs=64 * MIB), Fake("slow", seconds=1e-3, sleep=2e-2))
        store = Store(None)
        plan = find(BATCH, DEVICE, limited(16 * MIB), store=store, seconds=0.2)
        assert plan.algorithm.startswith("fast in ")
        assert plan.workspace <= 16 * MIB
        sizes = {row.problem.split()[1] for row in store.rows() if row.algorithm == "fast"}
        assert {"n64", "n16"} <= sizes


@hypothesis_settings(max_examples=examples(60), deadline=None)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(("power_of_two", "all")),
    axes=st.sampled_from(("any", "batch")),
)
def test_more_workspace_is_never_slower(n: int, seed: int, policy: str, axes: str) -> None:
    problem = Convolution.make("bwd_filter", (n, 4, 6, 6), (4, 4, 3, 3), padding=1)
    rng = np.random.default_rng(seed)
    known: dict[str, tuple[float, int]] = {}

    class Random(Fake):
        def _numbers(self, part: Problem) -> tuple[float, int]:
            return known.setdefault(
                f"{self.name} {part}",
                (float(rng.uniform(0.1, 2.0)) * part.flops * 1e-9, int(rng.integers(0, 1000))),
            )

        def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
            return self._numbers(problem)[1]

        def estimate(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> float:
            return self._numbers(problem)[0]

    algorithms = [Random("a"), Random("b"), Random("c")]

    def look(part: Problem, epilogue: Epilogue | None) -> Sequence[Any]:
        from jitdnn.planner.survey import _consider

        return [_consider(each, part, DEVICE, Request(), epilogue, None, 1.0) for each in algorithms]

    divider = Divider(problem, Request(division=policy, division_axes=axes), None, look)
    front = divider.front()
    seconds, needs = [p.seconds for p in front], [p.workspace for p in front]
    assert seconds == sorted(seconds, reverse=True)
    assert needs == sorted(needs)
    for point in front:
        way: Partition = point.what
        assert (
            way.workspace
            == point.workspace
            == max(o.algorithm.workspace(o.piece.problem, None) for o in way.steps)
        )
        assert math.isclose(
            point.seconds,
            sum(
                step.algorithm.estimate(step.piece.problem, None) + LAUNCH_SECONDS * way.is_divided
                for step in way.steps
            ),
        )
        # every product is computed once
        assert sum(step.piece.problem.flops for step in way.steps) >= problem.flops
        first = [step for step in way.steps if not step.piece.is_added]
        assert first[0] is way.steps[0]


NET = """
layer { name: "data" type: "Input" top: "data" top: "label" input_param {
  shape { dim: 8 dim: 16 dim: 20 dim: 20 } shape { dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 48 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "score" type: "InnerProduct" bottom: "conv" top: "score" inner_product_param {
  num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
CASES = [
    "conv_fwd n12 c48 h13 w11 k64 r3 s3 pad1 f32 nchw",
    "conv_fwd n6 c32 h17 w17 k64 r5 s5 pad2 f32 nhwc",
    "conv_fwd n6 c32 w200 k64 s7 pad3 f32",
    "conv_fwd n1 c64 h24 w24 k64 r3 s3 pad1 f32 nchw",
    "conv_bwd_data n12 c48 h13 w11 k64 r3 s3 pad1 f32 nchw",
    "conv_bwd_filter n12 c48 h13 w11 k64 r3 s3 pad1 f32 nchw",
    "conv_bwd_filter n6 c24 d5 h9 w9 k40 t3 r3 s3 pad1 f32 nchw",
]


def planned(problem: Problem, share: int, **words: Any) -> Plan:
    """The plan in so small a share of the workspace that the problem would take."""
    unlimited = get(problem, Handle().device, Request(), store=Store(None)).workspace
    plan = get(problem, Handle().device, limited(unlimited // share, **words), store=Store(None))
    assert plan.workspace <= unlimited // share
    return plan


def arrays(problem: Convolution, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made = []
    for operand in problem.operands:
        logical = operand.descriptor
        order = np.argsort([-stride for stride in logical.strides], kind="stable")
        packed = rng.standard_normal([logical.shape[axis] for axis in order]).astype(np.float32)
        made.append(packed.transpose(np.argsort(order)))
    return made


def run_guarded(plan: Plan, operands: Sequence[np.ndarray], alpha: float, beta: float) -> None:
    """Run with a workspace of exactly as many bytes, between guards."""
    scratch = np.full(plan.workspace + 64 + 512, 0xA5, np.uint8)
    start = scratch.ctypes.data + 256
    start += -start % 64
    first = start - scratch.ctypes.data
    plan.run(None, [array.ctypes.data for array in operands], alpha, beta, start)
    assert (scratch[:first] == 0xA5).all()
    assert (scratch[first + plan.workspace :] == 0xA5).all()


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize(("share", "axes"), [(2, "any"), (4, "any"), (3, "batch")])
def test_the_result_stays_what_it_is(text: str, share: int, axes: str) -> None:
    problem = parse(text)
    assert isinstance(problem, Convolution)
    plan = planned(problem, share, division_axes=axes)
    first, second, output = arrays(problem)
    expected = problem.reference(first, second)
    error = max(c.error_bound or 0.0 for c in plan.candidates if c.chosen)
    before = output.copy(order="K")
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        out = before.copy(order="K") if beta else np.full_like(before, np.nan)
        run_guarded(plan, (first, second, out), alpha, beta)
        wanted = alpha * expected + (beta * before if beta else 0.0)
        scale = np.linalg.norm(alpha * expected)
        assert np.linalg.norm(out - wanted) <= (2 * error + 2e-7 * abs(beta)) * scale


def test_the_cases_are_divided() -> None:
    """Otherwise the test above would show nothing."""
    assert sum(len(planned(parse(text), 2).parts) > 1 for text in CASES) >= 5


def test_calls_are_divided_without_being_told() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((12, 32, 17, 17), np.float32)
    w = rng.standard_normal((64, 32, 5, 5), np.float32)
    bias = rng.standard_normal(64, np.float32)
    with jitdnn.settings(cache=False):
        expected = jitdnn.conv(x, w, bias, padding=2, epilogue=lambda y, b: jitdnn.relu(y + b))
        plan = planned(parse("conv_fwd n12 c32 h17 w17 k64 r5 s5 pad2 f32 nchw"), 2)
        with jitdnn.settings(workspace_limit=plan.request.workspace_limit), Handle():
            y = jitdnn.conv(x, w, bias, padding=2, epilogue=lambda y, b: jitdnn.relu(y + b))
    assert len(plan.parts) > 1
    # what both are allowed to be off by
    assert np.linalg.norm(y - expected) <= 2 * 5e-6 * np.linalg.norm(expected)


@hypothesis_settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_convolution_under_any_limit(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    groups = data.draw(st.sampled_from((1, 1, 2)))
    taps = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    spatial = tuple(t + data.draw(st.integers(0, 9)) for t in taps)
    problem = _problem(data, groups, taps, spatial)
    limit = data.draw(st.integers(0, 20_000))
    with jitdnn.settings(cache=False):
        plan = get(problem, Handle().device, limited(limit), store=Store(None))
    assert plan.workspace <= limit
    first, second, output = arrays(problem)
    output[...] = np.nan
    run_guarded(plan, (first, second, output), 1.0, 0.0)
    expected = problem.reference(first, second)
    error = max(c.error_bound or 0.0 for c in plan.candidates if c.chosen)
    assert np.linalg.norm(output - expected) <= 4 * error * np.linalg.norm(np.abs(expected)) + 1e-5


def _problem(
    data: st.DataObject, groups: int, taps: tuple[int, ...], spatial: tuple[int, ...]
) -> Convolution:
    channels = data.draw(st.integers(1, 9))
    return Convolution.make(
        data.draw(st.sampled_from(("fwd", "bwd_data", "bwd_filter"))),
        (data.draw(st.integers(1, 6)), groups * channels, *spatial),
        (groups * data.draw(st.integers(1, 9)), channels, *taps),
        stride=data.draw(st.integers(1, 3)),
        padding=data.draw(st.integers(0, 2)),
        groups=groups,
        layout=data.draw(st.sampled_from(("nchw", "nhwc"))),
    )


def test_fronts_divide_every_axis() -> None:
    """Axes take turns: none is left out for another."""
    problem = Convolution.make("fwd", (4, 32, 16, 16), (32, 32, 3, 3), padding=1)
    seen = set()

    def look(part: Problem, epilogue: Epilogue | None) -> Sequence[Any]:
        assert isinstance(part, Convolution)
        seen.add((part.n, part.c, part.k, part.output_spatial[0]))
        return []

    Divider(problem, Request(), None, look).front()
    assert {(4, 32, 32, 16), (4, 32, 16, 16), (4, 16, 32, 16), (4, 32, 32, 8)} <= seen


def test_nets_are_divided_without_being_told() -> None:
    """A net of Caffe under a limit: the same gradients, by plans in parts."""
    from jitdnn.caffe import load_net

    class Noting(Handle):
        parts = 0

        def plan(self, problem: Problem, request: Any = None, epilogue: Any = None) -> Plan:
            plan = super().plan(problem, request, epilogue)
            if plan is not None:
                Noting.parts = max(Noting.parts, len(plan.parts))
            return plan

    gradients = []
    for limit in (None, 200_000):
        with jitdnn.settings(workspace_limit=limit, cache=False), Noting():
            net = load_net(NET, phase="TRAIN", seed=1)
            rng = np.random.default_rng(2)
            net.forward(data=rng.standard_normal((8, 16, 20, 20)), label=np.arange(8) % 4)
            net.backward()
            gradients.append([p.blob.diff.copy() for p in net.parameters])
        assert (Noting.parts > 1) == (limit is not None)
    for plain, divided in zip(*gradients, strict=True):
        np.testing.assert_allclose(divided, plain, rtol=1e-3, atol=1e-5 * float(np.abs(plain).max()))
