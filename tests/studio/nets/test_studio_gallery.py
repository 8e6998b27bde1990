"""The nets of the gallery: their sizes as published, each bound to every task that it is for, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import load_solver
from jitdnn.studio import nets

GALLERY = {net["key"]: net for net in nets.gallery()}
#: size, trained values, 10^9 multiply-adds of an image, for 1,000 classes and 3 channels: torchvision's documentation,
#: and for AlexNet, whose groups it does not have, Caffe's model zoo
PUBLISHED = {
    "alexnet": (227, 60_965_224, 0.72),
    "vgg16": (224, 138_357_544, 15.47),
    "resnet18": (224, 11_689_512, 1.81),
    "mobilenet_v2": (224, 3_504_872, 0.3),
    "convnext_tiny": (224, 28_589_128, 4.46),
    "squeezenet": (224, 1_235_496, 0.35),
}


def row(task: str, shape: list[int], classes: int, images: int = 8) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "d",
        "task": task,
        "shape": shape,
        "classes": [f"c{number}" for number in range(classes)],
        "train": images,
        "val": images,
        "test": 0,
    }


def data(home: Path, task: str, shape: list[int], images: int = 8) -> None:
    random = np.random.default_rng(0)
    folder = home / "data" / "1"
    folder.mkdir(parents=True)
    labels: dict[str, Any] = {
        "classification": lambda: np.arange(images) % 3,
        "multi-label": lambda: random.integers(0, 2, (images, 3)).astype(np.int64),
        "regression": lambda: random.standard_normal((images, 3)).astype(np.float32),
        "segmentation": lambda: random.integers(0, 3, (images, *shape[1:])).astype(np.uint8),
    }
    for part in ("train", "val"):
        np.save(folder / f"{part}_data.npy", random.integers(0, 256, (images, *shape), np.uint8))
        np.save(folder / f"{part}_label.npy", labels[task]())


@pytest.mark.parametrize("key", PUBLISHED)
def test_weights_are_as_many_as_published(key: str, tmp_path: Path) -> None:
    size, weights, multiply_adds = PUBLISHED[key]
    found = nets.check(
        GALLERY[key]["text"], {"batch": 4096}, row("classification", [3, size, size], 1000), tmp_path
    )
    assert found["ok"], found
    assert found["weights"] == weights
    # what is no product counts too
    assert found["flops"] / 2e9 == pytest.approx(multiply_adds, rel=0.05)


@pytest.mark.parametrize("key", GALLERY)
def test_every_net_fits_the_tasks_and_sizes_that_it_names(key: str, tmp_path: Path) -> None:
    net = GALLERY[key]
    assert net["title"]
    assert net["about"].endswith(".")
    low, high = net["size"]
    for task in net["tasks"]:
        for shape in ([1, low, low], [3, high, high], [3, low, high], [3, low + 5, low + 3]):
            found = nets.check(net["text"], {"batch": 2}, row(task, shape, 3), tmp_path)
            assert found["ok"], (task, shape, found["error"])


RUN = [
    ("lenet", "classification", [1, 20, 20]),
    ("lenet", "multi-label", [1, 20, 20]),
    ("lenet", "regression", [1, 20, 20]),
    ("perceptron", "classification", [4, 1, 1]),
    ("autoencoder", "classification", [1, 8, 8]),
    ("unet_small", "segmentation", [1, 18, 17]),
]


@pytest.mark.parametrize(("key", "task", "shape"), RUN)
def test_an_iteration(key: str, task: str, shape: list[int], tmp_path: Path) -> None:
    data(tmp_path, task, shape)
    folder = tmp_path / "runs" / "1"
    options = {"batch": 1, "epochs": 1, "rate": 0.001}
    nets.write(folder, GALLERY[key]["text"], options, row(task, shape, 3), tmp_path)
    solver = load_solver(folder / "solver.prototxt", keep_blobs=True)
    before = [parameter.blob.data.copy() for parameter in solver.net.parameters]
    solver.step(1)
    assert np.isfinite(solver.net.loss)
    after = [parameter.blob.data for parameter in solver.net.parameters]
    assert any(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    (tested,) = solver.test_nets
    assert all(np.isfinite(blob.data).all() for blob in tested.blobs.values())
