"""The conformance checks catch each kind of misbehaviour, shown by an algorithm that has it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import conformance
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue
from jitdnn.problems import Problem, parse
from jitdnn.tensor import view

PROBLEM = parse("add shape3x5 f32 nchw a=s7,1 b=s-5,1 out=s9,1")
ROOM = 32

Fault = Callable[[np.ndarray[Any, Any], Sequence[int], int], None]


def store(pointer: int, index: int, value: float) -> None:
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))[index] = value


class Adder(Algorithm):
    """a + b, and then a fault: a function of the output's view, the pointers and the workspace."""

    name = "adder"
    problem = Problem
    deterministic = True

    def __init__(
        self, fault: Fault | None = None, reads_output: bool = False, reads_gap: bool = False
    ) -> None:
        self.fault, self.reads_output, self.reads_gap = fault, reads_output, reads_gap

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return ROOM

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return 1e-6

    def error_bound(self, problem: Problem) -> float:
        return 1e-6

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Any:
        def kernel(stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
            a, b, out = (
                view(pointer, operand.descriptor)
                for pointer, operand in zip(pointers, problem.operands, strict=True)
            )
            total = a.astype(np.float64) + b
            if self.reads_gap:
                total[0, 0] += 0 * ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_float))[5]
            if beta != 0 or self.reads_output:
                out[...] = alpha * total + beta * out
            else:
                out[...] = alpha * total
            if self.fault is not None:
                self.fault(out, pointers, workspace)

        return kernel


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Algorithm], None]:
    """Makes an algorithm the only one in the tables."""
    return lambda algorithm: monkeypatch.setattr(conformance, "algorithms", lambda *_: (algorithm,))


def test_a_right_algorithm_passes(use: Callable[[Algorithm], None]) -> None:
    use(Adder())
    assert conformance.check(PROBLEM) == {"adder"}
    assert conformance.unreached([PROBLEM]) == set()


_calls = iter(range(10**6))


def _differ(out: np.ndarray[Any, Any], pointers: Sequence[int], workspace: int) -> None:
    out[0, 0] = np.nextafter(out[0, 0], np.float32(np.inf)) if next(_calls) % 2 else out[0, 0]


def _lose_digits(out: np.ndarray[Any, Any], pointers: Sequence[int], workspace: int) -> None:
    out *= 1 + 1e-5


def _forget(out: np.ndarray[Any, Any], pointers: Sequence[int], workspace: int) -> None:
    out[1, 2] = np.nan


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Adder(lambda out, p, w: store(p[2], 5, 1.0)), "beside its output"),  # the gap after the first row
        (Adder(lambda out, p, w: store(p[2], -1, 1.0)), "beside its output"),
        (Adder(lambda out, p, w: store(p[2], 2 * 9 + 5, 1.0)), "beside its output"),
        (Adder(lambda out, p, w: store(w, ROOM // 4, 1.0)), "beside its workspace"),
        (Adder(lambda out, p, w: store(w, -1, 1.0)), "beside its workspace"),
        (Adder(lambda out, p, w: store(p[0], 0, 1.0)), "wrote to an input"),
        (Adder(lambda out, p, w: store(p[1], 5, 1.0)), "wrote to an input"),
        (Adder(_forget), "left elements unwritten"),
        (Adder(_lose_digits), "exceeds"),
        (Adder(_differ), "not deterministic"),
        (Adder(reads_output=True), "read what it should not"),
        (Adder(reads_gap=True), "read what it should not"),
    ],
)
def test_a_fault_is_caught(use: Callable[[Algorithm], None], algorithm: Algorithm, message: str) -> None:
    use(algorithm)
    with pytest.raises(AssertionError, match=message) as caught:
        conformance.check(PROBLEM)
    assert "adder" in str(caught.value)
    assert str(PROBLEM) in str(caught.value)


def test_an_algorithm_that_is_never_reached_is_named(
    use: Callable[[Algorithm], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    adder = Adder()
    use(adder)
    monkeypatch.setattr(adder, "refuse", lambda *_: "never")
    assert conformance.unreached([PROBLEM]) == {"adder"}
    assert conformance.check(PROBLEM) == set()
    monkeypatch.setattr(adder, "refuse", lambda *_: " ")
    with pytest.raises(AssertionError, match="without a reason"):
        conformance.check(PROBLEM)
