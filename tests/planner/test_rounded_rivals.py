"""Where factors may be rounded, algorithms that are exact for more products are not asked beside those that round."""

from __future__ import annotations

import pytest

from jitdnn.devices.cuda import offline
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.plan import DEFERRED, Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import AlgorithmCandidate, survey
from jitdnn.problems import parse

LAYER = "conv_bwd_filter n8 c64 h14 w14 k64 r3 s3 pad1 f32 nhwc"
LONG = "conv_bwd_filter n64 c3 h224 w224 k64 r3 s3 pad1 f32 nhwc"  # sums too long for the error of stem_tf32


def asked(words: str, request: Request, defers: bool = True) -> dict[str, AlgorithmCandidate]:
    found = survey(parse(words), offline("sm_90a"), request, None, Store.default(), defers=defers)
    return {each.algorithm.name: each for each in found}


def test_they_are_not_asked() -> None:
    found = asked(LAYER, Request(math="tf32"))
    exact = found["implicit_gemm_3xf16"]
    assert not exact.is_open
    assert exact.summary.source == DEFERRED
    assert exact.summary.refused == "implicit_gemm_scaled_f16 takes fewer products, which tf32 allows"
    # whoever wants to know all of them is told
    assert asked(LAYER, Request(math="tf32"), defers=False)["implicit_gemm_3xf16"].is_open


@pytest.mark.parametrize(
    "request_",
    [Request(math="fp32"), Request(math="tf32", algorithm="implicit_gemm_3xf16")],
    ids=["fp32", "name"],
)
def test_they_are_where_they_may_be_chosen(request_: Request) -> None:
    assert asked(LAYER, request_)["implicit_gemm_3xf16"].is_open


def test_they_are_where_those_that_round_are_refused() -> None:
    found = asked(LONG, Request(math="tf32"))
    assert "error may reach" in str(found["stem_tf32"].summary.refused)
    assert found["stem_3xtf32"].is_open


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_there_are_such_algorithms(direction: str) -> None:
    table = algorithms(parse(f"conv_{direction} n2 c8 h9 w9 k8 r3 s3 f32 nhwc"), "cuda")
    names = {each.name for each in table}
    rivals = {name for each in table for name in each.rounded}
    assert rivals
    assert rivals <= names
