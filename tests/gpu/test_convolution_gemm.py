"""The implicit matrix products of CUDA: every tile, copy and packing, stride phases, split-K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import cases
from cases import make_case
from convolution_cases import convolution, fused
from examples import examples
from harness import run_algorithm
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.implicit_gemm import code, cost
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemm,
    ImplicitGemmInPlace,
    ImplicitGemmWgrad,
    ImplicitGemmWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import source_of, wgrad_source_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan, is_masked
from jitdnn.kernels.cuda.convolution.implicit_gemm.tables import axis_phases, tables_of
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.cuda.gemm.plan import TILES, Blocking, Tile
from jitdnn.problems import Convolution
from strategies import convolutions

ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    if request.param == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    return str(request.param)


def algorithms_of(problem: Convolution, tiles: tuple[Tile, ...] = TILES) -> tuple[Algorithm, ...]:
    if problem.direction == "bwd_filter":
        return ImplicitGemmWgrad(tiles), ImplicitGemmWgradInPlace(tiles)
    return ImplicitGemm(tiles), ImplicitGemmInPlace(tiles)


def forget_plans() -> None:
    cost.plan_of.cache_clear()
    cost.wgrad_plan_of.cache_clear()


def check(problem: Convolution, device: Any, epilogue: Any = None, tiles: tuple[Tile, ...] = TILES) -> None:
    case = make_case(problem, epilogue)
    for algorithm in algorithms_of(problem, tiles):
        assert algorithm.refuse(problem, device, epilogue) is None
        run_algorithm(algorithm, case, device)


# what each problem is there for, as the plans of the first algorithm say it
PRODUCTS: dict[str, Callable[[Plan], bool]] = {
    "conv_fwd n2 c16 h9 w7 k24 r3 s3 pad1 bf16 nhwc": lambda p: (p.copy_a, p.copy_b) == (16, 16),
    "conv_fwd n2 c20 h9 w7 k24 r3 s3 pad1 bf16 nhwc": lambda p: p.copy_a == 8,
    "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 bf16 nhwc": lambda p: True,
    "conv_fwd n2 c3 h11 w9 k16 r3 s3 stride2 pad1 f16 nhwc": lambda p: len(p.packs) == 2,
    "conv_fwd n1 c8 h9 w7 k12 r3 s3 pad1 bf16": lambda p: p.data_pack is not None and p.rows_first,
    "conv_fwd n1 c5 h9 w7 k6 r3 s3 f32 nhwc": lambda p: p.copy_a == 4,
    "conv_fwd n1 c1 h9 w7 k6 r3 s3 f32": lambda p: p.copy_a == 4,
    "conv_fwd n1 c16 w200 k8 s40 pad20 bf16 nhwc": lambda p: not p.geometry.has_mask,
    "conv_fwd n1 c512 h4 w3 k8 r3 s3 pad1 bf16 nhwc": lambda p: p.blocking.splits > 1,
    "conv_fwd n1 c32 d4 h5 w3 k8 t2 r3 s3 pad1 dil2x1x1 g2 f16 nhwc flip": lambda p: p.geometry.groups == 2,
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 bf16 nhwc": lambda p: p.is_mn_major and p.copy_b == 16,
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 bf16 nhwc": lambda p: len(p.geometry.phases) == 4,
    "conv_bwd_data n2 c5 h9 w9 k9 r2 s4 pad1 stride3x2 dil2x3 f16": lambda p: len(p.geometry.phases) == 6,
    "conv_bwd_data n1 c8 h9 w9 k8 r1 s1 stride2 bf16 nhwc flip": lambda p: p.geometry.phases[-1][1].taps == 0,
    "conv_bwd_data n1 c12 h6 w5 k8 r3 s3 pad1 f32 nhwc": lambda p: p.is_mn_major,
    "conv_bwd_data n3 c32 h1 w3 k24 r3 s1 pad1x0 stride2x1 bf16 nhwc": lambda p: (
        p.geometry.axes[1].phases[0].first_tap == 1
    ),
    "conv_bwd_data n1 c8 h7 w45 k8 r2 s3 stride3x20 bf16 nhwc": lambda p: (
        axis_phases(p.geometry, False)[1] == 32
    ),
    "conv_bwd_data n1 c8 h7 w90 k8 r2 s3 stride3x40 bf16 nhwc": lambda p: (
        axis_phases(p.geometry, False)[1] == 0
    ),
}

WGRADS: dict[str, Callable[[WgradPlan], bool]] = {
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 bf16 nhwc": lambda p: p.is_vector and p.blocking.splits == 1,
    "conv_bwd_filter n2 c20 h9 w7 k12 r3 s3 pad1 stride2 f16 nhwc": lambda p: (p.copy_a, p.copy_b) == (8, 8),
    "conv_bwd_filter n2 c3 h9 w7 k5 r3 s3 bf16 nhwc flip": lambda p: p.in_channels == 4,
    "conv_bwd_filter n1 c8 h9 w7 k16 r3 s3 pad1:0x0:2 bf16": lambda p: p.x_pack is not None,
    "conv_bwd_filter n1 c6 h9 w7 k6 r3 s2 dil1x2 g2 f32 nhwc": lambda p: p.problem.groups == 2,
    "conv_bwd_filter n1 c8 d3 h5 w4 k8 t2 r3 s3 pad1 f16 nhwc": lambda p: True,
    "conv_bwd_filter n2 c8 h12 w11 k8 r4 s3 pad2:5x3 stride2x1 dil3x2 bf16 nhwc": lambda p: is_masked(
        p.problem
    ),
    "conv_bwd_filter n1 c8 h9 w47 k8 r1 s31 pad0x15 bf16 nhwc": lambda p: not is_masked(p.problem),
}


@pytest.mark.parametrize("words", [*PRODUCTS, *WGRADS])
def test_every_plan(words: str, cuda_device: Any, alignment: str) -> None:
    problem = convolution(words)
    plan: Any = algorithms_of(problem)[0].sizes(problem, cuda_device)  # type: ignore[attr-defined]
    if cuda_device.name.startswith("emulated"):  # a large device cuts otherwise
        assert (PRODUCTS | WGRADS)[words](plan), f"the plan is no longer what it is there for: {plan}"
    check(problem, cuda_device)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c72 h20 w17 k288 r3 s1 pad1 bf16 nhwc",  # results leave from registers
        "conv_bwd_data n1 c264 h20 w17 k72 r2 s1 pad1 f16 nhwc",  # and through shared memory
        "conv_bwd_filter n1 c32 h17 w20 k264 r3 s3 pad1 bf16 nhwc",
    ],
)
def test_every_tile(words: str, tile: Tile, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(words)
    algorithm = algorithms_of(problem, (tile,))[0]
    run_algorithm(algorithm, make_case(problem), cuda_device, scales=((-0.75, 0.5),))


def high_misalignment(dtype: str, channels: int, strides: Sequence[int]) -> float:
    return 100.0 if any(stride % 16 for stride in strides) else 1.0


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n3 c264 h3 w2 k17 r1 s1 bf16 nhwc",
        "conv_fwd n2 c536 h3 w3 k18 r2 s2 g2 pad1 f16 nhwc",
        "conv_bwd_data n3 c16 h4 w3 k264 r1 s1 stride2x1 bf16 nhwc",
    ],
)
def test_rows_packed_to_lines(
    words: str, cuda_device: Any, alignment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin inside sectors, packed; channels are innermost and chunks where tensors are aligned."""
    monkeypatch.setattr(cost, "misalignment", high_misalignment)
    forget_plans()
    problem = convolution(words)
    algorithm = algorithms_of(problem)[0]
    plan = algorithm.sizes(problem, cuda_device)  # type: ignore[attr-defined]
    assert plan.data_pack is not None
    assert plan.data_pack.padded_channels % 64 == 0
    run_algorithm(algorithm, make_case(problem), cuda_device)
    forget_plans()


