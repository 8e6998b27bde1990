"""What first calls say of themselves while they compile and measure, and what they do not."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn import settings  # noqa: E402
from jitdnn.frameworks.torch import kinds, progress  # noqa: E402
from jitdnn.frameworks.torch.progress import part, parts  # noqa: E402


class Terminal(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two seconds are two hundredths."""
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    monkeypatch.setattr(progress, "_TICK", 0.01)
    progress.progress.forget()
    yield
    progress.progress.forget()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Terminal]:
    def made(is_terminal: bool) -> Terminal:
        found = Terminal(is_terminal)
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return made


def until(is_so: Callable[[], object]) -> None:
    """Wait inside of a part, as long as compiling would take."""
    for _ in range(2000):
        if is_so():
            return
        time.sleep(0.005)
    raise AssertionError("nothing was said")


def test_a_line_on_a_terminal_which_is_gone_when_the_part_has_ended(
    terminal: Callable[[bool], Terminal], caplog: pytest.LogCaptureFixture
) -> None:
    screen = terminal(True)
    with parts(3):
        for _ in range(2):
            with part():
                pass
        with part():
            until(lambda: "2 of 3 layers" in screen.getvalue())
    until(lambda: screen.getvalue().endswith("\r\x1b[K"))
    assert "\n" not in screen.getvalue()
    assert not caplog.records


def test_a_line_of_the_log_elsewhere_and_seldom(
    terminal: Callable[[bool], Terminal], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = terminal(False)
    with caplog.at_level(logging.WARNING, "jitdnn"):
        for _ in range(4):
            with part():
                pass
        with part():
            until(lambda: caplog.records)
            seen = len(caplog.records)
            assert "4 kinds of calls" in caplog.records[0].getMessage()
            progress.progress._next = 1e9
            time.sleep(0.05)
            assert len(caplog.records) == seen  # not before the time has doubled
    assert not pipe.getvalue()


@pytest.mark.parametrize("off", [{"progress": False}, {"log": "off"}])
def test_settings_that_turn_it_off(
    off: dict[str, Any], terminal: Callable[[bool], Terminal], caplog: pytest.LogCaptureFixture
) -> None:
    screen = terminal(True)
    with settings(**off), part():
        time.sleep(0.1)
    assert not screen.getvalue()
    assert not caplog.records


def test_nothing_is_said_before_the_time(
    terminal: Callable[[bool], Terminal],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 60.0)
    progress.progress.forget()
    screen = terminal(True)
    with part():
        time.sleep(0.05)
    assert not screen.getvalue()
    assert not caplog.records


def test_parts_within_parts_count_once_and_an_exception_ends_one() -> None:
    with pytest.raises(ZeroDivisionError), part(), part():
        raise ZeroDivisionError
    with part():
        assert "1 kinds of calls" in progress.progress.text()


def test_a_step_after_a_pause_is_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with part():
        pass
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    time.sleep(0.001)
    with part():
        assert "0 kinds of calls" in progress.progress.text()


@pytest.mark.parametrize("stream", [None, "closed"])
def test_without_a_standard_error_nothing_fails(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stream else None)
    with part():
        time.sleep(0.05)


def test_threads_that_choose_at_once() -> None:
    def choose() -> None:
        for _ in range(50):
            with parts(2), part(), part():
                pass

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    with part():
        assert "200 kinds of calls" in progress.progress.text()
    assert not progress.progress._depth
    assert not progress.progress._lists


class Counted:
    """How long the lists of parts were, and how many parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lists: list[int] = []
        self.parts = 0
        of, leave = progress.progress.of, progress.progress.leave

        def listed(total: int) -> Any:
            self.lists.append(total)
            return of(total)

        def left() -> None:
            self.parts += 1
            leave()

        monkeypatch.setattr(progress.progress, "of", listed)
        monkeypatch.setattr(progress.progress, "leave", left)


def test_a_fused_graph_tells_how_many_layers_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)).eval()
    jt.fuse(model, measure="never")(torch.randn(1, 2, 9, 9))
    assert counted.lists == [2]
    assert counted.parts == 2


def test_kinds_of_calls_of_a_converted_model_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = jt.convert(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)), measure="never")
    for _ in range(2):
        model(torch.randn(1, 2, 9, 9)).sum().backward()
    assert counted.parts == 4  # two layers in two directions, the first time


def test_calls_of_another_thread_are_seen_while_one_measures() -> None:
    seen, apart = [], []

    def call() -> None:
        kinds.tell("of another thread", ())  # type: ignore[arg-type]

    def observe(kind: Any, operands: Any) -> None:
        seen.append(kind)

    kinds.observers.append(observe)
    try:
        with kinds.apart(lambda kind, operands: apart.append(kind)):
            other = threading.Thread(target=call)
            other.start()
            other.join()
            kinds.tell("of this thread", ())  # type: ignore[arg-type]
            with kinds.apart():
                kinds.tell("of nobody", ())  # type: ignore[arg-type]
        call()
    finally:
        kinds.observers.remove(observe)
    assert seen == ["of another thread"] * 2
    assert apart == ["of this thread"]
