"""Filter gradients of f32 whose groups are multiplied several at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.merged_groups import diagonal, merge
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems.convolution import Convolution

# groups that are left, and their channels
PROBLEMS = {
    "n2 c32 h7 w9 k32 r3 s3 pad1 g8 f32 nhwc": (1, 32),
    "n1 c48 h9 w8 k96 r3 s2 stride2 pad1 g12 f32 nhwc": (2, 24),
    "n2 c24 h6 w5 k40 r1 s3 pad0x1 g4 f32 nchw": (1, 24),
    "n1 c30 d4 h5 w6 k30 t2 r2 s1 g10 f32 nhwc w=nchw": (1, 30),
    "n2 c256 w11 k256 s3 pad1 g32 f32 nhwc": (4, 64),
    "n2 c21 h8 w8 k21 r1 s1 g7 f32": (1, 21),
    "n2 c70 h8 w8 k70 r3 s3 pad1 g2 f32 nhwc": None,
    "n2 c8 h8 w8 k8 r3 s3 pad1 f32 nhwc": None,
}


def merged_groups(name: str = "groups_merged") -> Algorithm:
    return next(one for one in ALGORITHMS[Convolution, "bwd_filter"] if one.name == name)


@pytest.mark.parametrize("words", PROBLEMS)
def test_merge(words: str) -> None:
    problem = convolution(words, "bwd_filter")
    merged = merge(problem)
    assert (merged and (merged.groups, merged.w.shape[1])) == PROBLEMS[words]
    assert merge(convolution(words, "fwd")) is None
    if merged is None:
        return
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal(operand.descriptor.shape) for operand in problem.inputs)
    packed = np.zeros(merged.w.size)
    wide = np.lib.stride_tricks.as_strided(packed, merged.w.shape, [8 * s for s in merged.w.strides])
    wide[...] = merged.reference(x, dy)
    source, _ = diagonal(problem, merged)
    blocks = np.lib.stride_tricks.as_strided(packed, source.shape, [8 * s for s in source.strides])
    np.testing.assert_allclose(blocks.reshape(problem.w.shape), problem.reference(x, dy), atol=1e-12)


@pytest.mark.parametrize("name", ["groups_merged", "groups_merged_tf32"])
@pytest.mark.parametrize("words", [words for words in PROBLEMS if PROBLEMS[words]])
def test_results(words: str, name: str, cuda_device: Any) -> None:
    problem, algorithm = convolution(words, "bwd_filter"), merged_groups(name)
    reason = algorithm.refuse(problem, cuda_device)
    if cuda_device.facts.capability < 90 and name == "groups_merged":
        assert "no algorithm" in str(reason)
        return
    assert reason is None
    run_algorithm(algorithm, make_case(problem, None, 0, None), cuda_device)


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str) -> str:
        return str(merged_groups().refuse(convolution(words, "bwd_filter"), cuda_device))

    assert "at most 64 channels" in reason("n2 c70 h8 w8 k70 r3 s3 pad1 g2 f32 nhwc")
    assert "grouped takes 16 bits" in reason("n2 c8 h8 w8 k8 r3 s3 pad1 g2 bf16 nhwc")
