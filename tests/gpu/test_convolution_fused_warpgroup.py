"""Convolutions by warpgroups with a prologue on x and sums by channel of y."""

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
from harness import check, run, run_algorithm
from jitdnn.errors import JitdnnError
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fused import WarpgroupFused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.problems import FusedConvolution, parse
from strategies import convolutions
from warpgroup_cases import SMALL, aligned, blocked_by, on_hopper, split_into  # noqa: F401

SEPARATE = next(one for one in ALGORITHMS[FusedConvolution, "fwd"] if one.name == "separate_kernels")


def problem_of(words: str) -> FusedConvolution:
    problem = parse(f"fused_conv_{words}")
    assert isinstance(problem, FusedConvolution)
    return problem


def fused_by(*tiles: Tile) -> WarpgroupFused:
    return WarpgroupFused(SEPARATE, tiles or TILES)


PLANS: dict[str, Callable[[Plan], bool]] = {
    "fwd n2 c64 h9 w7 k64 r1 s1 bf16 nhwc sums": lambda p: p.is_in_boxes,
    "fwd n2 c24 h9 w7 k40 r3 s3 pad1 bf16 nhwc prologue=sigmoid sums": lambda p: p.row_bytes < 128,
    "fwd n3 c72 h13 w11 k72 r3 s5 pad1x2 stride2 bf16 nhwc prologue=relu sums": lambda p: p.rank == 4,
    "fwd n2 c6 h9 w7 k10 r3 s3 pad1 bf16 nhwc prologue=relu sums": lambda p: all(p.packs) and not p.is_vector,
    "fwd n2 c3 h11 w9 k16 r3 s3 stride2 pad1 f16 prologue=relu sums": lambda p: all(p.packs) and p.rows_first,
    "fwd n1 c16 w100 k8 s40 pad20 bf16 nhwc prologue=sigmoid": lambda p: p.rank == 4,
    "fwd n1 c128 h5 w4 k128 r3 s3 pad2 dil2 g2 f16 nhwc prologue=relu sums": lambda p: p.works % 2 == 0,
    "fwd n1 c64 d3 h5 w4 k72 t3 r3 s3 pad1 f16 nhwc prologue=swish sums": lambda p: p.rank == 5,
    "fwd n1 c512 h4 w3 k8 r3 s3 pad1 bf16 nhwc prologue=relu sums": lambda p: p.blocking.is_split,
    "fwd n2 c16 h6 w7 k36 r3 s3 pad1 f32 nhwc flip prologue=tanh sums": lambda p: p.row_bytes == 64,
    "fwd n2 c8 h6 w7 k36 r2 s2 pad2:0 f32 nhwc prologue=relu sums": lambda p: p.row_bytes == 32,
    "bwd_filter n2 c16 h9 w7 k24 r3 s3 pad1 bf16 nhwc prologue=relu": lambda p: p.is_vector,
    "bwd_filter n2 c20 h9 w7 k12 r3 s3 pad1 stride2 f16 nhwc prologue=sigmoid": lambda p: all(p.packs),
    "bwd_filter n2 c72 h5 w7 k72 r3 s3 pad1 bf16 nhwc flip prologue=gelu": lambda p: p.works > 1,
    "bwd_filter n1 c48 h9 w7 k48 r3 s2 pad1 dil1x2 g2 f16 nhwc prologue=relu": lambda p: (
        p.packs == (None, None)
    ),
    "bwd_filter n1 c8 d3 h5 w4 k8 t2 r3 s3 pad1 f16 nhwc prologue=sigmoid": lambda p: p.rank == 5,
    "bwd_filter n1 c8 w300 k8 s7 pad3 bf16 nhwc prologue=sigmoid": lambda p: p.rank == 4,
}


@pytest.mark.parametrize("words", PLANS)
def test_every_plan(words: str, cuda_device: Any) -> None:
    problem = problem_of(words)
    plan = fused_by().sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    if cuda_device.name.startswith("emulated"):  # a large device cuts otherwise
        assert PLANS[words](plan), f"the plan is no longer what it is there for: {plan}"
    run_algorithm(fused_by(), make_case(problem), cuda_device)


