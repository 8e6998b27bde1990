"""The gradient of a depthwise convolution's filter.

Any rank, stride, dilation, padding, layout and channel multiplier. Pixels or channels are in the lanes, whichever
are neighbours in memory (wgrad_over_pixels.py, wgrad_over_groups.py). Only the partial sums of a channels-last
image's few channels, or of a filter of some hundred taps, need a workspace.
"""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.direct.depthwise import not_depthwise
from jitdnn.kernels.cpu.convolution.direct.over_pixels import best_turned
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import WgradOverPixels
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load


class DepthwiseWgrad(Algorithm):
    """Backward filter; see the module's text."""

    name = "depthwise_filter"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: depthwise computes forward and backward data"
        if epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        return not_depthwise(problem)

    def _plan(self, problem: Problem, device: Device) -> WgradOverPixels | WgradOverGroups:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        (whole,) = lower_convolution(problem)
        pixels = WgradOverPixels(best_turned(whole.merged()), device.isa)
        groups = WgradOverGroups(whole.merged(), device.isa, is_shared=True)
        return pixels if pixels.cycles() <= groups.cycles() else groups

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return _workspace(self._plan(problem, device))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        return seconds_of(problem, device, plan.cycles(), plan.shares(device)[0])

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device)
        key = (str(problem), device.isa.name)
        library = load(self.name, key, device.isa, lambda module: plan.trace(module, "", 0))
        tasks, extras = plan.shares(device)
        phases = plan.phases("") if isinstance(plan, WgradOverGroups) else [("tiles", tasks)]
        return CpuKernel(library, phases, POINTERS, device.threads, extras, workspace=_workspace(plan))


def _workspace(plan: WgradOverPixels | WgradOverGroups) -> int:
    return plan.workspace() if isinstance(plan, WgradOverGroups) else 0
