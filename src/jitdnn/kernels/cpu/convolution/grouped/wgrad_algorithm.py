"""The gradient of a grouped convolution's filter over channels-last images.

Any rank, stride, dilation, padding and size of the groups; the channels of x and of dy must follow each other in
memory. See wgrad_plan.py.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS
from jitdnn.kernels.cpu.convolution.grouped.wgrad_plan import GroupedWgradPlan
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class GroupedWgrad(Algorithm):
    """Backward filter; see the module's text."""

    name = "grouped_filter"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: grouped computes forward and backward data"
        if epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if not _plan(problem, device.isa).fits:
            return "the channels of x and y must follow each other in memory, as they do in nhwc"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        plan = _plan(problem, device.isa)
        return seconds_of(problem, device, plan.cycles(), plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        plan = _plan(problem, device.isa)
        library = load(self.name, (str(problem), device.isa.name), device.isa, plan.trace)
        threads, needed = useful_threads(device, plan.cycles()), plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(), POINTERS, threads, workspace=needed)


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa) -> GroupedWgradPlan:
    (whole,) = lower_convolution(problem)
    return GroupedWgradPlan(whole.merged(), isa)
