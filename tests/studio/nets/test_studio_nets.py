"""Texts, options and data sets to files of a run, or to what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import NetParameter, SolverParameter, events, load_solver, parse
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio import nets

DIGITS: dict[str, Any] = {
    "id": 1,
    "name": "digits",
    "task": "classification",
    "shape": [1, 28, 28],
    "classes": [str(digit) for digit in range(10)],
    "train": 4000,
    "val": 1000,
    "test": 0,
}
LENET = next(net["text"] for net in nets.gallery() if net["key"] == "lenet")


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_a_net_that_fits(tmp_path: Path) -> None:
    found = nets.check(LENET, {"epochs": 2, "batch": 100}, DIGITS, tmp_path)
    assert found["ok"], found
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["conv1"]["shape"] == [20, 24, 24]
    assert layers["conv1"]["weights"] == 20 * 25 + 20
    assert layers["ip2"]["shape"] == [10]
    assert layers["conv2"]["line"] == line_of(LENET, 'name: "conv2"') - 1
    assert found["weights"] == sum(layer["weights"] for layer in layers.values())
    assert found["iterations"] == 80
    assert found["rates"][0] == 0.0
    assert max(found["rates"]) == 0.01
    assert found["rates"][-1] == pytest.approx(0.01 * 0.2**2)
    assert any("ip2" in change["what"] and "10 outputs" in change["what"] for change in found["changes"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "said", "at"),
    [
        ("num_output: 20", "num_outptu: 20", "did you mean 'num_output'", "num_outptu"),
        ('bottom: "pool1"', 'bottom: "pol1"', "no layer before it has a top 'pol1'", 'bottom: "pol1"'),
        ("kernel_size: 5", "kernel_size: 50", "covers 50 elements", 'layer {\n  name: "conv1"'),
        ('type: "ReLU"', 'type: "Python"', "runs code of its own", "relu1"),
        ('type: "ReLU"', 'type: "HDF5Data"', "files of its own choice", "relu1"),
        ('type: "ReLU"', 'type: "ImageData"', "files of its own choice", "relu1"),
        ('type: "ReLU"', 'type: "WindowData"', "files of its own choice", "relu1"),
        ('type: "ReLU"', 'type: "HDF5Output"', "files of its own choice", "relu1"),
        ('type: "ReLU"', 'type: "RELU6"', "did you mean", "relu1"),
        ("inner_product_param {", "inner_product_param { num_output: 3", "num_output", "num_output: 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(old: str, new: str, said: str, at: str, tmp_path: Path) -> None:
    text = LENET.replace(old, new, 1) if old != "inner_product_param {" else new.join(LENET.rsplit(old, 1))
    found = nets.check(text, {}, DIGITS, tmp_path)
    assert not found["ok"]
    assert said in found["error"]
    assert found["line"] == line_of(text, at)


@pytest.mark.parametrize("text", ["", "  \n", "# nothing", 'name: "x"'])
def test_an_empty_text(text: str, tmp_path: Path) -> None:
    found = nets.check(text, {}, DIGITS, tmp_path)
    assert "no layers yet" in found["error"]


def test_no_loss(tmp_path: Path) -> None:
    text = 'layer { name: "d" type: "Data" top: "data" top: "label" }'
    assert "nothing would learn" in nets.check(text, {}, DIGITS, tmp_path)["error"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch"),
        ({"epochs": "many"}, "epochs is 'many': give a number"),
        ({"rate": "nan"}, "rate"),
        ({"policy": "cosinus"}, "choose one of"),
        ({"steps": "90, 20"}, "ascending"),
        ({"memory_limit": "lots"}, "memory_limit"),
        ({"freeze": ["conv9"]}, "conv9"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = nets.check(LENET, options, DIGITS, tmp_path)
    assert not found["ok"]
    assert said in found["error"]


def test_files_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "7"
    pixels = np.random.default_rng(0).integers(0, 256, (12, 1, 28, 28), np.uint8)
    (tmp_path / "data" / "1").mkdir(parents=True)
    np.save(tmp_path / "data" / "1" / "mean.npy", pixels.mean(0, np.float64).astype(np.float32))
    options = {
        "epochs": 3,
        "batch": 32,
        "seed": 5,
        "mean": "pixel",
        "mirror": True,
        "crop": 26,
        "freeze": "conv1",
    }
    most = nets.write(folder, LENET, options, DIGITS, tmp_path)
    assert most == 3 * 125
    assert (folder / "original.prototxt").read_text() == LENET
    solver = parse((folder / "solver.prototxt").read_text(), SolverParameter)
    assert (solver.max_iter, solver.snapshot, solver.test_interval, solver.random_seed) == (375, 125, 62, 5)
    net = parse((folder / "net.prototxt").read_text(), NetParameter)
    data = [layer for layer in net.layer if layer.type == "Data"]
    assert [layer.include[0].phase for layer in data] == ["TRAIN", "TEST"]
    assert [layer.data_param.source for layer in data] == ["../../data/1#train", "../../data/1#val"]
    for layer in data:
        transform = layer.transform_param
        assert (transform.crop_size, transform.mirror, transform.scale) == (26, True, 0.0125)
        assert transform.mean_value == [pytest.approx(pixels.mean(), abs=1e-4)]
    assert solver.test_iter[0] * data[1].data_param.batch_size == 1000
    conv = next(layer for layer in net.layer if layer.name == "conv1")
    assert [spec.lr_mult for spec in conv.param] == [0, 0]


def test_a_bad_net_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "7"
    with pytest.raises(NotSupported, match="runs code"):
        nets.write(folder, LENET.replace('"ReLU"', '"Python"'), {}, DIGITS, tmp_path)
    with pytest.raises(InvalidArgument, match="batch"):
        nets.write(folder, LENET, {"batch": -1}, DIGITS, tmp_path)
    assert not folder.exists()


def test_the_files_train(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "data" / "1").mkdir(parents=True)
    for part, count in (("train", 40), ("val", 12)):
        labels = np.arange(count) % 10
        np.save(
            tmp_path / "data" / "1" / f"{part}_data.npy", random.integers(0, 9, (count, 1, 20, 20), np.uint8)
        )
        np.save(tmp_path / "data" / "1" / f"{part}_label.npy", labels.astype(np.int64))
    row = {**DIGITS, "shape": [1, 20, 20], "train": 40, "val": 12}
    folder = tmp_path / "runs" / "1"
    assert nets.write(folder, LENET, {"epochs": 1, "batch": 20, "memory_limit": "8 MiB"}, row, tmp_path) == 2
    tested: list[int] = []
    solver = load_solver(
        folder / "solver.prototxt",
        listener=lambda event: tested.append(1) if isinstance(event, events.Tested) else None,
    )
    solver.solve()
    assert solver.iteration == 2
    assert tested
    assert (folder / "solver_iter_2.jdsnap").exists()


@pytest.mark.parametrize(
    ("images", "options", "epochs", "batch", "warmup"),
    [
        (1, {}, 100, 16, 5.0),
        (96, {}, 100, 16, 5.0),
        (400, {}, 47, 32, 5.0),
        (1_000, {}, 38, 64, 5.0),
        (4_000, {}, 10, 64, 5.0),
        (1_000_000, {}, 10, 64, 5.0),
        (96, {"epochs": 3}, 3, 16, 5.0),
        (96, {"batch": 96}, 100, 96, 5.0),
        (4_000, {"batch": 50, "accumulate": 4}, 30, 50, 5.0),
        (4_000, {"warmup": 0}, 10, 64, 0.0),
        (4_000, {"policy": "onecycle"}, 10, 64, 0.0),
    ],
)
def test_options_that_are_empty_follow_the_number_of_images(
    images: int, options: dict[str, Any], epochs: int, batch: int, warmup: float, tmp_path: Path
) -> None:
    dataset = DIGITS | {"train": images}
    found = nets.settled(options, dataset)
    assert (found["epochs"], found["batch"], found["warmup"]) == (epochs, batch, warmup)
    told = nets.check(LENET, options, dataset, tmp_path)
    assert (told["epochs"], told["batch"]) == (epochs, batch)
    steps = -(-images // (batch * options.get("accumulate", 1)))
    assert told["iterations"] == epochs * steps
