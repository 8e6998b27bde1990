"""Convolution on the ordinary units: exact sums in f32 or f64, any direction, stride, layout and type.

The floor is the peak of the multiply-add units.
"""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.gpu.gemm.algorithm import Contracted
from jitdnn.kernels.gpu.gemm.plan import Contraction, lower_convolution
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem


class Direct(Contracted):
    """Tiles of sums in registers, operands gathered through the group's memory; a small grid splits the terms."""

    name = "direct"
    problem = Convolution

    def lowered(self, problem: Problem) -> Contraction:
        return lower_convolution(cast(Convolution, problem))
