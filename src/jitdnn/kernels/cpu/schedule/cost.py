"""Seconds of a launch from its counted cycles."""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.isa import item_bytes
from jitdnn.tensor import compute_dtype

LAUNCH_SECONDS = 3e-6
_HIDDEN = 0.02  # of the shorter one of work and memory traffic, that shows
_CYCLES_WORTH_A_THREAD = 20_000  # some 7 microseconds: threads are awake in the middle of a list of launches
_FLOPS_PER_CYCLE_PER_LANE = 4.0  # two multiply-adds: counted cycles assume them on any processor


def seconds_of(
    problem: Problem, device: CpuDevice, cycles: float, tasks: int, imbalance: float | None = None
) -> float:
    """Seconds for ``cycles`` of one thread divided into tasks, but no less than the memory traffic takes.

    ``imbalance``: the time until the device's last thread ends, by that of threads which end together; None where it
    follows from the number of tasks, all of them alike. The clock follows from the peak, which is two vector
    multiply-adds a cycle.
    """
    dtype = compute_dtype(problem.dtype)
    lanes = device.isa.lanes(dtype)
    threads = max(1, min(useful_threads(device, cycles), tasks))
    rate = device.peak_flops(dtype) / device.threads / (_FLOPS_PER_CYCLE_PER_LANE * lanes)
    if imbalance is None or threads < device.threads:
        imbalance = (
            ceil_div(tasks, threads) * threads / max(1, tasks)
        )  # the last round may leave threads idle
    work, traffic = cycles * min(imbalance, 2.0) / threads / rate, problem.bytes / device.bandwidth
    # tensors that are in a cache arrive sooner: of two that wait for memory alike, what has less to do is faster
    return LAUNCH_SECONDS + max(work, traffic) + _HIDDEN * min(work, traffic)


def useful_threads(device: CpuDevice, cycles: float) -> int:
    """Threads worth using: each must get more work than it costs to wake it."""
    return max(1, min(device.threads, int(cycles / _CYCLES_WORTH_A_THREAD)))


def channels_last_group_cycles(problem: Convolution, device: CpuDevice) -> float:
    """Additional cycles of a convolution that computes one group after the other on channels-last tensors.

    The pixels of a group are not adjacent there, so that every line is loaded for one pixel only, and from memory.
    """
    processor = device.isa.processor
    if problem.groups == 1 or problem.bytes < processor.l2(cost.SEPARATE_GROUPS_L2):
        return 0.0
    line, lines = processor.line_bytes, 0
    for tensor in (problem.x, problem.y):
        each = tensor.shape[1] // problem.groups
        if each > 1 and tensor.strides[1] == 1 and tensor.strides[-1] != 1:
            size = each * item_bytes(tensor.dtype)
            lines += tensor.size // each * ceil_div(size, line)
    times = 2 if problem.direction == "bwd_filter" else 1
    line_cycles = cost.SEPARATE_GROUP_LINE * line / processor.memory_rate
    return line_cycles * times * lines * (1 - 1 / problem.groups)
