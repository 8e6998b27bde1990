"""Gradients of the data with one tap along strided axes: zeros, and products of every so manyth position."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.zero_filled import without_strides
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems.convolution import Convolution

# the tensor of the results that are sums, and the strides that are left
PROBLEMS = {
    "n2 c24 h9 w14 k16 r1 s1 stride2 pad0 bf16 nhwc": ((2, 24, 5, 7), (1, 1)),
    "n3 c7 h10 w11 k5 r1 s1 stride3x2 pad0 f16 nchw": ((3, 7, 4, 6), (1, 1)),
    "n1 c16 d5 h6 w7 k8 t1 r1 s1 stride2x3x2 pad0 bf16 nhwc": ((1, 16, 3, 2, 4), (1, 1, 1)),
    "n2 c8 h9 w8 k8 r3 s1 stride2x2 pad1x0 bf16 nhwc": ((2, 8, 9, 4), (2, 1)),  # the other axis as it is
    "n2 c8 w2 k8 s1 stride5 pad0 bf16 nhwc": ((2, 8, 1), (1,)),
    "n2 c8 h8 w8 k8 r1 s1 stride1x2 pad0 g2 f16 nhwc": ((2, 8, 8, 4), (1, 1)),
    "n2 c8 h8 w8 k8 r1 s1 stride2 pad1 bf16 nhwc": None,
    "n2 c8 h8 w8 k8 r2 s2 stride3 pad0 bf16 nhwc": None,
    "n2 c8 h8 w8 k8 r1 s1 stride1 pad0 bf16 nhwc": None,
}


def zero_filled() -> Algorithm:
    return next(one for one in ALGORITHMS[Convolution, "bwd_data"] if one.name == "zero_filled")


@pytest.mark.parametrize("words", PROBLEMS)
def test_without_strides(words: str) -> None:
    dense = without_strides(convolution(words, "bwd_data"))
    assert (dense and (dense.x.shape, dense.stride)) == PROBLEMS[words]
    assert without_strides(convolution(words, "fwd")) is None


@pytest.mark.parametrize("words", [words for words in PROBLEMS if PROBLEMS[words]])
def test_results(words: str, cuda_device: Any) -> None:
    problem = convolution(words, "bwd_data")
    assert zero_filled().refuse(problem, cuda_device) is None
    run_algorithm(zero_filled(), make_case(problem, None, 0, None), cuda_device)


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str) -> str:
        return str(zero_filled().refuse(convolution(words, "bwd_data"), cuda_device))

    assert "no padding" in reason("n2 c8 h8 w8 k8 r1 s1 stride2 pad1 bf16 nhwc")
    assert "16 and 32 bits" in reason("n2 c8 h8 w8 k8 r1 s1 stride2 pad0 f64 nhwc")
