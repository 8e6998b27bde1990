"""Convolutions by warpgroups of 8-bit integers, whose sums are exact, and of 8-bit reals, whose error is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cases
from cases import make_case
from convolution_cases import convolution, fused
from examples import examples
from harness import run, run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.errors import InvalidType
from jitdnn.handle import Handle
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupGemmInPlace,
    WarpgroupWgrad,
    WarpgroupWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.kernels.gpu.convolution.direct import Direct
from jitdnn.kernels.reference import rounded
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.plan import Request
from jitdnn.planner.survey import allowed_error
from jitdnn.problems import FusedConvolution, parse
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import FLOAT8_RESULTS
from jitdnn.tensor import FLOAT8_DTYPES, TensorDescriptor, numpy_dtype
from warpgroup_cases import SMALL, aligned, normal, on_hopper, split_into  # noqa: F401

# ties between two integers, numbers that f32 has not, and results beyond the range
FACTORS = ((1.0, 0.0), (0.5, 0.0), (-0.013, 0.0), (1 / 3, 0.0), (-0.7, 0.3))

STORED = ("f32", "i8", "i32")  # results of products of integers


def test_integers_without_a_sign_are_refused(cuda_device: Any) -> None:
    """By the tensor cores; the ordinary units take them."""
    for types in ("u8 by_i8 to_i8", "u8 to_u8", "i8 to_u8"):
        problem = convolution(f"conv_fwd n2 c64 h9 w7 k64 r1 s1 {types} nhwc")
        for algorithm in algorithms_of(problem):
            assert "have a sign here" in (algorithm.refuse(problem, cuda_device) or "")
        if problem.x.dtype == "u8":
            assert "the tensors are u8" in (ImplicitGemm().refuse(problem, cuda_device) or "")
        assert Direct().refuse(problem, cuda_device) is None


def algorithms_of(problem: Convolution, tiles: tuple[Tile, ...] = TILES) -> tuple[WarpgroupGemm, ...]:
    if problem.direction == "bwd_filter":
        return WarpgroupWgrad(tiles), WarpgroupWgradInPlace(tiles)
    return WarpgroupGemm(tiles), WarpgroupGemmInPlace(tiles)


def check(
    problem: Convolution, device: Any, epilogue: Any = None, tiles: tuple[Tile, ...] = TILES, **how: Any
) -> int:
    """Check those that take the problem; returns how many did."""
    case, count = make_case(problem, epilogue), 0
    for algorithm in algorithms_of(problem, tiles):
        if algorithm.refuse(problem, device, epilogue) is None:
            run_algorithm(algorithm, case, device, **how)
            count += 1
    return count


INTEGERS: dict[str, Callable[[Plan], bool]] = {
    "conv_fwd n2 c64 h9 w7 k64 r1 s1 i8 to_i8 nhwc": lambda p: p.is_in_boxes,
    "conv_fwd n2 c144 h9 w7 k40 r3 s3 pad1 stride2 i8 to_i32 nhwc": lambda p: p.packs == (None, None),
    "conv_fwd n2 c16 h9 w7 k24 r3 s3 pad1 i8 to_i8 nhwc": lambda p: p.row_bytes == 32 and not p.is_vector,
    "conv_fwd n2 c5 h9 w7 k10 r3 s2 pad1 i8 to_i8": lambda p: all(p.packs) and p.rows_first,
    "conv_fwd n1 c64 h5 w4 k32 r3 s3 pad2 dil2 g2 i8 nhwc flip": lambda p: p.works > 1,
    "conv_fwd n1 c32 d3 h5 w4 k8 t3 r3 s3 pad1 i8 nhwc": lambda p: p.rank == 5,
    "conv_fwd n1 c1024 h4 w3 k8 r3 s3 pad1 i8 to_i8 nhwc": lambda p: p.blocking.is_split,
}


@pytest.mark.parametrize("words", INTEGERS)
def test_integers_are_exact(words: str, cuda_device: Any) -> None:
    """Whatever alpha is, results are those of f64, rounded once."""
    problem = convolution(words)
    plan = algorithms_of(problem)[0].sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    if cuda_device.name.startswith("emulated"):  # a large device cuts otherwise
        assert INTEGERS[words](plan), f"the plan is no longer what it is there for: {plan}"
    assert check(problem, cuda_device, scales=FACTORS)


@pytest.mark.parametrize("result", STORED)
def test_integers_near_the_middle_between_two(result: str, cuda_device: Any) -> None:
    """Sums times alpha that are as near to it as f64 tells; f32 would round them the wrong way."""
    problem = convolution(f"conv_fwd n1 c32 h4 w8 k8 r1 s1 i8 to_{result} nhwc")
    x, w = np.zeros((1, 32, 4, 8), np.int8), np.zeros((8, 32, 1, 1), np.int8)
    x[0, 0] = np.arange(-16, 16).reshape(4, 8) * 2 + 1
    w[:, 0, 0, 0] = np.arange(8)
    case = make_case(problem, None, 0, [x, w])
    algorithm = WarpgroupGemm((SMALL,))
    for alpha in (0.5, np.nextafter(0.5, 1), np.nextafter(0.5, 0), 1 / 6, 1e-30, float("inf"), float("nan")):
        kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
        (actual,) = run(cuda_device, kernel, case, room, float(alpha))
        with np.errstate(invalid="ignore"):
            expected = alpha * case.results[0]
        np.testing.assert_array_equal(actual, rounded(expected, actual.dtype))


@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
def test_epilogues_of_integers_are_those_of_the_other_kernels(expression: str, cuda_device: Any) -> None:
    problem = convolution("conv_fwd n2 c64 h6 w7 k20 r3 s3 pad1 i8 to_i8 nhwc")
    case = make_case(problem, fused(problem, expression))
    results = []
    for algorithm in (WarpgroupGemm(), ImplicitGemm()):
        kernel = algorithm.build(problem, cuda_device, case.epilogue)
        room = algorithm.workspace(problem, cuda_device, case.epilogue)
        results.append(run(cuda_device, kernel, case, room, 20.7 if expression == "scalar" else 0.01)[0])
    np.testing.assert_array_equal(*results)
    assert len(np.unique(results[0])) > 1


REALS: dict[str, Callable[[Plan], bool]] = {
    "conv_fwd n2 c64 h9 w7 k64 r1 s1 f8e4m3 nhwc": lambda p: p.is_in_boxes,
    "conv_fwd n2 c144 h9 w7 k48 r1 s2 pad1 f8e4m3 by_f8e5m2 to_f8e4m3 nhwc": lambda p: p.is_in_boxes,
    "conv_fwd n2 c48 h9 w7 k24 r3 s3 pad1 stride2 f8e5m2 to_f8e5m2 nhwc": lambda p: not p.is_vector,
    "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 f8e5m2 by_f8e4m3 to_bf16": lambda p: all(p.packs) and p.rows_first,
    "conv_fwd n1 c64 h5 w4 k32 r3 s3 pad2 dil2 g2 f8e4m3 to_f16 nhwc": lambda p: p.works > 1,
    "conv_fwd n1 c1024 h4 w3 k8 r3 s3 pad1 f8e4m3 to_f8e4m3 nhwc": lambda p: p.blocking.is_split,
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 f8e5m2 by_f8e4m3 to_bf16 nhwc": lambda p: (
        p.packs[1] is not None
    ),
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 f8e5m2 to_f8e5m2 nhwc": lambda p: p.phases == 4,
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 f8e4m3 by_f8e5m2 nhwc": lambda p: (
        p.is_widened and p.is_vector
    ),
    "conv_bwd_filter n2 c6 h9 w7 k5 r3 s3 pad1 stride2 f8e5m2 by_f8e4m3 to_bf16": lambda p: p.is_widened,
}


@pytest.mark.parametrize("words", REALS)
def test_reals(words: str, cuda_device: Any) -> None:
    problem = convolution(words)
    plan = algorithms_of(problem)[0].sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    if cuda_device.name.startswith("emulated"):
        assert REALS[words](plan), f"the plan is no longer what it is there for: {plan}"
    assert check(problem, cuda_device)


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.sums <= 64], ids=str)
def test_every_tile_of_reals(tile: Tile, cuda_device: Any) -> None:
    words = "conv_fwd n1 c144 h20 w17 k264 r1 s1 f8e4m3 by_f8e5m2 nhwc"
    for result in ("f8e4m3", "bf16"):
        problem = convolution(f"{words} to_{result}")
        if WarpgroupGemm((tile,)).refuse(problem, cuda_device) is None:
            assert check(problem, cuda_device, tiles=(tile,), scales=((-0.75, 0.5),))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_of_integers(tile: Tile, cuda_device: Any) -> None:
    problem = convolution("conv_fwd n1 c144 h20 w17 k264 r1 s1 i8 to_i8 nhwc")
    if WarpgroupGemm((tile,)).refuse(problem, cuda_device) is None:
        assert check(problem, cuda_device, tiles=(tile,), scales=((0.011, 0.0),))


@pytest.mark.parametrize("splits", [2, 7])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c192 h11 w12 k72 r3 s3 i8 to_i8 nhwc",
        "conv_fwd n1 c192 h11 w12 k72 r3 s3 f8e4m3 to_bf16 nhwc",
    ],
)
def test_split_tiles(words: str, splits: int, cuda_device: Any) -> None:
    problem = convolution(words)
    with split_into(splits):
        run_algorithm(algorithms_of(problem)[0], make_case(problem), cuda_device)


@pytest.mark.parametrize("expression", ["bias", "residual", "scalar"])
def test_epilogues_of_reals(expression: str, cuda_device: Any) -> None:
    """A scale that lies on the device is a scalar operand of the epilogue."""
    for words in (
        "conv_fwd n2 c32 h6 w7 k20 r3 s3 pad1 f8e4m3 nhwc",
        "conv_bwd_data n2 c10 h9 w7 k32 r3 s3 stride2 f8e5m2 by_f8e4m3 to_bf16",
    ):
        problem = convolution(words)
        assert check(problem, cuda_device, fused(problem, expression))


DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": normal,
    "uniform": lambda rng, shape: rng.random(shape),
    "relu": lambda rng, shape: np.maximum(0, normal(rng, shape)),
    "badly scaled": lambda rng, shape: 2.0**-6 * normal(rng, shape),
    "large": lambda rng, shape: np.clip(100 * normal(rng, shape), -448, 448),
    "by channel": lambda rng, shape: (
        normal(rng, shape) * np.exp2(rng.integers(-5, 5, shape[1])).reshape(1, -1, *(1,) * (len(shape) - 2))
    ),
    "few large": lambda rng, shape: normal(rng, shape) * np.where(rng.random(shape) < 0.02, 50, 1),
    "cancelling": lambda rng, shape: np.where(rng.random(shape) < 0.5, 1, -1) * (1 + normal(rng, shape) / 16),
    "ones": lambda rng, shape: np.ones(shape),
    "zeros": lambda rng, shape: np.zeros(shape),
}
LONG = "conv_fwd n1 c256 h3 w4 k16 r3 s3 pad1 f8e4m3 nhwc"


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("kind", DATA)
def test_sums_of_reals_are_as_exact_as_declared(kind: str, is_same: bool, cuda_device: Any) -> None:
    """2304 products: without moving the sums of each stage the error would be ten times the bound on some data."""
    problem, rng = convolution(LONG), np.random.default_rng(7)
    makes = DATA[kind], DATA[kind] if is_same else normal
    inputs = [
        make(rng, operand.descriptor.shape).astype(numpy_dtype("f8e4m3"))
        for make, operand in zip(makes, problem.inputs, strict=True)
    ]
    algorithm = WarpgroupGemm((SMALL,))
    assert algorithm.error_bound(problem) < 0.003
    run_algorithm(algorithm, make_case(problem, None, 0, inputs), cuda_device, scales=((1.0, 0.0),))


def test_infinities_and_nan_reach_what_reads_them(cuda_device: Any) -> None:
    problem = convolution("conv_fwd n1 c32 h5 w6 k8 r3 s3 pad1 f8e5m2 nhwc")
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(o.descriptor.shape).astype(numpy_dtype("f8e5m2")) for o in problem.inputs]
    inputs[0][0, 3, 0, 0], inputs[0][0, 4, 4, 5] = np.inf, np.nan
    case = make_case(problem, None, 0, inputs)
    kernel, room = (
        WarpgroupGemm().build(problem, cuda_device),
        WarpgroupGemm().workspace(problem, cuda_device),
    )
    (actual,) = run(cuda_device, kernel, case, room)
    with np.errstate(invalid="ignore"):
        expected = problem.reference(*(one.astype(np.float64) for one in inputs))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))


def test_results_beyond_the_range_are_the_largest_numbers(cuda_device: Any) -> None:
    for result, most in (("f8e4m3", 448.0), ("f8e5m2", 57344.0)):
        problem = convolution(f"conv_fwd n1 c32 h2 w3 k16 r1 s1 f8e4m3 to_{result} nhwc")
        x, w = (np.full(o.descriptor.shape, 200.0).astype(numpy_dtype("f8e4m3")) for o in problem.inputs)
        w[::2] = -w[::2]
        case = make_case(problem, None, 0, [x, w])
        kernel = WarpgroupGemm((SMALL,)).build(problem, cuda_device)
        (actual,) = run(cuda_device, kernel, case, WarpgroupGemm((SMALL,)).workspace(problem, cuda_device))
        assert set(actual.astype(np.float64).ravel()) == {-most, most}


def test_any_address(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands at other addresses than the copy engine takes."""
    monkeypatch.setattr(cases, "GUARD", 129)
    for words in (
        "conv_fwd n2 c64 h5 w7 k16 r3 s3 pad1 i8 to_i8 nhwc",
        "conv_fwd n2 c64 h5 w7 k16 r3 s3 pad1 f8e4m3 to_bf16 nhwc",
        "conv_bwd_data n2 c64 h5 w7 k16 r3 s3 pad1 f8e5m2 by_f8e4m3 nhwc",
        "conv_bwd_filter n2 c64 h5 w7 k16 r3 s3 pad1 f8e5m2 by_f8e4m3 nhwc",
    ):
        assert check(convolution(words), cuda_device)


