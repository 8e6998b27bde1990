"""From counted cycles to expected seconds."""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.problems.problem import Problem
from jitdnn.tensor import compute_dtype

LAUNCH_SECONDS = 3e-6
_CYCLES_WORTH_A_THREAD = 30_000  # about 8 microseconds
_FLOPS_PER_CYCLE_PER_LANE = 4.0  # two multiply-adds


def seconds_of(problem: Problem, device: CpuDevice, cycles: float, tasks: int) -> float:
    """Seconds for ``cycles`` of one thread spread over tasks, but no less than memory needs.

    A cycle is what the measured peak says it is: two vector multiply-adds.
    """
    dtype = compute_dtype(problem.dtype)
    lanes = device.isa.lanes(dtype)
    threads = max(1, min(useful_threads(device, cycles), tasks))
    rate = device.peak_flops(dtype) / device.threads / (_FLOPS_PER_CYCLE_PER_LANE * lanes)
    turns = -(-tasks // threads) * threads / max(1, tasks)  # the last round may leave threads idle
    return LAUNCH_SECONDS + max(cycles * min(turns, 2.0) / threads / rate, problem.bytes / device.bandwidth)


def useful_threads(device: CpuDevice, cycles: float) -> int:
    """Threads worth using: each must have more to do than it costs to hand it work."""
    return max(1, min(device.threads, int(cycles / _CYCLES_WORTH_A_THREAD)))
