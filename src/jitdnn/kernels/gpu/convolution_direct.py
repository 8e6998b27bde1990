"""Convolution on the ordinary units: exact sums in f32 or f64, any direction, stride, layout and type.

The floor is the peak of the multiply-add units; tiles of 128x128 reach about three fifths of it.
"""

from __future__ import annotations

from typing import cast

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.gpu import contraction
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem


class Direct(Algorithm):
    """Tiles of sums in registers, operands gathered through the group's memory; a small grid splits the terms."""

    name = "direct"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if problem.dtype == "f64" and not cast(GpuDevice, device).has_f64:
            return "the device has no double precision: use f32"
        return None

    def _lowered(self, problem: Problem) -> contraction.Contraction:
        return contraction.lower_convolution(cast(Convolution, problem))

    def workspace(self, problem: Problem, device: Device) -> int:
        return contraction.workspace(self._lowered(problem), cast(GpuDevice, device))

    def estimate(self, problem: Problem, device: Device) -> float:
        return contraction.choose(self._lowered(problem), cast(GpuDevice, device)).seconds

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return contraction.build(self._lowered(problem), cast(GpuDevice, device), epilogue)
