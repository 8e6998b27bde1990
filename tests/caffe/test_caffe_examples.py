"""BVLC's examples as they stand, over data in Caffe's formats, for a few iterations."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caffe_databases import datum, write_leveldb, write_lmdb
from jitdnn.caffe import Solver, load_net, load_solver
from jitdnn.caffe.datasets import compute_mean
from jitdnn.caffe.events import Event, WaitedForData
from paths import ROOT, SHARED

BENCHMARKS = ROOT / "benchmarks"
PROTOTXT = SHARED / "prototxt"
FIELDS = (
    'base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" max_iter: 4 display: 1 test_iter: 1 test_interval: 4 '
    'test_initialization: false snapshot_format: BINARYPROTO snapshot_prefix: "run"'
)


def example(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net of ../shared, copied to where Caffe's own paths lead from the working directory, which becomes `folder`."""
    file = PROTOTXT / name
    if not file.exists():
        pytest.skip(f"{file} is not here")
    monkeypatch.chdir(folder)
    copy = folder / "net.prototxt"
    shutil.copy(file, copy)
    return copy


def digits(count: int, shape: tuple[int, int, int]) -> list[tuple[bytes, bytes]]:
    """Images whose label can be seen: a bright row."""
    random = np.random.default_rng(0)
    records = []
    for index in range(count):
        image = random.integers(0, 60, shape, np.uint8)
        image[:, 2 * (index % 10) : 2 * (index % 10) + 2] = 250
        records.append((b"%08d" % index, datum(image, index % 10)))
    return records


def trained(text: str) -> tuple[Solver, list[Event]]:
    told: list[Event] = []
    solver = load_solver(text, seed=1, listener=told.append)
    solver.net.forward()
    first = solver.net.loss
    solver.solve()
    losses = [event.loss for event in told if hasattr(event, "loss") and hasattr(event, "rate")]
    assert np.isfinite([first, *losses]).all()
    assert any(isinstance(event, WaitedForData) for event in told)
    for suffix in ("jdsnap", "caffemodel", "solverstate"):
        assert Path(f"run_iter_4.{suffix}").exists()
    return solver, told


def test_lenet_on_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = example("mnist/lenet_train_test.prototxt", tmp_path, monkeypatch)
    (tmp_path / "examples/mnist").mkdir(parents=True)
    write_lmdb(tmp_path / "examples/mnist/mnist_train_lmdb", digits(150, (1, 28, 28)))
    write_lmdb(tmp_path / "examples/mnist/mnist_test_lmdb", digits(100, (1, 28, 28)))
    solver, _ = trained(f'net: "{net}" {FIELDS.replace("max_iter: 4", "max_iter: 12")} snapshot: 4')
    accuracy = next(output for output in solver.test(0).outputs if output.name == "accuracy")
    assert accuracy.value > 0.5  # of ten classes


def test_cifar10_quick_with_its_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = example("cifar10/cifar10_quick_train_test.prototxt", tmp_path, monkeypatch)
    folder = tmp_path / "examples/cifar10"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        write_lmdb(folder / f"cifar10_{part}_lmdb", digits(30, (3, 32, 32)))
    compute_mean(folder / "cifar10_train_lmdb", folder / "mean.binaryproto")
    solver, _ = trained(f'net: "{net}" {FIELDS}')
    data = solver.net.blobs["data"].data
    assert abs(float(data.mean())) < 3  # the mean was subtracted


def test_siamese_on_leveldb_with_two_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = example("v1_legacy/siamese__mnist_siamese_train_test.prototxt", tmp_path, monkeypatch)
    (tmp_path / "examples/siamese").mkdir(parents=True)
    for part in ("train", "test"):
        write_leveldb(tmp_path / f"examples/siamese/mnist_siamese_{part}_leveldb", digits(20, (2, 28, 28)))
    solver, _ = trained(f'net: "{net}" {FIELDS}')
    assert solver.net.blobs["pair_data"].shape[1:] == (2, 28, 28)
    np.testing.assert_array_equal(solver.net.weights["conv1"][0].data, solver.net.weights["conv1_p"][0].data)


