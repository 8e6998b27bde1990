"""Registers that spill where a source does not say so: an error in tests, elsewhere a line of the log and no more.

Those that are read while products write them: an error everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jitdnn
from jitdnn.devices import cuda, cuda_compile
from jitdnn.devices.gpu import Source
from jitdnn.errors import CompileError
from jitdnn.handle import Handle
from jitdnn.planner.plan import Request
from jitdnn.problems import parse

SPILLS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'pack_operands' for 'sm_90a'
ptxas info    : Function properties for pack_operands
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 5120 bytes smem
ptxas info    : Compiling entry function 'multiply' for 'sm_90a'
ptxas info    : Function properties for multiply
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
"""

IN_FLIGHT = "".join(
    f"ptxas info    : ({code}) warpgroup.{what} is injected in around line {line} by compiler to allow use of "
    f"registers defined by GMMA in function '{name}'\n"
    for code, what, line, name in (
        ("C7519", "arrive", 987, "first"),
        ("C7517", "wait", 1175, "multiply"),
        ("C7517", "wait", 1243, "other"),
    )
)


@pytest.fixture(autouse=True)
def _other_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A stand-in for NVRTC, by which every text spills; what it makes is kept nowhere else."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")

    @contextmanager
    def compiled(*_: Any) -> Iterator[tuple[Any, Any, Any, str]]:
        made = SimpleNamespace(nvrtcGetCUBINSize=lambda _: (0, 4), nvrtcGetCUBIN=lambda *_: (0,))
        yield made, None, 0, SPILLS

    monkeypatch.setattr(cuda_compile, "_nvrtc", compiled)
    monkeypatch.setattr(cuda_compile, "refuses_spills", False)
    with jitdnn.settings(cache_dir=tmp_path):
        yield


def test_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="jitdnn"):
        for text in ("of the first shape", "of another one"):
            assert len(cuda_compile.compiled(Source("spilling", text), "sm_90a")) == 4
    (message,) = [record.getMessage() for record in caplog.records]
    assert "spilling for sm_90a spills 8 bytes of registers in multiply," in message
    assert "pack_operands" not in message
    assert cuda_compile.compiler_version() in message


def test_what_is_declared_is_not(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "refuses_spills", True)
    with caplog.at_level(logging.WARNING, logger="jitdnn"):
        cuda_compile.compiled(Source("known to spill", "", spills=True), "sm_90a")
    assert not caplog.records


def test_tests_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "refuses_spills", True)
    with pytest.raises(
        CompileError, match="spills 8 bytes of registers in multiply, which it does not declare"
    ):
        cuda_compile.compiled(Source("refused", ""), "sm_90a")


def test_reads_of_sums_in_flight_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a source that is known to spill; the planner takes another algorithm."""

    @contextmanager
    def compiled(*given: Any) -> Iterator[tuple[Any, Any, Any, str]]:
        made = SimpleNamespace(nvrtcGetCUBINSize=lambda _: (0, 4), nvrtcGetCUBIN=lambda *_: (0,))
        yield made, None, 0, IN_FLIGHT if "wgmma.mma_async" in given[2] else ""

    monkeypatch.setattr(cuda_compile, "_nvrtc", compiled)
    with pytest.raises(CompileError, match=r"reads sums of products in flight in multiply, other \(C7517\)"):
        cuda_compile.compiled(Source("refused", "", dialect="hopper", spills=True), "sm_90a")
    problem = parse("conv_fwd n64 c128 h28 w28 k256 r3 s3 pad1 bf16 nhwc")
    with Handle(cuda.offline("sm_90a")) as handle:
        assert "wgmma" not in handle.plan(problem, Request()).algorithm


@pytest.mark.parametrize("types", ["bf16", "f8e4m3 by_f8e5m2"])
def test_the_planner_keeps_its_choice(types: str) -> None:
    problem = parse(f"conv_bwd_filter n64 c128 h28 w28 k256 r3 s3 pad1 {types} nhwc")
    with Handle(cuda.offline("sm_90a")) as handle:
        assert "wgmma" in handle.plan(problem, Request()).algorithm
