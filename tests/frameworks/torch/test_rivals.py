"""Algorithms of ours whose estimates are close are measured beside each other before ours is beside torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import choice, convolution, kinds, rivals  # noqa: E402
from jitdnn.frameworks.torch.options import handle_of  # noqa: E402
from jitdnn.planner.plan import Request  # noqa: E402
from jitdnn.planner.store import Store  # noqa: E402
from jitdnn.planner.survey import survey  # noqa: E402
from torch_kernels import random  # noqa: E402

F = torch.nn.functional


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    made = Store(tmp_path / "times.sqlite")
    monkeypatch.setattr(Store, "default", staticmethod(lambda: made))
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), 1.0, 2.0)[-2:])
    return made


def by_estimates(x: Any, w: Any, options: str) -> tuple[Any, Any, list[str]]:
    """The handle, the problem, and the algorithms that take it, the one of the least estimate first."""
    handle = handle_of(options, "cpu")
    found = convolution.computation.problem(options, (x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1))
    assert found is not None
    request = replace(Request.of(handle.settings), choice="model")
    there = [one for one in survey(found[0], handle.device, request, None, Store.default()) if one.is_open]
    return handle, found[0], [one.algorithm.name for one in sorted(there, key=lambda one: one.estimate)]


def run(x: Any, w: Any, options: str) -> Any:
    y = convolution.forward(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, options)
    torch.testing.assert_close(y, F.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)
    return y


def told(times: Sequence[float]) -> Callable[..., list[float]]:
    """In place of measuring: all ways run, and take these times."""

    def least(ways: Sequence[Callable[[], Any]], *_: Any) -> list[float]:
        for way in ways:
            way()
        return [*times[: len(ways)]]

    return least


def test_the_faster_of_two_runs_and_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "NEAR", 1e6)
    monkeypatch.setattr(rivals, "WORTH", 0.0)
    x, w, options = random(1, 5, 7, 9), random(6, 5, 3, 3), "workspace_limit=1000000061"
    handle, problem, names = by_estimates(x, w, options)
    assert len(names) > 1
    table = [
        one.algorithm.name for one in survey(problem, handle.device, Request.of(handle.settings), None, store)
    ]
    order = sorted(names, key=table.index)
    wanted = names[1]  # by its estimate it would not be taken
    monkeypatch.setattr(rivals, "least_seconds", told([1e-6 if name == wanted else 1e-3 for name in order]))
    run(x, w, options)
    assert handle.plan(problem).algorithm == wanted
    rows = store.look_up(str(problem), "", handle.device.name)
    assert {name for name, _ in rows} == set(names)
    # what is stored is measured no more, in another process either
    kinds.forget()
    monkeypatch.setattr(rivals, "least_seconds", lambda *_: pytest.fail("measured again"))
    run(x, w, options)


@pytest.mark.parametrize(("near", "worth"), [(1.0, 0.0), (1e6, 1e3)])
def test_nothing_is_measured_where_one_is_ahead_or_little_is_to_be_gained(
    store: Store, monkeypatch: pytest.MonkeyPatch, near: float, worth: float
) -> None:
    monkeypatch.setattr(rivals, "NEAR", near)
    monkeypatch.setattr(rivals, "WORTH", worth)
    monkeypatch.setattr(rivals, "least_seconds", lambda *_: pytest.fail("measured"))
    x, w, options = random(1, 5, 7, 11), random(6, 5, 3, 3), "workspace_limit=1000000062"
    handle, problem, names = by_estimates(x, w, options)
    run(x, w, options)
    assert handle.plan(problem).algorithm == names[0]
    assert not store.look_up(str(problem), "", handle.device.name)


def test_as_asked_nothing_is_measured(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "NEAR", 1e6)
    monkeypatch.setattr(rivals, "WORTH", 0.0)
    monkeypatch.setattr(rivals, "least_seconds", lambda *_: pytest.fail("measured"))
    x, w = random(1, 5, 7, 13), random(6, 5, 3, 3)
    run(x, w, "measure=never")
    run(x, w, "choice=model")
