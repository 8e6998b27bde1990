"""From counted cycles to expected seconds."""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.isa import item_bytes
from jitdnn.tensor import compute_dtype

LAUNCH_SECONDS = 3e-6
_CYCLES_WORTH_A_THREAD = 30_000  # about 8 microseconds
_FLOPS_PER_CYCLE_PER_LANE = 4.0  # two multiply-adds
_APART = 18.0  # cycles to bring a line of a group whose pixels lie apart; once for forward and backward data
_CACHE_BYTES = 1 << 20
_LINE = 64


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


def channels_last_group_cycles(problem: Problem) -> float:
    """Cycles more of a convolution that takes one group after the other, where the channels of groups lie side by side
    (nhwc): the pixels of a group are apart, so every line comes alone, and from far."""
    assert isinstance(problem, Convolution)
    if problem.groups == 1 or problem.bytes < _CACHE_BYTES:
        return 0.0
    lines = 0
    for tensor in (problem.x, problem.y):
        each = tensor.shape[1] // problem.groups
        if each > 1 and tensor.strides[1] == 1 and tensor.strides[-1] != 1:
            size = each * item_bytes(tensor.dtype)
            lines += tensor.size // each * -(-size // _LINE)
    often = 2 if problem.direction == "bwd_filter" else 1
    return _APART * often * lines * (1 - 1 / problem.groups)
