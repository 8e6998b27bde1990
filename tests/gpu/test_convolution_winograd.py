"""Winograd's minimal filtering on GPUs: sizes that hurt, orders in memory, epilogues, errors against their bounds."""

from __future__ import annotations

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
from jitdnn.kernels.cuda.convolution.winograd.algorithm import (
    Winograd2Halves,
    Winograd4Halves,
    WinogradWgrad2Halves,
    WinogradWgrad4Halves,
)
from jitdnn.kernels.gpu.convolution.winograd import code
from jitdnn.kernels.gpu.convolution.winograd.algorithm import (
    Product,
    Winograd2,
    Winograd4,
    WinogradAlgorithm,
    WinogradWgrad2,
    WinogradWgrad4,
)
from jitdnn.kernels.gpu.convolution.winograd.code import kernels
from jitdnn.kernels.gpu.convolution.winograd.plan import STAGED_CHANNELS, matrices, plan_of
from paper_gpus import FACTS, PaperGpu
from strategies import convolutions
from warpgroup_cases import DATA, normal

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
PLAIN: tuple[WinogradAlgorithm, ...] = (Winograd4(), Winograd2(), WinogradWgrad4(), WinogradWgrad2())
HALVES: tuple[WinogradAlgorithm, ...] = (
    Winograd4Halves(),
    Winograd2Halves(),
    WinogradWgrad4Halves(),
    WinogradWgrad2Halves(),
)

# each with both sizes of tiles
SHAPES = [
    ("n2 c4 h9 w11 k6 r3 s3 pad1 f32 nhwc", "fwd"),
    ("n2 c4 h9 w11 k6 r3 s3 pad1 f32 nhwc", "bwd_filter"),
    ("n1 c3 h7 w8 k5 r3 s3 f32 nchw", "fwd"),
    ("n1 c3 h7 w8 k5 r3 s3 f32 nchw", "bwd_data"),
    ("n2 c6 h9 w10 k4 r3 s3 pad2x1 dil2 g2 f32 nhwc", "bwd_data"),  # tiles of every second result
    ("n2 c6 h9 w10 k4 r3 s3 pad2x1 dil2 g2 f32 nhwc", "bwd_filter"),
    ("n1 c4 h8 w9 k4 r5 s5 pad2 f32 nchw", "bwd_filter"),
    ("n3 c2 h5 w6 k2 r1 s3 pad0:2x4:1 f32 flip", "fwd"),  # results that read nothing but padding
    ("n2 c3 w13 k4 s3 pad1 f32", "bwd_data"),
    ("n1 c4 h1 w1 k4 r3 s3 pad1 f32 nhwc", "fwd"),
    ("n1 c8 h6 w7 k4 r3 s2 pad1 bf16 nchw x=nhwc", "fwd"),
    ("n1 c5 h6 w7 k4 r2 s4 pad1 f64", "bwd_filter"),
    ("n2 c35 h6 w61 k34 r3 s3 pad1 f32 nchw", "fwd"),  # several thread blocks along a row, and of channels
    ("n3 c33 h5 w8 k35 r3 s3 pad1 f32 nchw", "bwd_data"),  # several rows of tiles in one, over images
    ("n7 c5 h4 w3 k3 r3 s3 pad1 f32 nchw", "fwd"),  # as many rows of one tile as shared memory holds
    ("n2 c34 h5 w30 k33 r3 s3 pad1 f16 nchw", "bwd_filter"),
    ("n1 c17 h7 w8 k18 r3 s2 pad1 f32 nchw flip", "bwd_filter"),  # a plain filter, from its last tap on
]


def of(direction: str, listed: tuple[WinogradAlgorithm, ...]) -> list[WinogradAlgorithm]:
    return [one for one in listed if direction in one.directions]


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    monkeypatch.setattr(cases, "GUARD", 128 if request.param == "aligned" else 129)


@pytest.mark.parametrize(("words", "direction"), SHAPES)
def test_shapes(words: str, direction: str, device: Any) -> None:
    problem = convolution(words, direction)
    for algorithm in of(direction, PLAIN):
        assert algorithm.refuse(problem, device) is None
        run_algorithm(algorithm, make_case(problem, None, 0, None), device)


