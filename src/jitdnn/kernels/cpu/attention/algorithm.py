"""Attention in tiles: scores stay in the caches while they are needed, and no matrix of them is ever stored."""

from __future__ import annotations

from functools import partial
from math import sqrt

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.attention import backward_code, cost, forward_code
from jitdnn.kernels.cpu.attention.plan import ROWS_OF_A_SUM, make_slots, slot_values
from jitdnn.kernels.cpu.schedule.cost import useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_MOST_KEYS = 2**31 - 1  # they are counted in 32 bits


class _Tiled(CpuAlgorithm[Attention]):
    problem = Attention
    takes_no_epilogue = "attention takes no epilogue"

    def refusal(self, problem: Attention, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        keys = problem.k.shape[2]
        return f"{keys} keys: more than {_MOST_KEYS} are not counted" if keys > _MOST_KEYS else None

    def error_of(self, problem: Attention) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        # scores are sums of D products, and their errors are those of the exponentials
        terms = sqrt(problem.q.shape[3]) + sqrt(max(1, problem.k.shape[2]))
        is_forward = problem.direction == "fwd"
        return 2.0 * own + computing * (40.0 + 2.0 * terms) * (1.0 if is_forward else 4.0)


class TiledForward(_Tiled):
    """Panels of queries against tiles of keys, the softmax updated from tile to tile."""

    name = "tiled"

    def launch(self, problem: Attention, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan, slots = cost.plan_forward(problem, device.isa), make_slots(problem, "blocks")
        n, h, t, _ = problem.q.shape
        blocks = ceil_div(t, plan.block_queries)
        trace = partial(forward_code.trace, problem=problem, plan=plan, slots=slots)
        integers = slots.pack(slot_values(problem) | {"blocks": blocks})
        tasks, cycles = n * h * blocks, cost.cycles(problem, device)
        threads = min(useful_threads(device, cycles), max(1, tasks))
        return Launch(
            problem, "attention_fwd", plan, trace, [("attend", tasks)], len(problem.operands), cycles, max(1, tasks),
            plan.workspace().bytes * device.threads, integers, threads=threads,
        )  # fmt: skip


class TiledBackward(_Tiled):
    """Scores computed again tile by tile, all three gradients in one pass over them."""

    name = "tiled_gradients"

    def launch(self, problem: Attention, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = cost.plan_backward(problem, device.isa)
        slots = make_slots(problem, "splits", "batches", "partials")
        n, h, t, _ = problem.q.shape
        ranges = cost.key_ranges(problem)
        tasks = n * problem.k.shape[1] * ranges
        phases, sums = [("gradients", tasks)], 0
        if plan.splits:
            phases.append(("gather", n * h * ceil_div(t, ROWS_OF_A_SUM)))
            sums = ranges * n * h * t * plan.query_pitch * ITEM_BYTES[plan.real]
        partials = plan.workspace().bytes * device.threads
        integers = slots.pack(slot_values(problem) | {"splits": ranges, "batches": n, "partials": partials})
        trace = partial(backward_code.trace, problem=problem, plan=plan, slots=slots)
        cycles = cost.cycles(problem, device)
        return Launch(
            problem, "attention_bwd", plan, trace, phases, len(problem.operands), cycles, max(1, tasks),
            partials + sums, integers, threads=min(useful_threads(device, cycles), max(1, tasks)),
        )  # fmt: skip
