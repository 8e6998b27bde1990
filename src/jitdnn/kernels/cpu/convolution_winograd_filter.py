"""The filter's gradient by Winograd's minimal filtering.

Filters of several taps on at least one of the last two axes; any stride, dilation, padding, groups and layout.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.timing import seconds_of, useful_threads
from jitdnn.kernels.cpu.winograd_filter import Order, WinogradFilter
from jitdnn.kernels.cpu.winograd_filter_choice import choose_plan, cycles
from jitdnn.kernels.cpu.winograd_filter_code import WinogradFilterCode
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class WinogradFilterGradient(Algorithm):
    """Backward filter; see winograd_filter.py. Given an ``order``, it takes the best plan with it."""

    name = "winograd_filter"
    problem = Convolution
    deterministic = True

    def __init__(self, order: Order | None = None) -> None:
        self.order = order

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: winograd_4 and winograd_2 compute forward and backward data"
        if epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        if all(taps == 1 for taps in problem.w.shape[2:][-2:]):
            return "minimal filtering needs several taps along one of the last two axes"
        if problem.flops == 0:
            return "there is nothing to sum"
        return None

    def plan(self, problem: Problem, device: Device) -> WinogradFilter:
        """How the problem is cut: the cheapest way by counted cycles."""
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa, self.order)

    def workspace(self, problem: Problem, device: Device) -> int:
        return self.plan(problem, device).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device) -> float:
        assert isinstance(device, CpuDevice)
        plan = self.plan(problem, device)
        tasks = min(tasks for _, tasks in WinogradFilterCode(plan, 3).phases())
        return seconds_of(problem, device, cycles(plan), tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self.plan(problem, device)
        code = WinogradFilterCode(plan, 3)
        library = load(self.name, plan, device.isa, code.trace)
        return CpuKernel(library, code.phases(), 3, useful_threads(device, cycles(plan)))


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa, order: Order | None) -> WinogradFilter:
    (whole,) = lower_convolution(problem)
    return choose_plan(whole, isa, order)
