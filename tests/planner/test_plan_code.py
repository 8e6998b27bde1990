"""The code of plans as text: that which runs, in every form that a target has, and nothing is left of the recording."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices import cuda
from jitdnn.devices.cpu import host
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.rtcg import compile as compiler
from jitdnn.rtcg.isa import NAMES, isa
from jitdnn.rtcg.recording import recording
from jitdnn.tensor import TensorDescriptor
from paths import ROOT

CONV = "conv_fwd n2 c5 h9 w11 k7 r3 s3 pad1"
PROBLEMS = [
    CONV, "conv_bwd_filter n2 c5 h9 w11 k7 r3 s3 pad1", "pool_fwd max n2 c3 h9 w9 window2 stride2",
    "softmax_fwd accurate shape3x17 axis1", "activation_fwd gelu shape3x17",
]  # fmt: skip
REPLAY = ROOT / "benchmarks" / "replay.py"


@pytest.mark.parametrize("text", PROBLEMS)
def test_it_is_the_code_that_is_compiled(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = compiler.compile_object

    def noted(module: Any) -> bytes:
        if module.name not in ("probe", "threads"):  # of the processor itself
            compiled.append(module.text)
        return real(module)

    monkeypatch.setattr(compiler, "compile_object", noted)
    compiler.kept.libraries.clear()
    compiler._loaded.clear()
    with jd.settings(cache=False):
        plan = jd.Handle().plan(jd.parse(text))
        assert compiled
        for module in compiled:
            assert module in plan.code("ir")
        assert plan.code() == plan.code("ir")
        assert ".text" in plan.code("asm") or ".section" in plan.code("asm")


def test_parts_have_their_share_of_the_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a divided convolution reads its own channels and rows of a fused bias."""
    compiled: list[str] = []
    real = compiler.compile_object

    def noted(module: Any) -> bytes:
        if module.name not in ("probe", "threads"):  # of the processor itself
            compiled.append(module.text)
        return real(module)

    monkeypatch.setattr(compiler, "compile_object", noted)
    problem = jd.parse("conv_fwd n6 c32 h17 w17 k64 r5 s5 pad2 f32 nhwc")
    bias = TensorDescriptor.packed((1, 64, 1, 1), "f32").broadcast_to(problem.output.shape)
    epilogue = Epilogue(jd.trace(lambda y, b: jd.relu(y + b)), (bias,))
    for algorithm, limit in (("winograd_4", 400), ("implicit_gemm", 200)):
        compiler.kept.libraries.clear()
        compiler._loaded.clear()
        compiled.clear()
        request = Request(workspace_limit=limit << 10, algorithm=algorithm, division="all")
        with jd.settings(cache=False):
            plan = get(problem, host(1), request, epilogue)
        assert len(plan.parts) > 1
        shown = plan.code("ir")
        assert all(text in shown for text in compiled)
        assert shown.count("; ModuleID") <= len(compiled)


def test_calls_are_as_before_after_it_was_shown() -> None:
    x, w = np.ones((2, 5, 9, 11), np.float32), np.ones((7, 5, 3, 3), np.float32)
    with jd.settings(cache=False):
        handle = jd.Handle()
        plan = handle.plan(jd.parse(CONV))
        plan.code()
        y = jd.conv(x, w, padding=1, handle=handle)
    assert (y[:, :, 1:-1, 1:-1] == 45).all()


@pytest.mark.parametrize("text", PROBLEMS)
def test_cuda(text: str) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    plan = jd.Handle(cuda.offline("sm_90a")).plan(jd.parse(text))
    assert "__global__" in plan.code("cuda") or "KERNEL" in plan.code("cuda")
    assert ".target sm_90a" in plan.code("ptx")


def test_forms_that_there_are_not() -> None:
    plan = jd.Handle().plan(jd.parse(CONV))
    for form in ("ptx", "cuda", "", 3):
        with pytest.raises(jd.InvalidArgument, match="has ir and asm"):
            plan.code(form)  # type: ignore[arg-type]


def test_the_reference_has_none() -> None:
    with jd.settings(math="fp64"):
        plan = jd.Handle().plan(jd.parse(CONV))
    assert plan.algorithm == "reference"
    with pytest.raises(jd.NotSupported, match="reference generates no code"):
        plan.code()


@pytest.mark.parametrize("name", NAMES)
def test_instruction_sets_of_other_machines_are_traced_too(name: str, replay: ModuleType) -> None:
    with recording() as made:
        get(jd.parse(CONV), replay.PaperCpu(isa(name), 2), Request(algorithm="direct"))
    assert made
    assert all(each.form == "ir" and each.text.startswith("; ModuleID") for each in made)


def test_the_speed_of_the_processor_is_measured_meanwhile() -> None:
    from jitdnn.devices.processor_speed import probe

    compiler.kept.libraries.clear()
    compiler._loaded.clear()
    with recording() as made:
        assert probe(host(1).isa, "f32", 1) > 1e6
    assert made == []


@pytest.fixture
def replay() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay", REPLAY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = module
    spec.loader.exec_module(module)
    return module


def test_a_replay_finds_what_moved(
    replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.txt", tmp_path / "after.txt"
    options = ["--suite", "cifar10_quick_caffe", "--cpu", "avx2,neon", "--threads", "2", "--arch", "sm_80"]
    command = [sys.executable, str(REPLAY), "record", str(before), *options]
    subprocess.run(command, check=True, capture_output=True)
    lines = before.read_text().splitlines()
    assert len(lines) == 3 * 3 * 3  # machines, layers, directions
    assert not any("refused" in line for line in lines)
    after.write_text(before.read_text())
    assert replay.compare(before, after) == 0
    assert "27 problems are the same, 0 have other plans, 0 the same plan" in capsys.readouterr().out
    moved, recoded, *rest = lines
    machine, label, text, plan, code = moved.split(" | ")
    after.write_text(
        "\n".join([f"{machine} | {label} | {text} | other, 1 B | {code}", recoded[:-1] + "-", *rest[:-1]])
    )
    assert replay.compare(before, after) == 1
    assert "24 problems are the same, 2 have other plans, 1 the same plan" in capsys.readouterr().out
    assert plan


def test_renaming_moves_nothing(replay: ModuleType) -> None:
    code = '\ndefine void @"f"(ptr %"x") {\nentry:\n  %"s" = load float, ptr %"x"  ; the sum\n}\ndefine void @"g"() {}'
    renamed = (
        code.replace('"x"', '"y"').replace('%"s"', "%.5").replace("  ; the sum", "").replace('@"f"', "@first")
    )
    assert replay._canonical(code) == replay._canonical(renamed)
    assert replay._canonical(code) != replay._canonical(code.replace('ptr %"x"  ;', 'ptr %"s"  ;'))
    kernel = "/* sums */\n__global__ void f(float *x) { x[0] = x[1]; }"
    assert replay._canonical(kernel) == replay._canonical(
        "__global__ void g(float *data) { data[0] = data[1]; } // g"
    )
    assert replay._canonical(kernel) != replay._canonical(kernel.replace("x[1]", "f[1]"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("sm_75", "sm_75 is too old: sm_80"), ("sm_99", "does not compile for sm_99: it knows sm_80")],
)
def test_architectures_that_there_are_not(name: str, message: str) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    with pytest.raises(DeviceError, match=message):
        cuda.offline(name)