@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_problem(data: st.DataObject, cuda_device: Any) -> None:
    def number(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    groups = number(1, 2)
    words = (
        f"n{number(1, 3)} c{groups * number(1, 70)} h{number(3, 9)} w{number(3, 9)} k{groups * number(1, 40)}"
    )
    words += f" r{number(1, 3)} s{number(1, 3)} stride{number(1, 3)} pad{number(0, 2)} g{groups}"
    if data.draw(st.booleans()):
        types = f"i8 to_{data.draw(st.sampled_from(STORED))}"
        direction = "fwd"
    else:
        first, second = (data.draw(st.sampled_from(FLOAT8_DTYPES)) for _ in range(2))
        types = f"{first} by_{second} to_{data.draw(st.sampled_from(FLOAT8_RESULTS))}"
        direction = data.draw(st.sampled_from(("fwd", "bwd_data", "bwd_filter")))
    layout = data.draw(st.sampled_from(("nhwc", "nchw")))
    check(
        convolution(f"conv_{direction} {words} {types} {layout}"),
        cuda_device,
        tiles=(SMALL, Tile(1, 2, 1, 64)),
    )


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str, algorithm: type[WarpgroupGemm] = WarpgroupGemm) -> str:
        return str(algorithm().refuse(convolution(words), cuda_device))

    assert "multiple of 32" in reason("conv_fwd n1 c96 h5 w5 k48 r3 s3 g2 f8e4m3 nhwc")
    assert "may exceed an i32" in reason("conv_fwd n1 c20000 h3 w3 k8 r3 s3 i8 nhwc")
    assert "takes workspace" in reason(
        "conv_bwd_filter n1 c16 h5 w5 k16 r3 s3 f8e4m3 nhwc", WarpgroupWgradInPlace
    )
    assert "8-bit reals" in str(
        ImplicitGemm().refuse(convolution("conv_fwd n1 c16 h5 w5 k16 r3 s3 f8e4m3"), cuda_device)
    )


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 i8 to_i8 nhwc",
        "conv_fwd n64 c256 h28 w28 k256 r3 s3 pad1 i8 to_i32 nhwc",  # of so many channels stores are not the limit
        "conv_fwd n64 c256 h28 w28 k256 r3 s3 pad1 f8e4m3 to_bf16 nhwc",
        "conv_bwd_data n64 c128 h28 w28 k256 r3 s3 pad1 f8e5m2 by_f8e4m3 to_bf16 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 f8e4m3 by_f8e5m2 nhwc",
        "matmul m4096 k4096 n4096 i8 to_i32 b=columns",
        "matmul m4096 k4096 n4096 f8e4m3 to_bf16 b=columns",
    ],
)
def test_what_the_planner_takes(words: str) -> None:
    """Products by warpgroups, with the settings as they are; of bytes twice as fast as of two."""
    with Handle(offline("sm_90a")) as handle:
        problem = parse(words)
        plan = handle.plan(problem, Request())
        assert "wgmma" in plan.algorithm
        if "filter" not in words:
            types = [word for word in words.split() if word.startswith(("i8", "f8", "by_", "to_"))]
            short = parse(
                " ".join(
                    "bf16" if word == types[0] else word for word in words.split() if word not in types[1:]
                )
            )
            assert 1.4 < handle.plan(short, Request()).seconds / plan.seconds < 2.2


