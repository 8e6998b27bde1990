"""Algorithms of processors that are one launch of traced code: they say which, and `CpuAlgorithm` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from jitdnn import log
from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel, Kept, first_extra
from jitdnn.kernels.algorithm import Epilogue, Kernel, OwnProblem, PlannedAlgorithm, summation_bound
from jitdnn.kernels.cpu import extents
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import Library, load, load_for
from jitdnn.rtcg.extents import Extents


@dataclass(frozen=True)
class Launch:
    """A kernel before it is compiled: its code, how that is run, and what its time follows from.

    ``name`` and ``key`` say what code is traced, together with the instruction set (`rtcg.compile.load`). With ``code``
    they say all but that, which is handed to ``trace`` with some extents as arguments of the kernel (`extents.py`).
    """

    problem: Problem
    name: str
    key: Any
    trace: Callable[..., Any]
    phases: Sequence[tuple[str, int]]  # (function, tasks), one after the other
    pointers: int  # operands, with those of the epilogue
    cycles: float  # of all phases on one thread
    tasks: int  # among which threads share the work
    workspace: int = 0  # bytes
    integers: Sequence[int] = ()  # that the code takes at run time
    kept: Kept | None = None
    threads: int | None = None  # if not as many as the cycles are worth
    code: Any = None  # plans and all else that tracing reads, where its extents are arguments
    further_cycles: float = 0.0  # that the time has beside these; negative where the filter is prepacked
    imbalance: float | None = None  # of the device's threads, where tasks differ: see `seconds_of`


class CpuAlgorithm(PlannedAlgorithm[OwnProblem, Launch, CpuDevice]):
    """An algorithm that is one launch: it has a refusal, and the launch of a problem."""

    deterministic = True

    @abstractmethod
    def launch(self, problem: OwnProblem, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        """What to trace and to run for a problem that is not refused."""

    def plan(self, problem: OwnProblem, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        return _launch(self, problem, device, epilogue)

    def workspace_of(self, plan: Launch, device: CpuDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: Launch, device: CpuDevice) -> float:
        cycles = plan.cycles + plan.further_cycles
        return seconds_of(plan.problem, device, cycles, plan.tasks, plan.imbalance)

    def error_of(self, problem: OwnProblem) -> float:
        return summation_bound(problem)

    def kernel_of(self, plan: Launch, device: CpuDevice) -> Kernel:
        integers = list(plan.integers)
        if plan.code is None:
            library = load(plan.name, plan.key, device.isa, plan.trace)
        else:
            try:
                library, further = _load_with_extents(plan, device)
            except (TypeError, AttributeError) as error:
                # an `Extent` does not do what tracing asks of a number
                if extents.is_strict:
                    raise
                log.fallback_once(
                    ("extents", plan.name),
                    f"code of {plan.name} is compiled for each shape, and not for all batches: {error}",
                )
                library, further = _load_for_shape(plan, device), []
            integers += further
        threads = plan.threads or useful_threads(device, plan.cycles)
        return CpuKernel(library, plan.phases, plan.pointers, threads, integers, plan.kept, plan.workspace)


class FilterAlgorithm(CpuAlgorithm[OwnProblem]):
    """An algorithm that prepares its filter in phases of its own; with ``is_kept`` callers keep what these make."""

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> Self:
        return type(self)(is_kept=True)


def _load_with_extents(plan: Launch, device: CpuDevice) -> tuple[Library, list[int]]:
    """The code, for all extents for which tracing decides the same, and what it takes of those at hand."""
    values = Extents()
    values.first_slot = first_extra(plan.pointers) + len(plan.integers)
    code = extents.with_extents(plan.code, values)
    parameters = (code, plan.key, plan.pointers, len(plan.integers))
    return load_for(plan.name, parameters, values, device.isa, lambda module: plan.trace(module, code))


def _load_for_shape(plan: Launch, device: CpuDevice) -> Library:
    """The code for the shape at hand alone."""
    parameters = (plan.code, plan.key, plan.pointers, len(plan.integers))
    return load(plan.name, parameters, device.isa, lambda module: plan.trace(module, plan.code))


@lru_cache(1024)
def _launch(
    algorithm: CpuAlgorithm[Any], problem: Problem, device: CpuDevice, epilogue: Epilogue | None
) -> Launch:
    return algorithm.launch(problem, device, epilogue)


def pointer_count(problem: Problem, epilogue: Epilogue | None) -> int:
    """Operands of a kernel: the problem's, then the epilogue's."""
    return len(problem.operands) + (len(epilogue.operands) if epilogue else 0)


def code_key(epilogue: Epilogue | None) -> str | None:
    """What of an epilogue is part of the code; where its operands lie is part of the plan."""
    return None if epilogue is None else epilogue.expression.key
