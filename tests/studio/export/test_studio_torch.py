"""Nets as programs of torch.export: what PyTorch answers after reading them back, against our own run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

import studio_trained
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument
from jitdnn.studio.export import onnx_export, torch_export
from jitdnn.studio.export.exports import export
from jitdnn.studio.look.trained import open_trained
from jitdnn.studio.nets.imports import import_file
from studio_layers import everything


def test_every_layer_that_has_a_form() -> None:
    """For another number of images than the program was made with."""
    net = everything()
    model = onnx_export.to_onnx(net)
    images = np.random.default_rng(3).normal(size=(5, 4, 9, 11)).astype(np.float32)
    net.reshape(data=images.shape)
    expected = {name: values.copy() for name, values in net.forward(data=images).items()}
    program = torch_export.to_program(model, images[:2])
    with torch.no_grad():
        found = program.module()(torch.from_numpy(images))
    names = [output.name for output in model.graph.output]
    assert len(names) > 50
    for name, values in zip(names, found, strict=True):
        assert tuple(values.shape) == expected[name].shape, name
        scale = max(1.0, abs(expected[name]).max())
        np.testing.assert_allclose(
            values.numpy() / scale, expected[name] / scale, rtol=0, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize("task", ["classification", "segmentation", "regression"])
def test_a_trained_net_is_exported_and_answers_alike(task: str) -> None:
    case = studio_trained.digits() if task == "classification" else studio_trained.of_task(task)
    made = export(*case, "torch")
    (check,) = made["checks"]
    assert check["runner"] == "PyTorch"
    assert check["distance"] <= check["allowed"]
    assert made["name"].endswith(".pt2")
    file = case.home / "runs" / "1" / "export" / made["file"]
    trained, data = open_trained(*case)
    images = np.asarray(data.images("test")[:3])
    facts = {"facts.json": ""}
    program = torch.export.load(str(file), extra_files=facts)
    with torch.no_grad():
        answers = program.module()(torch.from_numpy(images.astype(np.float32)))
    np.testing.assert_allclose(answers.numpy(), trained.predict(images), rtol=1e-4, atol=1e-5)
    assert json.loads(facts["facts.json"])["task"] == task


def test_what_was_exported_can_be_brought_back(tmp_path: Path) -> None:
    """The studio's own reader takes the program over, cropping apart: a program without any."""
    net = load_net("package:models/lenet_deploy.prototxt", seed=1)
    images = np.random.default_rng(0).random((3, 1, 26, 26)).astype(np.float32)
    file = tmp_path / "lenet.pt2"
    net.reshape(data=images.shape)
    wanted = net.forward(data=images)["prob"].copy()
    distance = torch_export.write_program(file, onnx_export.to_onnx(net), images, wanted, {})
    assert distance < 1e-5
    told = import_file(file.read_bytes(), "lenet.pt2", tmp_path)
    assert told["ok"], told["report"]


def test_answers_that_are_off_are_not_written() -> None:
    with pytest.raises(InvalidArgument, match="not written"):
        torch_export.check_distance(float("nan"), 1e-4)
    with pytest.raises(InvalidArgument, match="not written"):
        torch_export.check_distance(2e-4, 1e-4)
