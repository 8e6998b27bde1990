"""`jitdnn plan` for nets and `jitdnn tune` as people and scripts use them."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import jitdnn
from command_line import call
from jitdnn.bench.suites import load
from jitdnn.cli import fronts_plot
from jitdnn.cli.plan_net import select
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.planner.net_plan import COLUMNS
from jitdnn.planner.store import Store
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution

PROBLEM = "conv_fwd n4 c8 h12 w12 k8 r3 s3 pad1"
OTHER = "conv_bwd_data n2 c4 h9 w9 k4 r3 s3 pad1"
SUITE = """
tiny:one*2 conv_fwd n4 c3 h12 w12 k8 r3 s3 pad1
tiny:two conv_fwd n4 c8 h12 w12 k8 r3 s3 pad1
"""
NET = """
name: "net"
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a"
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "b" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
LOSS
"""
LOSS = """
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "score" type: "InnerProduct" bottom: "b" top: "score" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path) -> Iterator[None]:
    """What is measured here counts nowhere else."""
    with jitdnn.settings(cache_dir=tmp_path / "cache", threads=2):
        yield


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.txt"
    path.write_text(SUITE)
    return path


# ---- which layers


def test_a_suite_in_all_directions_and_as_often_as_its_network_has_them(suite: Path) -> None:
    layers = select([str(suite)], None, None)
    assert [name for name, _ in layers] == [
        *("one fwd", "one fwd", "two fwd", "one bwd_data", "one bwd_data", "two bwd_data"),
        *("one bwd_filter", "one bwd_filter", "two bwd_filter"),
    ]
    assert [name for name, _ in select([str(suite)], "bwd_data", None)] == ["one bwd_data"] * 2 + [
        "two bwd_data"
    ]
    assert [name for name, _ in select([str(suite)], "given", 7)] == ["one fwd"] * 2 + ["two fwd"]
    assert all(p.n == 7 for _, p in select([str(suite)], None, 7) if isinstance(p, Convolution))


def test_a_built_in_network() -> None:
    layers = select(["resnet18"], "fwd", 1)
    assert len(layers) == sum(layer.count for layer in load("resnet18"))


def test_problem_strings_are_as_given(tmp_path: Path) -> None:
    layers = select([PROBLEM, OTHER, "matmul m2 k2 n2 f32"], None, None)
    assert [name for name, _ in layers] == [str(parse(s)) for s in (PROBLEM, OTHER, "matmul m2 k2 n2 f32")]
    # and so is a suite that says several directions itself
    mixed = tmp_path / "mixed.txt"
    mixed.write_text(f"{PROBLEM}\n{OTHER}\nmatmul m2 k2 n2 f32\n")
    assert [problem for _, problem in select([str(mixed)], None, None)] == [problem for _, problem in layers]


@pytest.mark.parametrize("loss", ["", LOSS])
def test_a_net_of_caffe_in_training(tmp_path: Path, loss: str) -> None:
    """What its passes ask for, and the same where there is no loss yet."""
    path = tmp_path / "net.prototxt"
    path.write_text(NET.replace("LOSS", loss))
    layers = select([str(path)], None, None)
    # nobody needs the gradient of the data
    assert [name for name, _ in layers] == ["a fwd", "a bwd_filter", "b fwd", "b bwd_data", "b bwd_filter"]
    assert [problem.kind for _, problem in layers][:2] == ["conv_fwd", "conv_bwd_filter"]
    assert [name for name, _ in select([str(path)], "fwd", 2)] == ["a fwd", "b fwd"]


