"""The larger nets of the gallery, one image forwards and backwards each, and ConvNeXt's block beside PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import load_net, load_solver
from jitdnn.studio import nets

GALLERY = {net["key"]: net["text"] for net in nets.gallery()}
SIZES = {
    "cifar_quick": 20,
    "vgg_small": 20,
    "resnet18": 64,
    "mobilenet_v2": 64,
    "convnext_tiny": 32,
    "squeezenet": 64,
    "googlenet": 128,
    "alexnet": 128,
    "vgg16": 64,
}


def run(home: Path, key: str, size: int) -> Path:
    """A run of a net on a few images with three classes."""
    folder = home / "data" / "1"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        np.save(folder / f"{part}_data.npy", random.integers(0, 256, (3, 3, size, size), np.uint8))
        np.save(folder / f"{part}_label.npy", np.arange(3))
    row: dict[str, Any] = {"id": 1, "name": "d", "task": "classification", "shape": [3, size, size],
                           "classes": ["a", "b", "c"], "train": 3, "val": 3, "test": 0}  # fmt: skip
    made = home / "runs" / "1"
    nets.write(made, GALLERY[key], {"batch": 1, "epochs": 1, "rate": 1e-4}, row, home)
    return made


@pytest.mark.parametrize("key", SIZES)
def test_one_image_forwards_and_backwards(key: str, tmp_path: Path) -> None:
    solver = load_solver(run(tmp_path, key, SIZES[key]) / "solver.prototxt")
    net = solver.net
    net.forward()
    net.backward()
    assert np.isfinite(net.loss)
    for parameter in net.parameters:
        if parameter.lr_mult:
            assert np.isfinite(parameter.blob.diff).all(), parameter.name
    # the first layer with weights learns: the gradient came through the whole net
    first = next(parameter for parameter in net.parameters if parameter.lr_mult)
    assert first.blob.diff.any()


def test_the_block_of_convnext_is_that_of_pytorch(tmp_path: Path) -> None:
    """Its layer normalization is made of Caffe's layers; GELU is the approximation of its paper by a sigmoid."""
    torch = pytest.importorskip("torch")
    made = run(tmp_path, "convnext_tiny", 32)
    text = (made / "net.prototxt").read_text()
    # the stem and one block are enough
    head, _, rest = text.partition('name: "s1b2/depthwise"')
    assert rest
    cut = made / "cut.prototxt"
    cut.write_text(head.rpartition("layer {")[0])
    net = load_net(cut, phase="TRAIN", dtype="f64")
    random = np.random.default_rng(1)
    for parameter in net.parameters:
        parameter.blob.data[...] = random.standard_normal(parameter.blob.shape) * 0.3
    net.forward()
    weights = {
        name: [torch.tensor(blob.data.copy(), requires_grad=True) for blob in blobs]
        for name, blobs in net.weights.items()
    }
    functional = torch.nn.functional

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, x.shape[-1:], *weights[name], eps=1e-6)

    x = functional.conv2d(torch.tensor(net.blobs["data"].data.copy()), *weights["stem"], stride=4)
    x = norm(x.permute(0, 2, 3, 1), "stem/norm").permute(0, 3, 1, 2)
    y = functional.conv2d(x, *weights["s1b1/depthwise"], padding=3, groups=96).permute(0, 2, 3, 1)
    y = functional.linear(norm(y, "s1b1/norm"), *weights["s1b1/wide"])
    y = functional.linear(y * torch.sigmoid(1.702 * y), *weights["s1b1/narrow"])
    wanted = x + (y * weights["s1b1/scale"][0]).permute(0, 3, 1, 2)
    np.testing.assert_allclose(net.blobs["s1b1"].data, wanted.detach().numpy(), rtol=1e-9, atol=1e-9)
