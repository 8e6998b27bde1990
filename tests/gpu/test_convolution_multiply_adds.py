"""Products by multiply-adds in f32 of the implicit matrix products of CUDA: every tile, major order, splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

import cases
from cases import make_case
from convolution_cases import convolution, fused
from examples import examples
from harness import run_algorithm
from jitdnn.devices import cuda_compile
from jitdnn.kernels.cuda.convolution.implicit_gemm import cost
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemmFma, ImplicitGemmFmaWgrad
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import source_of, wgrad_source_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import WgradPlan
from jitdnn.kernels.cuda.convolution.winograd.multiply_adds import Winograd2Fma, WinogradWgrad4Fma
from jitdnn.kernels.cuda.gemm import algorithm as refusals
from jitdnn.kernels.cuda.gemm.plan import FMA_TILES, Blocking, Tile
from jitdnn.kernels.cuda.matmul import MatmulFma
from jitdnn.kernels.gpu.gemm.cost import choose
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution, MatMul
from strategies import convolutions

ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    if request.param == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    return str(request.param)


def algorithm_of(problem: Convolution, tiles: tuple[Tile, ...] = FMA_TILES) -> Any:
    return (ImplicitGemmFmaWgrad if problem.direction == "bwd_filter" else ImplicitGemmFma)(tiles)


def forget_plans() -> None:
    cost.plan_of.cache_clear()
    cost.wgrad_plan_of.cache_clear()


ORDERS = [
    "conv_fwd n1 c72 h20 w17 k136 r3 s1 pad1 f32 nhwc",  # both operands K-major
    "conv_bwd_data n1 c136 h20 w17 k72 r2 s1 pad1 f32 nhwc",  # the filter MN-major
    "conv_bwd_filter n1 c40 h17 w20 k136 r3 s3 pad1 f32 nhwc",  # both
]


@pytest.mark.parametrize("tile", FMA_TILES, ids=str)
@pytest.mark.parametrize("words", ORDERS)
def test_every_tile(words: str, tile: Tile, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(words)
    run_algorithm(algorithm_of(problem, (tile,)), make_case(problem), cuda_device, scales=((-0.75, 0.5),))


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 stride2x1 dil1x2 g2 f32",
        "conv_fwd n1 c5 h9 w7 k6 r3 s3 f32 nhwc",
        "conv_fwd n1 c3 d4 h5 w6 k9 t2 r3 s3 pad1 f32 nhwc flip",
        "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 f32 nhwc",
        "conv_bwd_data n1 c18 h9 w9 k9 r2 s4 pad1 stride3x2 dil2x3 g3 f32",
        "conv_bwd_filter n2 c5 h9 w7 k12 r3 s3 pad1 stride2 f32",
        "conv_bwd_filter n1 c8 d3 h5 w4 k16 t2 r3 s3 pad1 g2 f32 nhwc flip",
    ],
)
def test_convolution(words: str, cuda_device: Any, alignment: str) -> None:
    problem = convolution(words)
    run_algorithm(algorithm_of(problem), make_case(problem), cuda_device)


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)
@given(problem=convolutions())
def test_any_problem(
    problem: Convolution, cuda_device: Any, alignment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_FEW_COLUMNS", 0)
    algorithm = algorithm_of(problem)
    if problem.x.dtype != "f32":
        assert "f32" in str(algorithm.refuse(problem, cuda_device))
        return
    assume(algorithm.refuse(problem, cuda_device) is None)
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize(("splits", "unsplit"), [(3, 0), (5, 1)])
@pytest.mark.parametrize("tile", [FMA_TILES[0], FMA_TILES[-1]], ids=str)
@pytest.mark.parametrize("words", ORDERS)
def test_split_tiles(
    words: str, tile: Tile, splits: int, unsplit: int, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles split along K, and all but the first."""
    monkeypatch.setattr(cost, "best_blocking", lambda *_: Blocking(tile, splits, unsplit))
    forget_plans()
    problem = convolution(words)
    run_algorithm(algorithm_of(problem), make_case(problem), cuda_device)
    forget_plans()


@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
def test_epilogues(expression: str, cuda_device: Any) -> None:
    for words in (
        "conv_fwd n2 c16 h6 w7 k20 r3 s3 pad1 f32 nhwc",
        "conv_bwd_data n2 c10 h9 w7 k16 r3 s3 stride2 g2 f32",
    ):
        problem = convolution(words)
        run_algorithm(algorithm_of(problem), make_case(problem, fused(problem, expression)), cuda_device)


