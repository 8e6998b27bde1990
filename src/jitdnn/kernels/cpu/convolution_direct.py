"""Convolution as its definition reads, from the user's tensors to the user's tensors without a workspace.

Every convolution there is: any direction, rank, stride, dilation, padding, group, layout and epilogue. Whatever
are neighbours in memory are in the lanes: pixels (pixel_lanes.py), or channels (channel_lanes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.channel_lanes import ChannelLanes
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.filter_pixel_lanes import FilterPixelLanes
from jitdnn.kernels.cpu.pixel_lanes import PixelLanes, best_turned, strips
from jitdnn.kernels.cpu.timing import seconds_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load


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

    def _parts(
        self, problem: Problem, device: Device, epilogue: Epilogue | None = None
    ) -> Sequence[PixelLanes | ChannelLanes | FilterPixelLanes]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        if problem.direction == "bwd_filter":
            (whole,) = lower_convolution(problem)
            return [FilterPixelLanes(best_turned(whole.merged()), device.isa)]
        operands = epilogue.operands if epilogue else ()
        pixels = [PixelLanes(strip, device.isa) for strip in strips(problem, operands)]
        parts = [best_turned(part.merged()) for part in lower_convolution(problem, operands)]
        channels = [ChannelLanes(part, device.isa) for part in parts]
        return min((pixels, channels), key=lambda parts: sum(part.cycles() for part in parts))

    def estimate(self, problem: Problem, device: Device) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device)
        tasks = sum(part.shares(device)[0] for part in parts)
        return seconds_of(problem, device, sum(part.cycles() for part in parts), tasks)

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
                if isinstance(part, FilterPixelLanes):
                    part.trace(module, f"part{number}_", extra)
                else:
                    part.trace(module, f"part{number}_", pointers, extra, (0, 1, 2), epilogue)
                extra += len(shares[number][1])

        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, generate)
        phases = [(f"part{number}_tiles", tasks) for number, (tasks, _) in enumerate(shares)]
        return CpuKernel(library, phases, pointers, device.threads, extras)
