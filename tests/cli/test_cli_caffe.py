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

import caffe_protobuf
from caffe_databases import read_database
from command_line import call
from jitdnn import targets
from jitdnn.caffe import load_net
from jitdnn.devices.gpu_facts import on_paper

DATA = """
layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "DIGITS" batch_size: 20 }
  transform_param { scale: 0.0125 } }
"""
SCORE = """
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }\n'
ACCURACY = """
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""


def net_file(folder: Path, *parts: str) -> Path:
    """A net of these parts, and the digits that it reads."""
    label = np.arange(40) % 10
    data = np.random.default_rng(0).integers(0, 40, (40, 1, 4, 4)).astype(np.uint8)
    data[np.arange(40), 0, label % 4, label // 4] = 250
    np.savez(folder / "digits.npz", data=data, label=label.astype(np.uint8))
    file = folder / "net.prototxt"
    file.write_text("".join(parts).replace("DIGITS", str(folder / "digits.npz")))
    return file


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


# ---- extract-features


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_features_are_those_of_the_batches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    """Images one behind the other, and one number a batch of a blob without axes."""
    file, weights, out = (
        net_file(tmp_path, DATA, SCORE, ACCURACY),
        tmp_path / "w.npz",
        tmp_path / f"f.{suffix}",
    )
    net = load_net(file, seed=1)
    net.save_weights(weights)
    expected: dict[str, list[np.ndarray]] = {"score": [], "accuracy": []}
    for _ in range(3):
        net.forward()
        for name, found in expected.items():
            found.append(np.atleast_1d(net.blobs[name].data.copy()))
    options = ["--weights", weights, "--blobs", "score,accuracy", "--iterations", "3"]
    code, text, _ = call(capsys, "extract-features", file, out, *options)
    assert code == 0
    assert text == f"score: 60 x 10\naccuracy: 3\nwrote {out}\n"
    if suffix == "npz":
        found = dict(np.load(out))
    else:
        with pytest.importorskip("h5py").File(out) as features:
            found = {name: features[name][()] for name in features}
    assert set(found) == set(expected)
    for name, parts in expected.items():
        np.testing.assert_array_equal(found[name], np.concatenate(parts))
        assert found[name].dtype == np.float32


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_features_in_databases_as_caffes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    """A record for each image, float_data of (C, H, W), the number in ten digits; read by other libraries."""
    file, weights = net_file(tmp_path, DATA, SCORE, ACCURACY), tmp_path / "w.npz"
    net = load_net(file, seed=1)
    net.save_weights(weights)
    expected: dict[str, list[np.ndarray]] = {"data": [], "score": [], "accuracy": []}
    for _ in range(2):
        net.forward()
        for name, parts in expected.items():
            parts.extend(np.atleast_1d(net.blobs[name].data.copy()))
    out = ",".join(str(tmp_path / f"{name}_db") for name in expected)
    options = ["--weights", weights, "--blobs", ",".join(expected), "--iterations", "2", "--backend", backend]
    code, text, err = call(capsys, "extract-features", file, out, *options)
    assert code == 0, err
    assert text == f"data: 40 records\nscore: 40 records\naccuracy: 2 records\nwrote {out}\n"
    kind = caffe_protobuf.classes()["Datum"]
    for name, images in expected.items():
        records = read_database(tmp_path / f"{name}_db")
        assert [key for key, _ in records] == [b"%010d" % number for number in range(len(images))]
        for (_, value), image in zip(records, images, strict=True):
            found = kind.FromString(value)
            shape = (*np.shape(image), 1, 1, 1)[:3]
            assert (found.channels, found.height, found.width) == shape
            np.testing.assert_array_equal(np.float32(found.float_data), np.ravel(image))
            assert not found.data
    assert not list(tmp_path.glob(".*"))
    code, _, err = call(capsys, "extract-features", file, out, *options)
    assert code == 1
    assert "exists already" in err


@pytest.mark.parametrize(
    ("out", "backend", "words"),
    [
        ("a", "lmdb", "2 blobs (data, score) go to as many databases, and 1"),
        ("a,./a", "lmdb", "give each blob one of its own"),
        ("a,b", "hdf5", "backend is 'hdf5': there are lmdb and leveldb"),
        ("a,file/b", "lmdb", "cannot be written"),
    ],
)
def test_databases_of_features_that_cannot_be(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    backend: str,
    words: str,
) -> None:
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", "data,score", "--iterations", "1", "--backend", backend]
    code, _, err = call(capsys, "extract-features", file, out, *options)
    assert code == 1
    assert words in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("blobs", "out", "words"),
    [
        ("scores", "f.npz", "no blob 'scores': did you mean 'score'?"),
        ("score,score", "f.npz", "name each once"),
        ("score", "f.txt", "written as .npz or .h5"),
        ("score", "no/f.npz", "cannot write"),
    ],
)
def test_features_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, blobs: str, out: str, words: str
) -> None:
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", blobs, "--iterations", "1"]
    code, _, err = call(capsys, "extract-features", file, tmp_path / out, *options)
    assert code == 1
    assert words in err
    assert sorted(tmp_path.iterdir()) == before
    code, _, err = call(
        capsys, "extract-features", "package:models/lenet_deploy.prototxt", tmp_path / "f.npz", *options
    )
    assert "features are extracted from a net with a layer that reads data" in err