def test_few_columns_are_refused(cuda_device: Any) -> None:
    for words in (
        "conv_fwd n2 c16 h9 w7 k4 r3 s3 f32 nhwc",
        "conv_bwd_data n2 c6 h9 w7 k16 r3 s3 g2 f32",
        "conv_bwd_filter n2 c16 h9 w7 k8 r3 s3 g2 f32",
    ):
        problem = convolution(words)
        assert "columns" in str(algorithm_of(problem).refuse(problem, cuda_device))
    assert "columns" in str(MatmulFma().refuse(MatMul.make((65, 36), (36, 1)), cuda_device))


def test_strict_accuracy_takes_it(cuda_device: Any) -> None:
    """It is a plain sum of the numbers as they are, and keeps what is not finite to the results that read it."""
    problem = convolution("conv_fwd n64 c256 h28 w28 k512 r1 s1 f32 nhwc")
    exact = [
        one
        for one in algorithms(problem, "cuda")
        if one.refuse(problem, cuda_device) is None
        and one.has_exact_products
        and one.arithmetic(problem) == "fp32"
    ]
    fastest = min(exact, key=lambda one: one.estimate(problem, cuda_device))
    assert fastest.name == "implicit_gemm_fma"
    assert fastest.spreads(problem, cuda_device) is None


@pytest.mark.parametrize(
    "problem",
    [
        MatMul.make((70, 33), (33, 140)),
        MatMul.make((65, 36), (36, 132), b_strides=(1, 36)),
        MatMul.make((3, 2, 17, 8), (3, 2, 8, 12)),
    ],
    ids=str,
)
def test_matrix_product(problem: MatMul, cuda_device: Any, alignment: str) -> None:
    run_algorithm(MatmulFma(), make_case(problem), cuda_device)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Winograd2Fma(MatmulFma()), "conv_fwd n2 c12 h9 w11 k20 r3 s3 pad1 f32 nhwc"),
        (Winograd2Fma(MatmulFma()), "conv_bwd_data n2 c9 h9 w11 k20 r3 s3 pad1 g1 f32"),
        (WinogradWgrad4Fma(MatmulFma()), "conv_bwd_filter n2 c12 h9 w11 k20 r3 s3 pad1 f32 nhwc"),
    ],
)
def test_products_of_minimal_filtering(
    algorithm: Any, words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products of all points by these tiles, where the tiled contraction would take longer."""

    def slow(*given: Any) -> Any:
        return replace(choose(*given), seconds=1.0)

    monkeypatch.setattr("jitdnn.kernels.gpu.convolution.winograd.algorithm.choose", slow)
    planned: list[Any] = []
    plan = MatmulFma.plan

    def noted(self: MatmulFma, *given: Any) -> Any:
        planned.append(given)
        return plan(self, *given)

    monkeypatch.setattr(MatmulFma, "plan", noted)
    run_algorithm(algorithm, make_case(convolution(words)), cuda_device)
    assert planned


@pytest.mark.parametrize("words", [one.replace("n1", "n64") for one in ORDERS])
def test_compiles(words: str, architecture: Any) -> None:
    """Every tile. With both operands along K, as few layers have them, some spill a few bytes."""
    problem = convolution(words)
    for tile in FMA_TILES if architecture.arch == "sm_90a" else FMA_TILES[:2]:
        plan = algorithm_of(problem, (tile,)).sizes(problem, architecture)
        source = (
            wgrad_source_of(plan) if isinstance(plan, WgradPlan) else source_of(plan, problem.output, None)
        )
        architecture.compile(replace(source, spills=not source.keeps_order))


def test_kept_order_is_another_code(architecture: Any) -> None:
    """Of the same text, under a key of its own in the cache."""
    problem = convolution(ORDERS[1])
    source = source_of(
        algorithm_of(problem, FMA_TILES[2:3]).sizes(problem, architecture), problem.output, None
    )
    assert source.keeps_order
    other = replace(source, keeps_order=False)
    arch = architecture.arch
    assert cuda_compile.code_key(source, arch) != cuda_compile.code_key(other, arch)
    assert cuda_compile.compiled(source, arch) != cuda_compile.compiled(other, arch)
