"""CTC loss, one task for each sequence: the recursion over labels in vectors, with logarithms kept near 0."""

from __future__ import annotations

import math

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.ctc import code, cost
from jitdnn.kernels.cpu.ctc.plan import losses_bytes, make_slots, plan_ctc, slot_values, thread_bytes
from jitdnn.kernels.cpu.schedule.cost import useful_threads
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.tensor import compute_dtype


class SequenceRecursion(CpuAlgorithm[CtcLoss]):
    """One task for each sequence: the recursion over labels in vectors, with logarithms kept near 0."""

    name = "recursion"
    problem = CtcLoss
    takes_no_epilogue = "{kind} takes no epilogue"

    def launch(self, problem: CtcLoss, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan, slots, n = plan_ctc(problem), make_slots(problem), problem.x.shape[1]
        cycles = cost.cycles(problem, device.isa.lanes(compute_dtype(problem.dtype)))
        phases = [("sequence", n)]
        if plan.direction == "fwd" and plan.is_reduced:
            phases.append(("total", 1))
        return Launch(
            problem, "ctc_loss", plan, lambda module: code.trace(module, plan, slots), phases, len(problem.operands),
            cycles, max(1, n), losses_bytes(problem) + thread_bytes(problem, device.isa) * device.threads,
            slots.pack(slot_values(problem, device.isa)), threads=min(useful_threads(device, cycles), max(1, n)),
        )  # fmt: skip

    def error_of(self, problem: CtcLoss) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        times = problem.x.shape[0]
        # in f64 the reference has the larger errors: its logarithms grow with time
        return 2.0 * own + computing * (40.0 + 8.0 * (times if problem.dtype == "f64" else math.sqrt(times)))