@pytest.mark.parametrize(("splits", "unsplit"), [(3, 0), (3, 1), (13, 0), (41, 1)])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c96 h11 w12 k72 r3 s3 bf16 nhwc",
        "conv_bwd_data n1 c72 h9 w11 k96 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_filter n3 c24 h17 w15 k72 r3 s1 pad1x0 bf16 nhwc",
        "conv_bwd_filter n3 c24 h17 w15 k144 r3 s1 pad1x0 g2 f32 nhwc",
    ],
)
def test_split_tiles(
    words: str, splits: int, unsplit: int, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles split along K, and all but the first; several threads that add the partial sums of a run."""
    (tile,) = (one for one in TILES if (one.m, one.n, one.k_bytes) == (64, 64, 64))
    monkeypatch.setattr(cost, "best_blocking", lambda *_: Blocking(tile, splits, unsplit))
    forget_plans()
    problem = convolution(words)
    run_algorithm(algorithms_of(problem)[0], make_case(problem), cuda_device)
    forget_plans()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
def test_epilogues(expression: str, dtype: str, cuda_device: Any) -> None:
    for words in (
        f"conv_fwd n2 c16 h6 w7 k20 r3 s3 pad1 {dtype} nhwc",
        f"conv_fwd n1 c512 h3 w2 k8 r3 s3 pad1 {dtype} nhwc",
        f"conv_bwd_data n2 c10 h9 w7 k16 r3 s3 stride2 g2 {dtype}",
    ):
        problem = convolution(words)
        check(problem, cuda_device, fused(problem, expression))


@pytest.mark.parametrize("result", ["", "to_i8", "to_i32", "to_u8"])
@pytest.mark.parametrize("words", ["n2 c32 h6 w7 k20 r3 s3 pad1", "n1 c5 h9 w6 k7 r3 s2 stride2"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_integers(words: str, layout: str, result: str, cuda_device: Any, alignment: str) -> None:
    check(convolution(f"conv_fwd {words} i8 {result} {layout}".replace("  ", " ")), cuda_device)


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=convolutions())
def test_any_problem(problem: Convolution, cuda_device: Any, alignment: str) -> None:
    if problem.x.dtype == "f64":
        assert "f64" in str(algorithms_of(problem)[0].refuse(problem, cuda_device))
        return
    check(problem, cuda_device)


def test_wide_indices(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of 64 bits, though the tensors here are small."""
    monkeypatch.setattr(cost, "index_type", lambda *_: "i64")
    forget_plans()
    for words in (
        "conv_fwd n2 c5 h9 w7 k6 r3 s3 pad1 stride2 bf16",
        "conv_bwd_data n2 c16 h9 w7 k8 r3 s3 pad1 stride2 f16 nhwc",
        "conv_bwd_filter n2 c16 h9 w7 k8 r3 s3 pad1 bf16 nhwc",
        "conv_fwd n1 c16 w100 k8 s40 pad20 bf16 nhwc",
    ):
        check(convolution(words), cuda_device)
    forget_plans()


def test_refusals(cuda_device: Any) -> None:
    product = ImplicitGemm()
    assert "taps" in str(product.refuse(convolution("conv_fwd n1 c1 h40 w40 k1 r40 s40 bf16"), cuda_device))
    strided = convolution("conv_bwd_data n1 c1 h40 w40 k1 r30 s30 stride30 bf16")
    assert "stride phases" in str(product.refuse(strided, cuda_device))


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_data n64 c128 h28 w28 k256 r3 s3 pad1 f16 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc",
        "conv_fwd n64 c3 h28 w28 k256 r3 s3 pad1 f16",
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 i8 nhwc",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    """Every tile, without spilling registers."""
    problem = convolution(words)
    for tile in TILES if architecture.arch == "sm_90a" else TILES[:3]:
        plan: Any = algorithms_of(problem, (tile,))[0].sizes(problem, architecture)  # type: ignore[attr-defined]
        source = (
            wgrad_source_of(plan) if isinstance(plan, WgradPlan) else source_of(plan, problem.output, None)
        )
        architecture.compile(replace(source, spills=tile.fragment_buffers == 1))  # 128 registers are tight


def test_compiles_for_every_architecture(any_architecture: Any) -> None:
    for words in (
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 f16 nhwc",
    ):
        problem = convolution(words)
        kernel: Any = algorithms_of(problem, TILES[:1])[0].build(problem, any_architecture)
        assert isinstance(kernel, ByAddress)
        kernel.make_other()  # which a call at another address would wait for


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
            "conv_fwd n7 c64 h31 w90 k512 r5 s1 stride2 bf16 nhwc",
        ),
        ("conv_fwd n64 c12 h28 w28 k200 r3 s3 f16 nhwc", "conv_fwd n3 c36 h17 w5 k40 r2 s1 f16 nhwc"),
    ],
)
def test_shapes_share_code(one: str, other: str, architecture: Any) -> None:
    """What is compiled knows no shape but what it tests, and the shapes differ in their arguments."""
    texts, arguments = set(), set()
    for problem in (convolution(one), convolution(other)):
        plan: Any = algorithms_of(problem, TILES[2:3])[1].sizes(problem, architecture)  # type: ignore[attr-defined]
        texts.add(source_of(plan, problem.output, None))
        arguments.add(tables_of(plan, False))
    assert len(texts) == 1
    assert len(arguments) == 2


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c20 h9 w7 k24 r3 s3 pad1 bf16 nhwc",
        "conv_fwd n1 c8 h9 w7 k12 r1 s1 bf16",
        "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 bf16 nhwc",
        "conv_bwd_data n1 c8 h7 w45 k8 r2 s3 stride3x20 bf16 nhwc",
        "conv_bwd_data n1 c8 h7 w90 k8 r2 s3 stride3x40 bf16 nhwc",
        "conv_bwd_filter n2 c20 h9 w7 k12 r3 s3 pad1 stride2 f16 nhwc",
        "conv_bwd_filter n2 c16 h9 w7 k24 r1 s1 bf16 nhwc",
    ],
)
def test_shapes_known_and_as_arguments(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a shape is compiled in, it can be an argument, and the other way round."""
    knows = code.knows_shape
    monkeypatch.setattr(code, "knows_shape", lambda plan, epilogue: not knows(plan, epilogue))
    check(convolution(words), cuda_device)
