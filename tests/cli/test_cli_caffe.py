"""Caffe's commands: what `train`, `test` and `time` do beside their main job, and the tools."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from caffe_commands import ACCURACY, DATA, LOSS, SCORE, net_file
from command_line import call
from jitdnn import targets
from jitdnn.caffe import load_net
from jitdnn.devices.gpu_facts import on_paper

# ---- test


def test_a_net_for_deployment_has_nothing_to_test(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = "package:models/lenet_deploy.prototxt"
    load_net(net).save_weights(tmp_path / "w.npz")
    code, out, err = call(capsys, "test", net, "--weights", tmp_path / "w.npz")
    assert (code, out) == (1, "")
    assert "takes its data from the caller" in err


def test_a_net_without_losses_has_no_line_of_the_loss(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = net_file(tmp_path, DATA, SCORE, ACCURACY)
    load_net(file).save_weights(tmp_path / "w.npz")
    code, out, _ = call(capsys, "test", file, "--weights", tmp_path / "w.npz", "--iterations", "2")
    assert code == 0
    assert "Batch 1, accuracy = " in out
    assert "Loss" not in out


# ---- train


def test_training_a_net_says_that_it_is_no_solver(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = net_file(tmp_path, DATA, SCORE, LOSS)
    code, out, err = call(capsys, "train", file)
    assert (code, out) == (1, "")
    assert err.startswith(f"jitdnn: {file} is a net, not a solver")


def solver_file(folder: Path, fields: str = "") -> Path:
    net = net_file(folder, DATA, SCORE, LOSS)
    file = folder / "solver.prototxt"
    file.write_text(f'net: "{net}" base_lr: 0.05 lr_policy: "fixed" snapshot_prefix: "{folder}/run" {fields}')
    return file


def test_weights_of_several_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Later files over earlier ones, between commas or as options of their own."""
    solver = solver_file(tmp_path, "max_iter: 0 snapshot_after_train: true")
    net = load_net(tmp_path / "net.prototxt", seed=1)
    for name, value in (("a", 1.0), ("b", 2.0)):
        net.weights["score"][0].data.fill(value)
        net.save_weights(tmp_path / f"{name}.npz")
    for options in (["--weights", f"{tmp_path}/a.npz,{tmp_path}/b.npz"],
                    ["--weights", f"{tmp_path}/a.npz", "--weights", f"{tmp_path}/b.npz"]):  # fmt: skip
        code, out, _ = call(capsys, "train", solver, *options)
        assert code == 0
        assert out.index("a.npz") < out.index("b.npz")
        net.load_weights(tmp_path / "run_iter_0.jdsnap")
        assert (net.weights["score"][0].data == 2).all()


def test_stages_and_levels_choose_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    extra = """layer { name: "extra" type: "Softmax" bottom: "score" top: "extra"
                 include { stage: "one" stage: "two" min_level: 3 } }"""
    file = net_file(tmp_path, DATA, SCORE, extra)
    load_net(file).save_weights(tmp_path / "w.npz")
    for command in (["time", file, "--iterations", "1"],
                    ["test", file, "--iterations", "1", "--weights", tmp_path / "w.npz"]):  # fmt: skip
        for options in ([], ["--stage", "one,two"], ["--level", "3", "--stage", "one"]):
            code, out, _ = call(capsys, *command, *options)
            assert code == 0
            assert "extra" not in out
    code, out, _ = call(capsys, "time", file, "--iterations", "1", "--stage", "one,two", "--level", "3")
    assert "extra\tforward" in out
    solver = solver_file(tmp_path, "max_iter: 1 display: 1")
    net_file(tmp_path, DATA, SCORE, LOSS, extra)
    assert "extra" not in call(capsys, "train", solver)[1]
    assert (
        "Train net output #1: extra"
        in call(capsys, "train", solver, "--stage", "one", "--stage", "two", "--level", "3")[1]
    )


