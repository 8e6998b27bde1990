"""Matrix product on CUDA cores: a contraction without axes of space."""

from __future__ import annotations

from jitdnn.kernels.gpu.gemm.algorithm import Contracted
from jitdnn.kernels.gpu.gemm.lowering import lower_matmul
from jitdnn.kernels.gpu.gemm.plan import Contraction
from jitdnn.problems.matmul import MatMul


class TiledGemm(Contracted[MatMul]):
    """Tiles of sums in registers, panels through shared memory; every batch has tiles of its own."""

    name = "tiled_gemm"
    problem = MatMul

    def lowered(self, problem: MatMul) -> Contraction:
        return lower_matmul(problem)
