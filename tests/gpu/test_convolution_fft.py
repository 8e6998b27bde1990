"""Convolutions by fast Fourier transforms on GPUs: sizes that hurt, orders in memory, epilogues, error bounds."""

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
from harness import run_algorithm
from jitdnn.kernels.formulas.overlap_save import axes_of
from jitdnn.kernels.gpu.convolution.fft import plan as plan_module
from jitdnn.kernels.gpu.convolution.fft.algorithm import Fft, FftOfProducts, FftOfSpectra
from jitdnn.kernels.gpu.convolution.fft.code import build
from jitdnn.kernels.gpu.convolution.fft.plan import POINTS, Plan, plan_of, product_plan_of, seconds
from paper_gpus import FACTS, PaperGpu

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")

SHAPES = [
    "n3 c2 w100 k2 s40 pad7 g2 f32",
    "n1 c1 w1 k1 s33 pad16 g1 f32",
    "n2 c3 w64 k3 s63 pad62:0 g3 f32 flip",  # causal
    "n2 c2 w40 k2 s35 pad0:90 g2 f32",  # results that read nothing but padding
    "n1 c2 w700 k2 s33 dil3 pad3 g2 bf16 nhwc",
    "n3 c2 w300 k2 s65 stride3 pad7:99 dil2 g2 f32",
    "n2 c3 h9 w11 k3 r7 s7 pad3 g3 f32",
    "n1 c2 h20 w23 k2 r5 s9 stride2x3 dil2x1 pad4x5 g2 f16 nchw x=nhwc",
    "n2 c2 d5 h6 w7 k2 t3 r3 s4 stride1x2x1 pad1x0x2 g2 f32",
]


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    monkeypatch.setattr(cases, "GUARD", 128 if request.param == "aligned" else 129)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SHAPES)
def test_shapes(words: str, direction: str, device: Any) -> None:
    problem = convolution(words, direction)
    assert Fft().refuse(problem, device) is None
    run_algorithm(Fft(), make_case(problem, None, 0, None), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n2 c3 h9 w11 k6 r12 s12 pad6 g3 f32",  # several results of a channel
        "n3 c4 w200 k6 s130 pad7 stride2 g2 f32 flip",
        "n1 c5 h12 w13 k3 r12 s11 pad6 bf16 nhwc",
    ],
)
def test_channels_meet(words: str, direction: str, device: Any) -> None:
    problem = convolution(words, direction)
    case = make_case(problem, None, 0, None)
    run_algorithm(Fft(), case, device)
    run_algorithm(FftOfProducts(), case, device, ((1.0, 0.0), (-0.75, 0.5)))
    if FftOfSpectra().refuse(problem, device) is None:
        run_algorithm(FftOfSpectra(), case, device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n1 c2 w700 k2 s500 pad499:0 g2 f32 flip",
        "n2 c2 w700 k4 s333 pad150 dil2 stride2 f32",  # channels meet, too
        "n2 c2 h3 w90 k2 r2 s300 pad0x250 g2 f32",
    ],
)
def test_filters_in_parts(words: str, direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That are longer than a transform."""
    monkeypatch.setattr(plan_module, "POINTS", (256,) if " h3 " not in words else (512,))
    plan_of.cache_clear()
    problem = convolution(words, direction)
    plan = plan_of(problem, device.facts)
    assert plan is not None
    assert plan.parts > 1
    case = make_case(problem, None, 0, None)
    for algorithm in (Fft(), FftOfSpectra()):
        if algorithm.refuse(problem, device) is None:
            run_algorithm(algorithm, case, device, ((1.0, 0.0), (-0.75, 0.5)))
    plan_of.cache_clear()


def test_addresses(alignment: None, device: Any) -> None:
    problem = convolution("n2 c2 w90 k2 s32 pad5 g2 f16", "fwd")
    run_algorithm(Fft(), make_case(problem, None, 0, None), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("points", POINTS)
def test_every_length(points: int, direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of transforms, and of pieces: images are cut, the last piece is a smaller one, an odd one has no other."""
    monkeypatch.setattr(plan_module, "POINTS", (points,))
    plan_of.cache_clear()
    extent = points // 2 * 5
    problem = convolution(f"n1 c3 w{extent} k3 s{points // 2 - 7} pad3 g3 f32", direction)
    plan = plan_of(problem, device.facts)
    if plan is None:
        pytest.skip("too little shared memory")
    assert plan.points == points
    assert plan.pieces > 2
    run_algorithm(Fft(), make_case(problem, None, 0, None), device, ((1.0, 0.0), (-0.75, 0.5)))
    plan_of.cache_clear()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n1 c2 w700 k2 s500 pad499:0 g2 f32 flip",
        "n4 c8 w3000 k6 s500 g2 f32",
        "n8 c16 h32 w32 k16 r11 s11 pad5 g16 f16",
    ],
)
def test_nothing_faster_is_left_out(words: str, direction: str, device: Any) -> None:
    """What is not estimated, since it cannot be the fastest, is not: shares, pieces, and points of transforms."""
    problem, facts = convolution(words, direction), device.facts
    chosen = plan_of(problem, facts)
    assert chosen is not None
    for points, parts, tilings in plan_module._all_tilings(problem, POINTS):
        for shares in (1, 2, 3, 5, 8):
            plan = Plan(problem, tilings, points, shares, parts)
            if plan.shared + plan.root_bytes <= facts.shared_bytes and shares <= plan.pairs:
                assert seconds(chosen, facts) <= seconds(
                    plan, facts
                ) or shares not in plan_module._counts_of_shares(
                    Plan(problem, tilings, points, 1, parts), facts
                )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("counts", [(1, 3), (2, 1), (3, 2)])
