"""Layers of f32 with fewer pixels than channels, whose filter is read as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.few_pixels.algorithm import FewPixels
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from warpgroup_cases import DATA, aligned, check_not_finite, normal, on_hopper  # noqa: F401

LAYERS = [
    "n2 c68 h4 w5 k72 r3 s3 pad1",
    "n1 c12 h7 w6 k140 r3 s2 pad1x0 stride2x1",
    "n3 c8 h5 w9 k72 r1 s3 pad0x2 stride1x3 dil1x2",
    "n1 c4 d3 h4 w5 k64 t2 r3 s3 pad1 stride2x1x2",
    "n1 c132 w9 k16 s4 pad1:2",
    "n1 c64 h1 w1 k8 r3 s3 pad1",
    "n2 c132 h5 w4 k64 r1 s1 stride2",
]


def of(words: str, direction: str) -> Any:
    return convolution(f"conv_{direction} {words} f32 nhwc")


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", LAYERS)
def test_layers(words: str, direction: str, cuda_device: Any) -> None:
    problem = of(words, direction)
    assert FewPixels().refuse(problem, cuda_device) is None
    run_algorithm(FewPixels(), make_case(problem), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("data", DATA)
def test_as_exact_as_declared(data: str, direction: str, cuda_device: Any) -> None:
    problem, rng = of("n2 c68 h4 w5 k72 r3 s3 pad1", direction), np.random.default_rng(7)
    other = normal if data in ("tiny", "subnormal", "huge") else DATA[data]
    inputs = [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[data], other), problem.inputs, strict=True)
    ]
    run_algorithm(FewPixels(), make_case(problem, None, 0, inputs), cuda_device, scales=((1.0, 0.0),))


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_what_is_not_finite(direction: str, value: float, cuda_device: Any) -> None:
    problem: Any = of("n2 c68 h4 w5 k72 r3 s3 pad1", direction)
    check_not_finite(problem, FewPixels(), cuda_device, value, 1e-4)  # type: ignore[arg-type]


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str, direction: str = "fwd") -> str:
        return str(FewPixels().refuse(convolution(f"conv_{direction} {words}"), cuda_device))

    assert "writes the filter" in reason("n1 c8 h3 w3 k64 r3 s3 pad1 f32 nhwc", "bwd_filter")
    assert "not bf16" in reason("n1 c8 h3 w3 k64 r3 s3 pad1 bf16 nhwc")
    assert "one group" in reason("n1 c8 h3 w3 k64 r3 s3 pad1 g2 f32 nhwc")
    assert "not flipped" in reason("n1 c8 h3 w3 k64 r3 s3 pad1 f32 nhwc flip")
    assert "read the filter once for many" in reason("n8 c8 h3 w3 k64 r3 s3 pad1 f32 nhwc")
    assert "filter's channels must be innermost" in reason("n1 c8 h3 w3 k64 r3 s3 pad1 f32")
    assert "multiple of 4" in reason("n1 c6 h3 w3 k64 r3 s3 pad1 f32 nhwc")
    problem = of("n1 c8 h3 w3 k64 r3 s3 pad1", "fwd")
    assert "no epilogue" in str(FewPixels().refuse(problem, cuda_device, fused(problem, "bias")))


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_large_filters_are_not_packed(direction: str) -> None:
    plan = get(of("n2 c1280 h8 w8 k1280 r3 s3 pad1", direction), offline("sm_90a"), Request())
    assert plan.algorithm == FewPixels.name
