"""The algorithms that are contractions and nothing else: they say which, and `Contracted` does the rest."""

from __future__ import annotations

from abc import abstractmethod

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, OwnProblem, PlannedAlgorithm, summation_bound
from jitdnn.kernels.gpu.gemm.code import build
from jitdnn.kernels.gpu.gemm.cost import choose
from jitdnn.kernels.gpu.gemm.plan import Contraction, GemmPlan


class Contracted(PlannedAlgorithm[OwnProblem, GemmPlan, GpuDevice]):
    """An algorithm of which only the contraction differs from others."""

    deterministic = True

    @abstractmethod
    def lowered(self, problem: OwnProblem) -> Contraction:
        """What to compute."""

    def refusal(self, problem: OwnProblem, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.dtype == "f64" and not device.has_f64:
            return "the device has no double precision: use f32"
        return None

    def plan(self, problem: OwnProblem, device: GpuDevice, epilogue: Epilogue | None) -> GemmPlan:
        return choose(self.lowered(problem), device, epilogue)

    def workspace_of(self, plan: GemmPlan, device: GpuDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: GemmPlan, device: GpuDevice) -> float:
        return plan.seconds

    def error_of(self, problem: OwnProblem) -> float:
        return summation_bound(problem)

    def kernel_of(self, plan: GemmPlan, device: GpuDevice) -> Kernel:
        return build(plan, device)
