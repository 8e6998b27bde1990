"""The operands of an epilogue decide with the tensors how a problem is cut, and so what workspace its kernel needs.

`check` gives every kernel as many bytes as its algorithm says, with a canary behind them; `guarded_run` puts a
forbidden page there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import jitdnn as jd
from conformance import INSTRUCTION_SETS, check
from convolution_cases import convolution, fused, operand_of, sizes_of, sum_of_sizes
from jitdnn.devices.cpu import host
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.choose import build, get
from jitdnn.planner.plan import Request
from jitdnn.problems import Problem, parse
from jitdnn.rtcg.expression import trace
from paths import HELPERS
from planner_fakes import DEVICE, PROBLEM, Fake, Planning, Table
from strategies import convolutions, descriptors, matmuls

GUARDED = HELPERS / "guarded_run.py"
# each is cut otherwise with a bias, a residual or both than alone, and then needs more memory
CUT_OTHERWISE = [
    # axes of x that are joined where y alone says so
    "conv_fwd n3 c33 d8 h4 w6 k12 t2 r2 s1 stride3x1x2 pad0x0x3 dil2x1x1 g3 f32 nchw x=s0,1152,0,0,192",
    "conv_fwd n1 c2 h2 w3 k1 r2 s2 stride2x1 pad0:3x1:3 f32 nhwc w=s4,1,10,2",
    "conv_fwd n1 c2 h4 w1 k9 r1 s1 stride1 pad1:0 f32 nchw x=s0,1,2,8",
    "conv_fwd n3 c16 h7 w9 k33 r1 s1",
    "conv_bwd_data n3 c33 h7 w9 k16 r1 s1",
    "conv_bwd_data n2 c9 h7 w8 k11 r2 s2 stride3 f64",
    "conv_fwd n2 c5 h3 w4 k7 r3 s3 pad4",  # most results read nothing but padding
    "conv_bwd_data n2 c7 h9 w8 k5 r2 s2 stride2 pad3",
    # axes of space beside those that have tiles
    "conv_fwd n2 c8 d5 h9 w7 k8 t1 r3 s1 pad0x1x0",
    "conv_fwd n2 c8 d4 h5 w9 k8 t3 r1 s1 pad1x0x0 nhwc",
    # groups in the lanes
    "conv_fwd n2 c12 h7 w9 k24 r3 s3 pad1 g3 nhwc",
    "conv_fwd n2 c35 h7 w9 k35 r3 s3 pad1 g35 nhwc",
    "conv_fwd n2 c19 h6 w5 k19 r11 s11 pad5 g19 nhwc",
]


@st.composite
def with_epilogues(draw: st.DrawFn, problems: st.SearchStrategy[Any]) -> tuple[Problem, Epilogue]:
    """A problem and one to three operands of its result's shape, in any order, broadcast or not."""
    problem = draw(problems)
    dtypes = st.sampled_from((problem.output.dtype, "f32" if problem.output.dtype != "f64" else "f64"))
    count = draw(st.integers(1, 3))
    operands = tuple(draw(descriptors(problem.output.shape, draw(dtypes))) for _ in range(count))
    return problem, Epilogue(sizes_of(count), operands)


FEW = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@pytest.mark.parametrize("kinds", [("bias",), ("nchw", "nhwc", "image")])
@pytest.mark.parametrize("words", CUT_OTHERWISE)
def test_fused_kernels_stay_inside_their_workspace(words: str, kinds: Sequence[str]) -> None:
    problem = convolution(words)
    # how many tasks there are changes with the threads; two of three numbers each, and all three in turn
    threads = [(1, 4), (2, 4), (1, 2)][CUT_OTHERWISE.index(words) % 3]
    check(problem, sum_of_sizes(problem, *kinds), threads=threads)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("words", CUT_OTHERWISE[:4])
def test_on_narrower_instruction_sets(words: str, cpu: str) -> None:
    problem = convolution(words)
    check(problem, sum_of_sizes(problem, "bias", "nhwc"), cpu=cpu, threads=(1, 2, 4))


@pytest.mark.parametrize("words", ["n3 c70 h7 w9 k17 r1 s1 i8", "n2 c9 d3 h5 w4 k7 t2 r2 s1 i8 to_i32 nhwc"])
def test_integers(words: str) -> None:
    problem = convolution(words, "fwd")
    operands = tuple(replace(operand_of(problem, kind), dtype="f32") for kind in ("bias", "gaps"))
    check(problem, Epilogue(trace(lambda acc, a, b: acc + a + b), operands), threads=(1, 2, 4))


@FEW
@given(with_epilogues(convolutions(("fwd", "bwd_data"), channels=(1, 3, 8, 17), most_extent=7)))
def test_any_fused_convolution(fused: tuple[Problem, Epilogue]) -> None:
    check(*fused, threads=(1, 2, 4))


@FEW
@given(with_epilogues(matmuls()))
def test_any_fused_product(fused: tuple[Problem, Epilogue]) -> None:
    check(*fused, threads=(1, 2, 4))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_no_fused_kernel_touches_what_lies_behind() -> None:
    # with a bias they are those compiled above; every second also with others, whose operands end at pages as well
    every = [(words, ("bias",)) for words in CUT_OTHERWISE]
    every += [(words, ("gaps", "row")) for words in CUT_OTHERWISE[::2]]
    text = "\n".join(" + ".join([words, *kinds]) for words, kinds in every)
    run = subprocess.run(
        [sys.executable, str(GUARDED)], input=text, capture_output=True, text=True, check=False
    )
    last = run.stdout.strip().rsplit("\n", 1)[-1]
    assert run.returncode != -signal.SIGSEGV, f"touched what is not its own: {last}"
    assert run.returncode == 0, f"{last}\n{run.stderr[-2000:]}"
    for words, kinds in every:
        named = " + ".join([str(parse(words)), *kinds]) + "\n"
        assert run.stdout.count(named) >= 2, f"{named} was not run at both edges"


