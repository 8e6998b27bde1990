"""The algorithms of CUDA devices, best first."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution_depthwise import DepthwiseBanded, DepthwiseSliding
from jitdnn.kernels.cuda.convolution_grouped import Grouped
from jitdnn.kernels.cuda.convolution_implicit_gemm import ImplicitGemm, ImplicitGemmInPlace
from jitdnn.kernels.cuda.convolution_implicit_gemm_filter import ImplicitGemmFilter, ImplicitGemmFilterInPlace
from jitdnn.kernels.cuda.convolution_patch import Patch
from jitdnn.kernels.cuda.convolution_stem import Stem
from jitdnn.kernels.cuda.matmul import MatrixUnits, MatrixUnitsInPlace
from jitdnn.kernels.gpu.table import ELEMENTWISE, PLAIN, REDUCTION, SCAN
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem

__all__ = ["ALGORITHMS", "ELEMENTWISE", "REDUCTION", "SCAN"]

_CORRELATION = (
    DepthwiseSliding(),
    DepthwiseBanded(),
    ImplicitGemm(),
    ImplicitGemmInPlace(),
    Stem(),
    Grouped(),
    Patch(),
)

# (problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **PLAIN,
    (Convolution, "fwd"): (*_CORRELATION, *PLAIN[Convolution, "fwd"]),
    (Convolution, "bwd_data"): (*_CORRELATION, *PLAIN[Convolution, "bwd_data"]),
    (Convolution, "bwd_filter"): (
        DepthwiseSliding(),
        DepthwiseBanded(),
        ImplicitGemmFilter(),
        ImplicitGemmFilterInPlace(),
        Stem(),
        Grouped(),
        Patch(),
        *PLAIN[Convolution, "bwd_filter"],
    ),
    (MatMul, None): (MatrixUnits(), MatrixUnitsInPlace(), *PLAIN[MatMul, None]),
}
