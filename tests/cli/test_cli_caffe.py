"""Caffe's commands: what `train`, `test` and `time` do beside their main job, and the tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import call
from jitdnn.caffe import load_net

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
