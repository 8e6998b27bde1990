"""The filter's gradient as an implicit GEMM over packed tiles.

Any stride, dilation, padding, groups, layout and channel count.
"""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.code import POINTERS, trace
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.cost import choose_plan, cycles
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles
from jitdnn.problems.convolution import Convolution


class ImplicitGemmWgrad(CpuAlgorithm[Convolution]):
    """wgrad; the loop nest is drawn in plan.py."""

    name = "implicit_gemm_filter"
    problem = Convolution
    takes_no_epilogue = "a filter's gradient takes no epilogue: apply it to the result"

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: implicit_gemm computes forward and backward data"
        return None

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        (c,) = lower_convolution(problem)
        plan = choose_plan(c, device.isa)
        return Launch(
            problem, self.name, str(problem), lambda module: trace(module, plan), plan.phases(), POINTERS,
            cycles(plan), plan.tasks, plan.workspace(device.threads),
            further_cycles=channels_last_group_cycles(problem, device),
        )  # fmt: skip
