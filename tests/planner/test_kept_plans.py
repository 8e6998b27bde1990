"""Plans that another process made: the same choice, the same bits, and nobody is asked again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.handle import Handle
from jitdnn.planner import choose, kept_plans
from jitdnn.planner.plan import Plan
from jitdnn.planner.store import Store
from jitdnn.rtcg import compile as code
from jitdnn.rtcg.cache import CodeCache

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 6, 11, 13), np.float32)
W = RNG.standard_normal((10, 6, 3, 3), np.float32)
KEPT = jd.KeptFilter(W)
Call = Callable[[Handle], Any]

CALLS: dict[str, Call] = {
    "convolution": lambda h: jd.conv(X, W, padding=1, handle=h),
    "fused": lambda h: jd.conv(X, W, np.float32([1.0] * 10), epilogue=lambda a, b: jd.relu(a + b), handle=h),
    "winograd": lambda h: jd.conv(X, W, algorithm="winograd_4", handle=h),
    "direct": lambda h: jd.conv(X, W, algorithm="direct", handle=h),
    "kept_filter": lambda h: jd.conv(X, KEPT, padding=1, handle=h),
    "gradient": lambda h: jd.conv_backward_filter(
        X, np.ones((2, 10, 9, 11), np.float32), (10, 6, 3, 3), handle=h
    ),
    "product": lambda h: jd.matmul(X, X.swapaxes(2, 3).copy(), handle=h),
    "softmax": lambda h: jd.softmax(X, axis=1, handle=h),
    "normalization": lambda h: jd.layer_norm(X, np.ones(13, np.float32), handle=h),
    "pooling": lambda h: jd.max_pool(X, 2, handle=h),
    "concatenation": lambda h: jd.concat([X, X[:, :3]], axis=1, handle=h),
    "resize": lambda h: jd.resize(X, (17, 8), mode="linear", handle=h),
    "copy": lambda h: jd.transform(X.transpose(0, 2, 3, 1), handle=h),
}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, and no code in memory, as in another process."""
    monkeypatch.setattr(code, "_known", lambda key: None)
    with jd.settings(keep_plans=True, cache_dir=tmp_path, threads=2):
        yield


def plans(handle: Handle) -> list[Plan]:
    return [*handle._plans.old.values(), *handle._plans.young.values()]


class Asked(Exception):
    """The planner asked the algorithms."""


