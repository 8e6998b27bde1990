"""Convolutions by warpgroups: every layout of operands, every tile, splits, epilogues, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from jitdnn.devices import cuda
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupGemmInLines,
    WarpgroupGemmInPlace,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
    WarpgroupWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import launches_of, reduction_sharing, source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmDivided,
    WarpgroupGemmHalves,
    WarpgroupWgradBlockwise,
    WarpgroupWgradDivided,
    WarpgroupWgradDividedRows,
    WarpgroupWgradHalves,
    WarpgroupWgradRows,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
    WarpgroupWgradScaled,
    WarpgroupWgradScaledBlockwise,
    WarpgroupWgradScaledDivided,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import DIVIDED as WITH_DIVIDERS
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.planner.plan import Request
from jitdnn.planner.survey import _refuse_request
from jitdnn.problems.convolution import Convolution
from strategies import convolutions
from warpgroup_cases import (  # noqa: F401
    DATA,
    SMALL,
    aligned,
    blocked_by,
    check_not_finite,
    normal,
    on_hopper,
    split_into,
)


def algorithms_of(problem: Convolution, tiles: tuple[Tile, ...] = TILES) -> tuple[WarpgroupGemm, ...]:
    """With workspace, without, in halves, scaled to half precision, in halves that the kernel makes, in lines, and
    scaled by blocks."""
    if problem.direction == "bwd_filter":
        return (
            WarpgroupWgrad(tiles), WarpgroupWgradInPlace(tiles), WarpgroupWgradHalves(tiles),
            WarpgroupWgradScaled(tiles), WarpgroupWgradDivided(tiles), WarpgroupWgradInLines(tiles),
            WarpgroupWgradRows(tiles), WarpgroupWgradDividedRows(tiles), WarpgroupWgradScaledDivided(tiles),
            WarpgroupWgradBlockwise(tiles), WarpgroupWgradScaledBlockwise(tiles),
        )  # fmt: skip
    return (
        WarpgroupGemm(tiles), WarpgroupGemmInPlace(tiles), WarpgroupGemmHalves(tiles),
        WarpgroupGemmScaled(tiles), WarpgroupGemmDivided(tiles), WarpgroupGemmInLines(tiles),
    )  # fmt: skip


HALF_PRECISION = {
    "halves": 2,
    "scaled": 3,
    "divided": 4,
    "dy divided": 6,
    "divided mixed": 7,
    "scaled and divided": 8,
    "blockwise": 9,
    "scaled blockwise": 10,
}
"""Those that multiply f32 as f16, by their numbers among the algorithms."""


def halves_of(problem: Convolution) -> WarpgroupGemm:
    return algorithms_of(problem)[2]


def check(problem: Convolution, device: Any, epilogue: Any = None, tiles: tuple[Tile, ...] = TILES) -> int:
    """Check all of them; returns how many took the problem."""
    case, count = make_case(problem, epilogue), 0
    for algorithm in algorithms_of(problem, tiles):
        if algorithm.refuse(problem, device, epilogue) is None:
            run_algorithm(algorithm, case, device)
            count += 1
    return count


FEW_CHANNELS = (  # products along K of a stage that f32 divided in registers has
    ("conv_fwd n1 c96 h6 w5 k40 r3 s3 pad1 g2 f32 nhwc", 3),  # those of the other group are left out
    ("conv_bwd_data n1 c40 h6 w5 k96 r3 s3 pad1 g2 f32 nhwc", 3),
    ("conv_fwd n1 c40 h6 w5 k24 r1 s1 f32 nhwc", 3),
    ("conv_bwd_data n2 c24 h7 w5 k36 r2 s2 f32 nhwc", 3),
    ("conv_fwd n1 c64 h6 w5 k24 r1 s1 f32 nhwc", 4),
)


@pytest.mark.parametrize(("words", "steps"), FEW_CHANNELS)
def test_steps_without_channels(
    words: str, steps: int, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "GUARD", 128)
    problem, algorithm = convolution(words), WarpgroupGemmDivided()
    assert algorithm.refuse(problem, cuda_device) is None
    assert algorithm.sizes(problem, cuda_device).used_steps == steps
    run_algorithm(algorithm, make_case(problem, None), cuda_device)


PRODUCTS: dict[str, Callable[[Plan], bool]] = {
    "conv_fwd n2 c64 h9 w7 k64 r1 s1 bf16 nhwc": lambda p: p.is_vector and not p.is_b_mn_major,
    "conv_fwd n2 c24 h9 w7 k40 r3 s3 pad1 bf16 nhwc": lambda p: p.packs == (None, None),
    "conv_fwd n3 c72 h13 w11 k72 r3 s5 pad1x2 stride2 bf16 nhwc": lambda p: p.rank == 4,
    "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 bf16 nhwc": lambda p: all(p.packs),
    "conv_fwd n2 c3 h11 w9 k16 r3 s3 stride2 pad1 f16": lambda p: all(p.packs) and p.rows_first,
    "conv_fwd n1 c16 w100 k8 s40 pad20 bf16 nhwc": lambda p: p.rank == 4,
    "conv_fwd n1 c128 h5 w4 k128 r3 s3 pad2 dil2 g2 f16 nhwc": lambda p: p.works % 2 == 0,
    "conv_fwd n1 c64 d3 h5 w4 k72 t3 r3 s3 pad1 f16 nhwc": lambda p: p.rank == 5,
    "conv_fwd n2 c8 d1 h3 w4 k8 t1 r1 s1 pad1x0x0 stride3x1x1 f16 nhwc": lambda p: p.rank == 5,
    "conv_bwd_filter n2 c8 d1 h3 w4 k8 t1 r1 s1 pad1x0x0 stride3x1x1 f16 nhwc": lambda p: p.rank == 5,
    "conv_fwd n1 c512 h4 w3 k8 r3 s3 pad1 bf16 nhwc": lambda p: p.blocking.is_split,
    "conv_fwd n12 c40 h6 w7 k36 r3 s3 pad1 f32 nhwc flip": lambda p: p.is_vector,
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 bf16 nhwc": lambda p: p.is_b_mn_major,
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 bf16 nhwc": lambda p: p.phases == 4,
    "conv_bwd_data n2 c5 h9 w9 k9 r2 s4 pad1 stride3x2 dil2x3 f16": lambda p: p.phases == 6,
    "conv_bwd_data n1 c8 h9 w9 k8 r1 s1 stride2 bf16 nhwc flip": lambda p: p.phases == 4,
    "conv_bwd_data n1 c64 h5 w4 k128 r3 s3 pad1 g2 bf16 nhwc": lambda p: p.is_b_mn_major,
    "conv_bwd_data n1 c12 h6 w5 k8 r3 s3 pad1 f32 nhwc": lambda p: p.packs[1] is not None,
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 bf16 nhwc": lambda p: p.is_vector,
    "conv_bwd_filter n2 c20 h9 w7 k12 r3 s3 pad1 stride2 f16 nhwc": lambda p: all(p.packs),
    "conv_bwd_filter n2 c72 h5 w7 k72 r3 s3 pad1 bf16 nhwc flip": lambda p: p.works > 1,
    "conv_bwd_filter n1 c8 h9 w7 k16 r3 s3 pad1:0x0:2 bf16": lambda p: p.packs[0] is not None,
    "conv_bwd_filter n1 c48 h9 w7 k48 r3 s2 dil1x2 g2 f16 nhwc": lambda p: p.packs == (None, None),
    "conv_bwd_filter n1 c8 d3 h5 w4 k8 t2 r3 s3 pad1 f16 nhwc": lambda p: p.rank == 5,
}


@pytest.mark.parametrize("words", PRODUCTS)
def test_every_plan(words: str, cuda_device: Any) -> None:
    problem = convolution(words)
    plan = algorithms_of(problem)[0].sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    if cuda_device.name.startswith("emulated"):  # a large device cuts otherwise
        assert PRODUCTS[words](plan), f"the plan is no longer what it is there for: {plan}"
    assert check(problem, cuda_device)


OF_EVERY_TILE = [
    "conv_fwd n1 c72 h20 w17 k288 r3 s1 pad1 bf16 nhwc",
    "conv_fwd n1 c36 h20 w17 k72 r2 s1 f32 nhwc",
    "conv_bwd_filter n1 c72 h17 w20 k264 r2 s1 f32 nhwc",
    "conv_bwd_data n1 c264 h20 w17 k72 r2 s1 pad1 f16 nhwc",
    "conv_bwd_filter n1 c72 h17 w20 k264 r3 s3 pad1 bf16 nhwc",
]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("words", OF_EVERY_TILE)
def test_every_tile(words: str, tile: Tile, cuda_device: Any) -> None:
    if cuda_device.name.startswith("emulated") and (OF_EVERY_TILE.index(words) + TILES.index(tile)) % 2:
        pytest.skip("the emulator takes every second one: each tile and each problem, all pairs on a GPU")
    problem = convolution(words)
    case = make_case(problem)
    for algorithm in algorithms_of(problem, (tile,)):
        if algorithm.refuse(problem, cuda_device) is None:
            run_algorithm(algorithm, case, cuda_device, scales=((-0.75, 0.5),))


def test_tiles_end_with_their_group(cuda_device: Any) -> None:
    # 64 results of a group in tiles of 128 rows: those behind are rows of the next group
    problem = convolution("conv_bwd_filter n1 c128 h5 w5 k128 r1 s1 g2 bf16 nhwc")
    assert check(problem, cuda_device, tiles=(Tile(2, 1, 1, 64),))


@pytest.mark.parametrize("splits", [2, 3, 7])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c96 h11 w12 k72 r3 s3 bf16 nhwc",
        "conv_bwd_data n1 c72 h9 w11 k96 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_filter n3 c24 h17 w15 k72 r3 s1 pad1x0 bf16 nhwc",
        "conv_bwd_filter n3 c32 h17 w15 k144 r3 s1 pad1x0 g2 f16 nhwc",
        "conv_fwd n1 c96 h11 w12 k71 r3 s3 bf16 nhwc",
        "conv_bwd_filter n3 c20 h17 w15 k12 r3 s1 pad1x0 bf16 nhwc",
    ],
)
def test_split_tiles(words: str, splits: int, cuda_device: Any) -> None:
    problem = convolution(words)
    with split_into(splits):
        run_algorithm(algorithms_of(problem)[0], make_case(problem), cuda_device)


@pytest.mark.parametrize(("splits", "sharing"), [(10, 2), (20, 4), (40, 16)])
def test_warps_share_many_splits(splits: int, sharing: int, cuda_device: Any) -> None:
    problem = convolution("conv_bwd_filter n10 c24 h16 w16 k40 r1 s1 bf16 nhwc")
    with split_into(splits):
        plan = algorithms_of(problem)[0].sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert reduction_sharing(plan.blocking.splits) == sharing
        run_algorithm(algorithms_of(problem)[0], make_case(problem), cuda_device)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("expression", ["activation", "bias", "residual", "scalar"])
def test_epilogues(expression: str, dtype: str, cuda_device: Any) -> None:
    for words in (
        f"conv_fwd n2 c16 h6 w7 k20 r3 s3 pad1 {dtype} nhwc",
        f"conv_fwd n1 c512 h3 w2 k8 r3 s3 pad1 {dtype} nhwc",
        f"conv_bwd_data n2 c10 h9 w7 k16 r3 s3 stride2 {dtype}",
    ):
        problem = convolution(words)
        assert check(problem, cuda_device, fused(problem, expression))


HALVED = [
    "conv_fwd n2 c36 h7 w6 k24 r3 s3 pad1 f32 nhwc",
    "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 stride2 f32 flip",
    "conv_fwd n1 c32 h5 w6 k32 r3 s2 g2 f32 nhwc",
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 f32 nhwc",
    "conv_bwd_data n1 c12 h6 w5 k8 r3 s3 pad1 f32",
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 f32 nhwc",
    "conv_bwd_filter n2 c16 h9 w7 k32 r3 s3 pad1 g2 f32",
]
DIVIDED = [
    "conv_fwd n2 c36 h7 w6 k24 r3 s3 pad1 f32 nhwc",
    "conv_fwd n3 c136 h7 w7 k72 r1 s1 f32 nhwc",
    "conv_fwd n1 c32 d3 h5 w6 k32 t2 r3 s2 g2 f32 nhwc",
    "conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 f32 nhwc flip",
    "conv_bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 f32 nhwc",
    "conv_bwd_filter n3 c136 h7 w7 k72 r1 s1 f32 nhwc",
    "conv_bwd_filter n3 c16 d4 h9 w6 k32 t2 r2 s1 stride2x2x1 g2 f32 nhwc flip",
]
BLOCKWISE = [
    "conv_bwd_filter n3 c136 h7 w7 k72 r1 s1 f32 nhwc",
    "conv_bwd_filter n2 c70 h17 w9 k66 r1 s1 stride2x1 f32",
    "conv_bwd_filter n2 c72 d3 h7 w9 k40 t1 r1 s1 stride1x3x1 f32 nhwc flip",
]
MULTIPLIED = [
    *(("halves", one) for one in HALVED),
    *(("scaled", one) for one in HALVED[::2]),
    *(("divided", one) for one in DIVIDED),
    *(
        (way, one)
        for way in ("dy divided", "divided mixed", "scaled and divided")
        for one in DIVIDED
        if "bwd_filter" in one
    ),
    *((way, one) for way in ("blockwise", "scaled blockwise") for one in BLOCKWISE),
]


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize(("algorithm", "words"), MULTIPLIED)
def test_halves_are_as_exact_as_declared(algorithm: str, words: str, kind: str, cuda_device: Any) -> None:
    """The error bound holds whatever the range of the numbers is."""
    problem, rng = convolution(words), np.random.default_rng(7)
    other = (
        normal if kind in ("tiny", "subnormal", "huge") else DATA[kind]
    )  # products are to be numbers of f32
    inputs = [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[kind], other), problem.inputs, strict=True)
    ]
    case = make_case(problem, None, 0, inputs)
    run_algorithm(algorithms_of(problem)[HALF_PRECISION[algorithm]], case, cuda_device, scales=((1.0, 0.0),))


DIVIDING = ("divided", "divided mixed", "scaled and divided")


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("tile", WITH_DIVIDERS, ids=str)
@pytest.mark.parametrize("name", DIVIDING)
def test_warpgroups_that_divide(name: str, tile: Tile, value: float, cuda_device: Any) -> None:
    """As exact as halves that consumers make, several pieces of work for a thread block, and what is not finite."""
    problem = convolution("conv_bwd_filter n3 c136 h17 w19 k72 r2 s1 f32 nhwc")
    algorithm = algorithms_of(problem, (tile,))[HALF_PRECISION[name]]
    if algorithm.refuse(problem, cuda_device):
        pytest.skip("shared memory")
    if value == 0.0:
        run_algorithm(algorithm, make_case(problem), cuda_device, scales=((-0.75, 0.5),))
    else:
        tolerance = 5e-2 if name.startswith("scaled") else 1e-4  # of sums of 900 products
        check_not_finite(problem, algorithm, cuda_device, value, tolerance)


@pytest.mark.parametrize("splits", [2, 4, 9])
@pytest.mark.parametrize(
    "tile", [Tile(2, 1, 1, 64), Tile(1, 1, 1, 128), Tile(2, 1, 1, 64, cluster=2)], ids=str
)
@pytest.mark.parametrize("name", ["blockwise", "scaled blockwise"])
def test_sums_of_two_stages_in_turns(name: str, tile: Tile, splits: int, cuda_device: Any) -> None:
    """Parts of K of an even and an odd number of stages, and of one."""
    splits = tile.cluster if tile.cluster > 1 else splits
    parts = 1 if name.startswith("scaled") else 2

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        length = -(-products.longest // splits)
        return Blocking(tile, 3, -(-products.longest // length), length, parts, 4), 1e-5

    problem = convolution("conv_bwd_filter n5 c72 h13 w9 k136 r1 s1 f32 nhwc")  # 10 stages
    with blocked_by(blocking):
        algorithm = algorithms_of(problem)[HALF_PRECISION[name]]
        run_algorithm(algorithm, make_case(problem), cuda_device, scales=((-0.75, 0.5),))


def test_products_of_halves_may_vanish(cuda_device: Any) -> None:
    """What is too small for f32 is zero, as it is there."""
    problem, rng = convolution(HALVED[0]), np.random.default_rng(7)
    inputs = [(1e-38 * normal(rng, one.descriptor.shape)).astype(np.float32) for one in problem.inputs]
    algorithm = halves_of(problem)
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
    assert not actual.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("name", "words"), [*MULTIPLIED, *(("scaled", one) for one in HALVED[1::2])])
def test_halves_of_what_is_not_finite(name: str, words: str, value: float, cuda_device: Any) -> None:
    """Infinities and NaN give what they give in f32, where they are read, and nothing elsewhere."""
    problem = convolution(words)
    tolerance = 2e-2 if name.startswith("scaled") else 1e-5  # of sums of some hundred products with 11 bits
    check_not_finite(problem, algorithms_of(problem)[HALF_PRECISION[name]], cuda_device, value, tolerance)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_one_tap_does_not_meet_is_not_packed(dtype: str, cuda_device: Any) -> None:
    problem = convolution(f"conv_bwd_filter n2 c12 d3 h9 w8 k20 t1 r2 s1 stride2x1x3 {dtype}")
    plan = algorithms_of(problem)[2 if dtype == "f32" else 0].sizes(problem, cuda_device)
    assert isinstance(plan, Plan)
    assert plan.packs[0]
    assert plan.packs[0].source.extents == (2, 9, 3)
    assert check(problem, cuda_device)


def test_where_f32_with_one_tap_is_divided() -> None:
    """In blocks before the product where many tiles read each number, by the product itself where few do."""

    def seconds(words: str, algorithm: WarpgroupGemm) -> float:
        plan = algorithm.sizes(convolution(f"conv_bwd_filter {words} r1 s1 f32 nhwc"), offline("sm_90a"))
        assert isinstance(plan, Plan)
        return plan.seconds

    in_blocks, itself = WarpgroupWgradScaledBlockwise(), WarpgroupWgradScaledDivided()
    for words in ("n32 c512 h7 w7 k2048", "n32 c1024 h14 w14 k2048 stride2"):
        assert seconds(words, in_blocks) < seconds(words, itself)
    assert seconds("n32 c256 h56 w56 k64", in_blocks) > seconds("n32 c256 h56 w56 k64", itself)


def test_strict_accuracy_keeps_to_products_of_f32() -> None:
    problem = convolution(HALVED[0])
    request = Request(accuracy="strict")
    assert "parts of numbers" in str(_refuse_request(halves_of(problem), problem, request, 0.0, 1.0, None))


def test_more_works_than_thread_blocks(cuda_device: Any) -> None:
    """Results of a tile leave while the next one is computed, with more and with fewer stages than chunks."""
    for words in (
        "conv_fwd n1 c64 h41 w40 k136 r1 s1 bf16 nhwc",
        "conv_fwd n1 c64 h41 w40 k136 r3 s3 pad1 bf16 nhwc",
    ):
        problem = convolution(words)
        for tile in (SMALL, Tile(2, 1, 1, 128)):
            assert check(problem, cuda_device, tiles=(tile,))


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_tf32_is_rounded_and_not_cut(direction: str, layout: str, cuda_device: Any) -> None:
    """Cut off, every product is too small by 7e-4 on average, which layers of a network add up."""
    problem, rng = (
        convolution(f"conv_{direction} n1 c64 h6 w7 k64 r1 s1 f32 {layout}"),
        np.random.default_rng(0),
    )
    inputs = [(1 + rng.random(operand.descriptor.shape)).astype(np.float32) for operand in problem.inputs]
    algorithm = algorithms_of(problem)[0]
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
    exact = problem.reference(*(one.astype(np.float64) for one in inputs))
    assert abs(float(np.mean(actual / exact - 1.0))) < 3e-5


def test_any_address(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands at other addresses than the copy engine takes."""
    monkeypatch.setattr(cases, "GUARD", 129)
    for words in (
        "conv_fwd n2 c64 h5 w7 k16 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_data n2 c64 h5 w7 k16 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_filter n2 c64 h5 w7 k16 r3 s3 pad1 bf16 nhwc",
        "conv_fwd n2 c24 h5 w7 k16 r3 s3 pad1 f32 nhwc",
        "conv_bwd_filter n2 c16 h5 w7 k16 r3 s3 pad1 f32 nhwc",
    ):
        assert check(convolution(words), cuda_device)


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_problem(data: st.DataObject, cuda_device: Any) -> None:
    problem = data.draw(convolutions())
    check(problem, cuda_device, tiles=(SMALL, Tile(1, 2, 1, 64)))


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str, algorithm: type[WarpgroupGemm] = WarpgroupGemm) -> str:
        return str(algorithm().refuse(convolution(words), cuda_device))

    assert "f64" in reason("conv_fwd n1 c8 h5 w5 k8 r1 s1 f64")
    assert "steps of at most 8" in reason("conv_fwd n1 c8 h40 w40 k8 r9 s9 stride9 bf16")
    assert "multiple of 16" in reason("conv_fwd n1 c48 h5 w5 k48 r3 s3 g2 bf16 nhwc")
    assert "multiples of 8 channels" in reason(
        "conv_bwd_filter n1 c24 h5 w5 k32 r3 s3 g2 bf16 nhwc", WarpgroupWgrad
    )
    assert "takes workspace" in reason("conv_fwd n1 c8 h5 w5 k8 r3 s3 bf16", WarpgroupGemmInPlace)
    assert "stride phases" in reason("conv_bwd_data n1 c8 h40 w40 k8 r4 s4 stride4 bf16 nhwc")
    assert "farther" in reason("conv_fwd n1 c8 h2 w900 k8 r1 s300 bf16 nhwc")
    other = replace(cuda_device, arch="sm_100")
    assert "sm_90a" in str(WarpgroupGemm().refuse(convolution("conv_fwd n1 c8 h5 w5 k8 r1 s1 bf16"), other))


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
        "conv_bwd_data n64 c128 h28 w28 k256 r3 s3 pad1 stride2 f16 nhwc",
        "conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc",
        "conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc",
        "conv_fwd n4 c128 d8 h28 w28 k256 t3 r3 s3 pad1 bf16 nhwc",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    """Every tile of the common directions, those of most registers of the others, without spilling registers."""
    problem = convolution(words)
    for tile in (
        TILES
        if "stride" not in words and problem.x.dtype == "bf16" and len(problem.spatial) == 2
        else TILES[:3]
    ):
        for algorithm in algorithms_of(problem, (tile,)):
            if algorithm.refuse(problem, architecture) is None:
                plan: Any = algorithm.sizes(problem, architecture)
                architecture.compile(source_of(plan, problem.output, None))