def test_what_accuracy_allows() -> None:
    problem = convolution(LONG)
    bound = WarpgroupGemm().error_bound(problem)
    assert allowed_error(problem, "standard") > bound > allowed_error(problem, "strict")
    short = convolution(LONG + " to_bf16")
    assert allowed_error(short, "strict") > WarpgroupGemm().error_bound(short)


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 i8 to_i8 nhwc",
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 i8 nhwc",
        "conv_fwd n64 c256 h28 w28 k256 r3 s3 pad1 f8e4m3 to_bf16 nhwc",
        "conv_bwd_data n64 c128 h28 w28 k256 r3 s3 pad1 stride2 f8e5m2 by_f8e4m3 to_f8e5m2 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 f8e5m2 by_f8e4m3 nhwc",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    """The tile of most registers, without spilling any."""
    problem, found = convolution(words), 0
    for tile in TILES:
        (algorithm, _) = algorithms_of(problem, (tile,))
        if not found and algorithm.refuse(problem, architecture) is None:
            plan: Any = algorithm.sizes(problem, architecture)
            architecture.compile(source_of(plan, problem.output, None))
            found += 1
    assert found


@pytest.mark.parametrize("dtype", ["i8", "f8e4m3"])
def test_nothing_but_an_epilogue_is_fused_with_bytes(dtype: str) -> None:
    """The prologue and the sums by channel of these kernels are for numbers of two and of four bytes."""
    own = convolution(f"conv_fwd n2 c64 h9 w7 k64 r3 s3 pad1 {dtype} nhwc")
    sums = TensorDescriptor.packed((64,), "f32")
    try:
        problem = FusedConvolution(own, sums=sums, squares=sums)
    except InvalidType:
        return  # the problem itself is refused
    device = offline("sm_90a")
    reasons = {one.name: one.refuse(problem, device) for one in algorithms(problem, "cuda")}
    assert "8 bits" in str(reasons["implicit_gemm_wgmma"])


@pytest.mark.parametrize("channels", [64, 80, 192])
def test_filter_gradients_of_8_bits(channels: int, cuda_device: Any) -> None:
    # columns come in blocks of 64 for each tap, chunks of results of one byte would have 128
    words = f"conv_bwd_filter n1 c{channels} h5 w4 k64 r3 s3 pad1 f8e4m3 to_f8e4m3 nhwc"
    assert check(convolution(words), cuda_device)
