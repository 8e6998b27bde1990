"""The algorithms that are contractions and nothing else: they say which, and `Contracted` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.gpu.gemm import plan as contraction
from jitdnn.problems.problem import Problem


class Contracted(Algorithm):
    """An algorithm of which only the contraction differs from others."""

    deterministic = True

    @abstractmethod
    def lowered(self, problem: Problem) -> contraction.Contraction:
        """What to compute."""

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if problem.dtype == "f64" and not cast(GpuDevice, device).has_f64:
            return "the device has no double precision: use f32"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return contraction.workspace(self.lowered(problem), cast(GpuDevice, device))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return contraction.choose(self.lowered(problem), cast(GpuDevice, device)).seconds

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return contraction.build(self.lowered(problem), cast(GpuDevice, device), epilogue)
