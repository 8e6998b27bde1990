"""Depthwise convolution forward and backward to the data."""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.pixel_lanes import PixelLanes, strips
from jitdnn.kernels.cpu.timing import seconds_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load


class Depthwise(Algorithm):
    name = "depthwise"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return None

    def _parts(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> list[PixelLanes]:
        assert isinstance(problem, Convolution) and isinstance(device, CpuDevice)
        operands = epilogue.operands if epilogue else ()
        return [PixelLanes(strip, device.isa) for strip in strips(problem, operands)]

    def estimate(self, problem: Problem, device: Device) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device)
        tasks = sum(p.units.shares(device, p.cycles())[0] for p in parts)
        return seconds_of(problem, device, sum(part.cycles() for part in parts), tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)

        def generate(module: Module) -> None:
            for number, part in enumerate(parts):
                part.trace(module, f"part{number}_", pointers, number, (0, 1, 2), epilogue)

        key = (str(problem), str(epilogue), device.isa.name)
        library = load(self.name, key, device.isa, generate)
        shares = [part.units.shares(device, part.cycles()) for part in parts]
        phases = [(f"part{number}_tiles", tasks) for number, (tasks, _) in enumerate(shares)]
        return CpuKernel(library, phases, pointers, device.threads, [units for _, units in shares])