def test_pieces_of_images(counts: tuple[int, int], direction: str, device: Any) -> None:
    """Cut along either axis, and shared among units."""
    problem = convolution("n3 c2 h19 w29 k2 r5 s7 pad2x3 g2 f32", direction)
    axes = axes_of(problem)
    tilings = tuple(
        plan_module._tiling([axis], direction == "bwd_data", count)
        for axis, count in zip(axes, counts, strict=True)
    )
    for shares in (1, 2):
        plan = Plan(problem, tilings, 1024, shares)
        algorithm = _Planned(plan)
        run_algorithm(algorithm, make_case(problem, None, 0, None), device, ((1.0, 0.0), (-0.75, 0.5)))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", ["c9 k10", "c18 k4 g2", "c3 k17"])
def test_products_of_pieces_of_images(words: str, direction: str, device: Any) -> None:
    """Tiles of the products that end beyond channels and pieces, of which there is an odd number."""
    channels, *rest = words.split(maxsplit=1)
    k, *groups = rest[0].split()
    problem = convolution(f"n3 {channels} h19 w29 {k} r5 s7 pad2x3 {' '.join(groups)} f32", direction)
    tilings = tuple(
        plan_module._tiling([axis], direction == "bwd_data", count)
        for axis, count in zip(axes_of(problem), (1, 3), strict=True)
    )
    for rounds in (1, 4):
        plan = Plan(problem, tilings, 1024, 1, is_product=True, rounds=rounds)
        assert plan.pieces == 9
        run_algorithm(_Planned(plan), make_case(problem, None, 0, None), device, ((1.0, 0.0), (-0.75, 0.5)))


class _Planned(Fft):
    """With a plan that is given."""

    def __init__(self, plan: Plan) -> None:
        self.given = plan

    def plan(self, problem: Any, device: Any, epilogue: Any) -> Any:
        planned = super().plan(problem, device, epilogue)
        return planned._replace(
            workspace=self.given.workspace, build=lambda: build(self.given, device, epilogue)
        )


@pytest.mark.parametrize("expression", ["activation", "bias", "residual"])
def test_epilogues(expression: str, device: Any) -> None:
    problem = convolution("n2 c3 h9 w11 k3 r7 s7 pad3 g3 f32", "fwd")
    run_algorithm(Fft(), make_case(problem, fused(problem, expression), 0, None), device)


def test_a_filter_takes_no_epilogue(device: Any) -> None:
    problem = convolution("n2 c3 h9 w11 k3 r7 s7 pad3 g3 f32", "bwd_filter")
    epilogue = fused(convolution("n2 c3 h9 w11 k3 r7 s7 pad3 g3 f32", "fwd"), "bias")
    assert "no epilogue" in str(Fft().refuse(problem, device, epilogue))


