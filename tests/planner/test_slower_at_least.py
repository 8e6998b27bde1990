"""Algorithms that take longer at least than another one may be are not asked, and nothing else changes by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jitdnn.devices import cuda_compile
from jitdnn.devices.cuda import offline
from jitdnn.errors import CompileError
from jitdnn.planner import choose
from jitdnn.planner.plan import DEFERRED, Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import completed, survey
from jitdnn.problems import parse
from jitdnn.settings import settings

LAYER = "conv_fwd n32 c256 h28 w28 k256 r3 s3 pad1 bf16 nhwc"
LAYERS = [
    LAYER,
    "conv_bwd_filter n24 c96 h14 w14 k576 r1 s1 f32 nchw",
    "conv_fwd n24 c144 h56 w56 k144 r3 s3 pad1 g144 bf16 nhwc",
    "conv_bwd_filter n24 c144 h56 w56 k144 r3 s3 pad1 g144 f32 nchw",
    "conv_fwd n2 c3 h224 w224 k64 r7 s7 stride2 pad3 f32 nhwc",
    "conv_bwd_data n4 c64 h56 w56 k64 r3 s3 pad1 f32 nhwc",
    "conv_fwd n1 c5 h7 w9 k3 r3 s3 f32 nchw",
    "conv_bwd_data n2 c24 h15 w13 k40 r3 s3 stride2 pad1 f16 nchw",
    "matmul m512 k768 n3072 bf16",
]
REQUESTS = [
    Request(),
    Request(math="tf32"),
    Request(accuracy="strict"),
    Request(workspace_limit=0),
    Request(deterministic=True),
]


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "_compile", lambda *_: b"-")


@pytest.mark.parametrize("words", LAYERS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_choice_is_that_of_all(words: str, arch: str) -> None:
    device, problem, store = offline(arch), parse(words), Store.default()
    for request in REQUESTS:
        all_of_them = survey(problem, device, request, None, store)
        found = survey(problem, device, request, None, store, defers=True)
        fastest = [
            min((one for one in each if one.is_open), key=lambda one: one.seconds, default=None)
            for each in (all_of_them, found)
        ]
        assert fastest[0] == fastest[1]
        for one, asked in zip(found, all_of_them, strict=True):
            assert one.summary.source == DEFERRED or one == asked
        # whoever reads the candidates is told what all of them would cost
        summaries = [one.summary for one in found]
        assert completed(problem, device, request, None, summaries) == [one.summary for one in all_of_them]
        # and from what is kept on disk, where only those that may be chosen are
        kept = [one for one in summaries if one.refused is None]
        assert completed(problem, device, request, None, kept, has_all=False) == [
            one.summary for one in all_of_them
        ]


def test_they_are_not_asked() -> None:
    found = survey(parse(LAYER), offline("sm_90a"), Request(), None, Store.default(), defers=True)
    reasons = {one.algorithm.name: one.summary.refused for one in found if one.summary.source == DEFERRED}
    assert str(reasons["implicit_gemm"]).startswith("it takes longer than implicit_gemm_wgmma: ")


def test_the_next_is_found_where_the_first_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    device, problem, request = offline("sm_90a"), parse(LAYER), Request()
    original, failing = choose.build, "implicit_gemm_wgmma"

    def build(algorithm: Any, *given: Any) -> Any:
        if algorithm.name.startswith(failing):
            raise CompileError("a fault")
        return original(algorithm, *given)

    monkeypatch.setattr(choose, "build", build)
    with settings(cache=False, log="off"):
        plan = choose.get(problem, device, request)
    every = survey(problem, device, request, None, Store.default())
    rest = [one for one in every if one.is_open and not one.algorithm.name.startswith(failing)]
    assert plan.algorithm == min(rest, key=lambda one: one.seconds).algorithm.name == "implicit_gemm"
    broken = {one.name: one.refused for one in plan.candidates}
    assert broken[failing] == "its code does not compile: a fault"


def test_whoever_may_not_wait_is_told_of_all() -> None:
    device, problem = offline("sm_90a"), parse(LAYER)
    every = survey(problem, device, Request(), None, Store.default())
    with settings(cache=False, log="off"), pytest.raises(choose.NotCompiled) as raised:
        choose.get(problem, device, replace(Request(), division="undivided"), waits=False)
    names = {one.algorithm.name for one in raised.value.candidates if one.is_open}
    assert names == {one.algorithm.name for one in every if one.is_open}
    assert "implicit_gemm" in names
