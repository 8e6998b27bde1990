"""Convolution as its definition reads, from the user's tensors to the user's tensors without a workspace.

Every convolution there is: any direction, rank, stride, dilation, padding, group and layout. Whatever are neighbours
in memory are in the lanes: pixels (over_pixels.py), channels (over_channels.py) or the groups of a depthwise
convolution (over_groups.py); and so for a filter's gradient (filter_*_lanes.py). Sums stay in registers, those of a
gradient with many taps in some KiB of the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.direct.depthwise import not_depthwise
from jitdnn.kernels.cpu.convolution.direct.over_channels import OverChannels
from jitdnn.kernels.cpu.convolution.direct.over_groups import OverGroups
from jitdnn.kernels.cpu.convolution.direct.over_pixels import OverPixels, best_turned, strips
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import WgradOverChannels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import WgradOverPixels
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles, seconds_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa

FilterPart = WgradOverPixels | WgradOverChannels | WgradOverGroups
Part = OverPixels | OverChannels | OverGroups | FilterPart


class Direct(Algorithm):
    """All three directions; see the module's text."""

    name = "direct"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter" and epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        return None

    def _parts(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Sequence[Part]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return _cheapest(problem, device.isa, epilogue)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        tasks = sum(part.shares(device)[0] for part in parts)
        cycles = sum(part.cycles() for part in parts)
        if not isinstance(parts[0], OverGroups | WgradOverGroups):
            cycles += channels_last_group_cycles(problem)
        return seconds_of(problem, device, cycles, tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        shares = [part.shares(device) for part in parts]
        extras = [extra for _, numbers in shares for extra in numbers]

        def generate(module: Module) -> None:
            extra = 0
            for number, part in enumerate(parts):
                if isinstance(part, FilterPart):
                    part.trace(module, f"part{number}_", extra)
                else:
                    part.trace(module, f"part{number}_", pointers, extra, (0, 1, 2), epilogue)
                extra += len(shares[number][1])

        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, generate)
        phases = [(f"part{number}_tiles", tasks) for number, (tasks, _) in enumerate(shares)]
        return CpuKernel(library, phases, pointers, device.threads, extras, workspace=0)


@lru_cache(256)
def _cheapest(problem: Convolution, isa: Isa, epilogue: Epilogue | None) -> Sequence[Part]:
    """The cheapest of the ways that need no workspace."""
    parts = [part.merged() for part in lower_convolution(problem, epilogue.operands if epilogue else ())]
    ways: list[Sequence[Part]]
    by_groups: Sequence[OverGroups | WgradOverGroups]
    if problem.direction == "bwd_filter":
        (whole,) = parts
        ways = [[WgradOverPixels(best_turned(whole), isa)]]
        ways.append([WgradOverChannels(best_turned(whole), isa)])
        by_groups = [WgradOverGroups(whole, isa, is_shared=False)]
    else:
        operands = epilogue.operands if epilogue else ()
        ways = [[OverPixels(strip, isa) for strip in strips(problem, operands)]]
        ways.append([OverChannels(best_turned(part), isa) for part in parts])
        by_groups = [OverGroups(part, isa) for part in parts]
    if not_depthwise(problem) is None and all(part.is_on_stack for part in by_groups):
        ways.append(by_groups)
    return min(ways, key=lambda way: sum(part.cycles() for part in way))