def test_logistic_regression_on_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    data = random.standard_normal((300, 4)).astype("f4")
    names = []
    for number, part in enumerate(np.split(data, 3)):
        with h5py.File(tmp_path / f"train{number}.h5", "w") as file:
            file["data"], file["label"] = part, (part.sum(axis=1) > 0).astype("f4")
        names.append(f"train{number}.h5\n")
    (tmp_path / "train.txt").write_text("".join(names))
    text = """net_param {
      layer { name: "d" type: "HDF5Data" top: "data" top: "label"
              hdf5_data_param { source: "train.txt" batch_size: 50 shuffle: true } }
      layer { name: "fc1" type: "InnerProduct" bottom: "data" top: "fc1"
              inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
      layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc1" bottom: "label" top: "loss" }
      layer { name: "accuracy" type: "Accuracy" bottom: "fc1" bottom: "label" top: "accuracy" include { phase: TEST } }
    } base_lr: 1 momentum: 0.9 lr_policy: "fixed" max_iter: 40 test_iter: 6 test_interval: 40
      test_initialization: false snapshot_after_train: false"""
    solver: Any = load_solver(text, seed=1)
    solver.solve()
    assert {output.name: output.value for output in solver.test(0).outputs}["accuracy"] > 0.9


# ---- the program that trains all of Caffe's solvers, benchmarks/caffe_examples.py


@pytest.mark.parametrize(
    "solver",
    ["mnist/lenet_consolidated_solver", "mnist/lenet_auto_solver", "cifar10/cifar10_quick_solver_lr1"],
)
def test_solvers_as_they_stand(solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver with its net in it and two test nets, nets that a program writes, HDF5 snapshots and a mean."""
    if not PROTOTXT.is_dir():
        pytest.skip(f"{PROTOTXT} is not here")
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.chdir(tmp_path)
    import caffe_examples

    name = f"examples/{solver}.prototxt"
    file = caffe_examples.lay_out(name, [PROTOTXT], tmp_path)
    assert file == tmp_path / name
    row = caffe_examples.train(file, SimpleNamespace(device="cpu", iterations=3, large=1))
    assert row["iterations"] == 3
    assert row["files"] == (".h5 .jdsnap" if "lr1" in solver else ".caffemodel .jdsnap .solverstate")
    assert caffe_examples.lay_out(name, [tmp_path / "nowhere"], tmp_path) is None


def test_large_images_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the nets of ImageNet, Flickr's styles and Pascal's detections read."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.chdir(tmp_path)
    import caffe_example_files

    caffe_example_files.write_large_images(tmp_path, count=6)
    transform = 'crop_size: 227 mirror: true mean_file: "data/ilsvrc12/imagenet_mean.binaryproto"'
    windows = "examples/finetune_pascal_detection/window_file_2007_trainval.txt"
    sources = {
        "Data": 'data_param { source: "examples/imagenet/ilsvrc12_train_lmdb" batch_size: 4 backend: LMDB }',
        "ImageData": 'image_data_param { source: "data/flickr_style/train.txt" batch_size: 4 new_height: 256 '
        "new_width: 256 }",
        "WindowData": f'window_data_param {{ source: "{windows}" batch_size: 4 fg_fraction: 0.25 context_pad: 16 }}',
    }
    for kind, source in sources.items():
        net = load_net(
            f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" {source} transform_param {{ {transform} }} }}',
            "TRAIN",
            seed=1,
        )
        tops = net.forward()
        assert tops["data"].shape == (4, 3, 227, 227), kind
        assert np.isfinite(tops["data"]).all()
        assert tops["data"].std() > 10, kind
        labels = tops["label"].tolist()
        if kind == "WindowData":  # a quarter of the batch are windows of objects, and class 0 are the others
            assert sum(label > 0 for label in labels) == 1
        elif kind == "ImageData":
            assert labels == [0, 1, 2, 3]
        else:
            assert set(labels) <= set(range(6))
            assert len(set(labels)) == 4
