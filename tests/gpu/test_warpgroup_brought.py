"""Epilogues of products by warpgroups with an operand that lies as the results do: the copy engine brings it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run, run_algorithm
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupGemmInPlace
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import plain_kernel, source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupGemmHalves, WarpgroupGemmThirds
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
)
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, WHOLE, Tile
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmul
from jitdnn.problems.matmul import MatMul
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import maximum
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import SMALL, aligned, on_hopper  # noqa: F401


def residual(output: TensorDescriptor) -> Epilogue:
    """A number of each channel, one of each pixel, and one of each result."""
    strides = tuple(int(axis == 1) for axis in range(len(output.shape)))
    channel = TensorDescriptor(output.shape, strides, output.dtype)
    pixel = TensorDescriptor(output.shape, (0,) * (len(output.shape) - 1) + (1,), output.dtype)
    return Epilogue(trace(lambda acc, b, r, p: maximum(acc + b, 0.0) + r * p), (channel, output, pixel))


def is_brought(plan: Plan, output: TensorDescriptor, epilogue: Epilogue) -> bool:
    return bool(dict(source_of(plan, output, epilogue).defines)["HAS_BROUGHT"])


CASES = {
    # several tiles to a thread block, the last ones of fewer rows and columns
    "conv_fwd n1 c136 h41 w30 k200 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 128), Tile(3, 1, 1, 96), Tile(2, 1, 2, 64)),
    "conv_fwd n2 c72 h20 w31 k136 r3 s1 pad1x0 f16 nhwc": (Tile(1, 2, 1, 128), Tile(1, 1, 1, 32), Tile(2, 1, 1, 256)),
    # all of B stays, and so does one of several tiles across
    "conv_fwd n1 c64 h41 w30 k200 r1 s1 f16 nhwc": (Tile(2, 1, 1, 256), Tile(2, 1, 1, 64), Tile(1, 1, 1, 160)),
    # deep stages, and short ones
    "conv_fwd n1 c264 h33 w17 k72 r1 s1 f16 nhwc": (Tile(1, 1, 1, 32), Tile(1, 1, 1, 64)),
    "conv_fwd n3 c24 h31 w17 k72 r1 s1 bf16 nhwc": (SMALL, Tile(1, 1, 1, 96)),
    "conv_fwd n3 c32 h31 w17 k72 r1 s1 f16 nhwc": (Tile(2, 1, 1, 128),),
    # groups, a data gradient with a filter that lies across, volumes
    "conv_fwd n2 c64 h25 w25 k144 r3 s3 g2 f16 nhwc": (Tile(2, 1, 1, 64), Tile(1, 1, 1, 96)),
    "conv_bwd_data n1 c200 h41 w30 k136 r1 s1 bf16 nhwc": (Tile(2, 1, 1, 128), Tile(2, 1, 1, 64)),
    # results of four bytes
    "conv_fwd n2 c40 h25 w17 k104 r1 s2 f32 nhwc": (Tile(2, 1, 1, 128), Tile(1, 1, 1, 64), Tile(2, 1, 2, 32)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "tile"), [(words, tile) for words in CASES for tile in CASES[words]], ids=str
)
def test_with_the_stages(words: str, tile: Tile, cuda_device: Any) -> None:
    problem: Any = convolution(words)
    epilogue, algorithm = residual(problem.output), WarpgroupGemmInPlace((tile,))
    plan = algorithm.sizes(problem, cuda_device, epilogue)
    assert isinstance(plan, Plan)
    assert is_brought(plan, problem.output, epilogue)
    run_algorithm(algorithm, make_case(problem, epilogue), cuda_device)


@pytest.mark.parametrize("tile", [tile for tile in WHOLE if tile.sums <= 160], ids=str)
def test_results_that_leave_first(tile: Tile, cuda_device: Any) -> None:
    problem: Any = convolution("conv_fwd n1 c72 h41 w30 k424 r1 s1 bf16 nhwc")
    epilogue, algorithm = residual(problem.output), WarpgroupGemmInPlace((tile,))
    plan = algorithm.sizes(problem, cuda_device, epilogue)
    assert isinstance(plan, Plan)
    assert plan.blocking.leaves_at_once
    assert is_brought(plan, problem.output, epilogue)
    run_algorithm(algorithm, make_case(problem, epilogue), cuda_device)


@pytest.mark.parametrize("shape", [(300, 136), (3, 150, 72)])
def test_products(shape: tuple[int, ...], cuda_device: Any) -> None:
    *batch, m, n = shape
    problem = MatMul.make((*batch, m, 80), (*batch, 80, n), "f16")
    output = problem.c
    column = TensorDescriptor(output.shape, (*(0,) * (len(output.shape) - 1), 1), "f16")
    epilogue = Epilogue(trace(lambda acc, b, r: acc * b + r), (column, output))
    run_algorithm(WarpgroupMatmul((SMALL,)), make_case(problem, epilogue), cuda_device)


@pytest.mark.parametrize("algorithm", [WarpgroupGemmHalves, WarpgroupGemmThirds, WarpgroupGemmScaled])
def test_f32_as_parts(algorithm: Any, cuda_device: Any) -> None:
    problem: Any = convolution("conv_fwd n2 c40 h25 w17 k104 r1 s1 f32 nhwc")
    epilogue, one = residual(problem.output), algorithm((SMALL,))
    plan = one.sizes(problem, cuda_device, epilogue)
    assert isinstance(plan, Plan)
    if plan.blocking.is_whole:
        assert is_brought(plan, problem.output, epilogue)
    run_algorithm(one, make_case(problem, epilogue), cuda_device)


def test_operands_that_are_not_finite(cuda_device: Any) -> None:
    """They are multiplied as f32 by threads, which read the epilogue's operands themselves."""
    problem: Any = convolution("conv_fwd n2 c40 h9 w7 k72 r1 s1 f32 nhwc")
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(one.descriptor.shape) for one in problem.inputs]
    inputs[0].reshape(-1)[5] = np.inf
    epilogue, algorithm = residual(problem.output), WarpgroupGemmHalves((SMALL,))
    case = make_case(problem, epilogue, 0, inputs)
    kernel, room = (
        algorithm.build(problem, cuda_device, epilogue),
        algorithm.workspace(problem, cuda_device, epilogue),
    )
    (actual,) = run(cuda_device, kernel, case, room)
    channel, whole, pixel = (one.values.astype(np.float64) for one in case.operands)
    expected = np.maximum(problem.reference(*inputs) + channel, 0.0) + whole * pixel
    is_finite = np.isfinite(expected)
    assert 0 < is_finite.sum() < is_finite.size
    np.testing.assert_allclose(actual[is_finite], expected[is_finite], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(actual[~is_finite], expected[~is_finite])


def test_what_is_not(architecture: Any) -> None:
    """Operands that lie otherwise, two of them, and results that leave by threads."""

    def has(words: str, *operands: TensorDescriptor) -> bool:
        problem: Any = convolution(words)
        formula = (lambda acc, r, s: acc + r * s) if len(operands) > 1 else (lambda acc, r: acc + r)
        given = Epilogue(trace(formula), operands or (problem.output,))
        plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture, given)
        return is_brought(plan, problem.output, given)

    words = "conv_fwd n3 c16 h6 w7 k72 r1 s1 f16 nhwc"
    output = convolution(words).output
    assert has(words)
    assert not has(words, output, output)
    assert not has(words, TensorDescriptor(output.shape, (0, *output.strides[1:]), output.dtype))
    assert not has(words, replace(output, dtype="f32"))
    assert not has("conv_bwd_data n2 c72 h9 w7 k16 r3 s3 stride2 f16 nhwc")
    assert not has("conv_fwd n3 c16 h6 w7 k72 r1 s1 f16")


def test_at_addresses_that_the_copy_engine_takes(architecture: Any) -> None:
    problem: Any = convolution("conv_fwd n3 c16 h6 w7 k72 r1 s1 f32 nhwc")
    plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture)
    given = Epilogue(trace(lambda acc, r: acc + r), (problem.output,))
    kernel = plain_kernel(plan, problem.output, architecture, given)
    assert isinstance(kernel, ByAddress)
    assert kernel.alignments == (1, 1, 1, 16)
    assert plan.blocking.row < STAGE_ROW


def test_one_kernel_for_every_shape(architecture: Any) -> None:
    def source(words: str) -> Any:
        problem: Any = convolution(words)
        channel = TensorDescriptor(problem.output.shape, (0, 1, 0, 0), "f16")
        given = Epilogue(trace(lambda acc, b, r: acc + b + r), (channel, problem.output))
        plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture, given)
        return source_of(plan, problem.output, given)

    first, second = (f"conv_fwd n3 c128 h6 w7 k{count} r1 s1 f16 nhwc" for count in (72, 136))
    assert source(first) == source(second)
