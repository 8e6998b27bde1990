"""Convolution on CUDA cores: exact sums in f32 or f64, any direction, stride, layout and type.

The floor is the peak of the multiply-add units.
"""

from __future__ import annotations

import math

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.gemm.algorithm import Contracted
from jitdnn.kernels.gpu.gemm.cost import least_seconds
from jitdnn.kernels.gpu.gemm.lowering import lower_convolution
from jitdnn.kernels.gpu.gemm.plan import Contraction
from jitdnn.problems.convolution import Convolution


class Direct(Contracted[Convolution]):
    """Tiles of sums in registers, operands gathered through shared memory; a small grid splits the terms."""

    name = "direct"
    problem = Convolution

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        moved, flops = problem.x.nbytes + problem.w.nbytes + problem.y.nbytes, problem.flops
        if (
            problem.direction == "bwd_data"
        ):  # where there are pixels, which may be far fewer than y has with its padding
            met = (extent // step for extent, step in zip(problem.spatial, problem.stride, strict=True))
            taps = (
                math.prod(met) * problem.statements
            )  # each tap is met by one of so many neighbours at least
            flops = min(flops, 2 * problem.n * problem.c * problem.k // problem.groups * taps)
        return least_seconds(flops, moved, problem.dtype, device)

    def lowered(self, problem: Convolution) -> Contraction:
        return lower_convolution(problem)
