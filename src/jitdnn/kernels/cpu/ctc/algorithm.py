"""CTC loss, one task for each sequence: the recursion over labels in vectors, with logarithms kept near 0."""

from __future__ import annotations

import math
from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.ctc import code, cost
from jitdnn.kernels.cpu.ctc.plan import losses_bytes, make_slots, plan_ctc, slot_values, thread_bytes
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.tensor import compute_dtype


class SequenceRecursion(Algorithm):
    """One task for each sequence: the recursion over labels in vectors, with logarithms kept near 0."""

    name = "recursion"
    problem = CtcLoss
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "ctc_loss takes no epilogue" if epilogue is not None else None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        return losses_bytes(ctc) + thread_bytes(ctc, processor.isa) * device.threads

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        return seconds_of(problem, processor, _cycles(ctc, processor), max(1, ctc.x.shape[1]))

    def error_bound(self, problem: Problem) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        times = cast(CtcLoss, problem).x.shape[0]
        # in f64 the reference has the larger errors: its logarithms grow with time
        return 2.0 * own + computing * (40.0 + 8.0 * (times if problem.dtype == "f64" else math.sqrt(times)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        plan, slots = plan_ctc(ctc), make_slots(ctc)
        library = load("ctc_loss", plan, processor.isa, lambda module: code.trace(module, plan, slots))
        n = ctc.x.shape[1]
        phases = [("sequence", n)]
        if plan.direction == "fwd" and plan.is_reduced:
            phases.append(("total", 1))
        threads = min(useful_threads(processor, _cycles(ctc, processor)), max(1, n))
        integers = slots.pack(slot_values(ctc, processor.isa))
        return CpuKernel(library, phases, len(ctc.operands), threads, integers)


def _cycles(problem: CtcLoss, device: CpuDevice) -> float:
    return cost.cycles(problem, device.isa.lanes(compute_dtype(problem.dtype)))
