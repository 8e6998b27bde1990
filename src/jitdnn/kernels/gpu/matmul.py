"""Matrix product on the ordinary units: a contraction without space."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.gpu.gemm.algorithm import Contracted
from jitdnn.kernels.gpu.gemm.plan import Contraction, lower_matmul
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem


class TiledGemm(Contracted):
    """Tiles of sums in registers, panels through the group's memory; every batch is a group of its own."""

    name = "tiled_gemm"
    problem = MatMul

    def lowered(self, problem: Problem) -> Contraction:
        return lower_matmul(cast(MatMul, problem))
