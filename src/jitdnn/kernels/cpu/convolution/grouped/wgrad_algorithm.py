"""The gradient of a grouped convolution's filter over channels-last images.

Any rank, stride, dilation, padding and size of the groups; the channels of x and of dy must follow each other in
memory. See wgrad_plan.py.

A NaN or an infinity stays in its group, as in algorithm.py.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.convolution.grouped.packing import has_contiguous_channels
from jitdnn.kernels.cpu.convolution.grouped.wgrad_code import POINTERS, trace
from jitdnn.kernels.cpu.convolution.grouped.wgrad_cost import choose_plan, cycles
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems.convolution import Convolution


class GroupedWgrad(CpuAlgorithm[Convolution]):
    """wgrad; the loop nest is drawn in wgrad_plan.py."""

    name = "grouped_filter"
    problem = Convolution
    takes_no_epilogue = "a filter's gradient takes no epilogue: apply it to the result"

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: grouped computes forward and backward data"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        c = _lowered(problem)
        if not has_contiguous_channels(c) or c.groups[0] == 1 or c.taps == 0:
            return "the channels of x and y must follow each other in memory, as they do in nhwc"
        return None

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = choose_plan(_lowered(problem), device.isa)
        key = (str(problem), device.isa.name)
        return Launch(
            problem, self.name, key, lambda module: trace(module, plan), plan.phases(), POINTERS,
            cycles(plan), plan.tasks, plan.workspace(device.threads),
        )  # fmt: skip


@lru_cache(256)
def _lowered(problem: Convolution) -> Correlation:
    (c,) = lower_convolution(problem)
    return c.merged()
