"""The algorithms of cuDNN, best first."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cudnn.convolution import Method, algorithm
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

# name, number in the library's enumeration, how it computes, and the part of the units' rate that it reached on an H100
_FORWARD = (
    Method("cudnn_implicit_precomp_gemm", 1, "gemm", 0.6, is_on_units=True),
    Method("cudnn_implicit_precomp_gemm_tf32", 1, "gemm", 0.9, is_tf32=True),
    Method("cudnn_implicit_gemm", 0, "gemm", 0.35),
    Method("cudnn_gemm", 2, "gemm", 0.4),
    Method("cudnn_winograd", 6, "winograd", 0.5),
    Method("cudnn_winograd_nonfused", 7, "winograd", 0.6),
    Method("cudnn_fft_tiling", 5, "fft", 0.5),
    Method("cudnn_fft", 4, "fft", 0.5),
)
_DATA = (
    Method("cudnn_algo_1", 1, "gemm", 0.4, is_on_units=True),
    Method("cudnn_algo_1_tf32", 1, "gemm", 0.9, is_tf32=True),
    Method("cudnn_algo_0", 0, "gemm", 0.4, deterministic=False),
    Method("cudnn_winograd", 4, "winograd", 0.5),
    Method("cudnn_winograd_nonfused", 5, "winograd", 0.6),
    Method("cudnn_fft_tiling", 3, "fft", 0.5),
    Method("cudnn_fft", 2, "fft", 0.5),
)
_FILTER = (
    Method("cudnn_algo_1", 1, "gemm", 0.3, is_on_units=True),
    Method("cudnn_algo_1_tf32", 1, "gemm", 0.6, is_tf32=True),
    Method("cudnn_algo_0", 0, "gemm", 0.33, deterministic=False),
    Method("cudnn_algo_3", 3, "gemm", 0.33, deterministic=False),
    Method("cudnn_winograd_nonfused", 5, "winograd", 0.5),
    Method("cudnn_fft_tiling", 6, "fft", 0.5),
    Method("cudnn_fft", 2, "fft", 0.5),
)

# (problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    (Convolution, "fwd"): tuple(algorithm(method) for method in _FORWARD),
    (Convolution, "bwd_data"): tuple(algorithm(method) for method in _DATA),
    (Convolution, "bwd_filter"): tuple(algorithm(method) for method in _FILTER),
}
