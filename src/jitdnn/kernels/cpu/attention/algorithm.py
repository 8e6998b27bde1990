"""Attention in tiles: scores live in the caches while they are needed, and no matrix of them is ever stored."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, cast

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.attention.backward import (
    ROWS_OF_A_SUM,
    BackwardPlan,
    plan_backward,
    ranges,
    trace_backward,
)
from jitdnn.kernels.cpu.attention.forward import ForwardPlan, plan_forward, trace_forward
from jitdnn.kernels.cpu.attention.tiles import make_code, make_slots, slot_values
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.attention import Attention
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_EFFICIENCY = 0.75  # of the peak, for the products and all around them
_LONGEST = 2**31 - 1  # keys are counted in 32 bits


class _Tiled(Algorithm):
    problem = Attention
    deterministic = True
    direction: ClassVar[str]

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "attention takes no epilogue"
        keys = cast(Attention, problem).k.shape[2]
        return f"{keys} keys: more than {_LONGEST} are not counted" if keys > _LONGEST else None

    def _cycles(self, problem: Attention, device: CpuDevice) -> float:
        lanes = device.isa.lanes(compute_dtype(problem.dtype))
        products = problem.flops / (4.0 * lanes * _EFFICIENCY)
        copies = sum(operand.descriptor.size for operand in problem.operands if operand.name != "mask")
        return products + 2.0 * copies / lanes + 2000.0

    def error_bound(self, problem: Problem) -> float:
        attention = cast(Attention, problem)
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        # scores are sums of D products, and their errors are those of the exponentials
        terms = sqrt(attention.q.shape[3]) + sqrt(max(1, attention.k.shape[2]))
        return 2.0 * own + computing * (40.0 + 2.0 * terms) * (1.0 if self.direction == "fwd" else 4.0)


class TiledForward(_Tiled):
    """Panels of queries against tiles of keys, the softmax brought up from tile to tile."""

    name = "tiled"
    direction = "fwd"

    def _plan(self, problem: Problem, device: CpuDevice) -> ForwardPlan:
        attention = cast(Attention, problem)
        return plan_forward(make_code(attention, device.isa), device.isa, attention.q.shape[2])

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, cast(CpuDevice, device)).room().bytes * device.threads

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        processor, attention = cast(CpuDevice, device), cast(Attention, problem)
        n, h, t, _ = attention.q.shape
        tasks = n * h * ceil_div(t, self._plan(problem, processor).block)
        return seconds_of(problem, processor, self._cycles(attention, processor), max(1, tasks))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        attention, processor = cast(Attention, problem), cast(CpuDevice, device)
        plan = self._plan(problem, processor)
        slots = make_slots(attention, "blocks")
        library = load(
            "attention_forward",
            plan,
            processor.isa,
            lambda module: trace_forward(module, attention, plan, slots),
        )
        n, h, t, _ = attention.q.shape
        blocks = ceil_div(t, plan.block)
        values = slot_values(attention) | {"blocks": blocks}
        threads = useful_threads(processor, self._cycles(attention, processor))
        tasks = n * h * blocks
        return CpuKernel(
            library,
            [("attend", tasks)],
            len(problem.operands),
            min(threads, max(1, tasks)),
            slots.pack(values),
        )


class TiledBackward(_Tiled):
    """Scores computed anew tile by tile, all three gradients in one sweep over them."""

    name = "tiled_gradients"
    direction = "bwd"

    def _plan(self, problem: Problem, device: CpuDevice) -> BackwardPlan:
        attention = cast(Attention, problem)
        code = make_code(attention, device.isa, ranges(attention) > 1)
        return plan_backward(code, device.isa, attention)

    def _partials(self, problem: Attention, device: CpuDevice) -> int:
        """Bytes of the sums of dq that the ranges of keys have for themselves."""
        real = compute_dtype(problem.dtype)
        n, h, t, d = problem.q.shape
        lanes = device.isa.lanes(real)
        parts = ranges(problem)
        return parts * n * h * t * ceil_div(d, lanes) * lanes * ITEM_BYTES[real] if parts > 1 else 0

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        processor = cast(CpuDevice, device)
        own = self._plan(problem, processor).room().bytes * device.threads
        return own + self._partials(cast(Attention, problem), processor)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        processor, attention = cast(CpuDevice, device), cast(Attention, problem)
        tasks = attention.k.shape[0] * attention.k.shape[1] * ranges(attention)
        return seconds_of(problem, processor, self._cycles(attention, processor), max(1, tasks))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        attention, processor = cast(Attention, problem), cast(CpuDevice, device)
        plan = self._plan(problem, processor)
        slots = make_slots(attention, "splits", "batches", "partials")
        library = load(
            "attention_backward", plan, processor.isa,
            lambda module: trace_backward(module, attention, plan, slots),
        )  # fmt: skip
        n, h, t, _ = attention.q.shape
        parts = ranges(attention)
        values = slot_values(attention)
        values |= {"splits": parts, "batches": n, "partials": plan.room().bytes * device.threads}
        tasks = n * attention.k.shape[1] * parts
        phases = [("gradients", tasks)]
        if plan.code.splits:
            phases.append(("gather", n * h * ceil_div(t, ROWS_OF_A_SUM)))
        threads = useful_threads(processor, self._cycles(attention, processor))
        return CpuKernel(
            library, phases, len(problem.operands), min(threads, max(1, tasks)), slots.pack(values)
        )
