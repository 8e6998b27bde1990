"""Texts from anywhere: what is repaired, what is replaced, what is refused, and which loss a task gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import NetParameter, SolverParameter, parse, to_text
from jitdnn.caffe.policies import LearningRate
from jitdnn.caffe.schema import LayerParameter
from jitdnn.studio import nets

ROW: dict[str, Any] = {
    "id": 3,
    "name": "photographs",
    "task": "classification",
    "shape": [3, 24, 32],
    "classes": ["brick", "grass", "gravel"],
    "train": 50,
    "val": 0,
    "test": 11,
}
NET = """name: "n"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.5 mirror: true mean_file: "/etc/mean.binaryproto" }
  data_param { source: "/etc/passwd" batch_size: 7 backend: LMDB rand_skip: 3 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "../../secret" batch_size: 9 } }
layer { name: "trunk" type: "Convolution" bottom: "data" top: "trunk"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "scores" type: "InnerProduct" bottom: "trunk" top: "scores"
  inner_product_param { weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""


def written(text: str, home: Path, options: dict[str, Any] | None = None, **row: Any) -> list[LayerParameter]:
    folder = home / "data" / "3"
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (50, *{**ROW, **row}["shape"]), np.uint8)
    np.save(folder / "train_data.npy", images)
    np.save(folder / "mean.npy", images.mean(0, np.float64).astype(np.float32))
    nets.write(home / "runs" / "1", text, options or {}, {**ROW, **row}, home)
    return parse((home / "runs" / "1" / "net.prototxt").read_text(), NetParameter).layer


def test_sources_and_means_are_those_of_the_data_set(tmp_path: Path) -> None:
    layers = written(NET, tmp_path, {"batch": 10})
    assert "passwd" not in (tmp_path / "runs" / "1" / "net.prototxt").read_text()
    train, tested = layers[:2]
    assert [to_text(layer.data_param).split() for layer in (train, tested)] == [
        ["source:", '"../../data/3#train"', "batch_size:", "10"],
        ["source:", '"../../data/3#test"', "batch_size:", "11"],
    ]
    assert train.transform_param.mean_file == "mean.npy"
    images = np.load(tmp_path / "data" / "3" / "train_data.npy")
    np.testing.assert_allclose(np.load(tmp_path / "runs" / "1" / "mean.npy"), images.mean(0), rtol=1e-6)
    changes = nets.check(NET, {}, ROW, tmp_path)["changes"]
    assert any(change["line"] == 2 and "mean image" in change["what"] for change in changes)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ('layer { name: "x" type: "Python" bottom: "data" top: "x" python_param { module: "os" layer: "L" } }', "code"),
        ('layer { name: "x" type: "HDF5Data" top: "x" hdf5_data_param { source: "/etc/passwd" } }', "files"),
        ('layer { name: "x" type: "HDF5Output" bottom: "data" hdf5_output_param { file_name: "/tmp/x" } }', "files"),
        ('layer { name: "x" type: "InfogainLoss" bottom: "scores" bottom: "label" top: "x" '
         'infogain_loss_param { source: "/etc/shadow" } }', "infogain_loss_param.source"),
    ],
)  # fmt: skip
def test_layers_with_files_of_their_own_are_refused(layer: str, said: str, tmp_path: Path) -> None:
    found = nets.check(NET + layer, {}, ROW, tmp_path)
    assert not found["ok"]
    assert found["line"] == 12
    assert "'x'" in found["error"]
    assert said in found["error"]


def test_what_web_pages_damaged_is_repaired_and_told(tmp_path: Path) -> None:
    damaged = NET.replace('name: "trunk" type', "name: “trunk” type").replace(
        'bottom: "trunk"', 'bottom:\u00a0"trunk"'
    )
    found = nets.check(damaged, {}, ROW, tmp_path)
    assert found["ok"], found
    said = [(change["line"], change["what"]) for change in found["changes"]]
    assert any(line == 7 and "quotation marks" in what for line, what in said)
    assert any(line == 9 and "blanks" in what for line, what in said)


