"""The filter's gradient as an implicit GEMM over packed tiles.

Any stride, dilation, padding, groups, layout and channel count.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.code import POINTERS, trace
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.plan import ImplicitGemmWgradPlan
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles, seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa


class ImplicitGemmWgrad(Algorithm):
    """wgrad; the loop nest is drawn in plan.py."""

    name = "implicit_gemm_filter"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: implicit_gemm computes forward and backward data"
        if epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        return None

    def _plan(self, problem: Problem, device: Device) -> ImplicitGemmWgradPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _plan(problem, device.isa)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, device).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        return seconds_of(
            problem, device, cycles(plan) + channels_last_group_cycles(problem, device), plan.tasks
        )

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        library = load(self.name, str(problem), device.isa, lambda module: trace(module, plan))
        threads, needed = useful_threads(device, cycles(plan)), plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(), POINTERS, threads, workspace=needed)


@lru_cache(256)
def _plan(problem: Convolution, isa: Isa) -> ImplicitGemmWgradPlan:
    (c,) = lower_convolution(problem)
    return choose_plan(c, isa)
