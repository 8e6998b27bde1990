"""The algorithms that are contractions and nothing else: each says which, and `Contracted` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, OwnProblem, PlannedKernel
from jitdnn.kernels.gpu.gemm.code import build
from jitdnn.kernels.gpu.gemm.cost import choose
from jitdnn.kernels.gpu.gemm.plan import Contraction


class Contracted(KernelAlgorithm[OwnProblem, GpuDevice]):
    """An algorithm of which only the contraction differs from others."""

    version: ClassVar[int] = 2

    @abstractmethod
    def lowered(self, problem: OwnProblem) -> Contraction:
        """What to compute."""

    def refusal(self, problem: OwnProblem, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.dtype == "f64" and not device.has_f64:
            return "the device has no double precision: use f32"
        return None

    def build_in_place(self, problem: OwnProblem, device: GpuDevice, epilogue: Epilogue | None) -> Kernel:
        """The kernel that takes no workspace: the terms of a sum are not cut into parts."""
        plan = choose(self.lowered(problem), device, epilogue)
        steps = max(1, -(-plan.contraction.term_count // plan.tiling.depth))
        return build(replace(plan, splits=1, split_steps=steps), device)

    def plan(self, problem: OwnProblem, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = choose(self.lowered(problem), device, epilogue)
        return PlannedKernel(plan.workspace, plan.seconds, lambda: build(plan, device))