@pytest.mark.parametrize(
    ("number", "options", "is_stopped"),
    [
        (signal.SIGHUP, [], False),
        (signal.SIGHUP, ["--sighup-effect", "stop"], True),
        (signal.SIGINT, ["--sigint-effect", "snapshot"], False),
        (signal.SIGINT, ["--sigint-effect", "none", "--sighup-effect", "snapshot"], None),
    ],
)  # fmt: skip
def test_signals(tmp_path: Path, number: int, options: list[str], is_stopped: bool | None) -> None:
    """A snapshot after the iteration, and training goes on; a stop; nothing."""
    solver = solver_file(tmp_path, "max_iter: 1000000 display: 20")
    training = subprocess.Popen(
        [sys.executable, "-m", "jitdnn", "train", str(solver), *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert training.stdout is not None
        lines = iter(training.stdout)
        assert any(line.startswith("Iteration 20") for line in lines)
        training.send_signal(number)
        if is_stopped is None:  # nothing happens, and the other signal works on
            training.send_signal(signal.SIGHUP)
        taken = next(line for line in lines if line.startswith("Snapshotting to "))
        if is_stopped:
            assert training.wait(30) == 130
        else:
            assert any(re.match(r"Iteration \d+", line) for line in lines)
            assert training.poll() is None
    finally:
        training.kill()
        training.communicate()
    assert Path(taken.split()[-1]).exists()


@pytest.mark.parametrize("gpu", ["77", "77,78"])
def test_gpus_that_are_not_here(capsys: pytest.CaptureFixture[str], tmp_path: Path, gpu: str) -> None:
    solver = solver_file(tmp_path, "max_iter: 1")
    load_net(tmp_path / "net.prototxt").save_weights(tmp_path / "w.npz")
    net, weights = tmp_path / "net.prototxt", ["--weights", tmp_path / "w.npz"]
    commands = [["train", solver], ["time", net], ["test", net, *weights]]
    commands += [["extract-features", net, tmp_path / "f.npz", *weights, "--blobs", "x"]]
    commands += [["classify", net, tmp_path / "image.png", *weights]]
    for command in commands:
        code, out, err = call(capsys, *command, "--gpu", gpu)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
    assert not (tmp_path / "f.npz").exists()


@pytest.mark.parametrize(("gpu", "lookups"), [("all", [0, 1]), ("1,0", [1, 0]), ("1", [1])])
def test_gpus_are_looked_for_once_before_processes_start(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpu: str,
    lookups: list[int],
) -> None:
    found: list[int] = []

    def device(index: int, values: object) -> SimpleNamespace:
        found.append(index)
        return SimpleNamespace(device_id=("cuda", index), name="some GPU", facts=on_paper(89))

    devices = SimpleNamespace(device=device, device_count=lambda: 2, missing=lambda: None)
    target = targets.Target("cuda", devices=lambda: devices, table=lambda: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(targets, "registered", lambda: (target,))
    monkeypatch.setattr(targets, "find", lambda name: target)
    started: list[object] = []
    monkeypatch.setattr("jitdnn.cli.train.run_train", lambda *words: started.append(words[8]) or 0)
    launcher = SimpleNamespace(launch=lambda words, count, more: started.append(count) or 0)
    monkeypatch.setitem(sys.modules, "jitdnn.distributed.launch", launcher)  # the real one imports PyTorch
    solver = solver_file(tmp_path, "max_iter: 1")
    assert call(capsys, "train", solver, "--gpus", gpu)[0] == 0
    assert found == lookups
    assert started == ([2] if len(lookups) > 1 else [["cuda:1"]])


@pytest.mark.parametrize("gpu", ["0,1", "all"])
def test_a_net_is_timed_and_tested_on_one_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, gpu: str
) -> None:
    solver_file(tmp_path, "max_iter: 1")
    load_net(tmp_path / "net.prototxt").save_weights(tmp_path / "w.npz")
    for command in (["time", tmp_path / "net.prototxt"],
                    ["test", tmp_path / "net.prototxt", "--weights", tmp_path / "w.npz"]):  # fmt: skip
        code, out, err = call(capsys, *command, "--gpu", gpu)
        assert (code, out) == (1, "")
        assert "a net runs on one GPU" in err


# ---- time


def test_time_prints_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    net = "package:models/lenet_deploy.prototxt"
    code, out, _ = call(capsys, "time", net, "--iterations", "3", "--phase", "TEST")
    assert code == 0
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == ("*** Benchmark begins ***", "*** Benchmark ends ***")
    assert len(re.findall(r"^Iteration: [123] forward-backward time: \S+ ms\.$", out, re.MULTILINE)) == 3


# ---- upgrade


def test_upgrade_nets_and_solvers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new = tmp_path / "old.prototxt", tmp_path / "new.prototxt"
    old.write_text(
        'layers { layer { name: "a" type: "relu" } bottom: "x" top: "a" }\n'
        'layers { name: "b" type: SOFTMAX bottom: "a" top: "b" }'
    )
    assert call(capsys, "upgrade", old, new) == (0, f"wrote {new}\n", "")
    code, out, _ = call(capsys, "upgrade", new)
    assert (code, out) == (0, new.read_text())
    assert out.count("layer {") == 2
    assert 'type: "ReLU"' in out
    old.write_text("solver_type: ADAM base_lr: 0.5 train_net_param { layers { name: 'a' type: RELU } }")
    code, out, _ = call(capsys, "upgrade", old)
    assert code == 0
    assert 'type: "Adam"' in out
    assert 'type: "ReLU"' in out
    assert "solver_type" not in out


def test_upgrade_binary_nets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net, file = load_net("package:models/lenet_deploy.prototxt", seed=1), tmp_path / "net.caffemodel"
    net.save_weights(file)
    new, text = tmp_path / "new.caffemodel", tmp_path / "new.prototxt"
    assert call(capsys, "upgrade", file, new) == (0, f"wrote {new}\n", "")
    assert new.read_bytes() == file.read_bytes()
    assert call(capsys, "upgrade", file, text) == (0, f"wrote {text}\n", "")
    assert call(capsys, "upgrade", new) == (0, text.read_text(), "")
    assert load_net(text, weights=new).load_weights(file) == list(net.weights)
    file.write_bytes(file.read_bytes()[:1000])
    new.unlink()
    code, _, err = call(capsys, "upgrade", file, new)
    assert code == 1
    assert str(file) in err
    assert not new.exists()
    code, _, err = call(capsys, "upgrade", text, new)
    assert code == 1
    assert "name a .prototxt" in err
    assert not new.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layer { nam: 'a' }", "did you mean 'name'"),
        ("layers { layer { type: 'cov' } }", "did you mean 'conv'"),
    ],
)
def test_what_cannot_be_upgraded_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    old = tmp_path / "old.prototxt"
    old.write_text(text)
    code, out, err = call(capsys, "upgrade", old, tmp_path / "new.prototxt")
    assert (code, out) == (1, "")
    assert words in err
    assert str(old) in err
    assert [path.name for path in tmp_path.iterdir()] == ["old.prototxt"]
    code, _, err = call(capsys, "upgrade", "package:models/lenet.prototxt", tmp_path / "no" / "new.prototxt")
    assert code == 1
    assert "cannot write" in err


