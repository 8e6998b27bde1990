"""Planning and compiling ahead: by this process and workers, from problems, suites and nets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import jitdnn as jd
from jitdnn.cli.app import main
from jitdnn.cli.warm import of_net, summary
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops import warm as module
from jitdnn.ops.warm import Wanted, Warmed
from jitdnn.problems import parse

PROBLEMS = [
    "softmax_fwd shape3x7 axis1 f32",
    "matmul m3 k4 n5 f32",
    "softmax_bwd shape3x7 axis1 f32",
    "pool_fwd avg n1 c2 h8 w8 window2 stride2 f32 nchw",
    "matmul m3 k4 n5 f64",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on disk, and nothing of it in memory."""
    monkeypatch.setattr("jitdnn.rtcg.compile._loaded", {})
    return tmp_path / "cache"


@pytest.mark.parametrize("workers", [1, 3])
def test_every_problem_is_compiled_once(folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Warmed] = []
    twice = [*PROBLEMS, PROBLEMS[0]]
    found = jd.warm(twice, workers=workers, progress=seen.append, cache_dir=folder, threads=2)
    assert [str(result.problem) for result in found] == [str(parse(text)) for text in twice]
    assert len(seen) == len(PROBLEMS)
    assert all(result.failure is None and result.compiled > 0 for result in found)
    assert all(0 < result.seconds < 60 for result in found)
    with jd.settings(cache_dir=folder):
        expected = [jd.plan(text).algorithm for text in twice]
    assert [result.algorithm for result in found] == expected
    # a program that comes later finds the code on the disk
    monkeypatch.setattr("jitdnn.rtcg.compile._loaded", {})
    again = jd.warm(twice, workers=1, cache_dir=folder)
    assert [result.compiled for result in again] == [0] * len(twice)


def test_epilogues_and_requests_travel_to_workers(folder: Path) -> None:
    relu = Epilogue(jd.trace(lambda a: jd.relu(a)))
    problem = parse("conv_fwd n1 c4 h5 w5 k4 r3 s3 f32 nchw")
    with jd.settings(cache_dir=folder):
        request = jd.plan(problem, algorithm="im2col").request
    wanted = [Wanted(problem, relu), Wanted(problem, None, request), Wanted(problem)]
    # the worker must have the second one, whoever is faster
    worker = module._Worker(jd.settings.override(jd.settings.current(), cache_dir=folder))
    try:
        results = [worker.plan(each) for each in wanted]
    finally:
        worker.end()
    assert all(result is not None and result.failure is None for result in results)
    assert results[1] is not None
    assert results[1].algorithm == "im2col"
    assert results[0] is not None
    assert results[0].compiled > 0


def test_what_no_algorithm_takes_is_said(folder: Path) -> None:
    with jd.settings(cache_dir=folder):
        request = jd.plan(PROBLEMS[1]).request
    problem = parse(PROBLEMS[1])
    (found,) = jd.warm([Wanted(problem, None, replace(request, algorithm="magic"))], cache_dir=folder)
    assert found.algorithm is None
    assert "magic" in (found.failure or "")


def test_the_work_of_a_worker_that_dies_is_done_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.ops.worker._PROGRAM", "import sys; sys.exit(3)  # {path!r}")
    found = jd.warm(PROBLEMS, workers=2, cache_dir=folder)
    assert [result.failure for result in found] == [None] * len(PROBLEMS)


def test_without_a_disk_cache_nobody_else_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert jd.warm(PROBLEMS[:2], workers=2, cache=False)[0].failure is None
    with pytest.raises(jd.InvalidArgument, match="workers is 0"):
        jd.warm(PROBLEMS, workers=0)
    with pytest.raises(jd.ParseError):
        jd.warm(["conv_fwd n"])
    with pytest.raises(jd.InvalidArgument, match="no setting"):
        jd.warm(PROBLEMS, color="red")
    assert jd.warm([]) == []


def test_a_program_without_a_guard_may_warm(folder: Path) -> None:
    """Workers do not import the caller's program, which would start workers in turn."""
    program = f"import jitdnn as jd; print(len(jd.warm({PROBLEMS[:3]!r}, workers=2)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"JITDNN_CACHE_DIR": str(folder), "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "3\n"


NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_the_plans_of_a_net() -> None:
    kinds = {wanted.problem.kind for wanted in of_net(NET)}
    assert {"conv_fwd", "conv_bwd_filter", "matmul"} <= kinds
    assert not any(kind.startswith("conv_bwd_data") for kind in kinds)  # nobody wants the data's gradient


def test_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITDNN_CACHE_DIR", str(folder))
    monkeypatch.setattr("jitdnn.settings._process_default", None)
    for words in ("1 compiled", "1 from the cache"):
        with pytest.raises(SystemExit) as caught:
            main(["warm", PROBLEMS[0], "--workers", "1"])
        assert caught.value.code == 0
        assert words in capsys.readouterr().out
        monkeypatch.setattr("jitdnn.rtcg.compile._loaded", {})
    with pytest.raises(SystemExit) as caught:
        main(["warm", "no_such_suite"])
    assert caught.value.code == 1
    assert "no_such_suite" in capsys.readouterr().err


def test_the_summary() -> None:
    problem = parse(PROBLEMS[1])
    found = [Warmed(problem, "a", 0.1, 1), Warmed(problem, "a", 0.3, 2), Warmed(problem, "a", 0.001, 0)]
    found.append(Warmed(problem, None, 0.0, 0, "no algorithm"))
    text = summary(found, 1.25)
    assert text.startswith("3 plans in 1.2 s: 2 compiled (200 ms each, 300 ms at most")
    assert text.endswith("1 from the cache")
