"""Who is the fastest of several algorithms, and who is asked for it."""

from __future__ import annotations

import pytest

from jitdnn.devices.cuda import offline
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, fastest
from jitdnn.problems import parse
from jitdnn.problems.problem import Problem

PROBLEM, DEVICE = parse("matmul m4 k4 n4 f32"), offline("sm_90a")


class Fake(Algorithm):
    """Says how long it takes, what it takes at least, and notes that it was asked."""

    problem = Problem

    def __init__(self, name: str, seconds: float, least: float = 0.0, refused: str | None = None) -> None:
        self.name = name  # type: ignore[misc]
        self._seconds, self._least, self._refused = seconds, least, refused
        self.is_asked = False

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        self.is_asked = True
        return self._refused

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert self._refused is None
        return self._seconds

    def least_seconds(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self._least

    def error_bound(self, problem: Problem) -> float:
        return 0.0

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        raise AssertionError


def test_those_that_take_longer_at_least_are_not_asked() -> None:
    slow, quick, between = Fake("slow", 9.0, 5.0), Fake("quick", 2.0, 1.0), Fake("between", 4.0)
    assert fastest([slow, between, quick], PROBLEM, DEVICE) is quick
    assert not slow.is_asked
    assert between.is_asked


@pytest.mark.parametrize("least", [0.0, 2.0])
def test_of_equals_the_first_is_taken(least: float) -> None:
    one, other = Fake("one", 2.0, least), Fake("other", 2.0)
    assert fastest([one, other], PROBLEM, DEVICE) is one


def test_only_those_count_that_take_the_problem_and_are_allowed() -> None:
    quick, refused, last = Fake("quick", 1.0), Fake("refused", 0.5, refused="no"), Fake("last", 3.0, 2.5)
    assert fastest([quick, refused, last], PROBLEM, DEVICE, None, lambda one: one is not quick) is last
    assert fastest([refused], PROBLEM, DEVICE) is None
    assert fastest([], PROBLEM, DEVICE) is None
