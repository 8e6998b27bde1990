"""Convolution and matrix products on the ordinary units: every direction, stride, layout, type and kind of group."""

from __future__ import annotations

from typing import Any

import pytest

from cases import ARRANGEMENTS, arranged
from harness import check
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.convolution.direct import Direct
from jitdnn.kernels.gpu.gemm.cost import choose
from jitdnn.kernels.gpu.gemm.lowering import lower_convolution
from jitdnn.problems import Convolution, MatMul, Problem, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor

PROBLEMS = """
conv_fwd n2 c5 h9 w7 k6 r3 s3 stride1 pad1 f32 nchw
conv_fwd n2 c5 h9 w7 k6 r3 s3 stride1 pad1 f32 nhwc
conv_fwd n2 c6 h9 w7 k9 r3 s2 stride2x1 pad1 dil2x1 g3 f32 nhwc
conv_fwd n2 c6 h9 w7 k9 r3 s2 stride2x1 pad1 dil2x1 g3 flip f64 nchw
conv_fwd n2 c7 w33 k5 s4 stride1 pad3 bf16 nchw
conv_fwd n1 c3 d5 h6 w7 k70 t2 r3 s3 stride1 pad1 f16 nhwc
conv_fwd n2 c8 h9 w7 k8 r3 s3 stride1 pad1 g8 f32 nchw
conv_fwd n2 c5 h9 w7 k6 r3 s3 stride1 pad1 i8 nchw
conv_fwd n2 c5 h9 w7 k6 r3 s3 stride1 pad1 u8 by_i8 to_u8 nhwc
conv_fwd n2 c3 h4 w4 k2 r5 s7 stride1 pad3 f32 nchw
conv_bwd_data n2 c5 h9 w7 k6 r3 s3 stride1 pad1 f32 nchw
conv_bwd_data n2 c5 h9 w7 k6 r3 s3 stride2 pad1 f32 nhwc
conv_bwd_data n2 c6 h9 w11 k9 r3 s2 stride2x3 pad1 dil2x1 g3 flip f32 nchw
conv_bwd_data n1 c4 h13 w14 k3 r3 s5 stride4x2 pad2 dil3x2 f64 nchw
conv_bwd_data n2 c3 h9 w9 k4 r2 s2 stride3 pad0 f32 nchw
conv_bwd_data n1 c3 d5 h6 w7 k13 t2 r3 s3 stride2 pad1 f16 nhwc
conv_bwd_filter n2 c5 h9 w7 k6 r3 s3 stride1 pad1 f32 nchw
conv_bwd_filter n3 c6 h19 w17 k9 r3 s2 stride2x1 pad1 dil2x1 g3 flip f32 nhwc
conv_bwd_filter n2 c3 d5 h6 w7 k13 t2 r3 s3 stride1 pad1 bf16 nhwc
""".strip().splitlines()


@pytest.mark.parametrize("text", PROBLEMS)
def test_convolution(text: str, device: Any) -> None:
    assert "direct" in check(parse(text), device, only=["direct"])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_any_strides(arrangement: str, device: Any) -> None:
    problem = parse("conv_fwd n2 c3 h5 w4 k5 r3 s2 stride1 pad1 f32 nchw")
    assert "direct" in check(arranged(problem, arrangement), device, only=["direct"])


PRODUCTS = [
    MatMul.make((65, 33), (33, 70)),
    MatMul.make((3, 2, 17, 5), (2, 5, 9), "f64"),
    MatMul.make((4, 0), (0, 3)),
]


@pytest.mark.parametrize("problem", PRODUCTS, ids=str)
def test_matrix_product(problem: Problem, device: Any) -> None:
    assert "tiled_gemm" in check(problem, device)


def test_terms_that_are_split_are_added_in_order(device: Any) -> None:
    problem = parse("conv_bwd_filter n2 c5 h33 w31 k6 r3 s3 stride1 pad1 f32 nchw")
    assert isinstance(problem, Convolution)
    assert choose(lower_convolution(problem), device).splits > 1
    assert "direct" in check(problem, device, only=["direct"])


@pytest.mark.parametrize("text", [PROBLEMS[0], "conv_bwd_data n2 c5 h9 w7 k6 r3 s3 stride2 pad1 f32 nhwc"])
def test_epilogue(text: str, device: Any) -> None:
    problem = parse(text)
    shape = problem.output.shape
    bias = TensorDescriptor((shape[1], 1, 1), (1, 1, 1), "f32").broadcast_to(shape)
    residual = TensorDescriptor.packed(shape, "f32")
    fused = Epilogue(trace(lambda acc, bias, r: apply("maximum", acc + bias, 0.0) + r), (bias, residual))
    assert "direct" in check(problem, device, fused, only=["direct"])


@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[3], PROBLEMS[10], PROBLEMS[-1]])
def test_compiles_without_a_gpu(text: str, architecture: Any) -> None:
    problem = parse(text)
    Direct().build(problem, architecture)
