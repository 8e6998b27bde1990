"""From counted cycles to expected seconds."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Device
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.isa import ITEM_BYTES

LAUNCH_SECONDS = 3e-6
_FLOPS_PER_CYCLE_PER_LANE = 4.0  # two multiply-adds


def seconds_of(problem: Problem, device: Device, cycles: float, tasks: int) -> float:
    """Seconds for ``cycles`` of one thread spread over tasks, but no less than memory needs.

    A cycle is what the measured peak says it is: two vector multiply-adds.
    """
    lanes = device.isa.vector_bytes // ITEM_BYTES[problem.dtype]  # type: ignore[attr-defined]
    threads = max(1, min(device.threads, tasks))
    rate = device.peak_flops(problem.dtype) / device.threads / (_FLOPS_PER_CYCLE_PER_LANE * lanes)
    turns = -(-tasks // threads) * threads / max(1, tasks)  # the last round may leave threads idle
    return LAUNCH_SECONDS + max(cycles * min(turns, 2.0) / threads / rate, problem.bytes / device.bandwidth)