def test_import_from_a_web_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, net = tmp_path / "page.txt", tmp_path / "net.prototxt"
    page.write_text(
        "layers { name: “d” type: DATA top: “x” layers { name: “r” type: RELU bottom: “d” top: “r” }"
    )
    code, out, err = call(capsys, "import-prototxt", page, net, "--input", "x=2,3")
    assert (code, out) == (0, f"wrote {net}\n")
    assert f"{page}, line 1: typographic quotation marks (U+201C) replaced\n" in err
    assert "bottom 'd' of layer 'r' is the name of a layer: its first top 'x'" in err
    assert load_net(net).forward(x=np.ones((2, 3)))["r"].sum() == 6
    for options, words in (
        ([], "names no source of data"),
        (["--input", "y=1"], "names no source"),
        (["--input", "x=1,a"], "--input is 'x=1,a'"),
        (["--input", "x"], "--input is 'x'"),
        (["--input", "x=-1"], "--input is 'x=-1'"),
    ):
        code, out, err = call(capsys, "import-prototxt", page, *options)
        assert (code, out) == (1, "")
        assert words in err


# ---- draw


def test_draw(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = "package:models/lenet.prototxt"
    for phase, words in (("TRAIN", "SoftmaxWithLoss"), ("TEST", "Accuracy")):
        assert call(capsys, "draw", net, tmp_path / "a.svg", "--phase", phase)[0] == 0
        assert words in (tmp_path / "a.svg").read_text()
    assert call(capsys, "draw", net, tmp_path / "a.dot", "--rankdir", "LR")[0] == 0
    assert (tmp_path / "a.dot").read_text().startswith("digraph")
    for out, words in ((tmp_path / "no" / "a.svg", "cannot write"), (tmp_path / "a", "must end in")):
        code, _, err = call(capsys, "draw", net, out)
        assert code == 1
        assert words in err
    code, _, err = call(capsys, "draw", "package:models/lenet_solver.prototxt", tmp_path / "c.svg")
    assert code == 1
    assert "is a solver, not a net" in err


# ---- device-query


def test_device_query(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = call(capsys, "device-query", "--gpu", "77")
    assert (code, out) == (1, "")
    assert "there is no cuda:77" in err
    assert "give numbers" in call(capsys, "device-query", "--gpu", "cpu")[2]
    gpu = SimpleNamespace(device_id=("cuda", 0), name="some GPU", facts=on_paper(89))
    devices = SimpleNamespace(device=lambda index, values: gpu, device_count=lambda: 1, missing=lambda: None)
    target = targets.Target("cuda", devices=lambda: devices, table=lambda: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(targets, "registered", lambda: (target,))
    for options in ([], ["--gpu", "0"], ["--gpu", "all"], ["--gpu", "cuda:0"]):
        code, out, _ = call(capsys, "device-query", *options)
        assert code == 0
        rows = dict(re.findall(r"^(.+?):\s+(.+)$", out, re.MULTILINE))
        assert rows["Name"] == "some GPU"
        assert (rows["Major revision number"], rows["Minor revision number"]) == ("8", "9")
        assert rows["Number of multiprocessors"] == "128"
        assert rows["Total global memory"] == str(24 << 30)
    monkeypatch.setattr(targets, "registered", tuple)
    assert "no GPU" in call(capsys, "device-query")[1]