@pytest.mark.parametrize("taps", range(2, 6))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_device_holds_what_is_staged(direction: str, taps: int) -> None:
    """32 KiB are all that OpenCL promises."""
    for extent in range(1, 33):
        words = f"n9 c5 h{extent} w{extent} k3 r{taps} s{taps} pad{taps // 2} f32 nchw"
        for max_m in (2, 4):
            plan = plan_of(convolution(words, direction), max_m)
            (down, along), staging = plan.axes, plan.staging
            columns = (staging.tiles - 1) * along.m + along.alpha
            assert staging.rows * down.alpha * columns * (STAGED_CHANNELS + 1) * plan.item <= 32 << 10


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n2 c8 h9 w11 k16 r3 s3 pad1 f32 nhwc",
        "n1 c3 h7 w8 k5 r3 s3 f32 nchw",
        "n2 c32 h9 w10 k64 r3 s3 pad2x1 dil2 g2 f32 nhwc",
        "n1 c66 h13 w6 k70 r5 s3 pad1 f32 nhwc flip",
    ],
)
def test_halves(words: str, direction: str, hopper: Any, alignment: None) -> None:
    problem = convolution(words, direction)
    algorithm = of(direction, HALVES)[0]
    assert algorithm.refuse(problem, hopper) is None
    run_algorithm(algorithm, make_case(problem, None, 0, None), hopper, ((1.0, 0.0), (-0.75, 0.5)))


@pytest.mark.parametrize("expression", ["activation", "bias", "residual"])
def test_epilogues(expression: str, device: Any) -> None:
    problem = convolution("n2 c4 h9 w11 k6 r3 s3 pad1 f32 nhwc", "fwd")
    run_algorithm(Winograd4(), make_case(problem, fused(problem, expression), 0, None), device)


def test_epilogue_of_halves(hopper: Any) -> None:
    problem = convolution("n2 c8 h9 w11 k16 r3 s3 pad1 f32 nhwc", "fwd")
    run_algorithm(Winograd4Halves(), make_case(problem, fused(problem, "residual"), 0, None), hopper)


def test_a_filter_takes_no_epilogue(device: Any) -> None:
    problem = convolution("n2 c4 h9 w11 k6 r3 s3 pad1 f32 nhwc", "bwd_filter")
    epilogue = fused(convolution("n2 c4 h9 w11 k6 r3 s3 pad1 f32 nhwc", "fwd"), "bias")
    assert "no epilogue" in str(WinogradWgrad4().refuse(problem, device, epilogue))


@settings(
    max_examples=examples(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_problem(data: st.DataObject, device: Any) -> None:
    problem = data.draw(convolutions())
    case = None
    for algorithm in PLAIN:
        if algorithm.refuse(problem, device) is None:
            case = case or make_case(problem, None, 0, None)
            run_algorithm(algorithm, case, device, ((-0.75, 0.5),))


def inputs_of(problem: Any, kind: str, seed: int = 7) -> list[Any]:
    rng = np.random.default_rng(seed)
    # products are to be numbers of f32
    other = normal if kind in ("tiny", "subnormal", "huge") else DATA[kind]
    return [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[kind], other), problem.inputs, strict=True)
    ]


EXACT = "n2 c40 h14 w13 k24 r3 s3 pad1 f32 nhwc"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", [kind for kind in DATA if kind not in ("both tiny", "subnormal", "tiny")])
def test_it_is_as_exact_as_declared(kind: str, direction: str, device: Any) -> None:
    problem = convolution(EXACT, direction)
    case = make_case(problem, None, 0, inputs_of(problem, kind))
    for algorithm in of(direction, PLAIN):
        run_algorithm(algorithm, case, device, ((1.0, 0.0),))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", [kind for kind in DATA if kind not in ("both tiny", "subnormal")])
def test_halves_are_as_exact_as_declared(kind: str, direction: str, hopper: Any) -> None:
    problem = convolution(EXACT, direction)
    case = make_case(problem, None, 0, inputs_of(problem, kind))
    for algorithm in of(direction, HALVES):
        run_algorithm(algorithm, case, hopper, ((1.0, 0.0),))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("side", [0, 1])