def test_older_syntax_is_read(tmp_path: Path) -> None:
    v1 = """name: "old"
layers { name: "data" type: DATA top: "data" top: "label" data_param { source: "x" batch_size: 3 scale: 0.5 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip"
  inner_product_param { weight_filler { type: "xavier" } } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" }
"""
    layers = written(v1, tmp_path)
    assert layers[0].transform_param.scale == 0.5
    assert next(layer for layer in layers if layer.name == "ip").inner_product_param.num_output == 3


def test_a_net_that_answers_is_given_data_and_a_loss(tmp_path: Path) -> None:
    deploy = """name: "d"
input: "data" input_dim: [1, 3, 9, 9]
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
    layers = written(deploy, tmp_path)
    assert [layer.type for layer in layers] == ["Data", "Data", "InnerProduct", "Accuracy", "SoftmaxWithLoss"]
    assert layers[2].inner_product_param.num_output == 3


@pytest.mark.parametrize(
    ("task", "loss"),
    [
        ("classification", "SoftmaxWithLoss"),
        ("multi-label", "SigmoidCrossEntropyLoss"),
        ("regression", "EuclideanLoss"),
    ],
)
def test_the_loss_of_a_task(task: str, loss: str, tmp_path: Path) -> None:
    text = (
        NET
        + 'layer { name: "a" type: "Accuracy" bottom: "scores" bottom: "label" top: "a" include { phase: TEST } }'
    )
    found = nets.check(text, {}, {**ROW, "task": task}, tmp_path)
    assert found["ok"], found
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["loss"]["type"] == loss
    assert layers["scores"]["shape"] == [3]
    kinds = [layer.type for layer in written(text, tmp_path, task=task)]
    assert ("Accuracy" in kinds) == (task == "classification")


def test_tasks_that_a_net_is_not_for(tmp_path: Path) -> None:
    boxes = nets.check(NET, {}, {**ROW, "task": "detection"}, tmp_path)
    assert "not trained" in boxes["error"]
    pixels = nets.check(NET, {}, {**ROW, "task": "segmentation"}, tmp_path)
    assert not pixels["ok"]
    assert pixels["line"] == 11


@pytest.mark.parametrize("policy", nets.SCHEDULES)
def test_rates_are_those_of_the_solver(policy: str, tmp_path: Path) -> None:
    found = nets.check(NET, {"policy": policy, "epochs": 100, "batch": 7, "rate": 0.1}, ROW, tmp_path)
    solver = parse(found["solver"], SolverParameter)
    rate = LearningRate(solver)
    all_rates = [rate.at(iteration) for iteration in range(solver.max_iter)]
    assert found["rates"][0] == all_rates[0]
    assert found["rates"][-1] == all_rates[-1]
    places = [(solver.max_iter - 1) * k // 119 for k in range(120)]
    assert found["rates"] == [all_rates[place] for place in places]
    assert max(found["rates"]) <= 0.1
    assert policy == "fixed" or found["rates"][-1] < 0.05


def test_a_solver_of_all_options(tmp_path: Path) -> None:
    options = {
        "solver": "Adam", "accumulate": 2, "batch": 5, "epochs": 4, "clip": 3, "snapshots": 2, "tests": 5, "decay": 0.1,
        "policy": "multistep", "steps": "50, 90", "gamma": 0.5, "momentum": 0.8, "seed": 9,
    }  # fmt: skip
    solver = parse(nets.check(NET, options, ROW, tmp_path)["solver"], SolverParameter)
    assert (solver.type, solver.iter_size, solver.max_iter, solver.clip_gradients) == ("Adam", 2, 20, 3)
    assert (solver.snapshot, solver.test_interval, solver.weight_decay, solver.stepvalue) == (
        2,
        1,
        0.1,
        [10, 18],
    )
    assert (solver.gamma, solver.momentum, solver.random_seed) == (0.5, 0.8, 9)
    at_the_end = parse(nets.check(NET, {"snapshots": 0}, ROW, tmp_path)["solver"], SolverParameter)
    assert at_the_end.snapshot == 0
    without = parse(nets.check(NET, {"solver": "RMSProp"}, ROW, tmp_path)["solver"], SolverParameter)
    assert not without.has("momentum")
