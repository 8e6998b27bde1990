"""Settings, requests and plans as the ops use them: nothing stale, nothing silent."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.handle import current_handle
from jitdnn.planner.plan import Plan

X = np.random.default_rng(5).standard_normal((2, 8, 9, 9)).astype(np.float32)
W = np.random.default_rng(6).standard_normal((8, 8, 3, 3)).astype(np.float32)


class Recorder(jd.Handle):
    """A handle that remembers which plans it ran."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.ran: list[Plan] = []

    def run(self, plan: Plan, *rest: Any) -> None:
        self.ran.append(plan)
        super().run(plan, *rest)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({"workspace_limit": "1 MiB"}, "workspace_limit"),
        ({"deterministic": True}, "deterministic"),
        ({"math": "fp64"}, "math"),
        ({"accuracy": "strict"}, "accuracy"),
    ],
)
def test_settings_reach_the_plan_and_leave_it_again(override: dict[str, Any], field: str) -> None:
    handle = Recorder()
    expected = jd.conv(X, W, handle=handle)
    with jd.settings(**override):
        inside = jd.conv(X, W, handle=handle)
    after = jd.conv(X, W, handle=handle)
    first, second, third = handle.ran
    assert first is third
    assert getattr(second.request, field) != getattr(first.request, field)
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_allclose(inside, expected, rtol=1e-4, atol=1e-4)


def test_the_number_of_threads_is_that_of_the_settings_at_the_call() -> None:
    handle = Recorder()
    for threads in (1, 2, 1):
        with jd.settings(threads=threads):
            jd.conv(X, W, handle=handle)
    one, two, again = (plan.device_name for plan in handle.ran)
    assert one.endswith("x1")
    assert two.endswith("x2")
    assert handle.ran[0] is handle.ran[2]
    assert one == again


def test_the_settings_of_a_handle_hold_for_its_calls() -> None:
    handle = Recorder(workspace_limit=0, threads=1)
    with jd.settings(threads=2):
        jd.conv(X, W, handle=handle)
        with handle:
            assert current_handle() is handle
            jd.conv(X, W)
    assert [plan.request.workspace_limit for plan in handle.ran] == [0, 0]
    assert all(plan.device_name.endswith("x1") for plan in handle.ran)


@pytest.mark.parametrize("limit", [0, "0", "0 MiB", np.int64(0)])
def test_no_workspace_means_none(limit: Any) -> None:
    handle = Recorder()
    jd.conv(X, W, workspace_limit=limit, handle=handle)
    assert handle.ran[0].workspace == 0


def test_the_limit_of_a_call_goes_before_the_settings() -> None:
    handle = Recorder()
    with jd.settings(workspace_limit=0):
        jd.conv(X, W, handle=handle)
        jd.conv(X, W, workspace_limit=None, handle=handle)
        jd.conv(X, W, workspace_limit="2 MiB", handle=handle)
    assert [plan.request.workspace_limit for plan in handle.ran] == [0, None, 2 << 20]


def test_an_algorithm_asked_for_by_name_is_the_one_that_runs() -> None:
    handle = Recorder()
    results = []
    for name in ("reference", "im2col"):
        results.append(jd.conv(X, W, algorithm=name, handle=handle))
        assert handle.ran[-1].algorithm == name
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_an_algorithm_that_cannot_run_says_why() -> None:
    with pytest.raises(jd.NotSupported, match=r"no algorithm takes conv_fwd n2 c8 h9 w9") as caught:
        jd.conv(X, W, algorithm="im2col", workspace_limit=0)
    assert list(caught.value.reasons) == ["im2col"]
    assert "of workspace, and none is allowed" in caught.value.reasons["im2col"]


