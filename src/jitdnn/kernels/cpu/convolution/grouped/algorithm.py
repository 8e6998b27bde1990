"""Grouped convolution of channels-last images, forward and backward to the data.

Any rank, stride, dilation, padding and size of the groups, but that every result must meet a tap. The channels of x
and of y must follow each other in memory. See plan.py.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.grouped.plan import GroupedPlan
from jitdnn.kernels.cpu.correlation import InterleavedPhases, lower_convolution, lower_stride_phases
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class Grouped(Algorithm):
    """Forward and backward data; see the module's text."""

    name = "grouped"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: grouped_filter computes the filter's gradient"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if not _plan(problem, device.isa, epilogue).fits:
            return (
                "the channels of all images must follow each other in memory, as they do in nhwc, and a strided "
                "backward data must have taps for every position"
            )
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa, epilogue).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        plan = _plan(problem, device.isa, epilogue)
        return seconds_of(problem, device, plan.cycles(), plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        plan = _plan(problem, device.isa, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, lambda module: plan.trace(module, pointers, epilogue))
        threads = useful_threads(device, plan.cycles())
        needed = plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(), pointers, threads, workspace=needed)


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa, epilogue: Epilogue | None) -> GroupedPlan:
    operands = epilogue.operands if epilogue else ()
    if problem.direction == "bwd_data" and math.prod(problem.stride) > 1:
        return GroupedPlan(lower_stride_phases(problem, operands), isa)
    (whole,) = lower_convolution(problem, operands)
    return GroupedPlan(InterleavedPhases.single(whole), isa)
