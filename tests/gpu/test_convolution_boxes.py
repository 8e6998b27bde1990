"""Filter gradients by warpgroups of boxes of pixels that all taps share."""

from __future__ import annotations

from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.boxes import correlation_plan as results
from jitdnn.kernels.cuda.convolution.boxes.algorithm import (
    WarpgroupFusedInBoxes,
    WarpgroupGemmInBoxes,
    WarpgroupWgradInBoxes,
)
from jitdnn.kernels.cuda.convolution.boxes.sums import moments
from jitdnn.kernels.cuda.convolution.boxes.wgrad_plan import Box
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems import FusedConvolution, parse
from warpgroup_cases import aligned, on_hopper  # noqa: F401

SEPARATE = next(one for one in ALGORITHMS[FusedConvolution, "fwd"] if one.name == "separate_kernels")
LAYERS = (
    "n2 c32 d5 h7 w17 k32 t3 r3 s3 pad1 bf16",
    "n1 c40 d4 h5 w33 k24 t2 r3 s3 pad1 bf16",
    "n2 c8 h9 w20 k72 r3 s3 pad1 dil2 f16",
    "n3 c16 h11 w13 k16 r5 s5 pad2 bf16 flip",
    "n2 c64 w50 k32 s7 pad3 bf16",
    "n2 c32 h6 w6 k32 r1 s1 bf16",
    "n1 c24 d3 h6 w18 k32 t3 r2 s2 pad2x0x1 dil1x3x2 f16",
)


@pytest.mark.parametrize("words", LAYERS)
def test_every_kind_of_box(words: str, cuda_device: Any) -> None:
    """Pixels, channels and taps that fill neither boxes nor blocks nor pairs; one axis, two and three."""
    problem, algorithm = convolution(f"conv_bwd_filter {words} nhwc"), WarpgroupWgradInBoxes()
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("box", [Box(2, 2, 16, 2), Box(1, 3, 32, 2), Box(3, 1, 16, 4)], ids=str)
def test_every_size_of_box(box: Box, cuda_device: Any) -> None:
    """More boxes than stages and thread blocks, those at the ends partly outside."""
    problem = convolution("conv_bwd_filter n2 c32 d5 h7 w37 k40 t3 r3 s3 pad1 bf16 nhwc")
    algorithm = WarpgroupWgradInBoxes((box,))
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem), cuda_device, scales=((1.0, 0.0),))


RESULTS = (
    "n2 c32 d5 h9 w17 k32 t3 r3 s3 pad1 bf16",
    "n1 c40 d4 h5 w21 k24 t2 r3 s3 pad1 bf16 flip",
    "n2 c40 h9 w20 k64 r3 s3 pad1 dil2 f16",
    "n1 c8 d3 h10 w18 k40 t3 r2 s2 pad2x0x1 dil1x3x2 f16",
    "n3 c16 h17 w9 k8 r1 s1 bf16",
    "n2 c16 w70 k32 s5 pad2 bf16",
    "n1 c16 d5 h8 w12 k32 t2 r1 s2 pad2x0x1 dil3x1x1 bf16",
)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", RESULTS)
def test_results(words: str, direction: str, is_turned: bool, cuda_device: Any) -> None:
    """Patches that results, channels and taps do not fill, with two axes also those of 1 x 64."""
    problem = convolution(f"conv_{direction} {words} nhwc")
    layer = results.Layer.of(problem)
    if is_turned and not layer.turned:
        pytest.skip("of three axes none is free")
    layer = (is_turned and layer.turned) or layer
    boxes = [one for one in layer.boxes(cuda_device.shared_bytes) if one.consumers == 2]
    algorithm = WarpgroupGemmInBoxes((boxes[-1 if direction == "fwd" else 0],))
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_volumes_of_few_channels_are_for_boxes(direction: str) -> None:
    problem = convolution(f"conv_{direction} n2 c32 d96 h96 w96 k32 t3 r3 s3 pad1 bf16 nhwc")
    plan = get(problem, cuda.offline("sm_90a"), Request(), store=Store(None))
    assert plan.algorithm == WarpgroupGemmInBoxes.name


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("n1 c32 h9 w9 k32 r3 s3 stride2 bf16", "strides (2, 2)"),
        ("n1 c64 h9 w9 k64 r3 s3 g2 bf16", "2 groups"),
        ("n1 c12 h9 w9 k36 r3 s3 bf16", "multiple of 16 bytes"),
        ("n1 c32 h9 w9 k32 r3 s3 f32", "not f32"),
        ("n1 c32 h40 w40 k32 r31 s31 bf16", ""),
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_what_is_refused(words: str, reason: str, direction: str) -> None:
    problem, device = convolution(f"conv_{direction} {words} nhwc"), cuda.offline("sm_90a")
    algorithm = WarpgroupWgradInBoxes() if direction == "bwd_filter" else WarpgroupGemmInBoxes()
    assert reason in (algorithm.refuse(problem, device) or pytest.fail("it is taken"))


def test_more_sums_than_are_counted() -> None:
    problem = convolution("conv_bwd_filter n1 c16384 d3 h3 w3 k20480 t3 r3 s3 pad1 bf16 nhwc")
    assert "are counted" in (WarpgroupWgradInBoxes().refuse(problem, cuda.offline("sm_90a")) or "")


SUMS = (
    "n2 c32 d5 h9 w17 k32 t3 r3 s3 pad1 bf16",
    "n1 c40 d4 h5 w21 k24 t2 r3 s3 pad1 bf16 flip",
    "n3 c40 h9 w20 k64 r3 s3 pad1 dil2 f16",
    "n2 c8 d3 h10 w18 k40 t3 r2 s2 pad2x0x1 dil1x3x2 f16",
    "n5 c16 h3 w9 k8 r1 s1 bf16",
    "n2 c16 w70 k32 s5 pad2 bf16",
)


@pytest.mark.parametrize("sums", ["sums", "image_sums"])
@pytest.mark.parametrize("words", SUMS)
def test_sums(words: str, sums: str, cuda_device: Any) -> None:
    """Sums of channels that blocks do not fill; thread blocks with several images, and images with several."""
    problem = parse(f"fused_conv_fwd {words} nhwc {sums}")
    assert isinstance(problem, FusedConvolution)
    layer = results.Layer.of(problem.convolution)
    for own in filter(None, (layer, layer.turned)):
        boxes = [
            one
            for one in own.boxes(cuda_device.shared_bytes, moments(sums == "image_sums"))
            if one.consumers == 2
        ]
        algorithm = WarpgroupFusedInBoxes(SEPARATE, (boxes[-1],))
        assert algorithm.refuse(problem, cuda_device) is None
        run_algorithm(algorithm, make_case(problem), cuda_device)
