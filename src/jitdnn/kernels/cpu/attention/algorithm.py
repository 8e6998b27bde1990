"""Attention in tiles: scores stay in the caches while they are needed, and no matrix of them is ever stored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.attention import backward_code, cost, forward_code
from jitdnn.kernels.cpu.attention.plan import (
    ROWS_OF_A_SUM,
    BackwardPlan,
    ForwardPlan,
    make_slots,
    slot_values,
)
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.attention import Attention
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_MOST_KEYS = 2**31 - 1  # they are counted in 32 bits


@dataclass(frozen=True)
class _Launch:
    plan: ForwardPlan | BackwardPlan
    trace: Callable[[Module], None]
    phases: list[tuple[str, int]]  # the tasks of the first one are the parallel work
    integers: list[int]


class _Tiled(Algorithm):
    problem = Attention
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "attention takes no epilogue"
        keys = cast(Attention, problem).k.shape[2]
        return f"{keys} keys: more than {_MOST_KEYS} are not counted" if keys > _MOST_KEYS else None

    @abstractmethod
    def _launch(self, problem: Attention, device: CpuDevice) -> _Launch:
        """The plan and the phases."""

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        attention, processor = cast(Attention, problem), cast(CpuDevice, device)
        _, tasks = self._launch(attention, processor).phases[0]
        return seconds_of(problem, processor, cost.cycles(attention, processor), max(1, tasks))

    def error_bound(self, problem: Problem) -> float:
        attention = cast(Attention, problem)
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        # scores are sums of D products, and their errors are those of the exponentials
        terms = sqrt(attention.q.shape[3]) + sqrt(max(1, attention.k.shape[2]))
        is_forward = attention.direction == "fwd"
        return 2.0 * own + computing * (40.0 + 2.0 * terms) * (1.0 if is_forward else 4.0)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        attention, processor = cast(Attention, problem), cast(CpuDevice, device)
        launch = self._launch(attention, processor)
        library = load(f"attention_{attention.direction}", launch.plan, processor.isa, launch.trace)
        _, tasks = launch.phases[0]
        threads = min(useful_threads(processor, cost.cycles(attention, processor)), max(1, tasks))
        return CpuKernel(library, launch.phases, len(problem.operands), threads, launch.integers)


class TiledForward(_Tiled):
    """Panels of queries against tiles of keys, the softmax updated from tile to tile."""

    name = "tiled"

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        plan = cost.plan_forward(cast(Attention, problem), cast(CpuDevice, device).isa)
        return plan.workspace().bytes * device.threads

    def _launch(self, problem: Attention, device: CpuDevice) -> _Launch:
        plan, slots = cost.plan_forward(problem, device.isa), make_slots(problem, "blocks")
        n, h, t, _ = problem.q.shape
        blocks = ceil_div(t, plan.block_queries)
        trace = partial(forward_code.trace, problem=problem, plan=plan, slots=slots)
        values = slot_values(problem) | {"blocks": blocks}
        return _Launch(plan, trace, [("attend", n * h * blocks)], slots.pack(values))


class TiledBackward(_Tiled):
    """Scores computed again tile by tile, all three gradients in one pass over them."""

    name = "tiled_gradients"

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        attention = cast(Attention, problem)
        plan = cost.plan_backward(attention, cast(CpuDevice, device).isa)
        n, h, t, _ = attention.q.shape
        sums = cost.key_ranges(attention) * n * h * t * plan.query_pitch * ITEM_BYTES[plan.real]
        return plan.workspace().bytes * device.threads + (sums if plan.splits else 0)

    def _launch(self, problem: Attention, device: CpuDevice) -> _Launch:
        plan = cost.plan_backward(problem, device.isa)
        slots = make_slots(problem, "splits", "batches", "partials")
        n, h, t, _ = problem.q.shape
        ranges = cost.key_ranges(problem)
        phases = [("gradients", n * problem.k.shape[1] * ranges)]
        if plan.splits:
            phases.append(("gather", n * h * ceil_div(t, ROWS_OF_A_SUM)))
        partials = plan.workspace().bytes * device.threads
        values = slot_values(problem) | {"splits": ranges, "batches": n, "partials": partials}
        trace = partial(backward_code.trace, problem=problem, plan=plan, slots=slots)
        return _Launch(plan, trace, phases, slots.pack(values))