@st.composite
def long_filters(draw: st.DrawFn, *, are_channels_apart: bool) -> Any:
    rank = draw(st.integers(1, 2))
    taps = [draw(st.integers(6, 12)) for _ in range(2)] if rank == 2 else [draw(st.integers(32, 90))]
    extents = [draw(st.integers(1, 30)) for _ in range(2)] if rank == 2 else [draw(st.integers(1, 200))]
    n, c = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dilation = [draw(st.integers(1, 2)) for _ in taps]
    padding = []
    for extent, tap, dil in zip(extents, taps, dilation, strict=True):
        missing = max(0, (tap - 1) * dil + 1 - extent)
        before = draw(st.integers(0, tap * dil))
        padding.append((before, max(0, missing - before) + draw(st.integers(0, 9))))
    names = ("h", "w") if rank == 2 else ("w",)
    filters = ("r", "s") if rank == 2 else ("s",)
    k, groups = (c, c) if are_channels_apart else (draw(st.integers(1, 9)), 1)
    words = [f"n{n} c{c}", *(f"{a}{e}" for a, e in zip(names, extents, strict=True)), f"k{k}"]
    words += [f"{a}{e}" for a, e in zip(filters, taps, strict=True)]
    words.append("stride" + "x".join(str(draw(st.integers(1, 3))) for _ in taps))
    words.append("pad" + "x".join(f"{b}:{a}" for b, a in padding))
    words.append("dil" + "x".join(map(str, dilation)))
    words += [f"g{groups}", draw(st.sampled_from(["f32", "bf16"])), draw(st.sampled_from(["nchw", "nhwc"]))]
    if draw(st.booleans()):
        words.append("flip")
    return convolution(" ".join(words), draw(st.sampled_from(DIRECTIONS)))