@pytest.mark.parametrize("out", ["f.npz", "f.h5"])
def test_features_on_a_full_disk(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: str) -> None:
    resource = pytest.importorskip("resource")
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", "data", "--iterations", "2"]
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, most[1]))
    try:
        code, _, err = call(capsys, "extract-features", file, tmp_path / out, *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert code == 1
    assert "cannot be kept in" in err
    assert "File too large" in err
    assert sorted(tmp_path.iterdir()) == before


# ---- classify

COLOURS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean" pooling_param { pool: AVE global_pooling: true } }
layer { name: "score" type: "InnerProduct" bottom: "mean" top: "score" inner_product_param { num_output: 3 } }
"""


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A net whose scores are the means of blue, green and red, less those of the mean; its weights, names, an image."""
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "colours.prototxt"
    file.write_text(COLOURS)
    net = load_net(file)
    net.weights["score"][0].data[...] = np.eye(3)
    net.save_weights(tmp_path / "colours.npz")
    (tmp_path / "names.txt").write_text("blue\ngreen\nred\n")
    (tmp_path / "two.txt").write_text("blue\ngreen\n")
    np.save(tmp_path / "mean.npy", np.full((3, 9, 9), [[[10.0]], [[0.0]], [[100.0]]]))
    image.fromarray(np.full((8, 8, 3), (200, 40, 120), np.uint8)).save(tmp_path / "image.png")
    return tmp_path


def test_classify(capsys: pytest.CaptureFixture[str], colours: Path) -> None:
    command = [
        "classify",
        colours / "colours.prototxt",
        colours / "image.png",
        "--weights",
        colours / "colours.npz",
    ]
    title = f"---------- Prediction for {colours}/image.png ----------"
    code, out, _ = call(capsys, *command, "--labels", colours / "names.txt")
    assert code == 0
    assert out.splitlines() == [title, '200.0000 - "red"', '120.0000 - "blue"', '40.0000 - "green"']
    code, out, _ = call(
        capsys, *command, "--mean", colours / "mean.npy", "--top", "2", "--input-scale", "0.5"
    )
    assert out.splitlines() == [title, '55.0000 - "0"', '50.0000 - "2"']
    code, out, _ = call(capsys, *command, "--oversample", "--resize", "5,6", "--channel-swap", "0,1,2")
    assert out.splitlines()[1:] == ['200.0000 - "0"', '120.0000 - "2"', '40.0000 - "1"']


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--labels", "mean.npy"], "cannot be read as text"),
        (["--labels", "two.txt"], "names 2 classes, and the net has 3: a line for each"),
        (["--mean", "absent.npy"], "absent.npy"),
        (["--resize", "3,9"], "--resize is 3,9: height and width of at least 4,4"),
        (["--resize", "x"], "give integers between commas"),
        (["--channel-swap", "0,0,1"], "must name each of the 3 channels"),
    ],
)
def test_what_cannot_be_classified(
    capsys: pytest.CaptureFixture[str],
    colours: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(colours)
    command = ["classify", "colours.prototxt", "image.png", "--weights", "colours.npz"]
    code, out, err = call(capsys, *command, *options)
    assert (code, out) == (1, "")
    assert words in err
