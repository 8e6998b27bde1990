"""Every algorithm against the float64 reference, through raw pointers, in memory that shows misuse.

`check(problem)` runs each algorithm of the tables that takes the problem, and asserts of each that

- its result is within its declared error bound, for several alpha and beta (beta = 0 over NaN: never read);
- it writes nothing but its output and its workspace: gaps, guards and a canary after the workspace are kept;
- it reads nothing but its inputs: everything around them, and the workspace, is NaN, which would spread;
- if it says that it is deterministic, a second run and runs with another number of threads agree bit by bit;
- if callers may keep its prepared filter, all this holds of the two halves: preparing reads the filter only and
  writes what is kept, which running neither changes nor exceeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cases import (
    ARRANGEMENTS,
    SCALES,
    AnyArray,
    Buffer,
    Case,
    Workspace,
    arranged,
    compare,
    make_case,
    norm,
    packed,
    poison,
    random_values,
    takers,
)
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel
from jitdnn.kernels.formulas.fused_convolution import SeparateKernels
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.choose import build
from jitdnn.problems import Problem
from jitdnn.rtcg.isa import runnable

INSTRUCTION_SETS = tuple(name for name in ("avx512", "avx2", "neon", "plain") if name in runnable())

__all__ = [
    "ARRANGEMENTS",
    "INSTRUCTION_SETS",
    "SCALES",
    "AnyArray",
    "Buffer",
    "Workspace",
    "accepting",
    "arranged",
    "check",
    "compare",
    "make_case",
    "norm",
    "packed",
    "poison",
    "random_values",
    "results_of",
    "run",
    "unreached",
]


def run(kernel: Kernel, case: Case, room: int, alpha: float = 1.0, beta: float = 0.0) -> list[AnyArray]:
    """The outputs of a kernel given `room` bytes of workspace; checks that it wrote nothing else."""
    outputs = [Buffer(operand.descriptor) for operand in case.problem.outputs]
    for buffer, operand, previous in zip(outputs, case.problem.outputs, case.previous, strict=True):
        if operand.role == "state" or (beta != 0 and operand.role != "saved"):
            buffer.values[...] = previous
    read_only = [(buffer, buffer.bits()) for buffer in case.inputs + case.operands]
    outside = [buffer.outside() for buffer in outputs]
    workspace = Workspace(room)
    pointers = [buffer.pointer for buffer in (*case.inputs, *outputs, *case.operands)]
    kernel(None, pointers, alpha, beta, workspace.pointer)
    for buffer, before in zip(outputs, outside, strict=True):
        assert (buffer.outside() == before).all(), "wrote beside its output"
    assert workspace.is_canary_alive(), "wrote beside its workspace"
    for buffer, bits in read_only:
        assert (buffer.bits() == bits).all(), "wrote to an input"
    return [buffer.values.copy() for buffer in outputs]


class PreparedFilter:
    """A kernel with its filter prepared: a kernel of the ordinary form that reads no filter."""

    def __init__(self, kernel: Any, case: Case) -> None:
        self._kernel = kernel
        outputs = [Buffer(operand.descriptor) for operand in case.problem.outputs]
        problem = case.problem
        self._absent = {
            place: Buffer(problem.inputs[place].descriptor) for place in problem.filters
        }  # all NaN
        others = [
            case.inputs[place] if place in self._absent else Buffer(operand.descriptor)
            for place, operand in enumerate(problem.inputs)
        ]
        others += [*outputs, *(Buffer(buffer.descriptor) for buffer in case.operands)]
        before = [buffer.bits() for buffer in others]
        self._kept = Workspace(kernel.kept.bytes)
        kernel.keep(None, [buffer.pointer for buffer in others], self._kept.pointer)
        assert self._kept.is_canary_alive(), "wrote beside what it keeps"
        for buffer, bits in zip(others, before, strict=True):
            assert (buffer.bits() == bits).all(), "wrote to an operand while it prepared the filter"

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        before = self._kept.memory.copy()
        given = list(pointers)
        for place, absent in self._absent.items():
            given[place] = absent.pointer
        self._kernel.run_kept(stream, given, alpha, beta, workspace, self._kept.pointer)
        assert (self._kept.memory == before).all(), "wrote to the prepared filter"


def accepting(problem: Problem, device: CpuDevice, epilogue: Epilogue | None = None) -> Iterator[Algorithm]:
    """The algorithms of the tables that take a problem."""
    return takers(algorithms(problem, device.target), problem, device, epilogue)


def check(
    problem: Problem,
    epilogue: Epilogue | None = None,
    cpu: str = "host",
    threads: Sequence[int] = (1, 2),
    scales: Sequence[tuple[float, float]] = SCALES,
    seed: int = 0,
    inputs: Sequence[AnyArray] | None = None,
) -> set[str]:
    """Check every algorithm that takes the problem; returns their names. At least the reference takes any.

    `inputs`: arrays for the problem's sources; None for random ones.
    """
    case = make_case(problem, epilogue, seed, inputs)
    names = set()
    takers = list(accepting(problem, host(threads[0], cpu), epilogue))
    plain = len(takers)
    takers += [variant for algorithm in takers if (variant := algorithm.with_kept_filter()) is not None]
    for number, algorithm in enumerate(takers):
        names.add(algorithm.name)
        # whose convolution is by the algorithm that is estimated to be the fastest, which threads may change
        has_choice = isinstance(algorithm, SeparateKernels)
        results: dict[tuple[float, float, int], list[AnyArray]] = {}
        # with a kept filter most code is compiled once more, though it only reads the filter elsewhere: one number of
        # threads each, which changes from problem to problem
        once = zlib.crc32(str(problem).encode()) % len(threads)
        for count in threads if number < plain else (threads[once],):
            device = host(count, cpu)
            try:
                assert algorithm.refuse(problem, device, epilogue) is None, "refuses other numbers of threads"
                assert 0 < algorithm.estimate(problem, device, epilogue) < np.inf
                room = algorithm.workspace(problem, device, epilogue)
                kernel = build(algorithm, problem, device, epilogue, room)
                if number >= plain and kernel.kept is not None:
                    kernel, room = PreparedFilter(kernel, case), room - kernel.kept.bytes
                for alpha, beta in (*scales, scales[0]):
                    actual = run(kernel, case, room, alpha, beta)
                    compare(actual, case, alpha, beta, algorithm.error_bound(problem))
                    earlier = results.setdefault((alpha, beta, count * has_choice), actual)
                    if algorithm.deterministic:
                        pairs = zip(actual, earlier, strict=True)
                        assert all(a.tobytes() == b.tobytes() for a, b in pairs), "is not deterministic"
            except AssertionError as error:
                where = f"{algorithm.name}, {device.isa.name} x{count}"
                raise AssertionError(f"{where}, {problem}: {error}") from error
    return names


def results_of(problem: Problem, *inputs: AnyArray, cpu: str = "host") -> dict[str, AnyArray]:
    """What each algorithm that takes the problem makes of the given inputs: the principal output."""
    case = make_case(problem, given=inputs)
    device = host(1, cpu)
    return {
        algorithm.name: run(algorithm.build(problem, device), case, algorithm.workspace(problem, device))[0]
        for algorithm in accepting(problem, device)
    }


def unreached(kind_of_problems: Sequence[Problem], epilogue: Epilogue | None = None) -> set[str]:
    """Names of the algorithms in the tables of these problems that none of them reaches."""
    device = host(2)
    listed = {a.name for problem in kind_of_problems for a in algorithms(problem, device.target)}
    return listed - {a.name for problem in kind_of_problems for a in accepting(problem, device, epilogue)}
