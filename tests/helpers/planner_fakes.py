"""A machine and algorithms that say what they are told to say, for the tests of the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import jitdnn
from jitdnn import log, targets
from jitdnn.errors import CompileError, DeviceError
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel
from jitdnn.planner import find, sampling
from jitdnn.planner.plan import Plan
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

PROBLEM = Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3))
DOUBLE = Convolution.make("fwd", (2, 3, 8, 8), (4, 3, 3, 3), dtype="f64")


@dataclass(frozen=True)
class Machine:
    target: str = "fake"
    name: str = "fake machine"
    threads: int = 1
    bandwidth: float = 1e10

    def peak_flops(self, dtype: str) -> float:
        return 1e11


DEVICE = Machine()


@dataclass
class Clock:
    """What measurements read where fakes are `installed`: a busy machine must not decide which of them is fastest."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1e-5  # so that every deadline comes
        return self.now


CLOCK = Clock()


@dataclass
class Fake(Algorithm):
    """An algorithm that says what it is told to say, and whose kernel takes as long on `CLOCK` as it is told to."""

    name: str = "fake"  # type: ignore[misc]
    version: int = 1  # type: ignore[misc]
    seconds: float = 1e-3
    needs: int = 0
    refusal: str | None = None
    deterministic: bool = True  # type: ignore[misc]
    bound: float = 1e-7
    mode: str | None = None
    sleep: float = 0.0
    does_compile: bool = True
    builds: int = 0
    calls: list[tuple[Sequence[int], float, float, int]] = field(default_factory=list)

    problem = Convolution

    def refuse(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> str | None:
        return self.refusal

    def workspace(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> int:
        return self.needs

    def estimate(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> float:
        return self.seconds

    def error_bound(self, problem: Problem) -> float:
        return self.bound

    def arithmetic(self, problem: Problem) -> str:
        return self.mode or super().arithmetic(problem)

    def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Kernel:
        self.builds += 1
        if not self.does_compile:
            raise CompileError("this one never does")

        def kernel(stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
            self.calls.append((tuple(pointers), alpha, beta, workspace))
            CLOCK.now += self.sleep

        return kernel


Table = Callable[..., None]


@contextmanager
def installed(*algorithms: Algorithm) -> Iterator[None]:
    """The target `fake`, whose table for convolutions forward has these algorithms; time is what `CLOCK` says."""
    table: Any = SimpleNamespace(ALGORITHMS={(Convolution, "fwd"): algorithms})
    targets.register(targets.Target("fake", _no_devices, lambda: table, is_gpu=False), replace=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(find, "perf_counter", CLOCK)
            patch.setattr(sampling, "perf_counter", CLOCK)
            yield
    finally:
        targets.unregister("fake")


def _no_devices() -> Any:
    raise DeviceError("the devices of this target are made by tests")


class Planning:
    """Base of test classes: a table of fakes, nothing read or kept on disk, and the warnings of `log`."""

    @pytest.fixture
    def table(self) -> Iterator[Table]:
        with ExitStack() as stack:

            def install(*algorithms: Algorithm) -> None:
                stack.enter_context(installed(*algorithms))

            yield install

    @pytest.fixture(autouse=True)
    def memory_only(self) -> Iterator[None]:
        with jitdnn.settings(cache=False, log="warning"):
            yield

    @pytest.fixture
    def warnings(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The messages that `log.fallback_once` was given."""
        messages: list[str] = []
        monkeypatch.setattr(log, "fallback_once", lambda key, message: messages.append(message))
        return messages


def reasons(plan: Plan) -> dict[str, str | None]:
    return {candidate.name: candidate.refused for candidate in plan.candidates}
