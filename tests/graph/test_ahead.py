"""Kernels of a graph that are compiled by several processes at once, where they are not there yet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest

import jitdnn
from jitdnn.graph import primitives as jd
from jitdnn.graph.engine import Engine
from jitdnn.graph.lower import ahead
from jitdnn.handle import Handle
from jitdnn.ops.warm import Helpers, Wanted
from jitdnn.planner import kept_plans
from jitdnn.planner.plan import Request
from jitdnn.problems import parse
from jitdnn.settings import Settings, current

X = np.random.default_rng(2).standard_normal((3, 5, 40)).astype(np.float32)


class Softmax(NamedTuple):
    """A softmax of all but the last element, so that each is another problem, of nearly the same code."""

    number: int
    kind: Any = None
    is_pure: bool = True
    title: str = "softmax"

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"v{self.number}",)

    @property
    def makes(self) -> tuple[str, ...]:
        return (f"v{self.number + 1}",)

    def compute(self, values: Mapping[str, Any], bodies: Any = None) -> tuple[Any, ...]:
        return (jd.softmax(values[self.reads[0]][:, :, :-1], axis=2),)

    def kinds(self, values: Mapping[str, Any]) -> Any:
        return self.kind


IDLE_CORES = ahead._idle_cores
STEPS = [Softmax(number) for number in range(12)]


class Noting:
    """In the place of `Helpers`: what they are given, and what the caller does itself."""

    made: list[Noting] = []  # noqa: RUF012

    def __init__(self, wanted: Sequence[Wanted], values: Settings, count: int) -> None:
        self.wanted, self.count, self.left = list(wanted), count, []  # type: ignore[var-annotated]
        self.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.left.append(None)

    def leave(self, wanted: Wanted) -> None:
        self.left.append(wanted)


@pytest.fixture(autouse=True)
def _cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "Helpers", Noting)
    monkeypatch.setattr(ahead, "_idle_cores", lambda: 1)
    Noting.made.clear()
    with jitdnn.settings(cache_dir=tmp_path, keep_plans=True, threads=2):
        yield


def result() -> Any:
    return Engine(STEPS, ("v0",), ("v12",), {}).run({"v0": X})[0]


def expected() -> Any:
    x = X
    for step in STEPS:
        (x,) = step.compute({step.reads[0]: x})
    return x


def test_a_cold_graph_asks_for_help_with_all_its_plans() -> None:
    np.testing.assert_allclose(result(), expected(), rtol=1e-5, atol=1e-7)
    (helpers,) = Noting.made
    assert len(helpers.wanted) == len(set(helpers.wanted)) == 12
    assert helpers.count == 1
    assert helpers.left[-1] is None
    asked = helpers.left[:-1]
    assert set(asked) <= set(helpers.wanted)  # as they were foretold, or nobody would find what others made
    assert len(asked) == 11  # the first was made before it was known that all are missing


def test_a_warm_graph_does_not() -> None:
    result()
    Noting.made.clear()
    result()
    assert not Noting.made


@pytest.mark.parametrize("values", [{"threads": 1}, {"keep_plans": False}, {"cache": False}])
def test_nor_where_nobody_may_help(values: dict[str, Any]) -> None:
    with jitdnn.settings(**values):
        result()
    assert not Noting.made


def test_idle_cores_compile_though_kernels_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_idle_cores", lambda: 3)
    with jitdnn.settings(threads=1):
        np.testing.assert_allclose(result(), expected(), rtol=1e-5, atol=1e-7)
    (helpers,) = Noting.made
    assert helpers.count == 2


@pytest.mark.parametrize(("cores", "load", "idle"), [(1, 0.0, 1), (8, 1.3, 8), (8, 4.2, 5), (2, 14.0, 1)])
def test_cores_that_others_use_are_not_idle(
    cores: int, load: float, idle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "available_cores", lambda: cores)
    monkeypatch.setattr(ahead.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert IDLE_CORES() == idle


def test_helpers_leave_plans_on_disk_and_end() -> None:
    """A worker that is really another process; whoever leaves something waits until it is done."""
    wanted = [
        Wanted(parse(f"conv_fwd n1 c3 h{5 + n} w5 k2 r1 s1"), None, Request.of(current())) for n in range(3)
    ]
    device = Handle().device
    with Helpers(wanted, current(), 1) as helpers:
        for _ in range(10_000):
            if len(helpers._begun) == 3:
                break
            time.sleep(0.01)
        for each in wanted:
            helpers.leave(each)
        assert all(kept_plans.is_kept(each.problem, device, each.request, None) for each in wanted)  # type: ignore[arg-type]
    assert not helpers._left


def test_helpers_that_cannot_start_or_die(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Wanted(parse("conv_fwd n1 c3 h5 w5 k2 r1 s1"), None, None)]
    from jitdnn.ops import warm

    class Dead:
        def __init__(self, values: Settings) -> None:
            pass

        def plan(self, wanted: Wanted) -> None:
            return None

        def end(self) -> None:
            pass

    def refuse(values: Settings) -> None:
        raise OSError("no more processes")

    for worker in (Dead, refuse):
        monkeypatch.setattr(warm, "_Worker", worker)
        with Helpers(wanted, current(), 2) as helpers:
            helpers.leave(wanted[0])