def test_epilogues_compile_with_the_common_tiles(architecture: Any) -> None:
    problem = convolution("conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc")
    epilogue = fused(problem, "residual")
    for tile in TILES[:4]:
        WarpgroupGemm((tile,)).build(problem, architecture, epilogue)


def test_shapes_share_code(architecture: Any) -> None:
    """What is compiled knows no shape."""
    one, other = (
        convolution(f"conv_fwd n{n} c{c} h{h} w{h} k{k} r{r} s{r} pad1 bf16 nhwc")
        for n, c, h, k, r in ((64, 128, 28, 256, 3), (32, 1024, 40, 512, 1))
    )
    plans: list[Any] = [WarpgroupGemm(TILES[:1]).sizes(p, architecture) for p in (one, other)]
    texts = {source_of(plan, p.output, None) for plan, p in zip(plans, (one, other), strict=True)}
    assert len(texts) == 1
    assert launches_of(plans[0], 132) != launches_of(plans[1], 132) or plans[0].tables != plans[1].tables


def test_numbers_of_stride_phases_share_code() -> None:
    device, texts, phases = cuda.offline("sm_90a"), set(), set()
    for stride in ("2x1", "2", "1x4"):
        problem = convolution(f"conv_bwd_data n64 c128 h28 w28 k256 r4 s4 pad1 stride{stride} bf16 nhwc")
        plan = WarpgroupGemm(TILES[:1]).sizes(problem, device)
        assert isinstance(plan, Plan), plan
        phases.add(plan.phases)
        texts.add(source_of(plan, problem.output, None))
    assert phases == {2, 4}
    assert len(texts) == 1
