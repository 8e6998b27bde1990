"""Depthwise convolution forward and backward to the data: each channel is filtered alone, or with a few others.

Any rank, stride, dilation, padding, layout and channel multiplier. Pixels or channels are in the lanes, whichever
are neighbours in memory (over_pixels.py, over_groups.py). Nothing is copied but the filters of a channels-last
image, to the stack; only those of more than some hundred taps need a workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.direct.over_groups import OverGroups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import OverGroupsPacked
from jitdnn.kernels.cpu.convolution.direct.over_pixels import OverPixels, strips
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load

Part = OverPixels | OverGroups | OverGroupsPacked

SMALL_GROUP = 4  # channels that a group may have and still be worth a lane


class Depthwise(Algorithm):
    """Forward and backward data; see the module's text."""

    name = "depthwise"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: depthwise_filter computes the filter's gradient"
        return not_depthwise(problem)

    def _parts(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Sequence[Part]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        operands = epilogue.operands if epilogue else ()
        pixels = [OverPixels(strip, device.isa) for strip in strips(problem, operands)]
        groups = [OverGroups(part.merged(), device.isa) for part in lower_convolution(problem, operands)]
        choices: list[Sequence[Part]] = [pixels, groups]
        if len(groups) == 1 and OverGroupsPacked(groups[0].c, device.isa).fits:
            choices.append([OverGroupsPacked(groups[0].c, device.isa)])
        return min(choices, key=lambda parts: sum(part.cycles() for part in parts))

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return _workspace(self._parts(problem, device, epilogue), device)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        tasks = sum(part.shares(device)[0] for part in parts)
        return seconds_of(problem, device, sum(part.cycles() for part in parts), tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        beside = _shares_beside(parts)
        shares = [beside or part.shares(device) for part in parts]
        extras = [extra for _, numbers in shares for extra in numbers]

        def generate(module: Module) -> None:
            extra, tasks = 0, []
            for number, part in enumerate(parts):
                tasks.append(part.trace(module, f"part{number}_", pointers, extra, (0, 1, 2), epilogue))
                extra += len(shares[number][1])
            if beside:
                with module.task("tiles") as (k, args, task, thread):
                    for one in tasks:
                        assert one is not None
                        k.call(one, args, task, thread)

        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, generate)
        phases = [(f"part{number}_tiles", tasks) for number, (tasks, _) in enumerate(shares)]
        if beside:
            phases = [("tiles", beside[0])]
        needed = _workspace(parts, device)
        return CpuKernel(library, phases, pointers, device.threads, extras, workspace=needed)


def _workspace(parts: Sequence[Part], device: Device) -> int:
    """Bytes of scratch memory for parts that run one after another."""
    return max(0 if isinstance(part, OverPixels) else part.workspace(device.threads) for part in parts)


def _shares_beside(parts: Sequence[Part]) -> tuple[int, tuple[int, int]] | None:
    """The division of correlations that go through the image together, if they do."""
    groups = [part for part in parts if isinstance(part, OverGroups) and part.is_on_stack]
    return groups[0].shares_beside(groups) if len(groups) == len(parts) > 1 else None


def not_depthwise(problem: Convolution) -> str | None:
    """Why a convolution is not depthwise, nor nearly so, if it is not."""
    channels, results = problem.w.shape[1], problem.k // problem.groups
    if channels == 1 or (problem.groups > 1 and max(channels, results) <= SMALL_GROUP):
        return None
    return (
        f"a group has {channels} channels of x and {results} of y (c={problem.c}, k={problem.k}, "
        f"groups={problem.groups}): it takes one of x, or up to {SMALL_GROUP} of both"
    )
