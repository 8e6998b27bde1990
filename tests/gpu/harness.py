"""Every algorithm of a GPU target against the float64 reference, in memory of the device that shows misuse.

`check` is what `check` of conformance.py is for the CPU: the same cases, bounds and guards, with the buffers copied to
the device and back around every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cases import (
    SCALES,
    AnyArray,
    Buffer,
    Case,
    Workspace,
    compare,
    make_case,
    takers,
)
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Problem

__all__ = ["SCALES", "check", "run", "run_algorithm"]


class _Mirror:
    """A buffer's memory on the device, at the same place relative to a multiple of 16 bytes."""

    def __init__(self, device: Any, memory: AnyArray, pointer: int) -> None:
        self.device, self.host = device, memory.reshape(-1).view(np.uint8)
        inside = pointer - memory.ctypes.data
        # the element at index 0 lies as far from an aligned address as on the host
        self.shift = (pointer - inside) % 16
        self.memory = device.allocate(self.host.nbytes + 16)
        self.start = self.memory.pointer + self.shift
        self.pointer = self.start + inside
        device.write(self.start, self.host)

    def fetch(self) -> None:
        self.device.read(self.host, self.start)


def run(
    device: Any, kernel: Kernel, case: Case, room: int, alpha: float = 1.0, beta: float = 0.0
) -> list[AnyArray]:
    """The outputs of a kernel given `room` bytes of workspace; checks that it wrote nothing else."""
    outputs = [Buffer(operand.descriptor) for operand in case.problem.outputs]
    for buffer, operand, previous in zip(outputs, case.problem.outputs, case.previous, strict=True):
        if operand.role == "state" or (beta != 0 and operand.role != "saved"):
            buffer.values[...] = previous
    inputs = [*case.inputs, *case.operands]
    before = [buffer.bits() for buffer in inputs]
    outside = [buffer.outside() for buffer in outputs]
    workspace = Workspace(room)
    mirrors = [_Mirror(device, b.memory, b.pointer) for b in (*case.inputs, *outputs, *case.operands)]
    scratch = _Mirror(device, workspace.memory, workspace.memory.ctypes.data + workspace.start)
    pointers = [mirror.pointer for mirror in mirrors]
    kernel(None, pointers, alpha, beta, scratch.pointer if room else 0)
    device.synchronize()
    for mirror in (*mirrors, scratch):
        mirror.fetch()
    for buffer, bits in zip(outputs, outside, strict=True):
        assert (buffer.outside() == bits).all(), "wrote beside its output"
    assert workspace.is_canary_alive(), "wrote beside its workspace"
    for buffer, bits in zip(inputs, before, strict=True):
        assert (buffer.bits() == bits).all(), "wrote to an input"
    return [buffer.values.copy() for buffer in outputs]


def check(
    problem: Problem,
    device: Any,
    epilogue: Epilogue | None = None,
    scales: Sequence[tuple[float, float]] = SCALES,
    seed: int = 0,
    inputs: Sequence[AnyArray] | None = None,
    only: Sequence[str] | None = None,
) -> set[str]:
    """Check every algorithm of the device's table that takes the problem; returns their names.

    `inputs`: arrays for the problem's sources; None for random ones. `only`: names of those to check, None for all.
    """
    case = make_case(problem, epilogue, seed, inputs)
    names = set()
    for algorithm in takers(algorithms(problem, device.target), problem, device, epilogue):
        if only is not None and algorithm.name not in only:
            continue
        names.add(algorithm.name)
        run_algorithm(algorithm, case, device, scales)
    return names


def run_algorithm(
    algorithm: Any, case: Case, device: Any, scales: Sequence[tuple[float, float]] = SCALES
) -> None:
    """Check one algorithm: error bound, guards, and that it is as deterministic as it says."""
    problem, epilogue = case.problem, case.epilogue
    results: dict[tuple[float, float], list[AnyArray]] = {}
    try:
        assert 0 < algorithm.estimate(problem, device, epilogue) < np.inf
        kernel = algorithm.build(problem, device, epilogue)
        room = algorithm.workspace(problem, device, epilogue)
        for alpha, beta in (*scales, scales[0]):
            actual = run(device, kernel, case, room, alpha, beta)
            compare(actual, case, alpha, beta, algorithm.error_bound(problem))
            earlier = results.setdefault((alpha, beta), actual)
            if algorithm.deterministic:
                pairs = zip(actual, earlier, strict=True)
                assert all(a.tobytes() == b.tobytes() for a, b in pairs), "is not deterministic"
    except AssertionError as error:
        raise AssertionError(f"{algorithm.name}, {device.name}, {problem}: {error}") from error