@settings(
    max_examples=examples(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=long_filters(are_channels_apart=True))
def test_any_problem(problem: Any, device: Any) -> None:
    if Fft().refuse(problem, device) is None:
        run_algorithm(Fft(), make_case(problem, None, 0, None), device, ((-0.75, 0.5),))


@settings(
    max_examples=examples(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=long_filters(are_channels_apart=False))
def test_any_problem_by_products(problem: Any, device: Any) -> None:
    if FftOfProducts().refuse(problem, device) is None:
        run_algorithm(FftOfProducts(), make_case(problem, None, 0, None), device, ((-0.75, 0.5),))


DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.random(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * np.exp(4 * rng.standard_normal(shape)),
    "one image is large": lambda rng, shape: (
        rng.standard_normal(shape)
        * np.where(np.arange(shape[0]) == 0, 1e6, 1.0).reshape(-1, *(1,) * (len(shape) - 1))
    ),
    "a wave": lambda rng, shape: np.broadcast_to(np.cos(0.7 * np.arange(shape[-1])), shape),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("points", [256, 4096, 8192])
def test_it_is_as_exact_as_declared(
    points: int, kind: str, direction: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "POINTS", (points,))
    plan_of.cache_clear()
    problem = convolution(f"n3 c4 w{points // 2} k4 s{points // 4} pad{points // 8} g4 f32", direction)
    rng = np.random.default_rng(5)
    inputs = [DATA[kind](rng, operand.descriptor.shape).astype(np.float32) for operand in problem.inputs]
    run_algorithm(Fft(), make_case(problem, None, 0, inputs), device, ((1.0, 0.0),))
    plan_of.cache_clear()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", DATA)
def test_products_are_as_exact_as_declared(kind: str, direction: str, device: Any) -> None:
    # taps that read most products of two numbers: a filter's gradient of few taps is small beside what is transformed
    problem = convolution("n3 c12 h14 w16 k9 r12 s12 pad6 f32", direction)
    rng = np.random.default_rng(5)
    inputs = [DATA[kind](rng, operand.descriptor.shape).astype(np.float32) for operand in problem.inputs]
    run_algorithm(FftOfProducts(), make_case(problem, None, 0, inputs), device, ((1.0, 0.0),))


def test_memory_is_that_of_spectra(device: Any) -> None:
    """One for each share of a filter's gradient and part of the filter, or each part; `fft` needs nothing else."""
    words = "n64 c1 w3000 k1 s500 g1 f32"
    assert Fft().workspace(convolution(words, "fwd"), device) == 0
    assert Fft().workspace(convolution(words, "bwd_data"), device) == 0
    problem = convolution(words, "bwd_filter")
    plan = plan_of(problem, device.facts)
    assert plan is not None
    assert Fft().workspace(problem, device) == (
        8 * plan.points * plan.shares * plan.parts if plan.shares > 1 else 0
    )
    problem = convolution("n4 c8 w3000 k6 s500 g2 f32", "fwd")
    assert Fft().workspace(problem, device) == 0
    plan = plan_of(problem, device.facts, True)
    assert plan is not None
    assert FftOfSpectra().workspace(problem, device) == 8 * plan.points * plan.parts * 6 * 4
    plan = product_plan_of(problem, device.facts)
    assert plan is not None
    pairs = -(-4 * plan.pieces_of_image // 2)
    assert FftOfProducts().workspace(problem, device) == 8 * plan.points * (6 * 4 + pairs * 8 + pairs * 6)


def test_refusals(device: Any) -> None:
    def reason(words: str) -> str:
        return str(Fft().refuse(convolution(words), device))

    assert "31 taps" in reason("conv_fwd n1 c8 w50 k8 s31 g8")
    assert "127 taps: with fewer than 128" in reason("conv_fwd n1 c8 w200 k8 s127 g4")
    assert "f64" in reason("conv_fwd n1 c8 w50 k8 s40 g8 f64")
    assert "i8" in reason("conv_fwd n1 c8 w50 k8 s40 g8 i8")
    assert "nothing" in reason("conv_fwd n0 c8 w50 k8 s40 g8")
    assert "kernel's indices" in reason("conv_fwd n1 c1 w300000000 k1 s40 g1")
    gradient = convolution("conv_bwd_filter n1 c8 w200 k8 s150 g4")
    assert "no filter" in str(FftOfSpectra().refuse(gradient, device))
    assert "31 taps" in str(FftOfSpectra().refuse(convolution("conv_fwd n1 c8 w50 k8 s31 g8"), device))
    depthwise = convolution("conv_fwd n1 c8 h9 w9 k8 r33 s1 pad16x0 g8")
    assert "one channel" in str(FftOfProducts().refuse(depthwise, device))
    assert "48 taps" in str(FftOfProducts().refuse(convolution("conv_fwd n1 c8 w90 k8 s48"), device))
    assert "no result is a sum" in str(FftOfSpectra().refuse(depthwise, device))
    assert "(1, 8001, 8001) points" in reason("conv_fwd n1 c1 d1 h9000 w9000 k1 t1 r9 s9 dil1x1000x1000 g1")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n2 c768 w8191 k768 s4096 g768 f32",
        "n32 c128 h56 w56 k128 r31 s31 pad15 g128 bf16",
        "n8 c64 w16000 k64 s1024 pad512 f32",
        "n4 c64 d9 h36 w36 k64 t5 r5 s5 stride2 dil2 pad2 g64 f16",
    ],
)
def test_compiles(words: str, direction: str, architecture: Any) -> None:
    """For the first and the last architecture with kernels of its own."""
    problem = convolution(words, direction)
    Fft().build(problem, architecture)
    if FftOfSpectra().refuse(problem, architecture) is None:
        FftOfSpectra().build(problem, architecture)
    if FftOfProducts().refuse(problem, architecture) is None:
        FftOfProducts().build(problem, architecture)
    if direction == "fwd":
        Fft().build(problem, architecture, fused(problem, "residual"))


def test_shapes_share_code() -> None:
    device = PaperGpu(FACTS["A100"])
    for words in ("n2 c8 w8191 k8 s4096 g8 f32", "n4 c6 w4097 k6 s4001 pad4000:0 g6 f32 flip"):
        Fft().build(convolution(words, "fwd"), device)
    assert len({source for source, _ in device.made}) == 1
