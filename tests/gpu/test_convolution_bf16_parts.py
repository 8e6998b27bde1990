"""f32 as three numbers of bf16: errors relative to each result's own terms, whatever the scales of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run, run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmHalves,
    WarpgroupGemmThirds,
    WarpgroupWgradHalves,
    WarpgroupWgradThirds,
)
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmulThirds
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution
from warpgroup_cases import DATA, aligned, check_not_finite, normal, on_hopper  # noqa: F401

LAYERS = [
    "conv_fwd n2 c36 h7 w6 k24 r3 s3 pad1 f32 nhwc",
    "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 stride2 f32 flip",
    "conv_fwd n1 c32 h5 w6 k32 r3 s2 g2 f32 nhwc",
    "conv_fwd n1 c320 h4 w3 k8 r3 s3 pad1 f32 nhwc",
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 f32 nhwc",
    "conv_bwd_data n1 c12 d3 h6 w5 k8 t2 r3 s3 pad1 f32",
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 f32 nhwc",
    "conv_bwd_filter n2 c16 h9 w7 k32 r3 s3 pad1 g2 f32",
    "conv_bwd_filter n5 c72 h13 w9 k136 r1 s1 f32 nhwc",
]


def thirds_of(problem: Convolution, tiles: tuple[Tile, ...] = TILES) -> WarpgroupGemm:
    return WarpgroupWgradThirds(tiles) if problem.direction == "bwd_filter" else WarpgroupGemmThirds(tiles)


@pytest.mark.parametrize("words", LAYERS)
def test_layers(words: str, cuda_device: Any) -> None:
    problem = convolution(words)
    assert thirds_of(problem).refuse(problem, cuda_device) is None
    run_algorithm(thirds_of(problem), make_case(problem), cuda_device)


@pytest.mark.parametrize("tile", TILES[::3], ids=str)
@pytest.mark.parametrize("words", LAYERS[0::4])
def test_tiles(words: str, tile: Tile, cuda_device: Any) -> None:
    problem = convolution(words)
    if thirds_of(problem, (tile,)).refuse(problem, cuda_device):
        pytest.skip("shared memory or registers")
    run_algorithm(thirds_of(problem, (tile,)), make_case(problem), cuda_device)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("words", LAYERS[::3])
def test_as_exact_as_declared(words: str, kind: str, cuda_device: Any) -> None:
    problem, rng = convolution(words), np.random.default_rng(7)
    other = normal if kind in ("tiny", "subnormal", "huge") else DATA[kind]
    inputs = [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[kind], other), problem.inputs, strict=True)
    ]
    run_algorithm(thirds_of(problem), make_case(problem, None, 0, inputs), cuda_device, scales=((1.0, 0.0),))


# which axis of the first and of the second input leads to results of its own
OWN_RESULTS = {"fwd": (0, 0), "bwd_data": (0, 1), "bwd_filter": (1, 1)}


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n9 c36 h7 w6 k24 r3 s3 pad1 f32 nhwc",
        "conv_bwd_data n9 c24 h9 w7 k16 r3 s3 pad1 stride2 f32 nhwc",
        "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 f32 nhwc",
    ],
)
def test_each_result_is_as_exact_as_its_own_terms_allow(words: str, cuda_device: Any) -> None:
    """Images or channels whose numbers are 2^55 times apart; of halves nothing is left of the smallest."""
    problem, rng = convolution(words), np.random.default_rng(7)
    inputs = []
    for axis, operand in zip(OWN_RESULTS[problem.direction], problem.inputs, strict=True):
        shape = operand.descriptor.shape
        exponents = np.linspace(-35, 20, shape[axis]).round()
        by_axis = np.exp2(exponents).reshape([-1 if n == axis else 1 for n in range(len(shape))])
        inputs.append((rng.standard_normal(shape) * by_axis).astype(np.float32))
    exact = [one.astype(np.float64) for one in inputs]
    expected, terms = problem.reference(*exact), problem.reference(*(abs(one) for one in exact))
    is_wgrad = problem.direction == "bwd_filter"
    errors = []
    for algorithm in (thirds_of(problem), WarpgroupWgradHalves() if is_wgrad else WarpgroupGemmHalves()):
        kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
        (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
        errors.append((abs(actual - expected)[terms > 0] / terms[terms > 0]).max())
    assert errors[0] < thirds_of(problem).error_bound(problem)
    assert errors[1] > 0.1


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("words", LAYERS[::2])
def test_what_is_not_finite(words: str, value: float, cuda_device: Any) -> None:
    problem = convolution(words)
    tolerance = 1e-4 if problem.n == 5 else 1e-5  # of multiply-adds of 585 numbers, and of a hundred
    check_not_finite(problem, thirds_of(problem), cuda_device, value, tolerance)


def test_epilogues(cuda_device: Any) -> None:
    problem = convolution(LAYERS[0])
    run_algorithm(thirds_of(problem), make_case(problem, fused(problem, "residual")), cuda_device)


@pytest.mark.parametrize("words", ["m70 k72 n24 f32", "m40 k70 n24 f32 a=columns", "batch3 m40 k72 n24 f32"])
def test_products(words: str, cuda_device: Any) -> None:
    problem: Any = parse(f"matmul {words}")
    assert WarpgroupMatmulThirds().refuse(problem, cuda_device) is None
    run_algorithm(WarpgroupMatmulThirds(), make_case(problem), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_the_accuracy_that_takes_it(direction: str) -> None:
    """Elementwise accuracy, and no other: halves take less time, strict accuracy takes no parts of numbers."""
    problem = convolution(f"conv_{direction} n32 c256 h28 w28 k256 r3 s3 pad1 f32 nhwc")
    chosen = {
        accuracy: get(problem, offline("sm_90a"), Request(accuracy=accuracy, choice="model")).algorithm
        for accuracy in ("standard", "elementwise", "strict")
    }
    assert chosen["elementwise"] == "implicit_gemm_6xbf16"
    assert "3xf16" in chosen["standard"]
    assert "bf16" not in chosen["strict"]
    assert "f16" not in chosen["strict"]
    named = get(problem, offline("sm_90a"), Request(algorithm="implicit_gemm_6xbf16"))
    assert named.algorithm == "implicit_gemm_6xbf16"


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc",
        "conv_bwd_data n64 c128 h28 w28 k256 r3 s3 pad1 stride2 f32 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    """What is chosen, and tiles of most sums that there is room for, without spilling more than halves do."""
    problem = convolution(words)
    for tiles in (TILES, *((tile,) for tile in TILES[:4])):
        algorithm = thirds_of(problem, tiles)
        if algorithm.refuse(problem, architecture) is None:
            plan: Any = algorithm.sizes(problem, architecture)
            architecture.compile(source_of(plan, problem.output, None))
