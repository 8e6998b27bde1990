"""The command line as people and scripts use it: output, exit codes, one line for an error."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jitdnn
from command_line import call
from jitdnn import targets
from jitdnn.bench import timing
from jitdnn.cli import main
from jitdnn.cli.console import print_table
from jitdnn.cli.curves import History, save_png
from jitdnn.cli.demo import draw
from jitdnn.devices.gpu_facts import on_paper
from jitdnn.errors import InvalidArgument

PROBLEM = "conv_fwd n2 c3 h9 w8 k4 r3 s3 stride1 pad1 f32 nchw"

NET = """
name: "dot"
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "score" type: "InnerProduct" bottom: "conv" top: "score"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
"""
LEARN = """
name: "tiny"
layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "DIGITS" batch_size: 20 }
  transform_param { scale: 0.0125 } }
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""
SOLVER = """
net: "net.prototxt" test_iter: 2 test_interval: 10 base_lr: 0.05 momentum: 0.9 lr_policy: "fixed"
display: 10 max_iter: 20 snapshot: 10 snapshot_prefix: "PREFIX" random_seed: 3
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that are taken for their form only."""
    monkeypatch.setattr(timing, "settle", lambda: None)
    monkeypatch.setattr(timing, "TURN", 0.0)


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    label = np.arange(40) % 10
    data = rng.integers(0, 40, (40, 1, 4, 4)).astype(np.uint8)
    data[np.arange(40), 0, label % 4, label // 4] = 250
    np.savez(tmp_path / "digits.npz", train_data=data, train_label=label.astype(np.uint8))
    (tmp_path / "net.prototxt").write_text(LEARN.replace("DIGITS", str(tmp_path / "digits.npz#train")))
    file = tmp_path / "solver.prototxt"
    file.write_text(SOLVER.replace("PREFIX", str(tmp_path / "tiny")))
    return file


# ---- usage and errors


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"jitdnn {jitdnn.__version__}\n", "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in ("info", "plan", "bench", "train", "test", "time", "demo"):
        assert re.search(rf"\b{command}\b", out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plans"], "plans"),
        (["plan"], "problem"),
        (["bench", "--batch", "0"], "--batch"),
        (["bench", "--direction", "up", PROBLEM], "--direction"),
        (["plan", PROBLEM, "--threads", "many"], "--threads"),
        (["test", "net.prototxt"], "--weights"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("jitdnn: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "conv_fwd n2 c3 h9 w8 k4 r3 s3 strid2"], "column 31"),
        (["plan", "conv_fwd n1 c1 h2 w2 k1 r3 s3"], "pad by 1 more"),
        (["plan", PROBLEM, "--workspace-limit", "64 Mob"], "unit"),
        (["bench"], "nothing to measure"),
        (["bench", "--suite", "clasic"], "classic"),
        (["bench", PROBLEM, "--peer", "magic"], "magic"),
        (["bench", "matmul m2 k2 n2 f32", "--batch", "3"], "convolutions only"),
        (["bench", PROBLEM, "--json", "/nowhere/rows.jsonl"], "/nowhere/rows.jsonl"),
        (["train", "absent.prototxt"], "absent.prototxt"),
        (["time", "package:models/absent.prototxt"], "package:models/lenet.prototxt"),
        (["test", "package:models/lenet.prototxt", "--weights", "absent.jdsnap"], "absent.jdsnap"),
    ],
)
def test_what_fails_is_one_line_and_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("jitdnn: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_reader_that_stops_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jitdnn", "bench", "--list"],
            stdout=write, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert done.stderr == ""


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jitdnn", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"jitdnn {jitdnn.__version__}\n"


# ---- info and plan


def test_info_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "info", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["targets"]["cpu"] == "available"
    assert found["targets"]["cuda"] != "available"
    assert sum(state == "in use" for state in found["instruction_sets"].values()) == 1
    assert found["peak_gflops"]["f32"] > 0
    assert found["settings"]["threads"] == found["threads"] >= 1
    assert found["settings"]["cache_dir"] == os.environ["JITDNN_CACHE_DIR"]
    assert found["code_cache"]["limit"] == found["settings"]["cache_limit"]
    code, out, _ = call(capsys, "info")
    assert code == 0
    for words in (found["device"], "JITDNN_WORKSPACE_LIMIT", "code cache", "tuning store", "opencl"):
        assert words in out


def test_info_prints_the_facts_of_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = on_paper(89)
    gpu = SimpleNamespace(device_id=("cuda", 0), name="some GPU", facts=facts)
    devices = SimpleNamespace(device=lambda index, values: gpu, device_count=lambda: 1, missing=lambda: None)
    target = targets.Target("cuda", devices=lambda: devices, table=lambda: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(targets, "registered", lambda: (target,))
    code, out, _ = call(capsys, "info", "--json")
    assert code == 0
    assert json.loads(out)["gpus"] == {"cuda:0": asdict(facts)}
    code, out, _ = call(capsys, "info")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("facts of cuda:0: "))
    for words in (
        "128 multiprocessors at 2.52 GHz",
        "24 GiB at 1008 GB/s",
        "L2 72 MiB",
        "1536 threads",
        "99 KiB",
    ):
        assert words in line
    assert "0: some GPU" in out


def test_plan_explains(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", PROBLEM)
    assert code == 0
    assert out.splitlines()[0] == PROBLEM
    assert sum(line.endswith("chosen") for line in out.splitlines()) == 1
    for algorithm in ("implicit_gemm", "im2col", "reference"):
        assert algorithm in out


def test_plan_under_a_limit_and_with_measured_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = call(capsys, "plan", PROBLEM, "--workspace-limit", "0", "--threads", "1")
    assert code == 0
    assert "no workspace" in out
    assert re.search(r"implicit_gemm .*refused: needs", out)
    with jitdnn.settings(cache_dir=tmp_path):  # where no other test has stored times
        code, out, _ = call(capsys, "plan", PROBLEM, "--find")
    assert code == 0
    assert re.search(r"> +\w+ +\S+ \ws +measured", out)


# ---- bench


def test_bench_prints_a_table_when_piped(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    code, out, err = call(
        capsys, "bench", PROBLEM, "--direction", "all", "--peer", "im2col", "--batch", "3", "--seconds", "0"
    )
    assert (code, err) == (0, "")
    lines = [line.split("\t") for line in out.splitlines()]
    header, rows = lines[0], lines[1:4]
    assert header == [
        "layer",
        "kind",
        "algorithm",
        "ms",
        "GFLOP/s",
        "of peak",
        "error",
        "workspace",
        "x im2col",
    ]
    assert [row[1] for row in rows] == ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"]
    for row in rows:
        assert row[0].startswith("n3 c3")
        assert float(row[3]) > 0
        assert float(row[-1]) > 0
    assert out.count("geometric mean") == 3


def test_bench_writes_rows(capsys: pytest.CaptureFixture[str], quick: None, tmp_path: Path) -> None:
    suite = tmp_path / "mine.txt"
    suite.write_text(f"net:a*2 {PROBLEM}\nnet:b matmul m3 k4 n5 f32\n")
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):
        code, out, _ = call(
            capsys, "bench", "--suite", suite, "--json", rows, "--seconds", "0", "--threads", "1"
        )
        assert code == 0
        assert "net:a" in out
    read = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["name"], row["count"]) for row in read] == [("a", 2), ("b", 1)] * 2
    assert all(row["threads"] == 1 and row["seconds"] > 0 and row["peers"] == {} for row in read)
    code, out, _ = call(capsys, "bench", "--suite", suite, "--json", "-", "--seconds", "0", "--peer", "none")
    assert code == 0
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["a", "b"]


def test_bench_fails_where_a_problem_does(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    code, out, _ = call(capsys, "bench", PROBLEM, "--algorithm", "magic", "--seconds", "0")
    assert code == 1
    assert f"FAILED {PROBLEM}" in out


def test_bench_lists_its_suites(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "bench", "--list")
    assert code == 0
    assert "resnet18\t11\t11" in out.splitlines()


# ---- train, test, time


def test_train_test_and_resume(capsys: pytest.CaptureFixture[str], solver: Path, tmp_path: Path) -> None:
    plot = tmp_path / "curves.png"
    code, out, err = call(capsys, "train", solver, "--plot", plot)
    assert (code, err) == (0, "")
    for words in ("Learning Rate Policy: fixed", "Iteration 10, Testing net (#0)", "Iteration 10, lr = 0.05",
                  "Optimization Done.", f"curves in {plot}"):  # fmt: skip
        assert words in out
    assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    first, last = tmp_path / "tiny_iter_10.jdsnap", tmp_path / "tiny_iter_20.jdsnap"
    whole = last.read_bytes()

    last.unlink()
    code, out, _ = call(capsys, "train", solver, "--resume", first)
    assert code == 0
    assert "Iteration 0," not in out
    assert last.read_bytes() == whole

    code, out, _ = call(capsys, "test", tmp_path / "net.prototxt", "--weights", last, "--iterations", "2")
    assert code == 0
    assert "Batch 1, accuracy = " in out
    means = dict(re.findall(r"^(\w+) = (\S+)$", out, re.MULTILINE))
    assert float(means["accuracy"]) > 0.9
    assert f"Loss: {means['loss']}" in out


def test_resume_and_weights_exclude_each_other(capsys: pytest.CaptureFixture[str], solver: Path) -> None:
    code, _, err = call(capsys, "train", solver, "--resume", "a.jdsnap", "--weights", "b.npz")
    assert code == 1
    assert "not both" in err


def test_a_damaged_snapshot_is_named(
    capsys: pytest.CaptureFixture[str], solver: Path, tmp_path: Path
) -> None:
    assert call(capsys, "train", solver)[0] == 0
    last = tmp_path / "tiny_iter_20.jdsnap"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    code, _, err = call(capsys, "train", solver, "--resume", last)
    assert code == 1
    assert str(tmp_path / "tiny_iter_10.jdsnap") in err
    assert err.count("\n") == 1


def test_an_interrupt_stops_after_a_snapshot(solver: Path, tmp_path: Path) -> None:
    text = (
        solver.read_text().replace("max_iter: 20", "max_iter: 1000000").replace("snapshot: 10", "snapshot: 0")
    )
    solver.write_text(text)
    complaints = tmp_path / "complaints"
    with complaints.open("w") as stderr:
        training = subprocess.Popen(
            [sys.executable, "-m", "jitdnn", "train", str(solver)],
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    try:
        assert training.stdout is not None
        for line in training.stdout:
            if line.startswith("Iteration 20"):
                break
        training.send_signal(signal.SIGINT)
        out, _ = training.communicate(timeout=60)
    finally:
        training.kill()
    assert training.returncode == 130
    assert complaints.read_text() == ""
    (snapshot,) = tmp_path.glob("tiny_iter_*.jdsnap")
    assert f"--resume {snapshot}" in out


def test_time_prints_as_caffe_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET)
    code, out, _ = call(capsys, "time", net, "--iterations", "2", "--threads", "1")
    assert code == 0
    for layer in ("conv", "score"):
        assert re.search(rf"^ *{layer}\tforward: [\d.e-]+ ms\.$", out, re.MULTILINE)
        assert re.search(rf"^ *{layer}\tbackward: [\d.e-]+ ms\.$", out, re.MULTILINE)
    for words in (
        "Average Forward pass: ",
        "Average Backward pass: ",
        "Average Forward-Backward: ",
        "Total Time: ",
    ):
        assert words in out


def test_a_net_that_is_wrong_says_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET.replace("kernel_size: 3", "kernal_size: 3"))
    code, _, err = call(capsys, "time", net)
    assert code == 1
    assert "line 5" in err
    assert "kernel_size" in err


def test_curves_need_something_to_draw(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nothing to draw"):
        save_png(History(), tmp_path / "a.png", "nothing")


def test_curves_without_matplotlib(
    capsys: pytest.CaptureFixture[str], solver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jitdnn.cli.curves.find_spec", lambda name: None)
    code, out, err = call(capsys, "train", solver, "--plot", tmp_path / "curves.png")
    assert (code, out) == (1, "")  # before the training, not after it
    assert "jitdnn[plot]" in err


# ---- on a terminal


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_tables_on_a_terminal_and_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table("title", ("name", "ms"), [("a", "1.5")], "lr")
    assert capsys.readouterr().out == "name\tms\na\t1.5\n"
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table("title", ("name", "ms"), [("a", "1.5")], "lr")
    assert "title" in terminal.getvalue()
    assert "┃" in terminal.getvalue()


def test_a_bar_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit):
        main(["bench", PROBLEM, "--seconds", "0"])
    assert "measuring" in terminal.getvalue()
    assert "measuring" not in capsys.readouterr().out


# ---- the main job


def test_a_digit_is_drawn_with_two_pixels_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.zeros((12, 12), np.float32)
    image[4, 4] = image[5, 5] = image[6, 6] = image[7, 6] = 0.9
    assert draw(image) == ["▀▄  ", "  █ "]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert draw(image) == ["'_  ", "  # "]


def test_the_demo_does_the_main_job(tmp_path: Path) -> None:
    """The shipped solver learns, to its end: at least 96.5 % of 1,000 digits that it has not seen."""
    folder = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "jitdnn", "demo", "--out", str(folder)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    accuracy = re.search(r"^([\d.]+)% of 1,000 digits", done.stdout, re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) >= 96.5
    # every convolution of LeNet in every direction that training needs
    for problem in (
        "conv1: conv_fwd n64 c1", "conv1: conv_bwd_filter n64 c1",
        "conv2: conv_fwd n64 c20", "conv2: conv_bwd_filter n64 c20", "conv2: conv_bwd_data n64 c20",
    ):  # fmt: skip
        assert problem in done.stdout
    assert re.search(r"training is [\d.]+ times as fast", done.stdout)
    assert "% sure" in done.stdout
    assert "What to try next" in done.stdout
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    # the shipped solver came to its end, iteration 500
    snapshots = sorted(folder.glob("lenet_iter_*.jdsnap"))
    assert [snapshot.name for snapshot in snapshots] == ["lenet_iter_250.jdsnap", "lenet_iter_500.jdsnap"]
    assert str(snapshots[-1]) in done.stdout