def test_calls_are_told_apart_by_all_that_matters() -> None:
    handle = Recorder()
    variants: list[dict[str, Any]] = [
        {},
        {"stride": 2},
        {"padding": 1},
        {"padding": ((0, 1), (1, 0))},
        {"dilation": 2},
        {"mode": "convolution"},
        {"algorithm": "im2col"},
        {"workspace_limit": 0},
        {"epilogue": jd.relu},
    ]
    for variant in variants:
        jd.conv(X, W, handle=handle, **variant)
    jd.conv(X.astype(np.float64), W.astype(np.float64), handle=handle)
    jd.conv(X[:1], W, handle=handle)
    jd.conv(X[:, ::-1], W, handle=handle)
    jd.conv(X, W, np.zeros(8, np.float32), handle=handle)
    assert len(handle.calls) == len(variants) + 4
    assert len({id(plan) for plan in handle.ran}) == len(variants) + 4


def test_a_handle_with_ever_new_calls_keeps_the_last_ones() -> None:
    handle = jd.Handle(plans_limit=10)
    memory = np.ones(40, np.float32)
    for n in range(1, 40):
        assert jd.relu(memory[:n], handle=handle).sum() == n
        assert handle.usage.calls <= 10
        assert handle.usage.plans <= 10


def test_runs_are_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    jd.conv(X, W)
    with caplog.at_level(logging.DEBUG, logger="jitdnn"):
        with jd.settings(log="debug"):
            jd.conv(X, W, algorithm="im2col")
        with jd.settings(log="warning"):
            jd.conv(X, W, algorithm="im2col")
    ran = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert ran == ["ran conv_fwd n2 c8 h9 w9 k8 r3 s3 stride1 pad0 f32 nchw with im2col"]


STRING = "conv_fwd n2 c8 h9 w9 k8 r3 s3 stride1 pad0 f32 nchw"


def test_a_plan_comes_from_a_string_or_a_problem() -> None:
    from_text = jd.plan(STRING)
    assert str(from_text.problem) == STRING
    assert jd.plan(jd.parse(STRING)) is from_text
    table = from_text.explain()
    assert STRING in table
    assert all(name in table for name in ("im2col", "reference", "chosen", from_text.algorithm))


def test_the_plan_of_a_call_is_the_plan_that_runs() -> None:
    handle = Recorder()
    jd.conv(X, W, handle=handle)
    assert jd.plan(STRING, handle=handle).run is handle.ran[0].run


def test_a_plan_takes_settings() -> None:
    assert jd.plan(STRING, workspace_limit=0).workspace == 0
    assert jd.plan(STRING, workspace_limit="64 MiB").request.workspace_limit == 64 << 20
    assert jd.plan(STRING, deterministic=True, threads=1).request.deterministic
    assert jd.plan(STRING, threads=1).device_name.endswith("x1")
    assert jd.plan(STRING, algorithm="reference").algorithm == "reference"
    # what the call says goes before what the handle says
    handle = jd.Handle(workspace_limit=0)
    assert jd.plan(STRING, handle=handle).request.workspace_limit == 0
    assert jd.plan(STRING, handle=handle, workspace_limit=None).request.workspace_limit is None


def test_a_plan_with_an_epilogue() -> None:
    plan = jd.plan(STRING, epilogue=lambda acc: jd.relu(acc) * 2.0)
    assert "with epilogue" in plan.explain()
    y = np.full((2, 8, 7, 7), np.nan, np.float32)
    current_handle().run(plan, [X.ctypes.data, W.ctypes.data, y.ctypes.data])
    np.testing.assert_allclose(y, 2 * np.maximum(jd.conv(X, W), 0), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(jd.ParseError) as caught:
        jd.plan("conv_fwd n2 c8 h9 w9 k8 r3 s3 bananas f32 nchw")
    assert caught.value.column == len("conv_fwd n2 c8 h9 w9 k8 r3 s3 ") + 1
    with pytest.raises(jd.InvalidArgument, match="'limit' is no setting"):
        jd.plan(STRING, limit=3)
    with pytest.raises(jd.NotSupported, match="there is no algorithm 'magic'"):
        jd.plan(STRING, algorithm="magic")
    with pytest.raises(jd.InvalidArgument, match=r"takes 2 values \(a, b\): without arrays"):
        jd.plan(STRING, epilogue=lambda a, b: a + b)
