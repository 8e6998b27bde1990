"""Filters of whole strides: which taps become channels, and that the results are those of the convolution as given."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.patch import fold
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems.convolution import Convolution

# what is left: channels and taps
PROBLEMS = {
    "n2 c3 h9 w14 k12 r4 s4 stride4 pad0 bf16 nhwc": (12, (4, 1)),
    "n3 c3 h4 w4 k12 r4 s4 stride4 pad0 f16 nhwc": (48, (1, 1)),  # an image is a patch
    "n3 c3 h4 w4 k12 r4 s4 stride4 pad0 f16 nchw": (48, (1, 1)),
    "n2 c3 d4 h6 w6 k8 t2 r3 s3 stride2x3x3 pad0 bf16 nhwc": (9, (2, 3, 1)),
    "n2 c1 h6 w6 k8 r2 s3 stride2x3 pad0 bf16 nchw": (3, (2, 1)),
    "n2 c8 h6 w6 k8 r3 s2 stride1x2 pad1x0 bf16 nhwc": (16, (3, 1)),  # the other axis may be anything
    "n2 c8 w24 k24 s2 stride2 pad0 bf16 nhwc": (16, (1,)),
    # filters of several strides, padding of whole strides, what no window reaches, and a window that ends in padding
    "n2 c3 h16 w12 k5 r8 s8 stride4 pad0 bf16 nhwc": (12, (8, 2)),
    "n2 c5 h7 w12 k8 r3 s6 stride1x2 pad1x0 f16 nhwc": (10, (3, 3)),
    "n1 c3 h5 w15 k9 r2 s6 stride2x3 pad0x3 bf16 nhwc": (9, (2, 2)),
    "n2 c3 h6 w19 k8 r3 s4 stride3x2 pad0x2 bf16 nhwc": None,  # the last window has one element of a stride
    "n2 c3 h6 w17 k8 r3 s6 stride3 pad0 bf16 nhwc": (9, (3, 2)),
    "n2 c4 d3 h4 w4 k16 t1 r4 s4 stride1x4x4 pad0 bf16 nhwc": (64, (1, 1, 1)),
    "n2 c1 w26 k8 s10 stride5 pad0 f16 nhwc": (5, (2,)),
    "n2 c8 h8 w8 k8 r4 s4 stride2 pad1 bf16 nhwc": None,  # padding of half a stride
    "n2 c8 h8 w8 k8 r4 s4 stride2 pad0 dil2 bf16 nhwc": None,
    "n2 c8 h8 w8 k8 r2 s1 stride2x1 pad0 f16 nhwc": None,  # rows do not follow each other
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad1 bf16 nhwc": None,
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 flip bf16 nhwc": None,
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 bf16 nchw": None,
    "n2 c3 h8 w8 k8 r2 s2 stride1 pad0 bf16 nhwc": None,
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 bf16 nhwc w=nchw": None,
}


# patches that are copied, and why others are not
COPIED = {
    "n2 c3 h9 w14 k12 r4 s4 stride4 pad0 bf16 nhwc": None,
    "n3 c3 h8 w8 k16 r4 s4 stride4 pad0 f16 nchw": None,
    "n2 c3 d4 h6 w6 k8 t2 r3 s3 stride2x3x3 pad0 bf16 nchw": None,
    "n2 c8 w24 k24 s2 stride2 pad0 bf16 nchw w=nhwc": None,
    "n2 c5 h6 w4 k9 r3 s2 stride3x2 pad0 f32 nchw": None,
    "n1 c4 h8 w6 k8 r2 s2 stride2 pad0 f32 nhwc y=nchw": None,
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad1 bf16 nhwc": "without padding",
    "n2 c3 h8 w8 k8 r2 s2 stride1 pad0 bf16 nhwc": "must be equal",
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 flip bf16 nhwc": "flipped",
    "n2 c4 h8 w8 k8 r2 s2 stride2 pad0 g2 bf16 nhwc": "one group",
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 f64": "16 and 32 bits",
    "n2 c3 h8 w8 k8 r2 s2 stride2 pad0 bf16 w=s40,12,4,1": "one run",
}


def patch(direction: str, name: str = "patch") -> Algorithm:
    return next(algorithm for algorithm in ALGORITHMS[Convolution, direction] if algorithm.name == name)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", COPIED)
def test_copied(words: str, direction: str, cuda_device: Any) -> None:
    problem, algorithm = convolution(words, direction), patch(direction, "patch_copied")
    reason = algorithm.refuse(problem, cuda_device)
    if COPIED[words]:
        assert COPIED[words] in str(reason)
        return
    if direction == "bwd_data" and any(
        extent % taps for extent, taps in zip(problem.spatial, problem.filter_spatial, strict=True)
    ):
        assert "become zero" in str(reason)
        return
    if problem.dtype == "f32" and cuda_device.facts.capability < 90:
        assert "no algorithm" in str(reason)
        return
    assert reason is None
    run_algorithm(algorithm, make_case(problem, None, 0, None), cuda_device)


@pytest.mark.parametrize("expression", ["activation", "bias", "residual"])
def test_epilogues_of_copied(expression: str, cuda_device: Any) -> None:
    problem = convolution("n3 c3 h8 w8 k16 r4 s4 stride4 pad0 f16 nchw", "fwd")
    case = make_case(problem, fused(problem, expression), 0, None)
    run_algorithm(patch("fwd", "patch_copied"), case, cuda_device)


@pytest.mark.parametrize("words", PROBLEMS)
def test_fold(words: str) -> None:
    folded = fold(convolution(words, "fwd"))
    assert (folded and (folded.c, folded.filter_spatial)) == PROBLEMS[words]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", [words for words in PROBLEMS if PROBLEMS[words]])
def test_directions(words: str, direction: str, cuda_device: Any) -> None:
    problem = convolution(words, direction)
    reason = patch(direction).refuse(problem, cuda_device)
    if direction == "bwd_data" and problem.spatial[-1] % problem.stride[-1]:  # elements that no patch holds
        assert reason is not None
        return
    assert reason is None
    run_algorithm(patch(direction), make_case(problem, None, 0, None), cuda_device)


@pytest.mark.parametrize("name", ["patch_f32", "patch_tf32"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize(
    "words",
    ["n2 c3 h8 w12 k12 r4 s4 stride4 pad0 f32 nhwc", "n1 c4 h7 w12 k8 r3 s6 stride1x2 pad1x2 f32 nhwc"],
)
def test_f32(words: str, direction: str, name: str, cuda_device: Any) -> None:
    problem, algorithm = convolution(words, direction), patch(direction, name)
    assert algorithm.arithmetic(problem) == ("tf32" if name == "patch_tf32" else "fp32")
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem, None, 0, None), cuda_device)


def test_other_types(cuda_device: Any) -> None:
    reason = patch("fwd").refuse(
        convolution("n2 c3 h8 w8 k8 r2 s2 stride2 pad0 f32 nhwc", "fwd"), cuda_device
    )
    assert reason is not None
    assert "bf16 and f16" in reason