def test_a_scale_that_was_guessed_wrong(
    side: int, direction: str, hopper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples miss the only large number of an operand; and all that are not zero."""
    monkeypatch.setattr(code, "SAMPLES", 256)
    problem = convolution(EXACT, direction)
    for rest in (1.0, 0.0):
        inputs = inputs_of(problem, "normal")
        inputs[side] *= np.float32(rest)
        inputs[side][1, 7, 1, 2] = 1e5
        case = make_case(problem, None, 0, inputs)
        run_algorithm(of(direction, HALVES)[0], case, hopper, ((1.0, 0.0),))


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (3, 4), (2, 5), (3, 2)])
def test_transforms_make_nothing_larger(m: int, r: int) -> None:
    """What is multiplied as halves is no larger than the largest element, and more than a quarter of it may be."""
    made = matrices(m, r)
    for matrix in (made.data, made.other):
        assert all(0.5 < sum(map(abs, row)) <= 1 for row in matrix)


def test_memory_follows_the_batch(device: Any) -> None:
    """So that the planner may divide a problem where the workspace is limited."""
    one, four = (convolution(f"n{n} c64 h28 w28 k64 r3 s3 pad1 f32 nhwc", "fwd") for n in (1, 4))
    rooms = [Winograd4().workspace(problem, device) for problem in (one, four)]
    assert 2 * rooms[0] < rooms[1] < 4 * rooms[0]


def test_refusals(device: Any) -> None:
    def reason(words: str, algorithm: WinogradAlgorithm = PLAIN[0]) -> str:
        return str(algorithm.refuse(convolution(words), device))

    assert "bwd_filter" in reason("conv_bwd_filter n1 c8 h5 w5 k8 r3 s3")
    assert "fwd" in reason("conv_fwd n1 c8 h5 w5 k8 r3 s3", WinogradWgrad4())
    assert "(2, 1)" in reason("conv_fwd n1 c8 h5 w5 k8 r3 s3 stride2x1")
    assert "single tap" in reason("conv_fwd n1 c8 h5 w5 k8 r1 s1")
    assert "at most 5" in reason("conv_fwd n1 c8 h9 w9 k8 r6 s3")
    assert "one or two axes" in reason("conv_fwd n1 c8 d5 h5 w5 k8 t3 r3 s3")
    assert "i8" in reason("conv_fwd n1 c8 h5 w5 k8 r3 s3 i8")
    assert "nothing" in reason("conv_fwd n0 c8 h5 w5 k8 r3 s3")
    assert "kernel's indices" in reason("conv_fwd n1 c8 h1 w300000000 k8 r1 s3")
    # as many tiles along each axis as the dilation
    assert "numbers: a tensor has at most" in reason(
        "conv_bwd_data n2 c3 h1 w69994 k1024 r3 s3 pad140000x70000:7 dil70000 f32"
    )


def test_refusals_of_halves(architecture: Any) -> None:
    reason = Winograd4Halves().refuse(convolution("conv_fwd n1 c8 h5 w5 k8 r3 s3 f32"), architecture)
    assert (reason is None) == (architecture.arch == "sm_90a")
    of_f16 = Winograd4Halves().refuse(convolution("conv_fwd n1 c8 h5 w5 k8 r3 s3 f16"), architecture)
    assert "f16" in str(of_f16)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    """Without spilling registers."""
    problem = convolution("n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc", direction)
    for algorithm in of(direction, (*PLAIN, *HALVES)):
        if algorithm.refuse(problem, architecture) is None:
            plan = plan_of(problem, algorithm.max_m)
            product = algorithm.product(plan, architecture)
            assert isinstance(product, Product)
            kernels(
                plan, product.places, architecture, None, product.workspace
            )  # products: test_convolution_warpgroup.py
            if algorithm.name.startswith("winograd_4") and direction == "fwd":
                kernels(plan, product.places, architecture, fused(problem, "residual"), product.workspace)


def test_shapes_share_code() -> None:
    device = PaperGpu(FACTS["A100"])
    for words in ("n64 c128 h28 w28 k256 r3 s3 pad1 f32 nhwc", "n2 c8 h9 w7 k4 r3 s3 pad2 dil2 g2 f32 nchw"):
        Winograd4().build(convolution(words, "fwd"), device)
    texts = {source for source, _ in device.made if source.name == "winograd"}
    assert len(texts) == 1
