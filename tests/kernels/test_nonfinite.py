"""A NaN or an infinity reaches every result that reads it, and no other, but for algorithms that say so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from conformance import INSTRUCTION_SETS, accepting
from convolution_cases import convolution
from examples import examples
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.problems import Convolution
from nonfinite import runner, spread_of
from paths import ROOT
from strategies import convolutions

PROBLEMS = """
conv_fwd n2 c5 h9 w7 k6 r3 s3 pad1 f32 nchw
conv_fwd n2 c16 h12 w12 k32 r3 s3 pad1 f32 nhwc
conv_fwd n1 c7 h11 w12 k5 r3 s3 pad1 stride2 f64 nchw
conv_fwd n2 c6 h9 w7 k9 r3 s2 stride2x1 pad1 dil2x1 g3 flip f32 nhwc
conv_fwd n2 c8 h9 w7 k8 r3 s3 pad1:0x2 g8 f32 nhwc
conv_fwd n2 c8 h9 w7 k8 r3 s3 pad1 g8 bf16 nchw
conv_fwd n2 c33 h5 w4 k17 r1 s1 stride2 f32 nchw
conv_fwd n1 c3 h21 w21 k8 r7 s7 stride2 pad3 f32 nchw
conv_fwd n1 c3 h17 w13 k4 r5 s5 pad2 f32 nhwc
conv_fwd n1 c2 h16 w16 k3 r9 s9 pad4 f32 nchw
conv_fwd n1 c4 d5 h6 w7 k8 t3 r3 s3 pad1 f32 nchw
conv_fwd n2 c64 w37 k64 s3 pad1 g2 f16 nwc
conv_bwd_data n2 c5 h9 w7 k6 r3 s3 pad1 f32 nchw
conv_bwd_data n2 c5 h9 w7 k6 r3 s3 stride2 pad1 f32 nhwc
conv_bwd_data n2 c6 h9 w11 k9 r3 s2 stride2x3 pad1 dil2x1 g3 flip f32 nchw
conv_bwd_data n2 c6 h9 w11 k6 r3 s3 stride2 pad1 g6 f32 nhwc
conv_bwd_data n2 c16 h9 w11 k16 r3 s3 pad1 g4 f32 nhwc
conv_bwd_data n1 c3 h16 w16 k4 r8 s9 pad4 f64 nchw
conv_bwd_data n1 c40 h13 w12 k36 r1 s1 stride2 f32 nchw
conv_bwd_filter n2 c5 h9 w7 k6 r3 s3 pad1 f32 nchw
conv_bwd_filter n2 c16 h13 w11 k16 r2 s2 f32 nhwc
conv_bwd_filter n2 c5 h9 w7 k6 r3 s3 stride2 pad1 dil1x2 f32 nhwc
conv_bwd_filter n2 c6 h9 w7 k6 r3 s3 g6 f32 nhwc
conv_bwd_filter n2 c12 h9 w7 k6 r3 s3 pad1 g6 f32 nchw
conv_bwd_filter n2 c8 h9 w7 k16 r3 s3 pad1 g4 bf16 nhwc
conv_bwd_filter n1 c3 h16 w16 k4 r8 s9 pad4 f64 nchw
conv_bwd_filter n2 c20 h13 w12 k36 r2 s2 stride3 f32 nhwc
""".strip().splitlines()

# an algorithm that says that it spreads, and where it is seen to
SPREADING = {
    ("winograd_4", "fwd"): "n1 c16 h12 w12 k32 r5 s5 pad2 f32 nhwc",
    ("winograd_4", "bwd_data"): "n1 c16 h12 w12 k32 r5 s5 pad2 f32 nhwc",
    ("winograd_2", "fwd"): "n1 c16 h12 w12 k32 r3 s3 pad1 stride2 f32 nchw",
    ("winograd_2", "bwd_data"): "n1 c3 h15 w13 k4 r7 s7 pad3 f32 nhwc",
    ("winograd_filter", "bwd_filter"): "n2 c16 h12 w12 k16 r3 s3 pad1 f32 nhwc",
    ("fft", "fwd"): "n1 c2 h16 w16 k3 r9 s9 pad4 f32 nchw",
    ("fft", "bwd_data"): "n1 c2 h16 w16 k3 r9 s9 pad4 f32 nchw",
    ("fft", "bwd_filter"): "n1 c2 h16 w16 k3 r9 s9 pad4 f32 nchw",
}


DIRECTIONS_OF = {  # as the table of docs/nonfinite.md says them
    "forward, data": ("fwd", "bwd_data"),
    "filter": ("bwd_filter",),
    "all": ("fwd", "bwd_data", "bwd_filter"),
}


def variants(problem: Convolution, device: CpuDevice) -> Iterator[Algorithm]:
    """All algorithms that take a problem, and what they are for callers that keep the filter."""
    for algorithm in accepting(problem, device):
        yield algorithm
        kept = algorithm.with_kept_filter()
        if kept is not None:
            yield kept


def is_spread(algorithm: Algorithm, problem: Convolution, device: CpuDevice, count: int = 8) -> bool:
    kernel = algorithm.build(problem, device)
    return spread_of(problem, runner(kernel, algorithm.workspace(problem, device)), count)


def check(problem: Convolution, device: CpuDevice, count: int = 8) -> None:
    for algorithm in variants(problem, device):
        said = algorithm.spreads(problem, device)
        seen = is_spread(algorithm, problem, device, count)
        assert said is not None or not seen, f"{algorithm.name} spreads, {device.isa.name}, {problem}"


@pytest.mark.parametrize("text", PROBLEMS)
def test_it_reaches_what_reads_it(text: str) -> None:
    check(convolution(text), host(1), 16)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("text", [PROBLEMS[i] for i in (3, 8, 16, 24)])
def test_on_every_instruction_set(text: str, cpu: str) -> None:
    check(convolution(text), host(1, cpu))


@given(convolutions())
@settings(max_examples=examples(15))
def test_any_convolution(problem: Convolution) -> None:
    tensors = [operand.descriptor for operand in problem.operands]
    if not problem.is_integer and not any(0 in d.shape or d.is_overlapping() for d in tensors):
        check(problem, host(1), 4)


@pytest.mark.parametrize(("name", "direction"), SPREADING)
def test_who_says_that_it_spreads_does(name: str, direction: str) -> None:
    problem, device = convolution(SPREADING[name, direction], direction), host(1)
    taking = {algorithm.name: algorithm for algorithm in accepting(problem, device)}
    if name == "fft" and name not in taking:
        pytest.skip("SciPy is not installed")
    assert taking[name].spreads(problem, device)
    assert is_spread(taking[name], problem, device, 40)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_all_that_spread_are_listed(direction: str) -> None:
    device = host(1)
    problems = [convolution(text) for text in PROBLEMS if f"_{direction} " in text]
    problems += [convolution(words, d) for (_, d), words in SPREADING.items() if d == direction]
    found = {
        algorithm.name
        for problem in problems
        for algorithm in accepting(problem, device)
        if algorithm.spreads(problem, device)
    }
    assert found <= {name for name, d in SPREADING if d == direction}
    listed = {algorithm.name for algorithm in algorithms(problems[0], "cpu")}
    assert {name for name, d in SPREADING if d == direction} <= listed


def test_two_results_of_three_taps_are_exact() -> None:
    """F(2, 3) keeps each datum to the results that read it, so strict accuracy may take it."""
    problem, device = convolution("conv_fwd n1 c16 h12 w12 k32 r3 s3 pad1 f32 nhwc"), host(1)
    winograd = next(a for a in accepting(problem, device) if a.name == "winograd_2")
    assert winograd.spreads(problem, device) is None


WINOGRAD = "conv_fwd n1 c16 h12 w12 k32 r5 s5 pad2 f32 nhwc"


def test_explain_says_so() -> None:
    problem = convolution(WINOGRAD)
    text = get(problem, host(1), Request(algorithm="winograd_4")).explain()
    assert "a NaN or an infinity in an input may reach the other results of a tile" in text
    assert "JITDNN_ACCURACY=strict" in text
    assert "NaN" not in get(problem, host(1), Request(algorithm="implicit_gemm")).explain()


@pytest.mark.parametrize("keeps", [False, True])
def test_strict_accuracy_refuses(keeps: bool) -> None:
    problem = convolution("conv_fwd n1 c16 h12 w12 k32 r3 s3 pad1 stride2 f32 nchw")
    plan = get(problem, host(1), Request(accuracy="strict", keeps_filter=keeps))
    for candidate in plan.candidates:
        if candidate.spreads is not None:
            assert candidate.refused is not None
    with pytest.raises(NotSupported, match=r"a NaN or an infinity|its error may reach"):
        get(problem, host(1), Request(accuracy="strict", algorithm="winograd_2", keeps_filter=keeps))


def test_what_is_exact_but_spreads_is_refused_for_that() -> None:
    problem = convolution("conv_bwd_filter n2 c16 h12 w12 k16 r3 s3 pad1 f32 nhwc")
    plan = get(problem, host(1), Request(accuracy="strict"))
    reasons = [c.refused for c in plan.candidates if c.name == "winograd_filter"]
    assert reasons[0] is not None
    assert "NaN" in reasons[0] or "error" in reasons[0]


def test_divided_plans_say_so() -> None:
    problem = convolution("conv_fwd n16 c16 h24 w24 k32 r5 s5 pad2 f32 nhwc")
    whole = get(problem, host(1), Request(algorithm="winograd_4"))
    plan = get(problem, host(1), Request(algorithm="winograd_4", workspace_limit=whole.workspace - 1))
    assert len(plan.parts) > 1
    assert "a NaN or an infinity in an input may reach the other results" in plan.explain()


def test_the_documented_table_is_whole() -> None:
    text = (ROOT / "docs" / "nonfinite.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `cpu`")]
    listed = {
        (name, direction)
        for _, names, directions in rows
        for name in re.findall(r"`(\w+)`", names)
        for direction in DIRECTIONS_OF[directions.strip()]
    }
    assert listed == set(SPREADING)
