"""What a training would take: operations, memory, algorithms; and starting from trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.caffe import NetParameter, SolverParameter, load_solver, parse
from jitdnn.studio import nets

DIGITS: dict[str, Any] = {
    "id": 1,
    "name": "digits",
    "task": "classification",
    "shape": [1, 28, 28],
    "classes": [str(digit) for digit in range(10)],
    "train": 40,
    "val": 10,
    "test": 0,
}
LENET = next(net["text"] for net in nets.gallery() if net["key"] == "lenet")
SMALL = """name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.01 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 5 stride: 4 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "scores" type: "InnerProduct" bottom: "conv" top: "scores"
  inner_product_param { weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""


def data(home: Path) -> None:
    random = np.random.default_rng(0)
    (home / "data" / "1").mkdir(parents=True)
    for part, count in (("train", 40), ("val", 10)):
        np.save(
            home / "data" / "1" / f"{part}_data.npy", random.integers(0, 256, (count, 1, 28, 28), np.uint8)
        )
        np.save(home / "data" / "1" / f"{part}_label.npy", np.arange(count) % 10)


def test_operations_and_bytes(tmp_path: Path) -> None:
    found = nets.check(LENET, {"batch": 64}, DIGITS, tmp_path)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["conv1"]["flops"] == 2 * 25 * 20 * 24 * 24
    assert layers["conv2"]["flops"] == 2 * 25 * 20 * 50 * 8 * 8
    assert layers["ip1"]["flops"] == 2 * 800 * 500
    assert found["flops"] == sum(layer["flops"] for layer in layers.values())
    assert layers["conv1"]["bytes"] == 2 * 4 * 64 * 20 * 24 * 24
    assert layers["relu1"]["bytes"] == 0
    adam = nets.check(LENET, {"batch": 64, "solver": "Adam"}, DIGITS, tmp_path)
    assert adam["memory"] - found["memory"] == 4 * found["weights"]


def test_what_may_not_be_meant(tmp_path: Path) -> None:
    large = {**DIGITS, "shape": [3, 200, 200]}
    assert any("20 to 64 pixels" in each for each in nets.check(LENET, {}, large, tmp_path)["warnings"])
    assert not nets.check(LENET, {"crop": 40}, large, tmp_path)["warnings"]
    with jd.settings(load_limit="1 MiB"):
        found = nets.check(LENET, {"batch": 64}, DIGITS, tmp_path)
    assert found["ok"]
    assert any("a smaller batch" in each for each in found["warnings"])


def test_a_huge_batch_is_looked_at_without_its_memory(tmp_path: Path) -> None:
    alexnet = next(net["text"] for net in nets.gallery() if net["key"] == "alexnet")
    row = {**DIGITS, "shape": [3, 227, 227], "train": 100_000}
    with jd.settings(load_limit="64 MiB"):
        found = nets.check(alexnet, {"batch": 4096}, row, tmp_path)
    assert found["ok"], found
    assert found["memory"] > 20 << 30


def test_plan(tmp_path: Path) -> None:
    found = nets.plan(LENET, {"batch": 8}, DIGITS, tmp_path)
    assert found["ok"], found
    rows = [(row["layer"], row["direction"]) for row in found["layers"]]
    assert rows == [
        ("conv1", "forward"), ("conv1", "filter"), ("conv2", "forward"), ("conv2", "filter"), ("conv2", "data"),
    ]  # fmt: skip
    for row in found["layers"]:
        assert row["algorithm"] == row["front"][-1]["algorithm"]
        assert row["seconds"] > 0
        assert any(other["refused"] for other in row["others"])
        assert row["algorithm"] not in [other["algorithm"] for other in row["others"]]
    assert found["seconds"] == pytest.approx(sum(row["seconds"] for row in found["layers"]))
    assert "memory" not in found
    wrong = nets.plan(LENET.replace("num_output: 20", "num_outputs: 20"), {}, DIGITS, tmp_path)
    assert (wrong["ok"], wrong["line"]) == (False, 17)
    frozen = nets.plan(LENET, {"batch": 8, "freeze": "conv1"}, DIGITS, tmp_path)
    assert ("conv1", "filter") not in [(row["layer"], row["direction"]) for row in frozen["layers"]]


def test_the_search_for_alternatives_ends_in_time(tmp_path: Path) -> None:
    found = nets.plan(LENET, {"batch": 256}, DIGITS, tmp_path, alternatives=True, seconds=0.0)
    assert found["ok"]
    assert not found["is_whole"]


def test_what_a_limit_on_memory_costs(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    found = nets.plan(SMALL, {"batch": 8, "memory_limit": "1 MiB"}, DIGITS, tmp_path)["memory"]
    assert found["error"] is None
    assert 0 < found["peak"] <= 1 << 20
    assert found["seconds"] > 0
    few = nets.plan(SMALL, {"batch": 8, "memory_limit": "1 KiB"}, DIGITS, tmp_path)["memory"]
    assert "is too small" in few["error"]


class TestFineTuning:
    def trained(self, home: Path, classes: int) -> Path:
        """The weights of a net for so many classes."""
        net = load_solver(self.files(home, "1", {}, classes) / "solver.prototxt").net
        path = home / "runs" / "1" / "best.npz"
        net.save_weights(path)
        return path

    def files(self, home: Path, run: str, options: dict[str, Any], classes: int = 10) -> Path:
        row = {**DIGITS, "classes": [str(number) for number in range(classes)]}
        nets.write(home / "runs" / run, SMALL, {"batch": 8, "epochs": 1, **options}, row, home)
        return home / "runs" / run

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        data(tmp_path)
        return tmp_path

    def test_what_fits_is_kept(self, home: Path) -> None:
        weights = self.trained(home, 10)
        folder = self.files(home, "2", {"weights": str(weights)})
        weights.unlink()  # the run does not need the other one any more
        solver = load_solver(folder / "solver.prototxt")
        first = load_solver(home / "runs" / "1" / "solver.prototxt")
        for name, array in {p.name: p.blob.data for p in first.net.parameters}.items():
            np.testing.assert_array_equal(
                array, next(p.blob.data for p in solver.net.parameters if p.name == name)
            )
        assert parse((folder / "solver.prototxt").read_text(), SolverParameter).weights == ["start.npz"]

    def test_other_classes_start_afresh(self, home: Path) -> None:
        weights = self.trained(home, 12)
        found = nets.check(SMALL, {"weights": str(weights)}, DIGITS, home)
        assert found["start"] == {"kept": ["conv"], "fresh": ["scores"]}
        assert any("'scores' starts afresh as 'scores_2'" in each["what"] for each in found["changes"])
        folder = self.files(home, "2", {"weights": str(weights)})
        net = parse((folder / "net.prototxt").read_text(), NetParameter)
        assert [layer.name for layer in net.layer if layer.type == "InnerProduct"] == ["scores_2"]
        solver = load_solver(folder / "solver.prototxt")
        with np.load(weights) as arrays:
            np.testing.assert_array_equal(solver.net.weights["conv"][0].data, arrays["conv/0"])
        solver.step(1)

    def test_frozen_layers_stay_as_they_are(self, home: Path) -> None:
        weights = self.trained(home, 12)
        folder = self.files(home, "2", {"weights": str(weights), "freeze": ["conv"]})
        solver = load_solver(folder / "solver.prototxt")
        solver.step(2)
        with np.load(weights) as arrays:
            np.testing.assert_array_equal(solver.net.weights["conv"][0].data, arrays["conv/0"])
        found = nets.check(SMALL, {"weights": str(weights), "freeze": ["scores"]}, DIGITS, home)
        assert "cannot keep its weights" in found["error"]

    def test_weights_of_something_else(self, home: Path) -> None:
        other = home / "other.npz"
        np.savez(other, **{"ip9/0": np.zeros((3, 3), np.float32)})
        assert "ip9" in nets.check(SMALL, {"weights": str(other)}, DIGITS, home)["error"]
        other.write_bytes(b"nothing")
        assert not nets.check(SMALL, {"weights": str(other)}, DIGITS, home)["ok"]
        assert "cannot be read" in nets.check(SMALL, {"weights": str(home / "no.npz")}, DIGITS, home)["error"]
