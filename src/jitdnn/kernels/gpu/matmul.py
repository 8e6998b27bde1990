"""Matrix product on the ordinary units: a contraction without space."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.gpu import contraction
from jitdnn.kernels.gpu.convolution_direct import Direct
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem


class TiledGemm(Direct):
    """Tiles of sums in registers, panels through the group's memory; every batch is a group of its own."""

    name = "tiled_gemm"
    problem = MatMul

    def _lowered(self, problem: Problem) -> contraction.Contraction:
        return contraction.lower_matmul(cast(MatMul, problem))