def test_a_net_without_convolutions(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text('layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }')
    with pytest.raises(InvalidArgument, match="no convolutions"):
        select([str(path)], None, None)


# ---- plan


def test_a_net_under_a_budget(capsys: pytest.CaptureFixture[str], suite: Path) -> None:
    code, out, err = call(capsys, "plan", suite, "--memory", "64KiB")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "\t".join(COLUMNS)
    table = [line.split("\t") for line in lines[1 : lines.index("")]]
    assert all(len(cells) == len(COLUMNS) for cells in table)
    assert {cells[0].split(" *")[0] for cells in table} >= {"one fwd", "two bwd_filter"}
    assert "9 layers on" in out
    assert "64 KiB for all together" in out
    assert "each with memory of its own" in out


def test_json_keeps_to_the_budget(capsys: pytest.CaptureFixture[str], suite: Path) -> None:
    code, out, _ = call(capsys, "plan", suite, "--memory", "64KiB", "--json", "--share")
    told = json.loads(out)
    assert code == 0
    assert told["total"] == 65536
    assert told["workspace"] == max(layer["chosen"]["workspace"] for layer in told["layers"]) <= 65536
    assert len(told["arenas"]) == 1
    assert told["seconds"] == pytest.approx(sum(layer["chosen"]["seconds"] for layer in told["layers"]))
    for layer in told["layers"]:
        assert layer["chosen"]["workspace"] in [point["workspace"] for point in layer["front"]]
        parse(layer["problem"])
        for part in layer["chosen"]["parts"]:
            parse(part["problem"])


def test_options_reach_the_planner(capsys: pytest.CaptureFixture[str], suite: Path) -> None:
    arguments = (
        "plan",
        suite,
        "--direction",
        "fwd",
        "--workspace-limit",
        "0",
        "--division",
        "undivided",
        "--json",
    )
    _, out, _ = call(
        capsys, *arguments, "--device", "cpu", "--vendor", "off", "--batch", "3", "--threads", "1"
    )
    told = json.loads(out)
    assert told["workspace"] == 0
    assert told["device"].endswith("x1")
    assert all(" n3 " in layer["problem"] and len(layer["chosen"]["parts"]) <= 1 for layer in told["layers"])


def test_problems_are_a_net_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", PROBLEM, OTHER, "--find", "--division", "undivided")
    assert code == 0
    assert str(parse(PROBLEM)) in out
    assert "2 measured" in out
    code, out, _ = call(capsys, "plan", PROBLEM, "--device", "cpu")
    assert "chosen" in out, "one problem has its table of candidates"


def test_a_picture(capsys: pytest.CaptureFixture[str], suite: Path, tmp_path: Path) -> None:
    picture = tmp_path / "fronts.png"
    for more in ((), ("--share",), ("--direction", "fwd", "--memory", "1MiB")):
        code, out, _ = call(capsys, "plan", suite, "--plot", picture, *more)
        assert code == 0
        assert str(picture) in out
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", content[16:24])
        assert 600 < width < 4000
        assert 400 < height < 4000
        assert 10_000 < len(content) < 2_000_000
        picture.unlink()


def test_a_picture_that_cannot_be(
    capsys: pytest.CaptureFixture[str], suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, "plan", suite, "--direction", "fwd", "--plot", "/nowhere/fronts.png")
    assert (code, out) == (1, "")
    assert "/nowhere/fronts.png" in err
    monkeypatch.setattr(fronts_plot, "find_spec", lambda name: None)
    code, out, err = call(capsys, "plan", suite, "--plot", "fronts.png")
    assert (code, out) == (1, "")
    assert "jitdnn[plot]" in err


@pytest.mark.parametrize(
    ("arguments", "expected", "words"),
    [
        (["plan", "resnet1"], 1, "no suite"),
        (["plan", "absent.prototxt"], 1, "absent.prototxt"),
        (["plan", "absent.csv"], 1, "absent.csv"),
        (["plan", PROBLEM, "--memory", "many"], 1, "no size"),
        (["plan", PROBLEM, "--device", "tpu"], 1, "tpu"),
        (["plan", "matmul m2 k2 n2 f32", "--direction", "fwd"], 1, "directions"),
        (["plan", PROBLEM, "--division", "thirds"], 2, "--division"),
        (["plan", PROBLEM, "--vendor", "amd"], 2, "--vendor"),
        (["plan", PROBLEM, "--batch", "0"], 2, "--batch"),
        (["plan"], 2, "problem"),
        (["tune"], 1, "nothing to tune"),
        (["tune", PROBLEM, "--device", "cpu,cpu"], 1, "the same"),
        (["tune", PROBLEM, "--device", "cpu, tpu"], 1, "tpu"),
        (["tune", PROBLEM, "--device", ","], 1, "no devices"),
        (["tune", "--merge", "absent.jsonl"], 1, "absent.jsonl"),
        (["tune", "--export", "/nowhere/rows.jsonl"], 1, "/nowhere/rows.jsonl"),
        (["tune", PROBLEM, "--direction", "up"], 2, "--direction"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int, words: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (expected, "")
    assert err.startswith("jitdnn: ")
    assert words in err
    assert err.count("\n") == 1


# ---- tune


def test_tune_measures_once_exports_and_merges(
    capsys: pytest.CaptureFixture[str], suite: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    options = ("--seconds", "0.01", "--division", "undivided", "--direction", "fwd")
    code, out, err = call(capsys, "tune", suite, *options, "--export", rows)
    assert (code, err) == (0, "")
    first, second, summary, exported = out.splitlines()
    assert first.startswith("1/2 conv_fwd n4 c8 "), "the larger one"
    assert "algorithms measured" in second
    assert "2 problems on" in summary
    assert "0 problems known before" in summary
    count = len(Store.default().rows())
    assert exported == f"{rows}: {count} times written"
    assert len(rows.read_text().splitlines()) == count
    code, out, _ = call(capsys, "tune", suite, *options, "--device", "cpu")
    assert "0 times measured, 2 problems known before" in out
    assert out.splitlines()[0].endswith(" on cpu: known")
    # a colleague takes it in
    with jitdnn.settings(cache_dir=tmp_path / "theirs"):
        code, out, _ = call(capsys, "tune", "--merge", rows)
        assert out == f"{rows}: {count} times taken in\n"
        code, out, _ = call(capsys, "tune", suite, *options)
        assert "0 times measured" in out


def test_tuned_parts_make_a_plan_of_measured_times(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = call(capsys, "tune", PROBLEM, "--memory", "16KiB", "--seconds", "0.01")
    assert code == 0
    _, out, _ = call(capsys, "plan", PROBLEM, "--memory", "16KiB")
    assert "times: 1 measured" in out


def test_tune_fails_where_nothing_takes_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise JitdnnError("no\nway")

    monkeypatch.setattr("jitdnn.ops.tune.partitions", refuse)
    code, out, _ = call(capsys, "tune", PROBLEM)
    assert code == 1
    assert "FAILED: no; way" in out
    assert "1 that nothing takes" in out


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_an_interrupt_keeps_what_was_measured(suite: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "JITDNN_CACHE_DIR": str(tmp_path / "kept"), "PYTHONUNBUFFERED": "1"}
    environment["PYTHONFAULTHANDLER"] = "1"
    # whoever runs the tests in the background of a shell has its children ignore the signal
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = heard + "import jitdnn.cli; jitdnn.cli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "tune", str(suite), "--seconds", "20", "--division", "all"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    store = Store(tmp_path / "kept" / "tuning-1.sqlite")
    deadline = time.monotonic() + 120
    while not store.rows() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    for _ in range(20):  # Python drops a signal that meets a destructor
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)  # where it hangs is said by the fault handler
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert store.rows()


def test_code_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", PROBLEM, "--code", "ir")
    assert (code, "; ModuleID" in out) == (0, True)
    code, _, err = call(capsys, "plan", PROBLEM, "--code", "ptx")
    assert (code, "has ir and asm" in err) == (1, True)
    code, _, err = call(capsys, "plan", PROBLEM, OTHER, "--code", "ir")
    assert (code, "of one problem" in err) == (2, True)


def test_code_for_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    problem = "conv_fwd n1 c16 h9 w9 k16 r3 s3 pad1 f16 nhwc"
    code, out, _ = call(capsys, "plan", problem, "--device", "sm_80", "--code", "ptx")
    assert (code, ".target sm_80" in out) == (0, True)