def test_sums_of_thread_blocks_that_keep_their_filter(cuda_device: Any) -> None:
    """Fewer thread blocks than multiprocessors: each has rows of sums of its own, and there are no others."""
    problem = problem_of("fwd n1 c136 h41 w30 k200 r1 s1 bf16 nhwc sums")

    def blocking(*_: Any, **__: Any) -> tuple[Blocking, float]:
        return Blocking(Tile(1, 1, 1, 96), 4, 1, 3, 1, 2, kept_bytes=3 * 96 * 128, kept_across=3), 1e-5

    with blocked_by(blocking):
        plan = fused_by().sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        run_algorithm(fused_by(), make_case(problem), cuda_device)


@pytest.mark.parametrize("words", list(PLANS)[3:16:11])
def test_separate_kernels(words: str, cuda_device: Any) -> None:
    assert {"implicit_gemm_wgmma", "separate_kernels"} <= check(problem_of(words), cuda_device)


@pytest.mark.parametrize("tile", [TILES[1], TILES[5], TILES[10]], ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "fwd n1 c72 h20 w17 k288 r3 s1 pad1 bf16 nhwc prologue=sigmoid sums",
        "fwd n1 c36 h20 w17 k72 r2 s1 f32 nhwc prologue=relu sums",
        "bwd_filter n1 c72 h17 w20 k264 r3 s3 pad1 bf16 nhwc prologue=sigmoid",
    ],
)
def test_every_tile(words: str, tile: Tile, cuda_device: Any) -> None:
    problem, algorithm = problem_of(words), fused_by(tile)
    if algorithm.refuse(problem, cuda_device) is None:
        run_algorithm(algorithm, make_case(problem), cuda_device, scales=((-0.75, 0.5),))


@pytest.mark.parametrize(("tile", "splits"), [(SMALL, 14), (Tile(2, 1, 2, 64), 2)], ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "fwd n1 c96 h11 w12 k72 r3 s3 pad1 bf16 nhwc prologue=sigmoid sums",
        "bwd_filter n3 c24 h17 w15 k72 r3 s1 pad1x0 bf16 nhwc prologue=sigmoid",
        "bwd_filter n3 c32 h17 w15 k144 r3 s1 pad1x0 g2 f16 nhwc prologue=relu",
    ],
)
def test_split_tiles(words: str, tile: Tile, splits: int, cuda_device: Any) -> None:
    with split_into(splits, tile):
        run_algorithm(fused_by(), make_case(problem_of(words)), cuda_device, scales=((1.0, 0.0),))


@pytest.mark.parametrize("expression", ["activation", "residual"])
def test_prologue_and_epilogue(expression: str, cuda_device: Any) -> None:
    for size in ("n2 c16 h6 w7 k20", "n1 c512 h3 w2 k8"):
        problem = problem_of(f"fwd {size} r3 s3 pad1 bf16 nhwc prologue=relu")
        epilogue = fused(problem.convolution, expression)
        run_algorithm(fused_by(), make_case(problem, epilogue), cuda_device)


def test_more_works_than_thread_blocks(cuda_device: Any) -> None:
    """A thread block sums several tiles; results of one leave while the next is computed."""
    for words in (
        "fwd n1 c64 h41 w40 k136 r1 s1 bf16 nhwc prologue=relu sums",
        "fwd n1 c64 h41 w40 k135 r1 s1 bf16 nhwc sums",
    ):
        run_algorithm(fused_by(SMALL), make_case(problem_of(words)), cuda_device, scales=((1.0, 0.0),))


def test_sums_are_those_before_rounding(cuda_device: Any) -> None:
    """Results that all round the same way: sums of what is stored would be off by 2^-9 of them."""
    problem = problem_of("fwd n4 c64 h16 w16 k64 r1 s1 bf16 nhwc sums")
    x = np.zeros((4, 64, 16, 16))
    x[:, :2] = np.array([1.0, 2.0**-9 + 2.0**-11])[:, None, None]  # 1 + 2^-9 + 2^-11 becomes 1
    case = make_case(problem, None, 0, [x, np.ones((64, 64, 1, 1))])
    algorithm = fused_by()
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    y, sums, squares = run(cuda_device, kernel, case, room)
    assert (y == 1.0).all()
    exact = 1.0 + 2.0**-9 + 2.0**-11
    np.testing.assert_allclose(sums, 1024 * exact, rtol=1e-6)
    np.testing.assert_allclose(squares, 1024 * exact**2, rtol=1e-6)


