"""The filter's gradient by Winograd's minimal filtering.

Filters of several taps on any axis; any stride, dilation, padding, groups and layout.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel, terms
from jitdnn.kernels.cpu.convolution.winograd.error import storage_error
from jitdnn.kernels.cpu.convolution.winograd_wgrad.code import POINTERS, phases, trace
from jitdnn.kernels.cpu.convolution.winograd_wgrad.cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.winograd_wgrad.error import roundings
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Order, WinogradWgradPlan
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles, seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa, isa
from jitdnn.tensor import compute_dtype

_MAX_ROUNDINGS = 80.0  # unit roundoffs, 4.8e-6 in f32


class WinogradWgrad(Algorithm):
    """The direction wgrad; see plan.py. Given an ``order``, it takes the best plan with it."""

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
        if all(taps == 1 for taps in problem.w.shape[2:]):
            return "minimal filtering needs several taps along an axis"
        if problem.flops == 0:
            return "there is nothing to sum"
        return None

    def plan(self, problem: Problem, device: Device) -> WinogradWgradPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa, self.order)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return _workspace(self.plan(problem, device), device)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self.plan(problem, device)
        return seconds_of(
            problem, device, cycles(plan) + channels_last_group_cycles(problem, device), plan.tasks
        )

    def error_bound(self, problem: Problem) -> float:
        assert isinstance(problem, Convolution)
        computing = compute_dtype(problem.dtype)
        plan = _plan(problem, isa("avx512"), None)  # the tiles are the same on every processor
        sums = UNIT_ROUNDOFF[computing] * roundings(plan.axes, plan.c.batch)
        return storage_error(problem, computing) + sums

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "the other taps of the filter, of the same channels"

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self.plan(problem, device)
        library = load(self.name, plan, device.isa, lambda module: trace(module, plan))
        threads = min(useful_threads(device, cycles(plan)), plan.tasks)  # each has its own tiles
        return CpuKernel(library, phases(plan), POINTERS, threads, workspace=_workspace(plan, device))


def _workspace(plan: WinogradWgradPlan, device: Device) -> int:
    return plan.workspace(min(device.threads, plan.tasks))


@lru_cache(256)
def _plan(problem: Convolution, processor: Isa, order: Order | None) -> WinogradWgradPlan:
    (whole,) = lower_convolution(problem)
    plain = 4.0 + math.sqrt(terms(problem))  # what is declared for a plain sum, and so allowed for any
    return choose_plan(whole, processor, max(_MAX_ROUNDINGS, plain), order)
