"""The gradient of a grouped convolution's filter over channels-last images.

Any rank, stride, dilation, padding and size of the groups; the channels of x and of dy must follow each other in
memory. See wgrad_plan.py.

A NaN or an infinity stays in its group, as in algorithm.py.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.grouped.packing import has_contiguous_channels
from jitdnn.kernels.cpu.convolution.grouped.wgrad_code import POINTERS, trace
from jitdnn.kernels.cpu.convolution.grouped.wgrad_cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class GroupedWgrad(Algorithm):
    """wgrad; the loop nest is drawn in wgrad_plan.py."""

    name = "grouped_filter"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: grouped computes forward and backward data"
        if epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        c = _lowered(problem)
        if not has_contiguous_channels(c) or c.groups[0] == 1 or c.taps == 0:
            return "the channels of x and y must follow each other in memory, as they do in nhwc"
        return None

    def _plan(self, problem: Problem, device: Device) -> GroupedWgradPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, device).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        return seconds_of(problem, device, cycles(plan), plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        key = (str(problem), device.isa.name)
        library = load(self.name, key, device.isa, lambda module: trace(module, plan))
        threads, needed = useful_threads(device, cycles(plan)), plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(), POINTERS, threads, workspace=needed)


@lru_cache(256)
def _lowered(problem: Convolution) -> Correlation:
    (c,) = lower_convolution(problem)
    return c.merged()


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa) -> GroupedWgradPlan:
    return choose_plan(_lowered(problem), isa)