# ---- what the planner does with it

GROWING = convolution(CUT_OTHERWISE[0])  # for which implicit_gemm needs more with a bias


def growing() -> tuple[Epilogue, int, int]:
    """A bias for it, and what implicit_gemm needs without and with that."""
    (gemm,) = (a for a in algorithms(GROWING, "cpu") if a.name == "implicit_gemm")
    bias = fused(GROWING, "bias")
    return bias, gemm.workspace(GROWING, host(1)), gemm.workspace(GROWING, host(1), bias)


def test_a_plan_has_the_workspace_of_the_fused_kernel() -> None:
    bias, alone, needed = growing()
    assert alone < needed
    plan = get(GROWING, host(1), Request(algorithm="implicit_gemm"), bias)
    assert plan.workspace == needed
    assert isinstance(plan.run, CpuKernel)
    assert plan.run.workspace == needed
    assert get(GROWING, host(1), Request(algorithm="implicit_gemm")).workspace == alone


def test_a_limit_is_held_with_an_epilogue() -> None:
    bias, alone, needed = growing()
    request = Request(algorithm="implicit_gemm", workspace_limit=alone, division="undivided")
    with pytest.raises(NotSupported, match=r"workspace"):
        get(GROWING, host(1), request, bias)
    assert get(GROWING, host(1), replace(request, workspace_limit=needed), bias).workspace == needed
    assert get(GROWING, host(1), request).workspace == alone


def test_a_kept_filter_is_followed_by_the_memory_of_the_fused_kernel() -> None:
    bias, _, _ = growing()
    plan = get(GROWING, host(1), Request(algorithm="implicit_gemm", keeps_filter=True), bias)
    variant = plan.parts[0].algorithm
    assert plan.kept is not None
    assert plan.workspace == variant.workspace(GROWING, host(1), bias) > plan.kept.bytes


@pytest.mark.parametrize("limit", [0.2, 0.4, 0.7])
def test_the_parts_of_a_division_fit_with_their_epilogue(limit: float) -> None:
    problem = convolution("conv_fwd n7 c48 h13 w11 k40 r3 s3 pad1")
    whole = fused(problem, "residual")
    for name in ("implicit_gemm", "winograd_4"):
        unlimited = get(problem, host(2), Request(algorithm=name), whole)
        request = Request(workspace_limit=int(limit * unlimited.workspace), algorithm=name)
        try:
            plan = get(problem, host(2), request, whole)
        except NotSupported:
            continue
        assert plan.workspace <= int(limit * unlimited.workspace)
        for part in plan.parts:
            assert getattr(part.kernel, "workspace", 0) <= plan.workspace


def test_a_bias_on_strided_images() -> None:
    """The call as users make it, in scratch memory of the handle."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((33, 6, 192)).astype(np.float32)[:, :, 0]
    x = np.broadcast_to(x[None, :, None, None, :], (3, 33, 8, 4, 6))
    w = rng.standard_normal((12, 11, 2, 2, 1)).astype(np.float32)
    bias = rng.standard_normal(12).astype(np.float32)
    options: dict[str, Any] = {"stride": (3, 1, 2), "padding": (0, 0, 3), "dilation": (2, 1, 1), "groups": 3}
    got = jd.conv(x, w, bias, algorithm="implicit_gemm", **options)
    expected = jd.conv(x.astype(np.float64), w.astype(np.float64), algorithm="reference", **options)
    np.testing.assert_allclose(got, expected + bias.reshape(-1, 1, 1, 1), rtol=1e-4, atol=1e-4)


class Wasteful(Fake):
    """One whose kernel uses more than it says."""

    def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Kernel:
        inner = super().build(problem, device, epilogue)

        class Telling:
            workspace = 128

            def __call__(self, *arguments: Any) -> None:
                inner(*arguments)

        return Telling()


class TestBuild(Planning):
    def test_kernels_that_use_more_than_was_planned_are_not_run(self, table: Table) -> None:
        table(Wasteful("wasteful", needs=64))
        with pytest.raises(AssertionError, match=r"wasteful uses 128 bytes, 64 are planned"):
            get(PROBLEM, DEVICE, Request())

    def test_kernels_that_use_as_much_are(self, table: Table) -> None:
        table(Wasteful("sparing", needs=128))
        assert get(PROBLEM, DEVICE, Request()).workspace == 128


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize(
    "words",
    ["n2 c12 h7 w9 k24 r3 s3 pad1 g3 nhwc", "n2 c9 h8 w9 k7 r3 s3 pad1", "n2 c19 h7 w9 k19 r3 s3 g19"],
)
def test_compiled_kernels_of_convolutions_tell_what_they_use(words: str, direction: str) -> None:
    problem = convolution(words, direction)
    epilogue = None if direction == "bwd_filter" else sum_of_sizes(problem, "bias")
    told = []
    for algorithm in algorithms(problem, "cpu"):
        if algorithm.refuse(problem, host(2), epilogue) is None:
            kernel = build(
                algorithm, problem, host(2), epilogue, algorithm.workspace(problem, host(2), epilogue)
            )
            if isinstance(kernel, CpuKernel):
                assert kernel.workspace is not None, algorithm.name
                told.append(algorithm.name)
    assert len(told) >= 2
