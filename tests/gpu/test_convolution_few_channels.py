"""Convolutions with few input channels: every direction, staging of rows, phase, and tiling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import cases
from cases import make_case
from convolution_cases import convolution, fused
from examples import examples
from harness import run, run_algorithm
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import (
    FewChannels,
    FewChannelsF32,
    FewChannelsTf32,
    most_channels,
)
from jitdnn.kernels.cuda.convolution.few_channels.code import arguments, launches, source
from jitdnn.kernels.cuda.convolution.few_channels.cost import fprop_plan, fprop_plans
from jitdnn.kernels.cuda.convolution.few_channels.dgrad_cost import dgrad_plan, dgrad_plans
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan, Rows
from jitdnn.kernels.cuda.convolution.few_channels.swapped import swapped
from jitdnn.kernels.cuda.convolution.few_channels.wgrad_cost import wgrad_plan, wgrad_plans
from jitdnn.kernels.cuda.convolution.half_precision.arguments import with_arguments
from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution
from strategies import convolutions
from warpgroup_cases import DATA, normal

PLANS = {"fwd": fprop_plan, "bwd_data": dgrad_plan, "bwd_filter": wgrad_plan}
GENERATORS: Any = {"fwd": fprop_plans, "bwd_data": dgrad_plans, "bwd_filter": wgrad_plans}
ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes

# how rows are staged: (bytes at once, planes of channels), and whether neighbouring outputs begin at odd distances
PROBLEMS = {
    "n2 c3 h20 w24 k16 r7 s7 stride2 pad3 bf16 nhwc": (16, False, 1),
    "n1 c3 h10 w16 k8 r3 s3 stride1 pad1 bf16 nhwc": (16, False, 2),
    "n1 c3 h10 w16 k40 r3 s3 stride1 pad1 f16 nchw": (16, True, 2),
    "n2 c4 h9 w16 k64 r3 s3 stride2 pad0x1 f16 nchw": (16, True, 1),
    "n2 c1 h9 w12 k33 r5 s4 stride2 pad1:2x3 bf16 nhwc": (8, False, 1),
    "n1 c1 d5 h9 w10 k12 t3 r3 s3 stride1 pad1 bf16 nhwc": (4, False, 2),
    "n1 c2 d4 h7 w8 k9 t2 r3 s1 stride2x1x3 pad1 dil2x2x1 f16 nhwc": (16, False, 1),
    "n1 c4 h11 w13 k20 r5 s4 stride3 pad2 bf16 nhwc": (8, False, 1),
    "n1 c3 h9 w11 k16 r3 s3 stride2 pad1 bf16 nhwc": (2, False, 1),  # rows of odd sizes
    "n2 c3 h5 w95 k16 r3 s3 stride2 pad2x1 f16 nhwc": (
        2,
        False,
        1,
    ),  # the same, longer than a warp moves at once
    "n2 c3 h23 w21 k7 r11 s11 stride4 pad2 bf16 nchw": (2, True, 1),
    "n2 c8 h5 w6 k72 r2 s3 stride1 pad1 flip bf16 nhwc": (16, False, 1),
    "n2 c1 w700 k24 s10 stride5 pad0 bf16 nhwc": (8, False, 2),
    "n1 c1 h8 w16 k200 r3 s3 stride1 pad1 bf16 nhwc": (16, False, 2),  # blocks share the output channels
    "n1 c3 h6 w300 k8 r1 s2 stride1 pad0 bf16 nhwc": (8, False, 2),  # rows in pieces
    "n2 c12 h9 w10 k30 r3 s3 stride1 pad1 bf16 nhwc": (16, False, 1),
    "n1 c13 h7 w9 k24 r3 s2 stride2 pad1 f16 nhwc": (2, False, 1),
    "n2 c16 h5 w8 k40 r1 s1 stride1 pad0 bf16 nhwc": (16, False, 1),
}


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    if request.param == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    return str(request.param)


@pytest.mark.parametrize("words", PROBLEMS)
def test_rows(words: str) -> None:
    rows = Rows(Shape(convolution(words, "fwd")), 2, 8)
    assert (rows.x_bytes, rows.is_planar, rows.phases) == PROBLEMS[words]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", PROBLEMS)
def test_directions(words: str, direction: str, alignment: str, cuda_device: Any) -> None:
    problem = convolution(words, direction)
    reason = FewChannels().refuse(problem, cuda_device)
    if direction == "bwd_data" and max(problem.dilation) > 1:
        assert reason
        assert "dilation" in reason
        return
    assert reason is None
    run_algorithm(FewChannels(), make_case(problem, None, 0, None), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_filter"])
@pytest.mark.parametrize("strides", ["144,0,16,1", "0,0,0,1", "160,1,16,1", "176,-1,16,1"])
def test_channels_that_overlap(strides: str, direction: str, alignment: str, cuda_device: Any) -> None:
    """Channels that are views of one, or of columns beside it: neither planes nor interleaved."""
    problem = convolution(f"n2 c3 h9 w16 k16 r3 s3 stride1 pad1 bf16 nchw x=s{strides}", direction)
    run_algorithm(FewChannels(), make_case(problem), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", [*PROBLEMS, "n32 c3 h224 w224 k64 r7 s7 stride2 pad3 bf16 nhwc"])
def test_nothing_faster_is_left_out(words: str, direction: str, cuda_device: Any) -> None:
    """What is not estimated, since it cannot be the fastest, is not."""
    problem = convolution(words, direction)
    if FewChannels().refuse(problem, cuda_device) is None:
        fastest = min(GENERATORS[direction](problem, cuda_device.facts), key=lambda plan: plan.seconds)
        assert PLANS[direction](problem, cuda_device) == fastest


def chosen(family: type[FewChannels], plan: Plan) -> FewChannels:
    """An algorithm with a plan of our choice."""

    class WithPlan(family):  # type: ignore[misc, valid-type]
        def sizes(self, problem: Convolution, device: Any) -> Plan:
            return plan

    return WithPlan()


# results whose rows, or the channels of whose outputs, begin inside of sectors of memory: tiles of all sizes, channels
# and columns that end inside of one
STAGED = [
    "n2 c1 w700 k24 s10 stride5 f32 nchw",
    "n1 c3 h9 w11 k33 r3 s3 pad1 bf16 nchw",
    "n2 c2 d3 h6 w9 k72 t1 r3 s3 pad1 f16 nchw",
    "n1 c1 h20 w75 k12 r3 s3 f32 nchw",
    "n1 c2 d4 h5 w9 k89 t2 r2 s2 bf16 nhwc",
    "n2 c3 h9 w11 k46 r3 s3 stride2 pad1 f16 nhwc",
    "n1 c1 h20 w19 k13 r3 s3 f32 nhwc",
    "n1 c4 h7 w9 k17 r3 s3 pad1 bf16 nhwc y=s1339,1,175,19",  # outputs that do not follow each other
]


@pytest.mark.parametrize("words", STAGED)
def test_staged_results(words: str, cuda_device: Any) -> None:
    problem = convolution(words, "fwd")
    plans = sorted(
        fprop_plans(problem, cuda_device.facts, 3 if " f32" in words else 1), key=lambda plan: plan.seconds
    )
    assert all(dict(plan.defines)["STAGES_RESULTS"] for plan in plans)
    algorithm = FewChannelsF32() if " f32" in words else FewChannels()
    for case in (make_case(problem, None, 0, None), make_case(problem, fused(problem, "bias"), 0, None)):
        run_algorithm(algorithm, case, cuda_device)
    for tile in {(dict(p.defines)["TILE_M"], dict(p.defines)["TILE_N"]): p for p in plans[:40]}.values():
        run_algorithm(
            chosen(type(algorithm), tile), make_case(problem, None, 0, None), cuda_device, ((1.0, 0.0),)
        )


# last layers, of many channels to a few: x and y swapped they are first ones
LAST = [
    "n2 c20 h9 w14 k3 r3 s3 pad1 bf16 nhwc",
    "n1 c33 h8 w10 k4 r3 s5 pad0x2:1 f16",
    "n1 c16 d4 h5 w6 k2 t3 r3 s3 pad1 flip bf16 nhwc",
    "n2 c40 w95 k1 s7 pad3 f16 nhwc",
    "n3 c12 h7 w9 k8 r1 s1 bf16 nhwc",
    "n1 c10 h12 w11 k5 r2 s3 pad1x2 f16",
    "n2 c28 h9 w8 k12 r3 s3 pad1 bf16 nhwc",
    "n1 c17 h6 w9 k15 r1 s3 pad0x1 f16 nhwc",
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", LAST)
def test_swapped_is_the_same(words: str, direction: str) -> None:
    problem, rng = convolution(words, direction), np.random.default_rng(7)
    other = swapped(problem)
    assert other is not None
    assert swapped(other) == problem
    first, second = (rng.standard_normal(one.descriptor.shape) for one in problem.inputs)
    expected = problem.reference(first, second)
    if direction == "bwd_filter":
        actual = other.reference(second, first).swapaxes(0, 1)
    else:
        actual = other.reference(first, second.swapaxes(0, 1))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "words",
    ["n1 c20 h9 w9 k3 r3 s3 stride2 pad1", "n1 c20 h9 w9 k3 r3 s1 pad1", "n1 c20 h9 w9 k4 r3 s3 pad1 g2"],
)
def test_what_is_not_swapped(words: str, cuda_device: Any) -> None:
    problem = convolution(f"{words} bf16 nhwc", "fwd")
    assert swapped(problem) is None
    assert FewChannels().refuse(problem, cuda_device) is not None


@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_data n2 c3 h23 w21 k7 r4 s4 stride2 pad1 bf16 nchw",
        "conv_bwd_data n1 c2 d4 h5 w6 k9 t3 r3 s3 pad1 f16 nchw",
        "conv_fwd n2 c20 h9 w14 k3 r3 s3 pad1 bf16 nchw",
        "conv_fwd n1 c10 w30 k5 s3 pad2 f16 nchw",
    ],
)
def test_copied_to_channels_last(words: str, cuda_device: Any) -> None:
    """In front of the kernel, with all that it takes."""
    for own, inner in (
        (words, FewChannels()),
        (f32_of(words), FewChannelsF32()),
        (f32_of(words), FewChannelsTf32()),
    ):
        problem = convolution(own)
        algorithm = next(one for one in algorithms(problem, "cuda") if one.name == f"{inner.name}_copied")
        assert algorithm.error_bound(problem) == inner.error_bound(problem)
        assert algorithm.arithmetic(problem) == inner.arithmetic(problem)
        epilogue = fused(problem, "bias")
        for case in (make_case(problem, None, 0, None), make_case(problem, epilogue, 0, None)):
            assert algorithm.refuse(problem, cuda_device, case.epilogue) is None
            run_algorithm(algorithm, case, cuda_device)


def test_what_is_not_copied(cuda_device: Any) -> None:
    for words, reason in (
        ("conv_fwd n2 c3 h9 w9 k20 r3 s3 pad1 bf16 nchw", "data gradients"),
        ("conv_bwd_data n2 c3 h9 w9 k20 r3 s3 pad1 bf16 nhwc", "neighbours already"),
        ("conv_bwd_data n2 c9 h9 w9 k20 r3 s3 pad1 bf16 nchw", "data gradients"),
    ):
        problem = convolution(words)
        algorithm = next(one for one in algorithms(problem, "cuda") if one.name == "stem_copied")
        refused = algorithm.refuse(problem, cuda_device)
        assert refused is not None
        assert reason in refused or "at most 8" in refused


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", LAST)
def test_few_output_channels(words: str, direction: str, alignment: str, cuda_device: Any) -> None:
    problem, of_f32 = convolution(words, direction), convolution(f32_of(words), direction)
    for own, algorithm in ((problem, FewChannels()), (of_f32, FewChannelsF32()), (of_f32, FewChannelsTf32())):
        if own is of_f32 and own.k > 8:
            assert "at most 8" in str(algorithm.refuse(own, cuda_device))
            continue
        assert algorithm.refuse(own, cuda_device) is None
        run_algorithm(algorithm, make_case(own, None, 0, None), cuda_device)


def f32_of(words: str) -> str:
    """The same convolution of f32."""
    return words.replace("bf16", "f32").replace("f16", "f32")


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", [words for words in PROBLEMS if convolution(words, "fwd").c <= 8])
def test_directions_of_f32(words: str, direction: str, alignment: str, cuda_device: Any) -> None:
    problem = convolution(f32_of(words), direction)
    for algorithm in (FewChannelsF32(), FewChannelsTf32()):
        if direction == "bwd_data" and max(problem.dilation) > 1:
            assert "dilation" in str(algorithm.refuse(problem, cuda_device))
            continue
        assert algorithm.refuse(problem, cuda_device) is None
        run_algorithm(algorithm, make_case(problem, None, 0, None), cuda_device)


F32 = [
    "n2 c3 h11 w9 k12 r3 s3 stride2 pad1 f32 nhwc",
    "n1 c2 h9 w12 k8 r3 s5 pad1x2 f32 flip",
    "n1 c12 h9 w16 k3 r3 s3 pad1 f32 nhwc",
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("kind", DATA)
def test_f32_is_as_exact_as_declared(kind: str, direction: str, cuda_device: Any) -> None:
    """The error bound holds whatever the range of the numbers is; results below 2^-126 are right to 2^-138."""
    problem, rng = convolution(F32[0], direction), np.random.default_rng(7)
    other = (
        normal if kind in ("tiny", "subnormal", "huge") else DATA[kind]
    )  # products are to be numbers of f32
    inputs = [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[kind], other), problem.inputs, strict=True)
    ]
    algorithm, case = FewChannelsF32(), make_case(problem, None, 0, inputs)
    if kind not in ("both tiny", "subnormal"):
        run_algorithm(algorithm, case, cuda_device, ((1.0, 0.0),))
        return
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, case, room)
    expected = problem.reference(*(one.astype(np.float64) for one in inputs))
    assert 2.0**-138 < np.abs(expected).max() < 2.0**-120
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2.0**-138)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("words", F32)
def test_f32_that_is_not_finite(words: str, value: float, direction: str, cuda_device: Any) -> None:
    """Infinities and NaN give what they give in f32 where they are read, also beside numbers that tf32 rounds."""
    problem, rng = convolution(words, direction), np.random.default_rng(7)
    inputs = [rng.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.inputs]
    inputs[0].reshape(-1)[5] = value
    inputs[1].reshape(-1)[:3] = 0.5  # whose rest is zero, and zero times infinity is no number
    algorithm = FewChannelsF32()
    kernel, room = algorithm.build(problem, cuda_device), algorithm.workspace(problem, cuda_device)
    (actual,) = run(cuda_device, kernel, make_case(problem, None, 0, inputs), room)
    with np.errstate(invalid="ignore"):
        expected = problem.reference(*(one.astype(np.float64) for one in inputs))
    is_read = ~np.isfinite(expected)
    assert is_read.any()
    np.testing.assert_array_equal(actual[is_read], expected[is_read])
    if algorithm.spreads(problem, cuda_device) is None:
        np.testing.assert_allclose(actual[~is_read], expected[~is_read], rtol=1e-5, atol=1e-5)


@st.composite
def few_channels(draw: st.DrawFn) -> Convolution:
    """Convolutions with few channels, of any strides and dtypes of half precision."""
    problem = draw(convolutions(channels=(1, 2, 3, 4, 7, 12, 17)))
    assume(problem.dtype in ("bf16", "f16") and problem.groups == 1 and problem.c <= most_channels(problem))
    assume(0 not in problem.x.shape and 0 not in problem.y.shape)
    return problem


@given(problem=few_channels())
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_any(problem: Convolution, cuda_device: Any) -> None:
    reason = FewChannels().refuse(problem, cuda_device)
    if reason is not None:  # a unit of a strided gradient has all phases of its stride
        is_large = problem.direction == "bwd_data" and math.prod(problem.stride) * problem.c > 64
        assert max(problem.dilation) > 1 or (is_large and "fit together" in reason)
        return
    run_algorithm(FewChannels(), make_case(problem, None, 0, None), cuda_device)


# what the cheapest plans of small problems never have
FEATURES = {
    "fwd": [
        {"STAGES": 1}, {"TILE_M": 3}, {"TILE_N": 2}, {"COLUMN_GROUPS": 2}, {"BLOCK_P": 3}, {"IS_PACKED": 1},
        {"CHANNEL_BLOCKS": 2},
    ],
    "bwd_filter": [{"STAGES": 1}, {"TILE_M": 1}, {"WORD_GROUPS": 2}, {"CHANNEL_GROUPS": 2}, {"BLOCK_THREADS": 512}],
    "bwd_data": [
        {"STAGES": 1, "TILE_PLANES": 2}, {"TILE_PLANES": 3, "TILE_ROWS": 2}, {"STEP_H": 2, "STEP_W": 2},
        {"STEP_W": 4}, {"STEP_H": 4}, {"CHANNEL_CHUNKS": 2, "TILE_PLANES": 2}, {"WARPS_ACROSS": 2, "STEP_W": 2},
        {"SPLIT_K_WARPS": 2}, {"SPLIT_K_WARPS": 4, "CHANNEL_CHUNKS": 2}, {"SPLIT_K_WARPS": 4},
        {"IS_STREAMED": 1}, {"IS_PACKED": 0}, {"IS_PACKED": 1},
    ],
}  # fmt: skip


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize(
    "words",
    [
        "n1 c3 d5 h18 w38 k72 t3 r3 s3 stride1 pad1 bf16 nhwc",
        "n2 c1 d6 h17 w40 k40 t3 r5 s5 stride2 pad2 f16 nhwc",
    ],
)
def test_other_plans(words: str, direction: str, cuda_device: Any) -> None:
    problem = convolution(words, direction)
    plans = sorted(GENERATORS[direction](problem, cuda_device.facts), key=lambda plan: plan.seconds)
    case = make_case(problem, None, 0, None)
    ran = 0
    for feature in FEATURES[direction]:
        found = [plan for plan in plans if feature.items() <= dict(plan.defines).items()]
        for plan in found[:1]:
            run_algorithm(chosen(FewChannels, plan), case, cuda_device, ((1.0, 0.0),))
            ran += 1
    assert ran >= 2


REFUSED = {
    "n1 c3 h8 w8 k8 r3 s3 stride1 pad1 f32 nhwc": "bf16 and f16",
    "n1 c17 h8 w8 k17 r3 s3 stride1 pad1 bf16 nhwc": "at most 16",
    "n1 c9 h8 w8 k9 r3 s3 stride1 pad1 bf16 nchw": "at most 8",
    "n1 c4 h8 w8 k8 r3 s3 stride1 pad1 g2 bf16 nhwc": "one group",
    "n0 c3 h8 w8 k8 r3 s3 stride1 pad1 bf16 nhwc": "empty",
    "n1 c3 h8 w8 k8 r3 s3 stride1 pad2 dil2 bf16 nhwc": "dilation",
    "n1 c8 h192 w192 k768 r96 s96 stride96 pad0 bf16 nhwc": "fit",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, cuda_device: Any) -> None:
    for direction in ("fwd", "bwd_filter"):
        reason = FewChannels().refuse(convolution(words, direction), cuda_device)
        assert reason is not None
        assert REFUSED[words] in reason


EPILOGUES = ("activation", "bias", "residual")


@pytest.mark.parametrize("expression", EPILOGUES)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_epilogues(direction: str, expression: str, cuda_device: Any) -> None:
    for words in (*list(PROBLEMS)[:3], *LAST[:2]):
        problem = convolution(words, direction)
        epilogue = fused(problem, expression)
        assert FewChannels().refuse(problem, cuda_device, epilogue) is None
        run_algorithm(FewChannels(), make_case(problem, epilogue, 0, None), cuda_device)


LAYERS = """
n256 c3 h224 w224 k64 r7 s7 stride2 pad3 bf16 nhwc
n256 c3 h227 w227 k96 r11 s11 stride4 pad0 bf16 nhwc
n64 c3 h224 w224 k32 r3 s3 stride2 pad1 f16 nchw
n16 c3 d16 h112 w112 k64 t3 r7 s7 stride1x2x2 pad1x3x3 bf16 nhwc
n2 c1 d128 h128 w128 k32 t3 r3 s3 stride1 pad1 bf16 nhwc
""".strip().splitlines()


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", LAYERS)
def test_first_layers_compile(words: str, direction: str, architecture: Any) -> None:
    for problem, count in ((convolution(words, direction), 1), (convolution(f32_of(words), direction), 3)):
        plan = PLANS[direction](problem, architecture, count)
        code, numbers = with_arguments(source(problem, plan), arguments(plan))
        architecture.kernel(code, launches(problem, plan), 3, numbers)