@pytest.mark.parametrize("direction", ["fwd", "bwd_filter"])
def test_nonfinite_parameters_stay_in_their_channel(direction: str, cuda_device: Any) -> None:
    """Of wgrad they reach the gradients of their channel; outside of the image nothing is read of them."""
    problem = problem_of(f"{direction} n1 c24 h5 w4 k16 r3 s3 pad1 bf16 nhwc prologue=identity")
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(one.descriptor.shape) for one in problem.inputs]
    inputs[3][7] = np.inf
    if direction == "fwd":  # infinity times zero would be NaN
        inputs[1][:, 7] = np.abs(inputs[1][:, 7]) + 1
    else:
        inputs[1] = np.abs(inputs[1]) + 1
    algorithm = fused_by()
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
    if direction == "fwd":
        assert np.isposinf(actual.astype(np.float64)).all()
    else:
        found = actual.astype(np.float64)
        assert np.isposinf(found[:, 7]).all()
        assert np.isfinite(np.delete(found, 7, axis=1)).all()


def test_any_address(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands at other addresses than the copy engine takes."""
    monkeypatch.setattr(cases, "GUARD", 129)
    for words in ("fwd n2 c64 h5 w7 k16 r3 s3 pad1 bf16 nhwc prologue=relu sums",
                  "bwd_filter n2 c64 h5 w7 k16 r3 s3 pad1 bf16 nhwc prologue=relu"):  # fmt: skip
        run_algorithm(fused_by(), make_case(problem_of(words)), cuda_device)


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # fmt: skip
@given(data=st.data())
def test_any_problem(data: st.DataObject, cuda_device: Any) -> None:
    own = data.draw(convolutions().filter(lambda one: one.direction != "bwd_data" and not one.is_integer))
    activation = data.draw(st.sampled_from(["relu", "sigmoid"]))
    problem = FusedConvolution.of(own, activation, own.direction == "fwd" and data.draw(st.booleans()))
    algorithm = fused_by(SMALL, Tile(1, 2, 1, 64))
    if algorithm.refuse(problem, cuda_device) is None:
        run_algorithm(algorithm, make_case(problem), cuda_device, scales=((1.0, 0.0),))


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str, epilogue: Any = None) -> str:
        return str(fused_by().refuse(problem_of(words), cuda_device, epilogue))

    own = convolution("conv_fwd n1 c8 h5 w5 k8 r1 s1 bf16 nhwc")
    assert "take an epilogue" in reason("fwd n1 c8 h5 w5 k8 r1 s1 bf16 nhwc sums", fused(own, "bias"))
    assert "side by side" in reason("fwd n1 c8 h5 w5 k8 r1 s1 bf16 nhwc prologue=relu scale=s2")
    assert "4096 channels" in reason("fwd n1 c4104 h2 w2 k8 r1 s1 bf16 nhwc prologue=relu")
    assert "32800 lines" in reason("fwd n1 c8 h32800 w1 k8 r1 s1 bf16 nhwc prologue=relu")
    assert "f64" in reason("fwd n1 c8 h5 w5 k8 r1 s1 f64 sums")
    assert "nothing to multiply" in reason("fwd n0 c8 h5 w5 k8 r1 s1 bf16 nhwc sums")


@pytest.mark.parametrize(
    "words",
    [
        "fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc sums",
        "fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc prologue=relu sums",
        "fwd n4 c128 d8 h28 w28 k256 t3 r3 s3 pad1 f16 nhwc prologue=relu",
        "fwd n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc prologue=relu sums",
        "bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc prologue=relu",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    """Tiles of many registers, without spilling them unless the sums leave hardly any to a prologue."""
    problem = problem_of(words)
    for tile in TILES[:1] if len(problem.convolution.spatial) == 3 else TILES[1:3]:
        plan = fused_by(tile).sizes(problem, architecture)
        if isinstance(plan, str):
            continue
        source = source_of(plan, problem.convolution.output, None)
        is_full = problem.has_prologue and tile.sums + tile.sums * plan.blocking.result_bytes // 4 > 160
        try:
            architecture.compile(source if is_full else strict(source))
        except JitdnnError as error:
            raise AssertionError(f"{tile}: {error}") from error


def strict(source: Any) -> Any:
    """The source, where registers that spill are an error."""
    return replace(source, spills=False)
