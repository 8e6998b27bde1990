"""Grouped convolution of channels-last images, forward and backward to the data.

Any rank, stride, dilation, padding and size of the groups, but that every result must meet a tap. The channels of x
and of y must follow each other in memory. See plan.py.

A NaN or an infinity stays in its group: the groups that share a vector are in lanes of their own, and no lane
multiplies an element of another group, not even by zero.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.grouped.code import trace
from jitdnn.kernels.cpu.convolution.grouped.cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.grouped.packing import has_contiguous_channels
from jitdnn.kernels.cpu.convolution.grouped.plan import GroupedPlan
from jitdnn.kernels.cpu.correlation import InterleavedPhases
from jitdnn.kernels.cpu.lowering import lower_convolution, lower_stride_phases
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class Grouped(Algorithm):
    """fprop and dgrad; the loop nest is drawn in plan.py."""

    name = "grouped"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: grouped_filter computes the filter's gradient"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if not _is_supported(_lowered(problem, epilogue)):
            return (
                "the channels of all images must follow each other in memory, as they do in nhwc, and a strided "
                "backward data must have taps for every position"
            )
        return None

    def _plan(self, problem: Problem, device: Device, epilogue: Epilogue | None) -> GroupedPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa, epilogue)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, device, epilogue).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        return seconds_of(problem, device, cycles(plan), plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, lambda module: trace(module, plan, pointers, epilogue))
        threads, needed = useful_threads(device, cycles(plan)), plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(), pointers, threads, workspace=needed)


def _is_supported(interleaved: InterleavedPhases) -> bool:
    """True if the channels of all tensors are neighbours in memory, and every result meets a tap."""
    c = interleaved.whole
    if c.groups[0] == 1 or not has_contiguous_channels(c) or interleaved.has_phases_without_taps:
        return False
    return all(v.groups == (c.width,) and (c.width == 1 or v.channels == 1) for v in c.operands)


@lru_cache(256)
def _lowered(problem: Convolution, epilogue: Epilogue | None) -> InterleavedPhases:
    operands = epilogue.operands if epilogue else ()
    if problem.direction == "bwd_data" and math.prod(problem.stride) > 1:
        return lower_stride_phases(problem, operands)
    (c,) = lower_convolution(problem, operands)
    return InterleavedPhases.single(c)


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa, epilogue: Epilogue | None) -> GroupedPlan:
    return choose_plan(_lowered(problem, epilogue), isa)
