"""Data gradients of patches that touch, by warpgroups: what fills no tile, results in slices, biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.devices import cuda
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.patches import algorithm as patches
from jitdnn.kernels.cuda.convolution.patches.algorithm import WarpgroupPatches
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import aligned, on_hopper  # noqa: F401

LAYERS = (
    "n2 c32 d6 h10 w18 k64 t2 r2 s2 stride2 bf16",
    "n3 c24 d4 h6 w10 k40 t2 r3 s1 stride2x3x1 bf16 flip",
    "n1 c72 h20 w34 k8 r2 s2 stride2 f16",
    "n2 c8 w69 k96 s3 stride3 bf16",
    "n2 c40 h9 w11 k16 r1 s1 bf16",
    "n1 c16 h14 w14 k32 r7 s7 stride7 bf16 flip",
)


def in_slice(problem: Any) -> Any:
    """The same with its result among the channels of a tensor twice as wide."""
    x = problem.x
    strides = tuple(1 if axis == 1 else 2 * stride for axis, stride in enumerate(x.strides))
    return replace(problem, x=TensorDescriptor(x.shape, strides, x.dtype))


def bias_of(problem: Any) -> Epilogue:
    x = problem.x
    strides = tuple(int(axis == 1) for axis in range(len(x.shape)))
    return Epilogue(trace(lambda acc, bias: acc + bias), (TensorDescriptor(x.shape, strides, x.dtype),))


@pytest.mark.parametrize("is_slice", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("words", LAYERS)
def test_layers(words: str, has_bias: bool, is_slice: bool, cuda_device: Any) -> None:
    problem = convolution(f"conv_bwd_data {words} nhwc")
    problem = in_slice(problem) if is_slice else problem
    epilogue = bias_of(problem) if has_bias else None
    algorithm = WarpgroupPatches()
    assert algorithm.refuse(problem, cuda_device, epilogue) is None
    run_algorithm(algorithm, make_case(problem, epilogue), cuda_device)


@pytest.mark.parametrize("tile", [(2, 2, 1), (3, 4, 2), (3, 8, 4)])
def test_every_tile(tile: tuple[int, int, int], cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than thread blocks, and groups of one tap by several thread blocks."""
    problem = convolution("conv_bwd_data n2 c32 d6 h22 w38 k96 t2 r2 s2 stride2 bf16 nhwc")
    monkeypatch.setattr(patches, "_tiles", lambda *_: [patches.Tile(*tile, 3)])
    patches.plan_of.cache_clear()
    try:
        run_algorithm(WarpgroupPatches(), make_case(problem, bias_of(problem)), cuda_device)
    finally:
        patches.plan_of.cache_clear()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_bwd_data n1 c32 h9 w9 k32 r3 s3 stride2 bf16", "strides of (2, 2)"),
        ("conv_bwd_data n1 c32 h9 w9 k32 r2 s2 stride2 bf16", "strides of (2, 2)"),
        ("conv_bwd_data n1 c32 h8 w8 k32 r2 s2 stride2 pad1 bf16", "strides of (2, 2)"),
        ("conv_bwd_data n1 c64 h8 w8 k64 r2 s2 stride2 g2 bf16", "groups"),
        ("conv_bwd_data n1 c12 h8 w8 k32 r2 s2 stride2 bf16", "multiple of 16 bytes"),
        ("conv_bwd_data n1 c32 h8 w8 k32 r2 s2 stride2 f32", "not f32"),
        ("conv_fwd n1 c32 h8 w8 k32 r2 s2 stride2 bf16", "data gradients"),
        ("conv_bwd_data n1 c512 h8 w8 k32 r4 s4 stride4 bf16", "at most 64"),
    ],
)
def test_what_is_refused(words: str, reason: str) -> None:
    problem, device = convolution(f"{words} nhwc"), cuda.offline("sm_90a")
    assert reason in (WarpgroupPatches().refuse(problem, device) or pytest.fail("it is taken"))


def test_other_epilogues_are_refused() -> None:
    problem, device = (
        convolution("conv_bwd_data n1 c32 h8 w8 k32 r2 s2 stride2 bf16 nhwc"),
        cuda.offline("sm_90a"),
    )
    bias = bias_of(problem)
    assert WarpgroupPatches().refuse(problem, device, bias) is None
    wide = replace(bias, operands=(problem.x,))
    scaled = replace(bias, expression=trace(lambda acc, bias: acc * bias))
    of_other_type = replace(bias, operands=(replace(bias.operands[0], dtype="f16"),))
    for other in (wide, scaled, of_other_type):
        assert "adds a bias" in (WarpgroupPatches().refuse(problem, device, other) or "")