def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Asked

    monkeypatch.setattr(choose, "survey", refuse)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_plan_without_asking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, first, second = CALLS[name], Handle(), Handle()
    wanted = call(first)
    (plan,) = plans(first)
    KEPT.forget()
    forbidden(monkeypatch)
    found = call(second)
    (again,) = plans(second)
    for a, b in zip(np.atleast_1d(wanted), np.atleast_1d(found), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again is not plan
    assert again.explain() == plan.explain()
    assert (again.workspace, again.kept, again.kept_key) == (plan.workspace, plan.kept, plan.kept_key)
    assert again.code() == plan.code()  # by the algorithm itself
    np.testing.assert_array_equal(np.asarray(call(second)), np.asarray(found))


IMAGES = RNG.standard_normal((8, 6, 11, 13), np.float32)
DIVIDED: dict[str, Callable[..., Any]] = {
    "fused": lambda **kw: jd.conv(
        IMAGES,
        W,
        np.float32([1.0] * 10),
        epilogue=lambda a, b: jd.relu(a + b),
        algorithm="implicit_gemm",
        **kw,
    ),
    # parts that add to what others have left
    "gradient": lambda **kw: jd.conv_backward_filter(
        IMAGES, np.ones((8, 10, 9, 11), np.float32), (10, 6, 3, 3), algorithm="implicit_gemm_filter", **kw
    ),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_division_is_kept_with_its_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, whole, first, second = DIVIDED[name], Handle(), Handle(), Handle()
    with jd.settings(threads=1, division="all"):
        call(handle=whole)
        limit = {"workspace_limit": plans(whole)[0].workspace * 2 // 3}
        wanted = call(handle=first, **limit)
        (plan,) = plans(first)
        assert len(plan.parts) > 1
        forbidden(monkeypatch)
        found = call(handle=second, **limit)
        (again,) = plans(second)
        np.testing.assert_array_equal(wanted, found)
        assert again is not plan
        assert again.explain() == plan.explain()
        assert [(one.problem, one.algorithm.name, one.epilogue) for one in again.parts] == [
            (one.problem, one.algorithm.name, one.epilogue) for one in plan.parts
        ]
        assert (again.workspace, again.kept) == (plan.workspace, plan.kept)
        assert again.code() == plan.code()


def test_kernels_with_python_in_them_are_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jd.conv(X, W, algorithm="im2col", handle=Handle())
    forbidden(monkeypatch)
    with pytest.raises(Asked):
        jd.conv(X, W, algorithm="im2col", handle=Handle())


@pytest.mark.parametrize(
    "other",
    [
        {"threads": 1},
        {"keep_plans": False},
        {"cache": False},
        {"accuracy": "strict"},
        {"workspace_limit": 0},
        {"deterministic": True},
    ],
)
def test_another_request_is_another_plan(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS["convolution"](Handle())
    forbidden(monkeypatch)
    CALLS["convolution"](Handle())
    with jd.settings(**other), pytest.raises(Asked):
        CALLS["convolution"](Handle())


def test_measured_times_make_plans_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    CALLS["convolution"](handle)
    (plan,) = plans(handle)
    Store.default().record(str(plan.problem), "", plan.device_name, [("direct", 1, 1e-9, 0)])
    forbidden(monkeypatch)
    with pytest.raises(Asked):
        CALLS["convolution"](Handle())


@pytest.mark.parametrize("name", CALLS)
def test_times_of_other_problems_leave_a_plan_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that measures one layer after the other plans each of them once, for all processes."""
    first, second = Handle(), Handle()
    wanted = CALLS[name](first)
    (plan,) = plans(first)
    problem, device = str(plan.problem), plan.device_name
    times = [("direct", 1, 1e-9, 0)]
    for row in ((problem + " of another size", "", device), (problem, "another", device), (problem, "", "x")):
        Store.default().record(*row, times)
    KEPT.forget()
    forbidden(monkeypatch)
    found = CALLS[name](second)
    np.testing.assert_array_equal(wanted, found)


def test_times_that_are_measured_again_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, store = Handle(), Store.default()
    CALLS["convolution"](handle)
    (plan,) = plans(handle)
    where = str(plan.problem), "", plan.device_name
    states = [store.state_of(*where)]
    for seconds in (1.0, 1.0, 2.0):
        store.record(*where, [("direct", 1, seconds, 0)])
        states.append(store.state_of(*where))
    assert states[0] == () != states[1] == states[2] != states[3]
    CALLS["convolution"](Handle())
    with monkeypatch.context() as patched:
        forbidden(patched)
        CALLS["convolution"](Handle())
    store.record(*where, [("winograd_2", 1, 1.0, 0)])
    forbidden(monkeypatch)
    with pytest.raises(Asked):
        CALLS["convolution"](Handle())


@pytest.mark.parametrize("name", DIVIDED)
def test_any_measured_times_make_divisions_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a part may be of any problem."""
    call, whole, first = DIVIDED[name], Handle(), Handle()
    with jd.settings(threads=1, division="all"):
        call(handle=whole)
        limit = {"workspace_limit": plans(whole)[0].workspace * 2 // 3}
        call(handle=first, **limit)
        (plan,) = plans(first)
        assert len(plan.parts) > 1
        Store.default().record("another problem", "", plan.device_name, [("direct", 1, 1e-9, 0)])
        forbidden(monkeypatch)
        with pytest.raises(Asked):
            call(handle=Handle(), **limit)


def test_other_sources_make_plans_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS["softmax"](Handle())
    forbidden(monkeypatch)
    monkeypatch.setattr(kept_plans, "_planner_fingerprint", lambda: "another")
    kept_plans._of_device.cache_clear()
    try:
        with pytest.raises(Asked):
            CALLS["softmax"](Handle())
    finally:
        kept_plans._of_device.cache_clear()


def test_code_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    CALLS["softmax"](Handle())
    plans = [path for path in (tmp_path / "code").iterdir() if b'"candidates"' not in path.read_bytes()]
    for path in plans:
        path.unlink()
    forbidden(monkeypatch)
    with pytest.raises(Asked):
        CALLS["softmax"](Handle())


@pytest.mark.parametrize("damage", ["{", "[]", '{"candidates": []}', '{"kernel": {"kind": "nothing"}}'])
def test_records_of_another_format(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are planned again; nothing is believed of them."""
    CALLS["softmax"](Handle())
    entry = CodeCache.get

    def damaged(self: CodeCache, key: str) -> bytes | None:
        found = entry(self, key)
        if found is None or b'"candidates"' not in found:
            return found
        try:
            return json.dumps({**json.loads(found), **json.loads(damage)}).encode()
        except (ValueError, TypeError):
            return damage.encode()

    monkeypatch.setattr(CodeCache, "get", damaged)
    if damage == '{"candidates": []}':
        monkeypatch.setattr(CodeCache, "get", lambda self, key: b"{}" if damaged(self, key) else None)
    forbidden(monkeypatch)
    with pytest.raises(Asked):
        CALLS["softmax"](Handle())
